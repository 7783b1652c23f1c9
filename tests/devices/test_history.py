"""What is usual for a unit, and which canary departs from it."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.devices.history import LEAST, LIMIT, RECENT, PastLease, Stack, departure, instant, usual_of

STACK = Stack("canary/2", "580.1", "2.11.0", "3.6.0")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOW = instant(NOON + timedelta(days=30))
CLOSE = 1e-9
"""Relative: as near to the limit as rounding lets a canary be told apart."""

times = st.floats(1.0, 1e6)


def at(hour):
    return instant(NOON + timedelta(hours=hour))


def leases(*canaries, stack=STACK, of=1, run="r{}"):
    """Leases of (arithmetic, copy), an hour apart.

    Args:
        of: leases in each run.
        run: its id, by its number.
    """
    return [PastLease(at(hour), run.format(hour // of), stack, *canary) for hour, canary in enumerate(canaries)]


def usual(*canaries, of=1):
    return usual_of(leases(*canaries, of=of), STACK, NOW)


@st.composite
def histories(draw, least=LEAST):
    return draw(st.lists(st.tuples(times, times), min_size=least, max_size=RECENT + 5))


@given(histories(), st.integers(1, 4), st.floats(-LIMIT + CLOSE, LIMIT - CLOSE), st.floats(-LIMIT + CLOSE, LIMIT - CLOSE))
def test_what_is_within_the_limit_of_the_median_is_never_refused(canaries, of, first, second):
    known = usual(*canaries, of=of)
    assert departure(known, known.arithmetic_us * (1 + first), known.copy_us * (1 + second)) is None


@given(histories(), st.floats(LIMIT + CLOSE, 100), st.booleans(), st.floats(-0.99, 100))
def test_what_is_beyond_it_either_way_is_always_refused_whatever_the_other_canary_is(canaries, change, slower, other):
    known = usual(*canaries)
    factor = 1 + change if slower else 1 - min(change, 0.99)
    assert departure(known, known.arithmetic_us * factor, known.copy_us * (1 + other)) is not None
    assert departure(known, known.arithmetic_us * (1 + other), known.copy_us * factor) is not None


@given(histories(least=0), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_order_of_lines_does_not_matter(canaries, of, random):
    lines = leases(*canaries, of=of)
    shuffled = random.sample(lines, len(lines))
    assert usual_of(lines, STACK, NOW) == usual_of(shuffled, STACK, NOW)


def test_a_canary_that_is_no_number_is_refused():
    assert departure(usual(*[(50.0, 800.0)] * 3), float("nan"), 800.0) is not None


class TestTheHistory:
    @pytest.mark.parametrize(("before", "refused"), [(0, False), (2, False), (3, True)])
    def test_needs_some_runs_to_speak(self, before, refused):
        assert refused == (departure(usual(*[(50.0, 800.0)] * before), 60.0, 800.0) is not None)

    @pytest.mark.parametrize("name", ["method", "driver", "torch", "triton"])
    def test_starts_anew_with_another_stack(self, name):
        other = Stack(**{**vars(STACK), name: "another"})
        assert usual_of(leases(*[(50.0, 800.0)] * 5), other, NOW) is None

    @pytest.mark.parametrize("of", [1, 3], ids=["of one lease", "of three"])
    def test_is_the_last_runs_alone(self, of):
        found = usual(*[(99.0, 900.0)] * 30 * of, *[(50.0, 800.0)] * RECENT * of, of=of)
        assert (RECENT, 50.0, 800.0, 0.0, 0.0) == tuple(vars(found).values())

    def test_has_of_each_run_the_median_of_its_leases(self):
        found = usual((50.0, 800.0), (99.0, 900.0), (52.0, 820.0), (51.0, 800.0), (51.0, 800.0), (10.0, 700.0), of=3)
        assert (2, 51.5, 810.0) == (found.runs, found.arithmetic_us, found.copy_us)
        assert 1 / 51.5 == pytest.approx(found.arithmetic_spread)

    def test_counts_a_run_once_however_many_leases_it_has(self):
        disturbed = leases(*[(60.0, 800.0)] * 5 * RECENT, of=5 * RECENT, run="long{}")
        found = usual_of(leases(*[(50.0, 800.0)] * LEAST) + disturbed, STACK, NOW)
        assert (LEAST + 1, 50.0) == (found.runs, found.arithmetic_us)

    def test_is_without_the_run_in_hand(self):
        before, own = leases(*[(50.0, 800.0)] * LEAST), leases(*[(60.0, 800.0)] * RECENT, of=RECENT, run="mine")
        assert usual_of(before, STACK, NOW) == usual_of(before + own, STACK, NOW, "mine")
        assert usual_of(own, STACK, NOW, "mine") is None

    def test_orders_runs_by_their_last_leases(self):
        resumed = [PastLease(at(hour), "resumed", STACK, 99.0, 900.0) for hour in (0, 100)]
        found = usual_of(resumed + leases(*[(50.0, 800.0)] * RECENT), STACK, NOW)
        assert (RECENT, (99.0 - 50.0) / 50.0) == (found.runs, found.arithmetic_spread), "the oldest of the others is out"

    def test_has_a_spread_beside_its_median(self):
        found = usual((50.0, 800.0), (51.0, 800.0), (49.0, 820.0))
        assert (50.0, 800.0, 0.04, 0.025) == (found.arithmetic_us, found.copy_us, found.arithmetic_spread, found.copy_spread)

    def test_of_a_lasting_change_is_the_new_normal_once_most_runs_show_it(self):
        canaries = [(50.0, 800.0)] * RECENT
        refused = 0
        while departure(usual(*canaries), 60.0, 800.0):
            canaries.append((60.0, 800.0))
            refused += 1
        assert RECENT // 2 + 1 == refused
        assert departure(usual(*canaries), 50.0, 800.0) is not None

    def test_leaves_out_what_a_clock_that_was_ahead_dated(self):
        ahead = leases(*[(99.0, 900.0)] * RECENT)
        assert usual_of(ahead, STACK, at(-1)) is None
        assert 5 == usual_of(ahead, STACK, at(4)).runs


def test_the_reason_names_both_values_how_many_runs_and_what_to_do():
    known = usual(*[(50.0, 800.0)] * 4)
    assert departure(known, 60.0, 800.0) == (
        "the arithmetic canary takes 60 us, +20.0% from 50 us, the median of this unit's last 4 runs: see that nothing else uses it "
        "and that its clocks are as they were (harness doctor); a change that lasts is the new normal once most of its last runs, "
        "at most 20, show it"
    )
    assert "the arithmetic canary takes 40 us, -20.0% from 50 us and the copy canary takes 1000 us, +25.0% from 800 us" in departure(
        known, 40.0, 1000.0
    )


class TestALine:
    @given(times, times, st.text(max_size=5), st.text(max_size=5), st.none() | st.text(max_size=5))
    def test_is_read_back_as_it_was_written(self, arithmetic, copy, run, version, driver):
        lease = PastLease(instant(NOON), run, Stack("canary/2", driver, version, version), arithmetic, copy)
        assert lease == PastLease.from_line(lease.to_line())
        assert 1 == lease.to_line().count(b"\n")

    @pytest.mark.parametrize("end", [1, 20, -2])
    def test_that_is_torn_is_none(self, end):
        assert PastLease.from_line(leases((50.0, 800.0))[0].to_line()[:end]) is None

    @pytest.mark.parametrize(
        "change",
        [
            {"arithmetic_us": 0.0},
            {"copy_us": float("inf")},
            {"copy_us": float("nan")},
            {"arithmetic_us": 5e-324},
            {"arithmetic_us": 0.99},
            {"copy_us": 1.01e6},
            {"copy_us": 1e308},
            {"copy_us": "800"},
            {"copy_us": True},
            {"run": 7},
            {"torch": None},
            {"driver": 580},
        ],
        ids=str,
    )
    def test_with_a_value_that_a_lease_cannot_have_is_none(self, change):
        told = json.loads(leases((50.0, 800.0))[0].to_line())
        assert PastLease.from_line(json.dumps(told | change).encode()) is None

    @pytest.mark.parametrize("name", ["when", "run", "driver", "copy_us"])
    def test_that_lacks_a_value_is_none(self, name):
        told = json.loads(leases((50.0, 800.0))[0].to_line())
        del told[name]
        assert PastLease.from_line(json.dumps(told).encode()) is None

    @pytest.mark.parametrize("line", [b"", b"[]", b"7", b"{}", b"\xff", b"[" * 100_000, b'{"arithmetic_us": 1e999}'])
    def test_of_something_else_is_none(self, line):
        assert PastLease.from_line(line) is None


def test_a_later_instant_sorts_after_an_earlier_one_wherever_it_was_taken():
    east = timezone(timedelta(hours=9))
    assert instant(NOON) < instant((NOON + timedelta(microseconds=1)).astimezone(east))
