"""The tables and the document of `show --ncu`: what ncu counted of one call of a cell, beside what is recorded of the cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.measure.calibration.ncu import CallCounts, Counted
from harness.records import Cell
from harness.report.calibration import Section, number
from harness.report.calibration_truth import MODEL_NOTES, Model, model_verdict
from harness.report.words import one_line


@dataclass(frozen=True)
class Recorded:
    """What the newest run or baseline says of a cell's time.

    Args:
        latency_us: median over its launches; None where the cell has none, and `status` and `reason` say why.
        gbps: by the cost model.
        percent_of_peak: of the published bandwidth.
        source: `run`, or `baseline`.
        same_code: whether it is of the code whose call was counted.
    """

    latency_us: float | None
    gbps: float | None
    percent_of_peak: float | None
    status: str
    reason: str | None
    source: str
    run_id: str
    commit: str | None
    dirty: bool
    same_code: bool


@dataclass(frozen=True)
class CountedCell:
    """One cell of the answer.

    Args:
        model: compulsory bytes of a call.
        counts: what ncu counted; None where it did not.
        failed: why, in that case.
        recorded: None where the cell was not measured here.
        cycle: whether calls of its kernel differ by their step of a cycle.
    """

    cell: Cell
    model: Model
    counts: CallCounts | None
    failed: str | None
    recorded: Recorded | None
    cycle: bool

    @property
    def ratio(self) -> float | None:
        """Bytes that the memory's counters saw, over compulsory bytes; None where nothing was counted, or nothing must be moved."""
        return self.counts.total.bytes / self.model.total if self.counts and self.model.total else None

    def verdict(self, cache_bytes: int) -> str | None:
        """What the counters say of the cost model; None where nothing was counted."""
        return model_verdict(self.counts.total.bytes, self.model, cache_bytes) if self.counts else None

    @property
    def time_ratio(self) -> float | None:
        """Recorded time over ncu's; None where one of them is missing."""
        if self.recorded is None or self.counts is None or self.recorded.latency_us is None or not self.counts.total.us:
            return None
        return self.recorded.latency_us / self.counts.total.us


@dataclass(frozen=True)
class Memory:
    """The memory of the device whose calls were counted: its cache, and its published bandwidth."""

    cache_bytes: int
    peak_gbps: float


def counted_sections(cells: Sequence[CountedCell], memory: Memory) -> list[Section]:
    """Two tables over all cells: their kernel launches by ncu, and each call beside its cost model and its record."""
    return [_launches(cells, memory), _calls(cells, memory)]


def without_counts(cells: Sequence[CountedCell]) -> list[str]:
    """A line for every cell of which nothing was counted."""
    return [f"{one.cell}: {one_line(one.failed)}" for one in cells if one.failed is not None]


def counted_json(one: CountedCell, memory: Memory) -> dict[str, Any]:
    """One cell as `--format json` prints it; bytes are those of one call, times are in us, bandwidths in 1e9 bytes a second."""
    total = one.counts.total if one.counts else None
    return {
        "cell": str(one.cell),
        "failed": one.failed,
        "launches": [_launch_json(launch, memory) for launch in one.counts.launches] if one.counts else [],
        "sum": {name: value for name, value in _launch_json(total, memory).items() if name not in ("kernel", "grid")} if total else None,
        "model_bytes": one.model.total,
        "model_written_bytes": one.model.written,
        "dram_over_model": one.ratio,
        "verdict": one.verdict(memory.cache_bytes),
        "recorded": asdict(one.recorded) if one.recorded else None,
        "recorded_over_ncu": one.time_ratio,
    }


def _launch_json(launch: Counted, memory: Memory) -> dict[str, Any]:
    gbps = _gbps(launch)
    return {
        "kernel": launch.name,
        "grid": launch.grid,
        "us": launch.us,
        "dram_read_bytes": launch.read_bytes,
        "dram_written_bytes": launch.written_bytes,
        "dram_gbps": gbps,
        "percent_of_peak": None if gbps is None else 100 * gbps / memory.peak_gbps,
        "sm_percent": launch.sm_percent,
        "l1_bytes": launch.l1_bytes,
    }


def _gbps(launch: Counted) -> float | None:
    return launch.bytes / launch.us / 1e3 if launch.us else None


def _launches(cells: Sequence[CountedCell], memory: Memory) -> Section:
    headers = ("cell", "kernel", "ncu us", "DRAM read B", "DRAM written B", "GB/s", "% of peak", "SM %", "L1 B")
    rows = tuple(row for one in cells if one.counts for row in _launch_rows(one.cell, one.counts, memory))
    notes = ["the clocks are as they are, and the caches flushed before every kernel: what one hands the next is read from memory"]
    if any(one.counts and len(one.counts.launches) > 1 for one in cells):
        notes.append("SM % of a sum is the mean by time")
    if any(one.counts and not one.counts.launches for one in cells):
        notes.append("0 launches: copies and fills that the driver does are no kernels")
    return Section("Kernel launches of one call, by ncu", headers, rows, headers[2:], tuple(notes))


def _launch_rows(cell: Cell, counts: CallCounts, memory: Memory) -> Iterator[tuple[str, ...]]:
    """A row a launch, and the sum where it is not the one launch itself; the cell stands in the first."""
    rows = [(launch.name, launch) for launch in counts.launches]
    if len(rows) != 1:
        rows.append((f"sum of {len(rows)} launches", counts.total))
    for i, (name, launch) in enumerate(rows):
        gbps = _gbps(launch)
        yield (
            "" if i else str(cell),
            one_line(name),
            number(launch.us),
            number(launch.read_bytes, ".0f"),
            number(launch.written_bytes, ".0f"),
            number(gbps, ".0f"),
            number(None if gbps is None else 100 * gbps / memory.peak_gbps, ".1f"),
            number(launch.sm_percent, ".1f"),
            number(launch.l1_bytes, ".0f"),
        )


def _calls(cells: Sequence[CountedCell], memory: Memory) -> Section:
    headers = (
        *("cell", "model B", "DRAM B", "ratio", "verdict", "ncu us"),
        *("timed us", "timed / ncu", "GB/s", "% of peak", "recorded by"),
    )
    rows = tuple(_call_row(one, memory) for one in cells)
    notes = [*MODEL_NOTES, "timed us, GB/s (model B over it) and % of peak are those of the record named last"]
    if any(one.recorded and not one.recorded.same_code for one in cells):
        notes.append("other code: the record is not of the code whose call was counted")
    if moving := sorted({one.cell.kernel for one in cells if one.cycle}):
        notes.append(
            f"{', '.join(moving)}: model and time are means over a cycle where the case moves through one, the counters saw one step"
        )
    return Section("One call beside its cost model and its newest record", headers, rows, (*headers[1:4], *headers[5:10]), tuple(notes))


def _call_row(one: CountedCell, memory: Memory) -> tuple[str, ...]:
    total, ours = one.counts.total if one.counts else None, one.recorded
    return (
        str(one.cell),
        str(one.model.total),
        number(total.bytes if total else None, ".0f"),
        number(one.ratio),
        one.verdict(memory.cache_bytes) or "-",
        number(total.us if total else None),
        number(ours.latency_us if ours else None),
        number(one.time_ratio),
        number(ours.gbps if ours else None, ".0f"),
        number(ours.percent_of_peak if ours else None, ".1f"),
        _origin(ours),
    )


def _origin(ours: Recorded | None) -> str:
    """Run, commit and whatever a reader must know before taking the figures for those of this code."""
    if ours is None:
        return "not measured here"
    marks = [
        mark
        for mark, holds in (("baseline", ours.source == "baseline"), ("dirty", ours.dirty), ("other code", not ours.same_code))
        if holds
    ]
    text = f"{ours.run_id}, commit {(ours.commit or 'none')[:12]}" + (f" ({', '.join(marks)})" if marks else "")
    return text if ours.latency_us is not None else f"{text}: {ours.status}: {one_line(ours.reason)}"
