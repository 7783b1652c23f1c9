"""Options that several verbs share."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.store.runs import RunStore

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
store = click.option("--store", "store_uri", metavar="URI", help="Read runs from here rather than from .harness/runs.")


def store_option(uri: str | None) -> str:
    """` --store URI`, for the commands that are named to someone who gave it; else nothing."""
    return "" if uri is None else f" --store {shlex.quote(uri)}"


def stored_runs(uri: str | None) -> RunStore:
    """The runs that `--store` names, to be read; without it those of the workspace, of which there may be none yet.

    Raises:
        StoreError: `--store` names no folder.
        WorkspaceError: there is neither `--store` nor a workspace.
    """
    from harness.authoring.workspace import find_workspace
    from harness.errors import StoreError
    from harness.store.runs import RunStore

    if uri is None:
        return RunStore(find_workspace().runs_dir)
    found = RunStore(uri, store_option(uri))
    if not found.folder.exists:
        do = f"name the folder that a run was stored in by `harness submit{found.option}`, or leave --store out"
        raise StoreError(f"the runs in {uri}", "no such folder", do)
    return found
