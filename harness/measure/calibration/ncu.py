"""Reads what ncu (NVIDIA Nsight Compute) prints: `--csv --page raw`, one row a kernel, one column a metric."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.errors import HarnessError

TIME, READ, WRITTEN = "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"
METRICS = (TIME, READ, WRITTEN)
OPTIONS = (
    *("--csv", "--page", "raw", "--print-units", "base"),
    *("--clock-control", "none"),  # the clocks are not ours to set
    *("--cache-control", "all"),  # every kernel starts cold
    *("--profile-from-start", "off"),
    *("--metrics", ",".join(METRICS)),
)
NAME, GRID = "Kernel Name", "Grid Size"
TIME_SCALES = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
SCALES = TIME_SCALES | {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
"""Unit, as older and newer versions write it -> factor to us, or to bytes."""
MARKER = "marker_kernel"
"""Name of the kernel that stands before each call's, with the call's number and one as its grid."""
ASKED = "read what ncu counted"


@dataclass(frozen=True)
class Counted:
    """What ncu says of one kernel launch.

    Args:
        name: the kernel's.
        grid: blocks along x.
        us: device time.
        read_bytes: from memory.
        written_bytes: to memory; what is left dirty in the cache when the kernel ends is not among them.
    """

    name: str
    grid: int
    us: float
    read_bytes: float
    written_bytes: float


@dataclass(frozen=True)
class Totals:
    """Sums over the kernels of one call.

    Args:
        kernels: how many there were.
    """

    kernels: int
    us: float
    bytes: float


def parse(text: str) -> list[Counted]:
    """The kernels in ncu's output, in order; lines that are not of the table are left out.

    Raises:
        HarnessError: no table in it (the first error that ncu names is given), a column or a number missing, or an unknown unit.
    """
    rows = list(csv.reader(_table(text)))
    if len(rows) < 2:
        error = next((line for line in text.splitlines() if line.startswith("==ERROR==")), "no table in its output")
        raise HarnessError(ASKED, error, "see that this user may read the GPU's counters")
    header, units = rows[0], rows[1]
    if missing := [name for name in (NAME, GRID, *METRICS) if name not in header]:
        raise HarnessError(ASKED, f"no column {missing[0]!r}", "use a version of ncu that has --page raw")
    return [_counted(dict(zip(header, row, strict=True)), dict(zip(header, units, strict=True))) for row in rows[2:]]


def _table(text: str) -> Iterator[str]:
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith('"ID"'):
            yield line
            yield from (rest for rest in lines if rest.startswith('"'))


def _counted(row: dict[str, str], units: dict[str, str]) -> Counted:
    us, read, written = (_number(row[name], units[name], name) for name in METRICS)
    grid = re.search(r"\d+", row[GRID])
    if grid is None:
        raise HarnessError(ASKED, f"{GRID} is {row[GRID]!r}", "use a tested version of ncu")
    return Counted(row[NAME], int(grid.group()), us, read, written)


def _number(text: str, unit: str, name: str) -> float:
    try:
        return float(text.replace(",", "")) * SCALES[unit]
    except (ValueError, KeyError) as error:
        raise HarnessError(ASKED, f"{name} is {text!r} {unit!r}", "see that this GPU has that counter, and use a tested ncu") from error


def by_marker(kernels: Sequence[Counted]) -> dict[int, Totals]:
    """Totals of the kernels after each marker, by the number of the call."""
    groups: dict[int, list[Counted]] = {}
    current: list[Counted] | None = None
    for kernel in kernels:
        if MARKER in kernel.name:
            current = groups.setdefault(kernel.grid - 1, [])
        elif current is not None:
            current.append(kernel)
    return {
        number: Totals(len(found), sum(k.us for k in found), sum(k.read_bytes + k.written_bytes for k in found))
        for number, found in groups.items()
    }
