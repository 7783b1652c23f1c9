"""`harness diff`: what a change did."""

from __future__ import annotations

from typing import Any

import click

from harness.commands import _judged


@click.command(
    epilog="\b\nExamples:\n  harness diff main..pr\n  harness diff HEAD..run:last\n  harness diff v1.2..v1.3 --exact --format markdown"
)
@click.argument("range_", metavar="A..B")
@_judged.options
@click.option("--format", "output", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
def command(range_: str, output: str, **judging: Any) -> int:
    """Say what B did against the merge base of A and B, from stored results; no GPU is used.

    A and B are git refs, worktree, pr, run:ID, run:last, or a path to Parquet. Results are looked up by the code they
    measured. Exit code: 0 nothing got worse, 1 something did, 3 undecided.
    """
    document = _judged.judge_range(range_, _judged.Judging(**judging))
    click.echo(_render(document, output))
    return int(document["exit_code"])


def _render(document: dict[str, Any], output: str) -> str:
    if output == "json":
        import json

        return json.dumps(document, indent=2)
    if output == "markdown":
        from harness.report.markdown import render_markdown

        return render_markdown(document)
    from harness.report.text import render_text

    return render_text(document)
