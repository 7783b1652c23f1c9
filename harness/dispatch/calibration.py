"""Carries a calibration: one launch for the unit's own parts, ordinary launches for cells, and what follows from their records."""

from __future__ import annotations

import hashlib
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.dispatch.protocol import ArmCode, CellDone, Dispatcher, Event, RunContext
from harness.dispatch.stamp import Place, failure, stamped
from harness.measure.calibration.parts import JOBS_DIR, KIND, METHOD, SUBJECT, Part, cell_of
from harness.plan.jobs import Job, Turn
from harness.plan.plan import Plan
from harness.records import HEAD, Cell, Record, Status

PART_DEADLINE_S = 240.0
PART_SECONDS = 10.0
TIME = "latency_us"
BATCHES = 10
"""Consecutive parts of a launch's samples whose medians tell how well its own median is known."""


def parts_job(parts: Sequence[Part], device: str) -> Job:
    """The one launch that measures the unit's own parts."""
    cells = tuple(cell_of(part, device) for part in parts)
    return _job(SUBJECT, cells, device, len(cells) * PART_SECONDS)


def _job(kernel: str, cells: tuple[Cell, ...], device: str, expected_s: float) -> Job:
    job_id = hashlib.sha256(" ".join([KIND, *map(str, cells)]).encode()).hexdigest()[:16]
    return Job(job_id, KIND, "unit", kernel, device, cells, (Turn(0, cells),), PART_DEADLINE_S, expected_s)


@dataclass(frozen=True)
class Contexts:
    """Where the two sorts of launches find their job files; all else they share.

    Args:
        parts: of the unit's own parts: the engine's file.
        cells: of the workspace's cells: its own files, or the engine's.
    """

    parts: RunContext
    cells: RunContext


def contexts(plan: Plan, run_id: str, scratch: Path) -> Contexts:
    """The contexts of a calibration run."""
    tree, code = plan.tree, plan.code
    arms = {HEAD: ArmCode(tree.commit, tree.tree, tree.dirty, tree.code_digest, code.root)}
    shared = code.jobs_dir / "conftest.py"
    conftest = shared.read_bytes() if shared.exists() else b""
    digests = {
        kind.name: hashlib.sha256((code.jobs_dir / kind.file).read_bytes() + b"\0" + conftest).hexdigest()
        for kind in plan.description.kinds
    }
    own = {KIND: hashlib.sha256((JOBS_DIR / f"{KIND}.py").read_bytes()).hexdigest()}
    return Contexts(RunContext(run_id, arms, JOBS_DIR, scratch, own), RunContext(run_id, arms, code.jobs_dir, scratch, digests))


def carry(dispatcher: Dispatcher, context: RunContext, jobs: Sequence[Job], observe: Callable[[Event], None]) -> list[Record]:
    """Run jobs to their end. Every cell of every turn has a record: one that nothing came of is `lost`."""
    found: dict[tuple[str, Cell, int], tuple[Record, ...]] = {}
    if jobs:
        dispatcher.submit(context, jobs)
        for event in dispatcher.events():
            if isinstance(event, CellDone):  # a cell that is answered again has been taken back
                position = event.records[0].position or 0
                found[event.job.job_id, event.cell, position] = event.records
            observe(event)
    records = [record for answer in found.values() for record in answer]
    answered = {(job_id, cell) for job_id, cell, _ in found}
    for job in jobs:
        for cell in job.cells:
            if (job.job_id, cell) not in answered:
                why = "its job ended without a record of it"
                records.append(failure(context, job, job.turns[0], cell, Place(), Status.LOST, why))
    return records


def spreads(context: RunContext, records: Iterable[Record]) -> list[Record]:
    """How equal code spreads: of every cell whose launches all gave a time, the deviation between launches and within one.

    Args:
        records: of cells that were timed in several launches.
    """
    times: dict[Cell, list[Record]] = defaultdict(list)
    spoilt: set[Cell] = set()
    for record in records:
        if record.metric == TIME and record.status == Status.OK and record.value is not None:
            times[record.cell].append(record)
        elif record.metric in (None, TIME):
            spoilt.add(record.cell)
    return [one for cell, found in times.items() if cell not in spoilt for one in _spread(context, cell, found)]


def _spread(context: RunContext, cell: Cell, found: Sequence[Record]) -> Iterator[Record]:
    values = [r.value for r in found if r.value is not None]
    middle = statistics.median(values)
    within = [error for r in found if r.samples and (error := median_error(r.samples)) is not None]
    yield _derived(context, cell, found[0], "aa_us", middle, values)
    if len(values) > 1:
        yield _derived(context, cell, found[0], "aa_between_percent", 100 * statistics.stdev(values) / middle)
    if within:
        yield _derived(context, cell, found[0], "aa_within_percent", 100 * statistics.median(within) / middle)


def median_error(samples: Sequence[float]) -> float | None:
    """Standard error of the median of consecutive samples, by batch means; None where there are fewer than two a batch.

    Source: Law, Simulation Modeling and Analysis, 5th edition, section 9.5.3.
    """
    if len(samples) < 2 * BATCHES:
        return None
    edges = [round(i * len(samples) / BATCHES) for i in range(BATCHES + 1)]
    medians = [statistics.median(samples[a:b]) for a, b in pairwise(edges)]
    return statistics.stdev(medians) / BATCHES**0.5


def _derived(context: RunContext, cell: Cell, of: Record, metric: str, value: float, samples: Sequence[float] = ()) -> Record:
    """A calibration record that follows from a record of a launch, and keeps what that says of unit and method."""
    job = _job(cell.kernel, (cell,), cell.device, 0.0)
    place = Place(of.unit, of.node, of.attempt, of.lease_id, of.environment)
    how = {name: getattr(of, name) for name in ("method", "cache", "launch_mode", "clock", "data", "binary_hash", "grid", "config")}
    columns: dict[str, Any] = {**how, "metric": metric, "value": value, "status": str(Status.OK), "samples": list(samples) or None}
    return stamped(context, job, job.turns[0], cell, place, {"reason": None, **columns}, of.launch)


def counted_records(context: RunContext, place: Place, cell: Cell, figures: dict[str, float], reason: str | None) -> list[Record]:
    """What a profiler says of one call of a cell.

    Args:
        figures: metric -> value; none where it said nothing.
        reason: why, in that case.
    """
    job = _job(cell.kernel, (cell,), cell.device, 0.0)
    if not figures:
        why = reason or "the profiler says nothing of it"
        columns: dict[str, Any] = {"metric": None, "value": None, "status": str(Status.INVALID), "reason": why}
        return [stamped(context, job, job.turns[0], cell, place, columns)]
    return [
        stamped(
            context,
            job,
            job.turns[0],
            cell,
            place,
            {"metric": metric, "value": value, "status": str(Status.OK), "reason": None, "method": METHOD},
        )
        for metric, value in figures.items()
    ]


def numbered(records: Iterable[Record]) -> list[Record]:
    """The records with their sequence numbers."""
    return [replace(record, seq=i) for i, record in enumerate(records)]
