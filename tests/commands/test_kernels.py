from __future__ import annotations

import json


def test_the_list_has_the_keys_that_scripts_rely_on(harness) -> None:
    (kernel,) = json.loads(harness("kernels", "--format", "json").out)
    assert {"name", "file", "variants", "default", "baseline", "cases", "mutates", "cycle", "drift"} == set(kernel)
    assert {"case": "N=8,dtype=fp32", "tags": ["cpu", "smoke"]} == kernel["cases"][0]


def test_show_prints_the_docstring_and_every_case_with_its_costs(harness) -> None:
    lines = harness("kernels", "show", "scale").out.splitlines()
    assert ["scale  kernels/scale.py", "", "y = 2 x, a kernel for tests."] == lines[:3]
    assert ["N=64,dtype=fp32", "256", "256", "64"] == lines[-1].split()
    assert "variants (* default, ^ baseline): double* twice^" in lines


def test_show_gives_json(harness) -> None:
    kernel = json.loads(harness("kernels", "show", "scale", "--format", "json").out)
    costs = {"read_bytes": 32, "written_bytes": 32, "flops": 8, "parts": {}}
    assert {"case": "N=8,dtype=fp32", "tags": ["cpu", "smoke"], **costs} == kernel["cases"][0]


def test_show_of_an_unknown_kernel_names_those_there_are(harness) -> None:
    answer = harness("kernels", "show", "scal")
    assert (2, True) == (answer.code, "use 'scale'" in answer.err)
