"""`harness show CELL... --ncu`: one call of each cell under ncu, beside what is recorded of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from harness.authoring.workspace import Workspace
    from harness.devices.table import Device
    from harness.devices.units import Unit
    from harness.dispatch.counters import Counts
    from harness.plan.describe import Description
    from harness.plan.trees import Tree
    from harness.records import Cell
    from harness.report.counted import CountedCell, Recorded
    from harness.store.runs import RunStore

KIND, TIME = "latency", "latency_us"


def show_counted(workspace: Workspace, store: RunStore, cells: Sequence[Cell], output: str) -> int:
    """Count one call of each cell, in one process under ncu, and print it.

    Returns:
        The exit code: 0, or 3 where a cell could not be counted.

    Raises:
        HarnessError: cells of several devices, or of one that ncu does not know.
        UnknownNameError: a device, kernel, variant or case that nobody declares.
        Undecided: no ncu, no such GPU, or ncu counted nothing at all.
    """
    from harness.devices.units import local_units
    from harness.dispatch.counters import TOOL, find_tool
    from harness.dispatch.one_unit import choose_unit
    from harness.errors import Undecided
    from harness.plan.describe import describe
    from harness.plan.git import Git
    from harness.plan.refs import resolve
    from harness.plan.trees import checkout

    device = _device_of(cells)
    asked = f"show by {TOOL} {cells[0]}" + (f" and {len(cells) - 1} more" if cells[1:] else "")
    tool = find_tool()
    if tool is None:
        raise Undecided(asked, f"{TOOL} is not on PATH", "install NVIDIA Nsight Compute, or add the folder of its ncu to PATH")
    unit = choose_unit(local_units(), [device.name], asked)
    git = Git(workspace.root)
    tree = resolve(git, "worktree")
    code = checkout(git, tree, workspace)
    what = describe(code)
    for cell in cells:
        _check(cell, what)
    counts = _count(tool, code.root, unit, workspace.cache_dir, cells, quiet=output == "json")
    found = [_counted(cell, what, counts, _recorded(store, workspace.baselines_dir, cell, tree.code_digest)) for cell in cells]
    exit_code = 3 if counts.failed else 0
    _print(found, device, unit, tree, output, exit_code)
    return exit_code


def _device_of(cells: Sequence[Cell]) -> Device:
    """The one device of the cells."""
    from harness.devices.table import Vendor, load_devices
    from harness.dispatch.counters import TOOL
    from harness.errors import HarnessError, UnknownNameError

    devices = load_devices()
    names = list(dict.fromkeys(cell.device for cell in cells))
    for name in names:
        if name not in devices:
            raise UnknownNameError.of("device", name, devices)
        if devices[name].vendor is not Vendor.NVIDIA:
            vendor = devices[name].vendor
            raise HarnessError(f"count by {TOOL} on {name}", f"a device of vendor {vendor}", f"{TOOL} counts on {Vendor.NVIDIA} alone")
    if len(names) > 1:
        raise HarnessError(f"count by {TOOL} cells of {' and '.join(names)}", f"{len(names)} devices", "ask for the cells of one at a time")
    return devices[names[0]]


def _check(cell: Cell, what: Description) -> None:
    """See that the worktree declares a cell."""
    from harness.errors import UnknownNameError

    kernels = {kernel.name: kernel for kernel in what.kernels}
    kernel = kernels.get(cell.kernel)
    if kernel is None:
        raise UnknownNameError.of("kernel", cell.kernel, kernels)
    if cell.variant not in kernel.variants:
        raise UnknownNameError.of(f"variant of {cell.kernel}", cell.variant, kernel.variants)
    cases = [case.case for case in kernel.cases]
    if cell.case not in cases:
        raise UnknownNameError.of(f"case of {cell.kernel}", cell.case, cases)
    covered = {c.case for kind in what.kinds for c in kind.cells if (c.kernel, c.variant) == (cell.kernel, cell.variant)}
    if cell.case not in covered:
        raise UnknownNameError.of(f"case of {cell.kernel}/{cell.variant}", cell.case, covered)


def _count(tool: str, root: Path, unit: Unit, cache_dir: Path, cells: Sequence[Cell], *, quiet: bool) -> Counts:
    import tempfile
    from pathlib import Path

    from harness.commands._progress import Progress
    from harness.dispatch.counters import TOOL, count
    from harness.measure.calibration.ncu import METRICS, MORE
    from harness.report.words import count as counted

    with Progress(quiet=quiet) as progress, tempfile.TemporaryDirectory(prefix="counters-", dir=cache_dir) as scratch:
        progress.say(f"counting one call of {counted(len(cells), 'cell')} by {TOOL} on {unit.device} ({unit.uuid})")
        return count(tool, root, unit, Path(scratch), cells, metrics=(*METRICS, *MORE))


def _counted(cell: Cell, what: Description, counts: Counts, recorded: Recorded | None) -> CountedCell:
    from harness.plan.calibration import traffic_of
    from harness.report.calibration_truth import Model
    from harness.report.counted import CountedCell

    traffic = traffic_of(what, cell)
    model = Model(traffic.total, traffic.written_bytes)
    (cycle,) = [kernel.cycle for kernel in what.kernels if kernel.name == cell.kernel]
    return CountedCell(cell, model, counts.cells.get(cell), counts.failed.get(cell), recorded, cycle)


def _recorded(store: RunStore, baselines_dir: Path, cell: Cell, code_digest: str) -> Recorded | None:
    """The newest time of a cell; None where no run or baseline ever measured it."""
    from harness.errors import UnknownNameError
    from harness.records import BASE, HEAD, Status
    from harness.report.counted import Recorded
    from harness.store.cells import lines, newest_records

    try:
        newest = newest_records(store, baselines_dir, cell)
    except UnknownNameError:
        return None
    timed = [one for one in newest if one.record.kind == KIND and not Status(one.record.status).resumable]
    arm = next((arm for arm in (HEAD, BASE) if any(one.record.arm == arm for one in timed)), None)
    if arm is None:
        return None
    timed = [one for one in timed if one.record.arm == arm]
    values = {line.metric: line.value for line in lines(timed) if line.status == Status.OK}
    told = min(timed, key=lambda one: (one.record.metric not in (None, TIME), one.record.status != Status.OK))
    record = told.record
    return Recorded(
        latency_us=values.get(TIME),
        gbps=values.get("gbps"),
        percent_of_peak=values.get("percent_of_peak"),
        status=record.status,
        reason=record.reason,
        source=told.source,
        run_id=record.run_id,
        commit=record.commit,
        dirty=record.dirty,
        same_code=record.code_digest == code_digest,
    )


def _print(cells: Sequence[CountedCell], device: Device, unit: Unit, tree: Tree, output: str, exit_code: int) -> None:
    from harness.report.counted import Memory, counted_json, counted_sections, without_counts

    memory = Memory(device.last_level_cache_bytes, device.peak_gbps)
    if output == "json":
        import json

        answer = {
            **{name: getattr(tree, name) for name in ("commit", "dirty", "code_digest")},
            "device": unit.device,
            "unit": unit.uuid,
            "model": unit.model,
            "peak_gbps": memory.peak_gbps,
            "cache_bytes": memory.cache_bytes,
            "cells": [counted_json(one, memory) for one in cells],
            "exit_code": exit_code,
        }
        click.echo(json.dumps(answer, indent=2))
        return
    from harness.commands._table import print_section

    click.echo(f"counted on {device.name} ({unit.model}), {unit.uuid}, code {tree.resolved}")
    for section in counted_sections(cells, memory):
        print_section(section)
    if bad := without_counts(cells):
        click.echo(f"\nNot counted ({len(bad)})")
        for line in bad:
            click.echo(f"  {line}")
