"""The proof that filling the cache empties it, on scripted devices of which some do not."""

import pytest
from test_short_ring import SHORT, tiny
from toys import SCALE, STATE, session_on, subject_of

from harness.measure.clock import time_cell
from harness.measure.clock.filling import Filling, measure_filling
from harness.measure.clock.validity import InvalidTiming
from harness.records import Status


def test_a_cache_that_drops_what_was_used_least_recently_is_emptied():
    found = measure_filling(session_on())
    assert found.warm_us < 0.7 * found.cold_us <= found.filled_us
    found.check()


def test_one_that_keeps_what_it_holds_is_not():
    found = measure_filling(session_on(keeps_oldest=True))
    assert found.filled_us == pytest.approx(found.warm_us, rel=0.01)
    with pytest.raises(InvalidTiming, match="not_cold: filling this unit's cache does not displace what it holds"):
        found.check()


@pytest.mark.parametrize(
    ("filling", "displaces"),
    [
        (Filling(5.0, 5.0, 4.0), True),
        (Filling(5.0, 4.8, 4.0), True),
        (Filling(5.0, 4.79, 4.0), False),
        (Filling(5.0, 9.0, 4.0), True),
        (Filling(5.0, 4.86, 4.86), True),
        (Filling(5.0, 4.0, 6.0), True),
    ],
    ids=["as cold", "nearly", "not nearly", "writing back", "no difference", "slower warm"],
)
def test_it_must_bring_back_most_of_what_the_cache_saves(filling, displaces):
    assert filling.displaces is displaces


def test_a_ring_that_is_emptied_by_fillings_is_refused_where_they_displace_nothing():
    session = session_on(settings=SHORT, keeps_oldest=True)
    session.know_unit()
    (main, *rest) = time_cell(subject_of(tiny(SCALE)), session)
    assert (Status.INVALID, "not_cold", []) == (main.status, main.reason.partition(":")[0], rest)


def test_a_ring_that_is_cold_by_itself_is_timed_all_the_same_and_nothing_else_is_called_cold():
    session = session_on(keeps_oldest=True)
    session.know_unit()
    found = {r.metric: r for r in time_cell(subject_of(STATE), session)}
    assert Status.OK is found["latency_us"].status
    assert (Status.SKIPPED, "not_cold") == (found["graph1_us"].status, found["graph1_us"].reason)


def test_it_is_measured_once_a_lease():
    session = session_on()
    session.know_unit()
    before = session.facts.filling
    assert before is not None
    assert session.filling is before
