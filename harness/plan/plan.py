"""The plan of a run: a ref's code on disk, the cells a matrix asks of it, and the jobs that carry them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.authoring.workspace import Workspace
from harness.devices.table import load_devices
from harness.errors import Undecided
from harness.plan.describe import Description, describe
from harness.plan.git import Git
from harness.plan.jobs import Job, make_jobs
from harness.plan.matrix import Filters, expand, read_matrix
from harness.plan.refs import resolve
from harness.plan.trees import Tree, checkout, differences, listing
from harness.records import Expected

LAUNCHES = 3
"""Launches of a cell that is measured by itself."""


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before the first job starts.

    Args:
        code: the workspace as it runs, written from `tree`.
        matrix: the name the user gave.
        files: path below `code` -> git blob id.
    """

    tree: Tree
    code: Workspace
    matrix: str
    description: Description
    expected: tuple[Expected, ...]
    jobs: tuple[Job, ...]
    files: Mapping[str, str]

    def changed_files(self) -> list[str]:
        """Files of `code` that are no longer what was checked out; empty while nobody touched them."""
        return differences(self.files, self.code.root)


def make_plan(workspace: Workspace, ref: str, matrix: str, filters: Filters, launches: int = LAUNCHES) -> Plan:
    """Plan a run of `ref`.

    Args:
        workspace: the user's workspace; its git repository is asked for `ref`.
        launches: launches of a cell whose kind replicates.

    Raises:
        HarnessError: whatever of ref, workspace, matrix and filters is wrong.
        Undecided: the filters leave no cell.
    """
    git = Git(workspace.root)
    tree = resolve(git, ref)
    return plan_tree(workspace, git, tree, matrix, filters, launches)


def plan_tree(workspace: Workspace, git: Git, tree: Tree, matrix: str, filters: Filters, launches: int = LAUNCHES) -> Plan:
    """As `make_plan`, for a tree that is resolved already."""
    code = checkout(git, tree, workspace)
    description = describe(code)
    expected = expand(read_matrix(matrix, code.jobs_dir), description, load_devices(), filters)
    if not expected:
        raise Undecided(_shown(matrix, filters), "no cell is left", "widen the filters; `harness plan` shows what a matrix holds")
    jobs = make_jobs(expected, description.kinds, tree.code_digest, launches)
    return Plan(tree, code, matrix, description, tuple(expected), tuple(jobs), listing(git, tree))


def _shown(matrix: str, filters: Filters) -> str:
    """A selection as the command line says it."""
    named = {"kernel": filters.kernels, "device": filters.devices, "kind": filters.kinds}
    options = [f"--{option} {value}" for option, values in named.items() for value in values]
    return " ".join([f"--matrix {matrix}", *options])
