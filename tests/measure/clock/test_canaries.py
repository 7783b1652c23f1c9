import hashlib
import inspect
import json

import pytest
from toys import session_on

from harness.devices.history import CANARY_METHOD, PastLease, Stack, departure, usual_of
from harness.measure.clock import LeaseFacts, canaries, probe_kernels
from harness.measure.clock.canaries import ARITHMETIC_LIMIT, take_canary
from harness.measure.clock.validity import Reason


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


def test_a_unit_that_comes_back_within_the_looks_spoils_nothing():
    seen = []
    first = session_on(slowdown=lambda replays: seen.append(replays) or 1.0)
    first.note_canary()
    second = session_on(slowdown=lambda replays: 1.03 if replays <= max(seen) else 1.0)
    second.facts = LeaseFacts.from_json(json.loads(json.dumps(first.facts.to_json())))
    second.note_canary()
    moved = [canary.arithmetic_us / first.facts.canaries[0].arithmetic_us - 1 for canary in second.facts.canaries]
    assert second.fault is None
    assert max(moved) > ARITHMETIC_LIMIT > abs(moved[-1])


def test_a_clock_that_lies_is_not_asked_again():
    session = session_on(elapsed=lambda reading, us: -1.0)
    session.note_canary()
    assert (Reason.NEGATIVE_TIME, []) == (session.fault.reason, session.facts.canaries)


PINNED = {"canary/2": "00b604e0326cc761"}
"""By method: a digest of what it runs."""


def test_what_the_canaries_run_is_named_by_their_method():
    kernels = [getattr(probe_kernels, name).fn for name in ("arithmetic_kernel", "copy_kernel")]
    sources = [inspect.getsource(code) for code in (*kernels, probe_kernels.TritonProbes.arithmetic, take_canary)]
    sizes = (
        probe_kernels.BLOCKS[0],
        probe_kernels.ARITHMETIC_BLOCKS,
        probe_kernels.ARITHMETIC_STEPS,
        canaries.COPY_CACHES,
        canaries.BUDGET_S,
        canaries.ARITHMETIC_CALLS,
        canaries.COPY_CALLS,
    )
    found = hashlib.sha256("".join([*sources, repr(sizes)]).encode()).hexdigest()[:16]
    assert PINNED[CANARY_METHOD] == found, "where canaries take another time now, give CANARY_METHOD another version; else pin this"


@pytest.mark.parametrize(("factor", "refused"), [(1.0, False), (1.03, False), (1.4, True), (0.7, True)])
def test_a_unit_that_moved_since_its_last_runs_shows_in_its_first_canary(factor, refused):
    stack = Stack(CANARY_METHOD, None, "2.11.0", "3.6.0")
    before, now = take_canary(session_on()), take_canary(session_on(slowdown=lambda replays: factor))
    past = [PastLease(f"2026-01-31T12:00:0{run}", f"r{run}", stack, before.arithmetic_us, before.copy_us) for run in range(3)]
    assert refused == (departure(usual_of(past, stack, "2026-02-01"), now.arithmetic_us, now.copy_us) is not None)
