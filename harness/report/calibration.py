"""The tables of a calibration: what a unit's clock, launches, memory and cache are like, and how equal code spreads on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.measure.calibration.parts import KIND
from harness.metrics import base_name
from harness.records import Cell, Record, Status
from harness.report.words import count, one_line

CLOSE_PERCENT, LOOSE_PERCENT = 0.15, 0.3
"""The aim for the deviation between launches: of most cells, and of all."""
MEMORY_BOUND_PERCENT = 60.0
"""Of the unit's own bandwidth: from there on memory is what bounds a call."""
TIME = "latency_us"
PROTOCOL_CACHES = 3
"""Caches of other data between two uses of a buffer, by the protocol; see `harness.measure.clock.settings`."""


@dataclass(frozen=True)
class Section:
    """One table with what is said below it.

    Args:
        right: headers of the columns that are aligned on the right.
    """

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figures:
    """The valid figures of a calibration, found by metric and what follows its `@`."""

    records: tuple[Record, ...]

    @classmethod
    def of(cls, records: Iterable[Record]) -> Figures:
        """Those among `records`."""
        return cls(tuple(r for r in records if r.kind == KIND and r.status == Status.OK and r.value is not None))

    def value(self, metric: str, cell: Cell | None = None) -> float | None:
        """One figure, of any cell where none is named; None where there is none."""
        return next((r.value for r in self.records if r.metric == metric and cell in (None, r.cell)), None)

    def curve(self, base: str) -> dict[float, float]:
        """Number after the `@` -> value, in ascending order."""
        named = [(r.metric, r.value) for r in self.records if r.metric and base_name(r.metric) == base]
        return dict(sorted((float(metric.partition("@")[2]), value) for metric, value in named if value is not None))


def number(value: float | None, form: str = ".3f", unit: str = "") -> str:
    """A value in a form, or `-`."""
    return "-" if value is None else format(value, form) + unit


def size(n: float) -> str:
    """Bytes as people write them: `256 KiB`, `1 GiB`, `60 MiB`."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= scale:
            return f"{n / scale:.4g} {unit}"
    return f"{n:.4g} B"


def unit_sections(records: Sequence[Record]) -> list[Section]:
    """The tables of the unit's own parts; one of which there is no figure is left out."""
    figures = Figures.of(records)
    made = (_floors(figures), _grids(figures), _graphs(figures), _memory(figures), _ring(figures), _spread(figures, records))
    return [section for section in made if section.rows]


def trouble(records: Iterable[Record]) -> list[str]:
    """A line for everything that has no figure, and why; side figures of a timed cell, and what is skipped beside others, are not meant."""
    found = [r for r in records if r.kind == KIND or r.metric in (None, TIME)]
    sound = {(r.cell, r.kind) for r in found if r.status == Status.OK}
    bad = [r for r in found if r.status not in (Status.OK, Status.SKIPPED) or (r.cell, r.kind) not in sound]
    return list(dict.fromkeys(f"{r.cell} ({r.kind}): {r.status}: {one_line(r.reason)}" for r in bad if r.status != Status.OK))


MODES = {
    "pair": "an empty pair of events",
    "device": "an empty kernel among many in a graph",
    "graph1": "a replay of a graph of one, on an idle device",
    "wait": "host time of that and of waiting for it",
    "eager": "an eager launch, back to back",
    "enqueue": "host time until such a launch returns",
}


def _floors(figures: Figures) -> Section:
    rows = [(f"{mode}: {what}", number(us)) for mode, what in MODES.items() if (us := figures.value(f"floor_us@{mode}")) is not None]
    tick = figures.value("tick_ns")
    notes = () if tick is None else (f"the event clock ticks every {tick:.4g} ns",)
    return Section("Launch floors", ("mode", "us"), tuple(rows), ("us",), notes)


def _grids(figures: Figures) -> Section:
    empty, touch = figures.curve("empty_us"), figures.curve("touch_us")
    rows = tuple((f"{programs:.0f}", number(us), number(touch.get(programs))) for programs, us in empty.items())
    headers = ("programs", "empty us", "touch us")
    return Section("Floors by grid: nothing, and one cold load and store a program", headers, rows, headers)


def _graphs(figures: Figures) -> Section:
    replay, host, node = (figures.curve(name) for name in ("graph_replay_us", "graph_host_us", "graph_node_us"))
    rows = tuple(
        (f"{nodes:.0f}", number(us, ".2f"), number(host.get(nodes), ".2f"), number(node.get(nodes))) for nodes, us in replay.items()
    )
    headers = ("nodes", "one replay us", "by the host us", "us a node in a row")
    return Section("Graphs of empty kernels", headers, rows, headers)


def _memory(figures: Figures) -> Section:
    names = ("copy_gbps", "read_gbps", "warm_copy_gbps", "warm_read_gbps", "warm_cold_ratio")
    curves = [figures.curve(name) for name in names]
    rows = tuple((size(n), *(number(curve.get(n), ".0f") for curve in curves[:4]), number(curves[4].get(n), ".2f", "x")) for n in curves[0])
    headers = ("buffer", "copy GB/s", "read GB/s", "warm copy GB/s", "warm read GB/s", "warm / cold copy")
    notes = ("copying counts bytes read and written; warm only where the cache holds the buffers",)
    return Section("Bandwidth by size of the buffer", headers, rows, headers, notes)


def _ring(figures: Figures) -> Section:
    copy, read = figures.curve("ring_copy_gbps"), figures.curve("ring_read_gbps")
    rows = tuple((f"{caches:g}", number(gbps, ".0f"), number(read.get(caches), ".0f")) for caches, gbps in copy.items())
    headers = ("ring, caches", "copy GB/s", "read GB/s")
    notes = tuple(
        f"{name}: at the protocol's {PROTOCOL_CACHES} caches {100 * (curve[PROTOCOL_CACHES] / curve[max(curve)] - 1):+.1f} % from "
        f"{max(curve):g} caches"
        for name, curve in (("copy", copy), ("read", read))
        if PROTOCOL_CACHES in curve
    )
    return Section("Cold curve: bandwidth by the size of the ring", headers, rows, headers, notes)


def _spread(figures: Figures, records: Sequence[Record]) -> Section:
    timed = sorted((r for r in figures.records if r.metric == "aa_us"), key=lambda r: r.value or 0.0)
    percents = {r.cell: r.value for r in records if r.metric == "percent_of_ceiling" and r.status == Status.OK}
    rows = []
    between: list[float] = []
    for record in timed:
        deviation = figures.value("aa_between_percent", record.cell)
        between += [] if deviation is None else [deviation]
        rows.append(
            (
                str(record.cell),
                number(record.value),
                str(len(record.samples or ())),
                _bound(percents.get(record.cell)),
                number(deviation, ".3f", " %"),
                number(figures.value("aa_within_percent", record.cell), ".3f", " %"),
            )
        )
    headers = ("cell", "us", "launches", "bound by", "sd between launches", "se within a launch")
    notes: tuple[str, ...] = ()
    if between:
        close, loose = (sum(value <= limit for value in between) for limit in (CLOSE_PERCENT, LOOSE_PERCENT))
        aim = f"{close} of {count(len(between), 'cell')} at most {CLOSE_PERCENT} % between launches, {loose} at most {LOOSE_PERCENT} %"
        notes = (aim, "where launches differ by more than a launch's own samples explain, only more launches help")
    return Section("A/A: equal code in several launches", headers, tuple(rows), ("us", "launches", *headers[4:]), notes)


def _bound(percent_of_ceiling: float | None) -> str:
    """What bounds a call: no bandwidth is drawn from one that is mostly launch."""
    if percent_of_ceiling is None:
        return "launch"
    return "memory" if percent_of_ceiling >= MEMORY_BOUND_PERCENT else "latency"
