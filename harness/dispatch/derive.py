"""Figures that follow from other records of a run: `speedup`, a variant's time held against the baseline variant's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from harness.metrics import METRICS
from harness.records import Record, Status

TIME = "latency_us"
SPEEDUP = METRICS["speedup"]


def speedups(records: Iterable[Record], baselines: Mapping[str, str]) -> Iterator[Record]:
    """One record for every time of a variant that its kernel's baseline variant has too, of the same launch turn of one lease.

    Both are of one cache and one clock. Of another lease the unit, the driver or its neighbours may be others. Where the two were
    taken by two methods, since a call of more launches has a ring that is emptied otherwise, the record's method names both.

    Args:
        baselines: kernel -> its baseline variant, which gets no speed-up of its own.
    """
    times = [r for r in records if r.metric == TIME and r.status == Status.OK and r.value is not None]
    base = {_turn(r): r for r in times if r.variant == baselines[r.kernel]}
    for record in times:
        other = base.get(_turn(record))
        if other is None or record.variant == baselines[record.kernel]:
            continue
        if (record.cache, record.clock, record.launch_mode) != (other.cache, other.clock, other.launch_mode):
            continue
        assert record.value is not None
        assert other.value is not None
        yield replace(
            record,
            metric=SPEEDUP.name,
            unit_of_measure=SPEEDUP.unit,
            better=SPEEDUP.better,
            value=other.value / record.value,
            method=record.method if record.method == other.method else f"{other.method} over {record.method}",
            samples=None,
            converged=bool(record.converged and other.converged),
        )


def _turn(record: Record) -> tuple[object, ...]:
    """What the two times of a speed-up have in common."""
    return record.kernel, record.case, record.device, record.arm, record.lease_id, record.position
