"""Every expected cell ends as exactly one verdict, whatever is missing or failed on either side."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.errors import Undecided, UnknownNameError
from harness.judge.diff import judge
from harness.judge.model import Policy, Reason, Verdict
from harness.records import Cell

A = "toy/fused/M=1,dtype=bf16@h200"
B = "toy/fused/M=2,dtype=bf16@h200"
CPU = "toy/fused/M=1,dtype=bf16@cpu"

ABSENT = "absent"
UNPLANNED = "unplanned"


def verdicts(diff):
    return [(str(f.verdict), str(f.reason), f.exit_code) for f in diff.findings]


@pytest.fixture
def between(record, side):
    """Judges one correctness cell whose sides ended as named; another cell passes on both, so that something is compared."""

    def run(base: str, head: str, kind: str = "correctness", policy: Policy | None = None):
        sides = []
        for ref, state in (("base", base), ("head", head)):
            other = record(B, kind, 0.001)
            value = 0.001 if state == "ok" else None
            records = [other] if state in (ABSENT, UNPLANNED) else [other, record(A, kind, value, status=state)]
            sides.append(side(ref, *records, expect=() if state == UNPLANNED else ((A, kind),)))
        diff = judge(*sides, policy)
        (finding,) = [f for f in diff.findings if str(f.cell) == A]
        return finding

    return run


@pytest.mark.parametrize(
    ("base", "head", "verdict", "reason", "exit_code"),
    [
        ("ok", "ok", Verdict.UNCHANGED, Reason.BITWISE_EQUAL, 0),
        ("ok", "wrong", Verdict.BROKEN, Reason.WRONG, 1),
        ("ok", "crash", Verdict.BROKEN, Reason.CRASH, 1),
        ("ok", "timeout", Verdict.BROKEN, Reason.TIMEOUT, 1),
        ("ok", "oom", Verdict.BROKEN, Reason.OOM, 1),
        ("ok", "build_failed", Verdict.BROKEN, Reason.BUILD_FAILED, 1),
        ("wrong", "wrong", Verdict.BROKEN, Reason.ALSO_BROKEN_AT_BASE, 1),
        ("crash", "wrong", Verdict.BROKEN, Reason.WRONG, 1),
        (UNPLANNED, "wrong", Verdict.BROKEN, Reason.WRONG, 1),
        ("wrong", "ok", Verdict.IMPROVED, Reason.FIXED, 0),
        ("ok", "invalid", Verdict.INCONCLUSIVE, Reason.INVALID, 3),
        ("ok", "infra", Verdict.INCONCLUSIVE, Reason.INFRA, 3),
        ("ok", "lost", Verdict.INCONCLUSIVE, Reason.LOST, 3),
        ("ok", "queue_timeout", Verdict.INCONCLUSIVE, Reason.QUEUE_TIMEOUT, 3),
        ("ok", "refused", Verdict.INCONCLUSIVE, Reason.REFUSED, 3),
        ("ok", "cancelled", Verdict.INCONCLUSIVE, Reason.CANCELLED, 3),
        ("skipped", "skipped", Verdict.UNCHANGED, Reason.SKIPPED, 0),
        ("ok", "skipped", Verdict.MISSING, Reason.SKIPPED, 3),
        (UNPLANNED, "skipped", Verdict.NEW, Reason.SKIPPED, 0),
        ("skipped", "ok", Verdict.NEW, Reason.SKIPPED_AT_BASE, 0),
        (UNPLANNED, "ok", Verdict.NEW, Reason.NEW_CELL, 0),
        ("ok", UNPLANNED, Verdict.REMOVED, Reason.NOT_IN_PLAN, 0),
        ("ok", ABSENT, Verdict.MISSING, Reason.NO_RECORD, 3),
        ("ok", "no_capacity", Verdict.MISSING, Reason.NO_CAPACITY, 3),
        (ABSENT, "ok", Verdict.MISSING, Reason.NO_BASELINE, 3),
        ("no_capacity", "ok", Verdict.MISSING, Reason.NO_BASELINE, 3),
        ("lost", "ok", Verdict.MISSING, Reason.NO_BASELINE, 3),
        (ABSENT, ABSENT, Verdict.MISSING, Reason.NO_RECORD, 3),
    ],
)
def test_a_cell_of_a_measured_device(between, base, head, verdict, reason, exit_code) -> None:
    finding = between(base, head)
    assert (verdict, reason, exit_code) == (finding.verdict, finding.reason, finding.exit_code)


@pytest.mark.parametrize(
    ("base", "head", "verdict", "reason"),
    [
        ("ok", "wrong", Verdict.DRIFTED, Reason.BEYOND_TOLERANCE),
        ("wrong", "wrong", Verdict.DRIFTED, Reason.ALSO_BROKEN_AT_BASE),
        ("ok", "crash", Verdict.BROKEN, Reason.CRASH),
    ],
)
def test_a_wrong_state_after_many_steps_is_drift(between, base, head, verdict, reason) -> None:
    finding = between(base, head, kind="drift")
    assert ("drift_rel_error", verdict, reason, 1) == (finding.metric, finding.verdict, finding.reason, finding.exit_code)


class TestADeviceThatHeadDidNotReach:
    @pytest.fixture
    def sides(self, record, side):
        base = side("base", record(CPU, "correctness", 0.001), record(A, "correctness", 0.001))
        head = side("head", record(CPU, "correctness", 0.001), record(A, "correctness", status="no_capacity", reason="no unit"))
        return base, head

    def test_is_listed_and_changes_nothing(self, sides) -> None:
        diff = judge(*sides)
        assert [("MISSING", "no_capacity", 0), ("UNCHANGED", "bitwise_equal", 0)] == verdicts(diff)
        assert (0, {"h200": False}) == (diff.exit_code, diff.gpus)

    def test_is_none_that_a_simulated_unit_answers_for(self, record, side) -> None:
        base = side("base", record(CPU, "correctness", 0.001), record(A, "correctness", 0.001))
        simulated = record(A, "correctness", status="skipped", reason="simulated: no GPU is there")
        diff = judge(base, side("head", record(CPU, "correctness", 0.001), simulated))
        assert [("MISSING", "skipped", 0), ("UNCHANGED", "bitwise_equal", 0)] == verdicts(diff)
        assert (0, {"h200": False}) == (diff.exit_code, diff.gpus)

    def test_is_undecided_where_it_is_required(self, sides) -> None:
        diff = judge(*sides, Policy(require=frozenset({"h200"})))
        assert (3, "undecided: 1 MISSING (no_capacity)") == (diff.exit_code, diff.conclusion[0])

    def test_is_not_reached_by_compiling_for_it(self, record, side) -> None:
        records = record(CPU, "correctness", 0.001), record(A, "static", 32)
        head = side("head", *records, record(A, "correctness", status="no_capacity"))
        diff = judge(side("base", *records, record(A, "correctness", 0.001)), head)
        assert (0, {"h200": False}) == (diff.exit_code, diff.gpus)

    def test_is_not_removed_where_head_asked_nothing_of_it(self, record, side) -> None:
        base = side("base", record(CPU, "correctness", 0.001), record(A, "correctness", 0.001))
        diff = judge(base, side("head", record(CPU, "correctness", 0.001)))
        assert [("MISSING", "not_planned", 0), ("UNCHANGED", "bitwise_equal", 0)] == verdicts(diff)


class TestAKindThatHeadDidNotRun:
    """Base has the correctness and the drift of a cell."""

    def judged(self, record, side, *of_head, **plan):
        base = side("base", record(A, "correctness", 0.001), record(A, "drift", 0.001, metric="drift_rel_error@1"))
        return verdicts(judge(base, side("head", *of_head, **plan)))

    @pytest.mark.parametrize("expect", [((A, "drift"),), None], ids=["planned", "without a plan"])
    def test_is_undecided_on_a_device_that_it_reached(self, record, side, expect) -> None:
        assert ("MISSING", "no_record", 3) in self.judged(record, side, record(A, "correctness", 0.001), expect=expect)

    @pytest.mark.parametrize("expect", [((A, "correctness"), (A, "drift")), None], ids=["planned", "without a plan"])
    def test_changes_nothing_on_one_that_it_was_compiled_for(self, record, side, expect) -> None:
        assert [0, 0] == [
            code for _, reason, code in self.judged(record, side, record(A, "static", 32), expect=expect) if reason == "no_record"
        ]

    def test_changes_nothing_where_it_does_not_have_the_cell(self, record, side) -> None:
        assert ("MISSING", "not_planned", 0) in self.judged(record, side, record(A, "correctness", 0.001))


def test_a_required_device_that_no_plan_has_is_undecided(record, side) -> None:
    diff = judge(*(side(ref, record(CPU, "correctness", 0.001)) for ref in "ab"), Policy(require=frozenset({"b200"})))
    assert 3 == diff.exit_code
    assert "undecided: b200 is required, and neither plan has a cell on it" in diff.conclusion


def test_nothing_compared_is_no_pass(record, side) -> None:
    diff = judge(side("base"), side("head", record(CPU, "correctness", 0.001)))
    assert ((3, "undecided: nothing was compared"), [("NEW", "new_cell", 0)]) == ((diff.exit_code, diff.conclusion[0]), verdicts(diff))


def test_no_records_at_all_are_no_pass(side) -> None:
    assert 3 == judge(side("base"), side("head")).exit_code


def test_without_heads_plan_what_base_had_is_expected(record, side) -> None:
    head = side("head", record(B, "correctness", 0.001), expect=None)
    diff = judge(side("base", record(A, "correctness", 0.001), record(B, "correctness", 0.001)), head)
    assert ("MISSING", "no_record", 3) in verdicts(diff)


def test_an_api_break_is_incomparable_and_no_build_failure(record, side) -> None:
    broken = record(A, "static", status="build_failed", reason="api")
    fine = record(A, "static", 32)
    assert [("INCOMPARABLE", "api", 3)] == verdicts(judge(side("base", broken), side("head", fine)))
    assert [("INCOMPARABLE", "api", 3)] == verdicts(judge(side("base", fine), side("head", broken)))


def test_a_failed_cell_is_one_finding_however_many_metrics_it_has(record, side) -> None:
    def at(status: str):
        names = ("rel_l2_error", "max_abs_error", "cosine")
        return [record(A, "correctness", 0.5, metric=name, status=status, reason="value y") for name in names]

    (finding,) = judge(side("base", *at("ok")), side("head", *at("wrong"))).findings
    assert ("rel_l2_error", "value y", 0.5, None) == (finding.metric, finding.detail, finding.head, finding.ratio)


def test_a_latency_cell_that_failed_its_correctness_gate_is_broken(record, side) -> None:
    gate = record(A, "latency", 0.5, metric="rel_l2_error", status="wrong")
    diff = judge(side("base", record(A, "latency", 9.0)), side("head", gate))
    assert [("latency_us", "BROKEN", "wrong")] == [(f.metric, f.verdict, f.reason) for f in diff.findings]


class TestAttempts:
    def test_one_that_infrastructure_cut_short_gives_way_to_the_next(self, record, side) -> None:
        torn = record(A, "correctness", status="infra", attempt=1)
        diff = judge(side("base", record(A, "correctness", 0.001)), side("head", torn, record(A, "correctness", 0.001, attempt=2)))
        assert [("UNCHANGED", "bitwise_equal", 0)] == verdicts(diff)

    def test_a_wrong_answer_is_not_undone_by_a_right_one(self, record, side) -> None:
        attempts = record(A, "correctness", status="wrong", attempt=1), record(A, "correctness", 0.001, attempt=2, unit="GPU-2")
        diff = judge(side("base", record(A, "correctness", 0.001)), side("head", *attempts))
        assert [("BROKEN", "wrong", 1)] == verdicts(diff)

    @pytest.mark.parametrize(("unit", "expected"), [("GPU-1", ("BROKEN", "crash", 1)), ("GPU-2", ("INCONCLUSIVE", "passed_elsewhere", 3))])
    def test_a_crash_on_one_unit_that_passes_on_another_blames_the_unit(self, record, side, unit, expected) -> None:
        attempts = record(A, "correctness", status="crash", attempt=1), record(A, "correctness", 0.001, attempt=2, unit=unit)
        diff = judge(side("base", record(A, "correctness", 0.001)), side("head", *attempts))
        assert [expected] == verdicts(diff)


class TestRefusals:
    def test_a_question_with_two_answers(self, record, side) -> None:
        twice = record(A, "static", 32), record(A, "static", 33)
        with pytest.raises(Undecided, match=r"toy/fused/M=1,dtype=bf16@h200 static registers"):
            judge(side("base", record(A, "static", 32)), side("head", *twice))

    def test_launches_of_a_latency_cell_are_no_duplicates(self, record, side) -> None:
        launches = [record(A, "latency", 9.0 + n, launch=f"job-{n}") for n in range(3)]
        (finding,) = judge(side("base", *launches), side("head", *launches)).findings
        assert (10.0, 10.0) == (finding.base, finding.head)

    def test_the_same_launch_twice_is_one(self, record, side) -> None:
        launch = record(A, "latency", 9.0, launch="job-1")
        with pytest.raises(Undecided, match="latency_us"):
            judge(side("base", launch, launch), side("head", launch))

    def test_a_run_of_the_code_and_one_that_it_was_the_base_of_speak_for_it_together(self, record, side) -> None:
        ours = record(A, "static", 32, run_id="r1", arm="head"), record(B, "static", 32, run_id="r2", arm="base")
        head = [record(cell, "static", 32, run_id="r2", arm="head") for cell in (A, B)]
        assert {Verdict.UNCHANGED} == {f.verdict for f in judge(side("base", *ours), side("head", *head)).findings}

    def test_records_of_two_arms_on_one_side(self, record, side) -> None:
        arms = record(A, "static", 32, arm="base"), record(B, "static", 32, arm="head")
        with pytest.raises(Undecided, match="arms base, head"):
            judge(side("base", *arms), side("head"))

    def test_a_run_as_its_own_baseline(self, record, side) -> None:
        one = record(A, "static", 32, run_id="20260131T235959-1f2e3d")
        with pytest.raises(Undecided, match="both sides are records of run 20260131T235959-1f2e3d"):
            judge(side("base", one), side("head", one))

    def test_a_metric_nobody_declared(self, record, side) -> None:
        with pytest.raises(UnknownNameError, match="use 'registers'"):
            judge(side("base"), side("head"), Policy(metrics=frozenset({"register"})))


class TestAChangedKernelOfWhichNothingSaysThatItIsRight:
    """It compiles, and its correctness is asked of GPUs that are not there."""

    def judged(self, record, side, *more, changed=True, asked=True, policy=None):
        build = {"binary_hash": ["b1"], "grid": ["8"], "config": ["{}"], "launcher_digest": "l1"}
        absent = [record(A, "correctness", status="no_capacity", metric=None)] if asked else []
        head = [record(A, "static", 32, **build | ({"binary_hash": ["b2"]} if changed else {})), *absent, *more]
        return judge(side("base", record(A, "static", 32, **build)), side("head", *head), policy)

    def test_is_no_pass(self, record, side) -> None:
        diff = self.judged(record, side)
        assert 3 == diff.exit_code
        assert "undecided: toy changed, and no result says that it is right: submit --kind correctness" in diff.conclusion

    def test_is_one_where_a_case_was_proved_elsewhere(self, record, side) -> None:
        assert 0 == self.judged(record, side, record(A.replace("h200", "cpu"), "correctness", 0.001)).exit_code

    def test_is_one_where_it_runs_what_it_ran(self, record, side) -> None:
        assert 0 == self.judged(record, side, changed=False).exit_code

    def test_is_one_where_nobody_asked(self, record, side) -> None:
        assert 0 == self.judged(record, side, asked=False).exit_code

    def test_is_one_where_the_user_named_what_to_judge(self, record, side) -> None:
        assert 0 == self.judged(record, side, policy=Policy(metrics=frozenset({"registers"}))).exit_code


class TestACellThatHeadLeftOutAndWhoseCodeIsEqual:
    """Base's result of it is one of head's code; but no result of its own, and never the only thing that passes."""

    def judged(self, record, side, *head, base=None, changed=None, equal=False):
        head = replace(side("head", *head), same_code=frozenset({(Cell.parse(A), "correctness")}), changed=changed, equal=equal)
        return judge(side("base", base or record(A, "correctness", 0.001)), head)

    def test_is_unchanged_and_not_compared(self, record, side) -> None:
        diff = self.judged(record, side)
        assert [("UNCHANGED", "same_code", 0)] == verdicts(diff)
        assert [(1, 0, {"same_code": 1})] == [(c.cells, c.compared, c.others) for c in diff.coverage]
        assert (3, "undecided: nothing was compared") == (diff.exit_code, diff.conclusion[0])

    @pytest.mark.parametrize(
        ("kind", "value", "columns", "exit_code"),
        [
            pytest.param("correctness", 0.001, {}, 0, id="right"),
            pytest.param("correctness", None, {"status": "wrong"}, 1, id="wrong"),
            pytest.param("correctness", None, {"status": "invalid"}, 3, id="invalid"),
            pytest.param("correctness", None, {"status": "no_capacity", "metric": None}, 3, id="not-measured"),
            pytest.param("static", 32, {}, 3, id="only-compiled"),
        ],
    )
    def test_lets_a_new_kernel_pass_that_is_right(self, record, side, kind, value, columns, exit_code) -> None:
        new = record("new/fused/N=16,dtype=fp32@h200", kind, value, **columns)
        diff = self.judged(record, side, new, changed=frozenset({"new"}))
        assert exit_code == diff.exit_code
        assert exit_code or "passes: 1 new result right, all else is the code of base" == diff.conclusion[0]

    def test_passes_alone_where_nothing_at_all_differs(self, record, side) -> None:
        diff = self.judged(record, side, equal=True)
        assert 0 == diff.exit_code
        assert "passes: nothing that a result depends on differs between the sides, so there is nothing to compare" == diff.conclusion[0]

    @pytest.mark.parametrize(("status", "exit_code"), [("ok", 0), ("wrong", 1), ("infra", 3), ("no_capacity", 3)])
    def test_is_not_needed_where_kernels_were_added_alone(self, record, side, status, exit_code) -> None:
        new = record(A, "correctness", 0.001 if status == "ok" else None, status=status)
        head = replace(side("head", new), only_added=True)
        assert exit_code == judge(side("base"), head).exit_code

    @pytest.mark.parametrize("equal", [False, True])
    def test_is_wrong_where_base_is(self, record, side, equal) -> None:
        diff = self.judged(record, side, base=record(A, "correctness", status="wrong"), equal=equal)
        assert ([("BROKEN", "also_broken_at_base", 1)], 1) == (verdicts(diff), diff.exit_code)

    def test_is_missing_where_base_does_not_know(self, record, side) -> None:
        diff = self.judged(record, side, base=record(A, "correctness", status="invalid"))
        assert [("MISSING", "no_record")] == [v[:2] for v in verdicts(diff)]

    def test_is_judged_by_a_result_of_its_own_where_there_is_one(self, record, side) -> None:
        assert [("BROKEN", "wrong", 1)] == verdicts(self.judged(record, side, record(A, "correctness", status="wrong")))

    @pytest.mark.parametrize(("changed", "exit_code"), [(None, 3), ({"toy"}, 3), (set(), 0)], ids=["unknown", "changed", "equal"])
    def test_is_of_no_kernel_that_must_be_proved(self, record, side, changed, exit_code) -> None:
        """However its binaries differ: another compiler is no change of the code."""
        absent = record(B, "correctness", status="no_capacity", metric=None)
        base = side("base", record(A, "static", 32, binary_hash=["b1"]))
        head = side("head", record(A, "static", 32, binary_hash=["b2"]), absent)
        assert exit_code == judge(base, replace(head, changed=None if changed is None else frozenset(changed))).exit_code


def test_what_was_removed_is_said_at_the_top(record, side) -> None:
    kept, gone = record(A, "static", 32), record("old/fused/N=16,dtype=fp32@h200", "static", 32)
    part = record(B, "static", 32)
    diff = judge(side("base", kept, gone, part), side("head", kept))
    assert (0, ["passes: 1 result compared, none fails", "removed: 2 results that base has: old, some of toy"]) == (
        diff.exit_code,
        list(diff.conclusion),
    )


def test_a_new_cell_that_the_interpreter_alone_timed_has_no_time(record, side) -> None:
    timed = record(CPU, "latency", 5000.0, metric="interpreter_us")
    diff = judge(side("base", record(A, "static", 32)), side("head", record(A, "static", 32), timed))
    assert ("INCONCLUSIVE", "interpreter_only", 0) in verdicts(diff)
    assert 0 == diff.exit_code


def test_a_new_cell_is_shown_by_a_metric_that_it_has(record, side) -> None:
    diff = judge(side("base"), side("head", record(A, "latency", 50.0, metric="worst_step_us")))
    assert [("worst_step_us", 50.0, "NEW")] == [(f.metric, f.head, f.verdict) for f in diff.findings]
