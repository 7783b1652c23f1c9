"""One Parquet file of records, and folders of them: `device=<device>/<run_id>.parquet`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import StoreError
from harness.records import Cell, Record
from harness.store.digest import METADATA_KEY, digest
from harness.store.folder import Folder, open_folder
from harness.store.schema import RESTORE, current
from harness.store.tables import from_table, sort_records, to_table

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


def read_file(folder: Folder, path: str, cell: Cell | None = None, rows: int | None = None) -> list[Record]:
    """The records of one file, or those of one cell in it.

    Args:
        folder: where the file is.
        path: the file, below `folder`.
        cell: the only cell wanted; None for all.
        rows: how many records the whole file must hold, where that is known.

    Raises:
        StoreError: the file cannot be read, is no Parquet, is corrupt, is of another schema, holds another number of
            records, or stands under another device or run than its records name; the file is named.
    """
    where = folder.where(path)
    content = folder.read(path)
    try:
        table = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True).read()
        table.validate(full=True)
        table = current(table, where)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"records in {where}", f"no readable Parquet file: {error}", RESTORE) from error
    _check_place(table, PurePosixPath(path), where)
    if rows is not None and table.num_rows != rows:
        raise StoreError(f"records in {where}", f"{table.num_rows} records where its run wrote {rows}", RESTORE)
    if cell is not None:
        wanted = {"kernel": cell.kernel, "variant": cell.variant, "case": cell.case, "device": cell.device}
        for column, value in wanted.items():
            table = table.filter(pc.equal(table[column], value))
    return from_table(table, where)


def read_folder(folder: Folder, cell: Cell | None = None) -> list[Record]:
    """The records of every Parquet file below a folder, by path; none where there are no files.

    Raises:
        StoreError: as `read_file`.
    """
    device = None if cell is None else f"device={cell.device}"
    paths = [path for path in folder.files(".parquet") if device is None or device in path.split("/")]
    return [record for path in paths for record in read_file(folder, path, cell)]


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


def _check_place(table: pa.Table, path: PurePosixPath, where: str) -> None:
    folder = path.parent.name
    if not folder.startswith("device="):
        return
    for column, named in (("device", folder.removeprefix("device=")), ("run_id", path.stem)):
        if others := sorted(set(table[column].unique().to_pylist()) - {named}):
            raise StoreError(f"records in {where}", f"records of {column} {others[0]!r}", f"move the file back to {column} {others[0]!r}")
