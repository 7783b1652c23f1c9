"""Proves, before and after timing, that replaying a program computes: on fresh content, into poisoned outputs.

A sample of slots gets content that no call has seen. The same steps are then made eagerly on a copy in other memory, and
what the replay wrote must be what they gave. So a replay that does nothing, an answer remembered by pointer or by content,
state that does not advance and a cursor that stands still are all found. The slots have the content that is timed again afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from harness.measure.clock.program import ADVANCE, Bench, Program
from harness.measure.clock.validity import InvalidTiming, Reason
from harness.measure.guards import poison, unwritten
from harness.measure.numerics import bit_equal, compare

SLOTS = 3
"""Slots of a program that are verified: the first, the last and those evenly between."""


def sampled_slots(slots: tuple[int, ...], count: int = SLOTS) -> tuple[int, ...]:
    """The first, the last, and slots evenly between."""
    picked = min(count, len(slots))
    return tuple(slots[round(i * (len(slots) - 1) / max(1, picked - 1))] for i in range(picked))


def verify(bench: Bench, program: Program, seed: int) -> None:
    """Replay a program once and compare a sample of its slots with eager calls.

    Args:
        seed: the first of the fresh contents' seeds; others have not been drawn in this launch.

    Raises:
        InvalidTiming: unwritten_output, replay_differs, or state_differs for mutated tensors.
    """
    slots = sampled_slots(program.slots)
    bench.reset()
    for i, slot in enumerate(slots):
        bench.ring.load(slot, bench.subject.inputs(seed + i))
        for _, tensor in _outputs(bench, program.outputs[slot]):
            poison(tensor)
    program.replay()
    bench.device.synchronize()
    for i, slot in enumerate(slots):
        bench.scratch.load(0, bench.subject.inputs(seed + i))
        _compare_slot(bench, program, slot)
    for slot in slots:
        bench.restore(slot)
    bench.reset()


def _compare_slot(bench: Bench, program: Program, slot: int) -> None:
    """Make the steps that concern one slot eagerly on the scratch slot, then compare."""
    inputs = bench.scratch.inputs(0)
    returned, calls = None, 0
    for step in program.steps:
        if step is ADVANCE:
            assert bench.cycle is not None
            bench.cycle.advance(inputs)
        elif step == slot:
            returned, calls = bench.subject.variant.call(**inputs), calls + 1
    bench.device.synchronize()
    where = f"slot {slot} after {calls} calls"
    found = dict(_outputs(bench, program.outputs[slot]))
    for name, expected in _outputs(bench, returned):
        if missing := int(unwritten(found[name]).sum()) - int(unwritten(expected).sum()):
            raise InvalidTiming(
                Reason.UNWRITTEN, f"{name} of {where}: {missing} of {expected.numel()} elements are unwritten by the replay"
            )
        _compare(bench, name, found[name], expected, calls, Reason.REPLAY_DIFFERS, where)
    for name in sorted(bench.changing):
        reason = Reason.CURSOR if bench.cycle is not None and name == bench.cycle.cursor else Reason.STATE_DIFFERS
        _compare(bench, name, bench.ring.inputs(slot)[name], inputs[name], calls, reason, where)


def _compare(bench: Bench, name: str, actual: torch.Tensor, expected: torch.Tensor, calls: int, reason: Reason, where: str) -> None:
    """Bit for bit where the kernel is deterministic; else within its tolerance, once for each call that added an error."""
    kernel = bench.subject.kernel
    if bit_equal(actual, expected):
        return
    errors = compare(actual, expected)
    if kernel.deterministic or not errors.within(calls * kernel.tolerance_of(bench.subject.case).limit(name)):
        raise InvalidTiming(reason, f"{name} of {where} is not what eager calls give, worst at {errors.at_worst()}")


def _outputs(bench: Bench, returned: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a call returned, by name."""
    values = returned if isinstance(returned, tuple) else () if returned is None else (returned,)
    for name, value in zip(bench.subject.variant.outputs or (), values, strict=True):
        if isinstance(value, torch.Tensor):
            yield name, value


def verify_cursor(bench: Bench, advance: Program) -> None:
    """Replay one move of the cursor: it must move, and in each of a sample of slots as an eager move does.

    Args:
        advance: a program of one move and no call.

    Raises:
        InvalidTiming: cursor.
    """
    assert bench.cycle is not None
    name = bench.cycle.cursor
    bench.reset()
    before = {slot: bench.ring.inputs(slot)[name].clone() for slot in sampled_slots(tuple(range(bench.ring.slots)))}
    advance.replay()
    bench.device.synchronize()
    inputs = bench.scratch.inputs(0)
    for slot, start in before.items():
        inputs[name].copy_(start)
        bench.cycle.advance(inputs)
        now = bench.ring.inputs(slot)[name]
        if not bit_equal(now, inputs[name]):
            moved = f"moved from {start.tolist()} to {now.tolist()}, eagerly to {inputs[name].tolist()}"
            raise InvalidTiming(Reason.CURSOR, f"{name} of slot {slot} {moved}")
        if bench.cycle_length > 1 and bit_equal(now, start):
            raise InvalidTiming(Reason.CURSOR, f"{name} of slot {slot} stands still at {start.tolist()}")
    bench.reset()
