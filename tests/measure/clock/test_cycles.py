import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import CYCLE, LENGTH, phase_cost, session_on, subject_of

from harness.measure.clock.cycles import Phases, time_phases
from harness.measure.clock.estimate import is_accurate
from harness.measure.clock.program import ADVANCE, make_bench
from harness.measure.clock.sampling import Sampled


def phases(*each):
    return Phases(tuple(Sampled((us,) * 30, True) for us in each))


def test_m33_the_worst_step_is_kept_apart_from_the_cheap_ones():
    figures = phases(*[5.0] * 15, 40.0).figures()
    assert {metric: sampled.us for metric, sampled in figures.items()} == {"worst_step_us": 40.0, "fold_us": 40.0, "append_us": 5.0}


def test_a_cycle_of_one_step_has_no_cheap_ones():
    assert set(phases(7.0).figures()) == {"worst_step_us", "fold_us"}


@given(st.lists(st.floats(min_value=0.5, max_value=1e4), min_size=2, max_size=16))
def test_the_parts_add_up_to_the_cycle(each):
    figures = phases(*each).figures()
    assert figures["append_us"].us * (len(each) - 1) + figures["fold_us"].us == pytest.approx(sum(each))
    assert figures["worst_step_us"].us == max(each)


def test_a_figure_converged_only_if_each_of_its_phases_did():
    mixed = Phases((Sampled((5.0,) * 30, True), Sampled((5.0,) * 30, False), Sampled((40.0,) * 30, True)))
    assert {metric: sampled.converged for metric, sampled in mixed.figures().items()} == {
        "worst_step_us": True,
        "fold_us": True,
        "append_us": False,
    }


@pytest.fixture
def bench():
    session = session_on(cost_us=phase_cost)
    bench = make_bench(subject_of(CYCLE), session, 5, seed=1, contents=2, allocated=5)
    bench.prepare()
    return bench, session


def test_a_whole_cycle_calls_every_slot_in_every_phase_and_moves_between(bench):
    steps = bench[0].pass_over(5)
    assert steps == (0, 1, 2, 3, 4, ADVANCE) * LENGTH


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(min_value=2.0, max_value=200.0), min_size=LENGTH, max_size=LENGTH))
def test_a_whole_cycle_takes_the_mean_of_its_phases_whatever_their_pattern(pattern):
    def cost(operation):
        return 0.0 if phase_cost(operation) == 0.1 else pattern[int(operation.tensors[1])] if len(operation.tensors) > 1 else None

    session = session_on(cost_us=cost, graph_gap_us=0.0, mark_us=0.0)
    bench = make_bench(subject_of(CYCLE), session, 5, seed=1, contents=2, allocated=5)
    bench.prepare()
    program = bench.capture(bench.pass_over(5), 4)
    (us,) = set(session.take(program.replays, program.calls, 1, bench.reset).samples)
    assert statistics.fmean(pattern) == pytest.approx(us, rel=1e-3)


def test_each_phase_is_timed_with_the_cursor_held_still(bench):
    bench, session = bench
    found = time_phases(bench, session, bench.capture(bench.one_pass, 8), bench.capture((ADVANCE,)))
    assert [sampled.us for sampled in found.phases.each] == pytest.approx([5.0] * (LENGTH - 1) + [40.0], rel=0.02)
    assert found.step.us == pytest.approx((5.0 * (LENGTH - 1) + 40.0) / LENGTH, rel=0.02)


def test_phases_that_are_steady_settle_in_a_window_of_samples_not_of_rounds(bench, monkeypatch):
    bench, session = bench
    program, advance, counts, take = bench.capture(bench.one_pass, 8), bench.capture((ADVANCE,)), [], session.take
    assert session.clock.host_us > 0, "the clock's own floors are taken before"
    monkeypatch.setattr(session, "take", lambda *args: counts.append(args[2]) or take(*args))
    time_phases(bench, session, program, advance)
    rounds = -(-session.settings.settle_window // LENGTH)
    assert sum(counts) == (3 * rounds + session.settings.looks[0]) * LENGTH


def test_a_phase_is_not_timed_at_the_clocks_that_it_alone_would_run_at():
    """A device that slows down after 200 expensive calls in a row never meets them in a cycle, and does not meet them here."""
    row = 0

    def cost(operation):
        nonlocal row
        us = phase_cost(operation)
        if us in (5.0, 40.0):
            row = row + 1 if us == 40.0 else 0
        return 60.0 if us == 40.0 and row > 200 else us

    session = session_on(cost_us=cost)
    bench = make_bench(subject_of(CYCLE), session, 5, seed=1, contents=2, allocated=5)
    bench.prepare()
    found = time_phases(bench, session, bench.capture(bench.one_pass, 8), bench.capture((ADVANCE,))).phases
    assert [sampled.us for sampled in found.each] == pytest.approx([5.0] * (LENGTH - 1) + [40.0], rel=0.02)


def test_every_phase_has_as_many_samples_and_all_must_be_known_well_enough():
    noise = random.Random(0)
    shifted: list[float] = []

    def cost(operation):
        us = phase_cost(operation)
        if us == 40.0:  # what the next step, the first of a cycle, has less: their sum is steady
            shifted.append(noise.uniform(-2.0, 2.0))
            return us + shifted[-1]
        return us - shifted.pop() if us == 5.0 and shifted else us

    session = session_on(cost_us=cost)
    bench = make_bench(subject_of(CYCLE), session, 1, seed=1, contents=1, allocated=1)
    bench.prepare()
    found = time_phases(bench, session, bench.capture(bench.one_pass, 1), bench.capture((ADVANCE,))).phases
    (taken,) = {len(sampled.samples) for sampled in found.each}
    assert taken > session.settings.looks[0]
    assert [sampled.converged for sampled in found.each] == [is_accurate(found.each[0].samples)] * LENGTH
