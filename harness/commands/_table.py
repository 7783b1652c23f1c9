"""A table for people: drawn by rich on a terminal, plain lines that nothing cuts elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.report.calibration import Section


def commit_cell(commit: str | None, dirty: bool) -> str:
    """A commit's first 12 characters, marked where the tree had other changes."""
    return (commit or "no commit")[:12] + (" (dirty)" if dirty else "")


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> None:
    """Print rows under headers.

    Args:
        headers: one a column.
        rows: as many strings as there are headers; brackets in them mean nothing special.
        right: headers of columns to align on the right.
    """
    import io
    import sys

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, justify="right" if header in right else "left", no_wrap=not terminal, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    if terminal:
        Console().print(table)
        return
    stream = io.StringIO()
    console = Console(file=stream, width=10_000, color_system=None)
    console.print(table)
    for line in stream.getvalue().splitlines():
        click.echo(line.rstrip())


def print_section(section: Section) -> None:
    """Print a table under its title, and what is said below it."""
    click.echo(f"\n{section.title}")
    if section.rows:
        print_table(section.headers, section.rows, right=section.right)
    for note in section.notes:
        click.echo(note)
