"""The `serving` figure: activations in the cache, state and weights from memory, as a call in a decode step finds them.

A ring of its own kind: all slots share the first slot's activations, everything else is each slot's own, and what a call
returns is dropped, so that calls write to the same few buffers as the layers of a model do.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.authoring.model import Inputs, Kernel, Traffic
from harness.errors import KernelFileError
from harness.measure.clock.content import dense_bytes, tensors_on
from harness.measure.clock.device import Call, Limits
from harness.measure.clock.program import Bench, Program
from harness.measure.clock.ring import Footprint, estimate_bytes, fit_repetitions, plan_ring
from harness.measure.clock.settings import ClockSettings
from harness.measure.clock.validity import Reason


@dataclass(frozen=True)
class ServingPlan:
    """How the figure is taken of one cell.

    Args:
        slots: of the ring; 0 where it is not taken.
        cold: what a call reads from memory at least: state and weights.
        why_not: where it is not taken.
    """

    slots: int
    cold: Traffic
    why_not: Reason = Reason.SERVING_FOOTPRINT


def plan_serving(kernel: Kernel, one: Footprint, layout: Inputs, limits: Limits, settings: ClockSettings, room: int) -> ServingPlan | None:
    """The smallest ring in which state and weights are cold; None for a kernel without activations.

    It is at most twice the ring in which everything is cold: where a call touches little but activations, this figure is
    nearly the warm one, and is not taken.

    Args:
        layout: inputs of one call, on `meta`.
        room: bytes of memory that measuring with it, one program at a time, may take.

    Raises:
        KernelFileError: an activation is no input.
    """
    if not kernel.activations:
        return None
    if unknown := sorted(set(kernel.activations) - set(layout)):
        raise KernelFileError(
            f"the activations of {kernel.name}", f"{unknown[0]!r} is no input of make_inputs: {', '.join(layout)}", "name inputs there"
        )
    cold = max(0, one.touched - one.outputs - dense_bytes(layout, "meta", kernel.activations))
    traffic = Traffic(cold, 0)
    if cold < settings.serving_fraction * one.touched:
        return ServingPlan(0, traffic)
    slots = plan_ring(cold, limits, settings.cache_multiples).slots
    return ServingPlan(slots, traffic) if estimate_bytes(one, slots) <= room else ServingPlan(0, traffic, Reason.MEMORY)


def capture_serving(bench: Bench, slots: int, repetitions: int) -> Program:
    """Passes over `slots` slots whose activations are the first slot's.

    Raises:
        InvalidTiming: kernel_count.
    """
    device = bench.device
    mine = tensors_on(bench.ring.inputs(0), bench.subject.torch_device)
    shared = {name: mine[name] for name in bench.subject.kernel.activations if name in mine}
    captured, repeats = fit_repetitions(repetitions, slots * bench.nodes, device.limits.max_graph_nodes)
    order = tuple(range(slots)) * captured
    return bench.capture_calls(Program((), repeats, order), [_call(bench, slot, shared) for slot in order], [bench.nodes] * len(order))


def _call(bench: Bench, slot: int, shared: Inputs) -> Call:
    inputs = {**bench.ring.inputs(slot), **shared}

    def call() -> None:
        bench.subject.variant.call(**inputs)

    return call
