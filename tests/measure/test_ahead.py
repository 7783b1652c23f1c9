"""What is compiled ahead of a lease is what the engine launches in one."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from harness.devices.units import local_units

LAUNCH = """
import sys, torch
from pathlib import Path
from triton import knobs
from harness.devices.table import load_devices
from harness.measure.clock.canaries import COPY_CACHES
from harness.measure.clock.device import BLOCK_MULTIPLE, TOUCH_STRIDE
from harness.measure.clock.probe_kernels import TritonProbes

GRIDS, LINES = ((1, 1, 1), (512, 1, 1), (7, 3, 2)), (1, 2, 7, 48, 500, 512)

def launch_all(probes, where):
    "What floors, ceilings and canaries launch."
    copied = torch.empty(COPY_CACHES * BLOCK_MULTIPLE, dtype=torch.int32, device=where)
    calls = [probes.arithmetic(), *probes.copies(copied, torch.empty_like(copied)), *probes.reads(copied), *map(probes.empty, GRIDS)]
    lines, begin = torch.empty((sum(LINES), TOUCH_STRIDE), dtype=torch.float32, device=where), 0
    for count in LINES:
        calls += [probes.touch(grid, lines[begin : begin + count], torch.empty_like(lines[:count])) for grid in GRIDS]
        begin += count
    for call in calls:
        call()
"""
ON_TARGET = """
from harness.measure.ahead import compile_engine
from harness.measure.recording import recording
device, cache = load_devices()[sys.argv[1]], Path(sys.argv[2])
compile_engine(device, cache)
with recording(device, cache) as recorder:
    launch_all(TritonProbes(device.properties.multiprocessors, "meta"), "meta")
print(len(recorder.launches), recorder.compile_s)
"""
ON_GPU = """
missed = []
knobs.compilation.listener = lambda *, cache_hit, src, **_: missed.append(src.name) if not cache_hit else None
launch_all(TritonProbes(torch.cuda.get_device_properties(0).multi_processor_count, "cuda", sys.argv[2]), "cuda")
print(missed)
"""
AHEAD = "import os, sys\nfrom harness.measure import server\nprint(os.waitpid(server._compile_ahead(*sys.argv[1:]), 0)[1])"


def run(code, device, cache):
    """Run code in a process that compiles, as a fork server's launches do."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"TRITON_DISABLE_LINE_INFO": "1"}
    command = [sys.executable, "-c", code, device, str(cache)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)


@pytest.mark.parametrize("device", ["h200", "mi300x"])
def test_nothing_is_left_to_compile_of_what_a_lease_launches(tmp_path, device):
    launches, compile_s = run(LAUNCH + ON_TARGET, device, tmp_path).stdout.split()
    assert (int(launches), float(compile_s)) == (1 + 4 + 4 + 3 + 18, 0.0)


def test_a_fork_server_compiles_them_in_a_child(tmp_path):
    assert "0\n" == run(AHEAD, "h200", tmp_path).stdout
    kernels = {file.stem for file in tmp_path.rglob("*.cubin")}
    assert {"empty_kernel", "touch_kernel", "copy_kernel", "read_kernel", "arithmetic_kernel"} == kernels


def test_what_cannot_be_compiled_is_said_and_left_to_the_launches(tmp_path):
    done = run(AHEAD, "cpu", tmp_path)
    assert done.stdout != "0\n"
    assert "compile for device cpu" in done.stderr


HANGS = """
import os, subprocess, sys, time
from harness.measure import ahead, server
def hang(device, cache):
    cache.write_text(str(subprocess.Popen(["sleep", "600"]).pid))  # as ptxas would
    time.sleep(600)
ahead.compile_engine, server.AHEAD_S = hang, float(sys.argv[3])
server._preload("interpreter", *sys.argv[1:3])
"""


def test_a_compile_that_hangs_is_ended_with_what_it_started_and_the_server_goes_on(tmp_path):
    note = tmp_path / "pid"
    command = [sys.executable, "-c", HANGS, "h200", str(note), "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "compiling the engine's own kernels ahead did not end within 4 s: launches compile them" in done.stderr
    deadline = time.monotonic() + 20  # it has been told to end; a busy machine takes its time
    while is_running(Path(f"/proc/{note.read_text()}/stat")):
        assert time.monotonic() < deadline, "its child still runs"
        time.sleep(0.01)


def is_running(stat_file):
    """Whether a process does anything still; one that nobody has waited for does not."""
    try:
        return not stat_file.read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return False


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_all_that_was_compiled_without_it(tmp_path):
    (unit, *_) = local_units()
    run(AHEAD, unit.device, tmp_path)
    assert "[]\n" == run(LAUNCH + ON_GPU, unit.device, tmp_path).stdout
