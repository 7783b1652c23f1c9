"""Sets up one cell for timing: how large its ring is, whether it fits, and the allocated bench."""

from __future__ import annotations

from dataclasses import dataclass

from harness.authoring.model import Inputs
from harness.measure.clock.content import group
from harness.measure.clock.facts import RingProof
from harness.measure.clock.program import Bench, make_bench
from harness.measure.clock.ring import Footprint, RingPlan, estimate_bytes, footprint, plan_ring
from harness.measure.clock.serving import ServingPlan, plan_serving
from harness.measure.clock.session import ClockSession
from harness.measure.clock.validity import check_ring
from harness.measure.data import Generator
from harness.measure.extents import dense_bytes
from harness.measure.subject import Subject

PROGRAMS = 2
"""Programs over all allocated slots whose outputs may be in memory at a time: the main one, and those beside it together."""


@dataclass(frozen=True)
class SetUp:
    """A cell with everything allocated.

    Args:
        code: what tells the code in hand from other code of the cell.
        proves: whether doubling the ring is tried.
        known: how the ring is made in this lease; None where no code of the cell has been proved yet.
        keeps: whether the code asks the cache to keep what it loads: then filling it with other data does not empty it.
        serving: the ring whose calls share their activations; None where none are declared, or nothing is taken beside.
    """

    session: ClockSession
    bench: Bench
    plan: RingPlan
    code: str
    proves: bool
    serving: ServingPlan | None
    known: RingProof | None = None
    keeps: bool = False


def footprint_of(subject: Subject) -> Footprint:
    """Bytes of one call, from the layout of its inputs alone: nothing is allocated."""
    inputs = _layout(subject)
    allocated = sum(of.pitch for of in group(inputs, "meta"))
    mutated = dense_bytes(inputs, "meta", subject.variant.mutates or ())
    return footprint(allocated, dense_bytes(inputs, "meta"), mutated, subject.traffic)


def set_up(subject: Subject, session: ClockSession, code: str, growth: int, *, beside: bool, keeps: bool = False) -> SetUp | None:
    """Allocate the ring; None where there is no room for it.

    Where there is room, twice the ring is allocated and what the serving figure needs, whether this launch proves and serves or not:
    where a buffer lies moves the time of a call by up to some per cent, so all launches of a cell lay their memory out alike.

    Args:
        growth: how many times as large as the cache asks for. A larger one than 1 must be proved, so there must be room for twice it.
        beside: whether the figures that nothing is judged by are taken too.
        keeps: see `SetUp`.

    Raises:
        InvalidTiming: not_cold, where the cache would have to be filled and the code keeps what it loads.
    """
    device, settings, known = session.device, session.settings, session.facts.ring(str(subject.cell))
    one = footprint_of(subject)
    ring = plan_ring(one.touched, device.limits, settings.cache_multiples, growth)
    long = ring.slots > settings.most_nodes
    plan = ring.evicted(settings.most_nodes) if (known.evicted if known else long and not keeps) else ring
    check_ring(plan, settings.longest_ring, keeps=keeps)
    room = min(device.limits.usable_memory_bytes, device.free_bytes())
    proves = session.facts.proof(str(subject.cell), code) is None
    cut = long and plan.evictions > 0  # one that is evicted for its nodes is as long in all launches, before they are known too
    doubled = plan.slots if cut else 2 * ring.slots
    doubles = estimate_bytes(one, doubled, PROGRAMS) <= room
    if estimate_bytes(one, plan.slots, PROGRAMS) > room or (proves and growth > 1 and not doubles):
        return None
    most = settings.most_nodes if cut else None
    serving = plan_serving(subject, one, _layout(subject), device.limits, settings, room, most, growth)
    allocated = max(doubled if doubles else plan.slots, serving.slots if serving else 0)
    spare = room - estimate_bytes(one, allocated, PROGRAMS)
    bench = make_bench(subject, session, plan.slots, session.seed, settings.contents, allocated=allocated, spare_bytes=spare)
    return SetUp(session, bench, plan, code, proves, serving if beside else None, known, keeps)


def _layout(subject: Subject) -> Inputs:
    return subject.kernel.make_inputs(subject.case, Generator(0, "meta"))
