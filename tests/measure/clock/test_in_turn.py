from dataclasses import replace

import pytest
from toys import QUICK, SCALE, session_on, subject_of

from harness.measure.clock.in_turn import LEAST_TURNS, WINDOW, time_in_turn
from harness.measure.clock.program import make_bench
from harness.measure.clock.validity import InvalidTiming


def programs_on(**script):
    """A session, and two equal programs over one ring."""
    session = session_on(**script)
    bench = make_bench(subject_of(SCALE), session, 40, 1, QUICK.contents, allocated=40)
    bench.prepare()
    return session, bench, tuple(bench.capture(bench.one_pass, 16) for _ in range(2))


def test_a_unit_that_slows_down_all_the_time_is_the_same_for_both():
    session, bench, programs = programs_on(slowdown=lambda replays: 1 + replays / 500)
    one, other = time_in_turn(session, programs, bench.reset)
    apart = [session.measure(program, 0.3, bench.reset).us for program in programs]
    assert one == pytest.approx(other, rel=0.02)
    assert apart[1] / apart[0] > 1.1


def test_steady_programs_need_no_more_turns_than_an_interval_does(monkeypatch):
    session, bench, programs = programs_on(settings=replace(QUICK, side_budget_s=0.3))
    taken, take = [], session.take

    def noting(replays, calls, count, *rest):
        taken.append((replays, count))
        return take(replays, calls, count, *rest)

    assert session.clock.host_us > 0, "the clock's own floors are taken before"
    monkeypatch.setattr(session, "take", noting)
    time_in_turn(session, programs, bench.reset)
    assert [(program.replays, WINDOW) for program in programs] * (1 + LEAST_TURNS) == taken


def test_a_clock_that_lies_is_refused():
    session, bench, programs = programs_on(elapsed=lambda reading, us: us / 100)
    with pytest.raises(InvalidTiming, match="host_clock"):
        time_in_turn(session, programs, bench.reset)
