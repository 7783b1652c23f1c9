from __future__ import annotations

import json

import pytest

STEP = '''"""A step of a state, a kernel for tests that declares all there is."""

import math

from harness import Case, Cycle, Drift, Kernel, Tolerance, Traffic, Variant

ONE = "one rounding"


def tolerance(case):
    return Tolerance(8e-3, ONE, {"state": 1e-5}, 0.999) if case.dtype == "bf16" else Tolerance(1e-6, ONE, element=math.inf)


KERNEL = Kernel(
    variants={
        "whole": print,
        "half": Variant(
            print,
            triton=False,
            cases=lambda case: case.L > 1,
            outputs=(),
            traffic=lambda case: Traffic(5, 6),
            activations=("x",),
        ),
    },
    default="whole",
    baseline="whole",
    axes=("N", "L", "eps"),
    defaults={"eps": 1e-6},
    cases=[Case(N=8, L=1, dtype="fp32", tags="smoke"), Case(N=8, L=4, dtype="bf16", tags="drift")],
    make_inputs=print,
    reference=print,
    outputs=("y",),
    mutates=("state",),
    slots={"state": "rows"},
    null_slots=1,
    tolerance=tolerance,
    traffic=lambda case: Traffic(1000 * case.N, 2),
    flops=lambda case: 3,
    other_traffic={"paper": lambda case: 4000},
    drift=Drift(print, {"state": "state"}, {"bf16": Tolerance(2e-5, "it forgets", cosine=0.9999)}, steps=50),
    cycle=Cycle(lambda case: case.L, "position", print),
    deterministic=False,
    data="steps/1",
)
'''


@pytest.fixture
def step(repository):
    repository.write("kernels/step.py", STEP)


def test_the_list_has_the_keys_that_scripts_rely_on(harness) -> None:
    (kernel,) = json.loads(harness("kernels", "--format", "json").out)
    assert {"name", "file", "variants", "default", "baseline", "cases", "mutates", "cycle", "drift"} == set(kernel)
    assert {"case": "N=8,dtype=fp32", "tags": ["cpu", "smoke"]} == kernel["cases"][0]


def test_show_prints_the_docstring_and_every_case_with_its_costs(harness) -> None:
    lines = harness("kernels", "show", "scale").out.splitlines()
    assert ["scale  kernels/scale.py", "", "y = 2 x, a kernel for tests."] == lines[:3]
    assert ["N=64,dtype=fp32", "256", "256", "64"] == lines[-1].split()


def test_show_prints_all_that_is_declared(harness, step) -> None:
    out = harness("kernels", "show", "step").out
    assert EXPECTED == out.partition("all there is.\n\n")[2]


EXPECTED = """\
variant (* default, ^ baseline)  cases  Triton  returns  changes  activations
whole*^                              2  yes     y        state    -
half                                 1  no      -        state    x

axes: N, L, eps=1e-6, strided=0, dtype; one that has the value given here is left out of a case's
  name
inputs: steps/1
activations: what the operation before has just written; where none are named, what each step of
  drift draws
two calls on equal inputs: may differ
slots: state by rows; the first 1 belong to nobody
cycle: the cost of a call depends on its phase, which position holds

tolerances: the relative L2 error that an output or changed tensor may have; integers are equal
  where they are not named
  1  fp32: 1e-06
     one rounding
  2  bf16: 0.008, state 1e-05; cosine at least 0.999; an element at most 32 times that
     one rounding

drift: 50 steps of the cases tagged drift, each of which keeps its tolerance above; carried are
  state, whose limits, by the axis state of a case, else by its dtype, are the same after 1, 10
  steps
  bf16: 2e-05; cosine at least 0.9999
     it forgets

case                tolerance  variants  tags
N=8,L=1,dtype=fp32          1  whole     smoke
N=8,L=4,dtype=bf16          2  all       drift

a call of           bytes read  bytes written  flop  bytes, paper  steps
N=8,L=1,dtype=fp32       8,000              2     3         4,000      1
N=8,L=4,dtype=bf16       8,000              2     3         4,000      4
  half                       5              6
bytes, paper: by a further model of the kernel, which gates nothing
steps: bytes and flop are the mean over so many steps, a cycle
indented: a variant that does a part of the work alone, with bytes of its own
"""


def test_show_gives_json(harness) -> None:
    kernel = json.loads(harness("kernels", "show", "scale", "--format", "json").out)
    costs = {"read_bytes": 32, "written_bytes": 32, "flops": 8, "parts": {}, "other_bytes": {}, "cycle_steps": 1}
    tolerance = {"rel_l2": 1e-6, "reason": "one rounding", "tensors": {}, "cosine": None, "element": 32.0}
    takes = {"variants": ["double", "twice"], "activations": {}}
    assert {"case": "N=8,dtype=fp32", "tags": ["cpu", "smoke"], **costs, "tolerance": tolerance, **takes} == kernel["cases"][0]


def test_the_json_of_show_has_all_that_is_declared(harness, step) -> None:
    kernel = json.loads(harness("kernels", "show", "step", "--format", "json").out)
    assert kernel.pop("doc").startswith("A step")
    first, second = kernel.pop("cases")
    assert (None, 1, ["whole"]) == (first["tolerance"]["element"], first["cycle_steps"], first["variants"])
    assert {
        "case": "N=8,L=4,dtype=bf16",
        "tags": ["drift"],
        "read_bytes": 8000,
        "written_bytes": 2,
        "flops": 3,
        "parts": {"half": {"read_bytes": 5, "written_bytes": 6}},
        "other_bytes": {"paper": 4000},
        "cycle_steps": 4,
        "tolerance": {"rel_l2": 8e-3, "reason": "one rounding", "tensors": {"state": 1e-5}, "cosine": 0.999, "element": 32.0},
        "variants": ["whole", "half"],
        "activations": {"half": ["x"]},
    } == second
    limit = {"rel_l2": 2e-5, "reason": "it forgets", "tensors": {}, "cosine": 0.9999, "element": 32.0}
    assert {
        "name": "step",
        "file": "kernels/step.py",
        "variants": ["whole", "half"],
        "default": "whole",
        "baseline": "whole",
        "mutates": ["state"],
        "cycle": True,
        "drift": True,
        "cursor": "position",
        "axes": ["N", "L", "eps", "strided"],
        "defaults": {"strided": 0, "eps": 1e-6},
        "outputs": ["y"],
        "slots": {"state": "rows"},
        "null_slots": 1,
        "deterministic": False,
        "data": "steps/1",
        "by_variant": {
            "whole": {"triton": True, "outputs": ["y"], "mutates": ["state"]},
            "half": {"triton": False, "outputs": [], "mutates": ["state"]},
        },
        "drift_limits": {"steps": 50, "checkpoints": [1, 10], "carry": {"state": "state"}, "tolerance": {"bf16": limit}},
    } == kernel


def test_show_of_an_unknown_kernel_names_those_there_are(harness) -> None:
    answer = harness("kernels", "show", "scal")
    assert (2, True) == (answer.code, "use 'scale'" in answer.err)
