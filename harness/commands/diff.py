"""`harness diff`: what a change did."""

from __future__ import annotations

from typing import Any

import click


@click.command(
    epilog="\b\nExamples:\n  harness diff main..pr\n  harness diff HEAD..run:last\n  harness diff v1.2..v1.3 --exact --format markdown"
)
@click.argument("range_", metavar="A..B")
@click.option("--exact", is_flag=True, help="Compare with A itself, not with the merge base of A and B.")
@click.option("--metric", "metrics", multiple=True, metavar="METRIC", help="Judge only these metrics (may be repeated).")
@click.option("--fail-on", multiple=True, metavar="VERDICT", help="Verdicts that exit 1 (default: BROKEN, DRIFTED, REGRESSED).")
@click.option("--require", multiple=True, metavar="DEVICE|GROUP|all", help="Devices on which nothing may be missing.")
@click.option("--matrix", metavar="NAME|FILE", help="Compare what this matrix holds alone, though base has more (default: all).")
@click.option("--no-compile", is_flag=True, help="Compile no static rows that a side lacks.")
@click.option("--store", "store_uri", metavar="URI", help="Read runs from here rather than from .harness/runs.")
@click.option("--format", "output", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
def command(
    range_: str,
    exact: bool,
    metrics: tuple[str, ...],
    fail_on: tuple[str, ...],
    require: tuple[str, ...],
    matrix: str | None,
    no_compile: bool,
    store_uri: str | None,
    output: str,
) -> int:
    """Say what B did against the merge base of A and B, from stored results; no GPU is used.

    A and B are git refs, worktree, pr, run:ID, run:last, or a path to Parquet. Results are looked up by the code they
    measured. Exit code: 0 nothing got worse, 1 something did, 3 undecided.
    """
    from dataclasses import replace

    from harness.authoring.workspace import find_workspace
    from harness.commands._sides import Assembler
    from harness.devices.table import load_devices, resolve_devices
    from harness.errors import UnknownNameError
    from harness.judge.diff import judge
    from harness.judge.model import INTERPRETER, Policy, Verdict
    from harness.report.json import to_json
    from harness.store.runs import RunStore

    verdicts = []
    for name in fail_on:
        if name.upper() not in Verdict.__members__:
            raise UnknownNameError.of("verdict", name, Verdict.__members__)
        verdicts.append(Verdict[name.upper()])
    devices = resolve_devices(require, load_devices()) if require else ()
    policy = Policy(require=frozenset(devices), metrics=frozenset(metrics))
    if verdicts:
        policy = Policy(frozenset(verdicts), policy.require, policy.metrics)
    workspace = find_workspace()
    store = RunStore(store_uri or workspace.runs_dir)
    assembler = Assembler(workspace, store, lambda line: click.echo(line, err=True), compile_missing=not no_compile)
    sides = assembler.sides(range_, exact=exact, matrix=matrix)
    if not sides.head_was_run:  # the interpreter is always at hand: what it was not asked is no pass
        policy = replace(policy, require=policy.require | {INTERPRETER})
    diff = judge(sides.base, sides.head, policy)
    click.echo(_render(to_json(diff, sides.notes), output))
    return diff.exit_code


def _render(document: dict[str, Any], output: str) -> str:
    if output == "json":
        import json

        return json.dumps(document, indent=2)
    if output == "markdown":
        from harness.report.markdown import render_markdown

        return render_markdown(document)
    from harness.report.text import render_text

    return render_text(document)
