"""Progress of a run: a bar on a terminal, plain lines elsewhere; always on stderr, so that stdout is the result."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from harness.dispatch.protocol import Event
    from harness.plan.jobs import Job
    from harness.records import Cell

SILENCE_S = 30.0
"""After so long without a cell that ended, it is said what is waited for; and again after as long."""


class Progress:
    """A context manager whose `observe` takes the events of a run.

    Args:
        quiet: show nothing but the bar of a terminal.
        cells: that are asked for, each of a kind; None where that is not known.
        jobs: that are run: where none of their cells ends for long, it is said which are open, and when one is given up.
    """

    def __init__(self, *, quiet: bool, cells: int | None = None, jobs: Sequence[Job] = ()) -> None:
        import sys

        self._quiet, self._cells = quiet, cells
        self._open = {job.job_id: job for job in sorted(jobs, key=lambda job: job.tier)}
        self._heard = time.monotonic()
        self._over = threading.Event()
        self._answered: set[tuple[str, Cell]] = set()
        self._ended = 0
        self._said: set[tuple[str, str, str | None]] = set()
        self._terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._terminal:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("starting", total=self._cells)
            self._bar.start()
        threading.Thread(target=self._watch, daemon=True, name="progress").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._bar is not None:
            self._bar.stop()

    def say(self, line: str) -> None:
        """Print one line."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        elif not self._quiet:
            click.echo(line, err=True)

    def _watch(self) -> None:
        """Say what is waited for, for as long as nothing ends."""
        wait = SILENCE_S
        while not self._over.wait(wait):
            silent = time.monotonic() - self._heard
            wait = SILENCE_S - silent
            if wait <= 0:
                wait = SILENCE_S
                if waits := list(self._open.values()):
                    self.say(_waiting(waits, silent))

    def observe(self, event: Event) -> None:
        """Count a cell, name one that failed, and say which job ended and how many cells have with it."""
        from harness.dispatch.protocol import CellDone, JobDone
        from harness.dispatch.run import cell_status

        self._heard = time.monotonic()
        if not isinstance(event, CellDone):
            self._open.pop(event.job.job_id, None)
        if isinstance(event, CellDone):
            self._answered.add((event.job.kind, event.cell))  # a cell of several launches is one
            if self._bar is not None:
                now = f"{event.job.kind} {event.job.kernel} {event.job.device}"
                self._bar.update(self._task, completed=len(self._answered), description=now)
            status = cell_status(event.records)
            reason = next((r.reason for r in event.records if r.status == status), None)
            same = (event.job.job_id, str(status), reason)
            if (status.failed or status.undecided) and same not in self._said:
                self._said.add(same)  # one line for all cells of a job that fail alike; the summary counts them
                self.say(f"{status}: {event.job.kind} {event.cell}: {reason}")
        elif isinstance(event, JobDone) and self._bar is None:
            job = event.job
            self._ended += len(job.cells)  # not what other jobs have answered meanwhile: so every line counts on
            count = f"{self._ended} done" if self._cells is None else f"{self._ended} of {self._cells}"
            self.say(f"[{count}] {job.kind} {job.kernel} on {job.device}")


def _waiting(jobs: Sequence[Job], silent_s: float) -> str:
    """`no cell has ended for 30 s; open: drift of slow on cpu, and 3 jobs more; a cell is given up after 600 s`."""
    from harness.report.words import count

    first = jobs[0]
    more = f", and {count(len(jobs) - 1, 'job')} more" if len(jobs) > 1 else ""
    limits = sorted({job.deadline_s for job in jobs})
    given_up = f"{limits[0]:g} s" if len(limits) == 1 else f"{limits[0]:g} to {limits[-1]:g} s, by its kind"
    what = f"{first.kind} of {first.kernel} on {first.device}{more}"
    return f"no cell has ended for {silent_s:.0f} s; open: {what}; one that does not end is given up after {given_up}"
