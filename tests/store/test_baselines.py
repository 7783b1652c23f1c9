"""Baselines: only runs that passed, never changed, small enough for git."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness.errors import StoreError, UnknownNameError
from harness.records import Cell, Record
from harness.store import files
from harness.store.baselines import BaselineInfo, accept, baseline_cells, list_baselines, read_baselines
from harness.store.files import of_cell
from harness.store.lookup import Results
from harness.store.runs import RunStore

Make = Callable[..., Record]
MakeRun = Callable[..., dict[str, Any]]


@pytest.fixture
def baselines(tmp_path: Path) -> Path:
    return tmp_path / "baselines"


@pytest.fixture
def records(store: RunStore, make_record: Make, make_run: MakeRun) -> list[Record]:
    found = [
        make_record(evidence={"ring": 9}),
        make_record(kind="static", metric="registers", value=32.0, samples=None),
        make_record(device="cpu", kind="correctness", metric="rel_l2_error", value=0.0, samples=None),
    ]
    store.write(make_run(), found)
    return found


def test_medians_are_kept_and_samples_are_not(store: RunStore, records: list[Record], baselines: Path) -> None:
    report = accept(store, "r1", baselines)
    assert [records[2], replace(records[0], samples=None), records[1]] == read_baselines(baselines)
    files = [("cpu", 1, True, f"{baselines}/device=cpu/r1.parquet"), ("h200", 2, True, f"{baselines}/device=h200/r1.parquet")]
    assert files == [(file.device, file.records, file.new, file.path) for file in report.files]
    assert [Path(file.path).stat().st_size for file in report.files] == [file.size_bytes for file in report.files]
    assert (False, {}) == (report.already, report.left_out)


@pytest.mark.parametrize(
    ("run", "reasons"),
    [
        ({"finished_at": None, "exit_code": None}, "it has not finished"),
        ({"exit_code": 1}, "it did not pass: exit code 1"),
        ({"exit_code": 3}, "it did not pass: exit code 3"),
        ({"dirty": True}, "its tree was dirty"),
        ({"commit": None}, "it has no commit"),
        ({"exit_code": 130, "dirty": True, "commit": None}, "it did not pass: exit code 130; its tree was dirty; it has no commit"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_run_that_may_not_be_accepted(
    store: RunStore, make_record: Make, make_run: MakeRun, baselines: Path, run: dict[str, Any], reasons: str
) -> None:
    store.write(make_run(**run), [make_record()])
    with pytest.raises(StoreError) as caught:
        accept(store, "r1", baselines)
    assert reasons == caught.value.found
    assert not baselines.exists()


def test_only_what_was_measured_or_skipped_is_copied(store: RunStore, make_record: Make, make_run: MakeRun, baselines: Path) -> None:
    def ended(status: str, **columns: Any) -> Record:
        return make_record(status=status, kernel=status, value=None, samples=None, **columns)

    records = [
        make_record(),
        ended("skipped", reason="memory"),
        ended("no_capacity"),
        ended("invalid"),
        make_record(kernel="k", dirty=True),
    ]
    store.write(make_run(), [*records, make_record(kernel="l", commit=None), ended("no_capacity", device="b200")])
    report = accept(store, "r1", baselines)
    assert ["norm", "skipped"] == [record.kernel for record in read_baselines(baselines)]
    assert {"dirty": 1, "invalid": 1, "no commit": 1, "no_capacity": 2} == report.left_out


def test_a_cell_of_which_something_may_not_be_copied_is_left_out_whole(
    store: RunStore, make_record: Make, make_run: MakeRun, baselines: Path
) -> None:
    launches = [make_record(position=n, launch=f"l{n}") for n in range(2)]
    left_out = make_record(metric=None, value=None, samples=None, status="cancelled", reason="budget: over")
    others = [make_record(kernel="scan"), make_record(kind="static", metric="registers", samples=None)]
    store.write(make_run(), [*launches, left_out, *others])
    assert {"cancelled": 3} == accept(store, "r1", baselines).left_out
    assert [("norm", "static"), ("scan", "latency")] == [(r.kernel, r.kind) for r in read_baselines(baselines)]


@pytest.mark.parametrize(
    ("launch", "why"),
    [
        ({"converged": False}, "not converged"),
        ({"status": "skipped", "reason": "memory", "value": None, "samples": None}, "skipped in some launches"),
    ],
    ids=["not converged", "skipped"],
)
def test_a_cell_whose_launches_do_not_add_up_is_left_out_whole(
    store: RunStore, make_record: Make, make_run: MakeRun, baselines: Path, launch: dict[str, Any], why: str
) -> None:
    """As of the other arm of a pair, by which no run is judged, or of a run of an engine that did not look."""
    launches = [make_record(position=0, launch="l0"), make_record(position=1, launch="l1", **launch)]
    beside = make_record(kernel="scan", metric="eager_us", converged=False)
    store.write(make_run(), [*launches, make_record(kernel="scan"), beside])
    assert {why: 2} == accept(store, "r1", baselines).left_out
    assert {"scan"} == {record.kernel for record in read_baselines(baselines)}


def test_the_answer_of_a_simulated_unit_is_left_out(store: RunStore, make_record: Make, make_run: MakeRun, baselines: Path) -> None:
    simulated = make_record(kernel="scan", value=None, samples=None, status="skipped", reason="simulated: no h200 is here")
    store.write(make_run(), [make_record(), simulated])
    assert {"simulated": 1} == accept(store, "r1", baselines).left_out


@pytest.mark.parametrize(
    ("base_jobs", "copied", "left_out"),
    [
        ("j", ["base", "head"], {}),
        ("other", ["head"], {"base arm under other job files": 1}),
        (None, ["head"], {"base arm under other job files": 1}),
    ],
    ids=["same", "other", "unknown"],
)
def test_the_base_arm_is_copied_where_its_code_has_the_job_files_it_was_measured_under(
    store: RunStore,
    make_record: Make,
    make_run: MakeRun,
    baselines: Path,
    base_jobs: str | None,
    copied: list[str],
    left_out: dict[str, int],
) -> None:
    base = {"ref": "main", "resolved": "main", "commit": None, "tree": "7ee" * 10, "code_digest": "ba5e" * 10, "jobs": base_jobs}
    store.write(make_run(against=base, jobs="j"), [make_record(), make_record(arm="base", code_digest="ba5e" * 10)])
    assert left_out == accept(store, "r1", baselines).left_out
    assert copied == sorted(r.arm for r in read_baselines(baselines))


def test_a_run_that_measured_nothing_is_refused(store: RunStore, make_record: Make, make_run: MakeRun, baselines: Path) -> None:
    store.write(make_run(), [make_record(status="no_capacity", value=None, samples=None)])
    with pytest.raises(StoreError, match="no record of it can be a baseline: 1 no_capacity"):
        accept(store, "r1", baselines)


@pytest.mark.parametrize(
    ("chosen", "copied"),
    [
        ({"devices": ["cpu"]}, [("cpu", "correctness")]),
        ({"kinds": ["static", "correctness"]}, [("cpu", "correctness"), ("h200", "static")]),
        ({"devices": ["h200"], "kinds": ["latency"]}, [("h200", "latency")]),
    ],
)
def test_devices_and_kinds_are_chosen(
    store: RunStore, records: list[Record], baselines: Path, chosen: dict[str, list[str]], copied: list[tuple[str, str]]
) -> None:
    report = accept(store, "r1", baselines, **chosen)
    assert copied == [(record.device, record.kind) for record in read_baselines(baselines)]
    assert {"not asked for": 3 - len(copied)} == report.left_out


@pytest.mark.parametrize("chosen", [{"devices": ["b200"]}, {"kinds": ["drift"]}])
def test_a_device_or_kind_that_the_run_lacks_is_refused(
    store: RunStore, records: list[Record], baselines: Path, chosen: dict[str, list[str]]
) -> None:
    with pytest.raises(UnknownNameError):
        accept(store, "r1", baselines, **chosen)


class TestAcceptingAgain:
    @pytest.mark.parametrize("chosen", [{}, {"kinds": ["static"]}], ids=["all", "part"])
    def test_what_is_there_does_nothing_and_says_so(
        self, store: RunStore, records: list[Record], baselines: Path, chosen: dict[str, list[str]]
    ) -> None:
        accept(store, "r1", baselines)
        before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in baselines.rglob("*.parquet")}
        assert accept(store, "r1", baselines, **chosen).already
        assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in baselines.rglob("*.parquet")}

    def test_another_device_adds_a_file(self, store: RunStore, records: list[Record], baselines: Path) -> None:
        accept(store, "r1", baselines, devices=["cpu"])
        assert [("cpu", False), ("h200", True)] == [(file.device, file.new) for file in accept(store, "r1", baselines).files]

    def test_more_of_a_device_is_refused_and_nothing_written(self, store: RunStore, records: list[Record], baselines: Path) -> None:
        accept(store, "r1", baselines, devices=["h200"], kinds=["static"])
        with pytest.raises(StoreError, match="holds 1 records, not 1 of the 2 to accept") as caught:
            accept(store, "r1", baselines)
        assert "baselines are immutable" in caught.value.do
        assert ["static"] == [record.kind for record in read_baselines(baselines)]

    def test_two_runs_of_one_commit_are_both_kept(
        self, store: RunStore, records: list[Record], make_record: Make, make_run: MakeRun, baselines: Path
    ) -> None:
        store.write(make_run(run_id="r2"), [make_record(run_id="r2", value=13.0)])
        accept(store, "r1", baselines)
        accept(store, "r2", baselines)
        assert ["r1", "r1", "r1", "r2"] == sorted(record.run_id for record in read_baselines(baselines))


def test_one_cell(store: RunStore, records: list[Record], baselines: Path) -> None:
    accept(store, "r1", baselines)
    assert [records[2]] == read_baselines(baselines, of_cell(Cell("norm", "fused", "M=4,dtype=bf16", "cpu")))


class TestRecordsAreMadeOfWhatIsAskedAlone:
    """However much was accepted: everything else stays a column of numbers."""

    @pytest.fixture
    def made(self, store: RunStore, make_record: Make, make_run: MakeRun, baselines: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The kernels of which records are made, in order."""
        kernels = ("norm", "scan")
        for run_id, code_digest in (("r1", "c0de"), ("r2", "5eed")):
            common = {"run_id": run_id, "code_digest": code_digest}
            store.write(make_run(run_id=run_id), [make_record(kernel=k, device=d, **common) for k in kernels for d in ("cpu", "h200")])
            accept(store, run_id, baselines)
        made: list[str] = []
        decode = files.from_table

        def spy(table: pa.Table, where: str) -> list[Record]:
            made.extend(table["kernel"].to_pylist())
            return decode(table, where)

        monkeypatch.setattr(files, "from_table", spy)
        return made

    @pytest.mark.parametrize(
        ("only", "rows"),
        [
            ({"kernel": {"scan"}}, 4),
            ({"kernel": {"scan"}, "device": {"cpu"}}, 2),
            ({"kernel": {"scan"}, "run_id": {"r2"}}, 2),
            ({"kernel": {"scan"}, "code_digest": {"5eed"}, "device": {"h200"}}, 1),
            ({"kernel": {"scan"}, "metric": {"gbps"}}, 0),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
    )
    def test_by_column(self, baselines: Path, made: list[str], only: dict[str, set[str]], rows: int) -> None:
        found = read_baselines(baselines, only)
        assert ["scan"] * rows == [record.kernel for record in found] == made

    def test_a_list_and_the_cells_there_are_need_none(self, baselines: Path, made: list[str]) -> None:
        assert ["r2", "r2", "r1", "r1"] == [info.run_id for info in list_baselines(baselines)]
        assert {Cell(k, "fused", "M=4,dtype=bf16", d) for k in ("norm", "scan") for d in ("cpu", "h200")} == baseline_cells(baselines)
        assert [] == made

    def test_some_code_needs_those_of_its_runs_that_are_not_here(self, store: RunStore, baselines: Path, made: list[str]) -> None:
        shutil.rmtree(Path(store.folder.root))
        results = Results(store, store, baselines)
        found = results.of("5eed", dirty=False)
        assert found is not None
        assert {"r2"} == found.sources
        assert ["norm", "scan"] * 2 == made


def test_nothing_accepted_is_no_baselines(baselines: Path) -> None:
    assert ([], []) == (read_baselines(baselines), list_baselines(baselines))


def test_a_corrupt_file_is_an_error_not_none(store: RunStore, records: list[Record], baselines: Path) -> None:
    path = Path(accept(store, "r1", baselines).files[0].path)
    path.write_bytes(path.read_bytes()[:-9])
    for read in (read_baselines, list_baselines):
        with pytest.raises(StoreError) as caught:
            read(baselines)
        assert str(path) in caught.value.asked


def test_a_file_put_there_by_hand_is_refused(store: RunStore, records: list[Record], baselines: Path) -> None:
    path = Path(accept(store, "r1", baselines).files[0].path)
    path.rename(baselines / "mine.parquet")
    with pytest.raises(StoreError, match=r"mine\.parquet, which `harness baseline accept` did not put there"):
        read_baselines(baselines)


def test_list_says_what_each_file_holds(store: RunStore, records: list[Record], baselines: Path) -> None:
    report = accept(store, "r1", baselines)
    expected = BaselineInfo(
        device="h200",
        run_id="r1",
        commits=("0123456789abcdef0123456789abcdef01234567",),
        code_digests=("c0de" * 10,),
        kinds=("latency", "static"),
        kernels=("norm",),
        cells=1,
        records=2,
        size_bytes=report.files[1].size_bytes,
        started_at="2026-01-31T12:01:00+00:00",
    )
    assert expected == list_baselines(baselines)[0]


def test_a_thousand_records_fit_into_64_kib(store: RunStore, make_record: Make, make_run: MakeRun, baselines: Path) -> None:
    records = [make_record(case=f"M={m},dtype=bf16", seq=m, value=10 + m / 7, samples=[m / 3] * 30) for m in range(1000)]
    store.write(make_run(), records)
    assert accept(store, "r1", baselines).files[0].size_bytes < 64 * 1024
