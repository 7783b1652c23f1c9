import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.measure.clock.estimate import has_shifted, is_accurate
from harness.measure.clock.sampling import Sampler
from harness.measure.clock.settings import ClockSettings


class Tape:
    """Plays scripted samples, and takes the time that they say."""

    def __init__(self, samples_us, calls=1):
        self.samples, self.calls, self.played, self.now = iter(samples_us), calls, [], 0.0

    def take(self, count):
        taken = [next(self.samples) for _ in range(count)]
        self.played += taken
        self.now += sum(taken) * self.calls * 1e-6
        return taken

    def sample(self, budget_s=3.0, **settings):
        return Sampler(self.take, self.calls, lambda: self.now, ClockSettings(**settings)).sample(budget_s)


def forever(pattern):
    while True:
        yield from pattern


def then(first, rest):
    yield from first
    yield from forever(rest)


def test_m12_warm_up_extends_until_stationary():
    tape = Tape(then([11_200.0] * 20, [8_800.0]))
    sampled = tape.sample()
    assert (sampled.us, sampled.converged) == (8_800.0, True)


def test_m12_a_step_after_the_warm_up_begins_sampling_again():
    tape = Tape(then([11_200.0] * 70, [8_800.0]))
    sampled = tape.sample()
    assert (sampled.us, sampled.converged, sampled.restarts) == (8_800.0, True, 1)


def test_a_steady_time_stops_at_the_first_look():
    sampled = Tape(forever([100.0, 100.1, 99.9])).sample()
    assert (len(sampled.samples), sampled.converged) == (30, True)


def test_at_least_fifty_calls_are_made_before_the_first_sample():
    tape = Tape(forever([100.0]), calls=1)
    sampled = tape.sample()
    assert len(tape.played) - len(sampled.samples) >= 50


def test_noise_is_looked_at_until_the_last_look_and_kept_unconverged():
    draw = random.Random(3)
    wild = (draw.uniform(60.0, 140.0) for _ in range(100_000))
    sampled = Tape(wild).sample(looks=(30, 60, 120))
    assert (len(sampled.samples), sampled.converged) == (120, False)


def test_no_sample_is_dropped():
    tape = Tape(forever([100.0, 100.1, 99.9, 100.0, 100.05, 250.0]))
    sampled = tape.sample()
    assert list(sampled.samples) == tape.played[-len(sampled.samples) :]
    assert 250.0 in sampled.samples


def test_the_budget_ends_sampling_and_what_was_taken_is_kept_unconverged():
    tape = Tape(forever([100_000.0]))
    sampled = tape.sample(budget_s=1.0)
    assert 1 <= len(sampled.samples) <= 11
    assert not sampled.converged


@given(st.lists(st.floats(min_value=50, max_value=150), min_size=7, max_size=40))
def test_samples_are_consecutive_and_stop_at_a_look(pattern):
    tape = Tape(forever(pattern))
    sampled = tape.sample(budget_s=0.05)
    assert list(sampled.samples) == tape.played[-len(sampled.samples) :]
    assert len(sampled.samples) in ClockSettings().looks or not sampled.converged


@given(st.integers(0, 10**6), st.floats(min_value=0.0, max_value=0.2), st.floats(min_value=1.0, max_value=500.0))
def test_what_is_called_converged_stopped_at_a_look_is_known_well_enough_and_has_one_level(seed, spread, us):
    draw = random.Random(seed)
    sampled = Tape(us * max(0.1, 1 + spread * draw.gauss(0, 1)) for _ in range(100_000)).sample(budget_s=1.0)
    assert len(sampled.samples) <= ClockSettings().looks[-1]
    if sampled.converged:
        assert len(sampled.samples) in ClockSettings().looks
        assert is_accurate(sampled.samples)
        assert not has_shifted(sampled.samples)
    else:
        assert not (len(sampled.samples) == ClockSettings().looks[-1] and is_accurate(sampled.samples) and not has_shifted(sampled.samples))


def test_a_level_that_never_holds_does_not_converge():
    rising = (100.0 * 1.01**i for i in range(10_000))
    sampled = Tape(rising).sample(budget_s=0.5)
    assert not sampled.converged


def test_the_median_is_the_estimate():
    assert Tape(forever([10.0, 10.0, 10.05])).sample().us == pytest.approx(10.0)
