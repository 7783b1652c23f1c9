"""Runs: one folder each, with run.json (identity, plan, result) and `records/device=<device>/<run_id>.parquet`.

The Parquet files stand in a folder of their own so that a reader of Parquet folders can be given it as it is.
"""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any

from harness.errors import StoreError, UnknownNameError
from harness.plan.matrix import Filters
from harness.records import INCOMPLETE_BLOCK, Cell, Record, Status
from harness.store.files import EARLIER, cells_in, encode, file_name, of_cell, read_file
from harness.store.folder import Folder, open_folder
from harness.store.tables import fingerprint, from_table, to_table

LEVEL = 3
"""zstd's effort for runs: they are written once and read a few times."""

VERSION = 1
"""Version of run.json."""

RECORDS = "records"
DERIVED = "speedup"
"""The metric that follows from other cells' records, and is another where those were measured again."""

_MEND = "restore run.json from where it was copied, or move the run's folder away"


def _is_cell(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(Cell.parse(value))
    except ValueError:
        return False


def _is_filters(value: object) -> bool:
    known = {field.name for field in fields(Filters)}
    return isinstance(value, dict) and set(value) <= known and all(_flaw(names, [str], "") is None for names in value.values())


def _is_against(value: object) -> bool:
    shape = {"ref": str, "resolved": str, "commit": str | None, "tree": str, "code_digest": str, "jobs": str | None}
    return value is None or _flaw(value, shape, "") is None


_EACH = "*"
_ANY_RUN = {
    "run_id": str,
    "created_at": str,
    "ref": str,
    "resolved": str,
    "commit": str | None,
    "tree": str,
    "dirty": bool,
    "code_digest": str,
    "jobs": str | None,
    "matrix": str,
    "against": _is_against,
    "options": {"filters": _is_filters, "require": [str]},
    "declared": {_EACH: {"variants": [str], "cases": [str]}},
    "expected": [{"cell": _is_cell, "kind": str, "limit": float | int | None}],
    "store": {"rows": {_EACH: int}},
}
_FINISHED_RUN = {
    "finished_at": str,
    "exit_code": lambda value: isinstance(value, int) and value in (0, 1, 3, 130),
    "by_status": {_EACH: int},
    "required_missing": [str],
}
_RESUMED_RUN = {"options": {"launches": lambda value: isinstance(value, int) and value > 0}}
"""Keys of run.json that readers use, with their shapes as `_flaw` takes them. A run that a diff made to compile has no
launches, and is not resumed."""


@dataclass(frozen=True)
class RunInfo:
    """What a list of runs says of one.

    Args:
        base_digest: code digest of the other arm, where the run is paired.
        same_jobs: whether the other arm's code has the job files that it was measured under, which are head's.
        started_at: ISO 8601.
        finished: whether it came to its end, passed or not.
        exit_code: 0, 1, 3 or 130; None until it has finished.
        devices: those it has records of.
        by_status: number of cells by how they ended; empty until it has finished.
    """

    run_id: str
    ref: str
    commit: str | None
    tree: str
    dirty: bool
    code_digest: str
    base_digest: str | None
    same_jobs: bool
    matrix: str
    started_at: str
    finished: bool
    exit_code: int | None
    devices: tuple[str, ...]
    by_status: Mapping[str, int]


# Names for return types: inside the class, `list` is its method.
Infos = list[RunInfo]
Records = list[Record]
Paths = list[str]


class RunStore:
    """The runs in a folder.

    Args:
        place: a path, a URI such as `s3://bucket/runs`, or an open folder.
        option: what the commands that errors name need to find it: ` --store URI`.

    Raises:
        StoreError: no file system for the URI.
    """

    def __init__(self, place: str | Path | Folder, option: str = "") -> None:
        self.folder = place if isinstance(place, Folder) else open_folder(place)
        self.option = option

    def save(self, run: Mapping[str, Any]) -> None:
        """Write a run's run.json, atomically; its records stay as they are.

        Raises:
            StoreError: another run has that id, or it cannot be written.
        """
        before = self._before(run)
        self._save(run, before["store"] if before else {"rows": {}})

    def write(self, run: Mapping[str, Any], records: Sequence[Record], *, replace: bool = False, earlier: Sequence[Record] = ()) -> Paths:
        """Write a run: one file a device, then run.json, which makes them count.

        Args:
            run: run.json: at least `run_id` and `created_at`.
            records: all of the run's records, any order.
            replace: whether a finished run may be overwritten by what it became when it was resumed.
            earlier: records that count no more, since their cells were measured again; only `read_earlier` gives them.

        Returns:
            Paths of the Parquet files of `records`.

        Raises:
            StoreError: another run has that id; the run is finished and `replace` is false, or a record of a cell that
                was done is neither among `records` nor `earlier`; a record names another run, or has a value its column cannot hold.
        """
        run_id = str(run["run_id"])
        if others := sorted({record.run_id for record in (*records, *earlier)} - {run_id}):
            raise StoreError(f"to write run {run_id}", f"records of run {others[0]!r}", "write each run by itself")
        before = self._before(run)
        if before is not None and before.get("finished_at"):
            if not replace:
                raise StoreError(f"to write run {run_id}", f"it is stored: {_who(before)}", "runs are immutable; take a new run id")
            self._check_superset(before, (*records, *earlier))
            # Files are replaced one by one. Until all are, the run has not finished: no look-up counts it, and it can be resumed.
            self._save({key: value for key, value in before.items() if key not in _FINISHED_RUN}, {"rows": {}})
        put_by = {"earlier": self._write(run_id, EARLIER, earlier)} if earlier else {}
        rows = self._write(run_id, RECORDS, records)
        self._save(run, {"rows": dict(sorted(rows.items())), **put_by})
        return [self.folder.where(f"{run_id}/{RECORDS}/{file_name(device, run_id)}") for device in rows]

    def _write(self, run_id: str, name: str, records: Sequence[Record]) -> dict[str, int]:
        """Write records below a folder of a run, one file a device; the rows of each."""
        by_device: dict[str, Records] = {}
        for record in records:
            by_device.setdefault(record.device, []).append(record)
        paths = {device: f"{run_id}/{name}/{file_name(device, run_id)}" for device in by_device}
        files = {path: encode(by_device[device], self.folder.where(path), LEVEL) for device, path in paths.items()}
        for path, content in files.items():
            self.folder.write(path, content)
        return {device: len(by_device[device]) for device in paths}

    def read_run(self, run_id: str) -> dict[str, Any]:
        """A run's run.json, with all that resuming it takes.

        Raises:
            UnknownNameError: no such run.
            StoreError: run.json cannot be read, lacks a key, or was written by a newer harness.
        """
        run = self._known(run_id)
        _check(run, _RESUMED_RUN, self.folder.where(f"{run_id}/run.json"))
        return run

    def read(self, run_id: str, cell: Cell | None = None) -> tuple[dict[str, Any], Records]:
        """A run's run.json, and its records (or those of one cell) by device, kernel, variant, case, kind, metric, arm and seq.

        Raises:
            UnknownNameError: no such run.
            StoreError: a file is missing, corrupt, or not the one that was written; it is named.
        """
        run = self._known(run_id)
        return run, self._read(run, RECORDS, run["store"]["rows"], cell)

    def read_earlier(self, run_id: str) -> Records:
        """A run's records that count no more, since their cells were measured again, ordered as by `read`.

        Raises:
            UnknownNameError: no such run.
            StoreError: as `read`.
        """
        run = self._known(run_id)
        return self._read(run, EARLIER, run["store"].get("earlier", {}), None)

    def _read(self, run: Mapping[str, Any], name: str, rows: Mapping[str, int], cell: Cell | None) -> Records:
        records: Records = []
        for device in sorted(rows) if cell is None else sorted({cell.device} & set(rows)):
            path = f"{run['run_id']}/{name}/{file_name(device, run['run_id'])}"
            records += read_file(self.folder, path, None if cell is None else of_cell(cell), rows[device])
        return records

    def cells(self) -> set[Cell]:
        """Every cell that some run has a record of, skimmed.

        Raises:
            StoreError: as `list`, or as `harness.store.files.skim`.
        """
        paths = [f"{i.run_id}/records/{file_name(device, i.run_id)}" for i in self.list() for device in i.devices]
        return {cell for path in paths for cell in cells_in(self.folder, path)}

    def list(self) -> Infos:
        """Every run, newest first.

        Raises:
            StoreError: a run.json cannot be read; it is named. What a comparison looks up may be in it, so it is not passed over.
        """
        runs, unreadable = self.scan()
        for name, error in unreadable.items():
            others = ", ".join(one for one in unreadable if one != name)
            raise StoreError(error.asked, error.found + (f"; nor can {others}" if others else ""), error.do)
        return runs

    def scan(self) -> tuple[Infos, Mapping[str, StoreError]]:
        """Every run that can be read, newest first; and what is wrong with the others, by their folders' names, newest first."""
        runs: Infos = []
        unreadable: dict[str, StoreError] = {}
        for name in self.folder.children():
            try:
                if (run := self._run(name)) is not None:
                    runs.append(_info(run))
            except StoreError as error:
                unreadable[name] = error
        runs.sort(key=lambda info: (info.started_at, info.run_id), reverse=True)
        return runs, dict(sorted(unreadable.items(), reverse=True))

    def last(self) -> RunInfo:
        """The newest run, finished or not.

        Raises:
            UnknownNameError: there is no run.
            StoreError: it may be one that cannot be read: ids begin with the time.
        """
        runs, unreadable = self.scan()
        for name, error in unreadable.items():
            if not runs or name > runs[0].run_id:
                raise error
        if runs:
            return runs[0]
        raise self._unknown("last")

    def resolve(self, name: str) -> str:
        """The id of the run that a person means: an id, its unambiguous beginning, or `last`; `run:` before it is left out.

        Raises:
            UnknownNameError: no run, or several runs, of that name.
        """
        wanted = name.removeprefix("run:")
        if wanted == "last":
            return self.last().run_id
        ids = self.folder.children()
        matches = [wanted] if wanted in ids else [run_id for run_id in ids if wanted and run_id.startswith(wanted)]
        matches = [run_id for run_id in matches if self._run(run_id) is not None]
        if len(matches) > 1:
            raise UnknownNameError(f"run {name!r}", f"{len(matches)} runs begin so: {', '.join(matches[-5:])}", "give more of the id")
        if not matches:
            raise self._unknown(wanted)
        return matches[0]

    def find(self, cell: Cell) -> Iterator[tuple[RunInfo, Records]]:
        """The runs that have records of a cell, newest first, with those records.

        Raises:
            StoreError: as `read`.
        """
        for info in self.list():
            if cell.device in info.devices and (records := self.read(info.run_id, cell)[1]):
                yield info, records

    def _known(self, run_id: str) -> dict[str, Any]:
        run = self._run(run_id)
        if run is None:
            raise self._unknown(run_id)
        return run

    def _run(self, run_id: str) -> dict[str, Any] | None:
        path = f"{run_id}/run.json"
        if self.folder.size(path) is None:
            return None
        where = self.folder.where(path)
        try:
            run: dict[str, Any] = json.loads(self.folder.read(path))
            version, described = run["store"]["version"], run["run_id"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(f"the run in {where}", f"it cannot be read: {error!r}", _MEND) from error
        run.setdefault("against", None)  # a run from before there were pairs
        for side in (run, run["against"]):
            if isinstance(side, dict):
                side.setdefault("jobs", None)  # or from before the job files were told apart: nobody knows
        if version != VERSION:
            raise StoreError(f"the run in {where}", f"version {version}; this harness reads {VERSION}", "install a newer harness")
        if described != run_id:
            raise StoreError(f"the run in {where}", f"it describes run {described!r}", _MEND)
        _check(run, _ANY_RUN | (_FINISHED_RUN if run.get("finished_at") else {}), where)
        return run

    def _before(self, run: Mapping[str, Any]) -> dict[str, Any] | None:
        """What is stored under the run's id, if it is the same run."""
        before = self._run(str(run["run_id"]))
        if before is not None and before["created_at"] != run["created_at"]:
            raise StoreError(f"to write run {run['run_id']}", f"the id is taken: {_who(before)}", "take a new run id")
        return before

    def _save(self, run: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        file_name("any", str(run["run_id"]))
        whole = {**run, "store": {**stored, "version": VERSION}}
        self.folder.write(f"{run['run_id']}/run.json", json.dumps(whole, indent=1, allow_nan=False).encode())

    def _check_superset(self, before: Mapping[str, Any], records: Sequence[Record]) -> None:
        run_id = before["run_id"]
        names = {RECORDS: before["store"]["rows"], EARLIER: before["store"].get("earlier", {})}
        paths = [f"{run_id}/{name}/{file_name(device, run_id)}" for name, rows in names.items() for device in rows]
        old = [record for path in paths for record in read_file(self.folder, path) if record.metric != DERIVED]
        again = {(record.kind, record.cell) for record in old if Status(record.status).resumable}
        new = from_table(to_table(records, f"run {run_id}"), f"run {run_id}")
        torn = {(record.kind, record.cell) for record in old if _is_torn(record)}
        lost = Counter(fingerprint(record) for record in old if (record.kind, record.cell) not in again and not _is_torn(record))
        lost -= Counter(map(fingerprint, new))
        gone = (again | torn) - {(record.kind, record.cell) for record in new}
        if lost or gone:
            raise StoreError(
                f"to replace run {run_id} ({_who(before)})",
                f"{lost.total()} of its records and {len(gone)} of its cells are not in what would replace it",
                "resume it where its journal is, or submit anew",
            )

    def _unknown(self, name: str) -> UnknownNameError:
        ids = [name for name in self.folder.children() if self.folder.size(f"{name}/run.json") is not None]
        found = f"no run's id begins so; the newest runs in {self.folder}: {', '.join(ids[-10:])}" if ids else f"no runs in {self.folder}"
        make = f"make one with `harness submit{self.option}`, or name another --store"
        return UnknownNameError(f"run {name!r}", found, f"see `harness runs{self.option}`" if ids else make)


def exclude_run(records: Iterable[Record], run_id: str) -> list[Record]:
    """The records of all other runs: a run is never its own baseline."""
    return [record for record in records if record.run_id != run_id]


def base_has_same_jobs(run: Mapping[str, Any]) -> bool:
    """Whether the base arm of a run was measured under the job files of its own code; false where that is not known."""
    return bool(run["against"]) and run["jobs"] is not None and run["jobs"] == run["against"]["jobs"]


def _check(run: Mapping[str, Any], shape: Mapping[str, Any], where: str) -> None:
    """Refuse a run.json that lacks a key, or has a value of another shape than a run writes.

    Raises:
        StoreError: with the file and the first such key.
    """
    if flaw := _flaw(run, shape, ""):
        raise StoreError(f"the run in {where}", flaw, _MEND)


def _flaw(value: Any, shape: Any, at: str) -> str | None:
    """The first key at or below `at` that is missing or has an unfit value; None where all fit.

    Args:
        shape: a type or a union of types; a list of one shape, that of every item; a mapping of keys to shapes, those that
            must be there, or `_EACH`; or a function that says whether a value fits.
    """
    fits: bool
    below: Iterator[str | None] = iter(())
    if isinstance(shape, Mapping):
        if fits := isinstance(value, dict):
            shapes = dict.fromkeys(value, shape[_EACH]) if _EACH in shape else shape
            below = (_flaw(value[k], s, f"{at}.{k}") if k in value else f"no key {f'{at}.{k}'[1:]!r}" for k, s in shapes.items())
    elif isinstance(shape, list):
        if fits := isinstance(value, list):
            below = (_flaw(item, shape[0], f"{at}[{i}]") for i, item in enumerate(value))
    elif isinstance(shape, type | UnionType):
        fits = isinstance(value, shape) and (shape is bool or not isinstance(value, bool))
    else:
        fits = shape(value)
    return next(filter(None, below), None) if fits else f"key {at[1:]!r} is {reprlib.repr(value)}"


def _info(run: Mapping[str, Any]) -> RunInfo:
    return RunInfo(
        run_id=run["run_id"],
        ref=run["ref"],
        commit=run["commit"],
        tree=run["tree"],
        dirty=run["dirty"],
        code_digest=run["code_digest"],
        base_digest=run["against"] and run["against"]["code_digest"],
        same_jobs=base_has_same_jobs(run),
        matrix=run["matrix"],
        started_at=run["created_at"],
        finished=bool(run.get("finished_at")),
        exit_code=run.get("exit_code"),
        devices=tuple(sorted(run["store"]["rows"])),
        by_status=run.get("by_status", {}),
    )


def _who(run: Mapping[str, Any]) -> str:
    state = f"finished {run['finished_at']}" if run.get("finished_at") else "unfinished"
    return f"created {run['created_at']} from {run['ref']} at {run['commit'] or 'no commit'}, {state}"


def _is_torn(record: Record) -> bool:
    return record.reason_code == INCOMPLETE_BLOCK
