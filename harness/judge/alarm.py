"""Marks a run whose times moved together: the unit is suspect then, whatever the verdicts say. No part of the exit code.

Both marks are given by device, since what moves is a unit.

`one_sided`: every time that was called is slower, or every one is faster, on so many kernels that one sign is improbable by
chance (two-sided sign test, p < 0.01: eight kernels). Kernels are counted and not cells, since the cells of a kernel share
its code and move together for that alone, in however many binaries: a real regression of one kernel never marks a run.

`untouched_moved`: of the cells that are proved unchanged and were timed in pairs all the same, more than 10 % moved one way.
Moved is what would have been called otherwise: beyond the floor, with an interval that leaves out no change. Two cells at
least: one has nothing to move together with. Were cells independent, a unit at rest would be marked in under 1 % of diffs,
however many cells there are: the 99 % interval lets a cell move by chance in 0.5 % of diffs each way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness import metrics
from harness.judge.model import Finding, Mark, Reason, Side, Suspicion
from harness.judge.paired import Direction, direction, floor_of
from harness.metrics import Rule
from harness.records import Cell

SIGNIFICANCE = 0.01
"""Of the two-sided sign test, by which `n` findings have one sign with probability 2 * 0.5**n."""
LEAST_KERNELS = math.floor(math.log2(2 / SIGNIFICANCE)) + 1
UNTOUCHED_LIMIT = 0.1
LEAST_UNTOUCHED = 2


@dataclass(frozen=True)
class _Moves:
    """Cells of one device, each with where its time went."""

    of: Mapping[Cell, Direction]

    @property
    def slower(self) -> list[Cell]:
        return [cell for cell, went in self.of.items() if went is Direction.SLOWER]

    @property
    def faster(self) -> list[Cell]:
        return [cell for cell, went in self.of.items() if went is Direction.FASTER]

    @property
    def kernels(self) -> int:
        """How many kernels have a cell that moved."""
        return len({cell.kernel for cell in (*self.slower, *self.faster)})

    def __str__(self) -> str:
        return f"{len(self.slower)} slower, {len(self.faster)} faster"


def marks(findings: Sequence[Finding], base: Side, head: Side) -> tuple[Mark, ...]:
    """What makes the run suspect, by device.

    Args:
        findings: of the whole diff.
        base: names what to measure again, with `head`.
    """
    times = [f for f in findings if f.rule == Rule.TIME]
    found: list[Mark] = []
    for device in sorted({f.device for f in times}):
        here = [f for f in times if f.device == device]
        command = _command(base, head, device)
        untouched = _Moves(_of_cells((f, went) for f in here if (went := _control(f)) is not None))
        found += _one_sided(device, [f for f in here if f.reason in _CALLED], untouched, command)
        found += _untouched_moved(device, untouched, command)
    return tuple(found)


def _one_sided(device: str, findings: Sequence[Finding], untouched: _Moves, command: str) -> list[Mark]:
    called = _Moves(_of_cells((f, _CALLED[f.reason]) for f in findings))
    if called.kernels < LEAST_KERNELS or len({f.reason for f in findings}) > 1:
        return []
    controls = f"{untouched}, of {len(untouched.of)}" if untouched.of else "none was timed"
    detail = (
        f"all times that were called have one sign ({called}, of {called.kernels} kernels), which chance gives with p "
        f"{2 * 0.5**called.kernels:.1g}; untouched cells: {controls}"
    )
    do = "measure both sides again on another unit or in a later lease: a change that stays comes from code that these kernels share"
    return [_mark(Suspicion.ONE_SIDED, device, called, detail, do, command)]


def _untouched_moved(device: str, untouched: _Moves, command: str) -> list[Mark]:
    together = max(len(untouched.slower), len(untouched.faster))
    if together < LEAST_UNTOUCHED or together <= UNTOUCHED_LIMIT * len(untouched.of):
        return []
    detail = f"cells that cannot have changed moved together ({untouched}, of {len(untouched.of)}): the unit moved, not the code"
    do = "trust no time of this run there; measure both sides again on another unit or in a later lease"
    return [_mark(Suspicion.UNTOUCHED_MOVED, device, untouched, detail, do, command)]


_CALLED: Mapping[Reason, Direction] = {Reason.SLOWER: Direction.SLOWER, Reason.FASTER: Direction.FASTER}


def _control(finding: Finding) -> Direction | None:
    """Where the time of a cell went that is proved unchanged; None where it was not timed in pairs, or was not proved."""
    if finding.reason is not Reason.PROVED or finding.ratio is None or finding.interval is None or not finding.base:
        return None
    return direction(finding.ratio, finding.interval, floor_of(finding.base))


def _of_cells(moves: Iterable[tuple[Finding, Direction]]) -> dict[Cell, Direction]:
    """One time a cell: its kind's primary one where that is there."""
    cells: dict[Cell, Direction] = {}
    for finding, went in sorted(moves, key=lambda move: move[0].metric != metrics.PRIMARY[move[0].kind]):
        cells.setdefault(finding.cell, went)
    return cells


def _command(base: Side, head: Side, device: str) -> str:
    ref = head.commit if head.commit and not head.dirty else "worktree"
    return f"harness submit --ref {ref} --against {base.commit or base.ref} --device {device} --kind latency"


def _mark(suspicion: Suspicion, device: str, moves: _Moves, detail: str, do: str, command: str) -> Mark:
    return Mark(
        suspicion=suspicion,
        device=device,
        slower=len(moves.slower),
        faster=len(moves.faster),
        of=len(moves.of),
        kernels=moves.kernels,
        detail=detail,
        do=do,
        reproduce=command,
    )
