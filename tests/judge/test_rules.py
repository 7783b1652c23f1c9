"""The exact rules: sizes, errors, and what equal binaries prove."""

from __future__ import annotations

import dataclasses

import pytest

from harness.judge.diff import judge
from harness.judge.model import Judgement, Policy, Reason, Verdict
from harness.judge.rules import RULES, RuleJudge, quote
from harness.metrics import Rule

A = "toy/fused/M=1,dtype=bf16@h200"
BUILD = {"binary_hash": ["b1", "b2"], "grid": ["8", "1"], "config": ["{}", "{}"], "launcher_digest": "l1"}


def only(diff):
    (finding,) = diff.findings
    return finding


def said(finding):
    return finding.verdict, finding.reason


class TestSizes:
    @pytest.mark.parametrize(
        ("metric", "base", "head", "verdict"),
        [
            ("registers", 10, 11, Verdict.UNCHANGED),
            ("registers", 100, 110, Verdict.UNCHANGED),
            ("registers", 100, 111, Verdict.REGRESSED),
            ("registers", 100, 90, Verdict.UNCHANGED),
            ("registers", 100, 89, Verdict.IMPROVED),
            ("registers", 70, 77, Verdict.UNCHANGED),
            ("code_bytes", 4096, 4608, Verdict.REGRESSED),
            ("spill_bytes", 0, 0, Verdict.UNCHANGED),
            ("spill_bytes", 0, 4, Verdict.REGRESSED),
            ("spill_bytes", 8, 0, Verdict.IMPROVED),
            ("stack_bytes", 1000, 1001, Verdict.REGRESSED),
            ("kernel_launches", 2, 1, Verdict.IMPROVED),
        ],
    )
    def test_rule(self, record, side, metric, base, head, verdict) -> None:
        diff = judge(*(side(ref, record(A, "static", value, metric=metric)) for ref, value in (("base", base), ("head", head))))
        assert verdict == only(diff).verdict
        assert (1 if verdict is Verdict.REGRESSED else 0) == diff.exit_code

    def test_growth_from_nothing_has_no_ratio(self, record, side) -> None:
        diff = judge(side("base", record(A, "static", 0, metric="spill_bytes")), side("head", record(A, "static", 4, metric="spill_bytes")))
        assert (None, 0, 4) == (only(diff).ratio, only(diff).base, only(diff).head)

    def test_context_is_shown_beside_and_never_judged(self, record, side) -> None:
        def at(ref: str, registers: float, shared: float):
            return side(ref, record(A, "static", registers), record(A, "static", shared, metric="shared_bytes"))

        finding = only(judge(at("base", 32, 1024), at("head", 64, 4096)))
        assert ("registers", {"shared_bytes": [1024, 4096]}) == (finding.metric, finding.why["metrics"])

    def test_the_reproducing_command_is_beside_it(self, record, side) -> None:
        finding = only(judge(side("base", record(A, "static", 32)), side("head", record(A, "static", 64))))
        what = f"--kernel toy --variant {A.split('/')[1]} --case {A.split('/')[2].split('@')[0]} --device h200 --kind static"
        expected = f"harness submit --ref {'c' * 40} {what}  # {A} on unit GPU-1"
        assert expected == finding.why["reproduce"]

    def test_a_metric_that_only_base_has_is_missing(self, record, side) -> None:
        base = side("base", record(A, "static", 32), record(A, "static", 0, metric="spill_bytes"))
        found = {f.metric: said(f) for f in judge(base, side("head", record(A, "static", 32))).findings}
        assert (Verdict.MISSING, Reason.NO_VALUE) == found["spill_bytes"]

    def test_a_metric_that_only_head_has_is_new(self, record, side) -> None:
        head = side("head", record(A, "static", 32), record(A, "static", 0, metric="spill_bytes"))
        found = {f.metric: said(f) for f in judge(side("base", record(A, "static", 32)), head).findings}
        assert (Verdict.NEW, Reason.NEW_METRIC) == found["spill_bytes"]

    def test_a_side_metric_that_is_invalid_leaves_the_others_judged(self, record, side) -> None:
        def at(ref: str, status: str):
            return side(ref, record(A, "static", 32), record(A, "static", 0, metric="stack_bytes", status=status))

        found = {f.metric: said(f) for f in judge(at("base", "ok"), at("head", "invalid")).findings}
        expected = {"registers": (Verdict.UNCHANGED, Reason.WITHIN_LIMITS), "stack_bytes": (Verdict.INCONCLUSIVE, Reason.INVALID)}
        assert expected == found


class TestErrors:
    @pytest.mark.parametrize(
        ("base", "head", "verdict", "reason"),
        [
            (0.001, 0.001, Verdict.UNCHANGED, Reason.BITWISE_EQUAL),
            (0.001, 0.0019, Verdict.UNCHANGED, Reason.WITHIN_LIMITS),
            (0.001, 0.0021, Verdict.DRIFTED, Reason.ERROR_GREW),
            (0.00001, 0.00009, Verdict.UNCHANGED, Reason.WITHIN_LIMITS),
            (0.0, 0.0001, Verdict.UNCHANGED, Reason.WITHIN_LIMITS),
            (0.0, 0.00011, Verdict.DRIFTED, Reason.ERROR_GREW),
            (0.0021, 0.001, Verdict.IMPROVED, Reason.ERROR_FELL),
            (0.00009, 0.00001, Verdict.UNCHANGED, Reason.WITHIN_LIMITS),
            (0.009, 0.011, Verdict.DRIFTED, Reason.BEYOND_TOLERANCE),
        ],
    )
    @pytest.mark.parametrize(("kind", "metric"), [("correctness", "rel_l2_error"), ("drift", "drift_rel_error@1000")])
    def test_rule_at_a_tolerance_of_one_percent(self, record, side, kind, metric, base, head, verdict, reason) -> None:
        sides = [side(ref, record(A, kind, value, metric=metric)) for ref, value in (("base", base), ("head", head))]
        assert (verdict, reason) == said(only(judge(*sides)))

    def test_every_step_count_is_a_metric_of_its_own(self, record, side) -> None:
        def at(ref: str, late: float):
            return side(ref, record(A, "drift", 0.001, metric="drift_rel_error@1"), record(A, "drift", late, metric="drift_rel_error@1000"))

        found = {f.metric: f.verdict for f in judge(at("base", 0.002), at("head", 0.006)).findings}
        assert {"drift_rel_error@1": Verdict.UNCHANGED, "drift_rel_error@1000": Verdict.DRIFTED} == found

    def test_a_change_that_loosens_its_tolerance_is_measured_by_the_one_it_found(self, record, side) -> None:
        base = side("base", record(A, "correctness", 0.009), limit=0.01)
        diff = judge(base, side("head", record(A, "correctness", 0.015), limit=0.1))
        assert (Verdict.DRIFTED, Reason.TOLERANCE_LOOSENED) == said(only(diff))

    @pytest.mark.parametrize(
        ("error", "verdict", "reason"),
        [
            (0.02, Verdict.DRIFTED, Reason.BEYOND_TOLERANCE),
            (0.004, Verdict.DRIFTED, Reason.ERROR_GREW),
            (0.0011, Verdict.INCONCLUSIVE, Reason.BASE_TOLERANCE),
            (0.001, Verdict.UNCHANGED, Reason.BITWISE_EQUAL),
            (0.0009, Verdict.UNCHANGED, Reason.WITHIN_LIMITS),
        ],
    )
    def test_growth_is_not_excused_where_bases_tolerance_is_not_known(self, record, side, error, verdict, reason) -> None:
        base = side("base", record(A, "correctness", 0.001), limit=None)
        assert (verdict, reason) == said(only(judge(base, side("head", record(A, "correctness", error), limit=0.01))))

    def test_a_loosened_tolerance_does_not_hide_growth(self, record, side) -> None:
        base = side("base", record(A, "correctness", 0.001), limit=0.01)
        diff = judge(base, side("head", record(A, "correctness", 0.004), limit=10.0))
        assert (Verdict.DRIFTED, Reason.ERROR_GREW) == said(only(diff))

    def test_without_a_tolerance_nothing_is_decided(self, record, side) -> None:
        diff = judge(*(side(ref, record(A, "correctness", 0.001), limit=None) for ref in ("base", "head")))
        assert (Verdict.INCONCLUSIVE, Reason.NO_TOLERANCE) == said(only(diff))
        assert 3 == diff.exit_code


class TestTime:
    @pytest.mark.parametrize("head", [100.7, 150.0, 50.0])
    def test_stored_times_are_not_judged_however_far_apart(self, record, side, head) -> None:
        diff = judge(side("base", record(A, "latency", 100.0)), side("head", record(A, "latency", head)))
        assert (Verdict.INCONCLUSIVE, Reason.UNPAIRED) == said(only(diff))

    @pytest.mark.parametrize(("metrics", "exit_code"), [((), 0), (("registers",), 0), (("registers", "latency_us"), 3)])
    def test_they_count_only_where_the_metric_is_named(self, record, side, metrics, exit_code) -> None:
        sides = [side(ref, record(A, "latency", 9.0), record(A, "static", 32)) for ref in ("base", "head")]
        assert exit_code == judge(*sides, Policy(metrics=frozenset(metrics))).exit_code

    def test_they_alone_are_nothing_compared(self, record, side) -> None:
        diff = judge(*(side(ref, record(A, "latency", 9.0)) for ref in ("base", "head")))
        assert 3 == diff.exit_code
        assert any("harness submit --against" in line for line in diff.conclusion)

    def test_the_interpreters_time_gates_nothing(self, record, side) -> None:
        cpu = "toy/fused/M=1,dtype=bf16@cpu"
        sides = [side(ref, record(cpu, "latency", 9.0, metric="interpreter_us"), record(cpu, "correctness", 0.0)) for ref in "ab"]
        diff = judge(*sides)
        assert {Reason.INTERPRETER_ONLY, Reason.BITWISE_EQUAL} == {f.reason for f in diff.findings}
        assert 0 == diff.exit_code


class TestEqualBinaries:
    def times(self, record, side, head_build=BUILD, stack=None):
        base = side("base", record(A, "latency", 100.0), record(A, "static", 32, **BUILD))
        times = record(A, "latency", 106.0, environment=stack or {})
        diff = judge(base, side("head", times, record(A, "static", 32, **head_build)))
        return {f.metric: said(f) for f in diff.findings}, diff

    def test_prove_time_and_sizes(self, record, side) -> None:
        found, _ = self.times(record, side)
        assert {"latency_us": (Verdict.UNCHANGED, Reason.PROVED), "registers": (Verdict.UNCHANGED, Reason.PROVED)} == found

    def test_make_the_time_evidence_of_noise(self, record, side) -> None:
        _, diff = self.times(record, side)
        assert (1, pytest.approx(1.06)) == (diff.noise.n, diff.noise.highest)

    @pytest.mark.parametrize("changed", [{"launcher_digest": "l2"}, {"grid": ["9", "1"]}, {"config": ["{}", "{'num_warps': 8}"]}])
    def test_prove_sizes_alone_where_the_launch_changed(self, record, side, changed) -> None:
        found, _ = self.times(record, side, BUILD | changed)
        expected = {"latency_us": (Verdict.INCONCLUSIVE, Reason.UNPAIRED), "registers": (Verdict.UNCHANGED, Reason.SAME_BINARY)}
        assert expected == found

    @pytest.mark.parametrize("unknown", ["launcher_digest", "grid", "config"])
    def test_prove_no_time_where_the_launch_is_unknown(self, record, side, unknown) -> None:
        build = BUILD | {unknown: None}
        sides = [side(ref, record(A, "latency", 9.0), record(A, "static", 32, **build)) for ref in ("base", "head")]
        assert Reason.UNPAIRED in {f.reason for f in judge(*sides).findings}

    def test_prove_nothing_where_another_binary_is_among_them(self, record, side) -> None:
        found, _ = self.times(record, side, BUILD | {"binary_hash": ["b1", "b3"]})
        assert {"latency_us": (Verdict.INCONCLUSIVE, Reason.UNPAIRED), "registers": (Verdict.UNCHANGED, Reason.WITHIN_LIMITS)} == found

    def test_only_predict_where_the_unit_has_another_compiler(self, record, side) -> None:
        found, _ = self.times(record, side, stack={"triton": "3.6.0"})
        assert (Verdict.INCONCLUSIVE, Reason.PREDICTED) == found["latency_us"]

    @pytest.mark.parametrize("other", [{"torch": "2.11.0"}, {"lock_digest": "0f3a"}, {"lock_digest": None}], ids=repr)
    def test_only_predict_where_other_packages_run_beside_them(self, record, side, other) -> None:
        found, _ = self.times(record, side, stack=other)
        assert (Verdict.INCONCLUSIVE, Reason.PREDICTED) == found["latency_us"]

    @pytest.mark.parametrize(
        ("base", "head", "stack", "reason"),
        [
            ({}, {}, {}, Reason.PROVED),
            ({}, {"launcher_digest": "l2"}, {}, Reason.UNPAIRED),
            ({"launcher_digest": None}, {"launcher_digest": None}, {}, Reason.UNPAIRED),
            ({"binary_hash": None}, {"binary_hash": None}, {}, Reason.UNPAIRED),
            ({}, {}, {"torch": "2.11.0"}, Reason.PREDICTED),
        ],
        ids=["equal code", "other code", "unknown code", "unknown launches", "another torch"],
    )
    def test_are_the_launchers_code_where_only_libraries_are_called(self, record, side, base, head, stack, reason) -> None:
        calls = {"binary_hash": [], "launcher_digest": "l1"}
        sides = [
            side("base", record(A, "latency", 100.0, **calls | base)),
            side("head", record(A, "latency", 106.0, **calls | head, environment=stack)),
        ]
        assert reason == only(judge(*sides)).reason

    def test_a_cell_without_kernel_launches_proves_nothing(self, record, side) -> None:
        empty = BUILD | {"binary_hash": []}
        sides = [side(ref, record(A, "static", 32, **empty)) for ref in ("base", "head")]
        assert (Verdict.UNCHANGED, Reason.WITHIN_LIMITS) == said(only(judge(*sides)))

    def test_a_changed_configuration_is_named(self, record, side) -> None:
        builds = [BUILD, BUILD | {"binary_hash": ["b9", "b2"], "config": ["{'num_warps': 8}", "{}"]}]
        sides = [side(ref, record(A, "static", n, **b)) for ref, n, b in zip(("base", "head"), (32, 64), builds, strict=True)]
        changed = only(judge(*sides)).why["changed"]
        assert {"binary_hash": [["b1", "b2"], ["b9", "b2"]], "config": [["{}", "{}"], ["{'num_warps': 8}", "{}"]]} == changed


class TestTimeDecides:
    """Where a cell's time is judged, sizes explain it. The verdict on time is injected."""

    def judged(self, verdict, record, side):
        rules = {**RULES, Rule.TIME: RuleJudge("as injected", lambda pair: Judgement(verdict, Reason.WITHIN_LIMITS))}

        def at(ref: str, registers: float, error: float):
            return side(ref, record(A, "latency", 9.0), record(A, "static", registers), record(A, "correctness", error))

        diff = judge(at("base", 32, 0.001), at("head", 64, 0.003), rules=rules)
        return {f.metric: f for f in diff.findings}

    @pytest.mark.parametrize("verdict", [Verdict.REGRESSED, Verdict.IMPROVED, Verdict.UNCHANGED])
    def test_over_sizes(self, record, side, verdict) -> None:
        registers = self.judged(verdict, record, side)["registers"]
        assert (Verdict.REGRESSED, Reason.ATTRIBUTION, 0) == (registers.verdict, registers.reason, registers.exit_code)

    def test_not_where_it_is_inconclusive(self, record, side) -> None:
        registers = self.judged(Verdict.INCONCLUSIVE, record, side)["registers"]
        assert (Verdict.REGRESSED, Reason.GREW, 1) == (registers.verdict, registers.reason, registers.exit_code)

    @pytest.mark.parametrize(("verdict", "reason"), [(Verdict.IMPROVED, Reason.TRADE), (Verdict.UNCHANGED, Reason.ERROR_GREW)])
    def test_never_over_drift_but_a_trade_is_named(self, record, side, verdict, reason) -> None:
        error = self.judged(verdict, record, side)["rel_l2_error"]
        assert (Verdict.DRIFTED, reason, 1) == (error.verdict, error.reason, error.exit_code)


class TestPolicy:
    def test_metrics_leave_only_what_they_name(self, record, side) -> None:
        def at(ref: str, registers: float):
            return side(ref, record(A, "static", registers), record(A, "static", 0, metric="spill_bytes"), record(A, "correctness", 0.001))

        diff = judge(at("base", 32), at("head", 64), Policy(metrics=frozenset({"spill_bytes"})))
        assert (["spill_bytes"], 0) == ([f.metric for f in diff.findings], diff.exit_code)

    def test_metrics_do_not_hide_a_cell_that_failed(self, record, side) -> None:
        head = side("head", record(A, "static", status="build_failed"))
        diff = judge(side("base", record(A, "static", 32)), head, Policy(metrics=frozenset({"spill_bytes"})))
        assert ([Verdict.BROKEN], 1) == ([f.verdict for f in diff.findings], diff.exit_code)

    def test_a_drift_metric_without_its_step_means_every_step(self, record, side) -> None:
        sides = [side(ref, *(record(A, "drift", 0.001, metric=f"drift_rel_error@{n}") for n in (1, 10))) for ref in ("base", "head")]
        assert 2 == len(judge(*sides, Policy(metrics=frozenset({"drift_rel_error"}))).findings)
        assert 1 == len(judge(*sides, Policy(metrics=frozenset({"drift_rel_error@10"}))).findings)

    def test_fail_on_says_what_exits_1(self, record, side) -> None:
        sides = side("base", record(A, "static", 32)), side("head", record(A, "static", 64))
        assert 0 == judge(*sides, Policy(fail_on=frozenset({Verdict.BROKEN}))).exit_code

    def test_a_failure_outweighs_what_is_undecided(self, record, side) -> None:
        other = "toy/fused/M=2,dtype=bf16@h200"
        head = side("head", record(A, "static", 64), record(other, "static", status="lost"))
        assert 1 == judge(side("base", record(A, "static", 32), record(other, "static", 32)), head).exit_code


def test_every_judged_rule_has_a_judge_and_a_text() -> None:
    assert set(Rule) - {Rule.CONTEXT} == set(RULES)
    assert "registers, code_bytes: REGRESSED beyond +10 %, IMPROVED beyond -10 %" == quote(Rule.GROWTH)


def test_findings_are_the_worst_first(record, side) -> None:
    def cell(m: int) -> str:
        return f"toy/fused/M={m},dtype=bf16@h200"

    base = side("base", *(record(cell(m), "static", 100) for m in range(5)))
    head = side("head", *(record(cell(m), "static", v) for m, v in enumerate((100, 120, 200, 50))), record(cell(4), "static", status="oom"))
    expected = [("M=4", "BROKEN"), ("M=2", "REGRESSED"), ("M=1", "REGRESSED"), ("M=3", "IMPROVED"), ("M=0", "UNCHANGED")]
    assert expected == [(f.cell.case.split(",")[0], f.verdict) for f in judge(base, head).findings]


def test_a_finding_is_data(record, side) -> None:
    finding = only(judge(side("base", record(A, "static", 32)), side("head", record(A, "static", 64))))
    assert dataclasses.replace(finding) == finding
    assert "h200" == finding.device
