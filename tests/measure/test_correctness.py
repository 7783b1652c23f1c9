from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import Case, Drift, Kernel, Tolerance, Traffic, Variant
from harness.authoring.catalogue import load_kind
from harness.devices.table import load_devices
from harness.errors import KernelFileError
from harness.measure import correctness
from harness.measure.checks import CHECKS, Defect
from harness.measure.correctness import METRICS, check_correctness
from harness.measure.data import content_hash, torch_dtype
from harness.measure.subject import Reading, Subject
from harness.records import Status

GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")])
EXACT = Tolerance(0.0, "the arithmetic is exact")
ROUNDED = Tolerance(4e-3, "one rounding to bf16")

Call = Callable[..., Any]


def declare(call: Call, *, case: Case | None = None, variant: dict[str, Any] | None = None, **fields: Any) -> Kernel:
    """A kernel y = 2 x; `fields` replace what it declares. Its bytes are held against those of the default variant alone, which is
    another than the one that is checked."""
    case = case or Case(M=4, N=6, dtype="fp32", tags="smoke")
    declared: dict[str, Any] = {
        "axes": ("M", "N"),
        "cases": [case],
        "make_inputs": lambda case, generator: {"x": generator.uniform((case.M, case.N), case.dtype)},
        "reference": lambda x: {"y": 2 * x.double()},
        "outputs": ("y",),
        "tolerance": dict.fromkeys(("fp32", "fp16", "bf16"), EXACT),
        "traffic": lambda case: Traffic(1, 1),
        "flops": lambda case: 1,
        "name": "toy",
    }
    variants = dict.fromkeys(("only", "default"), Variant(call, triton=False, **(variant or {})))
    return Kernel(variants=variants, **{"default": "default", "baseline": "only", **declared, **fields})


def subject_of(kernel: Kernel, device: str = "cpu") -> Subject:
    return Subject(kernel, "only", kernel.cases[0], load_devices()["cpu"], device)


def check(call: Call, **fields: Any) -> list[Reading]:
    return check_correctness(subject_of(declare(call, **fields)))


def outcome(readings: list[Reading]) -> str:
    """`ok`, or the defect that every reading names."""
    found = {(reading.reason or str(reading.status)).partition(":")[0] for reading in readings}
    assert len(found) == 1, found
    return found.pop()


def state_kernel(call: Call, **fields: Any) -> Kernel:
    """Adds x to the rows of a state that `slot` names and returns them; a negative slot is a padded row."""

    def make_inputs(case: Case, generator: Any) -> dict[str, Any]:
        slot = generator.permutation(case.slots)[: case.B]
        slot[: case.pad] = -1
        return {"x": generator.uniform((case.B, 8)), "state": generator.uniform((case.slots, 8)), "slot": slot}

    def reference(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> dict[str, torch.Tensor]:
        state, live = state.double(), slot >= 0
        state[slot[live].long()] += x[live]
        y = torch.where(live[:, None], state[slot.long()], 0.0)
        return {"y": y, "state": state}

    declared = {
        "case": Case(B=3, slots=5, pad=0, dtype="fp32", tags="smoke"),
        "axes": ("B", "slots", "pad"),
        "make_inputs": make_inputs,
        "reference": reference,
        "mutates": ("state",),
        "slots": {"state": "slot"},
        "tolerance": {"fp32": Tolerance(1e-6, "one addition in fp32")},
    }
    return declare(call, **{**declared, **fields})


def add_in_place(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    live = slot >= 0
    state[slot[live].long()] += x[live]
    return torch.where(live[:, None], state[slot.long()], 0.0)


class TestAPass:
    @pytest.mark.parametrize("device", ["cpu", GPU])
    def test_has_one_ok_reading_a_metric(self, device: str) -> None:
        readings = check_correctness(subject_of(declare(lambda x: 2 * x), device))
        assert [(metric, Status.OK, None) for metric in METRICS] == [(r.metric, r.status, r.reason) for r in readings]
        assert [r.value for r in readings] == pytest.approx([0.0, 0.0, 0.0, 1.0], abs=1e-12)

    def test_carries_what_it_was_measured_on(self) -> None:
        subject = subject_of(declare(lambda x: 2 * x, data="toy/3"))
        columns = check_correctness(subject)[0].columns
        assert {"method": "correctness/1", "data": "toy/3", "data_hash": content_hash(subject.inputs())} == columns

    def test_measures_the_worst_of_all_tensors(self) -> None:
        readings = check(
            lambda x: (2 * x, 3 * x * (1 + 2**-10)),
            outputs=("y", "z"),
            reference=lambda x: {"y": 2 * x.double(), "z": 3 * x.double()},
            tolerance={"fp32": Tolerance(0.0, "exact", tensors={"z": 1e-2})},
        )
        assert outcome(readings) == "ok"
        assert readings[0].value == pytest.approx(2**-10, rel=1e-3)

    @pytest.mark.parametrize("shape", [(0, 6), (4, 0)], ids=str)
    def test_needs_no_elements(self, shape: tuple[int, int]) -> None:
        readings = check(lambda x: 2 * x, case=Case(M=shape[0], N=shape[1], dtype="fp32", tags="smoke"))
        assert [("ok", 0.0), ("ok", 0.0), ("ok", 0.0), ("ok", 1.0)] == [(str(r.status), r.value) for r in readings]

    def test_takes_strided_inputs(self) -> None:
        def make_inputs(case: Case, generator: Any) -> dict[str, Any]:
            return {"x": generator.uniform((case.M, case.N + 3))[:, : case.N]}

        assert outcome(check(lambda x: 2 * x, make_inputs=make_inputs)) == "ok"

    @pytest.mark.parametrize(
        "call",
        [
            torch.inference_mode()(lambda x: 2 * x),
            lambda x: torch.nn.Parameter(2 * x),
            lambda x: 2 * x * torch.nn.Parameter(torch.ones(())),
        ],
        ids=["inference mode", "a parameter", "with a gradient"],
    )
    def test_may_be_made_in_any_mode_of_autograd(self, call: Call) -> None:
        assert outcome(check(call)) == "ok"

    def test_passes_absent_options_by(self) -> None:
        readings = check(lambda x: (2 * x, None), outputs=("y", "residual"), reference=lambda x: {"y": 2 * x.double(), "residual": None})
        assert outcome(readings) == "ok"


def test_an_exception_of_the_variant_is_let_through() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("illegal memory access")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        check(call)


class TestInputs:
    @pytest.mark.parametrize("hold", [lambda x: [x, x], lambda x: (x,), lambda x: {"x": [x]}], ids=["list", "tuple", "dict"])
    def test_that_hold_tensors_out_of_sight_are_refused(self, hold: Call) -> None:
        with pytest.raises(
            KernelFileError, match=r"x is a (list|tuple|dict) of tensors, which would be neither copied, guarded nor compared"
        ):
            check(lambda x: None, make_inputs=lambda case, generator: {"x": hold(generator.uniform((4, 6)))}, mutates=("x",))

    def test_that_one_seed_does_not_give_again_leave_the_cell_undecided(self) -> None:
        readings = check(lambda x: 2 * x, make_inputs=lambda case, generator: {"x": torch.randn(4, 6)})
        reason = "inputs: make_inputs gives other inputs for the same seed: draw all that is random from its generator"
        assert {(Status.INVALID, reason)} == {(r.status, r.reason) for r in readings}

    def test_that_the_reference_does_not_take_are_told_with_its_place(self) -> None:
        found = r"make_inputs gives x; reference \(/.+/test_correctness\.py:\d+\) takes others: missing a required argument: 'xs'"
        with pytest.raises(KernelFileError, match=found):
            check(lambda x: 2 * x, reference=lambda xs: {"y": 2 * xs})

    def test_that_a_variant_does_not_take_are_told_with_its_place(self) -> None:
        with pytest.raises(KernelFileError, match=r"; variant \w+ \(/.+\) takes others: missing a required argument: 'xs'"):
            check(lambda xs: 2 * xs)

    def test_that_have_no_names_are_refused(self) -> None:
        with pytest.raises(KernelFileError, match="make_inputs gives a tuple"):
            check(lambda x: 2 * x, make_inputs=lambda case, generator: (generator.uniform((4, 6)),))

    def test_may_hold_numbers(self) -> None:
        readings = check(
            lambda x, sizes: sizes[0] * x,
            make_inputs=lambda case, generator: {"x": generator.uniform((4, 6)), "sizes": (2, 3)},
            reference=lambda x, sizes: {"y": 2 * x.double()},
        )
        assert outcome(readings) == "ok"


class TestOutputs:
    @pytest.mark.parametrize(
        ("call", "detail"),
        [
            (lambda x: None, "1 declared (y), 0 returned"),
            (lambda x: (2 * x, x), "1 declared (y), 2 returned"),
            (lambda x: (None,), "y is missing"),
            (lambda x: [2 * x], "y is of type list, not a tensor"),
        ],
        ids=["missing", "extra", "none", "list"],
    )
    def test_must_be_those_declared(self, call: Call, detail: str) -> None:
        readings = check(call)
        assert {f"outputs: {detail}"} == {r.reason for r in readings}
        assert {(Status.WRONG, None)} == {(r.status, r.value) for r in readings}

    def test_in_a_list_are_none(self) -> None:
        readings = check(lambda x: [2 * x, x], outputs=("y", "z"), reference=lambda x: {"y": 2 * x.double(), "z": x.double()})
        assert {"outputs: 2 declared (y, z), a list returned: return a tuple"} == {r.reason for r in readings}

    def test_must_be_real(self) -> None:
        readings = check(lambda x: torch.complex(2 * x, x))
        assert (readings[0].reason or "").startswith("outputs: y is torch.complex64: complex tensors are not supported")
        assert {(Status.WRONG, None)} == {(r.status, r.value) for r in readings}

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
    def test_may_come_from_complex_inputs(self, dtype: torch.dtype) -> None:
        def make_inputs(case: Case, generator: Any) -> dict[str, Any]:
            return {"x": torch.complex(generator.uniform((4, 6)), generator.uniform((4, 6))).to(dtype)}

        fields: dict[str, Any] = {"make_inputs": make_inputs, "reference": lambda x: {"y": 2 * x.real.double()}}
        assert outcome(check(lambda x: 2 * x.real.float(), **fields)) == "ok"
        assert outcome(check(lambda x: 2 * x.mul_(1j).imag.float(), **fields)) == "mutated_input"

    def test_that_the_reference_leaves_out_must_be_left_out(self) -> None:
        readings = check(lambda x: (2 * x, x), outputs=("y", "r"), reference=lambda x: {"y": 2 * x.double(), "r": None})
        assert readings[0].reason == "outputs: r is returned where the reference has none"


class TestDtype:
    def test_of_a_float_output_is_the_cases(self) -> None:
        case = Case(M=4, N=6, dtype="bf16", tags="smoke")
        assert outcome(check(lambda x: 2 * x, case=case)) == "ok"
        readings = check(lambda x: 2 * x.float(), case=case)
        assert readings[0].reason == "dtype: y is torch.float32, it must be torch.bfloat16"
        assert readings[0].value == 0.0

    def test_of_an_output_named_like_an_input_is_that_inputs(self) -> None:
        fields: dict[str, Any] = {
            "case": Case(M=4, N=6, dtype="bf16", tags="smoke"),
            "make_inputs": lambda case, generator: {"state": generator.uniform((case.M, case.N), "fp32")},
            "outputs": ("state",),
            "reference": lambda state: {"state": 2 * state.double()},
        }
        assert outcome(check(lambda state: 2 * state, **fields)) == "ok"
        assert outcome(check(lambda state: (2 * state).bfloat16(), **fields)) == "dtype"

    @pytest.mark.parametrize(("dtype", "expected"), [(torch.bfloat16, "ok"), (torch.float32, "dtype")], ids=["its own", "the case's"])
    def test_of_an_output_that_is_carried_into_an_input_is_that_inputs(self, dtype: torch.dtype, expected: str) -> None:
        found = check(
            lambda state: (state.float() / 2).to(dtype),
            make_inputs=lambda case, generator: {"state": generator.uniform((case.M, case.N), "bf16")},
            outputs=("new",),
            reference=lambda state: {"new": state.double() / 2},
            drift=Drift(lambda case, generator: {}, {"state": "new"}, {"fp32": EXACT}),
        )
        assert outcome(found) == expected

    def test_of_an_integer_output_is_the_references(self) -> None:
        fields: dict[str, Any] = {"outputs": ("index",), "reference": lambda x: {"index": x.argmax(1)}}
        assert outcome(check(lambda x: x.argmax(1), **fields)) == "ok"
        assert outcome(check(lambda x: x.argmax(1).int(), **fields)) == "dtype"


class TestShape:
    @pytest.mark.parametrize("reshape", [lambda y: y.flatten(), lambda y: y[:3], lambda y: y[None]], ids=["flat", "short", "deep"])
    def test_must_be_the_references(self, reshape: Call) -> None:
        readings = check(lambda x: reshape(2 * x))
        assert outcome(readings) == "shape"
        assert readings[0].value is None


class TestUnwrittenOutput:
    @pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
    def test_is_found_in_every_dtype(self, dtype: str) -> None:
        def call(x: torch.Tensor) -> torch.Tensor:
            y = torch.empty_like(x)
            y[:, :5] = 2 * x[:, :5]
            return y

        readings = check(call, case=Case(M=4, N=6, dtype=dtype, tags="smoke"))
        assert readings[0].reason == "unwritten_output: 4 of 24 elements of y, first at [0, 5]"

    def test_is_found_in_integers(self) -> None:
        readings = check(lambda x: torch.empty(4, dtype=torch.int64), outputs=("i",), reference=lambda x: {"i": x.argmax(1)})
        assert outcome(readings) == "unwritten_output"


class TestNonFinite:
    @pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
    def test_values_that_the_reference_has_not_are_wrong(self, value: float) -> None:
        def call(x: torch.Tensor) -> torch.Tensor:
            y = 2 * x
            y[1, 2] = value
            return y

        readings = check(call)
        assert (readings[0].reason or "").startswith(f"non_finite: 1 elements of y, first at [1, 2]: got {value}, expected ")
        assert {(Status.WRONG, None)} == {(r.status, r.value) for r in readings}

    def test_values_that_the_reference_has_too_are_right(self) -> None:
        assert outcome(check(lambda x: x.log(), reference=lambda x: {"y": x.log().double()})) == "ok"

    def test_come_from_reading_out_of_bounds(self) -> None:
        def call(x: torch.Tensor) -> torch.Tensor:
            return 2 * x + 0 * x.as_strided((1,), (1,), x.storage_offset() + x.numel())

        assert outcome(check(call)) == "non_finite"


class TestAProgramTooMany:
    def test_takes_what_lies_past_the_indices_for_a_slot(self) -> None:
        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            y = add_in_place(x, state, slot)
            one_more = int(slot.as_strided((1,), (1,), slot.storage_offset() + len(slot)))
            if one_more >= 0:
                state[one_more] += x.as_strided((8,), (1,), x.storage_offset() + x.numel())
            return y

        assert outcome(check_correctness(subject_of(state_kernel(call)))) in ("untouched_slot", "non_finite")


class TestOutOfBoundsWrite:
    def test_to_an_output_an_input_or_the_state_is_wrong(self) -> None:
        def beyond(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.as_strided((1,), (1,), tensor.storage_offset() + tensor.numel())

        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor, victim: str = "") -> torch.Tensor:
            y = torch.empty_like(x)
            y.copy_(add_in_place(x, state, slot))
            beyond({"y": y, "x": x, "state": state}[victim]).fill_(0)
            return y

        reasons = [
            check_correctness(subject_of(state_kernel(lambda x, state, slot, victim=victim: call(x, state, slot, victim))))[0].reason
            for victim in ("y", "x", "state")
        ]
        places = ("output y", "input x", "input state")
        assert [f"out_of_bounds_write: 4 bytes written after {place}, nearest at 0 bytes" for place in places] == reasons

    def test_of_a_padded_row_is_found_before_the_state(self) -> None:
        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            rows = state.as_strided((6, 8), (8, 1), state.storage_offset() - 8)
            rows[slot.long() + 1] = torch.where(slot[:, None] >= 0, rows[slot.long() + 1] + x, 0.0)
            return torch.where(slot[:, None] >= 0, rows[slot.long() + 1], 0.0)

        kernel = state_kernel(call, case=Case(B=3, slots=5, pad=1, dtype="fp32", tags="smoke"))
        assert "before input state" in (check_correctness(subject_of(kernel))[0].reason or "")


class TestMutation:
    def test_of_an_input_that_is_not_declared_is_wrong(self) -> None:
        assert outcome(check(lambda x: x.mul_(2).clone())) == "mutated_input"

    def test_of_a_declared_one_is_compared_with_the_reference(self) -> None:
        assert outcome(check_correctness(subject_of(state_kernel(add_in_place)))) == "ok"

        def forgets(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            return add_in_place(x, state.clone(), slot)

        readings = check_correctness(subject_of(state_kernel(forgets)))
        assert (readings[0].reason or "").startswith("beyond_tolerance: state: relative L2")

    def test_of_a_slot_that_no_index_names_is_wrong(self) -> None:
        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            other = next(row for row in range(5) if row not in slot.tolist())
            state[other] = 0
            return add_in_place(x, state, slot)

        readings = check_correctness(subject_of(state_kernel(call)))
        assert outcome(readings) == "untouched_slot"

    def test_of_the_last_slot_by_a_padded_row_is_wrong(self) -> None:
        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            y = add_in_place(x, state, slot)
            state[slot[slot < 0].long()] = 0.0
            return y

        readings = check_correctness(subject_of(state_kernel(call, case=Case(B=2, slots=8, pad=1, dtype="fp32", tags="smoke"))))
        assert readings[0].reason == "untouched_slot: rows [7] of state changed; slot does not name them"

    def test_is_measured_over_the_live_slots_alone(self) -> None:
        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            y = add_in_place(x, state, slot)
            state[slot.long()] *= 1 + 2**-10
            return y

        case = Case(B=1, slots=400, pad=0, dtype="fp32", tags="smoke")
        readings = check_correctness(subject_of(state_kernel(call, case=case)))
        assert outcome(readings) == "beyond_tolerance"
        assert readings[0].value == pytest.approx(2**-10, rel=1e-2)

    @pytest.mark.parametrize(
        ("batch", "slots", "pad"), [(0, 4, 0), (0, 0, 0), (2, 4, 2)], ids=["empty batch", "no slots", "padded rows only"]
    )
    def test_of_nothing_is_right_where_no_slot_is_live(self, batch: int, slots: int, pad: int) -> None:
        case = Case(B=batch, slots=slots, pad=pad, dtype="fp32", tags="smoke")
        assert outcome(check_correctness(subject_of(state_kernel(add_in_place, case=case)))) == "ok"

    @pytest.mark.parametrize(("slot_kept", "expected"), [(True, "ok"), (False, "beyond_tolerance")], ids=["right", "other slots lost"])
    def test_by_a_functional_variant_is_an_output_compared_whole(self, slot_kept: bool, expected: str) -> None:
        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            new = state.clone() if slot_kept else torch.zeros_like(state).index_copy(0, slot.long(), state[slot.long()])
            return add_in_place(x, new, slot), new

        kernel = state_kernel(call, variant={"outputs": ("y", "state"), "mutates": ()})
        assert outcome(check_correctness(subject_of(kernel))) == expected


class TestTolerance:
    def test_is_kept_or_not(self) -> None:
        near = {"tolerance": {"fp32": Tolerance(1e-3, "a test")}}
        assert outcome(check(lambda x: 2 * x * (1 + 9e-4), **near)) == "ok"
        readings = check(lambda x: 2 * x * (1 + 11e-4), **near)
        assert (readings[0].reason or "").startswith("beyond_tolerance: y: relative L2 0.0011 (at most 0.001); worst at [")
        assert readings[0].value == pytest.approx(11e-4, rel=1e-3)

    def test_of_a_norm_hides_no_element_unless_the_kernel_lets_it(self) -> None:
        def sign(x: torch.Tensor) -> torch.Tensor:
            y = 2 * x
            y[1, torch.argmax(y[1].abs())] *= -1
            return y

        def off(x: torch.Tensor) -> torch.Tensor:
            y = 2 * x
            y[1, 0] += 30e-3 * 2  # of values up to 2, whose root mean square is 1.15
            return y

        wide: dict[str, Any] = {"case": Case(M=4, N=60000, dtype="fp32", tags="smoke")}
        near, free = Tolerance(1e-2, "a test"), Tolerance(1e-2, "a test", element=float("inf"))
        readings = check(sign, tolerance={"fp32": near}, **wide)
        assert (readings[0].reason or "").startswith("beyond_tolerance: y: one element is off by 2 of its size, ")
        assert "(at most 0.32): [1, " in (readings[0].reason or "")
        assert outcome(check(sign, tolerance={"fp32": free}, **wide)) == "ok"
        assert outcome(check(off, tolerance={"fp32": near}, **wide)) == "ok"
        assert outcome(check(off, tolerance={"fp32": Tolerance(1e-2, "a test", element=2)}, **wide)) == "beyond_tolerance"

    def test_of_no_element_is_asked_of_a_result_that_must_be_exact_or_is_zero(self) -> None:
        assert outcome(check(lambda x: 2 * x, tolerance={"fp32": Tolerance(0.0, "exact", element=float("inf"))})) == "ok"
        nothing: dict[str, Any] = {"reference": lambda x: {"y": 0 * x.double()}, "tolerance": {"fp32": Tolerance(1e-3, "a test")}}
        assert outcome(check(lambda x: 0 * x + 1e-5, **nothing)) == "ok"

    def test_asks_for_the_cosine_where_it_gates(self) -> None:
        def turned(x: torch.Tensor) -> torch.Tensor:
            return 2 * x + 0.02 * x.flip(1)

        wide = Tolerance(0.1, "a test")
        assert outcome(check(turned, tolerance={"fp32": wide})) == "ok"
        readings = check(turned, tolerance={"fp32": Tolerance(0.1, "a test", cosine=0.9999999)})
        assert "(at least 0.9999999)" in (readings[0].reason or "")

    def test_of_an_integer_is_equality_unless_it_is_named(self) -> None:
        def off_by_one(x: torch.Tensor) -> torch.Tensor:
            return (1000 * x).round().long() + 1

        fields: dict[str, Any] = {"outputs": ("i",), "reference": lambda x: {"i": (1000 * x).round().long()}}
        loose = Tolerance(0.1, "a test")
        assert outcome(check(off_by_one, tolerance={"fp32": loose}, **fields)) == "beyond_tolerance"
        named = Tolerance(0.1, "a test", tensors={"i": 0.1})
        assert outcome(check(off_by_one, tolerance={"fp32": named}, **fields)) == "ok"

    @pytest.mark.parametrize("dtype", [torch.int64, torch.uint64], ids=str)
    def test_of_an_integer_is_equality_also_where_fp64_rounds(self, dtype: torch.dtype) -> None:
        def ids(x: torch.Tensor, more: int = 0) -> torch.Tensor:
            return ((1000 * x).round().long() + 2**60 + more).to(dtype)

        fields: dict[str, Any] = {"outputs": ("i",), "reference": lambda x: {"i": ids(x)}}
        assert outcome(check(ids, **fields)) == "ok"
        assert outcome(check(lambda x: ids(x, 1), **fields)) == "beyond_tolerance"


class TestCosts:
    """Compulsory bytes that the tensors contradict: invalid, not ok, also where nothing is timed."""

    @pytest.mark.parametrize(
        ("traffic", "expected"),
        [
            (Traffic(96, 96), "ok"),
            (Traffic(192, 96), "cost_model: traffic reads 192 bytes, and the inputs have 96"),
            (Traffic(96, 24), "cost_model: traffic writes 24 bytes, and the outputs have 96"),
        ],
        ids=["right", "an input twice", "elements for bytes"],
    )
    def test_of_the_default_variant_are_held_against_its_tensors(self, traffic: Traffic, expected: str) -> None:
        readings = check(lambda x: 2 * x, traffic=lambda case: traffic, default="only")
        assert {expected} == {r.reason or str(r.status) for r in readings}
        assert {Status.OK if expected == "ok" else Status.INVALID} == {r.status for r in readings}


class TestCanary:
    """A case whose tolerance would accept a variant that does nothing proves nothing: invalid, not ok."""

    def test_rejects_a_tolerance_that_accepts_zeros(self) -> None:
        readings = check(lambda x: 2 * x, tolerance={"fp32": Tolerance(1.0, "much too wide")})
        assert {(Status.INVALID, "canary: the tolerance of y would accept all zeros")} == {(r.status, r.reason) for r in readings}

    def test_accepts_zeros_where_they_are_right(self) -> None:
        assert outcome(check(lambda x: x - x, reference=lambda x: {"y": torch.zeros_like(x)})) == "ok"

    def test_rejects_a_tolerance_that_accepts_an_unchanged_state(self) -> None:
        def make_inputs(case: Case, generator: Any) -> dict[str, Any]:
            return {"x": 1e-4 * generator.uniform((3, 8)), "state": generator.uniform((5, 8)), "slot": generator.permutation(5)[:3]}

        wide = {"fp32": Tolerance(1e-3, "wider than one step")}
        readings = check_correctness(subject_of(state_kernel(add_in_place, make_inputs=make_inputs, tolerance=wide)))
        assert readings[0].reason == "canary: the tolerance of state would accept an unchanged tensor"

    def test_comes_after_a_wrong_result(self) -> None:
        assert outcome(check(lambda x: -9 * x, tolerance={"fp32": Tolerance(1.0, "much too wide")})) == "beyond_tolerance"


class TestReference:
    """A reference that cannot judge leaves the cell undecided."""

    @pytest.mark.parametrize(
        ("reference", "detail"),
        [
            (lambda x: {"y": (2 * x).bfloat16()}, "y is torch.bfloat16; compute it in fp32 or fp64"),
            (lambda x: {"y": None}, "it gives nothing to compare"),
            (lambda x: {"y": x.double().sum().item()}, "y is of type float, not a tensor"),
            (lambda x: {"y": x.double().numpy()}, "y is of type ndarray, not a tensor"),
        ],
        ids=["low precision", "nothing", "a number", "an array"],
    )
    def test_must_give_what_is_declared(self, reference: Call, detail: str) -> None:
        readings = check(lambda x: 2 * x, reference=reference)
        assert {(Status.INVALID, f"reference: {detail}", None)} == {(r.status, r.reason, r.value) for r in readings}

    @pytest.mark.parametrize(
        ("reference", "found"),
        [(lambda x: {"z": 2 * x}, "z, no 'y'"), (lambda x: {}, "nothing, no 'y'"), (lambda x: 2 * x, "a Tensor")],
        ids=["another name", "no name", "no dict"],
    )
    def test_that_gives_other_names_is_named_with_its_line_and_what_to_mend(self, reference: Call, found: str) -> None:
        (reason,) = {reading.reason for reading in check(lambda x: 2 * x, reference=reference)}
        place = f"{Path(__file__).name}:{reference.__code__.co_firstlineno}"
        assert (reason or "").startswith(f"reference: it gives {found}: mend ")
        assert (reason or "").endswith(f"{place}, which must return a dict with every name of `outputs` and `mutates`")

    @pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
    def test_without_a_finite_element_proves_no_variant(self, value: float) -> None:
        readings = check(lambda x: torch.full_like(x, value), reference=lambda x: {"y": torch.full_like(x, value).double()})
        reason = "reference: y has no finite element among the 24 compared: choose inputs that do not blow up"
        assert {(Status.INVALID, reason, None)} == {(r.status, r.reason, r.value) for r in readings}

    def test_without_a_finite_element_in_one_of_its_tensors_proves_none(self) -> None:
        readings = check(
            lambda x: (2 * x, x / 0 - x / 0), outputs=("y", "z"), reference=lambda x: {"y": 2 * x.double(), "z": x.double() * float("nan")}
        )
        assert (readings[0].reason or "").startswith("reference: z has no finite element")

    def test_without_a_finite_element_in_the_live_slots_proves_none(self) -> None:
        def call(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            state[slot.long()] = float("nan")
            return x.clone()

        def reference(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> dict[str, torch.Tensor]:
            call(x, state, slot)
            return {"y": x.double(), "state": state.double()}

        readings = check_correctness(subject_of(state_kernel(call, reference=reference)))
        assert (readings[0].reason or "").startswith("reference: state has no finite element among the 24 compared")

    def test_may_be_all_zero(self) -> None:
        assert outcome(check(lambda x: 0 * x, reference=lambda x: {"y": torch.zeros_like(x)})) == "ok"

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
    def test_must_be_real(self, dtype: torch.dtype) -> None:
        readings = check(lambda x: x.to(dtype), reference=lambda x: {"y": x.to(dtype)})
        reason = f"reference: y is {dtype}: complex tensors are not supported; give the real and the imaginary part as two tensors"
        assert {(Status.INVALID, reason, None)} == {(r.status, r.reason, r.value) for r in readings}

    def test_of_a_complex_state_leaves_the_cell_undecided(self) -> None:
        def double(state: torch.Tensor) -> None:
            state.mul_(2)

        def make_inputs(case: Case, generator: Any) -> dict[str, Any]:
            return {"state": torch.complex(generator.uniform((3, 4)), generator.uniform((3, 4)))}

        readings = check(
            double,
            make_inputs=make_inputs,
            outputs=(),
            mutates=("state",),
            reference=lambda state: {"state": state.real.double()},
        )
        assert (readings[0].reason or "").startswith("reference: the input state that it replaces is torch.complex64: complex tensors")

    def test_must_give_a_mutated_tensor_whole(self) -> None:
        def reference(x: torch.Tensor, state: torch.Tensor, slot: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": state[slot.long()] + x, "state": state[slot.long()] + x}

        readings = check_correctness(subject_of(state_kernel(add_in_place, reference=reference)))
        assert readings[0].reason == "reference: state is (3, 8) and the input it replaces (5, 8)"

    def test_harms_nothing_by_changing_its_inputs(self) -> None:
        assert outcome(check(lambda x: 2 * x, reference=lambda x: {"y": x.mul_(2).double()})) == "ok"

    def test_runs_in_full_precision_whatever_a_kernel_file_switched_on(self) -> None:
        seen: list[tuple[str, bool]] = []

        def reference(x: torch.Tensor) -> dict[str, torch.Tensor]:
            seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
            return {"y": 2 * x.double()}

        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        try:
            check(lambda x: 2 * x, reference=reference)
            assert torch.get_float32_matmul_precision() == "medium"
        finally:
            torch.set_float32_matmul_precision(before)
        assert set(seen) == {("highest", False)}


class TestSecondCall:
    def test_must_be_bit_equal_where_the_kernel_is_deterministic(self) -> None:
        calls = itertools.count()

        def call(x: torch.Tensor) -> torch.Tensor:
            return 2 * x * (1 + 2**-20 * next(calls))

        loose = {"tolerance": {"fp32": Tolerance(1e-5, "a test")}}
        assert outcome(check(call, **loose)) == "not_deterministic"
        calls = itertools.count()
        assert outcome(check(call, deterministic=False, **loose)) == "ok"

    def test_sees_through_a_buffer_that_is_used_again(self) -> None:
        calls, buffer = itertools.count(), torch.empty(4, 6)

        def call(x: torch.Tensor) -> torch.Tensor:
            return torch.mul(x, 2 * (1 + 2**-20 * next(calls)), out=buffer)

        assert outcome(check(call, tolerance={"fp32": Tolerance(1e-5, "a test")})) == "not_deterministic"

    def test_may_use_a_buffer_again(self) -> None:
        buffer = torch.empty(4, 6)
        assert outcome(check(lambda x: torch.mul(x, 2, out=buffer))) == "ok"

    def test_with_new_content_in_the_same_buffers_must_give_the_new_answer(self) -> None:
        answers: dict[int, torch.Tensor] = {}
        readings = check(lambda x: answers.setdefault(x.data_ptr(), 2 * x))
        assert (readings[0].reason or "").startswith(
            "cached_answer: new content in the same buffers gives the old y (beyond_tolerance: y: "
        )
        assert {Status.WRONG} == {r.status for r in readings}

    def test_with_new_content_is_asked_everything(self) -> None:
        where: set[int] = set()

        def call(x: torch.Tensor) -> torch.Tensor:
            y = 2 * x
            if x.data_ptr() in where:
                x.zero_()
            where.add(x.data_ptr())
            return y

        assert check(call)[0].reason == "mutated_input: x changed and is not declared as mutated (on a second content in the same buffers)"


class TestTheTableOfChecks:
    def test_asks_each_question_once_and_in_order(self) -> None:
        order = [defect for defect in Defect if defect in dict(CHECKS)]
        assert order == [defect for defect, _ in CHECKS]

    @pytest.mark.parametrize("defect", Defect, ids=str)
    def test_blames_the_variant_unless_the_kernel_file_is_at_fault(self, defect: Defect) -> None:
        expected = Status.INVALID if defect in (Defect.INPUTS, Defect.REFERENCE, Defect.CANARY, Defect.COST_MODEL) else Status.WRONG
        assert expected is defect.status

    def test_reports_the_first_defect_alone(self) -> None:
        def call(x: torch.Tensor) -> torch.Tensor:
            y = torch.empty(x.shape, dtype=torch.float64)
            x.zero_()
            return y

        assert outcome(check(call)) == "dtype"


def test_the_job_asks_for_every_cell_that_the_variant_covers() -> None:
    kind = load_kind(Path(correctness.__file__).parents[2] / "jobs" / "correctness.py")
    kernel = declare(lambda x: 2 * x, variant={"cases": lambda case: case.M > 4})
    covered = Case(M=5, N=6, dtype="fp32")
    assert kind.on == "unit"
    assert [False, True] == [kind.applies(kernel, "only", case) for case in (kernel.cases[0], covered)]


def test_bf16_is_right_within_its_rounding() -> None:
    readings = check(
        lambda x: (x.float() / 3).to(torch_dtype("bf16")),
        case=Case(M=16, N=64, dtype="bf16", tags="smoke"),
        reference=lambda x: {"y": x.double() / 3},
        tolerance={"bf16": ROUNDED},
    )
    assert outcome(readings) == "ok"
    assert readings[2].value == 0.0
