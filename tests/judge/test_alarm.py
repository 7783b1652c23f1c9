"""What marks a run: times that went one way on many kernels, and cells that moved though they cannot have changed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge.alarm import LEAST_KERNELS, LEAST_UNTOUCHED, SIGNIFICANCE, UNTOUCHED_LIMIT
from harness.judge.diff import judge
from harness.judge.model import Policy, Reason, Suspicion, Verdict
from harness.judge.paired import CONFIDENCE
from harness.plan.jobs import ABBA

BUILD = {"binary_hash": ["b"], "grid": ["8"], "config": ["w4"], "launcher_digest": "l"}
OTHER = BUILD | {"binary_hash": ["c"]}


def cell(kernel: object, case: object = 1, device: str = "h200") -> str:
    return f"k{kernel}/fused/M={case},dtype=bf16@{device}"


def timed(
    record,
    name: str,
    ratio: float,
    *,
    base=BUILD,
    head=OTHER,
    metric: str = "latency_us",
    blocks: int = 3,
    spread: float = 0.0005,
    **columns,
):
    """Records of ABBA blocks in one lease."""
    sides = {"base": [], "head": []}
    for position in range(4 * blocks):
        arm = ABBA[position % 4]
        us = 100.0 * (ratio if arm == "head" else 1.0) * (1 + spread * math.sin(7 * position))
        place = {"arm": arm, "block": position // 4, "position": position, "launch": f"l{position}", "lease_id": "lease", "run_id": "r1"}
        build = head if arm == "head" else base
        sides[arm].append(record(name, "latency", us, metric=metric, **{"converged": True, **place, **build, **columns}))
    return sides["base"], sides["head"]


def untouched(record, name: str, ratio: float, **columns):
    return timed(record, name, ratio, head=BUILD, **columns)


def diff_of(side, *cells, policy: Policy | None = None):
    base, head = ([r for one in cells for r in one[n]] for n in (0, 1))
    return judge(side("base", *base), side("head", *head), policy)


def suspicions(diff) -> list[tuple[str, str]]:
    return [(str(mark.suspicion), mark.device) for mark in diff.marks]


class TestOneSided:
    def test_eight_kernels_of_one_sign_are_the_fewest_that_chance_does_not_give(self) -> None:
        assert 8 == LEAST_KERNELS
        assert 2 * 0.5**LEAST_KERNELS < SIGNIFICANCE <= 2 * 0.5 ** (LEAST_KERNELS - 1)

    @pytest.mark.parametrize("ratio", [1.05, 0.95], ids=["slower", "faster"])
    @pytest.mark.parametrize(("kernels", "expected"), [(LEAST_KERNELS - 1, []), (LEAST_KERNELS, [("one_sided", "h200")])])
    def test_marks_from_eight_kernels_on_whatever_the_sign(self, record, side, kernels, ratio, expected) -> None:
        diff = diff_of(side, *(timed(record, cell(n), ratio) for n in range(kernels)))
        assert expected == suspicions(diff)
        assert (1 if ratio > 1 else 0) == diff.exit_code

    def test_one_kernel_never_marks_a_run_in_however_many_cells_and_binaries(self, record, side) -> None:
        cells = [timed(record, cell("x", case), 1.05, head=BUILD | {"binary_hash": [f"c{case}"]}) for case in range(20)]
        diff = diff_of(side, *cells)
        assert (20, ()) == (diff.counts[Verdict.REGRESSED], diff.marks)

    def test_one_finding_of_the_other_sign_is_enough_against_it(self, record, side) -> None:
        others = [timed(record, cell(n), 1.05) for n in range(20)]
        assert () == diff_of(side, *others, timed(record, cell("other"), 0.95)).marks

    def test_a_worst_step_of_the_other_sign_is_a_finding_too(self, record, side) -> None:
        others = [timed(record, cell(n), 1.05) for n in range(20)]
        assert () == diff_of(side, *others, timed(record, cell(0), 0.95, metric="worst_step_us")).marks

    def test_kernels_that_did_not_move_beyond_the_floor_say_nothing(self, record, side) -> None:
        assert () == diff_of(side, *(timed(record, cell(n), 1.001) for n in range(20))).marks

    def test_sizes_that_grew_everywhere_are_no_times(self, record, side) -> None:
        sides = [side(ref, *(record(cell(n), "static", size) for n in range(20))) for ref, size in (("base", 32), ("head", 64))]
        assert () == judge(*sides).marks

    def test_a_cell_that_failed_at_base_is_no_faster_one(self, record, side) -> None:
        base = side("base", *(record(cell(n), "latency", status="crash") for n in range(20)))
        diff = judge(base, side("head", *(record(cell(n), "latency", 9.0) for n in range(20))))
        assert (20, ()) == (diff.counts[Verdict.IMPROVED], diff.marks)

    def test_stored_times_mark_nothing(self, record, side) -> None:
        sides = [side(ref, *(record(cell(n), "latency", us) for n in range(20))) for ref, us in (("base", 9.0), ("head", 12.0))]
        assert () == judge(*sides).marks

    def test_each_device_is_looked_at_alone(self, record, side) -> None:
        slow = [timed(record, cell(n), 1.05) for n in range(LEAST_KERNELS)]
        mixed = [timed(record, cell(n, device="b200"), 1.05 if n % 2 else 0.95) for n in range(LEAST_KERNELS)]
        assert [("one_sided", "h200")] == suspicions(diff_of(side, *slow, *mixed))
        halves = [timed(record, cell(n, device=device), 1.05) for device in ("h200", "b200") for n in range(LEAST_KERNELS // 2)]
        assert [] == suspicions(diff_of(side, *halves))

    def test_two_metrics_of_a_cell_are_one_observation(self, record, side) -> None:
        cells = [
            timed(record, cell(n), 1.05, metric=metric) for n in range(LEAST_KERNELS - 1) for metric in ("latency_us", "worst_step_us")
        ]
        diff = diff_of(side, *cells)
        assert (2 * (LEAST_KERNELS - 1), ()) == (diff.counts[Verdict.REGRESSED], diff.marks)

    def test_says_what_was_seen_and_what_to_do(self, record, side) -> None:
        still = [untouched(record, cell("still", n), 1.0) for n in range(3)]
        (mark,) = diff_of(side, *(timed(record, cell(n), 1.05) for n in range(9)), *still).marks
        assert (9, 0, 9, 9) == (mark.slower, mark.faster, mark.of, mark.kernels)
        expected = (
            "all times that were called have one sign (9 slower, 0 faster, of 9 kernels), which chance gives with p 0.004; "
            "untouched cells: 0 slower, 0 faster, of 3"
        )
        assert expected == mark.detail
        assert mark.do.startswith("measure both sides again on another unit or in a later lease")
        assert f"harness submit --ref {'c' * 40} --against {'c' * 40} --device h200 --kind latency" == mark.reproduce


class TestUntouched:
    @pytest.mark.parametrize(
        ("moved", "of", "expected"),
        [
            pytest.param(1, 5, False, id="one cell has nothing to move together with"),
            pytest.param(2, 5, True, id="two of five"),
            pytest.param(2, 20, False, id="ten percent are not over ten percent"),
            pytest.param(3, 20, True, id="three of twenty"),
        ],
    )
    @pytest.mark.parametrize("ratio", [1.02, 0.98], ids=["slower", "faster"])
    def test_marks_where_over_a_tenth_moved_one_way(self, record, side, moved, of, expected, ratio) -> None:
        diff = diff_of(side, *(untouched(record, cell("x", n), ratio if n < moved else 1.0) for n in range(of)))
        assert ([("untouched_moved", "h200")] if expected else []) == suspicions(diff)
        assert ({Reason.PROVED}, 0) == ({f.reason for f in diff.findings}, diff.exit_code)

    def test_as_many_that_moved_either_way_are_noise(self, record, side) -> None:
        ratios = (1.02, 0.98)
        cells = [untouched(record, cell("x", n), ratios[n] if n < 2 else 1.0) for n in range(6)]
        assert () == diff_of(side, *cells).marks

    def test_a_move_below_the_floor_is_none(self, record, side) -> None:
        assert () == diff_of(side, *(untouched(record, cell("x", n), 1.002) for n in range(6))).marks

    def test_a_move_that_the_scatter_explains_is_none(self, record, side) -> None:
        diff = diff_of(side, *(untouched(record, cell("x", n), 1.02, spread=0.05) for n in range(4)))
        assert all(f.ratio > 1.01 and f.interval[0] < 1 for f in diff.findings)
        assert () == diff.marks

    @pytest.mark.parametrize(
        "columns", [{"block": None}, {"converged": False}], ids=["launched in turn of no block", "a launch did not converge"]
    )
    def test_times_that_could_not_be_judged_are_no_controls(self, record, side, columns) -> None:
        diff = diff_of(side, *(untouched(record, cell("x", n), 1.05, **columns) for n in range(6)))
        assert ({Reason.PROVED}, ()) == ({f.reason for f in diff.findings}, diff.marks)

    def test_too_few_pairs_are_no_control(self, record, side) -> None:
        assert () == diff_of(side, *(untouched(record, cell("x", n), 1.05, blocks=1) for n in range(6))).marks

    def test_a_cell_whose_binary_changed_is_no_control(self, record, side) -> None:
        still = [untouched(record, cell("x", n), 1.0) for n in range(2)]
        assert () == diff_of(side, *(timed(record, cell("y", n), 1.05) for n in range(6)), *still).marks

    def test_a_control_shows_what_was_measured_and_stays_proved(self, record, side) -> None:
        (finding,) = diff_of(side, untouched(record, cell("x"), 1.02)).findings
        assert (Verdict.UNCHANGED, Reason.PROVED, pytest.approx(1.02, abs=1e-3)) == (finding.verdict, finding.reason, finding.ratio)
        assert finding.detail.startswith("measured all the same: +2.0")

    def test_both_marks_stand_side_by_side(self, record, side) -> None:
        slow = [timed(record, cell(n), 1.05) for n in range(LEAST_KERNELS)]
        diff = diff_of(side, *slow, *(untouched(record, cell("x", n), 1.05) for n in range(3)))
        assert [Suspicion.ONE_SIDED, Suspicion.UNTOUCHED_MOVED] == [m.suspicion for m in diff.marks]
        assert "untouched cells: 3 slower, 0 faster, of 3" in diff.marks[0].detail
        expected = "cells that cannot have changed moved together (3 slower, 0 faster, of 3): the unit moved, not the code"
        assert expected == diff.marks[1].detail

    def test_marks_are_no_part_of_what_a_policy_judges(self, record, side) -> None:
        cells = [untouched(record, cell("x", n), 1.05) for n in range(3)]
        strict = Policy(fail_on=frozenset({Verdict.INCONCLUSIVE, Verdict.MISSING}))
        diff = diff_of(side, *cells, policy=strict)
        assert (1, 0) == (len(diff.marks), diff.exit_code)

    def test_a_unit_at_rest_is_marked_in_under_one_diff_in_a_hundred_however_many_cells(self) -> None:
        from scipy.stats import binom

        by_chance = (1 - CONFIDENCE) / 2
        for n in range(1, 1000):
            least = max(LEAST_UNTOUCHED, math.floor(UNTOUCHED_LIMIT * n) + 1)
            assert 2 * binom.sf(least - 1, n, by_chance) < 0.01, n


RATIOS = st.sampled_from([0.95, 1.0, 1.05])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    called=st.lists(RATIOS, max_size=10),
    controls=st.lists(RATIOS, max_size=10),
)
def test_a_mark_counts_what_the_findings_say(record, side, called, controls) -> None:
    cells = [timed(record, cell(n), ratio) for n, ratio in enumerate(called)]
    diff = diff_of(side, *cells, *(untouched(record, cell("x", n), ratio) for n, ratio in enumerate(controls)))
    found = {mark.suspicion: (mark.slower, mark.faster) for mark in diff.marks}
    slower, faster = called.count(1.05), called.count(0.95)
    still = controls.count(1.05), controls.count(0.95)
    one_sided = slower + faster >= LEAST_KERNELS and 0 in (slower, faster)
    together = max(still) >= LEAST_UNTOUCHED and 10 * max(still) > len(controls)
    expected = {Suspicion.ONE_SIDED: (slower, faster)} if one_sided else {}
    assert expected | ({Suspicion.UNTOUCHED_MOVED: still} if together else {}) == found
