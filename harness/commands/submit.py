"""`harness submit`: runs a matrix, the main job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harness.commands import _dispatchers, _options

if TYPE_CHECKING:
    from pathlib import Path

    from harness.authoring.workspace import Workspace
    from harness.commands._budget import Budgeted
    from harness.dispatch.protocol import Dispatcher
    from harness.dispatch.run import Outcome
    from harness.plan.plan import Plan
    from harness.store.runs import RunStore

_OF_A_PLAN = {"matrix", "ref", "kernels", "variants", "cases", "devices", "kinds", "against", "launches"}
"""Parameters that say what a run measures: `--resume` has them from the run."""


@click.command(
    epilog="\b\nExamples:\n  harness submit --matrix all\n  harness submit --ref pr --against main"
    "\n  harness submit --ref pr --against main --budget 10m\n  harness submit --resume last"
)
@_options.matrix
@_options.ref
@_options.kernel
@_options.variant
@_options.case
@_options.device
@_options.kind
@_dispatchers.dispatcher
@_dispatchers.address
@_dispatchers.max_queue
@click.option("--require", multiple=True, metavar="DEVICE|GROUP|all", help="Exit 3 unless these devices were measured.")
@click.option("--resume", metavar="RUN", help="Go on with a run that was stopped, as it was planned: an id, or `last`.")
@click.option("--store", "store_uri", metavar="URI", help="Keep the records here rather than in .harness/runs.")
@click.option("--against", metavar="REF", help="Measure the merge base of REF too, the timed cells in pairs (ABBA) in one lease.")
@click.option(
    "--launches", type=click.IntRange(1), help="Launches of a timed cell on a GPU (default: 3); with --against a side (default: 6)."
)
@click.option(
    "--budget",
    metavar="DURATION",
    help="Start jobs for so long (10m, 90s, 1h30m), affected cells first; what is left out is listed, and --resume runs it.",
)
@click.option("--slots", type=click.IntRange(1), help="Jobs at a time that need no GPU (default: one a core).")
@click.option("--dry-run", is_flag=True, help="Print what would run, and stop.")
@_options.format_text_json
def command(
    matrix: str,
    ref: str,
    kernels: tuple[str, ...],
    variants: tuple[str, ...],
    cases: tuple[str, ...],
    devices: tuple[str, ...],
    kinds: tuple[str, ...],
    dispatcher: str,
    address: str | None,
    max_queue: float | None,
    require: tuple[str, ...],
    resume: str | None,
    store_uri: str | None,
    against: str | None,
    launches: int | None,
    budget: str | None,
    slots: int | None,
    dry_run: bool,
    output: str,
) -> int:
    """Run the matrix: compile, prove right, follow drift, and time every kernel on every device that is here.

    Ends with exit code 0 (all that could be measured passed), 1 (something is wrong), 3 (undecided) or 130 (stopped).
    """
    from harness.authoring.workspace import find_workspace
    from harness.devices.table import load_devices, resolve_devices
    from harness.plan.budget import parse_duration
    from harness.plan.matrix import Filters
    from harness.store.runs import RunStore

    if resume:
        _refuse_a_plan_beside(resume)
    seconds = None if budget is None else parse_duration(budget)
    carrier = _dispatchers.make_dispatcher(dispatcher, address, slots, max_queue)
    workspace = find_workspace()
    required = resolve_devices(require, load_devices()) if require else []
    store = RunStore(store_uri or workspace.runs_dir)
    if resume:
        plan, run = _resumed(workspace, store, resume)
        required = required or run["options"]["require"]
    else:
        plan, run = _fresh(workspace, ref, matrix, Filters(kernels, devices, kinds, variants, cases), required, launches, against)
    limited = None
    if seconds is not None:
        from harness.commands._budget import budgeted

        limited = budgeted(plan, seconds, run["options"]["launches"], workspace, store)
        plan = limited.plan
    run = {**run, "options": {**run["options"], "budget_s": seconds}}
    if dry_run:
        _show(plan, limited, carrier, output, workspace.runs_dir / run["run_id"])
        return 0
    outcome = _execute(plan, run, workspace, store, carrier, required, output, limited)
    _report(outcome, output, limited)
    return outcome.exit_code


def _refuse_a_plan_beside(resume: str) -> None:
    """Refuse options that say what to run beside `--resume`, which goes on with what its run was started with.

    Raises:
        HarnessError: there are some.
    """
    from click.core import ParameterSource

    from harness.errors import HarnessError

    context = click.get_current_context()
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name in _OF_A_PLAN and context.get_parameter_source(option.name) is not ParameterSource.DEFAULT
    ]
    if given:
        raise HarnessError(
            f"--resume {resume} with {', '.join(given)}",
            "a run is resumed with what it was started with: its code, its cells and its launches",
            f"leave {', '.join(given)} out; or leave --resume out, and start another run",
        )


def _show(plan: Plan, limited: Budgeted | None, dispatcher: Dispatcher, output: str, folder: Path) -> None:
    """Print what would run; of a run that is resumed, whose journal is in `folder`, what is left."""
    from dataclasses import replace

    from harness.dispatch.remainder import remainder

    if limited is not None:
        from harness.commands._budget import show_forecast

        show_forecast(replace(limited, plan=remainder(plan, folder)), dispatcher, output)
        return
    from harness.commands.plan import show_plan

    show_plan(remainder(plan, folder), output)


def _fresh(
    workspace: Workspace, ref: str, matrix: str, filters: Any, required: list[str], launches: int | None, against: str | None
) -> tuple[Plan, dict[str, Any]]:
    from dataclasses import asdict
    from datetime import UTC, datetime

    from harness.dispatch.run import describe_run, new_run_id
    from harness.plan.plan import LAUNCHES, PAIRED_LAUNCHES, make_plan

    launches = launches or (PAIRED_LAUNCHES if against else LAUNCHES)
    plan = make_plan(workspace, ref, matrix, filters, launches, against)
    now = datetime.now(UTC)
    return plan, describe_run(plan, new_run_id(now), now, {"filters": asdict(filters), "require": required, "launches": launches})


def _resumed(workspace: Workspace, store: RunStore, name: str) -> tuple[Plan, dict[str, Any]]:
    from harness.dispatch.run import check_resumable
    from harness.plan.git import Git
    from harness.plan.matrix import Filters
    from harness.plan.plan import plan_tree
    from harness.plan.trees import Tree

    run = store.read_run(store.resolve(name))

    def tree(of: dict[str, Any]) -> Tree:
        return Tree(of["ref"], of["resolved"], of["commit"], of["tree"], of["code_digest"], of["dirty"])

    filters = {key: tuple(value) for key, value in run["options"]["filters"].items()}
    against = tree(run["against"]) if run["against"] else None
    plan = plan_tree(workspace, Git(workspace.root), tree(run), run["matrix"], Filters(**filters), run["options"]["launches"], against)
    check_resumable(run, plan, workspace.runs_dir / run["run_id"])
    return plan, run


def _execute(
    plan: Plan,
    run: dict[str, Any],
    workspace: Workspace,
    store: RunStore,
    dispatcher: Dispatcher,
    required: list[str],
    output: str,
    limited: Budgeted | None,
) -> Outcome:
    from harness.commands._progress import Progress
    from harness.dispatch.run import execute
    from harness.plan.budget import duration_text

    folder, seconds = workspace.runs_dir / run["run_id"], limited.seconds if limited else None

    with Progress(quiet=output == "json", cells=len(plan.expected)) as progress:
        against = f" against {plan.base.tree.resolved}" if plan.base else ""
        size = f"{len(plan.expected)} cells in {len(plan.jobs)} jobs"
        progress.say(f"run {run['run_id']}: {plan.tree.resolved}{against}, matrix {plan.matrix}, {size}")
        if limited is not None:
            progress.say(f"budget {duration_text(limited.seconds)}: {limited.note}")
        outcome = execute(plan, dispatcher, store, run, folder, require=required, observe=progress.observe, budget_s=seconds)
        if dispatcher.dropped:
            progress.say(f"{dispatcher.dropped} messages of attempts that were given up, or no messages at all, were not taken")
        return outcome


def _report(outcome: Outcome, output: str, limited: Budgeted | None) -> None:
    import json

    run = outcome.run
    if output == "json":
        answer = {
            "run_id": run["run_id"],
            "commit": run["commit"],
            "code_digest": run["code_digest"],
            "cells": {"expected": len(run["expected"]), "by_status": run["by_status"]},
            "exit_code": outcome.exit_code,
        }
        if limited is not None:
            from harness.commands._budget import left_out

            answer["left_out"] = left_out(outcome.records)
        click.echo(json.dumps(answer, indent=2))
        return
    from harness.report.run import render_run

    click.echo(render_run(run, outcome.records))
