"""The plan of a run: a ref's code on disk, the cells a matrix asks of it, and the jobs that carry them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.authoring.workspace import Workspace
from harness.devices.table import load_devices
from harness.errors import Undecided
from harness.plan.describe import Description, describe
from harness.plan.git import Git
from harness.plan.jobs import JOB_SECONDS, Job, make_jobs
from harness.plan.matrix import Filters, expand, read_matrix
from harness.plan.refs import base_of, resolve
from harness.plan.trees import Tree, checkout, differences, listing
from harness.records import BASE, HEAD, Expected

LAUNCHES = 3
"""Launches of a cell that is measured by itself."""
PAIRED_LAUNCHES = 6
"""Launches a side of a cell that is measured in pairs: three ABBA blocks."""


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before the first job starts.

    Args:
        code: the workspace as it runs, written from `tree`.
        matrix: the name the user gave.
        files: path below `code` -> git blob id.
        base: the plan of the other arm, of a paired run.
    """

    tree: Tree
    code: Workspace
    matrix: str
    description: Description
    expected: tuple[Expected, ...]
    jobs: tuple[Job, ...]
    files: Mapping[str, str]
    base: Plan | None = None

    @property
    def arms(self) -> dict[str, Plan]:
        """The plan of each arm: `head`, and `base` where the run is paired."""
        return {HEAD: self} if self.base is None else {BASE: self.base, HEAD: self}

    def changed_files(self) -> list[str]:
        """Files of either arm's code that are no longer what was checked out; empty while nobody touched them."""
        return [name for plan in self.arms.values() for name in differences(plan.files, plan.code.root)]


def make_plan(
    workspace: Workspace, ref: str, matrix: str, filters: Filters, launches: int | None = None, against: str | None = None
) -> Plan:
    """Plan a run of `ref`.

    Args:
        workspace: the user's workspace; its git repository is asked for `ref`.
        launches: launches (a side, where paired) of a cell whose kind replicates; LAUNCHES or PAIRED_LAUNCHES by default.
        against: a ref whose merge base with `ref` is measured beside it, in pairs.

    Raises:
        HarnessError: whatever of ref, workspace, matrix and filters is wrong.
        Undecided: the filters leave no cell.
    """
    git = Git(workspace.root)
    tree = resolve(git, ref)
    return plan_tree(workspace, git, tree, matrix, filters, launches, base_of(git, against, tree) if against else None)


def plan_tree(
    workspace: Workspace, git: Git, tree: Tree, matrix: str, filters: Filters, launches: int | None = None, against: Tree | None = None
) -> Plan:
    """As `make_plan`, for trees that are resolved already.

    Raises:
        Undecided: the filters leave no cell.
    """
    code = checkout(git, tree, workspace)
    description = describe(code)
    expected = expand(read_matrix(matrix, code.jobs_dir), description, load_devices(), filters)
    if not expected:
        of = "" if matrix == "all" else f" --matrix {shlex.quote(matrix)}"
        raise Undecided(selection(matrix, filters), "no cell is left", f"widen the filters; `harness plan{of}` shows what a matrix holds")
    base = _plan_base(workspace, git, against, matrix, expected) if against else None
    plan = Plan(tree, code, matrix, description, tuple(expected), (), listing(git, tree), base)
    return with_jobs(plan, launches or (PAIRED_LAUNCHES if against else LAUNCHES))


def with_jobs(plan: Plan, launches: int, *, longest_s: float = JOB_SECONDS, tier: Callable[[Expected], int] | None = None) -> Plan:
    """The plan with its cells grouped into jobs; see `make_jobs`."""
    digest, base = plan.tree.code_digest, None
    if plan.base is not None:
        digest = f"{plan.base.tree.code_digest}..{digest}"
        base = {(e.kind, e.cell) for e in plan.base.expected}
    jobs = make_jobs(plan.expected, plan.description.kinds, digest, launches, base, longest_s=longest_s, tier=tier)
    return replace(plan, jobs=tuple(jobs))


def _plan_base(workspace: Workspace, git: Git, tree: Tree, matrix: str, asked: Sequence[Expected]) -> Plan:
    """The other arm's plan: what is asked of head, as far as base's code has it. Its jobs are head's."""
    code = checkout(git, tree, workspace)
    description = describe(code)
    limits = limits_of(description)
    keys = [(e.kind, e.cell.kernel, e.cell.variant, e.cell.case) for e in asked]
    expected = tuple(Expected(e.cell, e.kind, limits[key]) for e, key in zip(asked, keys, strict=True) if key in limits)
    return Plan(tree, code, matrix, description, expected, (), listing(git, tree))


def limits_of(description: Description) -> dict[tuple[str, str, str, str], float | None]:
    """Kind, kernel, variant and case -> error tolerance, of every cell that the code has."""
    return {(kind.name, c.kernel, c.variant, c.case): c.limit for kind in description.kinds for c in kind.cells}


def selection(matrix: str, filters: Filters) -> str:
    """A selection as the command line says it."""
    named = {
        "kernel": filters.kernels,
        "variant": filters.variants,
        "case": filters.cases,
        "device": filters.devices,
        "kind": filters.kinds,
    }
    options = [f"--{option} {shlex.quote(value)}" for option, values in named.items() for value in values]
    return " ".join([f"--matrix {shlex.quote(matrix)}", *options])
