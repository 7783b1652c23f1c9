from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import Case, Cycle, Drift, Kernel, Tolerance, Traffic, Variant
from harness.authoring.catalogue import load_kind
from harness.devices.table import load_devices
from harness.errors import KernelFileError
from harness.measure import drift
from harness.measure.data import torch_dtype
from harness.measure.drift import METRICS, check_drift
from harness.measure.subject import Reading, Subject
from harness.records import Status

GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")])
DECAY = 0.9
STEP = {dtype: Tolerance(limit, "one step's roundings") for dtype, limit in (("fp32", 1e-6), ("fp16", 2e-3), ("bf16", 1e-2))}
MANY = {dtype: Tolerance(limit, "a test", cosine=0.99) for dtype, limit in (("fp32", 1e-6), ("fp16", 5e-3), ("bf16", 4e-2))}

Call = Callable[..., Any]


def make_inputs(case: Case, generator: Any) -> dict[str, Any]:
    state = case.dtype if case.state == "io" else case.state
    return {**step_inputs(case, generator), "state": generator.uniform((5, 8), state), "slot": generator.permutation(5)[: case.B]}


def step_inputs(case: Case, generator: Any) -> dict[str, Any]:
    return {"x": generator.uniform((case.B, 8), case.dtype)}


def reference(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> dict[str, torch.Tensor]:
    state, rows = state.double(), slot.long()
    state[rows] = DECAY * state[rows] + x.double()
    return {"y": state[rows], "state": state}


def leak(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor, decay: float = DECAY) -> torch.Tensor:
    """state[slot] = decay state[slot] + x, in place; y is the new rows."""
    rows = slot.long()
    new = decay * state[rows].float() + x.float()
    state[rows] = new.to(state.dtype)
    return new.to(x.dtype)


def declare(
    call: Call = leak, *, steps: int = 100, case: Case | None = None, variant: dict[str, Any] | None = None, **fields: Any
) -> Kernel:
    """A leaky accumulator with slots; `fields` replace what it declares."""
    declared: dict[str, Any] = {
        "axes": ("B", "state"),
        "cases": [case or Case(B=3, state="fp32", dtype="fp32", tags="smoke drift")],
        "make_inputs": make_inputs,
        "reference": reference,
        "outputs": ("y",),
        "mutates": ("state",),
        "slots": {"state": "slot"},
        "tolerance": lambda case: Tolerance(
            STEP[case.dtype].rel_l2, "a test", tensors={"state": STEP[case.dtype if case.state == "io" else case.state].rel_l2}
        ),
        "drift": Drift(step_inputs, {"state": "state"}, MANY, steps),
        "traffic": lambda case: Traffic(1, 1),
        "flops": lambda case: 1,
        "name": "leaky",
    }
    variants = {"only": Variant(call, triton=False, **(variant or {}))}
    return Kernel(variants=variants, default="only", baseline="only", **{**declared, **fields})


def check(*args: Any, device: str = "cpu", **kwargs: Any) -> dict[str, Reading]:
    """The readings by metric."""
    kernel = declare(*args, **kwargs)
    return {r.metric or "": r for r in check_drift(Subject(kernel, "only", kernel.cases[0], load_devices()["cpu"], device))}


def outcomes(readings: dict[str, Reading]) -> dict[str, str]:
    """Checkpoint -> `ok`, or the defect that its readings name."""
    found: dict[str, set[str]] = {}
    for metric, reading in readings.items():
        found.setdefault(metric.partition("@")[2], set()).add((reading.reason or str(reading.status)).partition(":")[0])
    assert all(len(names) == 1 for names in found.values()), found
    return {n: names.pop() for n, names in found.items()}


class TestAKernelThatIsWrongBetweenCheckpoints:
    """Checkpoints are steps 1, 10, 100 and 1000: what happens in others is found at the next one."""

    @pytest.mark.parametrize("value", [123.0, math.nan, math.inf])
    def test_in_what_it_gives(self, value: float) -> None:
        steps = itertools.count(1)

        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            y = leak(x, state, slot)
            return torch.full_like(y, value) if next(steps) == 37 else y

        readings = check(call)
        assert outcomes(readings) == {"1": "ok", "10": "ok", "100": "beyond_tolerance"}
        assert (readings["drift_cosine@100"].reason or "").startswith("beyond_tolerance: step 37 from its own state: y: relative L2 ")

    def test_in_what_cannot_be_compared(self) -> None:
        steps = itertools.count(1)

        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            y = leak(x, state, slot)
            return y[:, :4] if next(steps) == 37 else y

        readings = check(call)
        assert outcomes(readings) == {"1": "ok", "10": "ok", "100": "beyond_tolerance"}
        assert "step 37 from its own state: y: relative L2 nan" in (readings["drift_cosine@100"].reason or "")

    def test_in_a_state_that_is_forgotten(self) -> None:
        steps = itertools.count(1)

        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            y = leak(x, state, slot)
            state[slot.long()] += float(next(steps) == 20)  # 0.9**80 of it is left at the checkpoint
            return y

        assert outcomes(check(call, drift=Drift(step_inputs, {"state": "state"}, {"fp32": Tolerance(0.1, "a test")}, 100))) == {
            "1": "ok",
            "10": "ok",
            "100": "beyond_tolerance",
        }

    def test_in_the_slot_of_another(self) -> None:
        steps = itertools.count(1)

        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            if next(steps) == 37:
                state[next(i for i in range(5) if i not in slot)] = 3.0
            return leak(x, state, slot)

        readings = check(call)
        assert outcomes(readings) == {"1": "ok", "10": "ok", "100": "untouched_slot"}
        reason = "untouched_slot: step 37 from its own state: rows of state changed; slot does not name them"
        assert readings["drift_cosine@100"].reason == reason

    @pytest.mark.parametrize("is_before", [True, False], ids=["before it is read", "after"])
    @pytest.mark.parametrize(("step", "found"), [(37, "100"), (10, "10")], ids=["between", "at a checkpoint"])
    def test_in_what_it_does_to_an_input(self, step: int, found: str, is_before: bool) -> None:
        steps = itertools.count(1)

        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            is_now = next(steps) == step
            if is_now and is_before:
                x.mul_(1 + 2**-18)
            y = leak(x, state, slot)
            if is_now and not is_before:
                x.mul_(2)
            return y

        loose = Tolerance(1e-4, "a test")
        readings = check(call, tolerance={"fp32": loose}, drift=Drift(step_inputs, {"state": "state"}, {"fp32": loose}, 100))
        assert outcomes(readings)[found] == "mutated_input"
        assert f"step {step} from its own state: x changed" in (readings[f"drift_cosine@{found}"].reason or "")

    def test_in_what_it_does_to_an_input_that_stays(self) -> None:
        steps = itertools.count(1)

        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            y = leak(x * weight, state, slot)
            if next(steps) == 37:
                weight.mul_(2)
            return y

        readings = check(
            call,
            make_inputs=lambda case, generator: {**make_inputs(case, generator), "weight": generator.uniform((8,))},
            reference=lambda x, weight, **others: reference(x=x.double() * weight, **others),
        )
        assert outcomes(readings) == {"1": "ok", "10": "ok", "100": "mutated_input"}

    def test_in_a_phase_that_no_checkpoint_meets(self) -> None:
        def with_cursor(case: Case, generator: Any) -> dict[str, Any]:
            return {**make_inputs(case, generator), "cursor": generator.full((1,), 0, torch.int32)}

        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor, cursor: torch.Tensor) -> torch.Tensor:
            y = leak(x, state, slot)
            return y + 7 if int(cursor[0]) == 15 else y

        def move(inputs: dict[str, Any]) -> None:
            inputs["cursor"].add_(1).remainder_(16)

        readings = check(
            call,
            make_inputs=with_cursor,
            reference=lambda x, state, slot, cursor: reference(x, state, slot),
            cycle=Cycle(lambda case: 16, "cursor", move),
        )
        assert outcomes(readings) == {"1": "ok", "10": "ok", "100": "beyond_tolerance"}
        assert "step 16 from its own state" in (readings["drift_cosine@100"].reason or "")


class TestARightKernel:
    @pytest.mark.parametrize("device", ["cpu", GPU])
    def test_has_three_readings_at_each_checkpoint(self, device: str) -> None:
        readings = check(device=device)
        assert [f"{metric}@{n}" for n in (1, 10, 100) for metric in METRICS] == list(readings)
        assert {(Status.OK, None)} == {(r.status, r.reason) for r in readings.values()}

    def test_stays_with_the_reference_in_fp32(self) -> None:
        readings = check()
        assert 0 < (readings["drift_rel_error@100"].value or 0) < 2e-7
        assert readings["drift_cosine@100"].value == pytest.approx(1.0, abs=1e-12)
        assert readings["drift_norm_ratio@100"].value == pytest.approx(1.0, abs=2e-7)

    def test_carries_what_it_was_measured_on(self) -> None:
        columns = check(steps=1, data="toy/2")["drift_cosine@1"].columns
        assert ("drift/1", "toy/2", 64) == (columns["method"], columns["data"], len(columns["data_hash"]))

    @pytest.mark.parametrize("state", ["fp16", "bf16", "io"])
    def test_may_keep_its_state_in_another_dtype(self, state: str) -> None:
        case = Case(B=3, state=state, dtype="bf16", tags="smoke")
        readings = check(case=case, steps=10)
        assert outcomes(readings) == {"1": "ok", "10": "ok"}
        assert readings["drift_rel_error@10"].value or 0 > 1e-5

    def test_may_be_functional(self) -> None:
        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            state = state.clone()
            return leak(x, state, slot), state

        in_place, functional = check(), check(call, variant={"outputs": ("y", "state"), "mutates": ()})
        assert [r.value for r in in_place.values()] == [r.value for r in functional.values()]

    def test_may_move_by_less_than_the_tolerance_of_one_step(self) -> None:
        """Whether the tolerance tells a step from none is asked of the correctness cases, not of each step."""
        slow = 1e-3

        def creep(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> dict[str, torch.Tensor]:
            state = state.double()
            state[slot.long()] += slow * x.double()
            return {"y": state[slot.long()], "state": state}

        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            state[slot.long()] += slow * x
            return state[slot.long()]

        wide = Tolerance(1e-2, "ten times a step")
        assert outcomes(check(call, reference=creep, tolerance=lambda case: wide, steps=10)) == {"1": "ok", "10": "ok"}

    def test_is_compared_with_a_reference_that_carries_fp64(self) -> None:
        seen: list[torch.dtype] = []

        def watched(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> dict[str, torch.Tensor]:
            seen.append(state.dtype)
            return {name: value.float() for name, value in reference(x, state, slot).items()}

        check(reference=watched, steps=2)
        assert seen == [torch.float64, torch.float32] * 2  # every other is a step from the variant's own state

    def test_is_not_harmed_by_a_reference_that_changes_its_inputs(self) -> None:
        def scaling(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> dict[str, torch.Tensor]:
            return reference(x.mul_(2), state, slot)

        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            return leak(2 * x, state, slot)

        assert set(outcomes(check(call, reference=scaling)).values()) == {"ok"}

    def test_is_given_new_inputs_at_every_step(self) -> None:
        seen: list[torch.Tensor] = []

        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            seen.append(x.clone())
            return leak(x, state, slot)

        check(call, steps=10)
        assert len(seen) == 10
        assert all(not torch.equal(one, other) for one, other in itertools.pairwise(seen))

    def test_may_carry_an_output_into_another_input(self) -> None:
        readings = check(
            lambda h, x: (DECAY * h + x,),
            make_inputs=lambda case, generator: {"h": generator.uniform((4,)), "x": generator.uniform((4,))},
            reference=lambda h, x: {"h_next": DECAY * h.double() + x.double()},
            outputs=("h_next",),
            mutates=(),
            slots={},
            tolerance=STEP,
            drift=Drift(lambda case, generator: {"x": generator.uniform((4,))}, {"h": "h_next"}, MANY, 10),
        )
        assert outcomes(readings) == {"1": "ok", "10": "ok"}


class TestDrift:
    def test_that_builds_up_is_wrong_where_it_passes_the_limit(self) -> None:
        """Each step is right on its own: 0.9 and 0.9 (1 + 5e-7) differ by less than the tolerance of one step."""
        readings = check(lambda x, state, slot: leak(x, state, slot, DECAY * (1 + 5e-7)), steps=100)
        assert {"1": "ok", "10": "drifted", "100": "drifted"} == outcomes(readings)
        reason = readings["drift_rel_error@100"].reason or ""
        assert reason.startswith("drifted: state after 100 steps: relative L2 ")
        assert "(at most 1e-06), cosine 1 (at least 0.99), norm ratio 1" in reason
        assert (readings["drift_rel_error@100"].value or 0) > 1e-6

    def test_is_held_to_the_cosine_too(self) -> None:
        strict = {"bf16": Tolerance(1.0, "a test", cosine=1 - 1e-9)}
        case = Case(B=3, state="io", dtype="bf16", tags="smoke")
        readings = check(case=case, steps=10, drift=Drift(step_inputs, {"state": "state"}, strict, 10))
        assert outcomes(readings)["10"] == "drifted"

    def test_is_measured_over_the_live_slots_alone(self) -> None:
        case = Case(B=1, state="fp32", dtype="fp32", tags="smoke")
        readings = check(lambda x, state, slot: leak(x, state, slot, DECAY * (1 + 1e-3)), case=case, steps=1)
        kernel = declare(case=case)
        inputs = Subject(kernel, "only", kernel.cases[0], load_devices()["cpu"], "cpu").inputs()
        row = int(inputs["slot"][0])
        before, after = inputs["state"][row].double(), reference(**inputs)["state"][row]
        assert readings["drift_rel_error@1"].value == pytest.approx((1e-3 * DECAY * before.norm() / after.norm()).item(), rel=1e-3)

    def test_reports_the_tensor_that_is_worst(self) -> None:
        def call(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
            a.copy_(a + x)
            b.copy_(1.5 * b)

        readings = check(
            call,
            make_inputs=lambda case, generator: {name: generator.uniform((8,)) for name in ("x", "a", "b")},
            reference=lambda x, a, b: {"a": a.double() + x, "b": b.double()},
            outputs=(),
            mutates=("a", "b"),
            slots={},
            drift=Drift(lambda case, generator: {"x": generator.uniform((8,))}, {"a": "a", "b": "b"}, MANY, 1),
        )
        assert (readings["drift_rel_error@1"].value, readings["drift_norm_ratio@1"].value) == pytest.approx((0.5, 1.5), rel=1e-6)


class TestAWrongStep:
    def test_is_found_at_the_checkpoint_where_it_happens(self) -> None:
        steps = iter(range(1000))

        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            y = leak(x, state, slot)
            return y * 1.01 if next(steps) == 9 else y

        readings = check(call)
        assert {"1": "ok", "10": "beyond_tolerance", "100": "ok"} == outcomes(readings)
        assert (readings["drift_cosine@10"].reason or "").startswith("beyond_tolerance: step 10 from its own state: y: relative L2 0.01 ")

    def test_that_leaves_the_state_as_it_was_is_found(self) -> None:
        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            return leak(x, state.clone(), slot)

        readings = check(call, steps=1)
        assert readings["drift_rel_error@1"].reason == "not_advanced: state is left as it was by step 1"

    def test_that_gives_nan_has_no_values(self) -> None:
        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            y = leak(x, state, slot)
            state[slot.long(), 0] = math.nan
            return y

        readings = check(call, steps=1)
        assert outcomes(readings) == {"1": "non_finite"}
        assert {None} == {r.value for r in readings.values()}

    def test_that_changes_another_slot_is_found(self) -> None:
        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            y = leak(x, state, slot)
            state[next(row for row in range(5) if row not in slot.tolist())] += 1
            return y

        assert set(outcomes(check(call, steps=10)).values()) == {"untouched_slot"}


CURSOR: dict[str, Any] = {
    "make_inputs": lambda case, generator: {
        "x": generator.uniform((8,)),
        "s": generator.uniform((8,)),
        "p": torch.ones(1, dtype=torch.int32),
    },
    "reference": lambda x, s, p: {"s": s.double() + x.double() / p},
    "outputs": (),
    "mutates": ("s",),
    "slots": {},
    "tolerance": STEP,
    "drift": Drift(lambda case, generator: {"x": generator.uniform((8,))}, {"s": "s"}, MANY, 10),
}
"""A kernel with a cursor: it adds x / p, and p counts from 1 to 4 again and again."""


class TestCycle:
    def test_moves_its_cursor_once_a_step(self) -> None:
        seen: list[int] = []

        def call(x: torch.Tensor, s: torch.Tensor, p: torch.Tensor) -> None:
            seen.append(int(p))
            s.add_(x / p)

        cycle = Cycle(lambda case: 4, "p", lambda inputs: inputs["p"].copy_(inputs["p"] % 4 + 1))
        assert set(outcomes(check(call, cycle=cycle, **CURSOR)).values()) == {"ok"}
        assert seen == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]

    def test_that_stands_still_in_a_step_of_the_reference_is_right(self) -> None:
        fields = {**CURSOR, "reference": lambda x, s, p: {"s": s.double()}}
        assert set(outcomes(check(lambda x, s, p: None, **fields)).values()) == {"ok"}


class TestDeclarations:
    def test_without_a_tolerance_for_the_states_dtype_are_refused(self) -> None:
        with pytest.raises(KernelFileError, match="has fp32, and the state is bf16"):
            check(
                case=Case(B=3, state="bf16", dtype="fp32", tags="smoke"),
                drift=Drift(step_inputs, {"state": "state"}, {"fp32": MANY["fp32"]}, 1),
            )

    @pytest.mark.parametrize("carry", [{"state": "h"}, {"h": "state"}, {"missing": "y"}], ids=["result", "input", "both"])
    def test_that_carry_what_is_not_there_are_refused(self, carry: dict[str, str]) -> None:
        with pytest.raises(KernelFileError, match="name an input tensor and an output or mutated tensor"):
            check(drift=Drift(step_inputs, carry, MANY, 1))

    def test_that_overwrite_what_is_carried_are_refused(self) -> None:
        with pytest.raises(KernelFileError, match="step_inputs gives 'state', which is carried"):
            check(drift=Drift(make_inputs, {"state": "state"}, MANY, 2))

    def test_without_drift_are_refused(self) -> None:
        with pytest.raises(KernelFileError, match="the kernel declares no Drift"):
            check(drift=None)

    def test_whose_reference_blows_up_leave_the_cell_undecided(self) -> None:
        def call(x: torch.Tensor, s: torch.Tensor) -> None:
            s.mul_(1e300).add_(x)

        readings = check(
            call,
            make_inputs=lambda case, generator: {"x": generator.uniform((4,)), "s": generator.uniform((4,)).double()},
            reference=lambda x, s: {"s": s.double() * 1e300 + x},
            outputs=(),
            mutates=("s",),
            slots={},
            tolerance=STEP,
            drift=Drift(lambda case, generator: {"x": generator.uniform((4,))}, {"s": "s"}, MANY, 10),
        )
        assert outcomes(readings)["10"] == "reference"
        assert readings["drift_rel_error@10"].status is Status.INVALID


def test_the_harness_adds_less_than_a_millisecond_a_step() -> None:
    """The least of five runs, beside the same calls made in a bare loop."""
    kernel = declare(steps=100)
    subject = Subject(kernel, "only", kernel.cases[0], load_devices()["cpu"], "cpu")
    inputs = subject.inputs()

    def seconds(run: Callable[[], object]) -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    bare = min(seconds(lambda: [(reference(**inputs), leak(**inputs), step_inputs_of(subject)) for _ in range(100)]) for _ in range(5))
    whole = min(seconds(lambda: check_drift(subject)) for _ in range(5))
    assert (whole - bare) / 100 < 1e-3


def step_inputs_of(subject: Subject) -> dict[str, Any]:
    from harness.measure.data import Generator

    return step_inputs(subject.case, Generator(1))


def test_the_job_asks_for_cells_that_drift() -> None:
    kind = load_kind(Path(drift.__file__).parents[2] / "jobs" / "drift.py")
    tagged, untagged = Case(B=3, state="fp32", dtype="fp32", tags="smoke drift"), Case(B=2, state="fp32", dtype="fp32", tags="smoke")
    kernel = declare(case=tagged)
    assert kind.applies(kernel, "only", tagged)
    assert not kind.applies(kernel, "only", untagged)
    assert not kind.applies(declare(drift=None), "only", tagged)
    assert not kind.applies(declare(variant={"cases": lambda case: case.B > 3}), "only", tagged)


def test_the_states_dtype_is_its_axis_where_that_is_one() -> None:
    names = {("bf16", "fp32"): "fp32", ("bf16", "io"): "bf16", ("fp32", "fp16"): "fp16"}
    for (dtype, state), expected in names.items():
        kernel = declare(case=Case(B=1, state=state, dtype=dtype, tags="smoke"))
        assert kernel.drift is not None
        found = drift.state_tolerance(Subject(kernel, "only", kernel.cases[0], load_devices()["cpu"], "cpu"), kernel.drift)
        assert MANY[expected] is found
        assert torch_dtype(expected).is_floating_point
