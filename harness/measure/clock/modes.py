"""The figures beside the cold one: warm, one replay a call, eager, and chained calls."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from harness.authoring.model import Inputs
from harness.measure.clock.device import Call
from harness.measure.clock.estimate import calls_per_sample
from harness.measure.clock.program import ADVANCE, Bench, Program, Step
from harness.measure.clock.ring import fit_repetitions
from harness.measure.clock.sampling import Sampled
from harness.measure.clock.session import ClockSession

EAGER_CALLS = 200
"""Most calls of an eager sample: fewer than a device queues, so that enqueueing never waits for it."""
EAGER_SAMPLE_US = 50_000.0
EAGER_LEAST_CALLS = 20


def capture_warm(bench: Bench, session: ClockSession, us: float) -> Program:
    """Calls on one slot, again and again."""
    return bench.capture((0,), calls_per_sample(us, 1, session.least_sample_us))


@dataclass(frozen=True)
class Chain:
    """What each call of a chain takes from the one before.

    Args:
        feed: input -> name of the output, or of the mutated input, that becomes it.
    """

    feed: Mapping[str, str]


def chain_of(bench: Bench) -> Chain | None:
    """How calls of this cell can depend on each other; None where the kernel declares no state.

    A kernel with `drift` says what it carries; another one that mutates inputs carries those.
    """
    kernel, variant = bench.subject.kernel, bench.subject.variant
    known = {*(variant.outputs or ()), *(variant.mutates or ())}
    feed = dict(kernel.drift.carry) if kernel.drift else {name: name for name in variant.mutates or ()}
    return Chain(feed) if feed and known.issuperset(feed.values()) and kernel.cycle is None else None


def capture_chain(bench: Bench, session: ClockSession, chain: Chain, us: float) -> Program:
    """Calls on all slots in turn, where the state is handed from call to call and everything else is each slot's own.

    Raises:
        InvalidTiming: kernel_count.
    """
    names = tuple(bench.subject.variant.outputs or ())
    carried: Inputs = {name: bench.ring.inputs(0)[name] for name in chain.feed}

    def link(slot: int) -> Call:
        def call() -> None:
            inputs = {**bench.ring.inputs(slot), **carried}
            returned = bench.subject.variant.call(**inputs)
            values = returned if isinstance(returned, tuple) else (returned,)
            given = {**inputs, **dict(zip(names, values, strict=False))}
            carried.update({name: given[source] for name, source in chain.feed.items()})

        return call

    steps: tuple[Step, ...] = bench.one_pass
    repetitions = calls_per_sample(us, len(steps), session.least_sample_us)
    captured, repeats = fit_repetitions(repetitions, len(steps) * bench.nodes, bench.device.limits.max_graph_nodes)
    program = Program((), repeats, steps * captured)
    return bench.capture_calls(program, [link(slot) for slot in program.steps if slot is not ADVANCE], [bench.nodes] * len(program.steps))


def time_graph1(bench: Bench, session: ClockSession) -> Sampled:
    """One replay of a graph of one call, between two marks on an idle device, its data evicted before: us."""
    program = bench.capture((0,))
    graph = program.graphs[0]
    try:
        return session.sample(lambda count: session.take_cold(graph, 1, count), 1, session.settings.side_budget_s)
    finally:
        program.release()


def eager_steps(bench: Bench, us: float) -> tuple[Step, ...]:
    """The steps of one eager sample: passes over the ring, or whole cycles over as many slots as fit."""
    wanted = int(min(EAGER_CALLS, max(EAGER_LEAST_CALLS, EAGER_SAMPLE_US / max(us, 1e-3))))
    if bench.cycle is None:
        return tuple(i % bench.slots for i in range(wanted))
    slots = min(bench.slots, max(1, wanted // bench.cycle_length))
    return (*range(slots), ADVANCE) * bench.cycle_length


def time_eager(bench: Bench, session: ClockSession, us: float) -> tuple[Sampled, Sampled]:
    """Back-to-back eager calls by the host's clock: us a call with a final wait for the device, and until the call returns."""
    device = bench.device
    steps = eager_steps(bench, us)
    calls: Sequence[Call] = [bench.advance() if step is ADVANCE else bench.call(step) for step in steps]
    count_of = sum(step is not ADVANCE for step in steps)
    enqueued: list[float] = []

    def take(count: int) -> list[float]:
        samples: list[float] = []
        session.keep_warm()
        for _ in range(count):
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
        eager = session.sample(take, count_of, session.settings.side_budget_s)
    finally:
        if collecting:
            gc.enable()
    kept = tuple(enqueued[-len(eager.samples) :])
    return eager, Sampled(kept, eager.converged, eager.restarts)


def shapes_match(bench: Bench, chain: Chain) -> bool:
    """Whether what a chain carries has the layout of the input it becomes."""
    inputs = bench.scratch.inputs(0)
    returned = bench.subject.variant.call(**inputs)
    values = returned if isinstance(returned, tuple) else (returned,)
    given = {**inputs, **dict(zip(bench.subject.variant.outputs or (), values, strict=False))}
    pairs = [(inputs[name], given[source]) for name, source in chain.feed.items()]
    return all(isinstance(b, torch.Tensor) and (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()) for a, b in pairs)
