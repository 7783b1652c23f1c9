"""What a dispatcher is: it takes jobs and gives back what became of every cell, in any order, as it happens."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.plan.budget import Allowance
from harness.plan.jobs import Job
from harness.records import Cell, Record


@dataclass(frozen=True)
class ArmCode:
    """The code that one arm measures, and where it lies.

    Args:
        root: the code, written from `tree`.
    """

    commit: str | None
    tree: str
    dirty: bool
    code_digest: str
    root: Path


@dataclass(frozen=True)
class RunContext:
    """What every record of a run shares, and where its code is.

    Args:
        arms: the code under test by arm: `head`, and `base` where the run is paired.
        jobs_dir: folder of the job files, head's for both arms.
        scratch: folder for logs, specs and launch caches.
        job_digests: kind -> digest of its job file, a part of the records' `method`.
        allowance: the time in which jobs may start; None: no limit.
    """

    run_id: str
    arms: Mapping[str, ArmCode]
    jobs_dir: Path
    scratch: Path
    job_digests: Mapping[str, str]
    allowance: Allowance | None = None


@dataclass(frozen=True)
class CellDone:
    """A cell ended: its records, at least one.

    Args:
        vouched: whether they are what became of the cell. Else its launch has yet to close, and they may be taken back; only the
            worker that runs the job sees these.
        repeats: why the launch before did not close, though it blamed no cell, so that this one repeats it; one cell of a launch tells.
    """

    job: Job
    cell: Cell
    records: tuple[Record, ...]
    vouched: bool = True
    repeats: str | None = None


@dataclass(frozen=True)
class JobDone:
    """Nothing more comes of a job."""

    job: Job


@dataclass(frozen=True)
class LeftOut:
    """Nothing of a job was started: the run's budget of time is over, or too little of it is left."""

    job: Job
    reason: str


Event = CellDone | JobDone | LeftOut


class Dispatcher(Protocol):
    """Carries jobs to units. One run at a time."""

    name: str

    @property
    def dropped(self) -> int:
        """Messages that were not taken: of attempts that were given up, or no messages at all."""

    def capacity(self, devices: Sequence[str]) -> Mapping[str, int]:
        """Units of each device that could run a job now or later; 0 where there is none."""

    def prepare(self, scratch: Path, devices: Collection[str] | None, kinds: Collection[str] | None) -> None:
        """Start what takes seconds and is known before the jobs are; returns before it is up.

        Args:
            scratch: the scratch of the context that `submit` will be given.
            devices: where jobs may be; None: anywhere.
            kinds: what jobs may do; None: anything.

        Raises:
            HarnessError: the units of this machine cannot be listed.
        """

    def submit(self, context: RunContext, jobs: Sequence[Job]) -> None:
        """Start the jobs, those of lower tiers first, and only in the time that the context allows; returns at once."""

    def events(self) -> Iterator[Event]:
        """Yield events until every job is done, or `cancel` has taken effect."""

    def cancel(self) -> None:
        """Kill what runs and start nothing more; safe from a signal handler, and more than once."""

    def close(self) -> None:
        """End every process that was started."""
