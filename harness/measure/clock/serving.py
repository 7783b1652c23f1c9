"""The `serving` figure: activations in the cache, state and weights from memory, as a call in a decode step finds them.

A ring of its own kind: all slots share the first slot's activations, everything else is each slot's own, and what a call
returns is dropped, so that calls write to the same few buffers as the layers of a model do.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.authoring.model import Inputs, Traffic
from harness.errors import KernelFileError
from harness.measure.clock.device import Limits
from harness.measure.clock.estimate import calls_lasting, calls_per_sample
from harness.measure.clock.program import ADVANCE, Bench, Program
from harness.measure.clock.ring import Footprint, estimate_bytes, plan_ring
from harness.measure.clock.settings import ClockSettings
from harness.measure.clock.validity import Reason
from harness.measure.data import Generator
from harness.measure.extents import dense_bytes, tensors_on
from harness.measure.subject import Subject


@dataclass(frozen=True)
class ServingPlan:
    """How the figure is taken of one cell.

    Args:
        slots: of the ring; 0 where it is not taken.
        cold: what a call reads from memory at least: state and weights.
        activations: the inputs that all calls share.
        why_not: where it is not taken.
    """

    slots: int
    cold: Traffic
    activations: tuple[str, ...]
    why_not: Reason = Reason.SERVING_FOOTPRINT


def activations_of(subject: Subject, layout: Inputs) -> tuple[str, ...]:
    """The inputs that the operation before has just written; none where neither variant nor kernel says anything of it.

    Args:
        layout: inputs of one call.

    Raises:
        KernelFileError: one that is named is no input.
    """
    kernel, case = subject.kernel, subject.case
    named = kernel.activations_of(subject.variant_name, case)
    if unknown := sorted(set(named) - set(layout)):
        raise KernelFileError(
            f"the activations of {subject.cell}",
            f"{unknown[0]!r} is no input of make_inputs: {', '.join(layout)}",
            "name inputs there",
        )
    if not named and subject.variant.activations is None and kernel.drift is not None:
        return tuple(kernel.drift.step_inputs(case, Generator(0, "meta")))
    return named


def plan_serving(
    subject: Subject, one: Footprint, layout: Inputs, limits: Limits, settings: ClockSettings, room: int, most: int | None, growth: int
) -> ServingPlan | None:
    """The smallest ring in which state and weights are cold; None for a call without activations.

    It is at most twice the ring in which everything is cold: where a call touches little but activations, this figure is
    nearly the warm one, and is not taken.

    Args:
        layout: inputs of one call, on `meta`.
        room: bytes of memory that measuring with it, one program at a time, may take.
        most: slots that it may have, where the cache is filled between samples; None where not.
        growth: how many times the ring in which everything is cold had to be enlarged to be so.

    Raises:
        KernelFileError: an activation is no input.
    """
    named = activations_of(subject, layout)
    if not named:
        return None
    cold = max(0, one.touched - one.outputs - dense_bytes(layout, "meta", named))
    traffic = Traffic(cold, 0)
    if cold < settings.serving_fraction * one.touched:
        return ServingPlan(0, traffic, named)
    slots = plan_ring(cold, limits, settings.cache_multiples, growth).slots
    slots = slots if most is None else min(slots, most)
    return ServingPlan(slots, traffic, named) if estimate_bytes(one, slots) <= room else ServingPlan(0, traffic, named, Reason.MEMORY)


def capture_serving(bench: Bench, plan: ServingPlan, us: float, least_us: float, evictions: int) -> Program:
    """Passes over the plan's slots, whose activations are the first slot's: whole cycles where the kernel has any. Where the cache is
    filled between samples, as many slots as last for one, each once: in the first of them activations are cold.

    Args:
        us: a call's time, about.
        least_us: how long a sample lasts at least.
        evictions: how often the cache is filled between two samples, of calls that are all alike.

    Raises:
        InvalidTiming: kernel_count.
    """
    mine = tensors_on(bench.ring.inputs(0), bench.subject.torch_device)
    shared = {name: mine[name] for name in plan.activations if name in mine}
    if evictions:
        return bench.capture(bench.pass_over(min(plan.slots, calls_lasting(least_us, us))), 1, shared, evictions)
    steps = bench.pass_over(plan.slots)
    return bench.capture(steps, calls_per_sample(us, sum(step is not ADVANCE for step in steps), least_us), shared)
