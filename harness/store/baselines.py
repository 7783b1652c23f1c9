"""Baselines: what `harness baseline accept` copies from runs that passed, one immutable file per device and run, small enough for git."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import StoreError, UnknownNameError
from harness.metrics import PRIMARY, speaks_for_cell
from harness.records import HEAD, Cell, Record, Status
from harness.store.files import Only, cells_in, encode, file_name, read_file, skim
from harness.store.folder import Folder, open_folder
from harness.store.runs import RunStore, base_has_same_jobs
from harness.store.tables import earliest, fingerprint

LEVEL = 19
"""zstd's effort for baselines: git keeps them for ever."""

_PLACE = re.compile(r"device=(?P<device>[^/]+)/(?P<run>[^/]+)\.parquet")

COPIED = frozenset({Status.OK, Status.SKIPPED})
"""Statuses that a baseline holds: a value, or the reason why there need be none."""


@dataclass(frozen=True)
class AcceptedFile:
    """One baseline file; `new` is false where it was there before with the same records."""

    device: str
    path: str
    records: int
    size_bytes: int
    new: bool


@dataclass(frozen=True)
class AcceptReport:
    """What `accept` did.

    Args:
        files: one a device.
        left_out: number of the run's records that were not copied, by why.
    """

    run_id: str
    commit: str
    files: tuple[AcceptedFile, ...]
    left_out: Mapping[str, int]

    @property
    def already(self) -> bool:
        """Whether everything had been accepted before, so that nothing was written."""
        return not any(file.new for file in self.files)


@dataclass(frozen=True)
class BaselineInfo:
    """What a list of baselines says of one file.

    Args:
        commits: of its records: two where both arms of a paired run were accepted.
        started_at: when its first record was measured, ISO 8601 in UTC.
    """

    device: str
    run_id: str
    commits: tuple[str, ...]
    code_digests: tuple[str, ...]
    kinds: tuple[str, ...]
    kernels: tuple[str, ...]
    cells: int
    records: int
    size_bytes: int
    started_at: str | None


def accept(
    store: RunStore,
    run_id: str,
    baselines_dir: str | Path,
    *,
    devices: Collection[str] | None = None,
    kinds: Collection[str] | None = None,
) -> AcceptReport:
    """Copy a run's records into the baselines, without samples: `value` is the launch's median.

    A cell is copied whole, under either arm, or not at all. What a paired run measured of its base is copied where the base's
    code has the same job files: under others it would be another answer than that code's own.

    Args:
        store: where the run is.
        run_id: the run; it must have finished, with exit code 0, on a clean commit.
        baselines_dir: folder of baselines; it need not exist.
        devices: only these of the run's devices; None for all.
        kinds: only these kinds; None for all.

    Returns:
        What was written or had been. Accepting again what was accepted writes nothing.

    Raises:
        UnknownNameError: no such run, or a device or kind that it has no records of.
        StoreError: the run may not be accepted (every reason is given), nothing in it can be, or the baselines hold
            other records of the same run and device: they are immutable.
    """
    run, records = store.read(run_id)
    _check_acceptable(run, store)
    chosen = _choose(_choose(records, "device", devices), "kind", kinds)
    left_out = Counter({"not asked for": len(records) - len(chosen)})
    by_device: dict[str, list[Record]] = {}
    unfit = _in_part(records) | {_question(record): reason for record in records if (reason := _why_not(record, run))}
    for record in chosen:
        if reason := _why_not(record, run) or unfit.get(_question(record)):
            left_out[reason] += 1
        else:
            by_device.setdefault(record.device, []).append(replace(record, samples=None))
    if not by_device:
        raise StoreError(
            f"to accept run {run_id}", f"no record of it can be a baseline: {_counts(left_out)}", "run it where it measures something"
        )
    folder = open_folder(baselines_dir)
    new = {device for device, rows in by_device.items() if not _accepted(folder, device, run_id, rows)}
    files = []
    for device, rows in sorted(by_device.items()):
        path = file_name(device, run_id)
        if device in new:
            folder.write(path, encode(rows, folder.where(path), LEVEL))
        files.append(AcceptedFile(device, folder.where(path), len(rows), folder.size(path) or 0, device in new))
    return AcceptReport(run_id, run["commit"], tuple(files), {why: n for why, n in sorted(left_out.items()) if n})


def read_baselines(baselines_dir: str | Path, only: Only | None = None) -> list[Record]:
    """The accepted records, or those of them that are wanted; none where nothing was ever accepted.

    What is read is in proportion to what is wanted, see `harness.store.files.read_file`.

    Raises:
        StoreError: a file is corrupt, foreign, of a newer schema, or not where it was accepted; it is named.
    """
    folder = open_folder(baselines_dir)
    only = only or {}
    found: list[Record] = []
    for path, device, run_id in _files(folder):
        if device in only.get("device", (device,)) and run_id in only.get("run_id", (run_id,)):
            found += read_file(folder, path, only)
    return found


def baseline_cells(baselines_dir: str | Path) -> set[Cell]:
    """Every cell of which anything was accepted.

    Raises:
        StoreError: as `list_baselines`.
    """
    folder = open_folder(baselines_dir)
    return {cell for path, _, _ in _files(folder) for cell in cells_in(folder, path)}


def list_baselines(baselines_dir: str | Path) -> list[BaselineInfo]:
    """Every baseline file, newest run first, skimmed: what is listed is not verified.

    Raises:
        StoreError: as `harness.store.files.skim`, or a file is not where it was accepted; it is named.
    """
    folder = open_folder(baselines_dir)
    infos = [_info(folder, *file) for file in _files(folder)]
    return sorted(infos, key=lambda info: (info.started_at or "", info.run_id, info.device), reverse=True)


def _check_acceptable(run: Mapping[str, Any], store: RunStore) -> None:
    reasons = []
    if not run.get("finished_at"):
        reasons.append("it has not finished")
    elif run.get("exit_code") != 0:
        reasons.append(f"it did not pass: exit code {run.get('exit_code')}")
    if run.get("dirty"):
        reasons.append("its tree was dirty")
    if not run.get("commit"):
        reasons.append("it has no commit")
    if reasons:
        do = f"accept a run that passed on a clean commit: see `harness runs{store.option}`"
        raise StoreError(f"to accept run {run['run_id']}", "; ".join(reasons), do)


def _choose(records: Sequence[Record], column: str, wanted: Collection[str] | None) -> list[Record]:
    known = {getattr(record, column) for record in records}
    for name in wanted or ():
        if name not in known:
            raise UnknownNameError.of(column, name, known)
    return [record for record in records if not wanted or getattr(record, column) in wanted]


def _question(record: Record) -> tuple[str, Cell, str]:
    return record.kind, record.cell, record.arm


def _why_not(record: Record, run: Mapping[str, Any]) -> str | None:
    if Status(record.status) not in COPIED:
        return record.status
    if record.simulated:
        return "simulated"
    if record.arm != HEAD and not base_has_same_jobs(run):
        return "base arm under other job files"
    if record.dirty or not record.commit:
        return "dirty" if record.dirty else "no commit"
    if record.converged is False and record.metric == PRIMARY.get(record.kind):
        return "not converged"
    return None


def _in_part(records: Sequence[Record]) -> dict[tuple[str, Cell, str], str]:
    """What was measured in some of its launches, and skipped in others: their median is not that of the launches that were asked for."""
    main: dict[tuple[str, Cell, str], set[str]] = {}
    for record in records:
        if speaks_for_cell(record.kind, record.metric):
            main.setdefault(_question(record), set()).add(record.status)
    return {question: "skipped in some launches" for question, statuses in main.items() if {Status.OK, Status.SKIPPED} <= statuses}


def _accepted(folder: Folder, device: str, run_id: str, records: Sequence[Record]) -> bool:
    """Whether the device's file of the run holds all of `records`.

    Raises:
        StoreError: it holds some other records instead.
    """
    path = file_name(device, run_id)
    if folder.size(path) is None:
        return False
    there = read_file(folder, path)
    known = set(map(fingerprint, there))
    missing = [record for record in records if fingerprint(record) not in known]
    if missing:
        raise StoreError(
            f"to accept run {run_id} on {device}",
            f"{folder.where(path)} holds {len(there)} records, not {len(missing)} of the {len(records)} to accept",
            "baselines are immutable: accept another run, or delete that file in a commit of its own first",
        )
    return True


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {why}" for why, n in sorted(counts.items()) if n) or "it has none"


def _files(folder: Folder) -> Iterator[tuple[str, str, str]]:
    """Path, device and run id of every baseline file."""
    for path in folder.files(".parquet"):
        place = _PLACE.fullmatch(path)
        if place is None:
            raise StoreError(
                f"the baselines in {folder}",
                f"{path}, which `harness baseline accept` did not put there",
                "take it away, or move it back to device=<device>/<run>.parquet",
            )
        yield path, place["device"], place["run"]


def _info(folder: Folder, path: str, device: str, run_id: str) -> BaselineInfo:
    cell = ("kernel", "variant", "case")
    table = skim(folder, path, ("commit", "code_digest", "kind", "started_at", *cell))

    def named(column: str) -> tuple[str, ...]:
        return tuple(sorted(name for name in table[column].unique().to_pylist() if name))

    return BaselineInfo(
        device=device,
        run_id=run_id,
        commits=named("commit"),
        code_digests=named("code_digest"),
        kinds=named("kind"),
        kernels=named("kernel"),
        cells=table.group_by(list(cell)).aggregate([]).num_rows,
        records=table.num_rows,
        size_bytes=folder.size(path) or 0,
        started_at=earliest(table["started_at"]),
    )
