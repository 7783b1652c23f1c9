"""What is known of some code: its own answers first, the best of them, and those of other code's runs where it lacks one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.records import Record
from harness.store.baselines import accept
from harness.store.lookup import Results
from harness.store.runs import RunStore

Make = Callable[..., Record]
MakeRun = Callable[..., dict[str, Any]]
Put = Callable[..., None]
BASE, PR, OTHER = "ba5e" * 10, "0123" * 10, "4567" * 10


@pytest.fixture
def results(store: RunStore, tmp_path: Path) -> Callable[[], Results]:
    """What is known, as of the call."""
    return lambda: Results(store, RunStore(tmp_path / "compiled"), tmp_path / "baselines")


@pytest.fixture
def put(store: RunStore, make_record: Make, make_run: MakeRun) -> Put:
    """`put(3, PR, {"value": 2.0}, against=BASE)`: the run `run3`, of 3 January, of that code; records of the arm `base` are of the other.

    `jobs` and `base_jobs` are the digests of the job files of its head and of its base.
    """

    def write(
        day: int, code: str, *records: dict[str, Any], against: str | None = None, jobs: str = "j", base_jobs: str = "j", **fields: Any
    ) -> None:
        run_id, when = f"run{day}", f"2026-01-{day:02}T12:00:00+00:00"
        tree = {"ref": "main", "resolved": "main", "commit": None, "tree": "7ee" * 10}
        base = against and tree | {"code_digest": against, "jobs": base_jobs}
        found = [
            make_record(**({"run_id": run_id, "code_digest": against if r.get("arm") == "base" else code, "kind": "correctness"} | r))
            for r in records
        ]
        store.write(make_run(run_id=run_id, created_at=when, code_digest=code, against=base, jobs=jobs, **fields), found)

    return write


def ended(status: str, reason: str | None = None, **columns: Any) -> dict[str, Any]:
    return {"value": None, "samples": None, "metric": None, "status": status, "reason": reason, **columns}


def known(results: Results, code: str = BASE, **options: Any) -> list[tuple[str, str, str]]:
    """Run, arm and status of every record that stands for some code."""
    found = results.of(code, **({"dirty": False} | options))
    return [(r.run_id, r.arm, r.status) for r in found.records] if found else []


class TestTheBaseArmOfOtherCodesRun:
    def test_stands_where_nothing_else_does(self, put: Put, results: Callable[[], Results]) -> None:
        put(1, PR, {}, {"arm": "base"}, against=BASE)
        assert [("run1", "base", "ok")] == known(results())

    def test_that_was_measured_under_other_job_files_says_nothing_of_the_code(self, put: Put, results: Callable[[], Results]) -> None:
        put(1, PR, {}, ended("wrong", arm="base"), against=BASE, jobs="stricter")
        assert results().of(BASE, dirty=False) is None

    def test_stands_in_the_diff_of_that_very_run_under_any_job_files(self, put: Put, results: Callable[[], Results]) -> None:
        put(1, PR, {}, {"arm": "base"}, against=BASE, jobs="stricter")
        assert [("run1", "base", "ok")] == known(results(), judged={"run1"})

    @pytest.mark.parametrize("judged", [set(), {"run2"}], ids=["another-diff", "its-own-diff"])
    def test_never_wins_over_the_codes_own_answer_even_by_failing(self, put: Put, results: Callable[[], Results], judged: set[str]) -> None:
        put(1, BASE, {})
        put(2, PR, {}, ended("wrong", arm="base"), against=BASE)
        assert [("run1", "head", "ok")] == known(results(), judged=judged)

    def test_never_wins_over_an_accepted_answer(self, put: Put, results: Callable[[], Results], store: RunStore, tmp_path: Path) -> None:
        put(1, BASE, {})
        accept(store, "run1", tmp_path / "baselines")
        (tmp_path / "runs/run1/run.json").unlink()
        put(2, PR, {}, ended("wrong", arm="base"), against=BASE)
        assert [("run1", "head", "ok")] == known(results())

    def test_stands_where_no_unit_came_to_the_codes_own(self, put: Put, results: Callable[[], Results]) -> None:
        put(1, BASE, ended("no_capacity"))
        put(2, PR, {}, {"arm": "base"}, against=BASE)
        assert [("run2", "base", "ok")] == known(results())

    def test_of_a_dirty_worktree_counts_where_dirty_runs_do(self, put: Put, results: Callable[[], Results]) -> None:
        put(1, PR, {}, {"arm": "base"}, against=BASE, dirty=True)
        assert ([], 1, 1) == tuple(
            found if not found else len(found)
            for found in (known(results()), known(results(), dirty=True), known(results(), judged={"run1"}))
        )

    def test_of_a_run_from_before_job_files_were_told_apart_does_not_count(
        self, put: Put, results: Callable[[], Results], make_record: Make, make_run: MakeRun, store: RunStore
    ) -> None:
        base = {"ref": "main", "resolved": "main", "commit": None, "tree": "7ee" * 10, "code_digest": BASE}
        store.write(make_run(code_digest=PR, against=base), [make_record(code_digest=PR), make_record(code_digest=BASE, arm="base")])
        assert [] == known(results())

    def test_is_not_let_in_again_as_a_baseline_while_its_run_is_here(
        self, put: Put, results: Callable[[], Results], store: RunStore, tmp_path: Path
    ) -> None:
        put(1, PR, {}, {"arm": "base"}, against=BASE, dirty=False)
        accept(store, "run1", tmp_path / "baselines")
        run = store.folder.read("run1/run.json").replace(b'"jobs": "j"', b'"jobs": "stricter"', 1)
        store.folder.write("run1/run.json", run)
        assert [] == known(results())


class TestOfTheCodesOwnAnswers:
    @pytest.mark.parametrize(
        ("older", "newer", "expected"),
        [
            ([{}], [{}], "run2"),
            ([{}], [ended("no_capacity")], "run1"),
            ([{}], [ended("skipped", "simulated: no h200 is here")], "run1"),
            ([ended("skipped", "memory: 30 GB")], [ended("skipped", "simulated: no h200 is here")], "run1"),
            ([{}], [{}, ended("cancelled", "budget: over")], "run1"),
            ([ended("no_capacity")], [{}, ended("cancelled", "budget: over")], "run2"),
            ([ended("crash")], [{}], "run1"),
            ([ended("crash")], [ended("skipped", "simulated: no h200 is here")], "run1"),
            ([{}], [ended("crash"), ended("cancelled", "budget: over")], "run2"),
            ([ended("invalid", "replay_differs: y of slot 0")], [{}], "run1"),
            ([{}, ended("invalid", "cursor: it moved")], [{}], "run1"),
            ([ended("invalid", "contended: another process")], [{}], "run2"),
            ([{}, ended("invalid", "not_cold: x", metric="eager_us")], [{}], "run2"),
            ([ended("crash")], [ended("invalid", "replay_differs: y of slot 0")], "run1"),
        ],
        ids=[
            "the-newer-of-two",
            "not-one-without-a-unit",
            "not-one-of-a-simulated-unit",
            "a-planned-skip-rather-than-a-simulated-unit",
            "not-one-that-a-budget-cut-short",
            "one-that-was-cut-short-rather-than-none",
            "a-failure-though-a-rerun-passed",
            "a-failure-though-a-simulated-unit-came-after",
            "a-failure-though-the-rest-was-left-out",
            "one-refused-for-what-the-code-does-though-a-rerun-passed",
            "one-refused-in-part-though-a-rerun-passed",
            "not-one-that-the-machine-spoilt",
            "not-one-of-which-a-figure-beside-was-refused",
            "a-failure-rather-than-one-refused",
        ],
    )
    def test_stands(
        self, put: Put, results: Callable[[], Results], older: list[dict[str, Any]], newer: list[dict[str, Any]], expected: str
    ) -> None:
        put(1, BASE, *older)
        put(2, BASE, *newer)
        assert {expected} == {run_id for run_id, _, _ in known(results())}


class TestOfABase:
    """Of the code that another is held against: by a failure, head could only be better."""

    @pytest.mark.parametrize(
        ("older", "newer", "expected"),
        [
            ([{}], [{}], "run2"),
            ([{}], [ended("timeout")], "run1"),
            ([ended("timeout")], [{}], "run2"),
            ([{}], [ended("invalid", "contended: another process")], "run1"),
            ([{}], [{}, ended("wrong", metric="cosine")], "run1"),
            ([{}], [{}, ended("invalid", "x", metric="cosine")], "run2"),
            ([{}, ended("invalid", "x", metric="worst_step_us")], [{}], "run2"),
            ([ended("invalid", "replay_differs: y of slot 0")], [{}], "run2"),
            ([ended("crash")], [{}, ended("cancelled", "budget: over")], "run1"),
            ([ended("crash")], [ended("wrong")], "run2"),
            ([ended("skipped", "memory: 30 GB")], [ended("oom")], "run1"),
            ([ended("crash")], [ended("skipped", "simulated: no h200 is here")], "run1"),
        ],
        ids=[
            "the-newer-of-two",
            "not-a-failure-that-came-after",
            "not-a-failure-that-came-before",
            "not-one-that-is-not-to-be-trusted",
            "not-one-that-failed-in-a-figure-beside",
            "one-whose-figure-beside-is-not-to-be-trusted",
            "the-newer-though-a-figure-beside-was-refused-before",
            "not-one-that-was-refused-for-what-the-code-does",
            "a-failure-rather-than-a-part",
            "the-newer-of-two-failures",
            "a-planned-skip-rather-than-a-failure",
            "a-failure-though-a-simulated-unit-came-after",
        ],
    )
    def test_stands(
        self, put: Put, results: Callable[[], Results], older: list[dict[str, Any]], newer: list[dict[str, Any]], expected: str
    ) -> None:
        put(1, BASE, *older)
        put(2, BASE, *newer)
        assert {expected} == {run_id for run_id, _, _ in known(results(), prefer_good=True)}

    @pytest.mark.parametrize(
        ("own", "as_base", "expected"),
        [({}, {}, "run1"), (ended("timeout"), {}, "run2"), (ended("timeout"), ended("wrong"), "run1"), ({}, ended("wrong"), "run1")],
        ids=["its-own", "a-good-one-of-a-pair-rather-than-its-own-failure", "its-own-failure", "its-own-though-the-other-failed"],
    )
    def test_stands_before_what_a_paired_run_measured_of_it(
        self, put: Put, results: Callable[[], Results], own: dict[str, Any], as_base: dict[str, Any], expected: str
    ) -> None:
        put(1, BASE, own)
        put(2, PR, {}, as_base | {"arm": "base"}, against=BASE)
        assert [expected] == [run_id for run_id, _, _ in known(results(), prefer_good=True)]


class TestOfSomeKernelsAlone:
    @pytest.fixture
    def scans(self, store: RunStore, tmp_path: Path) -> Callable[[], Results]:
        return lambda: Results(store, RunStore(tmp_path / "compiled"), tmp_path / "baselines", ["sc*"])

    @pytest.mark.parametrize("accepted", [False, True], ids=["run", "baseline"])
    def test_holds_no_other(self, put: Put, scans: Callable[[], Results], store: RunStore, tmp_path: Path, accepted: bool) -> None:
        put(1, BASE, {}, {"kernel": "scan"})
        if accepted:
            accept(store, "run1", tmp_path / "baselines")
            shutil.rmtree(store.folder.root)
        found = scans().of(BASE, dirty=False)
        assert found is not None
        assert ["scan"] == [record.kernel for record in found.records]

    @pytest.mark.parametrize("accepted", [False, True], ids=["run", "baseline"])
    def test_is_nothing_of_code_that_has_results_of_others(
        self, put: Put, scans: Callable[[], Results], store: RunStore, tmp_path: Path, accepted: bool
    ) -> None:
        """And not None: an ancestor must not stand in for code that was measured."""
        put(1, BASE, {})
        if accepted:
            accept(store, "run1", tmp_path / "baselines")
            shutil.rmtree(store.folder.root)
        found = scans().of(BASE, dirty=False)
        assert found is not None
        assert () == found.records

    def test_is_nothing_of_code_that_was_measured_as_the_base_of_other_code(self, put: Put, scans: Callable[[], Results]) -> None:
        put(1, PR, {}, {"arm": "base"}, against=BASE, dirty=False)
        found = scans().of(BASE, dirty=False)
        assert found is not None
        assert () == found.records


class TestWhatIsWanted:
    """By kind and parts of a cell, whose answer is the same as among all others."""

    @pytest.mark.parametrize("accepted", [False, True], ids=["run", "baseline"])
    def test_is_found(self, put: Put, results: Callable[[], Results], store: RunStore, tmp_path: Path, accepted: bool) -> None:
        put(1, BASE, {}, {"kernel": "scan"}, {"kind": "static"}, {"kernel": "scan", "kind": "static"})
        put(2, PR, {}, {"arm": "base"}, {"kind": "static", "arm": "base", "case": "M=8,dtype=bf16"}, against=BASE, dirty=False)
        if accepted:
            accept(store, "run1", tmp_path / "baselines")
            shutil.rmtree(Path(store.folder.root) / "run1")
        found = results().of(BASE, dirty=False, only={"kind": {"static"}, "kernel": {"norm"}})
        assert found is not None
        assert [("norm", "static", "run1"), ("norm", "static", "run2")] == [(r.kernel, r.kind, r.run_id) for r in found.records]


def launches(*blocks: int) -> list[dict[str, Any]]:
    """The launches of ABBA blocks."""
    arms = ("base", "head", "head", "base")
    return [
        {"kind": "latency", "arm": arm, "block": block, "position": 4 * block + i, "launch": f"l{block}{i}"}
        for block in blocks
        for i, arm in enumerate(arms)
    ]


class TestPairs:
    def test_are_of_all_runs_of_the_two_codes(self, put: Put, results: Callable[[], Results]) -> None:
        put(1, PR, *launches(0), against=BASE)
        put(2, PR, *launches(0, 1), against=BASE)
        put(3, PR, *launches(0), against=OTHER)
        found = results().pairs(BASE, PR, dirty=False)
        assert (["run2"] * 4 + ["run1"] * 2, ["run2"] * 4 + ["run1"] * 2) == tuple(
            [r.run_id for r in side] for side in (found.base, found.head)
        )

    def test_are_none_of_a_cell_that_the_budget_cut_short(self, put: Put, results: Callable[[], Results]) -> None:
        put(1, PR, *launches(0, 1), ended("cancelled", "budget: over", kind="latency"), against=BASE)
        assert ((), ()) == (results().pairs(BASE, PR, dirty=False).base, results().pairs(BASE, PR, dirty=False).head)

    def test_are_those_of_the_run_that_ended_where_another_was_cut_short(self, put: Put, results: Callable[[], Results]) -> None:
        put(1, PR, *launches(0, 1, 2), against=BASE)
        put(2, PR, *launches(0, 1), ended("cancelled", "budget: over", kind="latency"), against=BASE)
        assert {"run1"} == {r.run_id for r in results().pairs(BASE, PR, dirty=False).head}
