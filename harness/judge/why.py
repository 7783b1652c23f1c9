"""Why: what else is known of a cell whose verdict a reader will ask about, and the command that measures it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.judge.choice import Choice
from harness.judge.index import COMPILED, Key, Measured
from harness.judge.model import Side, Verdict
from harness.records import Cell, Record

EXPLAINED = frozenset({Verdict.BROKEN, Verdict.DRIFTED, Verdict.REGRESSED, Verdict.IMPROVED})
"""Verdicts that are explained; of others, times whose launches chose several configurations."""

_IDENTITY = ("binary_hash", "grid", "config", "launcher_digest", "method", "data_hash")

Index = Mapping[Key, Measured]


def build_of(index: Index, cell: Cell, kind: str) -> Record | None:
    """A record with the cell's binaries: the kind's own, else the one that was compiled for it."""
    for one in (kind, *sorted(COMPILED)):
        measured = index.get((cell, one))
        for record in measured.records if measured else ():
            if record.binary_hash:
                return record
    return None


def explain(base: Index, head: Index, cell: Cell, kind: str, metric: str, side: Side, chosen: Sequence[Choice] = ()) -> dict[str, Any]:
    """What stands beside a verdict.

    Args:
        side: head's side, from which the command comes.
        chosen: the configurations that the metric's launches chose, where there are several.

    Returns:
        `metrics`: name -> [base, head] of the cell's other metrics under this kind and of its compilation;
        `changed`: name -> [base, head] of what ran and is not equal; `reproduce`: a shell command;
        `same_configuration`: where `chosen` has rows, a row each.
    """
    kinds = sorted({kind} | COMPILED)
    values: dict[str, list[float | None]] = {}
    for one in kinds:
        sides = [index.get((cell, one)) for index in (base, head)]
        for name in dict.fromkeys(n for m in sides if m for n in m.names()):
            pair = [shown_value(m, name) for m in sides]
            if name != metric and pair != [None, None]:
                values[name] = pair
    why = {"metrics": values, "changed": _changed(base, head, cell, kind), "reproduce": _command(head, cell, kind, side)}
    return why | ({"same_configuration": list(map(_row, chosen))} if chosen else {})


def _row(choice: Choice) -> dict[str, Any]:
    """As plain data that is equal after JSON."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(choice).items()}


def shown_value(measured: Measured | None, metric: str) -> float | None:
    """A value to show, be its record valid or not; it is compared with nothing."""
    return next((r.value for r in measured.of(metric) if r.value is not None), None) if measured else None


def _changed(base: Index, head: Index, cell: Cell, kind: str) -> dict[str, list[Any]]:
    changed: dict[str, list[Any]] = {}
    for records in ([build_of(i, cell, kind) for i in (base, head)], [_first(i, cell, kind) for i in (base, head)]):
        before, after = records
        if before is None or after is None:
            continue
        for name in _IDENTITY:
            pair = [getattr(before, name), getattr(after, name)]
            if pair[0] != pair[1] and None not in pair:
                changed.setdefault(name, pair)
    return changed


def _first(index: Index, cell: Cell, kind: str) -> Record | None:
    measured = index.get((cell, kind))
    return measured.records[0] if measured else None


def _command(head: Index, cell: Cell, kind: str, side: Side) -> str:
    record = _first(head, cell, kind)
    unit = f" on unit {record.unit}" if record and record.unit else ""
    return f"{repeat(cell, kind, side.commit, dirty=side.dirty)}  # {cell}{unit}"


def repeat(cell: Cell, kind: str, commit: str | None, *, dirty: bool) -> str:
    """The command that measures one cell again."""
    ref = commit if commit and not dirty else "worktree"
    what = f"--kernel {cell.kernel} --variant {cell.variant} --case {cell.case} --device {cell.device} --kind {kind}"
    return f"harness submit --ref {ref} {what}"
