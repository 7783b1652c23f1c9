"""A store of runs: nothing is clobbered, nothing is lost, and what is broken is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from harness.errors import StoreError, UnknownNameError
from harness.records import Cell, Record
from harness.store.files import read_parquet
from harness.store.folder import Folder
from harness.store.runs import RunInfo, RunStore, exclude_run
from harness.store.tables import sort_records

Make = Callable[..., Record]
MakeRun = Callable[..., dict[str, Any]]
CASES = {case["id"]: case for case in map(json.loads, (Path(__file__).parent.parent / "cases" / "diff.jsonl").read_text().splitlines())}


@pytest.fixture(params=["disk", "elsewhere"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs" if request.param == "disk" else Folder(fs._MockFileSystem(), "bucket/runs"))


def test_what_is_written_is_read(any_store: RunStore, make_record: Make, make_run: MakeRun) -> None:
    records = [make_record(device=device, kernel=kernel) for device in ("h200", "cpu") for kernel in ("scan", "norm")]
    paths = any_store.write(make_run(), records)
    run, read = any_store.read("r1")
    assert make_run() == {key: value for key, value in run.items() if key != "store"}
    assert sort_records(records[2:]) + sort_records(records[:2]) == read
    assert [f"{any_store.folder}/r1/records/device={device}/r1.parquet" for device in ("h200", "cpu")] == paths


def test_one_cell_of_a_run(store: RunStore, make_record: Make, make_run: MakeRun) -> None:
    records = [make_record(variant=variant, device=device) for variant in ("chain", "fused") for device in ("cpu", "h200")]
    store.write(make_run(), records)
    assert [records[3]] == store.read("r1", Cell("norm", "fused", "M=4,dtype=bf16", "h200"))[1]
    assert store.read("r1", Cell("norm", "fused", "M=4,dtype=bf16", "b200"))[1] == []


def test_a_run_that_has_begun_is_read_without_records(store: RunStore, make_run: MakeRun) -> None:
    store.save(make_run(finished_at=None, exit_code=None, by_status=None))
    assert store.read("r1")[1] == []
    assert ((), {}, False, None) == tuple(getattr(store.last(), name) for name in ("devices", "by_status", "finished", "exit_code"))


def test_records_count_once_run_json_says_so(
    store: RunStore, make_record: Make, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(make_run(finished_at=None))
    monkeypatch.setattr(RunStore, "_save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.write(make_run(), [make_record()])
    monkeypatch.undo()
    assert store.read("r1")[1] == []
    store.write(make_run(), [make_record()])
    assert len(store.read("r1")[1]) == 1


def test_d07_two_writers_of_one_commit_are_both_kept(store: RunStore, make_record: Make, make_run: MakeRun) -> None:
    assert CASES["d07"]["expected"] == "both kept, nothing clobbered"
    ids = [f"r{i}" for i in range(CASES["d07"]["input"]["writers"])]

    def write(run_id: str) -> None:
        for _ in range(5):  # a writer that tries again clobbers nothing either
            RunStore(store.folder).write(make_run(run_id=run_id), [make_record(run_id=run_id, reason=run_id)], replace=True)

    with ThreadPoolExecutor(len(ids)) as pool:
        list(pool.map(write, ids))
    assert sorted(ids) == sorted(info.run_id for info in store.list())
    assert len({info.commit for info in store.list()}) == 1
    assert [[run_id] for run_id in ids] == [[record.reason for record in store.read(run_id)[1]] for run_id in ids]


def test_d12_a_run_is_never_its_own_baseline(make_record: Make) -> None:
    assert CASES["d12"]["expected"] == "own run excluded"
    records = [make_record(run_id="r1"), make_record(run_id="r2"), make_record(run_id="r1", seq=1)]
    assert [records[1]] == exclude_run(records, "r1")


class TestWritingARunAgain:
    @pytest.fixture
    def written(self, store: RunStore, make_record: Make, make_run: MakeRun) -> list[Record]:
        records = [
            make_record(),
            make_record(kernel="scan", metric=None, value=None, samples=None, status="lost", started_at="2026-01-31T13:00:00+01:00"),
        ]
        store.write(make_run(), records)
        return records

    def test_is_refused(self, store: RunStore, written: list[Record], make_run: MakeRun) -> None:
        with pytest.raises(StoreError, match="runs are immutable") as caught:
            store.write(make_run(), written)
        assert "created 2026-01-31T12:00:00+00:00 from main at 0123456789abcdef" in caught.value.found

    def test_with_more_of_it_replaces_it(self, store: RunStore, written: list[Record], make_record: Make, make_run: MakeRun) -> None:
        resumed = [written[0], make_record(kernel="scan"), make_record(device="cpu")]
        store.write(make_run(finished_at="2026-01-31T13:00:00+00:00"), resumed, replace=True)
        run, records = store.read("r1")
        assert ("2026-01-31T13:00:00+00:00", ["cpu", "h200"]) == (run["finished_at"], list(run["store"]["rows"]))
        assert [("cpu", "norm", "ok"), ("h200", "norm", "ok"), ("h200", "scan", "ok")] == [(r.device, r.kernel, r.status) for r in records]

    def test_with_a_block_made_again_replaces_a_torn_one(self, store: RunStore, make_record: Make, make_run: MakeRun) -> None:
        torn = make_record(run_id="r9", status="invalid", value=None, reason="incomplete_block: launch 2 did not end well")
        store.write(make_run(run_id="r9"), [torn])
        with pytest.raises(StoreError, match="1 of its cells"):
            store.write(make_run(run_id="r9"), [make_record(run_id="r9", kernel="scan")], replace=True)
        store.write(make_run(run_id="r9"), [make_record(run_id="r9")], replace=True)
        assert ["ok"] == [record.status for record in store.read("r9")[1]]

    def test_with_the_same_replaces_it(self, store: RunStore, written: list[Record], make_run: MakeRun) -> None:
        store.write(make_run(), written, replace=True)
        assert len(store.read("r1")[1]) == 2

    @pytest.mark.parametrize(
        ("keep", "change", "found"),
        [
            pytest.param([1], {}, "1 of its records and 0 of its cells", id="a-record-gone"),
            pytest.param([0], {}, "0 of its records and 1 of its cells", id="an-unmeasured-cell-gone"),
            pytest.param([0, 1], {"value": 13.0}, "1 of its records and 0 of its cells", id="a-value-changed"),
        ],
    )
    def test_with_less_of_it_is_refused(
        self, store: RunStore, written: list[Record], make_run: MakeRun, keep: list[int], change: dict[str, float], found: str
    ) -> None:
        from dataclasses import replace

        less = [replace(written[i], **change) if written[i].status == "ok" else written[i] for i in keep]
        with pytest.raises(StoreError, match=found):
            store.write(make_run(), less, replace=True)
        assert len(store.read("r1")[1]) == 2

    @pytest.mark.parametrize("finished_at", ["2026-01-31T12:05:00+00:00", None], ids=["finished", "unfinished"])
    def test_by_another_run_of_that_id_is_refused(self, store: RunStore, make_run: MakeRun, finished_at: str | None) -> None:
        store.save(make_run(finished_at=finished_at))
        other = make_run(created_at="2026-02-01T00:00:00+00:00")
        for write in (lambda: store.write(other, [], replace=True), lambda: store.save(other)):
            with pytest.raises(StoreError, match="the id is taken: created 2026-01-31T12:00:00"):
                write()

    def test_description_alone_keeps_the_records(self, store: RunStore, written: list[Record], make_run: MakeRun) -> None:
        store.save(make_run(matrix="smoke"))
        assert ("smoke", 2) == (store.read_run("r1")["matrix"], len(store.read("r1")[1]))


class TestWhatWasMeasuredAgain:
    """Its records before are kept beside those that count, and nothing but a question for them finds them."""

    @pytest.fixture
    def rounds(self, make_record: Make) -> tuple[list[Record], list[Record]]:
        """A cell's records of two rounds."""
        spoilt = make_record(attempt=1, status="invalid", reason="contended", value=None, samples=None)
        return [spoilt, make_record(attempt=1, seq=1)], [make_record(attempt=2), make_record(attempt=2, seq=1)]

    def test_counts_in_its_last_round(self, store: RunStore, rounds: Any, make_run: MakeRun) -> None:
        before, after = rounds
        store.write(make_run(), before)
        store.write(make_run(), after, replace=True, earlier=before)
        assert [2, 2] == [r.attempt for r in store.read("r1")[1]]
        assert [1, 1] == [r.attempt for r in store.read_earlier("r1")]
        assert [2, 2] == [r.attempt for _, records in store.find(after[0].cell) for r in records]
        assert [2, 2] == [r.attempt for r in read_parquet(store.folder.where("r1"))]

    @pytest.mark.parametrize("lacks", ["the first", "the second"])
    def test_is_not_lost(self, store: RunStore, rounds: Any, make_record: Make, make_run: MakeRun, lacks: str) -> None:
        before, after = rounds
        store.write(make_run(), before)
        store.write(make_run(), after, replace=True, earlier=before)
        third = [make_record(attempt=3)]
        with pytest.raises(StoreError, match="2 of its records and 0 of its cells"):
            store.write(make_run(), third, replace=True, earlier=after if lacks == "the first" else before)
        store.write(make_run(), third, replace=True, earlier=[*before, *after])
        assert (1, 4) == (len(store.read("r1")[1]), len(store.read_earlier("r1")))

    def test_is_nothing_of_most_runs(self, store: RunStore, rounds: Any, make_run: MakeRun) -> None:
        store.write(make_run(), rounds[0])
        assert [] == store.read_earlier("r1")

    def test_changes_what_follows_from_it(self, store: RunStore, make_record: Make, make_run: MakeRun) -> None:
        """The speed-up of one variant, where the other was measured again."""
        store.write(make_run(), [make_record(), make_record(metric="speedup", value=2.0)])
        store.write(make_run(), [make_record(), make_record(metric="speedup", value=3.0)], replace=True)
        assert [12.5, 3.0] == [r.value for r in store.read("r1")[1]]


class TestAFinishedRunThatIsTornWhileItIsReplaced:
    """The disk is full, or the process is killed, before or between its files."""

    @pytest.fixture
    def resumed(self, store: RunStore, make_record: Make, make_run: MakeRun) -> list[Record]:
        records = [make_record(device="cpu"), make_record(device="h200", status="lost", value=None, samples=None)]
        store.write(make_run(), records)
        return [make_record(device="cpu"), make_record(device="cpu", metric="gbps"), make_record(device="h200")]

    @pytest.mark.parametrize("writes", range(5))
    def test_is_whole_or_not_finished_and_is_healed_by_writing_it_again(
        self, store: RunStore, resumed: list[Record], make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, writes: int
    ) -> None:
        left = iter(range(writes))
        write = Folder.write

        def torn(folder: Folder, path: str, content: bytes) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            write(folder, path, content)

        monkeypatch.setattr(Folder, "write", torn)
        with suppress(KeyboardInterrupt):
            store.write(make_run(finished_at="2026-01-31T13:00:00+00:00"), resumed, replace=True)
        monkeypatch.undo()
        states = [(True, 2), (False, 0), (False, 0), (False, 0), (True, 3)]
        assert states[writes] == (store.last().finished, len(store.read("r1")[1]))
        store.write(make_run(), resumed, replace=True)
        assert (True, 3) == (store.last().finished, len(store.read("r1")[1]))


def test_records_of_another_run_are_refused(store: RunStore, make_record: Make, make_run: MakeRun) -> None:
    with pytest.raises(StoreError, match="records of run 'r2'"):
        store.write(make_run(), [make_record(), make_record(run_id="r2")])
    assert store.list() == []


class TestDamage:
    @pytest.fixture
    def parquet(self, store: RunStore, make_record: Make, make_run: MakeRun) -> Path:
        (path,) = store.write(make_run(), [make_record(), make_record(seq=1)])
        return Path(path)

    def test_a_missing_file_is_an_error_not_none(self, store: RunStore, parquet: Path) -> None:
        parquet.unlink()
        with pytest.raises(StoreError, match=r"device=h200/r1\.parquet"):
            store.read("r1")

    def test_a_file_of_another_state_is_an_error(self, store: RunStore, parquet: Path, make_record: Make, make_run: MakeRun) -> None:
        older = parquet.read_bytes()
        store.write(make_run(), [make_record(), make_record(seq=1), make_record(seq=2)], replace=True)
        parquet.write_bytes(older)
        with pytest.raises(StoreError, match="2 records where its run wrote 3"):
            store.read("r1")

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("{", "cannot be read"),
            ("[" * 200_000, "cannot be read: RecursionError"),
            ("[]", "cannot be read"),
            ('{"run_id": "r1", "created_at": "x"}', "cannot be read: KeyError('store')"),
            ('{"run_id": "r1", "created_at": "x", "store": {"version": 2, "rows": {}}}', "version 2; this harness reads 1"),
            ('{"run_id": "r2", "created_at": "x", "store": {"version": 1, "rows": {}}}', "it describes run 'r2'"),
        ],
        ids=["torn", "deep", "list", "foreign", "newer", "moved"],
    )
    def test_a_broken_run_json_is_named(self, store: RunStore, parquet: Path, text: str, found: str) -> None:
        path = parquet.parent.parent.parent / "run.json"
        path.write_text(text)
        for read in (lambda: store.read("r1"), store.list):
            with pytest.raises(StoreError) as caught:
                read()
            assert found in caught.value.found
            assert str(path) in caught.value.asked

    def test_a_broken_run_json_hides_no_newer_run(self, store: RunStore, parquet: Path, make_run: MakeRun) -> None:
        store.write({**make_run(), "run_id": "r2"}, [])
        path = parquet.parent.parent.parent / "run.json"
        path.write_text("{")
        assert ("r2", "r2") == (store.last().run_id, store.resolve("last"))
        (path.parent.parent / "r2").rename(path.parent.parent / "r3")
        with pytest.raises(StoreError, match="it describes run 'r2'"):
            store.last()


CELL = "norm/fused/M=4,dtype=bf16@h200"


class TestARunJsonThatReadersCannotUse:
    @pytest.mark.parametrize(
        "key",
        [
            *("created_at", "ref", "resolved", "commit", "tree", "dirty", "code_digest", "matrix", "options", "declared", "expected"),
            *("exit_code", "by_status", "required_missing"),
        ],
    )
    def test_lacks_a_key(self, store: RunStore, make_run: MakeRun, key: str) -> None:
        self.put(store, {name: value for name, value in make_run().items() if name != key})
        self.refused(store, f"no key {key!r}")

    @pytest.mark.parametrize(
        ("change", "found"),
        [
            ({"created_at": 3}, "key 'created_at' is 3"),
            ({"ref": None}, "key 'ref' is None"),
            ({"commit": 3}, "key 'commit' is 3"),
            ({"dirty": "no"}, "key 'dirty' is 'no'"),
            ({"code_digest": None}, "key 'code_digest' is None"),
            ({"jobs": 3}, "key 'jobs' is 3"),
            ({"matrix": ["all"]}, "key 'matrix' is ['all']"),
            ({"expected": None}, "key 'expected' is None"),
            ({"expected": {CELL: "latency"}}, "key 'expected' is "),
            ({"expected": [CELL]}, "key 'expected[0]' is "),
            ({"expected": [{"cell": "norm", "kind": "latency", "limit": None}]}, "key 'expected[0].cell' is 'norm'"),
            ({"expected": [{"cell": None, "kind": "latency", "limit": None}]}, "key 'expected[0].cell' is None"),
            ({"expected": [{"cell": CELL, "kind": 3, "limit": None}]}, "key 'expected[0].kind' is 3"),
            ({"expected": [{"cell": CELL, "kind": "drift", "limit": "1e-3"}]}, "key 'expected[0].limit' is '1e-3'"),
            ({"expected": [{"cell": CELL, "kind": "drift", "limit": True}]}, "key 'expected[0].limit' is True"),
            ({"expected": [{"cell": CELL, "kind": "drift"}]}, "no key 'expected[0].limit'"),
            ({"declared": ["norm"]}, "key 'declared' is ['norm']"),
            ({"declared": {"norm": {"variants": ["fused"]}}}, "no key 'declared.norm.cases'"),
            ({"declared": {"norm": {"variants": "fused", "cases": []}}}, "key 'declared.norm.variants' is 'fused'"),
            ({"options": []}, "key 'options' is []"),
            ({"options": {"require": []}}, "no key 'options.filters'"),
            ({"options": {"filters": {"kernels": "norm"}, "require": []}}, "key 'options.filters' is "),
            ({"options": {"filters": {"colours": []}, "require": []}}, "key 'options.filters' is "),
            ({"options": {"filters": {}, "require": "cpu"}}, "key 'options.require' is 'cpu'"),
            ({"exit_code": 7}, "key 'exit_code' is 7"),
            ({"by_status": {"ok": "many"}}, "key 'by_status.ok' is 'many'"),
            ({"store": {"version": 1, "rows": ["cpu"]}}, "key 'store.rows' is ['cpu']"),
            ({"store": {"version": 1, "rows": {"cpu": None}}}, "key 'store.rows.cpu' is None"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_has_a_value_of_another_shape(self, store: RunStore, make_run: MakeRun, change: dict[str, Any], found: str) -> None:
        self.put(store, make_run() | change)
        self.refused(store, found)

    @pytest.mark.parametrize("launches", [{}, {"launches": None}, {"launches": 0}], ids=["none", "null", "zero"])
    def test_says_no_launches_is_not_resumed_but_read(self, store: RunStore, make_run: MakeRun, launches: dict[str, Any]) -> None:
        store.save(make_run(options={"filters": {}, "require": [], **launches}))
        assert store.read("r1")[1] == []
        with pytest.raises(StoreError, match=r"key 'options\.launches'"):
            store.read_run("r1")

    def put(self, store: RunStore, run: dict[str, Any]) -> None:
        store.folder.write("r1/run.json", json.dumps({"store": {"version": 1, "rows": {}}, **run}).encode())

    def refused(self, store: RunStore, found: str) -> None:
        for read in (lambda: store.read("r1"), lambda: store.read_run("r1"), store.list, lambda: store.resolve("r1")):
            with pytest.raises(StoreError) as caught:
                read()
            assert caught.value.found.startswith(found)
            assert store.folder.where("r1/run.json") in caught.value.asked


class TestNames:
    @pytest.fixture(autouse=True)
    def runs(self, store: RunStore, make_run: MakeRun) -> None:
        store.save(make_run(run_id="20260102-abc", created_at="2026-01-02T00:00:00+00:00"))
        store.save(make_run(run_id="20260103-abd", created_at="2026-01-03T00:00:00.5+00:00", finished_at=None))
        store.save(make_run(run_id="20260101-xyz", created_at="2026-01-03T00:00:00+00:00"))
        store.folder.write("notes/readme.txt", b"no run")

    def test_newest_first(self, store: RunStore) -> None:
        assert ["20260103-abd", "20260101-xyz", "20260102-abc"] == [info.run_id for info in store.list()]

    @pytest.mark.parametrize(
        ("name", "run_id"),
        [
            ("20260102-abc", "20260102-abc"),
            ("run:20260102-abc", "20260102-abc"),
            ("20260102", "20260102-abc"),
            ("last", "20260103-abd"),
            ("run:last", "20260103-abd"),
        ],
    )
    def test_resolve(self, store: RunStore, name: str, run_id: str) -> None:
        assert run_id == store.resolve(name)

    @pytest.mark.parametrize(
        ("name", "found"),
        [
            ("2026010", "3 runs begin so"),
            ("nope", "the newest runs in"),
            ("notes", "runs: 20260101-xyz, .*-abd\n"),
            ("", "newest"),
            ("run:", "newest"),
        ],
    )
    def test_no_or_several_runs_of_a_name(self, store: RunStore, name: str, found: str) -> None:
        with pytest.raises(UnknownNameError, match=found):
            store.resolve(name)


def test_an_empty_store_has_no_last_run(store: RunStore) -> None:
    assert store.list() == []
    for ask in (store.last, lambda: store.resolve("last"), lambda: store.read("r1")):
        with pytest.raises(UnknownNameError, match="no runs in"):
            ask()


def test_info_says_what_the_run_was(store: RunStore, make_record: Make, make_run: MakeRun) -> None:
    store.write(make_run(), [make_record(device="h200"), make_record(device="cpu")])
    expected = RunInfo(
        run_id="r1",
        ref="main",
        commit="0123456789abcdef0123456789abcdef01234567",
        tree="7ee" * 10,
        dirty=False,
        code_digest="c0de" * 10,
        base_digest=None,
        same_jobs=False,
        matrix="all",
        started_at="2026-01-31T12:00:00+00:00",
        finished=True,
        exit_code=0,
        devices=("cpu", "h200"),
        by_status={"ok": 1},
    )
    assert [expected] == store.list()
