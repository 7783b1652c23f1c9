"""Turns records into an Arrow table and back.

Two normal forms, because Parquet has no word for the difference: a None inside `evidence` or `environment` reads back as
an absent key, and `started_at` reads back as the same instant in UTC (`2025-01-31T12:00:00+00:00`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import StoreError
from harness.records import COLUMNS, ENVIRONMENT, EVIDENCE, SCHEMA_VERSION, Record
from harness.store.schema import RESTORE, SCHEMA, check_required

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STRUCTS = {"evidence": frozenset(EVIDENCE), "environment": frozenset(ENVIRONMENT)}
_FLOORS = frozenset(SCHEMA.field("evidence").type.field("floors").type.names)


def sort_records(records: Iterable[Record]) -> list[Record]:
    """Records by kernel, variant, case, kind, metric, arm and seq; equal ones keep their order."""
    return sorted(records, key=lambda r: (r.kernel, r.variant, r.case, r.kind, r.metric or "", r.arm, r.seq))


def fingerprint(record: Record) -> str:
    """A text that is equal for equal records."""
    return json.dumps(record.to_json(), sort_keys=True)


def to_table(records: Sequence[Record], where: str) -> pa.Table:
    """The records as a table of `SCHEMA`, in the order given.

    Args:
        records: any number of records.
        where: what they are to become, for the error.

    Raises:
        StoreError: a value that its column cannot hold (the column is named), an unknown key of `evidence` or
            `environment`, or a schema version that is not today's.
    """
    rows = list(map(attrgetter(*COLUMNS), records))
    columns = dict(zip(COLUMNS, zip(*rows, strict=True) if rows else [()] * len(COLUMNS), strict=True))
    if versions := set(columns["schema_version"]) - {SCHEMA_VERSION}:
        raise StoreError(f"to write {where}", f"records of schema version {sorted(versions)}", f"write version {SCHEMA_VERSION}")
    arrays = [_array(name, columns[name], where) for name in COLUMNS]
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    check_required(table, where)
    return table


def from_table(table: pa.Table, where: str) -> list[Record]:
    """The records of a table of `SCHEMA`, in its order.

    Args:
        table: as `harness.store.schema.current` returns it.
        where: where it comes from, for the error.

    Raises:
        StoreError: an unknown status, or a value that is not finite.
    """
    columns = [_values(name, table[name].combine_chunks(), where) for name in COLUMNS]
    try:
        return list(map(Record.of_row, zip(*columns, strict=True)))
    except ValueError as error:
        raise StoreError(f"records in {where}", str(error), RESTORE) from error


def earliest(times: pa.ChunkedArray) -> str | None:
    """The first of a column's times, in ISO 8601 as a record has it; None where there is none."""
    return _instant(pc.min(times.cast(pa.int64())).as_py())


def _array(name: str, values: Sequence[Any], where: str) -> pa.Array:
    kind = SCHEMA.field(name).type
    try:
        if name in _STRUCTS:
            return pa.array([_struct(name, value) for value in values], type=kind)
        if name == "started_at":
            return pa.array([None if value is None else _micros(value) for value in values], pa.int64()).cast(kind)
        if pa.types.is_list(kind) and any(isinstance(value, str) for value in values):
            raise TypeError("a string is no list")  # Arrow would take it for a list of characters
        return pa.array(values, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"to write {where}", f"column {name}: {error}", f"give {name} as {kind}") from error


def _struct(name: str, value: dict[str, Any]) -> dict[str, Any] | None:
    unknown = sorted(set(value) - _STRUCTS[name])
    if name == "evidence" and value.get("floors") is not None:
        unknown += sorted(f"floors.{key}" for key in set(value["floors"]) - _FLOORS)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}")
    return value or None


def _micros(text: str) -> int:
    """Microseconds since 1970 of an ISO 8601 time with an offset."""
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(f"{text!r} has no offset from UTC")
    return (instant - _EPOCH) // timedelta(microseconds=1)


def _instant(micros: int | None) -> str | None:
    """The reverse of `_micros`."""
    return None if micros is None else (_EPOCH + timedelta(microseconds=micros)).isoformat()


def _values(name: str, array: pa.Array, where: str) -> list[Any]:
    if name == "samples":
        return _lists(array, where)
    if name == "started_at":
        distinct = array.cast(pa.int64()).dictionary_encode()
        return _spread(list(map(_instant, distinct.dictionary.to_pylist())), distinct.indices)
    if name == "environment":
        return _few(array)
    if name in _STRUCTS:
        return [_without_nulls(value or {}) for value in array.to_pylist()]
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode().to_pylist()
    return array.to_pylist()


def _spread(values: list[Any], indices: pa.Array) -> list[Any]:
    return [None if i is None else values[i] for i in indices.to_pylist()]


def _few(array: pa.StructArray) -> list[dict[str, Any]]:
    """Structs of plain fields, of which few differ: those are looked at, and each row gets a copy of its own."""
    rows = list(zip(*(field.to_pylist() for field in array.flatten()), strict=True))
    distinct = {row: {name: value for name, value in zip(array.type.names, row, strict=True) if value is not None} for row in set(rows)}
    return [dict(distinct[row]) for row in rows]


def _lists(array: pa.ListArray, where: str) -> list[list[float] | None]:
    """Lists of doubles, by way of one flat list: element by element is twenty times slower."""
    flat = array.flatten()
    if flat.null_count:
        raise StoreError(f"records in {where}", f"{flat.null_count} samples are null", RESTORE)
    numbers = flat.to_numpy().tolist()
    lists: list[list[float] | None] = []
    start = 0
    for length in array.value_lengths().to_pylist():
        lists.append(None if length is None else numbers[start : start + length])
        start += length or 0
    return lists


def _without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    return {key: _without_nulls(item) if isinstance(item, dict) else item for key, item in value.items() if item is not None}
