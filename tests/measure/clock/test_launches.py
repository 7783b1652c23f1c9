"""Compiles for GPUs that are not there, in a process of its own: Triton interprets in this one."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from harness.errors import HarnessError
from harness.measure.clock import launches
from harness.measure.clock.launches import record_launches

SCRIPT = """
import json, sys
from pathlib import Path

import torch

from harness.devices.table import load_devices
from harness.measure.clock.launches import record_launches
from harness.measure.clock.probe_kernels import TritonProbes
from harness.measure.recording import recording

probes = TritonProbes(132, "meta")
fp32 = torch.empty((528, 64), device="meta")
int32 = torch.empty(1 << 16, dtype=torch.int32, device="meta")
calls = [
    probes.empty((528, 1, 1)),
    probes.touch((4, 3, 2), fp32, fp32),
    probes.copies(int32, int32)[0],
    probes.reads(int32)[-1],
    probes.arithmetic(),
]
with recording(load_devices()[sys.argv[1]], Path(sys.argv[2])) as static, record_launches() as launches:
    for call in calls:
        call()
facts = lambda found: [(l.grid, l.config, l.binary_hash) for l in found]
print(json.dumps({"static": facts(static.launches), "recorded": facts(launches), "names": [l.kernel for l in launches]}))
"""


@pytest.fixture(scope="module", params=["h200", "mi300x"])
def compiled(request, tmp_path_factory):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", SCRIPT, request.param, str(tmp_path_factory.mktemp("cache"))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_engines_own_kernels_compile_for_every_kind_of_gpu(compiled):
    assert compiled["names"] == ["empty_kernel", "touch_kernel", "copy_kernel", "read_kernel", "arithmetic_kernel"]


@pytest.mark.slow
def test_a_launch_says_what_the_static_kind_says_of_it(compiled):
    assert compiled["recorded"] == compiled["static"]


@pytest.mark.slow
def test_grids_are_written_with_all_three_axes(compiled):
    assert [grid for grid, _, _ in compiled["recorded"]][:2] == ["528,1,1", "4,3,2"]


def test_interpreted_kernels_have_no_binaries_to_record():
    with pytest.raises(HarnessError, match="TRITON_INTERPRET"), record_launches():
        pass


@pytest.mark.parametrize(
    ("ptx", "keeps"),
    [
        ("createpolicy.fractional.L2::evict_last.b64 %rd2, 1.0;", True),
        ("createpolicy.fractional.L2::evict_first.b64 %rd2, 1.0;", False),
        ("ld.global.b32 { %r1 }, [ %rd1 + 0 ];", False),
        (None, False),
    ],
)
def test_a_kernel_that_asks_the_cache_to_keep_what_it_loads_says_so(monkeypatch, ptx, keeps):
    monkeypatch.setattr(launches, "config_text", lambda source, metadata: "")
    compiled = SimpleNamespace(name="kernel", src=None, metadata=None, asm={"cubin": b"code"} | ({"ptx": ptx} if ptx else {}))
    assert keeps == launches._record(compiled, (1,)).keeps
