import pytest
from toys import session_on

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
