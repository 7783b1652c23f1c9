"""Toy kernels for the clock, and cells of them: torch operations that the scripted device times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from fake_device import FakeDevice, Operation, Script

from harness import Case, Cycle, Drift, Inputs, Kernel, Tolerance, Traffic, Variant
from harness.devices.table import load_devices
from harness.measure.clock import ClockSession, ClockSettings
from harness.measure.subject import Subject

SIZE = 256
"""fp32 elements of a toy tensor: 1 KiB."""
LENGTH = 4
"""Steps of the toy cycle."""
QUICK = ClockSettings(sample_us=100.0, side_sample_us=100.0, settle_s=0.05, budget_s=0.1, side_budget_s=0.02, eager_calls=20)
TOLERANCE = {"fp32": Tolerance(1e-6, "one rounding")}


def toy(call: Callable[..., Any], make: Callable[[Case, Any], Inputs], traffic: Traffic, **more: Any) -> Kernel:
    """A kernel of one variant; its reference is not used by the clock."""
    settings: dict[str, Any] = {"outputs": ("y",), "tolerance": TOLERANCE, "name": "toy", **more}
    return Kernel(
        variants={"only": Variant(call, triton=False)},
        default="only",
        baseline="only",
        axes=("N",),
        cases=[Case(N=SIZE, dtype="fp32", tags="smoke")],
        make_inputs=make,
        reference=lambda **inputs: {},
        traffic=lambda case: traffic,
        flops=lambda case: case.N,
        **settings,
    )


def one_tensor(case: Case, generator: Any) -> Inputs:
    return {"x": generator.uniform((case.N,), case.dtype)}


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def with_state(case: Case, generator: Any) -> Inputs:
    return {"x": generator.uniform((case.N,), case.dtype), "state": generator.uniform((case.N,), case.dtype)}


def step(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    state.mul_(0.5)
    state.add_(x)
    return state * 2


def with_cursor(case: Case, generator: Any) -> Inputs:
    return {"x": generator.uniform((case.N,), case.dtype), "cursor": generator.full((2,), 0, torch.int32)}


def phase_step(x: torch.Tensor, cursor: torch.Tensor) -> torch.Tensor:
    return x + cursor[:1]


def move(inputs: Inputs) -> None:
    inputs["cursor"].add_(1).remainder_(LENGTH)


def phase_cost(operation: Operation) -> float | None:
    """5 us a cheap step and 40 us the last of a cycle; a move of all cursors takes next to nothing."""
    integers = [t for t in operation.tensors if t.dtype == torch.int32]
    if not integers or integers[0].numel() > 10_000:
        return None
    if integers[0].numel() > 1:
        return 0.1
    return 40.0 if int(integers[0]) == LENGTH - 1 else 5.0


BYTES = 4 * SIZE
SCALE = toy(double, one_tensor, Traffic(BYTES, BYTES))
STATE = toy(step, with_state, Traffic(2 * BYTES, 2 * BYTES), mutates=("state",))
CARRIED = replace(
    STATE,
    drift=Drift(step_inputs=one_tensor, carry={"state": "state"}, tolerance=TOLERANCE),
)
CYCLE = toy(phase_step, with_cursor, Traffic(BYTES, BYTES), cycle=Cycle(lambda case: LENGTH, "cursor", move))


def subject_of(kernel: Kernel) -> Subject:
    return Subject(kernel, "only", kernel.cases[0], load_devices()["h200"], "cpu")


def with_variant(kernel: Kernel, **changes: Any) -> Kernel:
    """The kernel whose variant in hand is another, not the default one: `rest` does the whole work."""
    only = kernel.variant("only")
    return replace(kernel, variants={"only": replace(only, **changes), "rest": only}, default="rest")


def with_call(kernel: Kernel, call: Callable[..., Any]) -> Kernel:
    """The kernel with another launcher."""
    return replace(kernel, variants={"only": replace(kernel.variant("only"), call=call)})


def session_on(device: FakeDevice | None = None, settings: ClockSettings = QUICK, **script: Any) -> ClockSession:
    """A session on a scripted device."""
    return ClockSession(device or FakeDevice(Script(**script)), seed=7, settings=settings)


def weighted(weights: int = 8 * SIZE, **more: Any) -> Kernel:
    """A call of two launches, of which x is an activation and `weights` fp32 elements, a multiple of SIZE, are weights."""

    def make(case: Case, generator: Any) -> Inputs:
        return {"x": generator.uniform((case.N,), case.dtype), "w": generator.uniform((weights,), case.dtype), "bias": None}

    def call(x: torch.Tensor, w: torch.Tensor, bias: None) -> torch.Tensor:
        return w.view(-1, x.numel()).sum(0) + x

    return toy(call, make, Traffic(BYTES + 4 * weights, BYTES), activations=("x", "bias"), **more)


def layered(layers: int) -> Kernel:
    """A call that launches three times for each of `layers` independent layers, each with a state of its own."""

    def make(case: Case, generator: Any) -> Inputs:
        return {name: generator.uniform((layers, case.N), case.dtype) for name in ("x", "state")}

    def call(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(layers):
            state[i].mul_(0.5).add_(x[i])
            torch.mul(state[i], 2, out=out[i])
        return out

    drift = Drift(step_inputs=lambda case, generator: {}, carry={"state": "state"}, tolerance=TOLERANCE)
    return toy(call, make, Traffic(2 * layers * BYTES, 2 * layers * BYTES), mutates=("state",), drift=drift)
