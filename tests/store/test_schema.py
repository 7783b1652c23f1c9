"""The schema of a record, its versions, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import StoreError
from harness.records import COLUMNS, ENVIRONMENT, EVIDENCE, Record
from harness.store import schema
from harness.store.digest import METADATA_KEY, digest
from harness.store.files import read_parquet
from harness.store.schema import REQUIRED, SCHEMA
from harness.store.tables import to_table

Make = Callable[..., Record]


def write_signed(path: Path, table: pa.Table) -> Path:
    """Write a table as a file that claims to be the harness's own."""
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: digest(table)}), path)
    return path


def replace_column(table: pa.Table, name: str, values: Any, kind: pa.DataType | None = None) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, pa.array(values, kind or table[name].type))


@pytest.fixture
def table(make_record: Make) -> pa.Table:
    return to_table([make_record(), make_record(metric="gbps", value=800.0)], "test")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.parquet"


def test_columns_are_those_of_a_record_in_order() -> None:
    assert list(COLUMNS) == SCHEMA.names


def test_struct_fields_are_those_of_a_record() -> None:
    assert list(EVIDENCE) == SCHEMA.field("evidence").type.names
    assert list(ENVIRONMENT) == SCHEMA.field("environment").type.names


def test_required_columns_are_those_that_a_record_cannot_leave_null() -> None:
    optional = {name for name, kind in Record.__annotations__.items() if "None" in kind}
    structs = {"evidence", "environment"}
    assert set(COLUMNS) - optional - structs == REQUIRED


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("samples", pa.list_(pa.float64())),
        ("value", pa.float64()),
        ("seq", pa.int64()),
        ("dirty", pa.bool_()),
        ("grid", pa.list_(pa.string())),
        ("started_at", pa.timestamp("us", tz="UTC")),
        ("reason", pa.string()),
        ("device", pa.dictionary(pa.int32(), pa.string())),
    ],
)
def test_type_of_column(column: str, kind: pa.DataType) -> None:
    assert kind == SCHEMA.field(column).type


def test_current_version_is_read(path: Path, table: pa.Table) -> None:
    assert ["latency_us", "gbps"] == [record.metric for record in read_parquet(write_signed(path, table))]


def test_newer_version_is_refused(path: Path, table: pa.Table) -> None:
    write_signed(path, replace_column(table, "schema_version", [2, 2]))
    with pytest.raises(StoreError, match="schema version 2; this harness reads 1 to 1") as caught:
        read_parquet(path)
    assert str(path) in caught.value.asked
    assert caught.value.do == "install a newer harness"


@pytest.mark.parametrize(("versions", "found"), [([0, 0], "schema version 0"), ([1, 2], r"\[1, 2\]"), ([None, None], r"\[None\]")])
def test_version_that_never_was_is_refused(path: Path, table: pa.Table, versions: list[int | None], found: str) -> None:
    write_signed(path, replace_column(table, "schema_version", versions))
    with pytest.raises(StoreError, match=found):
        read_parquet(path)


def test_older_version_is_upgraded(path: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    old = replace_column(table, "schema_version", [0, 0])
    old = old.rename_columns(["time" if name == "duration" else name for name in old.column_names])

    def from_0(table: pa.Table) -> pa.Table:
        return table.rename_columns(["duration" if name == "time" else name for name in table.column_names])

    write_signed(path, old)
    with pytest.raises(StoreError, match="reads 1 to 1"):
        read_parquet(path)
    monkeypatch.setattr(schema, "UPGRADES", {0: from_0})
    assert [1, 1] == [record.schema_version for record in read_parquet(path)]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        pytest.param(lambda t: t.drop_columns(["schema_version"]), "no schema_version column", id="no-version"),
        pytest.param(lambda t: pa.table({"a": [1]}), "no schema_version column", id="another-table"),
        pytest.param(lambda t: t.drop_columns(["unit"]), "missing: unit; unknown: none", id="column-missing"),
        pytest.param(lambda t: t.append_column("extra", pa.array([1, 2])), "missing: none; unknown: extra", id="column-unknown"),
        pytest.param(lambda t: t.append_column("value", t["value"]), "columns missing: none", id="column-twice"),
        pytest.param(lambda t: replace_column(t, "value", ["a", "b"], pa.string()), "another type", id="other-type"),
        pytest.param(lambda t: replace_column(t, "kernel", ["norm", None]), "1 of 2 rows have no kernel", id="null-kernel"),
        pytest.param(lambda t: replace_column(t, "status", ["ok", "fine"]), "'fine' is not a valid Status", id="unknown-status"),
        pytest.param(lambda t: replace_column(t, "value", [1.0, float("inf")]), "not finite", id="infinite-value"),
        pytest.param(lambda t: replace_column(t, "samples", [[1.0, None], None]), "1 samples are null", id="null-sample"),
    ],
)
def test_foreign_table_is_refused(path: Path, table: pa.Table, change: Callable[[pa.Table], pa.Table], found: str) -> None:
    write_signed(path, change(table))
    with pytest.raises(StoreError, match=found) as caught:
        read_parquet(path)
    assert str(path) in caught.value.asked


def test_table_of_another_writer_is_refused(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path)
    with pytest.raises(StoreError, match=r"no harness\.digest in the file"):
        read_parquet(path)


def test_value_changed_by_hand_is_refused(path: Path, table: pa.Table) -> None:
    changed = replace_column(table, "value", [12.4, 800.0])
    pq.write_table(changed.replace_schema_metadata({METADATA_KEY: digest(table)}), path)
    with pytest.raises(StoreError, match="its content has digest"):
        read_parquet(path)
