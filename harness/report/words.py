"""How values, changes and names are written in every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.metrics import Rule

CONCLUSIONS = {0: "pass", 1: "fail", 3: "undecided", 130: "stopped"}
"""The word for an exit code."""
NOT_CONVERGED = "not converged"
"""What stands beside a time of which a launch's samples never settled."""
FORMS = {
    "us": ((100, ".1f"), (0, ".3f")),
    "GB/s": ((100, ".0f"), (10, ".1f"), (0, ".3g")),
    "%": ((10, ".1f"), (0, ".3g")),
    "x": ((0, ".2f"),),
}
"""By unit: from which magnitude on a value has which digits."""


def number(value: float | None) -> str:
    """Six digits at most; `-` where there is none."""
    return "-" if value is None else f"{value:.6g}"


def figure(value: float | None, unit: str | None) -> str:
    """A measured value with the digits that its unit is worth; as `number` in a unit that has no form of its own."""
    if value is None or unit not in FORMS:
        return number(value)
    return format(value, next((form for least, form in FORMS[unit] if abs(value) >= least), "g"))


def unit(name: str | None) -> str:
    """A unit for people: `-` for a number of things, a ratio (both `1`) and where there is none."""
    return "-" if name in (None, "1") else str(name)


def spread(percent: float | None) -> str:
    """How far apart launches are, as `0.42 %`; `-` where there are not several."""
    return "-" if percent is None else f"{percent:.2f} %"


def change(finding: Mapping[str, Any]) -> str:
    """`+12.5 %` for a size or a time, `3.20x` for an error, `-` where there is no ratio."""
    return change_of(finding["ratio"], finding["rule"])


def change_of(ratio: float | None, rule: str) -> str:
    """As `change`, of a ratio of head over base."""
    if ratio is None:
        return "-"
    return f"{ratio:.2f}x" if rule == Rule.ERROR else percent(ratio)


def percent(ratio: float) -> str:
    """A ratio as a change: 1.125 -> `+12.5 %`."""
    return f"{(ratio - 1) * 100:+.1f} %"


def one_line(text: str | None) -> str:
    """Text of a record on one line."""
    return " ".join((text or "").split())


def side(data: Mapping[str, Any]) -> str:
    """Commit and code of one side: `0123456789ab (dirty), code 89abcdef0123, 2 changes of code back`."""
    commit = (data["commit"] or "no commit")[:12] + (" (dirty)" if data["dirty"] else "")
    back = f", {count(data['distance'], 'change')} of code back" if data["distance"] else ""
    return f"{commit}, code {data['code_digest'][:12]}{back}"


def count(n: int, noun: str, plural: str = "") -> str:
    """`1 cell`, `2 cells`."""
    return f"{n} {noun if n == 1 else plural or noun + 's'}"


def mean(data: Mapping[str, Any]) -> str:
    """`+3.1 % over 7 of 10 cells`."""
    return f"{change_of(data['ratio'], data['rule'])} over {data['n']} of {count(data['of'], 'cell')}"


def noise(data: Mapping[str, Any] | None) -> str:
    """How far times moved that cannot have changed; empty where there is no such cell."""
    if data is None:
        return ""
    moved = f"{percent(data['lowest'])} to {percent(data['highest'])}"
    return f"noise: the times of {count(data['n'], 'cell')} with equal binaries moved by {moved}"


def reasons(diff: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(code, sentence) of every reason that a reader of the rows and of the coverage meets."""
    met = [*(f["reason"] for f in shown), *(code for row in diff["coverage"] for code in row["others"])]
    return [(code, diff["reasons"][code]) for code in dict.fromkeys(met)]


def gpus(measured: Mapping[str, bool]) -> str | None:
    """`0 of 4 GPUs measured`; None where no GPU was asked for."""
    return f"{sum(measured.values())} of {count(len(measured), 'GPU')} measured" if measured else None


def why(finding: Mapping[str, Any]) -> str:
    """What stands beside a verdict, on one line: `registers 32 -> 64, spill_bytes 0; changed: config [..] -> [..], binary_hash`."""
    if not finding["why"]:
        return ""
    values = finding["why"]["metrics"].items()
    parts = [f"{name} {number(a)}" if a == b else f"{name} {number(a)} -> {number(b)}" for name, (a, b) in values]
    changed = [
        f"config {_listed(pair[0])} -> {_listed(pair[1])}" if name == "config" else name for name, pair in finding["why"]["changed"].items()
    ]
    same = [choice(row) for row in finding["why"].get("same_configuration", ())]
    lists = [", ".join(parts), "changed: " + ", ".join(changed) if changed else ""]
    return "; ".join(filter(None, [*lists, "same configuration: " + ", ".join(same) if same else ""]))


def choice(row: Mapping[str, Any]) -> str:
    """A configuration with its time on both sides: `num_warps=4 9.5 -> 9.6 (+1.1 %) over 4 launches a side`; or why there is none."""
    if row["ratio"] is None:
        return one_line(row["absent"])
    base, head = row["compared"]
    over = f"{count(base, 'launch', 'launches')} a side" if base == head else f"{base} and {count(head, 'launch', 'launches')}"
    return f"{_listed(row['config'])} {number(row['base'])} -> {number(row['head'])} ({percent(row['ratio'])}) over {over}"


def _listed(entries: Sequence[Any]) -> str:
    return one_line(" | ".join(map(str, entries)))
