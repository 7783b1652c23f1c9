"""Finds what is known of one cell, over all runs and baselines: the newest of everything."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from operator import eq
from pathlib import Path
from statistics import median

from harness.errors import UnknownNameError
from harness.metrics import spread_percent
from harness.records import Cell, Record, Status
from harness.store.baselines import baseline_cells, read_baselines
from harness.store.files import of_cell
from harness.store.runs import RunStore


@dataclass(frozen=True)
class CellRecord:
    """A record and where it was found: in a `run`, or in a `baseline` whose run is not in the store."""

    source: str
    record: Record


@dataclass(frozen=True)
class Line:
    """One metric of a cell, the launches of a run taken together.

    Args:
        value: median over `launches` records; None where the cell failed.
        spread_percent: (max - min) / median over the launches, in percent; None with fewer than two.
        converged: whether every launch's samples settled; None where the metric has no samples.
        methods: what the launches were measured by, each once.
    """

    kind: str
    metric: str | None
    arm: str
    value: float | None
    unit_of_measure: str | None
    launches: int
    status: str
    reason: str | None
    source: str
    run_id: str
    spread_percent: float | None = None
    converged: bool | None = None
    methods: tuple[str, ...] = ()


def newest_records(store: RunStore, baselines_dir: str | Path, cell: Cell) -> list[CellRecord]:
    """For every kind and arm of a cell, its records in the newest run that has any.

    A run that never got as far as measuring (no capacity, lost, cancelled) hides no older result: its records count only
    for a kind and arm that have no other.

    Raises:
        UnknownNameError: no record of that cell; the nearest cells that have some are named.
        StoreError: a file cannot be read; it is named.
    """
    by_run = [(info.started_at, [CellRecord("run", record) for record in records]) for info, records in store.find(cell)]
    in_store = {run[0].record.run_id for _, run in by_run}
    accepted: dict[str, list[CellRecord]] = {}
    for record in read_baselines(baselines_dir, of_cell(cell)):
        if record.run_id not in in_store:
            accepted.setdefault(record.run_id, []).append(CellRecord("baseline", record))
    by_run += [(max(found.record.started_at or "" for found in run), run) for run in accepted.values()]
    if not by_run:
        raise _unknown(store, baselines_dir, cell)
    by_run.sort(key=lambda entry: entry[0], reverse=True)
    runs = [run for _, run in by_run]
    chosen: dict[tuple[str, str], list[CellRecord]] = {}
    for answered in (True, False):
        for run in runs:
            _take(chosen, [found for found in run if Status(found.record.status).resumable is not answered])
    return [found for key in sorted(chosen) for found in chosen[key]]


def lines(found: Sequence[CellRecord]) -> list[Line]:
    """The records as one line for each kind, arm, metric, status and reason; values as the median over launches."""
    groups: dict[tuple[str, ...], list[CellRecord]] = {}
    for one in found:
        record = one.record
        groups.setdefault((record.kind, record.arm, record.metric or "", record.status, record.reason or ""), []).append(one)
    return [_line(group) for group in groups.values()]


def _take(chosen: dict[tuple[str, str], list[CellRecord]], run: Sequence[CellRecord]) -> None:
    """Add a run's records under each kind and arm that no newer run has answered."""
    groups: dict[tuple[str, str], list[CellRecord]] = {}
    for found in run:
        groups.setdefault((found.record.kind, found.record.arm), []).append(found)
    for key, group in groups.items():
        chosen.setdefault(key, group)


def _line(group: Sequence[CellRecord]) -> Line:
    first = group[0].record
    values = [found.record.value for found in group if found.record.value is not None]
    settled = [found.record.converged for found in group if found.record.converged is not None]
    return Line(
        kind=first.kind,
        metric=first.metric,
        arm=first.arm,
        value=median(values) if values else None,
        unit_of_measure=first.unit_of_measure,
        launches=len(group),
        status=first.status,
        reason=first.reason,
        source=group[0].source,
        run_id=first.run_id,
        spread_percent=spread_percent(values),
        converged=all(settled) if settled else None,
        methods=tuple(dict.fromkeys(found.record.method for found in group if found.record.method)),
    )


def _unknown(store: RunStore, baselines_dir: str | Path, cell: Cell) -> UnknownNameError:
    known = store.cells() | baseline_cells(baselines_dir)
    alike: dict[int, list[str]] = {}
    for one in known:
        alike.setdefault(sum(map(eq, astuple(one), astuple(cell))), []).append(str(one))
    likeliest = alike[max(alike)] if alike else []  # those of most equal parts: it takes long to compare the texts of all
    close = difflib.get_close_matches(str(cell), likeliest, n=3)
    found = f"no record of it among {len(known)} cells in {store.folder} and {baselines_dir}"
    run = f"harness submit --kernel {shlex.quote(cell.kernel)} --case {shlex.quote(cell.case)} --device {shlex.quote(cell.device)}"
    run_it = f"run it with `{run}{store.option}`, or see `harness kernels show {shlex.quote(cell.kernel)}` for the cells there are"
    do = f"the nearest are {', '.join(close)}" if close else run_it
    return UnknownNameError(f"cell {cell}", found, do)
