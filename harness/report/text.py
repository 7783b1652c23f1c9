"""A diff as plain text for a terminal or a log, from its JSON alone; no colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report import words
from harness.report.coverage import device_lines
from harness.report.groups import group_lines, listed

HEADINGS = ("cell", "metric", "base", "head", "change", "verdict", "reason")
RIGHT = frozenset({"base", "head", "change"})
MISSING_LISTED = 10
"""Rows of what is missing, unless all is asked for: the groups in short say it of any number."""


def render_text(diff: Mapping[str, Any], *, verbose: bool = False) -> str:
    """The report; `verbose` lists what is unchanged or was not measured too.

    Args:
        diff: what `to_json` made.
    """
    shown = listed(diff["findings"], verbose=verbose)
    sections = (
        _top(diff),
        _section("Notes", [f"  {note}" for note in diff["notes"]]),
        _section("Devices", _pairs(device_lines(diff["coverage"]))),
        _section("In short", [f"  {line}" for line in group_lines(diff["findings"], shown)]),
        _section("Findings", _rows(shown) if verbose else _most(shown)),
        _section("Geometric means of head over base", _means(diff["summary"])),
        _section("Reasons", _pairs(words.reasons(diff, shown))),
        _section("Rules", [f"  {rule}" for rule in diff["rules"]]),
        _bottom(diff),
    )
    return "\n\n".join("\n".join(s) for s in sections if s)


def _top(diff: Mapping[str, Any]) -> list[str]:
    refs = _pairs([(f"{name} {diff[name]['ref']}", words.side(diff[name])) for name in ("base", "head")])
    counts = ", ".join(f"{verdict} {n}" for verdict, n in diff["counts"].items())
    return [
        f"{words.CONCLUSIONS[diff['exit_code']].upper()} (exit code {diff['exit_code']})",
        *(f"  {line}" for line in diff["conclusion"]),
        *(line for mark in diff.get("marks", ()) for line in _mark(mark)),
        *refs,
        counts,
    ]


def _mark(mark: Mapping[str, Any]) -> list[str]:
    """What makes the run suspect, and what to do about it."""
    seen, do, command = (words.one_line(mark[name]) for name in ("detail", "do", "reproduce"))
    return [f"  marked {mark['suspicion']} on {mark['device']}: {seen}", f"      {do}:", f"      {command}"]


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [title, *lines] if lines else []


def _pairs(pairs: Sequence[tuple[str, str]]) -> list[str]:
    width = max((len(name) for name, _ in pairs), default=0)
    return [f"  {name:<{width}}  {text}" for name, text in pairs]


def _rows(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """An aligned table; what explains a row stands below it."""
    if not findings:
        return []
    rows = [_cells(f) for f in findings]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    lines = [_aligned(HEADINGS, widths)]
    for finding, row in zip(findings, rows, strict=True):
        lines.append(_aligned(row, widths))
        notes = [words.one_line(finding["detail"]), words.why(finding), finding["why"].get("reproduce", "")]
        lines += [f"      {note}" for note in notes if note]
    return lines


def _most(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table without all but the first rows of what is missing, which are counted."""
    missing = [f for f in findings if f["verdict"] == "MISSING"]
    if len(missing) <= MISSING_LISTED:
        return _rows(findings)
    kept = [f for f in findings if f["verdict"] != "MISSING"] + missing[:MISSING_LISTED]
    return [*_rows(kept), f"  and {len(missing) - MISSING_LISTED} more MISSING; --verbose lists them all"]


def _cells(finding: Mapping[str, Any]) -> tuple[str, ...]:
    values = (words.number(finding["base"]), words.number(finding["head"]), words.change(finding))
    return (finding["cell"], finding["metric"], *values, finding["verdict"], finding["reason"])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [v.rjust(w) if name in RIGHT else v.ljust(w) for name, v, w in zip(HEADINGS, row, widths, strict=True)]
    return ("  " + "  ".join(cells)).rstrip()


def _means(summary: Mapping[str, Any]) -> list[str]:
    noise = words.noise(summary["noise"])
    return [*_pairs([(f"{m['metric']} on {m['device']}", words.mean(m)) for m in summary["means"]]), *([f"  {noise}"] if noise else [])]


def _bottom(diff: Mapping[str, Any]) -> list[str]:
    line = words.gpus(diff["gpus"])
    return [line] if line else []
