"""`harness show`: what is known of a cell, or what became of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.commands import _options

if TYPE_CHECKING:
    from harness.authoring.workspace import Workspace
    from harness.records import Cell, Record
    from harness.store.cells import CellRecord, Line
    from harness.store.runs import RunStore


EXAMPLE = "KERNEL/VARIANT/M=64,N=5120,dtype=bf16@cpu"
"""A cell, in errors."""


@click.command(
    epilog="\b\nExamples:\n  harness show run:last\n  harness show 20260131T235959-1f2e3d --format json"
    "\n  harness show KERNEL/VARIANT/M=64,N=5120,dtype=bf16@cpu\n  harness show KERNEL/VARIANT/M=64,N=5120,dtype=bf16@DEVICE --ncu"
)
@click.argument("names", metavar="CELL_OR_RUN...", nargs=-1, required=True)
@click.option("--ncu", "by_ncu", is_flag=True, help="Count one call of each CELL by ncu on the GPU of this machine; several may be given.")
@_options.store
@_options.format_text_json
def command(names: tuple[str, ...], by_ncu: bool, store_uri: str | None, output: str) -> int:
    """Show the newest records of a cell, or what became of a run.

    CELL_OR_RUN is a cell, written kernel/variant/case@device, or a run: its id, the beginning of its id, or run:last. Of a
    cell, every kind of job is shown from the newest run or baseline that has it, times as the median over launches,
    with their spread, (max - min) / median, and a mark where the samples of a launch never converged.

    With --ncu, NVIDIA's ncu looks at one call of each cell by the worktree's code, with flushed caches and clocks as they are:
    bytes read from memory and written to it, throughput of the multiprocessors and bytes asked of L1, for each kernel launch;
    beside them the compulsory bytes of the cost model and the newest recorded time. Nothing is recorded or judged by it.

    Ends with exit code 0, or with 3 where --ncu could not count something.
    """
    from harness.authoring.workspace import find_workspace
    from harness.errors import HarnessError

    workspace = find_workspace()
    store = _options.stored_runs(store_uri)
    if by_ncu:
        from harness.commands._counted import show_counted

        return show_counted(workspace, store, list(dict.fromkeys(map(_cell, names))), output)
    if len(names) > 1:
        raise HarnessError(f"to show {' and '.join(names)}", f"{len(names)} names", "show one at a time; --ncu takes several cells")
    (name,) = names
    if set("/@") & set(name):
        _show_cell(store, workspace.baselines_dir, _cell(name), output)
    else:
        _show_run(store, _run_id(store, workspace, name), output, store_uri)
    return 0


def _cell(text: str) -> Cell:
    from harness.errors import UnknownNameError
    from harness.records import Cell

    try:
        return Cell.parse(text)
    except ValueError as error:
        do = "name a cell as `harness plan --format json` writes it, or, without --ncu, a run; `harness kernels show NAME` lists the parts"
        raise UnknownNameError(f"to show {text!r}", f"{error}, as in {EXAMPLE}", do) from error


def _run_id(store: RunStore, workspace: Workspace, name: str) -> str:
    """The run that is meant.

    Raises:
        UnknownNameError: there is none; a name that may have been meant for a cell is told how one is written.
    """
    from harness.authoring.catalogue import kernel_files
    from harness.errors import HarnessError, UnknownNameError

    try:
        return store.resolve(name)
    except UnknownNameError as error:
        if name.startswith("run:") or name == "last":
            raise
        written = f"a cell is written kernel/variant/case@device, as {EXAMPLE}"
        try:
            is_kernel = name in {file.stem for file in kernel_files(workspace)}
        except HarnessError:  # a folder of records needs no kernels
            is_kernel = False
        if is_kernel:
            found, do = "it is a kernel, no cell and no run", f"`harness kernels show {name}` shows it, with its variants and cases"
        else:
            found, do = f"it is no cell, and {error.found}", f"{error.do}; `harness kernels show NAME` lists variants and cases"
        raise UnknownNameError(f"to show {name!r}", f"{found}; {written}", do) from error


def _show_run(store: RunStore, run_id: str, output: str, store_uri: str | None) -> None:
    from harness.records import resume_command

    run, records = store.read(run_id)
    if output == "json":
        import json

        answer = {"run": run, "records": [record.to_json() for record in records]}
        if earlier := store.read_earlier(run_id):
            answer["earlier"] = [record.to_json() for record in earlier]
        click.echo(json.dumps(answer, indent=2))
        return
    if not run.get("finished_at"):
        click.echo(f"run {run_id} has not finished: {len(run['expected'])} cells of {run['resolved']}, matrix {run['matrix']}")
        click.echo(f"go on with it: {resume_command(run)}{store.option}")
        return
    from harness.commands._table import print_table
    from harness.report.run import render_run

    click.echo(render_run(run, records, store_uri))
    doubted = [(one["cell"], one["kind"], "undecided", one["reason"]) for one in run.get("undecided", ())]
    if rows := [*doubted, *_not_ok(records)]:
        click.echo(f"\nEvery cell that was tried and is not ok ({len(rows)})")
        print_table(("cell", "kind", "status", "reason"), rows)


def _not_ok(records: Sequence[Record]) -> list[tuple[str, str, str, str]]:
    """Cell, kind, status and reason, once each, of what ended in another way than ok or no_capacity."""
    from harness.records import Status
    from harness.report.words import one_line

    fine = (Status.OK, Status.NO_CAPACITY)
    return list(dict.fromkeys((str(r.cell), r.kind, r.status, one_line(r.reason)) for r in records if r.status not in fine))


def _show_cell(store: RunStore, baselines_dir: Path, cell: Cell, output: str) -> None:
    from harness.devices.table import load_devices
    from harness.errors import UnknownNameError
    from harness.store.cells import newest_records

    try:
        found = newest_records(store, baselines_dir, cell)
    except UnknownNameError as error:
        devices = load_devices()
        if cell.device in devices:
            raise
        raise UnknownNameError.of("device", cell.device, devices) from error
    if output == "json":
        import json

        rows: list[dict[str, Any]] = [{"source": one.source, **one.record.to_json()} for one in found]
        click.echo(json.dumps({"cell": str(cell), "records": rows}, indent=2))
        return
    from harness.commands._table import print_table
    from harness.records import BASE
    from harness.report.words import figure, spread, unit
    from harness.store.cells import lines

    click.echo(str(cell))
    shown = lines(found)
    several = any(line.spread_percent is not None for line in shown)
    headers = ("kind", "metric", "value", "unit", "launches", *(("spread",) if several else ()), "method", "status", "run")
    rows_text = [
        (
            line.kind + (" (base)" if line.arm == BASE else ""),
            line.metric or "-",
            figure(line.value, line.unit_of_measure),
            unit(line.unit_of_measure),
            str(line.launches),
            *((spread(line.spread_percent),) if several else ()),
            " ".join(dict.fromkeys(method.partition("+")[0] for method in line.methods)) or "-",
            _status(line),
            line.run_id + (" (baseline)" if line.source == "baseline" else ""),
        )
        for line in shown
    ]
    print_table(headers, rows_text, right=("value", "launches", "spread"))
    for run_id, code, environment in dict.fromkeys(map(_origin, found)):
        click.echo(f"{run_id}: {code}; {environment}")


def _status(line: Line) -> str:
    """How a line's launches ended, and whether their samples settled."""
    from harness.report.words import NOT_CONVERGED, one_line

    ended = line.status + (f": {one_line(line.reason)}" if line.reason else "")
    return f"{ended}; {NOT_CONVERGED}" if line.converged is False else ended


def _origin(found: CellRecord) -> tuple[str, str, str]:
    """Run, code and environment of a record, for people."""
    from harness.commands._table import commit_cell

    record, names = found.record, ("gpu_model", "partition", "driver", "runtime", "torch", "triton", "compiler", "python", "harness")
    told = {n: record.environment[n] for n in names if n in record.environment and (n != "partition" or record.environment[n] != "none")}
    words = [value if n == "gpu_model" else f"{n} {value}" for n, value in told.items()]
    return record.run_id, f"commit {commit_cell(record.commit, record.dirty)}", ", ".join(words) or "environment not recorded"
