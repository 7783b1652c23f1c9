"""The table of a bench: each cell's time, beside the baseline variant of the same run and the accepted baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.judge.accepted import Accepted
from harness.judge.index import index, value_of
from harness.judge.model import Side
from harness.metrics import PRIMARY, metric, spread_percent
from harness.records import Cell, Record, Status
from harness.report import words

KIND = "latency"
TIME = PRIMARY[KIND]
FIGURES = ("gbps", "percent_of_ceiling", "speedup")
"""What stands beside the time."""
SOFTWARE = ("driver", "torch", "triton", "compiler")
"""Of the environment: named where the accepted baseline had another."""


@dataclass(frozen=True)
class Row:
    """One cell.

    Args:
        status: the worst of its records, as the run counts it.
        reason: of the record with that status, the metric named where it is a side figure.
        times: the valid records of its time, one a launch; none where the cell's time is not to be used.
        figures: median over launches of FIGURES; None where there is none.
        untold: metric of FIGURES -> why it was not taken.
        accepted: what the baselines hold of it.
    """

    cell: Cell
    status: Status
    reason: str
    times: tuple[Record, ...]
    figures: Mapping[str, float | None]
    untold: Mapping[str, str]
    accepted: Accepted | None

    @property
    def us(self) -> float | None:
        """The median over launches."""
        return value_of(self.times)

    @property
    def spread(self) -> float | None:
        """(max - min) / median over launches, in percent; None with fewer than two."""
        return spread_percent([r.value for r in self.times if r.value is not None])

    @property
    def converged(self) -> bool | None:
        """Whether every launch's median settled; None without a time."""
        return all(r.converged is True for r in self.times) if self.times else None

    @property
    def ratio(self) -> float | None:
        """The time over the accepted one; None where they must not be compared, or one is missing."""
        if self.us is None or self.accepted is None or self.accepted.incomparable(self.times):
            return None
        return self.us / self.accepted.value


def bench_rows(
    cells: Sequence[Cell], records: Sequence[Record], statuses: Mapping[Cell, Status], accepted: Mapping[Cell, Accepted]
) -> list[Row]:
    """A row a cell, in the order given.

    Args:
        records: of a run that has ended; at least one of every cell.
        statuses: how the run counts each cell.
        accepted: what the baselines hold, of cells that they have.

    Raises:
        Undecided: a cell has two answers.
    """
    measured = index(Side(ref="bench", commit=None, code_digest="", records=tuple(records), expected=None))
    rows = []
    for cell in cells:
        of_cell = measured[cell, KIND]
        sound = of_cell.status is Status.OK  # one bad launch, and what the others say is not shown as the cell's time
        status = statuses[cell]
        worst = next(r for r in records if r.cell == cell and r.status == status)
        side = f"{worst.metric}: " if worst.metric not in (None, TIME) else ""
        shown = {name: of_cell.of(name) if sound else () for name in FIGURES}
        rows.append(
            Row(
                cell=cell,
                status=status,
                reason="" if status is Status.OK else side + words.one_line(worst.reason),
                times=tuple(r for r in of_cell.of(TIME) if r.value is not None) if sound else (),
                figures={name: value_of(found) for name, found in shown.items()},
                untold={name: words.one_line(r.reason) for name, found in shown.items() for r in found if r.status != Status.OK},
                accepted=accepted.get(cell),
            )
        )
    return rows


def headers(rows: Sequence[Row]) -> tuple[str, ...]:
    """The table's columns: a spread only where there are several launches."""
    spread = ("spread",) if _launches(rows) > 1 else ()
    return ("case", "variant", "us", *spread, "GB/s", "% of ceiling", "x baseline", "vs stored, unpaired", "status")


def table(rows: Sequence[Row], default: str, baseline: str) -> list[tuple[str, ...]]:
    """The table's lines, under `headers`.

    Args:
        default: the kernel's default variant, marked `*`.
        baseline: its baseline variant, marked `^`.
    """
    several = _launches(rows) > 1
    return [
        (
            row.cell.case,
            row.cell.variant + "*" * (row.cell.variant == default) + "^" * (row.cell.variant == baseline),
            words.figure(row.us, metric(TIME).unit),
            *((words.spread(row.spread),) if several else ()),
            *(words.figure(row.figures[name], metric(name).unit) for name in FIGURES),
            _against(row),
            _status(row),
        )
        for row in rows
    ]


def footnotes(rows: Sequence[Row], head: str) -> list[str]:
    """Which accepted baselines the times stand beside, and that they judge nothing.

    Args:
        head: the commit whose history was searched.
    """
    groups: dict[str, int] = {}
    for row in rows:
        if row.accepted is not None:
            origin = _origin(row.accepted, row.times)
            groups[origin] = groups.get(origin, 0) + 1
    if not groups:
        return [f"no accepted baseline of these cells in the history of {head[:12]} (harness baseline accept)"]
    lines = [f"stored: {words.count(n, 'cell')} of {origin}" for origin, n in groups.items()]
    paired = f"harness submit --against REF --kernel {rows[0].cell.kernel}"
    return [*lines, f"stored times are of another lease, unpaired: they inform, and judge nothing; {paired} decides"]


def row_json(row: Row) -> dict[str, Any]:
    """A row for scripts: numbers in full precision, null where there is none."""
    stored = row.accepted
    incomparable = stored.incomparable(row.times) if stored and row.times else None
    return {
        "cell": str(row.cell),
        "variant": row.cell.variant,
        "case": row.cell.case,
        "status": str(row.status),
        "reason": row.reason or None,
        TIME: row.us,
        "converged": row.converged,
        "launches": [r.value for r in row.times],
        "spread_percent": row.spread,
        **row.figures,
        "not_taken": dict(row.untold),
        "stored": stored
        and {
            "evidence": "stored, unpaired",
            "run_id": stored.records[0].run_id,
            "commit": stored.records[0].commit,
            "commits_back": stored.past.commits,
            "changes_back": stored.past.changes,
            TIME: stored.value,
            "converged": stored.converged,
            "ratio": row.ratio,
            "incomparable": incomparable and {"reason": str(incomparable.reason), "detail": incomparable.detail},
        },
    }


def _launches(rows: Sequence[Row]) -> int:
    return max((len(row.times) for row in rows), default=0)


def _against(row: Row) -> str:
    if row.accepted is None:
        return "-"
    unsettled = "" if row.accepted.converged else f", {words.NOT_CONVERGED}"
    stored = f"{words.figure(row.accepted.value, metric(TIME).unit)} at {(row.accepted.records[0].commit or 'no commit')[:12]}{unsettled}"
    if row.us is None:
        return f"- (was {stored})"
    if row.ratio is None:
        judgement = row.accepted.incomparable(row.times)
        assert judgement is not None
        return f"incomparable({judgement.reason}) with {stored}"
    return f"{words.percent(row.ratio)} of {stored}"


def _status(row: Row) -> str:
    parts = [f"{row.status}: {row.reason}" if row.reason else str(row.status)]
    if row.converged is False:
        parts.append(words.NOT_CONVERGED)
    reasons: dict[str, list[str]] = {}
    for name, reason in row.untold.items():
        if f"{name}: {reason}" != row.reason:
            reasons.setdefault(reason, []).append(name)
    parts += [f"no {', '.join(metrics)}: {reason}" for reason, metrics in reasons.items()]
    return "; ".join(parts)


def _origin(stored: Accepted, fresh: Sequence[Record]) -> str:
    record, past = stored.records[0], stored.past
    back = f"{words.count(past.commits, 'commit')} and {words.count(past.changes, 'change')} of code back"
    line = f"{(record.commit or 'no commit')[:12]}, {back if past.changes else 'the same code as HEAD'}, run {record.run_id}"
    if not fresh:
        return line
    differs = [
        f"{name} {before} there, {after} here"
        for name in SOFTWARE
        if (before := record.environment.get(name)) != (after := fresh[0].environment.get(name))
    ]
    if record.unit != fresh[0].unit:
        differs.append("another unit")
    return "; ".join([line, *differs])
