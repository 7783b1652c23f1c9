"""How well a run used its units: the part of their time that went into cells. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from harness.judge.model import INTERPRETER
from harness.metrics import METRICS, Rule
from harness.records import Record
from harness.report import words

TIMED = frozenset(row.kind for row in METRICS.values() if row.rule is Rule.TIME)
PAUSE = timedelta(seconds=60)
"""A longer gap on a unit is no part of measuring: the run was stopped and resumed."""

Span = tuple[datetime, datetime]


def unit_lines(records: Iterable[Record]) -> list[str]:
    """A line a unit: its timed cells, the time from the first to the last, and how much of it they took, gates and set-up included.

    Args:
        records: of a run, both arms.
    """
    spans: defaultdict[tuple[str, str], dict[tuple[object, ...], Span]] = defaultdict(dict)
    launches: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for record in records:
        if record.kind not in TIMED or record.device == INTERPRETER or record.unit is None or record.launch is None:
            continue
        if record.started_at is None or not record.duration:
            continue
        unit, begin = (record.device, record.unit), datetime.fromisoformat(record.started_at)
        spans[unit][record.launch, record.arm, record.cell] = (begin, begin + timedelta(seconds=record.duration))
        launches[unit].add(record.launch)
    width = max((len(f"{device} {unit}") for device, unit in spans), default=0)
    return [_line(f"{unit[0]} {unit[1]}".ljust(width), sorted(spans[unit].values()), len(launches[unit])) for unit in sorted(spans)]


def _line(unit: str, spans: Sequence[Span], launches: int) -> str:
    whole = timedelta()
    begin, end = spans[0]
    for start, stop in spans[1:]:
        if start - end > PAUSE:
            whole += end - begin
            begin, end = start, stop
        end = max(end, stop)
    whole += end - begin
    inside = sum((stop - start for start, stop in spans), timedelta())
    timed = f"{words.count(launches, 'launch', 'launches')}, {words.count(len(spans), 'time')} taken"
    return f"{unit}  {timed} in {whole.total_seconds():.0f} s, {100 * inside / whole:.0f} % of it in cells"
