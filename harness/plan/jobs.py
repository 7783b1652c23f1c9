"""Cells to jobs: the cells of one kernel, one kind, one device, split at five expected minutes."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.plan.describe import KindInfo
from harness.plan.matrix import INTERPRETER
from harness.records import Cell, Expected

JOB_SECONDS = 300.0


@dataclass(frozen=True)
class Turn:
    """One launch of a job: which arm it measures, its place in the job, and the cells it still has to measure."""

    position: int
    cells: tuple[Cell, ...]
    arm: str = "head"
    block: int | None = None


@dataclass(frozen=True)
class Job:
    """What is dispatched.

    Args:
        on: `unit` or `host` (see Kind).
        cells: every cell of the job.
        turns: its launches, in order; a job that replicates has several over the same cells.
        deadline_s: seconds after which one cell is killed.
        expected_s: expected seconds of the whole job.
    """

    job_id: str
    kind: str
    on: str
    kernel: str
    device: str
    cells: tuple[Cell, ...]
    turns: tuple[Turn, ...]
    deadline_s: float
    expected_s: float


def make_jobs(expected: Sequence[Expected], kinds: Sequence[KindInfo], code_digest: str, launches: int = 1) -> list[Job]:
    """Group cells into jobs, the longest first; a job's id depends on its plan and its code alone.

    Args:
        launches: how often a kind that replicates is launched on a GPU: the launch is the unit of statistics.
    """
    by_name = {k.name: k for k in kinds}
    jobs = []
    groups = itertools.groupby(
        sorted(expected, key=lambda e: (e.kind, e.cell.kernel, e.cell.device, e.cell)), key=lambda e: (e.kind, e.cell.kernel, e.cell.device)
    )
    for (kind_name, kernel, device), group in groups:
        kind, cells = by_name[kind_name], [e.cell for e in group]
        turns = launches if kind.replicates and device != INTERPRETER else 1
        parts = math.ceil(len(cells) * turns * kind.cell_seconds / JOB_SECONDS) or 1
        size = math.ceil(len(cells) / parts)
        for start in range(0, len(cells), size):
            part = tuple(cells[start : start + size])
            plan = json.dumps([code_digest, kind_name, turns, [str(c) for c in part]])
            jobs.append(
                Job(
                    job_id=hashlib.sha256(plan.encode()).hexdigest()[:16],
                    kind=kind_name,
                    on=kind.on,
                    kernel=kernel,
                    device=device,
                    cells=part,
                    turns=tuple(Turn(position, part) for position in range(turns)),
                    deadline_s=kind.deadline_s,
                    expected_s=len(part) * turns * kind.cell_seconds,
                )
            )
    return sorted(jobs, key=lambda j: -j.expected_s)
