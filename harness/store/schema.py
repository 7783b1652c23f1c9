"""The Parquet schema of a record: column types, versions, and what is refused on read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from harness.errors import StoreError
from harness.records import COLUMNS, ENVIRONMENT, EVIDENCE, SCHEMA_VERSION
from harness.store.digest import METADATA_KEY, digest

_DEVICE = pa.dictionary(pa.int32(), pa.string())
"""A dictionary, because readers infer one from the folder name `device=...` and refuse to merge it with a plain string."""

_EVIDENCE = {
    "ring": pa.int64(),
    "nodes": pa.int64(),
    "floors": pa.struct([("empty_us", pa.float64()), ("touch_us", pa.float64())]),
    "tick": pa.float64(),
    "canaries": pa.list_(pa.float64()),
    "doubled": pa.float64(),
    "telemetry": pa.struct(
        [
            ("samples", pa.int64()),
            *((name, pa.float64()) for name in ("sm_clock_mhz_min", "sm_clock_mhz_median", "power_w_max", "temperature_c_max")),
            ("throttled", pa.list_(pa.string())),
            ("others", pa.int64()),
            ("changed", pa.list_(pa.string())),
        ]
    ),
}
"""Buffers touched, graph nodes, an empty and a touch kernel in us, the timer's tick in ns, canary times in us in the order
taken, relative change of the time when the ring is doubled, what the GPU's sensors showed while the cell was measured."""

_INTEGERS = {"schema_version", "attempt", "seq", "block", "position", "compiles_in_lease"}
_FLOATS = {"value", "duration"}
_FLAGS = {"dirty", "converged"}
_STRING_LISTS = {"binary_hash", "grid", "config"}

RESTORE = "restore the file (one that git has: git checkout -- FILE), or move its run's folder away and submit again"
OURS = "give a Parquet file that this harness wrote"

REQUIRED = frozenset(
    {"schema_version", "run_id", "job_id", "attempt", "seq", "arm", "dirty", "code_digest"}
    | {"kernel", "variant", "case", "dtype", "device", "kind", "status"}
)
"""Columns that are never null."""


def _type(column: str) -> pa.DataType:
    special = {
        "device": _DEVICE,
        "samples": pa.list_(pa.float64()),
        "started_at": pa.timestamp("us", tz="UTC"),
        "evidence": pa.struct([(name, _EVIDENCE[name]) for name in EVIDENCE]),
        "environment": pa.struct([(name, pa.int64() if name == "memory_bytes" else pa.string()) for name in ENVIRONMENT]),
    }
    if column in special:
        return special[column]
    if column in _INTEGERS:
        return pa.int64()
    if column in _FLOATS:
        return pa.float64()
    if column in _FLAGS:
        return pa.bool_()
    return pa.list_(pa.string()) if column in _STRING_LISTS else pa.string()


SCHEMA = pa.schema([pa.field(name, _type(name)) for name in COLUMNS])
"""Every column of a record, in the record's order."""

VERSION_COLUMN = "schema_version"

UPGRADES: Mapping[int, Callable[[pa.Table], pa.Table]] = {}
"""By version: the function that turns a table of that version into one of the next. Empty, as version 1 is the first."""


def current(table: pa.Table, where: str) -> pa.Table:
    """The table in today's schema, upgraded from an older version where need be.

    Args:
        table: what a Parquet file holds.
        where: the file, for the error.

    Raises:
        StoreError: no schema version, several, a newer or unknown one; values that are not those that were written; other
            columns or types; null where none may be.
    """
    version = _version(table, where)
    _check_digest(table, where)
    table = _upgraded(table, version)
    missing = [name for name in COLUMNS if name not in table.column_names]
    unknown = [name for name in table.column_names if name not in COLUMNS]
    if missing or unknown or len(table.column_names) != len(COLUMNS):
        found = f"columns missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
        raise StoreError(f"records in {where}", found, OURS)
    try:
        table = table.select(list(COLUMNS)).cast(SCHEMA)
    except pa.ArrowException as error:
        raise StoreError(f"records in {where}", f"a column of another type: {error}", OURS) from error
    check_required(table, where)
    return table


def is_current(table: pa.Table, where: str) -> bool:
    """Whether a table is of today's version and has its columns' types; it may have some of the columns alone.

    Raises:
        StoreError: no schema version, several, a newer or unknown one.
    """
    types = {field.name: field.type for field in table.schema}
    return _version(table, where) == SCHEMA_VERSION and all(
        SCHEMA.get_field_index(name) >= 0 and SCHEMA.field(name).type == kind for name, kind in types.items()
    )


def check_required(table: pa.Table, where: str) -> None:
    """Refuse nulls in the columns that every record has, as far as the table has them.

    Raises:
        StoreError: one of them holds a null; it is named.
    """
    for name in COLUMNS:
        if name in REQUIRED and name in table.column_names and (nulls := table[name].null_count):
            raise StoreError(
                f"records in {where}", f"{nulls} of {table.num_rows} rows have no {name}", f"fill in {name}: every record has one"
            )


def _check_digest(table: pa.Table, where: str) -> None:
    written = (table.schema.metadata or {}).get(METADATA_KEY)
    if written is None:
        raise StoreError(f"records in {where}", f"no {METADATA_KEY.decode()} in the file", OURS)
    if (found := digest(table)) != written:
        what = f"its content has digest {found.decode()[:12]}, what was written had {written.decode(errors='replace')[:12]}"
        raise StoreError(f"records in {where}", what, RESTORE)


def _version(table: pa.Table, where: str) -> int:
    if VERSION_COLUMN not in table.column_names:
        raise StoreError(f"records in {where}", "a Parquet file with no schema_version column", OURS)
    versions = table[VERSION_COLUMN].unique().to_pylist()
    if not versions:
        return SCHEMA_VERSION
    if len(versions) > 1 or not isinstance(versions[0], int):
        raise StoreError(f"records in {where}", f"schema versions {versions}", "give a Parquet file with one schema version")
    version = versions[0]
    oldest = min(UPGRADES, default=SCHEMA_VERSION)
    if not oldest <= version <= SCHEMA_VERSION:
        do = "install a newer harness" if version > SCHEMA_VERSION else "give a Parquet file that a harness wrote"
        raise StoreError(f"records in {where}", f"schema version {version}; this harness reads {oldest} to {SCHEMA_VERSION}", do)
    return version


def _upgraded(table: pa.Table, version: int) -> pa.Table:
    if version == SCHEMA_VERSION:
        return table
    for step in range(version, SCHEMA_VERSION):
        table = UPGRADES[step](table)
    index = table.column_names.index(VERSION_COLUMN)
    return table.set_column(index, VERSION_COLUMN, pa.array([SCHEMA_VERSION] * table.num_rows, pa.int64()))
