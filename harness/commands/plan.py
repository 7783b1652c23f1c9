"""`harness plan`: what a matrix holds, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harness.commands import _options

if TYPE_CHECKING:
    from harness.plan.jobs import Job
    from harness.plan.plan import Plan


@click.command(epilog="\b\nExample:\n  harness plan --matrix smoke --kind static --format json")
@_options.matrix
@_options.ref
@_options.kernel
@_options.variant
@_options.case
@_options.device
@_options.kind
@_options.format_text_json
def command(
    matrix: str,
    ref: str,
    kernels: tuple[str, ...],
    variants: tuple[str, ...],
    cases: tuple[str, ...],
    devices: tuple[str, ...],
    kinds: tuple[str, ...],
    output: str,
) -> None:
    """Show the cells and jobs that `harness submit` would run."""
    from harness.authoring.workspace import find_workspace
    from harness.plan.matrix import Filters
    from harness.plan.plan import make_plan

    show_plan(make_plan(find_workspace(), ref, matrix, Filters(kernels, devices, kinds, variants, cases)), output)


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """A plan as plain data, its jobs in the order in which they start; `expected_s` are those of its jobs one after another."""
    return {
        "ref": plan.tree.ref,
        "commit": plan.tree.commit,
        "dirty": plan.tree.dirty,
        "code_digest": plan.tree.code_digest,
        "matrix": plan.matrix,
        "cells": [{"cell": str(e.cell), "kind": e.kind} for e in plan.expected],
        "expected_s": sum(job.expected_s for job in plan.jobs),
        "jobs": list(map(_job, plan.jobs)),
    }


def _job(job: Job) -> dict[str, Any]:
    named = {name: getattr(job, name) for name in ("job_id", "kind", "kernel", "device")}
    return {**named, "cells": len(job.cells), "launches": len(job.turns), "expected_s": job.expected_s}


def show_plan(plan: Plan, output: str) -> None:
    """Print a plan, as text (a line a job) or JSON (every cell)."""
    if output == "json":
        import json

        click.echo(json.dumps(plan_to_json(plan), indent=2))
        return
    from harness.commands._table import print_table
    from harness.report.words import count

    click.echo(f"{plan.tree.resolved}, matrix {plan.matrix}")
    jobs = sorted(plan.jobs, key=lambda j: (j.kind, j.kernel, j.device))
    rows = [[j.kind, j.kernel, j.device, str(len(j.cells)), str(len(j.turns)), f"{j.expected_s:.0f}"] for j in jobs]
    print_table(("kind", "kernel", "device", "cells", "launches", "expected s"), rows, right=("cells", "launches", "expected s"))
    seconds = f", {sum(job.expected_s for job in jobs):.0f} s expected one after another" if jobs else ""
    click.echo(f"{count(len(plan.expected), 'cell')} in {count(len(plan.jobs), 'job')}{seconds}")
