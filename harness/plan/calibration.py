"""The plan of a calibration: which cells of the workspace are timed to see how equal code spreads, or to check cost models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from harness.authoring.model import Traffic
from harness.authoring.workspace import Workspace
from harness.devices.table import Device, load_devices
from harness.plan.describe import CaseInfo, Description, KernelInfo
from harness.plan.describe import describe as describe_workspace
from harness.plan.git import Git
from harness.plan.jobs import make_jobs
from harness.plan.plan import Plan
from harness.plan.refs import resolve
from harness.plan.trees import checkout, listing
from harness.records import Cell, Expected

KIND = "latency"
MATRIX = "calibration"
"""What run.json says of its matrix: the workspace's own is not asked."""
TAGS = ("headline", "smoke")
"""Whose cases are timed: those of the first tag that any kernel has."""
EDGES_US = (0.02, 1.0, 5.0, 20.0, 100.0)
"""Borders between classes of cells, by the time that their compulsory bytes take at the published peak."""
MOST_CACHES = 50
"""Most bytes of a call, in last-level caches: a larger one shows nothing more and takes long to prove, and to profile."""

Choose = Callable[[Description, Device], list[Cell]]


def plan_calibration(workspace: Workspace, device: str, choose: Choose, launches: int) -> Plan:
    """Plan the timed cells of the worktree.

    Args:
        choose: which cells; there may be none.
        launches: fresh processes that measure each cell.

    Raises:
        HarnessError: whatever is wrong with the workspace.
    """
    git = Git(workspace.root)
    tree = resolve(git, "worktree")
    code = checkout(git, tree, workspace)
    what = describe_workspace(code)
    expected = tuple(Expected(cell, KIND) for cell in choose(what, load_devices()[device]))
    jobs = make_jobs(expected, what.kinds, tree.code_digest, launches)
    return Plan(tree, code, MATRIX, what, expected, tuple(jobs), listing(git, tree))


def one_of_each_class(what: Description, device: Device) -> list[Cell]:
    """A cell of each class of time, and the one with the most arithmetic a byte; of different kernels as far as there are.

    Of a class it is the one with the fewest bytes, so that a calibration stays short.
    """
    fitting = (pair for pair in _default_cases(what, _first_tag(what)) if _fits(pair[1], device))
    cases = sorted(fitting, key=lambda pair: _bytes(pair[1]))
    chosen: dict[tuple[str, str], KernelInfo] = {}

    def take(found: Sequence[tuple[KernelInfo, CaseInfo]]) -> None:
        used = {kernel for kernel, _ in chosen}
        fresh = [pair for pair in found if pair[0].name not in used] or found
        if fresh:
            kernel, case = fresh[0]
            chosen.setdefault((kernel.name, case.case), kernel)

    def floor_us(case: CaseInfo) -> float:
        return _bytes(case) / (device.peak_gbps * 1e3)

    for low, high in zip((0.0, *EDGES_US), (*EDGES_US, float("inf")), strict=True):
        take([pair for pair in cases if low <= floor_us(pair[1]) < high])
    short = (pair for pair in cases if floor_us(pair[1]) < EDGES_US[-1])
    take(sorted(short, key=lambda pair: -pair[1].flops / _bytes(pair[1])))
    return [Cell(name, kernel.default, case, device.name) for (name, case), kernel in chosen.items()]


def largest_of_each_kernel(what: Description, device: Device) -> list[Cell]:
    """The default variant's case with the most compulsory bytes that fits, of every kernel."""
    largest: dict[str, tuple[KernelInfo, CaseInfo]] = {}
    for kernel, case in _default_cases(what, None):
        if _fits(case, device) and (kernel.name not in largest or _bytes(case) > _bytes(largest[kernel.name][1])):
            largest[kernel.name] = (kernel, case)
    return [Cell(name, kernel.default, case.case, device.name) for name, (kernel, case) in largest.items()]


def no_cell(_what: Description, _device: Device) -> list[Cell]:
    """No cell at all: the unit's own parts are all that is measured."""
    return []


def traffic_of(what: Description, cell: Cell) -> Traffic:
    """What one call of a cell must move.

    Raises:
        KeyError: the description has no such case.
    """
    for kernel in what.kernels:
        for case in kernel.cases:
            if (kernel.name, case.case) == (cell.kernel, cell.case):
                return case.traffic_of(cell.variant)
    raise KeyError(str(cell))


def _first_tag(what: Description) -> str | None:
    return next((tag for tag in TAGS if any(tag in tags for tags in what.tags.values())), None)


def _default_cases(what: Description, tag: str | None) -> Iterator[tuple[KernelInfo, CaseInfo]]:
    """The cases, of that tag if one is given, that are timed in their kernel's default variant."""
    timed = {(c.kernel, c.variant, c.case) for kind in what.kinds if kind.name == KIND for c in kind.cells}
    for kernel in what.kernels:
        for case in kernel.cases:
            if (kernel.name, kernel.default, case.case) in timed and (tag is None or tag in case.tags):
                yield kernel, case


def _bytes(case: CaseInfo) -> int:
    return max(1, case.read_bytes + case.written_bytes)


def _fits(case: CaseInfo, device: Device) -> bool:
    return _bytes(case) <= MOST_CACHES * device.last_level_cache_bytes
