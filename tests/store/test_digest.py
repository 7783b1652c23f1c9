"""The digest of a table: it sees every value and no layout."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from harness.store.digest import digest

STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])
LIST = pa.list_(pa.float64())


def of(values: list[Any], kind: pa.DataType, name: str = "column") -> bytes:
    return digest(pa.table({name: pa.array(values, kind)}))


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        pytest.param([1], [2], pa.int64(), id="integer"),
        pytest.param([0], [None], pa.int64(), id="null-integer"),
        pytest.param([1.0], [1.0 + 2**-52], pa.float64(), id="last-bit-of-a-double"),
        pytest.param([True], [False], pa.bool_(), id="flag"),
        pytest.param([False], [None], pa.bool_(), id="null-flag"),
        pytest.param(["ab", "c"], ["a", "bc"], pa.string(), id="border-between-strings"),
        pytest.param([""], [None], pa.string(), id="null-string"),
        pytest.param([[1.0], [2.0]], [[1.0, 2.0], []], LIST, id="border-between-lists"),
        pytest.param([[]], [None], LIST, id="null-list"),
        pytest.param([[1.0]], [[None]], LIST, id="null-in-a-list"),
        pytest.param([{"a": None, "b": None}], [None], STRUCT, id="null-struct"),
        pytest.param([{"a": 1, "b": "x"}], [{"a": 1, "b": "y"}], STRUCT, id="field-of-a-struct"),
        pytest.param([0], [1], pa.timestamp("us", tz="UTC"), id="microsecond"),
        pytest.param(["x", "y"], ["y", "x"], pa.string(), id="order"),
    ],
)
def test_sees(one: list[Any], other: list[Any], kind: pa.DataType) -> None:
    assert of(one, kind) != of(other, kind)
    assert of(one, kind) == of(one, kind)


def test_sees_names() -> None:
    assert of([1], pa.int64(), "a") != of([1], pa.int64(), "b")


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())], ids=["plain", "dictionary"])
def test_does_not_see_chunks_or_encoding(kind: pa.DataType) -> None:
    whole = pa.table({"column": pa.array(["a", "b", "a"], pa.string())})
    parts = pa.table({"column": pa.chunked_array([pa.array(["a"], kind), pa.array(["b", "a"], kind)])})
    assert digest(whole) == digest(parts)


def test_does_not_see_offsets() -> None:
    values = pa.table({"column": pa.array([[9.0], [1.0], None, [2.0, 3.0]], LIST)})
    assert digest(values.slice(1)) == of([[1.0], None, [2.0, 3.0]], LIST)


@pytest.mark.parametrize("values", [["", None], ["é", "", None, "bc"], []], ids=["empty", "mixed", "none"])
def test_strings_are_their_utf8_wherever_they_stand_in_memory(values: list[str | None]) -> None:
    """What files that are accepted already were signed with."""
    longer = pa.table({"column": pa.array(["before", *values, "after"], pa.string())}).slice(1, len(values))
    signed = hashlib.sha256(f"{len(values)}\0column\0".encode())
    for what, numbers in (("rows", np.array([v is not None for v in values], bool)), ("string", [len((v or "").encode()) for v in values])):
        signed.update(f"{what} {len(values)}\0".encode() + np.asarray(numbers, None if what == "rows" else np.int32).tobytes())
    signed.update("".join(v or "" for v in values).encode())
    assert signed.hexdigest().encode() == of(values, pa.string()) == digest(longer)
