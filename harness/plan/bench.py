"""The plan of a bench: the timed cells of one kernel on one device, by what they are rather than by a matrix."""

from __future__ import annotations

from collections.abc import Sequence

from harness.authoring.workspace import Workspace
from harness.devices.table import load_devices
from harness.errors import Undecided, UnknownNameError
from harness.plan.describe import Description, KernelInfo, describe
from harness.plan.git import Git
from harness.plan.jobs import make_jobs
from harness.plan.matrix import ROLES, Entry, Filters, expand
from harness.plan.plan import Plan
from harness.plan.refs import resolve
from harness.plan.trees import checkout, listing

KIND = "latency"
"""The one kind of a bench: it proves every cell right before it times it."""
TAGS = ("headline", "smoke")
"""Whose cases are timed where none is named: those of the first tag that the kernel has any of."""
MATRIX = "bench"
"""What run.json says of its matrix: the workspace's own may hold no latency at all."""


def plan_bench(workspace: Workspace, kernel: str, device: str, variants: Sequence[str], cases: Sequence[str], launches: int) -> Plan:
    """Plan a bench of the worktree.

    Args:
        kernel: a kernel's name, no glob.
        device: whose unit is in hand.
        variants: globs; the default and the baseline variant where there is none.
        cases: globs; the cases of the first of TAGS that the kernel has where there is none.
        launches: fresh processes that measure each cell.

    Raises:
        UnknownNameError: no such kernel, or a glob that matches nothing.
        HarnessError: whatever is wrong with the workspace.
        Undecided: no cell is left.
    """
    git = Git(workspace.root)
    tree = resolve(git, "worktree")
    code = checkout(git, tree, workspace)
    what = describe(code)
    entry = Entry(
        KIND,
        (device,),
        tags=frozenset() if cases else frozenset({_tag_of(_kernel(what, kernel))}),
        variants=frozenset() if variants else frozenset(ROLES),
    )
    filters = Filters(kernels=(kernel,), variants=tuple(variants), cases=tuple(cases))
    expected = expand([entry], what, load_devices(), filters)
    if not expected:
        asked = " ".join([f"bench {kernel}", *(f"--variant {v}" for v in variants), *(f"--case {c}" for c in cases)])
        raise Undecided(asked, "no cell is left", f"widen the globs; `harness kernels show {kernel}` lists variants and cases")
    jobs = make_jobs(expected, what.kinds, tree.code_digest, launches)
    return Plan(tree, code, MATRIX, what, tuple(expected), tuple(jobs), listing(git, tree))


def check_kernel(workspace: Workspace, kernel: str) -> None:
    """Look a kernel up, where there will be no plan.

    Raises:
        UnknownNameError: no such kernel.
        HarnessError: whatever is wrong with the workspace.
    """
    _kernel(describe(workspace), kernel)


def _kernel(what: Description, name: str) -> KernelInfo:
    known = {kernel.name: kernel for kernel in what.kernels}
    if name not in known:
        raise UnknownNameError.of("kernel", name, known)
    return known[name]


def _tag_of(kernel: KernelInfo) -> str:
    """The first of TAGS that a case has; every kernel has a case of the last."""
    return next(tag for tag in TAGS if any(tag in case.tags for case in kernel.cases))
