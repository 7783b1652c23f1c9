"""A diff as Markdown for a check run or a step summary, from its JSON alone. Every name of a cell stands in a code span."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.report import words
from harness.report.coverage import device_lines
from harness.report.cut import Block, fit
from harness.report.groups import group_lines, listed

CHECK_LIMIT = 65_535
"""Bytes of a check run's summary; GitHub refuses more."""

BAR = r"\|"
_MARKS = {0: ":white_check_mark:", 1: ":x:", 3: ":grey_question:"}
_COLUMNS = ("cell", "metric", "base", "head", "change", "verdict", "reason", "why")


def render_markdown(diff: Mapping[str, Any], *, limit: int = CHECK_LIMIT, verbose: bool = False) -> str:
    """The report, at most `limit` bytes of UTF-8; rows are cut whole, and the cut is counted.

    Args:
        diff: what `to_json` made.
        verbose: list what is unchanged or was not measured too.

    Raises:
        ValueError: the limit has no room even for the headings.
    """
    shown = listed(diff["findings"], verbose=verbose)
    gpus = words.gpus(diff["gpus"])
    blocks = (
        Block(_top(diff)),
        _block("Notes", [f"- {note}" for note in diff["notes"]], "notes"),
        _block("Devices", [f"- {code(device)}: {line}" for device, line in device_lines(diff["coverage"])], "devices"),
        _block("In short", [f"- {code(line)}" for line in group_lines(diff["findings"], shown)], "lines"),
        replace(_block("Findings", list(map(_row, shown)), "findings", _COLUMNS), yields=True),
        _block("Geometric means of head over base", _means(diff["summary"]), "means"),
        _block("Reasons", [f"- {code(name)}: {text}" for name, text in words.reasons(diff, shown)], "reasons"),
        _block("Rules", [f"- {rule}" for rule in diff["rules"]], "rules"),
        Block(["", f"**{gpus}**"] if gpus else []),
    )
    return fit(blocks, limit)


def code(text: str) -> str:
    """Text in a code span, where nothing in it is markup and no name is a mention."""
    line = words.one_line(text)
    ticks = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def _top(diff: Mapping[str, Any]) -> list[str]:
    word = words.CONCLUSIONS[diff["exit_code"]]
    refs = [f"- {name} {code(diff[name]['ref'])}: {words.side(diff[name])}" for name in ("base", "head")]
    counts = diff["counts"]
    return [
        f"## {_MARKS[diff['exit_code']]} Kernels: {word}",
        "",
        *(f"- {line}" for line in diff["conclusion"]),
        *map(_mark, diff.get("marks", ())),
        *refs,
        "",
        f"| {' | '.join(counts)} |",
        f"|{'---:|' * len(counts)}",
        f"| {' | '.join(map(str, counts.values()))} |",
    ]


def _mark(mark: Mapping[str, Any]) -> str:
    """What makes the run suspect, and what to do about it."""
    seen = f"marked {code(mark['suspicion'])} on {code(mark['device'])}: {words.one_line(mark['detail'])}"
    return f"- :warning: {seen}. Do next: {words.one_line(mark['do'])}: {code(mark['reproduce'])}"


def _block(title: str, rows: Sequence[str], noun: str, columns: Sequence[str] = ()) -> Block:
    if not rows:
        return Block([])
    table = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"] if columns else []
    return Block(["", f"### {title}", "", *table], rows, noun)


def _row(finding: Mapping[str, Any]) -> str:
    detail = f": {code(finding['detail'])}" if words.one_line(finding["detail"]) else ""
    notes = (words.why(finding), finding["why"].get("reproduce", ""))
    cells = (
        code(finding["cell"]),
        finding["metric"],
        words.number(finding["base"]),
        words.number(finding["head"]),
        words.change(finding),
        finding["verdict"],
        finding["reason"] + detail,
        "<br>".join(code(note) for note in notes if note),
    )
    # A bar would end the cell, in a code span too.
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def _means(summary: Mapping[str, Any]) -> list[str]:
    noise = words.noise(summary["noise"])
    return [*(f"- {m['metric']} on {code(m['device'])}: {words.mean(m)}" for m in summary["means"]), *([f"- {noise}"] if noise else [])]
