"""Progress of a run where no terminal is: lines that count cells, of all that are asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.commands._progress import Progress
from harness.dispatch.protocol import CellDone, Event, JobDone
from harness.plan.jobs import Job, Turn
from harness.records import Cell, Record, Status


def make_job(kernel: str, cells: int, launches: int = 1) -> Job:
    found = tuple(Cell(kernel, "v", f"N={n},dtype=fp32", "h200") for n in range(cells))
    return Job(kernel, "latency", "unit", kernel, "h200", found, tuple(Turn(n, found) for n in range(launches)), 60.0, 1.0)


def answers(job: Job, status: Status = Status.OK) -> list[Event]:
    """What a job says of all its cells, launch by launch."""
    return [CellDone(job, cell, (record(job, cell, status),)) for turn in job.turns for cell in turn.cells]


def record(job: Job, cell: Cell, status: Status) -> Record:
    names = {"kernel": cell.kernel, "variant": cell.variant, "case": cell.case, "dtype": cell.dtype, "device": cell.device}
    return Record(**names, kind=job.kind, metric=None, value=None, status=status, reason="why")


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """`lines(events, cells=44)`: what is said of them."""

    def observe(events: list[Event], cells: int | None = None) -> list[str]:
        with Progress(quiet=False, cells=cells) as progress:
            for event in events:
                progress.observe(event)
        return capsys.readouterr().err.splitlines()

    return observe


def test_a_line_says_how_many_cells_of_how_many_have_ended(lines):
    one, two = make_job("a", 2), make_job("b", 3)
    events = [*answers(one), JobDone(one), *answers(two), JobDone(two)]
    assert ["[2 of 44] latency a on h200", "[5 of 44] latency b on h200"] == lines(events, cells=44)


def test_a_cell_of_three_launches_counts_once(lines):
    job = make_job("a", 2, launches=3)
    assert ["[2 of 2] latency a on h200"] == lines([*answers(job), JobDone(job)], cells=2)


def test_jobs_side_by_side_never_share_a_number(lines):
    one, two = make_job("a", 2), make_job("b", 3)
    events = [*answers(one), *answers(two), JobDone(one), JobDone(two)]
    assert ["[2 of 5] latency a on h200", "[5 of 5] latency b on h200"] == lines(events, cells=5)


def test_without_a_total_none_is_said(lines):
    job = make_job("a", 2)
    assert ["[2 done] latency a on h200"] == lines([*answers(job), JobDone(job)])


def test_cells_of_a_job_that_fail_alike_are_named_once(lines):
    assert ["wrong: latency a/v/N=0,dtype=fp32@h200: why"] == lines(answers(make_job("a", 2), Status.WRONG), cells=2)
