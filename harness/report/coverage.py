"""Lines that say, device by device, how much was compared and what was not measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from harness.report import words

Row = Mapping[str, Any]


def device_lines(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """(device, what became of its cells) for every device: `static 120 of 120 compared; not measured (no_capacity), 80 cells`."""
    by_device: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_device[row["device"]].append(row)
    return [(device, _line(kinds)) for device, kinds in by_device.items()]


def _line(kinds: Sequence[Row]) -> str:
    """Kinds of which nothing was compared, all for the want of a unit, are one part. An interpreter's times are none to compare."""
    absent = [row for row in kinds if not row["compared"] and set(row["others"]) == {"no_capacity"}]
    untimed = [row for row in kinds if not row["compared"] and set(row["others"]) == {"interpreter_only"}]
    parts = [_kind(row) for row in kinds if row not in absent and row not in untimed]
    parts += [f"{row['kind']} not judged (interpreter_only), {words.count(row['cells'], 'cell')}" for row in untimed]
    if absent:
        names = "" if not parts else ", ".join(row["kind"] for row in absent) + " "
        parts.append(f"{names}not measured (no_capacity), {words.count(sum(row['cells'] for row in absent), 'cell')}")
    return "; ".join(parts)


def _kind(row: Row) -> str:
    others = [f"{n} {reason}" for reason, n in sorted(row["others"].items())]
    rest = f" ({', '.join(others)})" if others else ""
    return f"{row['kind']} {row['compared']} of {row['cells']} compared{rest}"
