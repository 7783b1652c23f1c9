"""`harness baseline`: accepts results of runs as baselines, and lists those there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harness.commands import _options
from harness.commands._group import Group

if TYPE_CHECKING:
    from harness.store.baselines import AcceptReport


@click.group(cls=Group)
def command() -> None:
    """Accept results as baselines, and list the accepted ones.

    \b
    Example:
      harness baseline accept run:last
      harness baseline list
    """


@command.command(epilog="\b\nExamples:\n  harness baseline accept run:last\n  harness baseline accept 20260131T235959-1f2e3d --kind static")
@click.argument("run")
@click.option("--device", "devices", multiple=True, metavar="NAME", help="Only these of its devices (may be repeated).")
@_options.kind
@_options.store
@_options.format_text_json
def accept(run: str, devices: tuple[str, ...], kinds: tuple[str, ...], store_uri: str | None, output: str) -> None:
    """Copy the results of RUN into baselines/, to be committed.

    RUN must have finished with exit code 0 on a clean commit. Medians of launches are copied, samples are not; nothing that
    is there is ever changed, and accepting again what was accepted does nothing.
    """
    from harness.authoring.workspace import find_workspace
    from harness.store.baselines import accept as accept_run

    workspace = find_workspace()
    store = _options.stored_runs(store_uri)
    report = accept_run(store, store.resolve(run), workspace.baselines_dir, devices=devices or None, kinds=kinds or None)
    if output == "json":
        import json
        from dataclasses import asdict

        click.echo(json.dumps({**asdict(report), "already": report.already}, indent=2))
        return
    _print_report(report)


@command.command("list", epilog="\b\nExample:\n  harness baseline list --format json")
@_options.format_text_json
def list_(output: str) -> None:
    """List the accepted baselines, newest run first."""
    from harness.authoring.workspace import find_workspace
    from harness.store.baselines import list_baselines

    folder = find_workspace().baselines_dir
    infos = list_baselines(folder)
    if output == "json":
        import json
        from dataclasses import asdict

        click.echo(json.dumps([asdict(info) for info in infos], indent=2))
        return
    if not infos:
        click.echo(f"no baselines in {folder}: accept a run that passed with `harness baseline accept run:last`")
        return
    from harness.commands._table import print_table

    rows = [
        (
            info.device,
            info.run_id,
            (info.started_at or "-")[:16].replace("T", " "),
            " ".join(commit[:12] for commit in info.commits),
            " ".join(digest[:12] for digest in info.code_digests),
            " ".join(info.kinds),
            str(info.cells),
            str(info.records),
            _kib(info.size_bytes),
        )
        for info in infos
    ]
    right = ("cells", "records", "KiB")
    print_table(("device", "run", "measured", "commit", "code digest", "kinds", *right), rows, right)


def _print_report(report: AcceptReport) -> None:
    if report.already:
        click.echo(f"run {report.run_id} was accepted before: nothing to do")
    for file in report.files:
        word = "accepted" if file.new else "there already"
        click.echo(f"{word}: {file.records} records of {file.device}, {_kib(file.size_bytes)} KiB in {file.path}")
    if report.left_out:
        click.echo("left out: " + ", ".join(f"{n} {why}" for why, n in report.left_out.items()))
    if not report.already:
        click.echo(f"commit the files to keep them: baselines of {report.commit[:12]}")


def _kib(size_bytes: int) -> str:
    return f"{size_bytes / 1024:.1f}"
