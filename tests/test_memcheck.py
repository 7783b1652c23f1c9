"""benchmarks/memcheck.py: what it makes of what the tool says, and what it leaves behind."""

import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import memcheck

from harness.plan.describe import KindCell

CELL = KindCell("scale", "double", "N=8,dtype=fp32", 1e-6)
CLEAN, PASSED = "echo '========= ERROR SUMMARY: 0 errors'", "echo '1 passed in 2.00s'"


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Checks a cell by a tool that is a shell script."""

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def run(script, timeout_s=60.0):
        tool = tmp_path / "compute-sanitizer"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        return memcheck.check(CELL, "h200", dict(os.environ), timeout_s)

    return run


@pytest.mark.parametrize(
    ("script", "good", "said"),
    [
        (f"{PASSED}; {CLEAN}", True, "exit 0, ERROR SUMMARY: 0 error, 1 passed"),
        (f"{PASSED}; echo 'ERROR SUMMARY: 2 errors'; exit 86", False, "exit 86, ERROR SUMMARY: 2 error, 1 passed"),
        (PASSED, False, "exit 0, no summary, 1 passed"),
        (CLEAN, False, "exit 0, ERROR SUMMARY: 0 error, no test passed"),
    ],
    ids=["clean", "errors", "no summary", "no test"],
)
def test_clean_is_what_passed_under_a_tool_that_found_nothing(check, script, good, said):
    assert (good, said) == check(script)


def test_what_does_not_end_in_time_is_ended_with_what_it_started(check, tmp_path):
    note = tmp_path / "pid"
    assert (False, "no end within 3 s") == check(f"sleep 600 & echo $! > {note}.new; mv {note}.new {note}; wait", timeout_s=3.0)
    deadline = time.monotonic() + 20  # it has been told to end; a busy machine takes its time
    while is_running(note.read_text().strip()):
        assert time.monotonic() < deadline, "what the tool started still runs"
        time.sleep(0.01)


def is_running(pid):
    """Whether a process does anything still; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
