"""A plan under a budget of time: what a change affects comes first, and what will probably be left out."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import click

from harness.authoring.workspace import Workspace
from harness.judge.compare import same_launches, stack
from harness.plan.affected import Change, change
from harness.plan.budget import Forecast, Tier, duration_text, forecast, longest_job, tiers
from harness.plan.git import Git
from harness.plan.matrix import INTERPRETER
from harness.plan.plan import Plan, with_jobs
from harness.plan.refs import ancestors
from harness.plan.requirements import same_requirements
from harness.plan.trees import Tree, harness_table, listing, tree_of_commit
from harness.records import Cell, Record, is_left_out
from harness.store.files import of_cells
from harness.store.lookup import Results
from harness.store.runs import RunStore

if TYPE_CHECKING:
    from harness.dispatch.protocol import Dispatcher

STATIC = "static"


@dataclass(frozen=True)
class Budgeted:
    """A plan whose jobs are cut and ordered for a budget.

    Args:
        seconds: the budget.
        note: what the order comes from, for people.
    """

    plan: Plan
    seconds: float
    note: str


def budgeted(plan: Plan, seconds: float, launches: int, workspace: Workspace, store: RunStore) -> Budgeted:
    """Order a plan's cells by what the change affects, in jobs that are short beside the budget.

    The change is that from the other arm's code; without one, from the nearest ancestor that has results here; where none has,
    every cell counts as affected.

    Raises:
        StoreError: a stored run or baseline cannot be read; it is named.
    """
    results = Results(store, RunStore(workspace.compiled_dir), workspace.baselines_dir)
    git = Git(workspace.root)
    base = plan.base.tree if plan.base else _stored_ancestor(plan.tree, git, results)
    if base is None:
        found, note = None, "no ancestor has results here: headline cases first"
    else:
        found = _change(plan, base, git, results)
        affected = sum(map(found.affects, plan.expected))
        first = "they come first" if affected else "headline cases first"
        note = f"{affected} of {len(plan.expected)} cells are affected by what changed since {base.resolved}: {first}"
    tier = tiers(plan.description, found)
    return Budgeted(with_jobs(plan, launches, longest_s=longest_job(seconds), tier=tier), seconds, note)


def _stored_ancestor(tree: Tree, git: Git, results: Results) -> Tree | None:
    """The nearest ancestor with other code that has results."""
    known = {info.code_digest for info in results.store.list() if info.finished and not info.dirty}
    known = (known | set(results.accepted)) - {tree.code_digest}
    if tree.commit is None or not known:
        return None
    commit = next((one.commit for one in ancestors(git, tree.commit) if one.code_digest in known), None)
    return None if commit is None else tree_of_commit(git, commit, commit, commit[:12])


def _change(plan: Plan, base: Tree, git: Git, results: Results) -> Change:
    cells = {e.cell for e in plan.expected}
    ours, theirs = (_builds(results, tree.code_digest, cells, dirty=tree.dirty) for tree in (plan.tree, base))
    proved = {c for c in ours.keys() & theirs.keys() if same_launches(theirs[c], ours[c]) and stack(theirs[c]) == stack(ours[c])}
    config, same = harness_table(git, base.tree), same_requirements(git, base.tree, plan.tree.tree)
    return change(plan.description, plan.code, listing(git, base), plan.files, proved, base_config=config, same_requirements=same)


def _builds(results: Results, code_digest: str, cells: Collection[Cell], *, dirty: bool) -> dict[Cell, Record]:
    """What is known of the cells' binaries: compiled for a run or an accepted one, else for a diff."""
    found = results.of(code_digest, dirty=dirty, only={**of_cells(cells), "kind": {STATIC}})
    records = list(found.records) if found else []
    if importlib.util.find_spec("triton") is not None:
        records += results.compiled_here(code_digest, version("triton"))
    return {r.cell: r for r in reversed(records) if r.kind == STATIC and r.binary_hash}


def show_forecast(one: Budgeted, dispatcher: Dispatcher, output: str) -> None:
    """Print which jobs would run in which order on the units in hand, and what would probably be left out."""
    expected, absent = _forecast(one, dispatcher)
    left = [each for each in expected if each.start_s is None]
    if output == "json":
        import json

        from harness.commands.plan import plan_to_json

        starts = {each.job.job_id: each.start_s for each in expected}
        answer = plan_to_json(one.plan)
        for job, row in zip(one.plan.jobs, answer["jobs"], strict=True):
            here = job.job_id in starts
            row |= {"affected": Tier(job.tier).affected, "reachable": here, "start_s": starts.get(job.job_id)}
        answer["budget"] = {
            "seconds": one.seconds,
            "order": one.note,
            "left_out": _as_rows((f.job.kernel, f.job.kind, f.job.cells) for f in left),
        }
        click.echo(json.dumps(answer, indent=2))
        return
    from harness.commands._table import print_table

    click.echo(f"{one.plan.tree.resolved}, matrix {one.plan.matrix}, budget {duration_text(one.seconds)}; {one.note}")
    headers = ("starts", "affected", "kind", "kernel", "device", "cells", "launches", "expected s")
    print_table(headers, [_row(each) for each in expected], right=("starts", "cells", "launches", "expected s"))
    cells = sum(len(each.job.cells) for each in expected)
    out = sum(len(each.job.cells) for each in left)
    click.echo(f"by expected times {cells - out} cells in {len(expected) - len(left)} jobs start within the budget")
    for row in _as_rows((f.job.kernel, f.job.kind, f.job.cells) for f in left):
        click.echo(f"  probably left out: {row['kernel']} {row['kind']}, {row['cells']} cells")
    if absent:
        click.echo(f"no unit is here of {', '.join(absent)}")


def _forecast(one: Budgeted, dispatcher: Dispatcher) -> tuple[list[Forecast], list[str]]:
    """In the order of their start, what is left out last; and the devices that are not here."""
    try:
        devices = {job.device for job in one.plan.jobs if job.on == "unit"}
        units = dispatcher.capacity(sorted({*devices, INTERPRETER}))
    finally:
        dispatcher.close()
    slots = max(1, units[INTERPRETER])
    expected = forecast(one.plan.jobs, units, slots, one.seconds, at_once=dispatcher.name != "local")
    ordered = sorted(expected, key=lambda each: float("inf") if each.start_s is None else each.start_s)
    return ordered, sorted(device for device in devices if not units[device])


def _row(one: Forecast) -> list[str]:
    job = one.job
    start = "left out" if one.start_s is None else f"+{one.start_s:.0f} s"
    words = [start, "yes" if Tier(job.tier).affected else "no", job.kind, job.kernel, job.device]
    return [*words, str(len(job.cells)), str(len(job.turns)), f"{job.expected_s:.0f}"]


def left_out(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Kernel, kind and number of cells that a budget left out."""
    return _as_rows((r.kernel, r.kind, [r.cell]) for r in records if is_left_out(r.status, r.reason))


def _as_rows(groups: Iterable[tuple[str, str, Sequence[Cell]]]) -> list[dict[str, Any]]:
    counts: Counter[tuple[str, str]] = Counter()
    for kernel, kind, cells in groups:
        counts[kernel, kind] += len(cells)
    return [{"kernel": kernel, "kind": kind, "cells": cells} for (kernel, kind), cells in sorted(counts.items())]
