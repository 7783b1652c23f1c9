"""A digest of what a table holds, so that a file that says something else than what was written is found out.

Parquet's page checksums leave page headers and the footer open: a flipped bit there can change values in silence.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

METADATA_KEY = b"harness.digest"
"""Where a file keeps the digest of its table."""


def digest(table: pa.Table) -> bytes:
    """SHA-256, in hexadecimal, of a table's column names and values; the same however Arrow lays them out, whichever its version."""
    found = hashlib.sha256(f"{table.num_rows}".encode())
    for name, column in zip(table.column_names, table.columns, strict=True):
        found.update(f"\0{name}\0".encode())
        _add(found, column.combine_chunks())
    return found.hexdigest().encode()


def _add(found: Any, array: pa.Array) -> None:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    _add_numbers(found, "rows", array.is_valid())
    if pa.types.is_struct(kind):
        for field, child in zip(kind, array.flatten(), strict=True):
            found.update(f"\0{field.name}\0".encode())
            _add(found, child)
    elif pa.types.is_list(kind):
        _add_numbers(found, "list", pc.fill_null(array.value_lengths(), 0))
        _add(found, array.flatten())
    elif pa.types.is_string(kind):
        _add_numbers(found, "string", pc.fill_null(pc.binary_length(array), 0))
        found.update(_text(array.drop_null()))
    elif pa.types.is_boolean(kind):
        _add_numbers(found, "bool", pc.fill_null(array, False))
    else:
        numbers = array.cast(pa.int64()) if pa.types.is_timestamp(kind) else array
        _add_numbers(found, str(numbers.type), pc.fill_null(numbers, 0))


def _text(array: pa.StringArray) -> memoryview | bytes:
    """The strings one after the other in UTF-8, as Arrow has them in memory: no string is made of any."""
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return b""
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[array.offset] : ends[array.offset + len(array)]]


def _add_numbers(found: Any, what: str, array: pa.Array) -> None:
    found.update(f"{what} {len(array)}\0".encode())
    found.update(array.to_numpy(zero_copy_only=False).tobytes())
