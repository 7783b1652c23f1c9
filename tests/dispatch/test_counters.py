"""Running ncu, stood in for by a script: what it counts, and every way in which it does not."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import pytest

from harness.devices.units import Unit
from harness.dispatch import counters
from harness.dispatch.counters import count, find_tool
from harness.errors import Undecided
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
        known = {"spins_us": (20.0,), "copies_bytes": (1024,)}
        return lambda cells=CELLS, **more: count(str(tool), tmp_path, UNIT, tmp_path / "scratch", cells, **known, **more)

    return make


def test_totals_are_given_by_what_was_called(ncu):
    found = ncu("log.write_text(raw)\nPath(spec['done']).write_text(json.dumps([None, None, 'OutOfMemoryError: too much', None]))")()
    assert (20.832, 4.0) == (found.spins[20.0].total.us, found.copies[1024].total.us)
    assert {CELLS[0]: "OutOfMemoryError: too much"} == found.failed
    assert {CELLS[1]: 0} == {cell: len(call.launches) for cell, call in found.cells.items()}


def test_what_is_profiled_is_the_unit_in_hand_and_the_cells(ncu, tmp_path):
    body = "seen = [spec['cells'], os.environ['CUDA_VISIBLE_DEVICES'], sys.argv]\nPath(spec['root'], 'seen').write_text(json.dumps(seen))"
    ncu(f"import os\nlog.write_text(raw)\n{body}")()
    cells, visible, argv = json.loads((tmp_path / "seen").read_text())
    assert (list(map(str, CELLS)), UNIT.uuid) == (cells, visible)
    assert argv[argv.index("--clock-control") + 1] == "none"


def test_a_process_that_ended_early_costs_what_came_after(ncu):
    found = ncu("log.write_text(raw)")()
    assert dict.fromkeys(CELLS, "the profiled process ended before it") == found.failed


def test_numbers_are_written_as_in_the_c_locale_whatever_the_callers_is(ncu, tmp_path, monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    ncu("import os\nlog.write_text(raw); Path(spec['root'], 'seen').write_text(os.environ['LC_ALL'])")()
    assert "C" == (tmp_path / "seen").read_text()


@pytest.mark.parametrize(
    "text", ["", "[null, nul", "null", "{}", "[1]", "[" * 100_000], ids=["empty", "cut", "null", "object", "number", "deep"]
)
def test_what_became_of_the_calls_has_one_form(ncu, text):
    with pytest.raises(Undecided, match=r"done\.json does not say what became of each call"):
        ncu(f"log.write_text(raw)\nPath(spec['done']).write_text({text!r})")()


def test_what_is_counted_may_be_chosen(ncu, tmp_path):
    tool = ncu("log.write_text(raw); Path(spec['root'], 'seen').write_text(sys.argv[sys.argv.index('--metrics') + 1])")
    tool(metrics=("a", "b"))
    assert "a,b" == (tmp_path / "seen").read_text()


PERMISSION = "==ERROR== ERR_NVGPUCTRPERM - no permission"


@pytest.mark.parametrize(
    ("body", "found", "do"),
    [
        (f"log.write_text('{PERMISSION}')", PERMISSION, "let this user read the GPU's counters"),
        (f"print('{PERMISSION}', 'last', sep=chr(10))", PERMISSION, "let this user read the GPU's counters"),
        ("print('gone'); sys.exit(3)", "no table in its output (ncu ended with: gone)", "mend what ncu names"),
        ("log.write_text(raw); print('gone'); sys.exit(9)", "ncu failed with exit code 9 (ncu ended with: gone)", "mend what ncu names"),
        ("log.write_text('==ERROR== lost' + chr(10) + raw); sys.exit(9)", "==ERROR== lost", "mend what ncu names"),
        ("log.write_text(raw[:-60])", "unexpected end of data: ", "ask again"),
    ],
    ids=["no permission", "no permission, said aside", "died", "failed with a table", "failed and says why", "cut"],
)
def test_a_tool_that_counts_nothing_says_why(ncu, body, found, do):
    with pytest.raises(Undecided) as caught:
        ncu(body)()
    assert caught.value.found.startswith(found)
    assert caught.value.do.startswith(do)
    assert "count 4 calls on h200 (GPU-counters-test) by ncu" == caught.value.asked


def test_a_tool_that_hangs_is_ended_with_what_it_started(ncu, monkeypatch, tmp_path):
    monkeypatch.setattr(counters, "START_S", 6.0)
    monkeypatch.setattr(counters, "CALL_S", 0.0)
    body = "import os, time, subprocess\nchild = subprocess.Popen(['sleep', '60'])\nlog.with_name('child').write_text(str(child.pid))"
    with pytest.raises(Undecided, match="ncu took over 6 s"):
        ncu(f"{body}\ntime.sleep(60)")()
    child = int((tmp_path / "scratch/ncu/child").read_text())
    deadline = time.monotonic() + 20  # it has been told to end; a busy machine takes its time
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)


def is_running(pid):
    """Whether a process does anything still; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_tool_that_cannot_start(tmp_path):
    with pytest.raises(Undecided, match="ncu did not start"):
        count(str(tmp_path / "none"), tmp_path, UNIT, tmp_path / "scratch", [])


def test_the_tool_is_found_on_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_tool() is None
    (tmp_path / "ncu").write_text("#!/bin/sh\n")
    (tmp_path / "ncu").chmod(0o755)
    assert str(tmp_path / "ncu") == find_tool()
