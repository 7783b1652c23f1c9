import json

import pytest
from toys import session_on

from harness.measure.clock import LeaseFacts
from harness.measure.clock.canaries import take_canary


def test_canaries_are_fixed_work():
    one, other = take_canary(session_on()), take_canary(session_on())
    assert one == other
    assert one.arithmetic_us == pytest.approx(50.0, rel=0.02)


@pytest.mark.parametrize("factor", [1.0, 1.4])
def test_a_slower_unit_shows_in_both_canaries(factor):
    usual, now = take_canary(session_on()), take_canary(session_on(slowdown=lambda replays: factor))
    assert now.arithmetic_us / usual.arithmetic_us == pytest.approx(factor, rel=0.02)
    assert now.copy_us / usual.copy_us == pytest.approx(factor, rel=0.02)


def after(factor):
    """A session of the second launch of a lease, whose unit is slower by a factor than it was in the first."""
    first = session_on()
    first.note_canary()
    second = session_on(slowdown=lambda replays: factor)
    second.facts = LeaseFacts.from_json(json.loads(json.dumps(first.facts.to_json())))
    second.note_canary()
    return second


def test_a_unit_that_moved_within_its_lease_spoils_the_launch():
    fault = after(1.03).fault
    assert fault is not None
    assert str(fault).startswith("contended: the arithmetic canary moved from 50.")


def test_a_unit_that_stands_still_spoils_nothing():
    session = after(1.0)
    assert (None, 2) == (session.fault, len(session.facts.canaries))
