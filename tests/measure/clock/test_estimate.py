import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.measure.clock.estimate import (
    calls_lasting,
    calls_per_sample,
    cycle_step,
    half_width,
    has_shifted,
    is_accurate,
    tick_of,
    tolerance_at,
    windows_agree,
)

times = st.floats(min_value=0.5, max_value=1e4)
many = st.lists(times, min_size=20, max_size=200)


@given(st.floats(min_value=0.5, max_value=1e4), st.integers(20, 480))
def test_equal_samples_have_an_interval_of_no_width(us, count):
    assert half_width([us] * count) == 0


@given(many, st.sampled_from([0.25, 2.0, 8.0]))
def test_the_interval_scales_with_the_samples(samples, factor):
    assert half_width([factor * us for us in samples]) == pytest.approx(factor * half_width(samples), rel=1e-9)


@given(many)
def test_the_interval_is_no_wider_than_the_samples_spread_allows(samples):
    assert 0 <= half_width(samples) <= 2.262 * (max(samples) - min(samples)) / math.sqrt(10)


@given(many, st.floats(min_value=-0.4, max_value=1e3))
def test_the_interval_does_not_move_with_the_level(samples, level):
    assert half_width([us + level for us in samples]) == pytest.approx(half_width(samples), rel=1e-6, abs=1e-6)


@given(st.lists(st.lists(times, min_size=6, max_size=6), min_size=10, max_size=10), st.randoms(use_true_random=False))
def test_the_interval_depends_on_batches_and_not_on_the_order_within_them(batches, draw):
    shuffled = [draw.sample(batch, len(batch)) for batch in batches]
    assert half_width([us for batch in batches for us in batch]) == half_width([us for batch in shuffled for us in batch])


@given(many)
def test_the_interval_reads_alike_from_either_end(samples):
    whole = samples[: len(samples) // 10 * 10]
    assert half_width(whole) == pytest.approx(half_width(whole[::-1]), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.92), (0.5, 0.85)], ids=["independent", "correlated"])
def test_the_interval_holds_the_median_about_as_often_as_it_says(correlation, least):
    draw, held, launches = random.Random(4), 0, 600
    for _ in range(launches):
        noise, samples = draw.gauss(0, 1), []
        for _ in range(120):
            noise = correlation * noise + math.sqrt(1 - correlation**2) * draw.gauss(0, 1)
            samples.append(100 + noise)
        held += abs(statistics.median(samples) - 100) <= half_width(samples)
    assert least <= held / launches <= 0.99


@given(st.floats(min_value=0.5, max_value=1e4), st.lists(st.floats(min_value=-1, max_value=1), min_size=30, max_size=120))
def test_noise_within_the_tolerance_is_no_shift_and_windows_of_it_agree(us, noise):
    within = [us * (1 + 0.4 * 0.005 * n) for n in noise]
    assert not has_shifted(within)
    assert windows_agree([within[:10], within[10:20], within[20:30]])


@given(st.floats(min_value=0.5, max_value=1e4), st.integers(5, 100), st.sampled_from([-0.1, -0.03, 0.03, 0.1]))
def test_a_step_in_level_beyond_the_tolerance_is_a_shift_wherever_the_clock_reads(us, third, step):
    assert has_shifted([us] * 2 * third + [us * (1 + step)] * third)
    assert not windows_agree([[us] * 10, [us] * 10, [us * (1 + step)] * 10])


def test_correlated_samples_have_a_wider_interval_than_the_same_ones_shuffled():
    slow, fast = [10.0] * 30, [11.0] * 30
    alternating = [us for pair in zip(slow, fast, strict=True) for us in pair]
    assert half_width(slow + fast) > 3 * half_width(alternating)


def test_too_few_samples_have_no_interval():
    assert half_width([1.0] * 19) == math.inf


@pytest.mark.parametrize(("us", "expected"), [(268.0, 0.005), (20.0, 0.005), (19.9, 0.01), (5.0, 0.01), (4.99, 0.02), (0.7, 0.02)])
def test_accuracy_asked_for_depends_on_the_time(us, expected):
    assert tolerance_at(us) == expected


@pytest.mark.parametrize(("spread", "expected"), [(0.004, True), (0.02, False)], ids=["0.4 %", "2 %"])
def test_a_time_is_accurate_when_its_interval_is_narrow_enough(spread, expected):
    samples = [100.0 * (1 + spread * (i // 3 % 2)) for i in range(30)]
    assert is_accurate(samples) is expected


def test_windows_agree_only_when_three_in_a_row_do():
    slow, fast = [11.2] * 10, [8.8] * 10
    assert not windows_agree([slow, slow])
    assert not windows_agree([slow, slow, fast])
    assert windows_agree([slow, fast, fast, fast])


def test_a_step_in_level_is_a_shift_and_noise_is_none():
    assert has_shifted([11.2] * 20 + [8.8] * 20)
    assert not has_shifted([10.0 + 0.5 * (i % 3) for i in range(60)])


@given(st.lists(st.lists(times, min_size=2, max_size=16), min_size=1, max_size=30))
def test_a_cycles_step_is_its_total_over_its_length(cycles):
    length = len(cycles[0])
    totals = [math.fsum(steps[:length]) for steps in cycles if len(steps) >= length]
    assert cycle_step(totals, length) * length == pytest.approx(statistics.median(totals))


def test_m33_phases_are_amortised_and_never_reduced_to_their_median():
    steps = [5.0] * 15 + [40.0]
    assert cycle_step([sum(steps)] * 30, 16) == pytest.approx(7.19, abs=0.005)
    assert statistics.median(steps) == 5.0


@given(st.floats(min_value=0.01, max_value=1.0), st.sets(st.integers(1, 10_000), min_size=2, max_size=60))
def test_the_tick_is_a_multiple_of_the_true_one(tick, readings):
    found = tick_of([tick * n for n in readings]) / tick
    assert found >= 1 - 1e-6
    assert found == pytest.approx(round(found), abs=0.02)


def test_consecutive_readings_give_the_tick_through_fp32_rounding():
    import numpy as np

    milliseconds = [np.float32(0.032e-3 * n) for n in (31, 32, 32, 33, 210, 5000)]
    assert tick_of([float(ms) * 1000 for ms in milliseconds]) == pytest.approx(0.032, rel=1e-3)


def test_a_clock_that_stands_still_has_no_tick():
    with pytest.raises(ValueError, match="different lengths"):
        tick_of([1.0] * 50)


@given(st.floats(min_value=0.01, max_value=1e5), st.integers(1, 30_000), st.floats(min_value=1.0, max_value=1e4))
def test_a_sample_is_long_enough_and_at_most_twice_that(us, unit, least_us):
    repetitions = calls_per_sample(us, unit, least_us)
    assert repetitions * unit * us >= least_us * (1 - 1e-9)
    assert repetitions == 1 or (repetitions // 2) * unit * us < least_us * (1 + 1e-9)
    assert repetitions.bit_count() == 1


@pytest.mark.parametrize(("us", "calls"), [(1.0, 2000), (1.953, 1025), (1.954, 1024), (3000.0, 1), (0.0, 2_000_000)])
def test_as_many_calls_as_last_for_a_sample_are_not_rounded_to_a_power_of_two(us, calls):
    assert calls == calls_lasting(2000.0, us)
