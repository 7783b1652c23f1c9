"""Parquet files of records: other programs open them, and damage is found."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import StoreError
from harness.records import Cell, Record
from harness.store import schema
from harness.store.baselines import accept
from harness.store.digest import METADATA_KEY, digest
from harness.store.files import encode, file_name, holds_records, of_cell, read_file, read_parquet, skim
from harness.store.folder import open_folder
from harness.store.runs import RunStore
from harness.store.tables import to_table

Make = Callable[..., Record]
MakeRun = Callable[..., dict[str, Any]]


@pytest.fixture
def places(tmp_path: Path, make_record: Make, make_run: MakeRun) -> dict[str, Path]:
    """Two runs on two devices, accepted: where a person may point a program at."""
    store = RunStore(tmp_path / ".harness" / "runs")
    for run_id in ("r1", "r2"):
        records = [make_record(run_id=run_id, device=device, kernel=kernel) for device in ("cpu", "h200") for kernel in ("norm", "scan")]
        store.write(make_run(run_id=run_id), records)
        accept(store, run_id, tmp_path / "baselines")
    records_dir = tmp_path / ".harness" / "runs" / "r1" / "records"
    return {
        "baselines": tmp_path / "baselines",
        "run": records_dir,
        "device-folder": records_dir / "device=h200",
        "file": records_dir / "device=h200" / "r1.parquet",
    }


DEVICES = {
    "baselines": {"cpu": 4, "h200": 4},
    "run": {"cpu": 2, "h200": 2},
    "device-folder": {"h200": 2},
    "file": {"h200": 2},
}


@pytest.mark.parametrize("place", DEVICES)
class TestOtherProgramsOpen:
    def test_pandas(self, places: dict[str, Path], place: str) -> None:
        frame = pd.read_parquet(places[place])
        assert Counter(DEVICES[place]) == Counter(frame["device"])
        assert {12.5} == set(frame["value"])

    @pytest.mark.parametrize("hive", [True, False], ids=["hive", "plain"])
    def test_duckdb(self, places: dict[str, Path], place: str, hive: bool) -> None:
        path = places[place]
        pattern = str(path / "**" / "*.parquet") if path.is_dir() else str(path)
        query = "select device, count(*), any_value(value) from read_parquet(?, hive_partitioning = ?) group by device"
        rows = duckdb.execute(query, [pattern, hive]).fetchall()
        assert {(device, count, 12.5) for device, count in DEVICES[place].items()} == set(rows)

    def test_the_harness(self, places: dict[str, Path], place: str) -> None:
        assert Counter(DEVICES[place]) == Counter(record.device for record in read_parquet(places[place]))


def test_duckdb_opens_the_whole_store(places: dict[str, Path]) -> None:
    pattern = str(places["run"].parent.parent / "**" / "*.parquet")
    rows = duckdb.execute(
        "select run_id, device, count(*) from read_parquet(?, hive_partitioning = true) group by all", [pattern]
    ).fetchall()
    assert {(run_id, device, 2) for run_id in ("r1", "r2") for device in ("cpu", "h200")} == set(rows)


def test_the_harness_opens_a_runs_folder_by_uri(places: dict[str, Path]) -> None:
    assert len(read_parquet(places["run"].parent.as_uri())) == 4


def test_samples_keep_every_bit(tmp_path: Path, make_record: Make) -> None:
    samples = [0.1, 1 / 3, 2**-1074, 1.7976931348623157e308]
    (tmp_path / "x.parquet").write_bytes(encode([make_record(samples=samples)], "x", 22))
    assert samples == pd.read_parquet(tmp_path / "x.parquet")["samples"][0].tolist()


def test_one_cell_of_a_file(tmp_path: Path, make_record: Make) -> None:
    folder = open_folder(tmp_path)
    records = [make_record(variant=variant, metric=metric) for variant in ("chain", "fused") for metric in ("gbps", "latency_us")]
    folder.write("x.parquet", encode(records, "x", 3))
    assert records[2:] == read_file(folder, "x.parquet", of_cell(Cell("norm", "fused", "M=4,dtype=bf16", "h200")))


class TestWhatIsWanted:
    @pytest.fixture
    def unsigned(self, tmp_path: Path, make_record: Make) -> str:
        """A file that says something else than what was written, in a column that no one asks for."""
        content = encode([make_record(kernel="norm"), make_record(kernel="scan")], "x", 3)
        table = pq.read_table(pa.BufferReader(content))
        table = table.set_column(table.schema.get_field_index("value"), "value", pa.array([12.5, 99.0]))
        (tmp_path / "device=h200").mkdir()
        pq.write_table(table, tmp_path / "device=h200" / "r1.parquet", write_page_checksum=True)
        return "device=h200/r1.parquet"

    def test_is_verified_with_its_whole_file(self, tmp_path: Path, unsigned: str) -> None:
        with pytest.raises(StoreError, match="its content has digest"):
            read_file(open_folder(tmp_path), unsigned, {"kernel": {"norm"}})

    def test_is_none_of_a_file_that_is_not_decoded_further(self, tmp_path: Path, unsigned: str) -> None:
        assert [] == read_file(open_folder(tmp_path), unsigned, {"kernel": {"norm"}, "variant": {"chain"}})

    def test_is_none_of_a_file_that_stands_elsewhere_only_after_that_is_said(self, tmp_path: Path, unsigned: str) -> None:
        (tmp_path / unsigned).rename(tmp_path / "device=h200" / "r2.parquet")
        with pytest.raises(StoreError, match="records of run_id 'r1'"):
            read_file(open_folder(tmp_path), "device=h200/r2.parquet", {"kernel": {"none"}})

    def test_is_none_of_a_run_that_wrote_more_only_after_that_is_said(self, tmp_path: Path, unsigned: str) -> None:
        with pytest.raises(StoreError, match="2 records where its run wrote 3"):
            read_file(open_folder(tmp_path), unsigned, {"kernel": {"none"}}, rows=3)

    def test_is_looked_for_in_a_file_of_an_older_schema_too(
        self, tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = to_table([make_record(kernel="norm"), make_record(kernel="scan")], "x")
        old = table.drop_columns(["kernel"]).append_column("operation", table["kernel"].combine_chunks())
        old = old.set_column(old.schema.get_field_index("schema_version"), "schema_version", pa.array([0, 0]))
        pq.write_table(old.replace_schema_metadata({METADATA_KEY: digest(old)}), tmp_path / "x.parquet")
        renamed = {0: lambda table: table.rename_columns([{"operation": "kernel"}.get(name, name) for name in table.column_names])}
        monkeypatch.setattr(schema, "UPGRADES", renamed)
        assert ["scan"] == [record.kernel for record in read_file(open_folder(tmp_path), "x.parquet", {"kernel": {"scan"}})]


class TestSkimming:
    def test_gives_the_columns_asked_for(self, tmp_path: Path, make_record: Make) -> None:
        (tmp_path / "x.parquet").write_bytes(encode([make_record(kernel="norm"), make_record(kernel="scan")], "x", 3))
        assert {"kernel": ["norm", "scan"]} == skim(open_folder(tmp_path), "x.parquet", ["kernel"]).to_pydict()

    def test_refuses_a_newer_version(self, tmp_path: Path, make_record: Make) -> None:
        table = to_table([make_record()], "x")
        newer = table.set_column(table.schema.get_field_index("schema_version"), "schema_version", pa.array([2]))
        pq.write_table(newer, tmp_path / "x.parquet")
        with pytest.raises(StoreError, match="schema version 2; this harness reads 1 to 1"):
            skim(open_folder(tmp_path), "x.parquet", ["kernel"])

    def test_a_flipped_bit_of_a_value_is_refused(self, tmp_path: Path, make_record: Make) -> None:
        name = "a_name_that_compresses_badly_0123456789"
        content = encode([make_record(kernel=name)], "x", 3)
        at = content.index(b"a_name")
        (tmp_path / "x.parquet").write_bytes(content[:at] + b"b" + content[at + 1 :])
        with pytest.raises(StoreError, match="no readable Parquet file"):
            skim(open_folder(tmp_path), "x.parquet", ["kernel"])


@pytest.mark.parametrize("name", ["../r1", "", ".r1", "a/b", "a b", "r1\n"])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    for arguments in ((name, "r1"), ("h200", name)):
        with pytest.raises(StoreError, match="it is no file name"):
            file_name(*arguments)


class TestDamage:
    @pytest.fixture
    def path(self, tmp_path: Path, make_record: Make) -> Path:
        path = tmp_path / "device=h200" / "r1.parquet"
        path.parent.mkdir()
        records = [make_record(kernel=f"k{i}", evidence={"ring": i}, environment={"id": "e"}) for i in range(4)]
        path.write_bytes(encode(records, "x", 3))
        return path

    @pytest.mark.parametrize("keep", [0, 3, 100, -100, -1])
    def test_a_cut_file_is_refused_by_name(self, path: Path, keep: int) -> None:
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(StoreError, match="no readable Parquet file") as caught:
            read_parquet(path)
        assert str(path) in caught.value.asked

    def test_text_is_refused_by_name(self, path: Path) -> None:
        path.write_text("kernel,value\nnorm,1\n")
        with pytest.raises(StoreError, match="no readable Parquet file") as caught:
            read_parquet(path.parent.parent)
        assert str(path) in caught.value.asked

    def test_a_flipped_bit_is_refused_or_harmless(self, path: Path) -> None:
        whole, good = path.read_bytes(), read_parquet(path)
        dice = random.Random(7)
        refused = 0
        for _ in range(150):
            damaged = bytearray(whole)
            damaged[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
            path.write_bytes(damaged)
            try:
                assert good == read_parquet(path)
            except StoreError:
                refused += 1
        assert refused > 75

    def test_a_file_of_another_device_is_refused(self, path: Path) -> None:
        moved = path.parent.parent / "device=cpu" / "r1.parquet"
        moved.parent.mkdir()
        path.rename(moved)
        with pytest.raises(StoreError, match="records of device 'h200'"):
            read_parquet(moved.parent.parent)

    def test_a_file_of_another_run_is_refused(self, path: Path) -> None:
        path.rename(path.with_name("r2.parquet"))
        with pytest.raises(StoreError, match="records of run_id 'r1'"):
            read_parquet(path.parent.parent)

    def test_a_file_taken_elsewhere_is_read(self, path: Path, tmp_path: Path) -> None:
        path.rename(tmp_path / "mine.parquet")
        assert len(read_parquet(tmp_path / "mine.parquet")) == 4

    def test_nothing_there_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="no Parquet file there or below"):
            read_parquet(tmp_path / "absent")


@pytest.mark.parametrize("name", ["device=cpu/run1.parquet", "records/device=cpu/run1.parquet"])
def test_a_folder_of_records_is_known_by_its_devices(tmp_path, name):
    (tmp_path / name).mkdir(parents=True)
    assert holds_records(tmp_path)


def test_a_folder_is_not_searched_for_records_deep_in_it(tmp_path):
    (tmp_path / "runs/run1/records/device=cpu").mkdir(parents=True)
    assert not holds_records(tmp_path)


@pytest.mark.parametrize(("name", "holds"), [("run1.parquet", True), ("run1.txt", False)])
def test_a_file_of_records_is_known_by_its_name(tmp_path, name, holds):
    assert not holds_records(tmp_path / name)
    (tmp_path / name).touch()
    assert holds == holds_records(tmp_path / name)
