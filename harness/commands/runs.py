"""`harness runs`: the runs that are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harness.commands import _options

if TYPE_CHECKING:
    from harness.store.runs import RunInfo


@click.command(epilog="\b\nExamples:\n  harness runs\n  harness runs --limit 5 --format json")
@_options.store
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the newest N runs.")
@_options.format_text_json
def command(store_uri: str | None, limit: int | None, output: str) -> None:
    """List the stored runs, newest first.

    Any of them may be named as run:ID, by the beginning of its id, or as run:last. What cannot be read is named on stderr.
    """
    store = _options.stored_runs(store_uri)
    infos, unreadable = store.scan()
    for error in unreadable.values():
        click.echo(f"unreadable: {error.asked}: {error.found}; {error.do}", err=True)
    shown = infos[:limit]
    if output == "json":
        import json
        from dataclasses import asdict

        click.echo(json.dumps([asdict(info) for info in shown], indent=2))
        return
    if not infos:
        click.echo(f"no {'other ' if unreadable else ''}runs in {store.folder}: make one with `harness submit{store.option}`")
        return
    from harness.commands._table import print_table

    print_table(("run", "started", "commit", "matrix", "devices", "cells", "result"), map(_row, shown))
    if len(shown) < len(infos):
        click.echo(f"and {len(infos) - len(shown)} older runs")


def _row(info: RunInfo) -> tuple[str, ...]:
    from harness.commands._table import commit_cell
    from harness.report.words import CONCLUSIONS

    cells = ", ".join(f"{n} {status}" for status, n in info.by_status.items())
    result = "unfinished" if info.exit_code is None else f"{CONCLUSIONS[info.exit_code]} (exit {info.exit_code})"
    when = info.started_at[:16].replace("T", " ")
    return info.run_id, when, commit_cell(info.commit, info.dirty), info.matrix or "-", " ".join(info.devices) or "-", cells or "-", result
