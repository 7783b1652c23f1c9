"""The figures beside the cold one that need more than a program: one replay a call, eager calls, chained calls."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

from harness.authoring.model import Inputs
from harness.measure.chain import carried_by, same_layout
from harness.measure.clock.device import Call
from harness.measure.clock.program import ADVANCE, Bench, Program, Step
from harness.measure.clock.ring import fit_repetitions
from harness.measure.clock.sampling import Sampled
from harness.measure.clock.session import ClockSession
from harness.measure.clock.settings import ClockSettings


def feed_of(bench: Bench) -> dict[str, str]:
    """What a call takes from the one before in a chain: input -> the output, or mutated input, that becomes it.

    Empty where there is no such state, where the cost depends on a phase, or where an output has another layout than the input it
    would become.
    """
    inputs = bench.scratch.inputs(0)
    feed = carried_by(bench.subject, inputs)
    if bench.cycle is not None or not feed:
        return {}
    given = _after(bench, inputs, bench.subject.variant.call(**inputs))
    return feed if all(same_layout(inputs[name], given.get(source)) for name, source in feed.items()) else {}


def _after(bench: Bench, inputs: Inputs, returned: Any) -> Inputs:
    """Inputs and outputs of a call by name, as they are after it."""
    values = returned if isinstance(returned, tuple) else (returned,)
    return {**inputs, **dict(zip(bench.subject.variant.outputs or (), values, strict=False))}


def capture_chain(bench: Bench, repetitions: int, evictions: int) -> Program | None:
    """Calls on all slots in turn, where the state is handed from call to call and everything else is each slot's own.

    Args:
        evictions: how often the cache is filled between two samples, each time with other data.

    Returns:
        None where calls of this kernel do not depend on each other.

    Raises:
        InvalidTiming: kernel_count.
    """
    feed = feed_of(bench)
    if not feed:
        return None
    carried: Inputs = {name: bench.ring.inputs(0)[name] for name in feed}
    captured, repeats = fit_repetitions(repetitions, bench.slots * bench.nodes, bench.device.limits.max_graph_nodes)
    slots = tuple(range(bench.slots)) * captured
    calls = [_link(bench, slot, feed, carried) for slot in slots]
    program = Program((), repeats, slots, between=bench.session.evictions(evictions))
    return bench.capture_calls(program, calls, [bench.nodes] * len(slots))


def _link(bench: Bench, slot: int, feed: Mapping[str, str], carried: Inputs) -> Call:
    def call() -> None:
        inputs = {**bench.ring.inputs(slot), **carried}
        given = _after(bench, inputs, bench.subject.variant.call(**inputs))
        carried.update({name: given[source] for name, source in feed.items()})

    return call


def time_single(session: ClockSession, program: Program, evictions: int) -> Sampled:
    """One replay of a graph of one call, between two marks on an idle device, its data evicted before: us.

    Args:
        evictions: how often the cache is filled before each.

    Raises:
        InvalidTiming: negative_time or no_valid_samples.
    """
    graph = program.graphs[0]
    budget_s, window = session.settings.side_budget_s, session.settings.side_window
    return session.sample(lambda count: session.take_cold(graph, 1, count, evictions), 1, budget_s, window=window)


def eager_steps(bench: Bench, us: float, settings: ClockSettings) -> tuple[Step, ...]:
    """The steps of one eager sample: calls over all slots that are allocated, or whole cycles over as many as fit."""
    wanted = int(min(settings.eager_calls, max(settings.eager_least_calls, settings.eager_sample_us / max(us, 1e-3))))
    if bench.cycle is None:
        return tuple(i % bench.ring.slots for i in range(wanted))
    slots = min(bench.ring.slots, max(1, wanted // bench.cycle_length))
    return (*range(slots), ADVANCE) * bench.cycle_length


def time_eager(bench: Bench, session: ClockSession, steps: Sequence[Step], evictions: int) -> tuple[Sampled, Sampled]:
    """Back-to-back eager calls by the host's clock: us a call with a final wait for the device, and until the call returns.

    Args:
        steps: of one sample.
        evictions: how often the cache is filled before each: a sample has fewer calls than a ring of small calls has slots.

    Raises:
        InvalidTiming: no_valid_samples.
    """
    device = bench.device
    calls: Sequence[Call] = [bench.advance() if step is ADVANCE else bench.call(step) for step in steps]
    count_of = sum(step is not ADVANCE for step in steps)
    enqueued: list[float] = []

    def take(count: int) -> list[float]:
        samples: list[float] = []
        session.keep_warm()
        for _ in range(count):
            for graph in session.evictions(evictions):
                graph.replay()
            device.synchronize()
            begin = device.now_ns()
            for call in calls:
                device.run(call)
            returned = device.now_ns()
            device.synchronize()
            samples.append((device.now_ns() - begin) / 1000 / count_of)
            enqueued.append((returned - begin) / 1000 / count_of)
            session.note_busy()
        return samples

    bench.reset()
    collecting = gc.isenabled()
    gc.disable()  # a collection in a sample is the host's doing, not the kernel's
    try:
        eager = session.sample(take, count_of, session.settings.eager_budget_s, window=session.settings.side_window)
    finally:
        if collecting:
            gc.enable()
    return eager, Sampled(tuple(enqueued[-len(eager.samples) :]), eager.converged, eager.restarts)
