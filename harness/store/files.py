"""One Parquet file of records, and folders of them: `device=<device>/<run_id>.parquet`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import StoreError
from harness.records import Cell, Record
from harness.store.digest import METADATA_KEY, digest
from harness.store.folder import Folder, open_folder
from harness.store.schema import RESTORE, VERSION_COLUMN, check_required, current, is_current
from harness.store.tables import from_table, sort_records, to_table

EARLIER = "_earlier"
"""Folder of a run's records that count no more, since their cells were measured again. Other readers of a whole folder pass over it, too:
by a custom of Parquet data sets, what begins so is no part of one."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def file_name(device: str, run_id: str) -> str:
    """Path of the records of one device and run, below the folder that holds records.

    Raises:
        StoreError: a device or run id that is no file name.
    """
    for what, name in (("device", device), ("run id", run_id)):
        if not _NAME.fullmatch(name):
            raise StoreError(f"to store records of {what} {name!r}", "it is no file name", "use letters, digits, '.', '_' and '-'")
    return f"device={device}/{run_id}.parquet"


def encode(records: Sequence[Record], where: str, level: int) -> bytes:
    """The records, sorted, as the bytes of a Parquet file: zstd, full precision, checksums, a digest.

    Args:
        records: of one device.
        where: the file to be, for the error.
        level: zstd's effort, 1 to 22.

    Raises:
        StoreError: a value that its column cannot hold.
    """
    table = to_table(sort_records(records), where)
    table = table.replace_schema_metadata({METADATA_KEY: digest(table)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", compression_level=level, write_page_checksum=True, write_statistics=["kernel"])
    return sink.getvalue().to_pybytes()


Only = Mapping[str, Collection[str]]
"""Which records are wanted: by column, the values that it may have."""

_PLACED = ("device", "run_id")
"""Columns that a file's own path repeats."""


def of_cell(cell: Cell) -> Only:
    """The records of one cell."""
    return of_cells([cell])


def of_cells(cells: Collection[Cell]) -> Only:
    """The records of some cells; and of others that are made of the same parts, so that whoever asks looks at each."""
    return {name: {getattr(cell, name) for cell in cells} for name in ("kernel", "variant", "case", "device")}


def wanted(records: Iterable[Record], only: Only) -> list[Record]:
    """Those of some records that are wanted."""
    return [record for record in records if all(getattr(record, column) in values for column, values in only.items())]


def read_file(folder: Folder, path: str, only: Only | None = None, rows: int | None = None) -> list[Record]:
    """The records of one file, or those of them that are wanted.

    A file that gives records is verified whole. One that has none of those wanted is not decoded further than to see that, see `skim`.

    Args:
        folder: where the file is.
        path: the file, below `folder`.
        only: the records wanted; None for all.
        rows: how many records the whole file must hold, where that is known.

    Raises:
        StoreError: the file cannot be read, is no Parquet, is corrupt, is of another schema, holds another number of
            records, or stands under another device or run than its records name; the file is named.
    """
    where = folder.where(path)
    content = folder.read(path)
    if only and not _chosen(_skimmed(content, only, path, where, rows), only).num_rows:
        return []
    table = _verified(content, path, where, rows)
    return from_table(_chosen(table, only) if only else table, where)


def skim(folder: Folder, path: str, columns: Collection[str]) -> pa.Table:
    """Some columns of one file, a tenth of the work of reading it: their pages' checksums are checked, not the digest of the whole.

    Raises:
        StoreError: as `read_file`, as far as these columns show it.
    """
    return _skimmed(folder.read(path), columns, path, folder.where(path), None).select(list(columns))


def cells_in(folder: Folder, path: str) -> set[Cell]:
    """The cells that a file has records of, skimmed.

    Raises:
        StoreError: as `skim`.
    """
    names = ["kernel", "variant", "case", "device"]
    table = skim(folder, path, names)
    table = table.set_column(3, "device", table["device"].cast(pa.string())).group_by(names).aggregate([])
    return {Cell(*row) for row in zip(*(table[name].to_pylist() for name in names), strict=True)}


def read_folder(folder: Folder) -> list[Record]:
    """The records of every Parquet file below a folder, by path, but for those that count no more; none where there are no files.

    Raises:
        StoreError: as `read_file`.
    """
    paths = [path for path in folder.files(".parquet") if EARLIER not in path.split("/")]
    return [record for path in paths for record in read_file(folder, path)]


def read_parquet(path: str | Path) -> list[Record]:
    """The records of one Parquet file, or of every one below a folder; a path or a URI.

    Raises:
        StoreError: nothing there, or as `read_file`.
    """
    folder = open_folder(path)
    parent, _, name = folder.root.rpartition("/")
    above = Folder(folder.filesystem, parent)
    if above.size(name) is not None:
        return read_file(above, name)
    if not folder.files(".parquet"):
        raise StoreError(f"records in {path}", "no Parquet file there or below", "give a file, a run's folder or baselines/")
    return read_folder(folder)


def holds_records(path: Path) -> bool:
    """Whether a path is a Parquet file, baselines/ or a run's folder; of a folder no more is looked at than shows that."""
    if path.suffix == ".parquet" and path.exists():
        return True
    return any(chain(path.glob("device=*"), path.glob("records/device=*")))


def _skimmed(content: bytes, columns: Collection[str], path: str, where: str, rows: int | None) -> pa.Table:
    """The columns, and those that tell whether the file is where it belongs. A file of an older schema is read whole."""
    names = list(dict.fromkeys([VERSION_COLUMN, *_PLACED, *columns]))
    with _parsing(where):
        file = _open(content)
        if not set(names) <= set(file.schema_arrow.names):
            return _verified(content, path, where, rows)
        table = file.read(columns=names)
        table.validate(full=True)
    if not is_current(table, where):
        return _verified(content, path, where, rows)
    check_required(table, where)
    _check_rows(table, rows, where)
    _check_place(table, PurePosixPath(path), where)
    return table


def _verified(content: bytes, path: str, where: str, rows: int | None) -> pa.Table:
    with _parsing(where):
        table = _open(content).read()
        table.validate(full=True)
        table = current(table, where)
    _check_place(table, PurePosixPath(path), where)
    _check_rows(table, rows, where)
    return table


def _open(content: bytes) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)


@contextmanager
def _parsing(where: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"records in {where}", f"no readable Parquet file: {error}", RESTORE) from error


def _chosen(table: pa.Table, only: Only) -> pa.Table:
    for column, values in only.items():
        table = table.filter(pc.is_in(table[column].cast(pa.string()), value_set=pa.array(sorted(values), pa.string())))
    return table


def _check_rows(table: pa.Table, rows: int | None, where: str) -> None:
    if rows is not None and table.num_rows != rows:
        raise StoreError(f"records in {where}", f"{table.num_rows} records where its run wrote {rows}", RESTORE)


def _check_place(table: pa.Table, path: PurePosixPath, where: str) -> None:
    folder = path.parent.name
    if not folder.startswith("device="):
        return
    for column, named in zip(_PLACED, (folder.removeprefix("device="), path.stem), strict=True):
        if others := sorted(set(table[column].unique().to_pylist()) - {named}):
            raise StoreError(f"records in {where}", f"records of {column} {others[0]!r}", f"move the file back to {column} {others[0]!r}")
