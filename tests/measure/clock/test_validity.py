import math
from contextlib import nullcontext

import pytest

from harness import Traffic
from harness.measure.clock.ceilings import Ceilings
from harness.measure.clock.validity import (
    InvalidTiming,
    Reason,
    check_doubling,
    check_elapsed,
    check_host_clock,
    check_peak,
    check_phases,
    check_samples,
)

UNIT = Ceilings(copy_gbps=4300, read_gbps=4550)


def reason_of(check, *args):
    with pytest.raises(InvalidTiming) as caught:
        check(*args)
    return caught.value.reason


def test_m08_one_negative_time_is_enough_and_nothing_is_dropped():
    assert reason_of(check_elapsed, [5.1, -1780.0, 5.0]) is Reason.NEGATIVE_TIME


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_m09_a_time_that_is_not_finite_is_no_sample(value):
    assert reason_of(check_elapsed, [5.0, value]) is Reason.NO_VALID_SAMPLES


def test_m09_no_samples_is_invalid():
    assert reason_of(check_samples, []) is Reason.NO_VALID_SAMPLES


def test_m17_more_bandwidth_than_the_unit_has_is_invalid():
    bytes_ = Traffic(4_000_000, 2_169_000)
    us = bytes_.total / 6169e3
    assert reason_of(check_peak, us, bytes_, Ceilings(2435, 2400), 1.05) is Reason.OVER_PEAK


def test_m23_a_zero_is_below_every_floor():
    assert reason_of(check_peak, 0.0, Traffic(1000, 0), UNIT, 1.05) is Reason.OVER_PEAK


@pytest.mark.parametrize(("share", "expected"), [(1.04, True), (1.06, False)], ids=["104 %", "106 %"])
def test_five_percent_above_the_units_best_is_allowed(share, expected):
    traffic = Traffic(10**9, 0)
    us = traffic.total / (share * 4550e3)
    if expected:
        check_peak(us, traffic, UNIT, 1.05)
    else:
        assert reason_of(check_peak, us, traffic, UNIT, 1.05) is Reason.OVER_PEAK


@pytest.mark.parametrize(
    ("wall", "device", "agrees"),
    [(1000.0, 900.0, True), (1000.0, 800.0, False), (1000.0, 1200.0, False), (100_000.0, 1000.0, False), (60.0, 1.0, True)],
    ids=["10 % apart", "20 % short", "20 % long", "patched by 100", "within the floor"],
)
def test_host_and_device_clock_must_agree(wall, device, agrees):
    if agrees:
        check_host_clock(wall, device, 100.0, 0.15)
    else:
        assert reason_of(check_host_clock, wall, device, 100.0, 0.15) is Reason.HOST_CLOCK


@pytest.mark.parametrize("doubled", [9.7, 10.2, math.nan], ids=["faster", "slower", "unknown"])
def test_a_time_that_moves_with_the_ring_is_not_cold(doubled):
    assert reason_of(check_doubling, 10.0, doubled, 0.02) is Reason.NOT_COLD


def test_a_time_that_does_not_move_with_the_ring_is_cold():
    assert check_doubling(10.0, 10.1, 0.02) == pytest.approx(0.01)


def test_phases_reconcile_with_the_cycle_within_3_percent():
    check_phases([7.19], [5.0] * 15 + [40.0], 0.03)
    assert reason_of(check_phases, [5.0], [5.0] * 15 + [40.0], 0.03) is Reason.PHASES


@pytest.mark.parametrize(("mean", "agrees"), [(9.6, False), (9.8, True), (10.5, True), (11.2, True), (11.4, False), (math.nan, False)])
def test_phases_may_lie_between_the_cycle_before_and_after_them(mean, agrees):
    with nullcontext() if agrees else pytest.raises(InvalidTiming, match="takes 10 and then 11 us"):
        check_phases([10.0, 11.0], [mean], 0.03)


@pytest.mark.parametrize(("read", "written", "expected"), [(95, 5, 4550), (90, 10, 4300), (50, 50, 4300)])
def test_reads_are_held_against_the_read_ceiling_where_they_dominate(read, written, expected):
    assert UNIT.for_traffic(Traffic(read, written)) == expected
