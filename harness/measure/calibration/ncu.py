"""Reads what ncu (NVIDIA Nsight Compute) prints: `--csv --page raw`, one row a kernel, one column a metric."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.errors import HarnessError

TIME, READ, WRITTEN = "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"
L1, SM = "l1tex__t_bytes.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed"
METRICS = (TIME, READ, WRITTEN)
"""What is asked of every kernel."""
MORE = (L1, SM)
"""What may be asked beside it: a GPU without such a counter has no figure there."""
NAME, GRID = "Kernel Name", "Grid Size"
TIME_SCALES = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
SCALES = TIME_SCALES | {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "%": 1.0}
"""Unit, as older and newer versions write it -> factor to us, to bytes, or to percent."""
NO_FIGURE = ("", "n/a")
_NUMBER = re.compile(r"([0-9]{1,3}(,[0-9]{3})+|[0-9]+)([.][0-9]+)?")
"""As ncu writes one under LC_ALL=C. Other locales swap point and comma, and no count is below 0."""
MARKER = "marker_kernel"
"""Name of the kernel that stands before each call's, with the call's number and one as its grid."""
ASKED, MEND = "read what ncu counted", "ask again; where it stays, use a tested version of ncu"


@dataclass(frozen=True)
class Counted:
    """What ncu says of one kernel launch.

    Args:
        name: the kernel's.
        grid: blocks along x.
        us: device time.
        read_bytes: from memory.
        written_bytes: to memory; what is left dirty in the cache when the kernel ends is not among them.
        l1_bytes: asked of the L1 caches; None where it was not counted.
        sm_percent: throughput of the multiprocessors, of the peak they can sustain; None where it was not counted.
    """

    name: str
    grid: int
    us: float
    read_bytes: float
    written_bytes: float
    l1_bytes: float | None = None
    sm_percent: float | None = None

    @property
    def bytes(self) -> float:
        """Read from memory and written to it."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class CallCounts:
    """What ncu says of one call: of its kernel launches, in order."""

    launches: tuple[Counted, ...]

    @property
    def total(self) -> Counted:
        """Sums over the launches, under the name `sum` and with the number of launches as its grid; the multiprocessors'
        throughput is the mean by time. What was not counted of one launch is None.
        """
        us = sum(k.us for k in self.launches)
        l1 = [k.l1_bytes for k in self.launches if k.l1_bytes is not None]
        busy = [k.us * k.sm_percent for k in self.launches if k.sm_percent is not None]
        return Counted(
            "sum",
            len(self.launches),
            us,
            sum(k.read_bytes for k in self.launches),
            sum(k.written_bytes for k in self.launches),
            sum(l1) if len(l1) == len(self.launches) else None,
            sum(busy) / us if us and len(busy) == len(self.launches) else None,
        )


def options(metrics: Sequence[str]) -> list[str]:
    """Options under which ncu prints what `parse` reads.

    Args:
        metrics: METRICS, and some of MORE if wanted.
    """
    return [
        *("--csv", "--page", "raw", "--print-units", "base"),
        *("--clock-control", "none"),  # the clocks are not ours to set
        *("--cache-control", "all"),  # every kernel starts cold
        *("--profile-from-start", "off"),
        *("--metrics", ",".join(metrics)),
    ]


def parse(text: str) -> list[Counted]:
    """The kernels in ncu's output, in order; what stands before the table, and what ncu says between its rows, is left out.

    Raises:
        HarnessError: no table in it (the first error that ncu names is given), a line in it that is no whole row, a column or a number
            missing, or an unknown unit.
    """
    rows = [_row(line) for line in _table(text)]
    if len(rows) < 2:
        error = first_error(text) or "no table in its output"
        raise HarnessError(ASKED, error, advice(error))
    header, units = rows[0], rows[1]
    if missing := [name for name in (NAME, GRID, *METRICS) if name not in header]:
        raise HarnessError(ASKED, f"no column {missing[0]!r}", "use a version of ncu that has --page raw")
    if short := next((row for row in rows if len(row) != len(header)), None):
        raise HarnessError(ASKED, f"{len(header)} columns and a row of {len(short)}: {','.join(short)!r:.100}", MEND)
    return [_counted(dict(zip(header, row, strict=True)), dict(zip(header, units, strict=True))) for row in rows[2:]]


def first_error(text: str) -> str | None:
    """The first error that ncu names in its output; None where it names none."""
    return next((line for line in text.splitlines() if line.startswith("==ERROR==")), None)


def advice(error: str) -> str:
    """What would help where ncu prints an error instead of a table."""
    if "ERR_NVGPUCTRPERM" in error:
        return "let this user read the GPU's counters: NVreg_RestrictProfilingToAdminUsers=0 for the driver, CAP_SYS_ADMIN for a container"
    return "mend what ncu names, and see that this user may read the GPU's counters"


def _table(text: str) -> Iterator[str]:
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith('"ID"'):
            yield line
            yield from (rest for rest in lines if rest.strip() and not rest.startswith("=="))


def _row(line: str) -> list[str]:
    """The fields of a line, all of which ncu quotes: a row that is cut, or goes on in the next line, is none."""
    try:
        if line.startswith('"'):
            return next(csv.reader([line], strict=True))
        why = "no row of the table"
    except csv.Error as error:
        why = str(error)
    raise HarnessError(ASKED, f"{why}: {line!r:.100}", MEND)


def _counted(row: dict[str, str], units: dict[str, str]) -> Counted:
    us, read, written = (_number(row[name], units[name], name) for name in METRICS)
    l1, sm = (None if row.get(name, "") in NO_FIGURE else _number(row[name], units[name], name) for name in MORE)
    grid = re.match(r"\(?([0-9]{1,10})\b", row[GRID])
    if grid is None:
        raise HarnessError(ASKED, f"{GRID} is {row[GRID]!r:.100}", "use a tested version of ncu")
    return Counted(row[NAME], int(grid[1]), us, read, written, l1, sm)


def _number(text: str, unit: str, name: str) -> float:
    value = float(text.replace(",", "")) * SCALES.get(unit, math.nan) if _NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(value):
        found = f"{name} is {text!r:.100} {unit!r:.100}"
        raise HarnessError(ASKED, found, "see that this GPU has that counter, and use a tested ncu")
    return value


def by_marker(kernels: Sequence[Counted]) -> dict[int, CallCounts]:
    """The kernels after each marker, by the number of the call."""
    groups: dict[int, list[Counted]] = {}
    current: list[Counted] | None = None
    for kernel in kernels:
        if kernel.name == MARKER:
            current = groups.setdefault(kernel.grid - 1, [])
        elif current is not None:
            current.append(kernel)
    return {number: CallCounts(tuple(found)) for number, found in groups.items()}
