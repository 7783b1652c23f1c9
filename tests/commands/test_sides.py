"""Whose results stand for a ref, and whether head counts as run."""

import shutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from harness.authoring.workspace import find_workspace
from harness.commands import _sides
from harness.commands._sides import Assembler, Sides
from harness.errors import Undecided
from harness.judge.diff import judge
from harness.plan.affected import Change
from harness.plan.describe import KindCell
from harness.plan.refs import resolve
from harness.records import ENVIRONMENT, Cell, Expected, Record
from harness.store.baselines import accept
from harness.store.runs import RunStore

CELL = Cell("scale", "double", "N=8,dtype=fp32", "cpu")
PLANNED = [Expected(CELL, "correctness", 1e-6), Expected(Cell("scale", "twice", "N=8,dtype=fp32", "cpu"), "correctness", 1e-6)]
DECLARED = SimpleNamespace(
    kernels=[SimpleNamespace(name=CELL.kernel, variants=["double", "twice"], cases=[SimpleNamespace(case=CELL.case)])],
    kinds=[SimpleNamespace(name="correctness", cells=[KindCell(CELL.kernel, CELL.variant, CELL.case, 1e-3)])],
)
"""What the code of either side declares, where it is read."""


@pytest.fixture
def branches(repository):
    """main, pr, and child, which set out from pr."""
    for name in ("pr", "child"):
        repository.git("checkout", "-q", "-b", name)
        repository.write("kernels/scale.py", (repository.root / "kernels/scale.py").read_text() + f"# {name}\n")
        repository.commit(name)
    return repository


@pytest.fixture
def store(branches) -> RunStore:
    return RunStore(branches.root / ".harness/runs")


@pytest.fixture
def put(branches, store) -> Callable[..., None]:
    """`put(2, "child", {"value": 1.0}, {"arm": "base"}, against="pr")`: a run of 2 January, whose records are of `CELL`."""

    def write(day: int, ref: str, *records: dict[str, Any], against: str | None = None) -> None:
        assembler = Assembler(find_workspace(branches.root), store, print, compile_missing=False)
        trees = {"head": resolve(assembler.git, ref), "base": against and resolve(assembler.git, against)}
        run_id, when = f"run{day}", f"2026-01-{day:02}T12:00:00+00:00"
        names = ("ref", "resolved", "commit", "tree", "code_digest", "dirty")
        of = {arm: {name: getattr(tree, name) for name in names} | {"jobs": "j"} if tree else None for arm, tree in trees.items()}
        right = {
            "kernel": CELL.kernel,
            "variant": CELL.variant,
            "case": CELL.case,
            "dtype": CELL.dtype,
            "device": CELL.device,
            "kind": "correctness",
            "metric": "rel_l2_error",
            "value": 0.0,
            "status": "ok",
            "method": "correctness/1+a",
            "run_id": run_id,
        }
        found = []
        for columns in records:
            code = {name: of[columns.get("arm", "head")][name] for name in ("commit", "tree", "code_digest", "dirty")}
            found.append(Record(**(right | code | columns)))
        run = of["head"] | {
            "run_id": run_id,
            "created_at": when,
            "finished_at": when,
            "exit_code": 0,
            "matrix": "all",
            "against": of["base"],
            "options": {"filters": {}, "require": [], "launches": 1},
            "declared": {"scale": {"variants": ["double", "twice"], "cases": [CELL.case]}},
            "expected": [{"cell": str(r.cell), "kind": r.kind, "limit": 1e-6} for r in found if r.arm == "head"][:1],
            "by_status": {"ok": 1},
            "required_missing": [],
        }
        store.write(run, found)

    return write


@pytest.fixture
def sides(branches, store, monkeypatch) -> Callable[..., Sides]:
    """Assembles a range; a plan, where one is made, asks for `PLANNED`."""
    monkeypatch.setattr("harness.commands._sides.plan_tree", lambda *_: SimpleNamespace(expected=PLANNED))
    monkeypatch.setattr("harness.commands._sides.describe", lambda _: DECLARED)

    def assemble(text: str, *, plans: bool = True, matrix: str | None = None) -> Sides:
        assembler = Assembler(find_workspace(branches.root), store, print, compile_missing=plans)
        return assembler.sides(text, exact=False, matrix=matrix)

    return assemble


class TestAHeadThatOnlyOtherCodesRunMeasured:
    @pytest.fixture(autouse=True)
    def _as_base(self, put):
        put(1, "main", {})
        put(2, "child", {}, {"arm": "base"}, against="pr")

    def test_was_not_run_and_all_of_the_matrix_is_expected_of_it(self, sides):
        found = sides("main..pr")
        assert (False, tuple(PLANNED)) == (found.head_was_run, found.head.expected)
        assert any("was never run: what is known of it otherwise" in note for note in found.notes)

    def test_has_no_results_where_no_plan_can_be_made(self, sides):
        with pytest.raises(Undecided, match="it was measured as the base of other code alone") as caught:
            sides("main..pr", plans=False, matrix="smoke")
        assert "harness submit --ref pr --matrix smoke" == caught.value.do

    def test_was_run_once_it_has_a_run_of_its_own(self, sides, put):
        put(3, "pr", {})
        found = sides("main..pr")
        assert (True, (PLANNED[0],)) == (found.head_was_run, found.head.expected)


@pytest.mark.parametrize("plans", [True, False], ids=["planned", "no-plan"])
def test_a_head_of_which_only_baselines_are_here_was_not_run(branches, store, put, sides, plans):
    put(1, "main", {})
    put(2, "pr", {})
    accept(store, "run2", branches.root / "baselines")
    (branches.root / ".harness/runs/run2/run.json").unlink()
    found = sides("main..pr", plans=plans)
    assert (False, ["run2"]) == (found.head_was_run, [r.run_id for r in found.head.records])


TIMED = {
    "device": "h200",
    "kind": "latency",
    "metric": "latency_us",
    "value": 1.0,
    "converged": True,
    "environment": {"gpu_model": "x"},
    "method": "graph_ring/2",
}


def test_a_cell_that_the_budget_cut_short_is_not_judged_by_the_launches_it_has(put, sides):
    cut = TIMED | {"metric": None, "value": None, "status": "cancelled", "reason": "budget: over"}
    put(1, "pr", cut, *_launches(0, 1), against="main")
    found = sides("main..pr", plans=False)
    assert [("INCONCLUSIVE", "cancelled")] == [(f.verdict, f.reason) for f in judge(found.base, found.head).findings]


class TestAToleranceThatHeadLoosened:
    """Base's error is 1e-4, head's 4e-3."""

    @pytest.fixture(autouse=True)
    def _runs(self, put, store):
        put(1, "main", {"value": 1e-4})
        put(2, "pr", {"value": 4e-3})
        _plan(store, "run1", limit=1e-3)
        _plan(store, "run2", limit=0.5)

    def test_is_held_against_the_one_of_bases_runs(self, sides):
        assert [("DRIFTED", "tolerance_loosened")] == _judged(sides("main..pr", plans=False))

    def test_is_held_against_the_one_of_bases_code_where_its_runs_are_not_here(self, sides, store, branches):
        accept(store, "run1", branches.root / "baselines")
        (branches.root / ".harness/runs/run1/run.json").unlink()
        assert [("DRIFTED", "tolerance_loosened")] == _judged(sides("main..pr", plans=False))

    def test_is_not_taken_for_bases_where_that_is_not_known(self, sides, store, branches, monkeypatch):
        accept(store, "run1", branches.root / "baselines")
        (branches.root / ".harness/runs/run1/run.json").unlink()
        monkeypatch.setattr(_sides, "describe", lambda _: SimpleNamespace(kernels=DECLARED.kernels, kinds=[]))
        assert [("INCONCLUSIVE", "base_tolerance")] == _judged(sides("main..pr", plans=False))


def test_the_only_run_of_a_commit_is_not_its_own_baseline(put, sides):
    put(1, "main", {})
    with pytest.raises(Undecided, match="of which there are no other results, and a run is never its own baseline"):
        sides("main..run:last")


class TestARunOfBasesOwnCode:
    """main's run has both variants; pr's, which is compared with pr, has one."""

    @pytest.fixture
    def both(self, put, sides) -> Sides:
        put(1, "main", {}, {"variant": "twice"})
        put(2, "pr", {})
        return sides("pr..run:run2", plans=False)

    def test_is_compared_with_the_code_of_an_ancestor(self, both, store):
        assert (store.read_run("run1")["code_digest"], 1) == (both.base.code_digest, both.base.distance)

    def test_must_have_what_changed_since_that_ancestor(self, both):
        assert [("UNCHANGED", "within_limits"), ("MISSING", "no_record")] == _judged(both)[::-1]
        assert 3 == judge(both.base, both.head).exit_code


@pytest.mark.parametrize("day", [1, 3], ids=["before", "after"])
def test_a_run_of_base_that_failed_once_hides_no_drift(put, sides, day):
    put(day, "main", {"status": "timeout", "metric": None, "value": None, "reason": "no end within 240 s"})
    put(2, "main", {"value": 1e-8})
    put(4, "pr", {"value": 4e-7})
    assert [("DRIFTED", "error_grew")] == _judged(sides("main..pr", plans=False))


def test_a_run_of_head_that_failed_once_counts(put, sides):
    put(1, "main", {})
    put(2, "pr", {"status": "timeout", "metric": None, "value": None, "reason": "no end within 240 s"})
    put(3, "pr", {})
    assert [("BROKEN", "timeout")] == _judged(sides("main..pr", plans=False))


RACE = {"status": "invalid", "value": None, "reason": "replay_differs: y of slot 0 is not what eager calls give"}


def _launches(*blocks: int) -> list[dict[str, Any]]:
    """The launches of ABBA blocks."""
    arms = ("base", "head", "head", "base")
    return [TIMED | {"arm": arm, "block": b, "position": 4 * b + i, "launch": f"l{b}{i}"} for b in blocks for i, arm in enumerate(arms)]


class TestATimeThatIsRefusedForWhatTheCodeDoes:
    """A race is not lost in every run. One that is, once, leaves its cell undecided."""

    REFUSED = TIMED | RACE | {"position": 0, "launch": "z"}
    VALID = TIMED | {"position": 0, "launch": "z"}

    def test_is_not_passed_by_a_rerun(self, put, sides):
        put(1, "main", {}, self.VALID)
        put(2, "pr", {}, self.REFUSED)
        put(3, "pr", {}, self.VALID)
        both = sides("main..pr", plans=False)
        found = judge(both.base, both.head)
        assert ({"correctness": "within_limits", "latency": "invalid"}, 3) == ({f.kind: f.reason for f in found.findings}, found.exit_code)

    @pytest.mark.parametrize(("paired", "refused"), [(2, 3), (3, 2)], ids=["later", "earlier"])
    def test_is_not_passed_by_pairs(self, put, sides, paired, refused):
        put(1, "main", self.VALID)
        put(paired, "pr", *_launches(0, 1, 2), against="main")
        put(refused, "pr", self.REFUSED)
        assert [("INCONCLUSIVE", "invalid")] == _judged(sides("main..pr", plans=False))

    def test_is_not_passed_by_other_pairs(self, put, sides):
        bad = [r | (RACE if (r["arm"], r["position"]) == ("head", 1) else {}) for r in _launches(0, 1, 2)]
        put(1, "pr", *_launches(0, 1, 2), against="main")
        put(2, "pr", *bad, against="main")
        assert [("INCONCLUSIVE", "invalid")] == _judged(sides("main..pr", plans=False))

    def test_that_is_only_shown_takes_no_pairs_away(self, put, sides):
        put(1, "main", self.VALID)
        put(
            2, "pr", *_launches(0, 1, 2), {"arm": "head", **TIMED, **RACE, "metric": "graph1_us", "block": 0, "position": 1}, against="main"
        )
        assert [("UNCHANGED", "within_limits")] == _judged(sides("main..pr", plans=False))


class TestADeviceThatHeadReached:
    """Base has correctness and drift of it, and the cell is compiled for it; head, which changed the kernel, ran one kind alone."""

    MEASURED = TIMED | {"kind": "correctness", "metric": "rel_l2_error", "value": 0.0, "method": "correctness/1+a"}
    DRIFT = MEASURED | {"kind": "drift", "metric": "drift_rel_error@1000", "method": "drift/1+a"}
    COMPILED = MEASURED | {"kind": "static", "metric": "registers", "value": 32, "environment": {"triton": "3.7.1", "compiler": "p"}}

    @pytest.fixture(autouse=True)
    def _base(self, put, monkeypatch):
        monkeypatch.setattr(_sides, "change_between", lambda *_: Change(frozenset({"scale"}), frozenset()))
        put(1, "main", self.MEASURED, self.DRIFT, self.COMPILED)

    def test_must_have_all_kinds_that_base_has(self, put, sides):
        put(2, "pr", *_launches(0, 1, 2), against="main")
        both = sides("main..pr", plans=False)
        found = judge(both.base, both.head)
        missing = {f.kind: f.reason for f in found.findings if f.verdict == "MISSING"}
        assert (dict.fromkeys(["correctness", "drift", "static"], "no_record"), 3) == (missing, found.exit_code)
        assert (
            "3 cells (1 correctness, 1 drift, 1 static) of base were left out of head's runs (--matrix all) and are missing, since what "
            "they depend on changed; what it ran is compared alone by: harness diff main..pr --matrix all"
        ) in both.notes

    def test_is_compared_in_what_head_ran_alone_where_the_user_names_the_matrix(self, put, sides):
        put(2, "pr", *_launches(0, 1, 2), against="main")
        both = sides("main..pr", plans=False, matrix="all")
        assert 0 == judge(both.base, both.head).exit_code
        assert "3 cells (1 correctness, 1 drift, 1 static) of base are outside of head's plan and not compared" in both.notes

    def test_is_none_for_which_head_was_only_compiled(self, put, sides):
        put(2, "pr", self.COMPILED)
        both = sides("main..pr", plans=False)
        assert 0 == judge(both.base, both.head).exit_code
        assert "2 cells (1 correctness, 1 drift) of base are outside of head's plan and not compared" in both.notes


def test_cells_that_were_measured_elsewhere_are_said_to_be_so(put, sides, monkeypatch):
    monkeypatch.setattr(_sides, "change_between", lambda *_: Change(frozenset(), frozenset()))
    put(1, "main", {"environment": HOST}, {"variant": "twice", "environment": HOST | {"torch": "2.11.0"}})
    put(2, "pr", {"environment": HOST})
    assert (
        "1 cells (1 correctness) of base were left out of head's runs (--matrix all) and are missing, since nothing of head was measured "
        "with the same software and GPU model; what it ran is compared alone by: harness diff main..pr --matrix all"
    ) in sides("main..pr", plans=False).notes


def _plan(store: RunStore, run_id: str, limit: float) -> None:
    """Give the cells of a run's plan a tolerance."""
    run = store.read_run(run_id)
    store.save(run | {"expected": [e | {"limit": limit} for e in run["expected"]]})


def _judged(both: Sides) -> list[tuple[str, str]]:
    return [(f.verdict, f.reason) for f in judge(both.base, both.head).findings]


class TestAcceptedResultsOfHeadThatItsRunLeavesOut:
    """A revert: head's code was accepted whole, and what is here of base is a run of one case."""

    OTHER: ClassVar = {"case": "N=9,dtype=fp32"}

    @pytest.fixture(autouse=True)
    def _reverted(self, put, store, branches):
        put(1, "pr", {}, self.OTHER)
        accept(store, "run1", branches.root / "baselines")
        shutil.rmtree(branches.root / ".harness/runs/run1")
        put(2, "pr", {})
        put(3, "main", {})

    @pytest.mark.parametrize("matrix", [None, "all"])
    def test_are_not_new_where_base_declares_their_cell(self, sides, store, matrix):
        run = store.read_run("run3")
        store.save(run | {"declared": {"scale": {"variants": ["double", "twice"], "cases": [CELL.case, self.OTHER["case"]]}}})
        found = sides("main..pr", matrix=matrix)
        assert [("UNCHANGED", "bitwise_equal")] == _judged(found) or [("UNCHANGED", "within_limits")] == _judged(found)
        assert matrix or any("1 cells (1 correctness) of head are outside of its runs' plan" in note for note in found.notes)

    def test_are_new_where_base_has_no_such_case(self, sides):
        assert ("NEW", "new_cell") in _judged(sides("main..pr"))


class TestAHeadThatWasNeverRun:
    """Both variants were measured of base."""

    @pytest.fixture(autouse=True)
    def _base_alone(self, put):
        put(1, "main", {}, {"variant": "twice"})

    @pytest.mark.parametrize(("kernels", "expected", "exit_code"), [((), (), 0), (("scale",), tuple(PLANNED), 3)], ids=["equal", "changed"])
    def test_is_asked_for_what_changed_alone(self, sides, monkeypatch, kernels, expected, exit_code):
        monkeypatch.setattr(_sides, "change_between", lambda *_: Change(frozenset(kernels), frozenset()))
        found = sides("main..pr")
        diff = judge(found.base, found.head)
        assert (expected, 0 if not kernels else 2) == (found.head.expected, diff.counts["MISSING"])
        assert kernels or (exit_code, 2) == (diff.exit_code, diff.counts["UNCHANGED"])


class TestAMatrixThatTheUserNames:
    OUTSIDE = "N=9,dtype=fp32"

    @pytest.fixture(autouse=True)
    def _runs(self, put):
        put(1, "main", {})
        put(2, "pr", {})
        put(3, "pr", {"case": self.OUTSIDE})

    def test_leaves_out_what_head_ran_of_others(self, sides):
        found = sides("main..pr", matrix="smoke")
        assert ([CELL], [CELL]) == ([e.cell for e in found.head.expected], [r.cell for r in found.head.records])
        assert "1 cells of head's runs are outside of the matrix smoke and not compared" in found.notes

    def test_is_not_asked_for_where_all_runs_are_of_it(self, sides):
        found = sides("main..pr", matrix="all")
        assert {CELL.case, self.OUTSIDE} == {e.cell.case for e in found.head.expected}


def test_a_dirty_run_of_the_same_code_is_named_and_not_used(put, sides, store):
    put(1, "main", {})
    put(2, "pr", {})
    run = store.read_run("run2")
    store.save(run | {"dirty": True})
    notes = sides("main..pr").notes
    assert "run run2 had this code in a dirty worktree, and stands for no commit" in notes


HOST = {"torch": "2.13.0", "triton": "3.7.1", "harness": "0.1.0"}
COMPILER = {"compiler": "ptxas 12.9"}
UNIT = {"lock_digest": "5e1f", "gpu_model": "NVIDIA H200", "partition": "none", "driver": "570.1", "runtime": "cuda 12.9"}
STATIC = {"device": "h200", "kind": "static", "metric": "registers", "value": 32}
GPU = {"device": "h200"}
KINDS = [({}, HOST), (STATIC, HOST | COMPILER), (GPU, HOST | COMPILER | UNIT)]
"""Columns of the records that a kind makes, and what they carry of the environment; the rest is None."""


class TestBaseStandsForWhatHeadLeftOut:
    """Both variants were measured of base, one of them of head, and nothing that either depends on changed."""

    @pytest.fixture(autouse=True)
    def _equal_code(self, monkeypatch):
        monkeypatch.setattr(_sides, "change_between", lambda *_: Change(frozenset(), frozenset()))

    @pytest.fixture
    def left_out(self, put, sides) -> Callable[..., tuple[str, int]]:
        """The verdict on the variant that head left out, and the exit code."""

        def judged(columns: dict[str, Any], of_head: dict[str, Any], *of_base: dict[str, Any]) -> tuple[str, int]:
            put(1, "main", columns | {"environment": of_head}, *(columns | {"variant": "twice"} | one for one in of_base))
            put(2, "pr", columns | {"environment": of_head})
            both = sides("main..pr", plans=False)
            found = judge(both.base, both.head)
            (verdict,) = {str(f.verdict) for f in found.findings if f.cell.variant == "twice"}
            return verdict, found.exit_code

        return judged

    @pytest.mark.parametrize(("columns", "environment"), KINDS, ids=["interpreter", "static", "unit"])
    def test_where_it_was_measured_alike(self, left_out, columns, environment):
        every = dict.fromkeys(ENVIRONMENT) | environment
        assert ("UNCHANGED", 0) == left_out(columns, every, {"environment": every})

    def test_not_where_it_was_measured_with_something_else(self, left_out):
        assert ("MISSING", 3) == left_out({}, HOST, {"environment": HOST | {"triton": "3.5.0"}})

    def test_not_on_a_unit_where_other_packages_were_installed(self, left_out):
        unit = HOST | COMPILER | UNIT
        assert ("MISSING", 3) == left_out(GPU, unit, {"environment": unit | {"lock_digest": "0f3a"}})

    def test_not_where_neither_side_knows_with_what(self, left_out):
        unknown = HOST | {"triton": None}
        assert ("MISSING", 3) == left_out({}, unknown, {"environment": unknown})

    def test_not_where_one_launch_of_it_was_measured_with_something_else(self, left_out):
        launches = [{"environment": HOST}, {"environment": HOST | {"triton": "3.5.0"}, "metric": "cosine"}]
        assert ("MISSING", 3) == left_out({}, HOST, *launches)

    def test_whatever_an_attempt_was_to_be_measured_with_that_infrastructure_cut_short(self, left_out):
        lost = {"status": "infra", "value": None, "metric": None, "reason": "worker_lost", "attempt": 1}
        assert ("UNCHANGED", 0) == left_out({}, HOST, lost, {"environment": HOST, "attempt": 2})

    def test_not_where_it_was_only_simulated(self, left_out):
        simulated = {"environment": HOST, "status": "skipped", "value": None, "metric": None, "reason": "simulated"}
        assert ("MISSING", 3) == left_out({}, HOST, simulated)
