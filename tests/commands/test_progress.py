"""Progress of a run where no terminal is: lines that count cells, of all that are asked for."""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.commands import _progress
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


class TestWhereNothingEndsForLong:
    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch):
        monkeypatch.setattr(_progress, "SILENCE_S", 0.02)

    @pytest.fixture
    def said(self, monkeypatch):
        """`said(jobs)`: the next line that is said while nobody is heard of."""
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        monkeypatch.setattr(Progress, "say", lambda _, line: lines.put(line))

        def wait(jobs, *events):
            with Progress(quiet=False, jobs=jobs) as progress:
                for event in events:
                    progress.observe(event)
                while not lines.empty():
                    lines.get()
                return lines.get(timeout=60)

        return wait

    def test_it_is_said_what_is_open_and_when_a_cell_is_given_up(self, said):
        line = said([make_job("a", 2)])
        assert re.fullmatch(r"no cell has ended for \d+ s; open: latency of a on h200; one that does not end is given up after 60 s", line)

    def test_jobs_that_have_ended_are_not_named_and_limits_are(self, said):
        ended, slow, other = make_job("a", 2), replace(make_job("b", 1), deadline_s=600.0), make_job("c", 1)
        line = said([ended, slow, other], JobDone(ended))
        assert "; open: latency of b on h200, and 1 job more; one that does not end is given up after 60 to 600 s, by its kind" in line

    def test_nothing_is_said_once_all_have_ended(self, monkeypatch):
        lines = []
        monkeypatch.setattr(Progress, "say", lambda _, line: lines.append(line))
        job = make_job("a", 1)
        with Progress(quiet=False, jobs=[job]) as progress:
            progress.observe(JobDone(job))
            time.sleep(0.1)  # a line that was begun before
            lines.clear()
            time.sleep(0.2)
        assert lines == []


def test_without_a_total_none_is_said(lines):
    job = make_job("a", 2)
    assert ["[2 done] latency a on h200"] == lines([*answers(job), JobDone(job)])


def test_cells_of_a_job_that_fail_alike_are_named_once(lines):
    assert ["wrong: latency a/v/N=0,dtype=fp32@h200: why"] == lines(answers(make_job("a", 2), Status.WRONG), cells=2)
