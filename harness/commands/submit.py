"""`harness submit`: runs a matrix, the main job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harness.commands import _dispatchers, _options

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from harness.authoring.workspace import Workspace
    from harness.commands._budget import Budgeted
    from harness.dispatch.journal import Journal
    from harness.dispatch.protocol import Dispatcher
    from harness.dispatch.run import Outcome
    from harness.plan.matrix import Filters
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
@click.option("--resume", metavar="RUN", help="Go on with a run as it was planned: an id, or `last`. See below.")
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

    --resume RUN measures what is left of a run, and once more, in all their launches, the timed cells that the machine spoilt and
    not the code: contended, throttled, a host that stood still in some launches, a time that did not converge.

    Ends with exit code 0 (all that could be measured passed), 1 (something is wrong), 3 (undecided) or 130 (stopped).
    """
    from contextlib import nullcontext
    from dataclasses import asdict
    from datetime import UTC, datetime

    from harness.authoring.workspace import find_workspace
    from harness.devices.table import load_devices, resolve_devices
    from harness.dispatch.run import describe_run, new_run_id
    from harness.plan.budget import parse_duration
    from harness.plan.matrix import Filters
    from harness.plan.plan import LAUNCHES, PAIRED_LAUNCHES, make_plan
    from harness.store.runs import RunStore

    if resume:
        _refuse_a_plan_beside(resume)
    seconds = None if budget is None else parse_duration(budget)
    carrier = _dispatchers.make_dispatcher(dispatcher, address, slots, max_queue)
    workspace = find_workspace()
    required = resolve_devices(require, load_devices()) if require else []
    store = RunStore(store_uri or workspace.runs_dir, _options.store_option(store_uri))
    before = store.read_run(store.resolve(resume)) if resume else None
    now = datetime.now(UTC)
    run_id = before["run_id"] if before else new_run_id(now)
    folder = workspace.runs_dir / run_id
    filters = Filters(kernels, devices, kinds, variants, cases)
    limited = None
    with nullcontext() if dry_run else _prepared(carrier, folder, filters, before) as journal:
        if before:
            plan, run = _resumed(workspace, before), before
            required = required or run["options"]["require"]
        else:
            launches = launches or (PAIRED_LAUNCHES if against else LAUNCHES)
            plan = make_plan(workspace, ref, matrix, filters, launches, against)
            asked = {"filters": asdict(filters), "require": required, "launches": launches}
            run = describe_run(plan, run_id, now, {**asked, "dispatcher": dispatcher, "address": address})
        if seconds is not None:
            from harness.commands._budget import budgeted

            limited = budgeted(plan, seconds, run["options"]["launches"], workspace, store)
            plan = limited.plan
    run = {**run, "options": {**run["options"], "budget_s": seconds}}
    if dry_run:
        _show(plan, limited, carrier, output, folder)
        return 0
    outcome = _execute(plan, run, workspace, store, carrier, required, output, limited, journal)
    _report(outcome, output, limited, store_uri)
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


def _prepared(
    dispatcher: Dispatcher, folder: Path, filters: Filters, before: dict[str, Any] | None
) -> AbstractContextManager[Journal | None]:
    """See `prepared`: for what the filters leave or, of a run that is resumed, for what is left of it.

    Raises:
        UnknownNameError: a device that is none.
        HarnessError: a line of the journal cannot be read, or another process writes the run.
    """
    from harness.devices.table import load_devices, resolve_devices
    from harness.dispatch.run import prepared

    if before is not None:
        return prepared(dispatcher, folder, *_left(before, folder))
    devices = resolve_devices(filters.devices, load_devices()) if filters.devices else None
    return prepared(dispatcher, folder, devices, filters.kinds or None)


def _left(run: dict[str, Any], folder: Path) -> tuple[set[str], set[str]]:
    """Devices and kinds of the cells of a run that are left by the journal in `folder`: it says nothing of them yet, or they are
    measured again.

    Raises:
        HarnessError: a line of the journal cannot be read.
    """
    from harness.dispatch.again import remaining
    from harness.dispatch.journal import JOURNAL, read_entries
    from harness.records import Cell

    _, entries = read_entries(folder / JOURNAL)
    known = {(kind, str(cell)) for kind, cell, _, _ in remaining([], entries)[0].done}
    left = [(e["kind"], e["cell"]) for e in run["expected"] if (e["kind"], e["cell"]) not in known]
    return {Cell.parse(cell).device for _, cell in left}, {kind for kind, _ in left}


def _resumed(workspace: Workspace, run: dict[str, Any]) -> Plan:
    from harness.dispatch.run import check_resumable
    from harness.plan.git import Git
    from harness.plan.matrix import Filters
    from harness.plan.plan import plan_tree
    from harness.plan.trees import tree_of_record

    git = Git(workspace.root)
    filters = {key: tuple(value) for key, value in run["options"]["filters"].items()}
    against = tree_of_record(git, run["against"]) if run["against"] else None
    plan = plan_tree(workspace, git, tree_of_record(git, run), run["matrix"], Filters(**filters), run["options"]["launches"], against)
    check_resumable(run, plan, workspace.runs_dir / run["run_id"])
    return plan


def _execute(
    plan: Plan,
    run: dict[str, Any],
    workspace: Workspace,
    store: RunStore,
    dispatcher: Dispatcher,
    required: list[str],
    output: str,
    limited: Budgeted | None,
    journal: Journal | None,
) -> Outcome:
    from harness.commands._progress import Progress
    from harness.dispatch.run import execute
    from harness.plan.budget import duration_text
    from harness.report.words import count

    folder, seconds = workspace.runs_dir / run["run_id"], limited.seconds if limited else None

    with Progress(quiet=output == "json", cells=len(plan.expected), jobs=plan.jobs) as progress:
        against = f" against {plan.base.tree.resolved}" if plan.base else ""
        size = f"{count(len(plan.expected), 'cell')} in {count(len(plan.jobs), 'job')}"
        progress.say(f"run {run['run_id']}: {plan.tree.resolved}{against}, matrix {plan.matrix}, {size}")
        if limited is not None:
            progress.say(f"budget {duration_text(limited.seconds)}: {limited.note}")
        outcome = execute(
            plan, dispatcher, store, run, folder, require=required, observe=progress.observe, budget_s=seconds, journal=journal
        )
        if dispatcher.dropped:
            progress.say(f"{dispatcher.dropped} messages of attempts that were given up, or no messages at all, were not taken")
        return outcome


def _report(outcome: Outcome, output: str, limited: Budgeted | None, store_uri: str | None) -> None:
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

    click.echo(render_run(run, outcome.records, store_uri))
