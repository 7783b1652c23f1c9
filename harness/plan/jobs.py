"""Cells to jobs: the cells of one kernel, one kind, one device, split at five expected minutes."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.plan.describe import KindInfo
from harness.records import Cell, Expected

JOB_SECONDS = 300.0


@dataclass(frozen=True)
class Job:
    """What is dispatched.

    Args:
        on: `unit` or `host` (see Kind).
        deadline_s: seconds after which one cell is killed.
        expected_s: expected seconds of the whole job.
    """

    job_id: str
    kind: str
    on: str
    kernel: str
    device: str
    cells: tuple[Cell, ...]
    deadline_s: float
    expected_s: float


def make_jobs(expected: Sequence[Expected], kinds: Sequence[KindInfo], code_digest: str) -> list[Job]:
    """Group cells into jobs, the longest first; a job's id depends on its plan and its code alone."""
    by_name = {k.name: k for k in kinds}
    jobs = []
    groups = itertools.groupby(
        sorted(expected, key=lambda e: (e.kind, e.cell.kernel, e.cell.device, e.cell)), key=lambda e: (e.kind, e.cell.kernel, e.cell.device)
    )
    for (kind_name, kernel, device), group in groups:
        kind, cells = by_name[kind_name], [e.cell for e in group]
        parts = math.ceil(len(cells) * kind.cell_seconds / JOB_SECONDS) or 1
        size = math.ceil(len(cells) / parts)
        for start in range(0, len(cells), size):
            part = tuple(cells[start : start + size])
            plan = json.dumps([code_digest, kind_name, [str(c) for c in part]])
            job_id = hashlib.sha256(plan.encode()).hexdigest()[:16]
            jobs.append(Job(job_id, kind_name, kind.on, kernel, device, part, kind.deadline_s, len(part) * kind.cell_seconds))
    return sorted(jobs, key=lambda j: -j.expected_s)
