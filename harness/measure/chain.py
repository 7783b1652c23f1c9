"""A short chain of dependent calls: back to back it must give what it gives with a wait after every call.

A kernel that is launched before the one ahead of it has ended, and reads what that one writes without waiting for it, is right
by itself and wrong in use. The chain is queued behind a kernel that stalls the device, so that no call finds it idle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from harness.authoring.model import Inputs
from harness.measure.checks import Defect, Finding
from harness.measure.guards import Guards
from harness.measure.numerics import bit_equal, compare
from harness.measure.subject import Subject

CALLS = 8
STALL_CYCLES = 20_000_000
"""About 10 ms, in which the host queues the calls of any variant but the slowest."""


def stall() -> None:
    """Keep the current stream of the GPU busy while more is queued."""
    torch.cuda._sleep(STALL_CYCLES)


def carried_by(subject: Subject, inputs: Inputs) -> dict[str, str]:
    """What a call hands to the next: input -> the result that becomes it. Empty where calls do not depend on each other."""
    variant, drift = subject.variant, subject.kernel.drift
    tensors = {name for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    mutated = {name: name for name in variant.mutates or () if name in tensors}
    results = {*mutated, *(variant.outputs or ())}
    declared = drift.carry.items() if drift else ()
    return mutated | {name: source for name, source in declared if name in tensors and source in results}


def check_chain(subject: Subject, before: Inputs, *, queue: Callable[[], None], wait: Callable[[], None]) -> Finding | None:
    """Run the chain twice from the same inputs and compare its last outputs and its state.

    It takes no more memory at a time than two calls between guards do.

    Args:
        before: inputs of a call; they are copied.
        queue: makes the device fall behind the host.
        wait: returns when the device has done all.

    Returns:
        chain_differs, where they are not bit-equal; for a kernel that is not deterministic, where they differ by more than its
        tolerance, once for each call that added an error. None for a kernel without state.
    """
    carried = carried_by(subject, before)
    if not carried:
        return None
    expected = _run(subject, before, carried, wait)
    wait()
    queue()
    actual = _run(subject, before, carried, lambda: None)
    wait()
    tolerance = subject.kernel.tolerance_of(subject.case)
    for name, value in expected.items():
        if bit_equal(actual[name], value):
            continue
        errors = compare(actual[name], value)
        if subject.kernel.deterministic or not errors.within(CALLS * tolerance.limit(name)):
            found = f"{name} after {CALLS} calls back to back is not what it is with a wait after each, worst at {errors.at_worst()}"
            return Finding(Defect.CHAIN_DIFFERS, found)
    return None


def _run(subject: Subject, before: Inputs, carried: Mapping[str, str], then: Callable[[], None]) -> dict[str, torch.Tensor]:
    """The outputs of the last of CALLS calls and the state after it; `then` runs after every call."""
    inputs = Guards().guarded(before)  # a copy that keeps every layout
    results: dict[str, Any] = {}
    for _ in range(CALLS):
        outputs = subject.call(inputs)
        results = {**{name: inputs[name] for name in carried}, **outputs}
        inputs |= {name: results[source] for name, source in carried.items() if same_layout(inputs[name], results[source])}
        if subject.kernel.cycle is not None:
            subject.kernel.cycle.advance(inputs)
        then()
    return {
        name: value for name, value in {**results, **{name: inputs[name] for name in carried}}.items() if isinstance(value, torch.Tensor)
    }


def same_layout(one: torch.Tensor, other: Any) -> bool:
    """Whether one tensor can stand where the other did in a captured call: shape, dtype and strides."""
    return isinstance(other, torch.Tensor) and (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
