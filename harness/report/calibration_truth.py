"""The tables of `calibrate --truth`: known costs read back, and whether each lies within its limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.measure.calibration.parts import Part, cell_of
from harness.records import Cell, Record
from harness.report.calibration import Figures, Section, number, size

SLOPE_PERCENT = 0.5
"""How far a longer spin may read from its length by the kernels' timer."""
CLOCK_PERCENT = 0.1
"""How far the event clock may run from the host's."""
SLOWDOWN_POINTS = 0.2
"""How far an injected slow-down may be read from what it is, in points of percent; and it must be told from none."""
COPY_PERCENT = 3.0
"""How far a copy's time may lie off the line through all."""
MODEL_PERCENT = 5.0
"""How far a cost model may be from what the memory's counters see of a call that no cache holds."""
WITHIN, OFF, CACHED = "within", "OFF", "cached"
MODEL_NOTES = (
    f"{WITHIN}: at most {MODEL_PERCENT:g} % off; what is still in the cache when a kernel ends is not counted, up to its size",
    f"{CACHED}: the call's bytes fit into the cache, so the counters decide nothing",
)
"""What the verdicts on a cost model mean."""


@dataclass(frozen=True)
class Model:
    """Compulsory bytes of one call, and those of them that it writes."""

    total: int
    written: int


@dataclass(frozen=True)
class Truth:
    """What a verdict on known costs needs beside the records.

    Args:
        device: the device's name.
        cache_bytes: its last-level cache.
        peak_gbps: its memory's published bandwidth.
        models: compulsory bytes of each cell whose bytes were counted, or were to be.
        counters: why nothing was counted; None where it was.
    """

    device: str
    cache_bytes: int
    peak_gbps: float
    models: Mapping[Cell, Model]
    counters: str | None


def truth_sections(records: Sequence[Record], truth: Truth) -> list[Section]:
    """The tables; one of which there is no figure is left out, but for that of the counters, which says why."""
    figures = Figures.of(records)
    made = (_spins(figures, truth), _slowdowns(figures), _copies(figures, truth))
    return [*(section for section in made if section.rows), _models(figures, records, truth)]


def off_limits(sections: Sequence[Section]) -> list[str]:
    """Every row and note that is beyond its limit."""
    rows = [f"{section.title}: {' | '.join(row)}" for section in sections for row in section.rows if OFF in row]
    return rows + [f"{section.title}: {note}" for section in sections for note in section.notes if note.startswith(f"{OFF}: ")]


def _verdict(is_within: bool) -> str:
    return WITHIN if is_within else OFF


def _noted(is_within: bool, text: str) -> str:
    return f"{_verdict(is_within)}: {text}"


def _spins(figures: Figures, truth: Truth) -> Section:
    read, true = figures.curve("spin_us"), figures.curve("spin_true_us")
    cell = cell_of(Part.SPINS, truth.device)
    rows = tuple(
        (f"{ns / 1000:g}", number(true.get(ns)), number(us), number(us - true[ns]), number(figures.value(f"ncu_us@{ns:.0f}", cell)))
        for ns, us in read.items()
        if ns in true
    )
    headers = ("spin us", "by its own timer us", "timed us", "added us", "ncu us")
    notes = []
    slope, offset = figures.value("spin_slope_percent"), figures.value("spin_offset_us")
    if slope is not None and offset is not None:
        limit = f"limit {SLOPE_PERCENT} %"
        line = f"by a line through them a longer spin reads {slope:+.3f} % ({limit}), and a launch adds {offset:.3f} us"
        notes.append(_noted(abs(slope) <= SLOPE_PERCENT, line))
    ratio = figures.value("clock_ratio")
    if ratio is not None:
        percent = 100 * (ratio - 1)
        text = f"over a second the event clock runs {percent:+.4f} % from the host's (limit {CLOCK_PERCENT} %)"
        notes.append(_noted(abs(percent) <= CLOCK_PERCENT, text))
    tick = figures.value("timer_tick_ns")
    if tick is not None:
        notes.append(f"the timer that kernels read steps by {tick:.4g} ns")
    return Section("Spins of known length", headers, rows, headers, tuple(notes))


def _slowdowns(figures: Figures) -> Section:
    read, half, true = (figures.curve(f"slowdown{name}_percent") for name in ("", "_half_width", "_true"))
    rows = tuple(
        (f"{asked:g} %", number(true[asked], "+.3f", " %"), number(mean, "+.3f", " %"), number(half[asked], ".3f", " %"), word)
        for asked, mean in read.items()
        if asked in half and asked in true
        for word in [_verdict(mean - half[asked] > 0 and abs(mean - true[asked]) <= SLOWDOWN_POINTS)]
    )
    headers = ("injected", "by its own timer", "read back", "+-", "verdict")
    notes = (f"paired in ABBA blocks within one launch; {WITHIN}: told from none, and at most {SLOWDOWN_POINTS} points from the truth",)
    return Section("Injected slow-downs of a call", headers, rows, headers[:4], notes)


def _copies(figures: Figures, truth: Truth) -> Section:
    times = figures.curve("copy_us")
    cell = cell_of(Part.COPIES, truth.device)
    rows = []
    for n, us in times.items():
        counted = figures.value(f"counted_bytes@{n:.0f}", cell)
        rows.append(
            (
                size(n),
                number(us, ".2f"),
                number(2 * n / us / 1e3, ".0f"),
                number(figures.value(f"ncu_us@{n:.0f}", cell), ".2f"),
                number(counted and counted / (2 * n)),
            )
        )
    headers = ("buffer", "timed us", "GB/s", "ncu us", "counted / copied bytes")
    marginal, off = figures.value("copy_marginal_gbps"), figures.value("copy_off_percent")
    notes = []
    if marginal is not None and off is not None:
        text = f"further bytes cost {marginal:.0f} GB/s of the published {truth.peak_gbps:g}; no copy is over {off:.2f} % off the line"
        notes.append(_noted(marginal <= truth.peak_gbps and off <= COPY_PERCENT, f"{text} (limit {COPY_PERCENT:g} %)"))
    return Section("Copies of known size, cold", headers, tuple(rows), headers, tuple(notes))


def _models(figures: Figures, records: Sequence[Record], truth: Truth) -> Section:
    headers = ("cell", "model bytes", "counted bytes", "ratio", "verdict", "timed us", "ncu us", "timed / ncu")
    title = "Cost models against the memory's counters: the largest case of every kernel"
    if truth.counters is not None:
        return Section(title, headers, (), (), (f"not counted: {truth.counters}",))
    ours = {r.cell: r.value for r in records if r.metric == "latency_us" and r.value is not None}
    rows = []
    for cell, model in truth.models.items():
        counted, us = figures.value("counted_bytes", cell), figures.value("ncu_us", cell)
        read = ours.get(cell)
        rows.append(
            (
                str(cell),
                f"{model.total}",
                number(counted, ".0f"),
                number(counted and counted / model.total),
                "-" if counted is None else model_verdict(counted, model, truth.cache_bytes),
                number(read),
                number(us),
                number(read and us and read / us),
            )
        )
    return Section(title, headers, tuple(rows), (*headers[1:4], *headers[5:]), MODEL_NOTES)


def model_verdict(counted: float, model: Model, cache_bytes: int) -> str:
    """WITHIN, OFF, or CACHED where the counters decide nothing.

    Args:
        counted: bytes read from memory and written to it by one call, caches flushed before.
    """
    if model.total <= cache_bytes:
        return CACHED
    least = (1 - MODEL_PERCENT / 100) * (model.total - min(model.written, cache_bytes))
    return _verdict(least <= counted <= (1 + MODEL_PERCENT / 100) * model.total)
