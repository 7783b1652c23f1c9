"""Cells to jobs: the cells of one kernel, one kind, one device, split at five expected minutes."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.plan.describe import KindInfo
from harness.plan.matrix import INTERPRETER
from harness.records import BASE, HEAD, Cell, Expected

JOB_SECONDS = 300.0
ABBA = (BASE, HEAD, HEAD, BASE)
"""The arms of a block: a drift of the unit that is steady through it weighs on both alike."""
A_SIDE = ABBA.count(HEAD)
KIND_ORDER = ("static", "correctness", "latency", "drift")
"""Which kinds come first where the order counts: what costs little and tells much; others come after them."""


@dataclass(frozen=True)
class Turn:
    """One launch of a job: which arm it measures, its place in the job, and the cells it still has to measure.

    Args:
        block: number of the ABBA group it belongs to; None where it is not paired.
    """

    position: int
    cells: tuple[Cell, ...]
    arm: str = HEAD
    block: int | None = None


@dataclass(frozen=True)
class Job:
    """What is dispatched.

    Args:
        on: `unit` or `host` (see Kind).
        cells: every cell of the job.
        turns: its launches, in order; a job that replicates has several over the same cells.
        deadline_s: seconds after which one cell is killed.
        expected_s: expected seconds of its turns.
        tier: jobs of a lower one are started first.
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
    tier: int = 0


def without_gpu(job: Job) -> bool:
    """Whether a job needs no GPU: it compiles, or runs in the interpreter."""
    return job.on == "host" or job.device == INTERPRETER


def narrowed(job: Job, turns: Iterable[Turn]) -> Job:
    """The job with only these of its turns and cells, and the expected seconds of them."""
    turns = tuple(turn for turn in turns if turn.cells)
    whole = sum(len(turn.cells) for turn in job.turns)
    return replace(job, turns=turns, expected_s=job.expected_s * sum(len(turn.cells) for turn in turns) / whole)


def make_jobs(
    expected: Sequence[Expected],
    kinds: Sequence[KindInfo],
    code_digest: str,
    launches: int = 1,
    base: Collection[tuple[str, Cell]] | None = None,
    *,
    longest_s: float = JOB_SECONDS,
    tier: Callable[[Expected], int] | None = None,
) -> list[Job]:
    """Group cells into jobs, the longest first; a job's id depends on its plan and its code alone.

    Args:
        code_digest: of head's code, and of base's where there is one.
        launches: how often a kind that replicates is launched on a GPU: the launch is the unit of statistics.
        base: what base's plan asks for, of a paired run: those cells are measured under both arms, in one job.
        longest_s: expected seconds at which a job is split; a single cell may take more.
        tier: what says which cells come first. Then cells of different tiers share no job, and jobs are ordered by tier, kind
            (KIND_ORDER) and the order of `expected`.
    """
    by_name = {k.name: k for k in kinds}
    tier_of = tier or (lambda one: 0)
    jobs = []

    def group_of(one: Expected) -> tuple[str, str, str, int]:
        return one.kind, one.cell.kernel, one.cell.device, tier_of(one)

    groups = itertools.groupby(sorted(expected, key=lambda e: (group_of(e), e.cell.case, e.cell)), key=group_of)
    for (kind_name, kernel, device, number), group in groups:
        kind, cells = by_name[kind_name], [e.cell for e in group]
        times = launches if kind.replicates and device != INTERPRETER else 1
        paired = None if base is None else {cell for cell in cells if (kind_name, cell) in base}
        parts = math.ceil(len(cells) * len(_turns(cells, times, paired)) * kind.cell_seconds / longest_s) or 1
        for part in _parts(cells, math.ceil(len(cells) / parts)):
            turns = _turns(part, times, paired)
            plan = json.dumps([code_digest, kind_name, len(turns), [str(c) for c in part]])
            jobs.append(
                Job(
                    job_id=hashlib.sha256(plan.encode()).hexdigest()[:16],
                    kind=kind_name,
                    on=kind.on,
                    kernel=kernel,
                    device=device,
                    cells=part,
                    turns=turns,
                    deadline_s=kind.deadline_s,
                    expected_s=sum(len(turn.cells) for turn in turns) * kind.cell_seconds,
                    tier=number,
                )
            )
    if tier is None:
        return sorted(jobs, key=lambda j: -j.expected_s)
    place = {(one.kind, one.cell): number for number, one in enumerate(expected)}
    rank = {kind: number for number, kind in enumerate(KIND_ORDER)}
    return sorted(jobs, key=lambda j: (j.tier, rank.get(j.kind, len(rank)), place[j.kind, j.cells[0]]))


def _parts(cells: Sequence[Cell], size: int) -> Iterator[tuple[Cell, ...]]:
    """The cells of one kernel, ordered by case, in parts of at most `size`. The variants of a case share one, and so a lease, where they
    fit: a speed-up is of one lease.
    """
    part: tuple[Cell, ...] = ()
    for _, group in itertools.groupby(cells, key=lambda cell: cell.case):
        case = tuple(group)
        if part and len(part) + len(case) > size:
            yield part
            part = ()
        part += case
        while len(part) > size:
            yield part[:size]
            part = part[size:]
    yield part


def _turns(cells: Iterable[Cell], launches: int, paired: Collection[Cell] | None) -> tuple[Turn, ...]:
    """The launches of a job: head's alone; base's and head's in ABBA blocks; or one of each where launches are not compared."""
    cells = tuple(cells)
    if paired is None:
        return tuple(Turn(position, cells) for position in range(launches))
    common = tuple(cell for cell in cells if cell in paired)
    of = {BASE: common, HEAD: cells}
    if launches == 1:
        turns = [Turn(0, common, BASE), Turn(1, cells, HEAD)]
    else:
        blocks = range(math.ceil(launches / A_SIDE))
        turns = [Turn(block * len(ABBA) + i, of[arm], arm, block) for block in blocks for i, arm in enumerate(ABBA)]
    return tuple(turn for turn in turns if turn.cells)
