"""`harness bench`: times one kernel of the worktree on the GPU of this machine, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harness.commands import _options

if TYPE_CHECKING:
    from pathlib import Path

    from harness.devices.units import Unit
    from harness.dispatch.protocol import Dispatcher
    from harness.dispatch.run import Outcome
    from harness.judge.accepted import Accepted
    from harness.plan.plan import Plan
    from harness.records import Cell
    from harness.report.bench import Row
    from harness.store.runs import RunStore

KEPT = 20
"""Benches whose samples are kept; older ones are removed when another has ended."""


@click.command(epilog="\b\nExamples:\n  harness bench KERNEL\n  harness bench KERNEL --variant '*' --case 'M=1,*' --launches 3")
@click.argument("kernel")
@click.option(
    "--variant", "variants", multiple=True, metavar="GLOB", help="These variants (default: the kernel's default and its baseline)."
)
@click.option("--case", "cases", multiple=True, metavar="GLOB", help="These cases, as 'M=1,*' (default: tagged headline, else smoke).")
@click.option("--device", metavar="NAME|GROUP", help="Where several GPUs are here: the first of this device (default: the first).")
@click.option("--launches", type=click.IntRange(1), default=1, show_default=True, help="Fresh processes that measure each cell.")
@_options.format_text_json
def command(kernel: str, variants: tuple[str, ...], cases: tuple[str, ...], device: str | None, launches: int, output: str) -> int:
    """Prove and time one kernel of the worktree on one GPU of this machine.

    Times stand beside the baseline variant of the same run, and beside the nearest accepted baseline in the worktree's
    history, which informs and judges nothing. A bench stands for no run: `runs`, `diff` and `baseline` do not see it.

    Ends with exit code 0 (all that was timed is right), 1 (something is wrong), 3 (undecided, or no GPU) or 130 (stopped).
    """
    from datetime import UTC, datetime

    from harness.authoring.workspace import find_workspace
    from harness.devices.table import load_devices, resolve_devices
    from harness.devices.units import local_units
    from harness.dispatch.one_unit import OneUnitDispatcher, choose_unit
    from harness.dispatch.run import describe_run, new_run_id, prepared
    from harness.plan.bench import KIND, check_kernel, plan_bench
    from harness.store.runs import RunStore

    workspace = find_workspace()
    wanted = resolve_devices([device], load_devices()) if device else None
    asked = f"bench {kernel} on {f'a unit of {device}' if device else 'the GPU of this machine'}"
    units = local_units()
    if not units:
        check_kernel(workspace, kernel)
    unit = choose_unit(units, wanted, asked, kernel)
    assert unit.device is not None
    place = workspace.state_dir / "bench"  # apart from runs: `run:last` and a diff of this code must not take it for one
    store = RunStore(place)
    dispatcher = OneUnitDispatcher(unit)
    now = datetime.now(UTC)
    run_id = new_run_id(now)
    with prepared(dispatcher, place / run_id, [unit.device], [KIND]):
        plan = plan_bench(workspace, kernel, unit.device, variants, cases, launches)
        run = describe_run(plan, run_id, now, {"filters": {}, "require": [], "launches": launches})
    outcome = _execute(plan, unit, dispatcher, store, run, place / run_id, output)
    _report(plan, unit, outcome, _accepted(plan, workspace.root, workspace.baselines_dir), output)
    _prune(store, place)
    return outcome.exit_code


def _execute(plan: Plan, unit: Unit, dispatcher: Dispatcher, store: RunStore, run: dict[str, Any], folder: Path, output: str) -> Outcome:
    from harness.commands._progress import Progress
    from harness.dispatch.run import execute

    seconds = sum(job.expected_s for job in plan.jobs)
    with Progress(quiet=output == "json", cells=len(plan.expected), jobs=plan.jobs) as progress:
        where = f"{unit.device} ({unit.uuid})"
        size = f"{len(plan.expected)} cells, launches a cell: {run['options']['launches']}"
        progress.say(f"bench of {plan.tree.resolved}: {size}, on {where}, about {seconds:.0f} s")
        return execute(plan, dispatcher, store, run, folder, observe=progress.observe)


def _accepted(plan: Plan, root: Path, baselines_dir: Path) -> dict[Cell, Accepted]:
    """The nearest accepted times of the plan's cells, in the history of the worktree's commit."""
    from harness.judge.accepted import Past, nearest_accepted
    from harness.metrics import PRIMARY
    from harness.plan.bench import KIND
    from harness.plan.git import Git
    from harness.plan.refs import ancestors
    from harness.store.baselines import read_baselines
    from harness.store.files import of_cells

    assert plan.tree.commit is not None
    history = (Past(a.code_digest, a.distance, a.commits) for a in ancestors(Git(root), plan.tree.commit))
    cells, metric = {e.cell for e in plan.expected}, PRIMARY[KIND]
    return nearest_accepted(read_baselines(baselines_dir, {**of_cells(cells), "metric": {metric}}), history, cells, metric)


def _report(plan: Plan, unit: Unit, outcome: Outcome, accepted: dict[Cell, Accepted], output: str) -> None:
    from harness.dispatch.run import cell_status
    from harness.report.bench import bench_rows, footnotes, headers, row_json, table

    (kernel,) = [k for k in plan.description.kernels if k.name == plan.expected[0].cell.kernel]
    declared = [case.case for case in kernel.cases]
    cells = sorted((e.cell for e in plan.expected), key=lambda cell: (declared.index(cell.case), kernel.variants.index(cell.variant)))
    statuses = {cell: cell_status([r for r in outcome.records if r.cell == cell]) for cell in cells}
    rows = bench_rows(cells, outcome.records, statuses, accepted)
    run = outcome.run
    if output == "json":
        import json

        answer = {
            **{name: run[name] for name in ("run_id", "commit", "dirty", "code_digest")},
            "kernel": kernel.name,
            "default": kernel.default,
            "baseline": kernel.baseline,
            "device": unit.device,
            "unit": unit.uuid,
            "model": unit.model,
            "launches": run["options"]["launches"],
            "cells": list(map(row_json, rows)),
            "exit_code": outcome.exit_code,
        }
        click.echo(json.dumps(answer, indent=2))
        return
    from harness.commands._table import print_table

    click.echo(f"{kernel.name} of {plan.tree.resolved} on {unit.device} ({unit.model}, {unit.uuid}); * default, ^ baseline")
    columns = headers(rows)
    print_table(columns, table(rows, kernel.default, kernel.baseline), right=columns[2:-2])
    for line in footnotes(rows, run["commit"]):
        click.echo(line)
    click.echo(_verdict(rows, outcome))


def _verdict(rows: list[Row], outcome: Outcome) -> str:
    from harness.report.words import CONCLUSIONS, count

    counts = ", ".join(f"{n} {status}" for status, n in outcome.run["by_status"].items())
    unsettled = sum(row.converged is False for row in rows)
    aside = f", {unsettled} of them not converged" if unsettled else ""
    return f"{CONCLUSIONS[outcome.exit_code].upper()} (exit code {outcome.exit_code}): {count(len(rows), 'cell')}: {counts}{aside}"


def _prune(store: RunStore, place: Path) -> None:
    """Remove the oldest finished benches."""
    import shutil

    for info in [info for info in store.list() if info.finished][KEPT:]:
        shutil.rmtree(place / info.run_id, ignore_errors=True)
