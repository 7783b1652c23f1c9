"""Findings that say the same, said once: `registers +100 % on four GPUs (12 cells each), all M=1 cases`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from harness.records import Cell
from harness.report import words

Finding = Mapping[str, Any]


def listed(findings: Sequence[Finding], *, verbose: bool = False) -> list[Finding]:
    """The findings that get a row: not what is unchanged, nor what was not measured or not judged and counts for nothing.

    A cell whose launches chose several configurations has its row whatever the verdict is.
    """
    quiet = ("MISSING", "INCONCLUSIVE")
    return [
        f
        for f in findings
        if verbose or "same_configuration" in f["why"] or (f["verdict"] != "UNCHANGED" and (f["exit_code"] or f["verdict"] not in quiet))
    ]


def group_lines(findings: Sequence[Finding], shown: Sequence[Finding]) -> list[str]:
    """A line for every set of two or more shown findings of one variant, metric, verdict and reason; in the order of the first.

    Args:
        findings: all of the diff's, from which the classes of cases are told.
        shown: those that get a row.
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in shown:
        cell = Cell.parse(finding["cell"])
        key = (cell.kernel, cell.variant, finding["kind"], finding["metric"], finding["verdict"], finding["reason"])
        groups.setdefault(key, []).append(finding)
    known: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for finding in findings:
        cell = Cell.parse(finding["cell"])
        known[cell.kernel, cell.variant, finding["kind"]].add(cell.case)
    return [_line(key, members, known[key[:3]]) for key, members in groups.items() if len(members) > 1]


def _line(key: tuple[str, ...], members: Sequence[Finding], known: Collection[str]) -> str:
    kernel, variant, _, metric, verdict, reason = key
    cells = [Cell.parse(f["cell"]) for f in members]
    moved = _range(members)
    what = shape_class({c.case for c in cells}, known)
    return f"{kernel}/{variant}: {metric}{moved} on {_devices(cells)}; {what}: {verdict} ({reason})"


def _range(members: Sequence[Finding]) -> str:
    """` +100.0 %`, or ` +11.0 % to +20.0 %`; nothing where there is no ratio, and values where base is 0."""
    ratios = [f["ratio"] for f in members if f["ratio"] is not None]
    if len(ratios) == len(members):
        ends = dict.fromkeys(words.change_of(r, members[0]["rule"]) for r in (min(ratios), max(ratios)))
        return " " + " to ".join(ends)
    values = {(f["base"], f["head"]) for f in members}
    if len(values) == 1 and None not in (pair := values.pop()):
        return f" {words.number(pair[0])} -> {words.number(pair[1])}"
    return ""


def _devices(cells: Sequence[Cell]) -> str:
    counts = Counter(c.device for c in cells)
    if len(counts) > 1 and len(set(counts.values())) == 1:
        return f"{', '.join(sorted(counts))} ({words.count(next(iter(counts.values())), 'cell')} each)"
    return ", ".join(f"{device} ({words.count(n, 'cell')})" for device, n in sorted(counts.items()))


def shape_class(cases: Collection[str], known: Collection[str]) -> str:
    """What sets the cases apart among the known ones: `all 12 cases`, `all M=1 cases`, or `3 of 12 cases`."""
    cases, known = set(cases), set(known)
    if cases == known:
        return f"all {words.count(len(known), 'case')}" if len(known) > 1 else "its one case"
    for axis in dict.fromkeys(axis for case in sorted(cases) for axis in case.split(",")):
        if cases == {case for case in known if axis in case.split(",")}:
            return f"all {axis} cases"
    return f"{len(cases)} of {words.count(len(known), 'case')}"
