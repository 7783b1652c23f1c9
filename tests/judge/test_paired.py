"""Paired launches: what is called a change, what is called none, and what is left open."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.judge.diff import judge
from harness.judge.model import Reason, Verdict
from harness.judge.paired import ABSOLUTE_FLOOR_US, RELATIVE_FLOOR, estimate, pair_up

A, B = "axpy/fused/N=8,dtype=fp32@h200", "axpy/fused/N=9,dtype=fp32@h200"
CASES = {case["id"]: case for case in map(json.loads, (Path(__file__).parents[1] / "cases/diff.jsonl").read_text().splitlines())}
ARMS = ("base", "head", "head", "base")


def launches(record, cell, base, head, **columns):
    """Base's and head's records of ABBA blocks, from one value a launch each."""
    values = {"base": iter(base), "head": iter(head)}
    sides = {"base": [], "head": []}
    for position in range(len(base) + len(head)):
        arm, block = ARMS[position % 4], position // 4
        place = {"arm": arm, "block": block, "position": position, "launch": f"l{position}", "lease_id": "lease", "run_id": "r1"}
        sides[arm].append(record(cell, "latency", next(values[arm]), **{"converged": True, **place, **columns}))
    return sides["base"], sides["head"]


def finding(side, base, head):
    diff = judge(side("base", *base), side("head", *head))
    (only,) = (f for f in diff.findings if f.metric == "latency_us")
    return only, diff.exit_code


def noisy(center, spread, n=6, seed=0):
    return list(center * (1 + spread * np.random.default_rng(seed).standard_normal(n)))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (+0.05, (Verdict.REGRESSED, Reason.SLOWER, 1)),
        (+0.01, (Verdict.REGRESSED, Reason.SLOWER, 1)),
        (-0.01, (Verdict.IMPROVED, Reason.FASTER, 0)),
        (+0.002, (Verdict.UNCHANGED, Reason.WITHIN_LIMITS, 0)),
        (0.0, (Verdict.UNCHANGED, Reason.WITHIN_LIMITS, 0)),
    ],
    ids=lambda v: f"{v:+.1%}" if isinstance(v, float) else None,
)
def test_a_change_is_called_beyond_the_floor_and_not_within_it(record, side, change, expected):
    base, head = launches(record, A, noisy(100.0, 0.001), noisy(100.0 * (1 + change), 0.001, seed=1))
    found, exit_code = finding(side, base, head)
    assert expected == (found.verdict, found.reason, exit_code)
    assert found.interval is not None
    assert found.interval[0] < found.ratio < found.interval[1]
    assert found.ratio == pytest.approx(1 + change, abs=0.002)


def test_a_change_of_a_short_kernel_must_pass_the_absolute_floor(record, side):
    base, head = launches(record, A, [2.000, 2.001] * 3, [2.020, 2.021] * 3)  # +1 %, but only 0.02 us
    assert ABSOLUTE_FLOOR_US > 0.02
    assert Verdict.UNCHANGED is finding(side, base, head)[0].verdict


def test_launches_that_scatter_leave_it_open(record, side):
    base, head = launches(record, A, noisy(100.0, 0.03), noisy(101.0, 0.03, seed=1))
    found, exit_code = finding(side, base, head)
    assert (Verdict.INCONCLUSIVE, Reason.NOISY, 3) == (found.verdict, found.reason, exit_code)


def test_a_drift_of_the_unit_that_both_arms_share_is_no_change(record, side):
    drift = [1 + 0.01 * position for position in range(12)]
    times = {arm: [100.0 * drift[p] for p in range(12) if ARMS[p % 4] == arm] for arm in ("base", "head")}
    found, _ = finding(side, *launches(record, A, times["base"], times["head"]))
    assert found.ratio == pytest.approx(1.0, abs=1e-4)
    assert found.verdict not in (Verdict.REGRESSED, Verdict.IMPROVED)


def test_a_launch_that_did_not_converge_is_never_a_pass(record, side):
    base, head = launches(record, A, noisy(100.0, 0.001), noisy(100.0, 0.001, seed=1), converged=False)
    found, exit_code = finding(side, base, head)
    assert (Verdict.INCONCLUSIVE, Reason.NOT_CONVERGED, 3) == (found.verdict, found.reason, exit_code)


def test_two_pairs_are_too_few(record, side):
    found, _ = finding(side, *launches(record, A, [100.0, 100.1], [110.0, 110.1]))
    assert (Verdict.INCONCLUSIVE, Reason.TOO_FEW_PAIRS) == (found.verdict, found.reason)


def test_launches_of_two_leases_make_no_pair(record):
    base, head = launches(record, A, noisy(100.0, 0.001), noisy(100.0, 0.001, seed=1))
    other = launches(record, A, noisy(100.0, 0.001), noisy(100.0, 0.001, seed=1), lease_id="other")[1]
    assert (6, 0) == (len(pair_up(base, head)), len(pair_up(base, other)))


def test_an_invalid_launch_makes_no_pair(record):
    base, head = launches(record, A, noisy(100.0, 0.001), noisy(100.0, 0.001, seed=1))
    head[0] = record(A, "latency", None, status="invalid", **{k: getattr(head[0], k) for k in ("block", "position", "lease_id", "run_id")})
    assert len(pair_up(base, head)) == 5


def test_two_paired_runs_of_the_same_codes_are_pooled(record, side):
    sides = [launches(record, A, noisy(100.0, 0.001, seed=s), noisy(100.0, 0.001, seed=s + 1), run_id=f"r{s}") for s in (2, 4)]
    base, head = ([*one, *two] for one, two in zip(*sides, strict=True))
    assert len(pair_up(base, head)) == 12
    assert Verdict.UNCHANGED is finding(side, base, head)[0].verdict


def test_pairs_decide_where_equal_binaries_were_built_by_another_stack(record, side):
    base, head = launches(record, A, noisy(100.0, 0.001), noisy(106.0, 0.001, seed=1), environment={"triton": "3.6.0"})
    build = record(A, "static", 32, binary_hash=["b"], grid=["1"], config=["w4"], launcher_digest="l")
    found, _ = finding(side, [*base, build], [*head, replace(build, run_id="r2")])
    assert (Verdict.REGRESSED, Reason.SLOWER) == (found.verdict, found.reason)


def test_equal_binaries_prove_a_cell_whatever_its_pairs_say(record, side):
    build = {"binary_hash": ["b"], "grid": ["1"], "config": ["w4"], "launcher_digest": "l"}
    base, head = launches(record, A, noisy(100.0, 0.001), noisy(106.0, 0.001, seed=1), **build)
    found, _ = finding(side, base, head)
    assert CASES["d33"]["expected"] == "UNCHANGED(proved); counted as noise evidence"
    assert (Verdict.UNCHANGED, Reason.PROVED) == (found.verdict, found.reason)


def test_equal_builds_prove_nothing_of_launches_that_call_libraries_instead(record, side):
    """What was compiled is equal, and no launch of head ran any of it."""
    build = {"binary_hash": ["b"], "grid": ["1"], "config": ["w4"], "launcher_digest": "l"}
    base, _ = launches(record, A, noisy(10.0, 0.001), noisy(10.0, 0.001), **build)
    _, head = launches(record, A, noisy(20.0, 0.001), noisy(20.0, 0.001), **build | {"binary_hash": [], "grid": [], "config": []})
    static = record(A, "static", 32, **build)
    found, exit_code = finding(side, [*base, static], [*head, replace(static, run_id="r2")])
    assert (Verdict.REGRESSED, Reason.SLOWER, 1) == (found.verdict, found.reason, exit_code)


def test_no_spread_at_all_is_handled(record, side):
    case = CASES["d04"]["input"]
    base, head = launches(record, A, [*case["base"], 115], [*case["head"], case["head"][0]])
    assert CASES["d04"]["expected"].startswith(str(finding(side, base, head)[0].verdict))
    flat = finding(side, *launches(record, A, [100.0] * 6, [100.0] * 6))[0]
    assert (Verdict.UNCHANGED, (1.0, 1.0)) == (flat.verdict, flat.interval)


def test_an_improvement_passes(record, side):
    found, exit_code = finding(side, *launches(record, A, noisy(100.0, 0.001), noisy(88.0, 0.001, seed=1)))
    assert CASES["d20"]["expected"] == f"{found.verdict}, exit {exit_code}"


def test_one_cell_of_many_is_enough(record, side):
    slow, same = (
        launches(record, A, noisy(100.0, 0.001), noisy(111.0, 0.001, seed=1)),
        launches(record, B, noisy(100.0, 0.001), noisy(100.0, 0.001, seed=1)),
    )
    diff = judge(side("base", *slow[0], *same[0]), side("head", *slow[1], *same[1]))
    assert {A: Verdict.REGRESSED, B: Verdict.UNCHANGED} == {str(f.cell): f.verdict for f in diff.findings}
    assert diff.exit_code == 1


def test_long_launches_that_agree_in_themselves_count_as_one_each(record, side):
    (first, spread), (second, _) = CASES["d14"]["input"]["launches"]
    base, head = launches(record, A, [first, second] * 3, [second, first] * 3, samples=[first, first + spread])
    assert Verdict.REGRESSED is not finding(side, base, head)[0].verdict


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(5)
    covered, runs = 0, 2000
    for _ in range(runs):
        base, head = 100 * np.exp(0.002 * rng.standard_normal(6)), 101 * np.exp(0.002 * rng.standard_normal(6))
        low, high = estimate(list(zip(base, head, strict=True))).interval
        covered += low <= 1.01 <= high
    assert covered / runs == pytest.approx(0.99, abs=0.008)


def test_unchanged_code_is_not_flagged_in_a_thousand_diffs():
    rng = np.random.default_rng(6)
    flagged = 0
    for _ in range(1000):
        base, head = (100 * np.exp(0.001 * rng.standard_normal(6)) for _ in range(2))
        effect = estimate(list(zip(base, head, strict=True)))
        flagged += abs(math.log(effect.ratio)) > RELATIVE_FLOOR and not effect.interval[0] <= 1 <= effect.interval[1]
    assert flagged == 0
