"""Cases of tests/cases/measure.jsonl that a diff answers."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from harness.judge.diff import judge
from harness.judge.model import Reason, Suspicion, Verdict
from harness.plan.jobs import ABBA

CASES = {case["id"]: case for case in map(json.loads, (Path(__file__).parents[1] / "cases/measure.jsonl").read_text().splitlines())}
CELL = "toy/fused/M=1,dtype=bf16@h200"


def given(case: str) -> Any:
    """The input of a case."""
    return CASES[case]["input"]


def launches(record, base_us: float, head_us: float, *, attempt: int = 1, base=None, head=None, cell: str = CELL):
    """The records of base and head in three ABBA blocks of one lease."""
    sides: dict[str, list[Any]] = {"base": [], "head": []}
    for position in range(12):
        arm = ABBA[position % 4]
        us = (base_us if arm == "base" else head_us) * (1 + 0.0002 * (position % 3))
        place = {"arm": arm, "block": position // 4, "position": position, "launch": f"{attempt}-{position}", "attempt": attempt}
        columns = {"converged": True, "lease_id": f"lease {attempt}", "run_id": f"r{attempt}", **((base if arm == "base" else head) or {})}
        sides[arm].append(record(cell, "latency", us, **place, **columns))
    return sides["base"], sides["head"]


def timed(diff):
    (finding,) = (f for f in diff.findings if f.metric == "latency_us")
    return finding


class TestM14:
    EXPECTED = "finding names the changed configuration; same-configuration time beside it"

    @pytest.fixture
    def built(self):
        """What either side ran, and its time: a hundred us at base, in proportion to the throughputs."""
        arms = {ref: given("m14")[ref] for ref in ("base", "head")}
        us = {ref: 100.0 * arms["base"]["tflops"] / arm["tflops"] for ref, arm in arms.items()}
        builds = {
            ref: {"config": [arm["config"]], "binary_hash": [arm["config"]], "grid": ["8"], "launcher_digest": arm["source_hash"]}
            for ref, arm in arms.items()
        }
        return us, builds

    def test_m14_a_slower_time_names_the_configuration_that_was_chosen_instead(self, record, side, built) -> None:
        us, builds = built
        base, head = launches(record, us["base"], us["head"], base=builds["base"], head=builds["head"])
        finding = timed(judge(side("base", *base), side("head", *head)))
        assert self.EXPECTED == CASES["m14"]["expected"]
        assert (Verdict.REGRESSED, [["A"], ["B"]]) == (finding.verdict, finding.why["changed"]["config"])
        assert "launcher_digest" not in finding.why["changed"]
        shown = [(r["config"], r["chosen"], r["ratio"], r["absent"]) for r in finding.why["same_configuration"]]
        assert [(["A"], [6, 0], None, "no launch of head chose A"), (["B"], [0, 6], None, "no launch of base chose B")] == shown

    def test_m14_launches_that_chose_alike_show_that_the_code_is_as_fast(self, record, side, built) -> None:
        us, builds = built
        base, slow = launches(record, us["base"], us["head"], base=builds["base"], head=builds["head"])
        _, same = launches(record, us["base"], us["base"], head=builds["base"])
        head = [same[0], *slow[1:]]
        finding = timed(judge(side("base", *base), side("head", *head)))
        assert Verdict.REGRESSED is finding.verdict
        assert finding.ratio > 1.5
        (alike, other) = finding.why["same_configuration"]
        assert (["A"], [6, 1], [1, 1], pytest.approx(1.0, abs=1e-3)) == (
            alike["config"],
            alike["chosen"],
            alike["compared"],
            alike["ratio"],
        )
        assert (alike["base"], alike["head"]) == (base[0].value, same[0].value)
        assert "no launch of base chose B" == other["absent"]


class TestM26:
    EXPECTED = "same class of machine; one-sided alarm"

    def test_m26_readings_of_a_machine_are_no_class_of_machine(self, record, side) -> None:
        first, second = given("m26")["machine_field"]
        base, head = launches(
            record, 100.0, 100.0, base={"environment": {"memory_bytes": first}}, head={"environment": {"memory_bytes": second}}
        )
        finding = timed(judge(side("base", *base), side("head", *head)))
        assert self.EXPECTED == CASES["m26"]["expected"]
        assert (Verdict.UNCHANGED, Reason.WITHIN_LIMITS) == (finding.verdict, finding.reason)

    def test_m26_findings_of_one_sign_alone_mark_the_run(self, record, side) -> None:
        worse, better = (int(part.split()[0]) for part in given("m26")["findings"].split(", "))
        cells = [launches(record, 100.0, 105.0, cell=f"k{n}/fused/M=1,dtype=bf16@h200") for n in range(worse)]
        assert 0 == better
        diff = judge(*(side(ref, *(r for one in cells for r in one[n])) for n, ref in enumerate(("base", "head"))))
        assert (worse, better) == (diff.counts[Verdict.REGRESSED], diff.counts[Verdict.IMPROVED])
        (mark,) = diff.marks
        assert (Suspicion.ONE_SIDED, "h200", worse, better) == (mark.suspicion, mark.device, mark.slower, mark.faster)


def test_m28_attempts_are_pooled_and_the_last_does_not_stand_for_all(record, side) -> None:
    case = given("m28")
    sides = [launches(record, 100.0, 100.0 + percent, attempt=n) for n, percent in enumerate(case["attempts_percent"], 1)]
    base, head = ([r for attempt in attempts for r in attempt] for attempts in zip(*sides, strict=True))
    finding = timed(judge(side("base", *base), side("head", *head)))
    pooled = statistics.geometric_mean([1 + percent / 100 for percent in case["attempts_percent"]])
    assert pooled > 1 + case["limit"] / 100 > 1 + case["attempts_percent"][-1] / 100
    assert (Verdict.REGRESSED, pytest.approx(pooled, rel=1e-6)) == (finding.verdict, finding.ratio)
    assert finding.detail is not None
    assert f"over {6 * len(case['attempts_percent'])} pairs" in finding.detail


@pytest.mark.parametrize("statuses", [("wrong", "ok"), ("crash", "ok", "ok")], ids="-".join)
def test_m28_a_later_attempt_does_not_make_a_failure_good(record, side, statuses) -> None:
    attempts = [record(CELL, "correctness", 0.001 if s == "ok" else None, status=s, attempt=n) for n, s in enumerate(statuses, 1)]
    diff = judge(side("base", record(CELL, "correctness", 0.001)), side("head", *attempts))
    assert (Verdict.BROKEN, 1) == (diff.findings[0].verdict, diff.exit_code)
