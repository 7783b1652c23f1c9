"""A diff as one JSON document: the source of every other format, and a file that a later job can render."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from harness.judge.model import Diff, Finding, Side
from harness.judge.rules import quote
from harness.metrics import Rule

FORMAT = 1
"""Number of the document's form; it rises when a key changes its meaning."""


def to_json(diff: Diff, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The diff as plain data: findings the worst first, every verdict counted, the rules that judged and the reasons in words.

    Args:
        notes: what a reader should know of how the two sides were put together, a line each.
    """
    reasons = {str(f.reason): f.reason.text for f in diff.findings}
    used = {f.rule for f in diff.findings}
    return {
        "format": FORMAT,
        "base": _side(diff.base),
        "head": _side(diff.head),
        "exit_code": diff.exit_code,
        "conclusion": list(diff.conclusion),
        "marks": [dataclasses.asdict(m) | {"suspicion": str(m.suspicion)} for m in diff.marks],
        "notes": list(notes),
        "counts": {str(verdict): n for verdict, n in diff.counts.items()},
        "gpus": dict(diff.gpus),
        "coverage": [dataclasses.asdict(c) for c in diff.coverage],
        "summary": {
            "means": [dataclasses.asdict(m) for m in diff.means],
            "noise": dataclasses.asdict(diff.noise) if diff.noise else None,
        },
        "findings": [_finding(f) for f in diff.findings],
        "reasons": dict(sorted(reasons.items())),
        "rules": [quote(rule) for rule in Rule if rule in used],
    }


def _side(side: Side) -> dict[str, Any]:
    return {"ref": side.ref, "commit": side.commit, "code_digest": side.code_digest, "distance": side.distance, "dirty": side.dirty}


def _finding(finding: Finding) -> dict[str, Any]:
    data = {f.name: getattr(finding, f.name) for f in dataclasses.fields(finding)}
    interval = list(finding.interval) if finding.interval else None
    named = {"cell": str(finding.cell), "device": finding.device, "verdict": str(finding.verdict), "reason": str(finding.reason)}
    return data | named | {"interval": interval, "why": dict(finding.why)}
