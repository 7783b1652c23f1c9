"""`harness plan`: what a plan prints of its jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.authoring.workspace import Workspace, read_workspace
from harness.commands.plan import show_plan
from harness.plan.describe import CaseInfo, Description, KernelInfo, KindCell, KindInfo
from harness.plan.plan import Plan, with_jobs
from harness.plan.trees import Tree
from harness.records import Cell, Expected

CASES = [f"N={n},dtype=fp32" for n in (1, 2)]


@pytest.fixture
def code(tmp_path: Path) -> Workspace:
    (tmp_path / "pyproject.toml").write_text("[tool.harness]\n")
    return read_workspace(tmp_path)


def plan_of(code: Workspace, expected: tuple[Expected, ...]) -> Plan:
    """Two cells each of a kind that replicates (5 s a cell) and one that does not (1 s)."""
    cells = [KindCell("add", "fast", case, None) for case in CASES]
    kinds = [
        KindInfo("latency", "latency.py", "unit", 5.0, 60.0, True, cells),
        KindInfo("static", "static.py", "host", 1.0, 60.0, False, cells),
    ]
    kernel = KernelInfo("add", "kernels/add.py", "", ["fast"], "fast", "fast", [CaseInfo(c, []) for c in CASES], [], False, False)
    tree = Tree("worktree", "worktree on 0123", "0123", "7ee", "c0de", dirty=False)
    return with_jobs(Plan(tree, code, "all", Description([kernel], kinds), expected, (), {}), launches=3)


EXPECTED = tuple(Expected(Cell("add", "fast", case, "h200"), kind) for kind in ("latency", "static") for case in CASES)


def test_text_is_a_line_a_job_and_their_sum(code: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(plan_of(code, EXPECTED), "text")
    assert capsys.readouterr().out.splitlines() == [
        "worktree on 0123, matrix all",
        "kind     kernel  device  cells  launches  expected s",
        "latency  add     h200        2         3          30",
        "static   add     h200        2         1           2",
        "4 cells in 2 jobs, 32 s expected one after another",
    ]


def test_json_has_the_launches_and_seconds_of_every_job_and_their_sum(code: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(plan_of(code, EXPECTED), "json")
    answer = json.loads(capsys.readouterr().out)
    assert 32.0 == answer["expected_s"]
    assert [("latency", 2, 3, 30.0), ("static", 2, 1, 2.0)] == [
        (job["kind"], job["cells"], job["launches"], job["expected_s"]) for job in answer["jobs"]
    ]


def test_nothing_takes_no_time(code: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(plan_of(code, ()), "text")
    assert "0 cells in 0 jobs" == capsys.readouterr().out.splitlines()[-1]
