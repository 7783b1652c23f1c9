"""Running ncu, stood in for by a script: what it counts, and every way in which it does not."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from harness.devices.units import Unit
from harness.dispatch import counters
from harness.dispatch.counters import count, find_tool
from harness.records import Cell

UNIT = Unit("GPU-counters-test", "h200", "NVIDIA H200", 0, {"CUDA_VISIBLE_DEVICES": "GPU-counters-test"})
CELLS = [Cell("norm", "fused", f"N={n},dtype=fp32", "h200") for n in (4, 8)]
RAW = (Path(__file__).parents[1] / "measure/calibration/ncu_raw.csv").read_text()
"""Calls 0, 1 and 3 have a marker; the last has no kernel after it."""


@pytest.fixture
def ncu(tmp_path):
    """`ncu(body)`: a tool that runs `body`, a Python text that knows `log`, `spec` and `raw`."""

    def make(body):
        tool = tmp_path / "ncu"
        head = "import json, sys\nfrom pathlib import Path\nlog = Path(sys.argv[sys.argv.index('--log-file') + 1])\n"
        tool.write_text(f"#!/usr/bin/env python3\n{head}spec = json.loads(Path(sys.argv[-1]).read_text())\nraw = {RAW!r}\n{body}\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        return lambda cells=CELLS: count(str(tool), tmp_path, UNIT, tmp_path / "scratch", cells, (20.0,), (1024,))

    return make


def test_totals_are_given_by_what_was_called(ncu):
    found = ncu("log.write_text(raw)\nPath(spec['done']).write_text(json.dumps([None, None, 'OutOfMemoryError: too much', None]))")()
    assert found.why_not is None
    assert (20.832, 4.0) == (found.spins[20.0].us, found.copies[1024].us)
    assert {CELLS[0]: "OutOfMemoryError: too much"} == found.failed
    assert {CELLS[1]: 0} == {cell: totals.kernels for cell, totals in found.cells.items()}


def test_what_is_profiled_is_the_unit_in_hand_and_the_cells(ncu, tmp_path):
    body = "import os\nPath(spec['root'], 'seen').write_text(json.dumps([spec['cells'], os.environ['CUDA_VISIBLE_DEVICES'], sys.argv]))"
    ncu(body)()
    cells, visible, argv = json.loads((tmp_path / "seen").read_text())
    assert (list(map(str, CELLS)), UNIT.uuid) == (cells, visible)
    assert argv[argv.index("--clock-control") + 1] == "none"


def test_a_process_that_ended_early_costs_what_came_after(ncu):
    found = ncu("log.write_text(raw)")()
    assert dict.fromkeys(CELLS, "the profiled process ended before it") == found.failed


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("log.write_text('==ERROR== ERR_NVGPUCTRPERM')", "==ERROR== ERR_NVGPUCTRPERM; see that this user may read the GPU's counters"),
        ("print('gone'); sys.exit(3)", "no table in its output; see that this user may read the GPU's counters (ncu ended with: gone)"),
    ],
    ids=["no permission", "died"],
)
def test_a_tool_that_counts_nothing_says_why(ncu, body, why):
    assert why == ncu(body)().why_not


def test_a_tool_that_hangs_is_given_up(ncu, monkeypatch):
    monkeypatch.setattr(counters, "TIMEOUT_S", 0.5)
    assert "ncu took over 0.5 s" == ncu("import time\ntime.sleep(30)")().why_not


def test_a_tool_that_cannot_start(tmp_path):
    why = count(str(tmp_path / "none"), tmp_path, UNIT, tmp_path / "scratch", [], (), ()).why_not
    assert "ncu did not start" in (why or "")


def test_the_tool_is_found_on_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_tool() is None
    (tmp_path / "ncu").write_text("#!/bin/sh\n")
    (tmp_path / "ncu").chmod(0o755)
    assert str(tmp_path / "ncu") == find_tool()
