"""`harness calibrate`: what the GPU of this machine is like, and with `--truth` how right the times are that it gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from harness.commands import _options

if TYPE_CHECKING:
    from pathlib import Path

    from harness.devices.units import Unit
    from harness.dispatch.calibration import Contexts
    from harness.dispatch.protocol import Dispatcher
    from harness.plan.plan import Plan
    from harness.records import Record
    from harness.report.calibration_truth import Truth

KEPT = 20
"""Calibrations that are kept; older ones are removed when another has ended."""
LAUNCHES = 6
"""Launches of each cell of the A/A table: the deviation between six is known to about a third."""
COUNTED_SPIN_US, COUNTED_COPY_CACHES = (20, 200), (4, 16)
"""Spins and copies of known cost that a profiler looks at too: of those that are timed."""


@click.command(epilog="\b\nExamples:\n  harness calibrate\n  harness calibrate --truth --out calibration")
@click.option("--truth", is_flag=True, help="How right: time kernels of known cost, inject slow-downs, check cost models.")
@click.option("--device", metavar="NAME|GROUP", help="Where several GPUs are here: the first of this device (default: the first).")
@click.option("--launches", type=click.IntRange(2), default=LAUNCHES, show_default=True, help="Launches of each cell of the A/A table.")
@click.option("--out", "out", metavar="DIR", help="Write calibration.svg and calibration.json here too.")
@_options.format_text_json
def command(truth: bool, device: str | None, launches: int, out: str | None, output: str) -> int:
    """Calibrate the GPU of this machine, in a few minutes; nothing of it is set or changed.

    Measured are the tick of the event clock, floors of every launch mode, what graphs cost, bandwidth by size, from which
    ring on data is cold, and how equal code spreads within and between launches. With --truth: kernels that spin for a known
    time, slow-downs of 0.5 to 5 % injected and read back, copies of known size; and, where ncu is on PATH, device time and
    memory traffic by it of the largest case of every kernel. Figures are kept in .harness/calibration.

    Ends with exit code 0, 1 (--truth: something is beyond its limit), 3 (something has no figure, or no GPU) or 130 (stopped).
    """
    from pathlib import Path

    from harness.authoring.workspace import find_workspace
    from harness.devices.table import load_devices, resolve_devices
    from harness.devices.units import local_units
    from harness.dispatch.counters import find_tool
    from harness.dispatch.one_unit import choose_unit
    from harness.dispatch.run import check_writable
    from harness.plan.calibration import largest_of_each_kernel, no_cell, one_of_each_class, plan_calibration

    workspace = find_workspace()
    wanted = resolve_devices([device], load_devices()) if device else None
    unit = choose_unit(local_units(), wanted, f"calibrate {f'a unit of {device}' if device else 'the GPU of this machine'}")
    assert unit.device is not None
    tool = find_tool() if truth else None
    choose = largest_of_each_kernel if tool else no_cell if truth else one_of_each_class
    plan = plan_calibration(workspace, unit.device, choose, 1 if truth else launches)
    place = workspace.state_dir / "calibration"
    check_writable(place)
    run, records, known = _measure(plan, unit, place, truth, launches, tool, quiet=output == "json")
    return _report(plan, unit, run, records, known, Path(out) if out else place / run["run_id"], place, output)


def _measure(
    plan: Plan, unit: Unit, place: Path, truth: bool, launches: int, tool: str | None, *, quiet: bool
) -> tuple[dict[str, Any], list[Record], Truth | None]:
    """Everything that takes the GPU: run.json of what was done, all records, and with `truth` what they are held against."""
    from datetime import UTC, datetime

    from harness.commands._progress import Progress
    from harness.dispatch.calibration import carry, contexts, numbered, parts_job, spreads
    from harness.dispatch.one_unit import OneUnitDispatcher
    from harness.dispatch.run import describe_run, new_run_id
    from harness.measure.calibration.parts import TRUTH_PARTS, UNIT_PARTS

    now = datetime.now(UTC)
    run = describe_run(plan, new_run_id(now), now, {"filters": {}, "require": [], "launches": 1 if truth else launches})
    job = parts_job(TRUTH_PARTS if truth else UNIT_PARTS, str(unit.device))
    where = contexts(plan, run["run_id"], place / run["run_id"] / "scratch")
    where.parts.scratch.mkdir(parents=True, exist_ok=True)
    dispatcher: Dispatcher = OneUnitDispatcher(unit)
    known = None
    with Progress(quiet=quiet, cells=len(job.cells) + len(plan.expected)) as progress:
        seconds = sum(each.expected_s for each in (job, *plan.jobs))
        progress.say(f"calibrating {unit.device} ({unit.uuid}): {len(job.cells)} parts, {len(plan.expected)} cells, about {seconds:.0f} s")
        try:
            records = carry(dispatcher, where.parts, [job], progress.observe)
            records += carry(dispatcher, where.cells, plan.jobs, progress.observe)
            if truth:
                progress.say("counting by ncu" if tool else "ncu is not on PATH: nothing is counted")
                known, counted = _count(plan, unit, where, records, tool)
                records += counted
            else:
                records += spreads(where.cells, records)
        finally:
            dispatcher.cancel()
            dispatcher.close()
    return run, numbered(records), known


def _count(plan: Plan, unit: Unit, where: Contexts, records: Sequence[Record], tool: str | None) -> tuple[Truth, list[Record]]:
    """Let ncu look at kernels of known cost and at the plan's cells."""
    from harness.devices.table import load_devices
    from harness.dispatch.calibration import counted_records
    from harness.dispatch.counters import TOOL, Counts, count
    from harness.dispatch.stamp import Place
    from harness.errors import Undecided
    from harness.measure.calibration.parts import Part, cell_of
    from harness.plan.calibration import traffic_of
    from harness.report.calibration_truth import Model, Truth

    row = load_devices()[str(unit.device)]
    timed = [r for r in records if r.environment]
    place = Place(unit.uuid, timed[0].node, 1, timed[0].lease_id, timed[0].environment) if timed else Place(unit.uuid)
    cells = [one.cell for one in plan.expected]
    models = {}
    for cell in cells:
        traffic = traffic_of(plan.description, cell)
        models[cell] = Model(traffic.total, traffic.written_bytes)
    counts, why_not = Counts(), None
    if tool is None:
        why_not = f"{TOOL} is not on PATH"
    else:
        sizes = [n for n in _copied(records) if n // row.last_level_cache_bytes in COUNTED_COPY_CACHES]
        try:
            counts = count(tool, plan.code.root, unit, where.parts.scratch, cells, spins_us=COUNTED_SPIN_US, copies_bytes=sizes)
        except Undecided as error:
            why_not = f"{error.found}; {error.do}"
    found = []
    if why_not is None:
        spins = {f"ncu_us@{round(us * 1000)}": each.total.us for us, each in counts.spins.items()}
        copies = {f"ncu_us@{n}": each.total.us for n, each in counts.copies.items()}
        copies |= {f"counted_bytes@{n}": each.total.bytes for n, each in counts.copies.items()}
        for part, figures in ((Part.SPINS, spins), (Part.COPIES, copies)):
            found += counted_records(where.parts, place, cell_of(part, row.name), figures, None)
        for cell in cells:
            total = counts.cells[cell].total if cell in counts.cells else None
            of_cell = {"model_bytes": float(models[cell].total), "ncu_us": total.us, "counted_bytes": total.bytes} if total else {}
            found += counted_records(where.parts, place, cell, of_cell, counts.failed.get(cell))
    return Truth(row.name, row.last_level_cache_bytes, row.peak_gbps, models, why_not), found


def _copied(records: Sequence[Record]) -> list[int]:
    """Sizes of the copies of known size that were timed."""
    return [int(r.metric.partition("@")[2]) for r in records if r.metric and r.metric.startswith("copy_us@")]


def _report(
    plan: Plan, unit: Unit, run: dict[str, Any], records: list[Record], known: Truth | None, out: Path, place: Path, output: str
) -> int:
    """Store, draw and print; the exit code is returned."""
    import json
    from collections import Counter
    from datetime import UTC, datetime

    from harness.commands._table import print_section
    from harness.report.calibration import trouble, unit_sections
    from harness.report.calibration_svg import panels, render_svg
    from harness.report.calibration_truth import off_limits, truth_sections
    from harness.store.runs import RunStore

    sections = truth_sections(records, known) if known else unit_sections(records)
    off, bad = off_limits(sections), trouble(records)
    code = 1 if off else 3 if bad else 0
    statuses = Counter(status for _, status in {((r.cell, r.kind), r.status) for r in records})
    ended = {"finished_at": datetime.now(UTC).isoformat(), "exit_code": code, "by_status": dict(statuses), "required_missing": []}
    store = RunStore(place)
    store.write({**run, **ended, "no_capacity": []}, records)
    out.mkdir(parents=True, exist_ok=True)
    title = f"{'Known costs' if known else 'Calibration'} of {unit.device} ({unit.model}), {run['created_at'][:10]}"
    shown = panels(records)
    if shown:
        (out / "calibration.svg").write_text(render_svg(title, shown))
    answer = _json(plan, unit, run, records, off, bad, code)
    (out / "calibration.json").write_text(json.dumps(answer, indent=2) + "\n")
    if output == "json":
        click.echo(json.dumps(answer, indent=2))
    else:
        click.echo(f"{title}; {unit.uuid}, code {plan.tree.resolved}, run {run['run_id']}")
        for section in sections:
            print_section(section)
        _print_end(off, bad, code)
        click.echo(f"written: {', '.join(str(out / name) for name in _written(bool(shown)))}")
    _prune(store, place)
    return code


def _written(drawn: bool) -> tuple[str, ...]:
    return ("calibration.svg", "calibration.json") if drawn else ("calibration.json",)


def _json(
    plan: Plan, unit: Unit, run: dict[str, Any], records: Sequence[Record], off: Sequence[str], bad: Sequence[str], code: int
) -> dict[str, Any]:
    names = ("metric", "value", "unit_of_measure", "kind", "status", "reason")
    return {
        **{name: run[name] for name in ("run_id", "commit", "dirty", "code_digest")},
        "device": unit.device,
        "unit": unit.uuid,
        "model": unit.model,
        "cells": [str(one.cell) for one in plan.expected],
        "figures": [{"cell": str(r.cell), "launch": r.launch, **{name: getattr(r, name) for name in names}} for r in records],
        "beyond_limits": list(off),
        "without_figure": list(bad),
        "exit_code": code,
    }


def _print_end(off: Sequence[str], bad: Sequence[str], code: int) -> None:
    from harness.report.words import CONCLUSIONS, count

    for title, lines in (("Beyond its limit", off), ("Without a figure", bad)):
        if lines:
            click.echo(f"\n{title} ({len(lines)})")
            for line in lines:
                click.echo(f"  {line}")
    click.echo(
        f"\n{CONCLUSIONS[code].upper()} (exit code {code}): {count(len(off), 'finding')} beyond a limit, {len(bad)} without a figure"
    )


def _prune(store: Any, place: Path) -> None:
    """Remove the oldest finished calibrations."""
    import shutil

    for info in [info for info in store.list() if info.finished][KEPT:]:
        shutil.rmtree(place / info.run_id, ignore_errors=True)
