"""Options that several verbs share."""

from __future__ import annotations

import click

format_text_json = click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
matrix = click.option(
    "--matrix", default="all", show_default=True, metavar="NAME|FILE", help="A matrix of jobs/matrix.toml, or a TOML file."
)
ref = click.option("--ref", default="worktree", show_default=True, help="Code to run: worktree, a branch, a tag, a commit, pr.")
kernel = click.option("--kernel", "kernels", multiple=True, metavar="GLOB", help="Only these kernels (may be repeated).")
variant = click.option("--variant", "variants", multiple=True, metavar="GLOB", help="Only these variants (may be repeated).")
case = click.option("--case", "cases", multiple=True, metavar="GLOB", help="Only these cases, as 'M=1,*' (may be repeated).")
device = click.option("--device", "devices", multiple=True, metavar="NAME|GROUP|all", help="Only these devices (may be repeated).")
kind = click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only these kinds of job (may be repeated).")
