from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from kernel_testing import GPUS, clone, drift_of, rel_l2, same_bits

from harness import Case, DeviceProperties, Kernel
from harness.devices.properties import pretend
from harness.devices.table import Device, load_devices
from harness.measure.data import Generator, torch_dtype

KERNEL_NAME = "selective_scan_decode"
LONE = DeviceProperties("cpu", 1, 65_536, 32, 32 << 20)
"""A device with one multiprocessor, on which a small batch already shares programs."""

Step = Callable[[dict[str, Any]], tuple[torch.Tensor, torch.Tensor]]


def step_of(kernel: Kernel, name: str) -> Step:
    """A variant as a function from inputs to y and the new state, wherever the variant puts that."""
    variant = kernel.variant(name)

    def step(inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        returned = variant.call(**inputs)
        return returned if variant.outputs == ("y", "state") else (returned, inputs["state"])

    return step


@pytest.fixture(params=("inplace", "fused", "torch"))
def step(kernel: Kernel, request: pytest.FixtureRequest) -> Step:
    """What holds for one variant holds for the others."""
    return step_of(kernel, request.param)


def case(dtype: str = "fp32", **axes: Any) -> Case:
    full = {"B": 2, "D": 12, "N": 16, "state": "fp32", "D_term": 1, "z": 1, "dt_bias": 1, "softplus": 1, "strided": 0, **axes}
    return Case(dtype=dtype, **full)


# Right on every case


def test_result_is_within_tolerance_of_the_reference(kernel: Kernel, cpu_cell: tuple[str, Case]) -> None:
    variant_name, case = cpu_cell
    inputs = kernel.make_inputs(case, Generator(2))
    before = clone(inputs)
    expected = kernel.reference(**inputs)
    assert all(same_bits(before[name], value) for name, value in inputs.items() if isinstance(value, torch.Tensor))

    y, state = step_of(kernel, variant_name)(inputs)
    tolerance = kernel.tolerance_of(case)
    assert (case.B, case.D) == y.shape
    assert (torch_dtype(case.dtype), torch_dtype(case.state)) == (y.dtype, state.dtype)
    assert rel_l2(y, expected["y"]) <= tolerance.limit("y")
    assert rel_l2(state, expected["state"]) <= tolerance.limit("state")

    mutated = kernel.variant(variant_name).mutates or ()
    kept = [name for name, value in inputs.items() if isinstance(value, torch.Tensor) and name not in mutated]
    assert all(same_bits(before[name], inputs[name]) for name in kept)


# The recurrence


def naive_scan(tokens: list[dict[str, Any]], state: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Every token, row, channel and state dimension in turn, in fp64: y (T, batch, d_inner) and the last state by row."""
    indices = tokens[0]["state_indices"].tolist()
    h = state.double().numpy()[indices]
    batch, d_inner, N = h.shape
    y = np.zeros((len(tokens), batch, d_inner))
    for t, token in enumerate(tokens):
        given = {name: value.double().numpy() for name, value in token.items() if isinstance(value, torch.Tensor)}
        for b in range(batch):
            for d in range(d_inner):
                step = given["dt"][b, d] + (given["dt_bias"][d] if "dt_bias" in given else 0.0)
                step = math.log1p(math.exp(step)) if token["softplus"] else step
                for n in range(N):
                    h[b, d, n] = math.exp(step * given["A"][d, n]) * h[b, d, n] + step * given["x"][b, d] * given["B"][b, n]
                    y[t, b, d] += given["C"][b, n] * h[b, d, n]
                if "D" in given:
                    y[t, b, d] += given["D"][d] * given["x"][b, d]
                if "z" in given:
                    y[t, b, d] *= given["z"][b, d] / (1 + math.exp(-given["z"][b, d]))
    return y, h


def tokens_of(kernel: Kernel, one: Case, steps: int, seed: int) -> list[dict[str, Any]]:
    generator = Generator(seed)
    inputs = kernel.make_inputs(one, generator)
    return [inputs, *({**inputs, **drift_of(kernel).step_inputs(one, generator)} for _ in range(steps - 1))]


OPTIONS: dict[str, dict[str, Any]] = {
    "all options": {},
    "none": {"D_term": 0, "z": 0, "dt_bias": 0, "softplus": 0},
    "bias without softplus": {"softplus": 0},
    "softplus without bias": {"dt_bias": 0},
    "strided": {"strided": 1},
    "ragged": {"D": 5, "N": 3},
}


@pytest.mark.parametrize("axes", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("steps", [1, 6])
def test_steps_equal_the_naive_scan_over_all_tokens(kernel: Kernel, step: Step, axes: dict[str, Any], steps: int) -> None:
    tokens = tokens_of(kernel, case(**axes), steps, seed=4)
    state = tokens[0]["state"]
    expected_y, expected_state = naive_scan(tokens, state)
    found = []
    for token in tokens:
        y, state = step({**token, "state": state})
        found.append(y)
    assert rel_l2(torch.stack(found), torch.from_numpy(expected_y)) <= 2e-6
    assert rel_l2(state[tokens[0]["state_indices"]], torch.from_numpy(expected_state)) <= 1e-6


def test_reference_is_the_naive_scan_and_takes_its_own_state(kernel: Kernel) -> None:
    tokens = tokens_of(kernel, case(state="bf16"), steps=2, seed=5)
    expected_y, expected_state = naive_scan(tokens, tokens[0]["state"])
    first = kernel.reference(**tokens[0])
    kept = first["state"].clone()
    second = kernel.reference(**{**tokens[1], "state": first["state"]})
    assert same_bits(kept, first["state"])
    assert torch.float64 == second["state"].dtype == second["y"].dtype
    assert rel_l2(second["y"], torch.from_numpy(expected_y[1])) <= 1e-14
    assert rel_l2(second["state"][tokens[0]["state_indices"]], torch.from_numpy(expected_state)) <= 1e-14


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_functional_and_in_place_give_the_same_bits(kernel: Kernel, dtype: str) -> None:
    inputs = kernel.make_inputs(case(dtype, state=dtype, B=3), Generator(6))
    y, state = step_of(kernel, "fused")(inputs)
    y_in_place, state_in_place = step_of(kernel, "inplace")(inputs)
    assert same_bits(y, y_in_place)
    assert same_bits(state, state_in_place)
    assert state_in_place is inputs["state"]
    assert state is not inputs["state"]


def test_triton_and_torch_agree(kernel: Kernel) -> None:
    inputs = kernel.make_inputs(case(B=3), Generator(7))
    y, state = step_of(kernel, "fused")(inputs)
    y_torch, state_torch = step_of(kernel, "torch")(inputs)
    assert rel_l2(y, y_torch) <= 1e-6
    assert rel_l2(state, state_torch) <= 1e-6


@pytest.mark.parametrize("batch", [64, 66], ids=["two rows a program", "two rows a program, ragged grid"])
def test_rows_that_share_a_program_equal_rows_alone(kernel: Kernel, module: ModuleType, batch: int) -> None:
    inputs = kernel.make_inputs(case(B=batch, D=20, N=5), Generator(8))
    alone = clone(inputs)
    expected = step_of(kernel, "inplace")(alone)
    with pretend(LONE):
        assert (2, 16) == module.plan_tile(batch, 16, 8)
        y, state = step_of(kernel, "inplace")(inputs)
    assert same_bits(expected[0], y)
    assert same_bits(expected[1], state)


# Decay at its ends


def test_decay_of_zero_forgets_the_state(kernel: Kernel, step: Step) -> None:
    inputs = kernel.make_inputs(case(dt_bias=0), Generator(9))
    inputs["dt"].fill_(30.0)  # over 20, where softplus is the identity
    inputs["A"].fill_(-10.0)
    other = clone(inputs)
    other["state"].uniform_(-3, 3)
    (y, state), (other_y, other_state) = step(inputs), step(other)
    assert same_bits(y, other_y)
    assert same_bits(state, other_state)
    expected = (30.0 * inputs["x"])[:, :, None] * inputs["B"][:, None, :]
    assert torch.allclose(expected, state[inputs["state_indices"]], rtol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
def test_decay_of_one_leaves_the_state(kernel: Kernel, step: Step) -> None:
    inputs = kernel.make_inputs(case(), Generator(10))
    inputs["dt_bias"].fill_(-60.0)
    before = inputs["state"].clone()
    _, state = step(inputs)
    assert torch.equal(before, state)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_small_steps_keep_their_digits(step: Step) -> None:
    """h' is the decay itself where x is zero and h is one; A makes every decay about exp(-1)."""
    dt = torch.tensor([-40.0, -20.0, -15.0, -9.0, -7.0, -3.0, 0.0, 3.0, 19.9, 20.1, 90.0])
    steps = [x if x > 20 else math.log1p(math.exp(x)) for x in dt.tolist()]
    n = len(steps)
    A = (-1 / torch.tensor(steps, dtype=torch.float64)).float()[:, None]
    inputs = {
        "x": torch.zeros(1, n),
        "dt": dt[None],
        "A": A,
        "B": torch.ones(1, 1),
        "C": torch.ones(1, 1),
        "D": None,
        "z": None,
        "dt_bias": None,
        "state": torch.ones(1, n, 1),
        "state_indices": torch.zeros(1, dtype=torch.int32),
        "softplus": True,
    }
    y, state = step(inputs)
    expected = [math.exp(a * step) for a, step in zip(A.flatten().tolist(), steps, strict=True)]
    assert expected == pytest.approx(state.flatten().tolist(), rel=1e-6)
    assert same_bits(state.flatten(), y.flatten())


# NaN and infinity

REACHES_THE_STATE = {"x": True, "dt": True, "z": False, "B": True, "C": False, "A": True, "D": False, "dt_bias": True, "state": True}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
@pytest.mark.parametrize("name", REACHES_THE_STATE)
def test_nan_reaches_what_the_module_says(kernel: Kernel, step: Step, name: str) -> None:
    inputs = kernel.make_inputs(case(), Generator(11))
    rows, channels = {"A": (slice(None), 3), "D": (slice(None), 3), "dt_bias": (slice(None), 3)}.get(name, (1, 3))
    place: tuple[Any, ...] = {"A": (3, 2), "D": (3,), "dt_bias": (3,), "state": (inputs["state_indices"][1], 3, 2)}.get(name, (1, 3))
    if name in ("B", "C"):
        channels = slice(None)
    inputs[name][place] = float("nan")
    y, state = step(inputs)
    hit = torch.zeros(2, 12, dtype=torch.bool)
    hit[rows, channels] = True
    assert torch.equal(hit, y.isnan())
    assert torch.equal(hit & REACHES_THE_STATE[name], state[inputs["state_indices"]].isnan().any(-1))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("N", [16, 5], ids=["whole", "ragged"])
@pytest.mark.parametrize("name", ["x", "dt", "dt_bias", "state"])
def test_infinity_stays_in_its_channel_as_infinity(kernel: Kernel, step: Step, name: str, N: int) -> None:
    inputs = kernel.make_inputs(case(N=N), Generator(23))
    for ones in ("x", "B", "C", "z"):
        inputs[ones].fill_(1.0)
    place: dict[str, tuple[Any, ...]] = {"state": (inputs["state_indices"][1], 3, slice(None)), "dt_bias": (3,)}
    inputs[name][place.get(name, (1, 3))] = float("inf")
    if name in ("dt", "dt_bias"):
        inputs["state"].zero_()
    y, state = step(inputs)
    hit = torch.zeros(2, 12, dtype=torch.bool)
    hit[slice(None) if name == "dt_bias" else 1, 3] = True
    assert torch.equal(hit, y.isposinf())
    assert torch.equal(hit, state[inputs["state_indices"]].isposinf().all(-1))
    assert not y.isnan().any()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinite_state_that_is_forgotten_and_infinite_step_of_nothing_are_nan(kernel: Kernel, step: Step) -> None:
    forgotten = kernel.make_inputs(case(), Generator(24))
    forgotten["dt"].fill_(1e4)
    forgotten["state"].fill_(float("inf"))
    of_nothing = kernel.make_inputs(case(), Generator(24))
    of_nothing["dt"].fill_(float("inf"))
    of_nothing["x"].zero_()
    for inputs in (forgotten, of_nothing):
        y, state = step(inputs)
        assert y.isnan().all()
        assert state.isnan().all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dt", [21.0, 90.0, 1e4, 1e30])
def test_large_steps_are_themselves_and_overflow_nothing_on_the_way(kernel: Kernel, step: Step, dt: float) -> None:
    inputs = kernel.make_inputs(case(dt_bias=0), Generator(25))
    inputs["dt"].fill_(dt)
    expected = kernel.reference(**clone(inputs))
    y, state = step(inputs)
    assert y.isfinite().all()
    assert rel_l2(y, expected["y"]) <= 1e-6
    assert rel_l2(state, expected["state"]) <= 1e-6


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("x", "B", "expected"), [(1e20, 1e-30, math.inf), (1e-30, 1e20, 1e20)], ids=["step times x overflows", "step times B would"]
)
def test_step_times_x_is_taken_before_B(kernel: Kernel, step: Step, x: float, B: float, expected: float) -> None:
    inputs = kernel.make_inputs(case(dt_bias=0, softplus=0, D_term=0, z=0), Generator(26))
    inputs["dt"].fill_(1e30)
    inputs["x"].fill_(x)
    inputs["B"].fill_(B)
    _, state = step(inputs)
    assert torch.allclose(torch.full_like(state, expected), state, rtol=1e-6)


# Rows, slots, strides


def test_slots_without_a_row_are_left_alone_in_place(kernel: Kernel) -> None:
    for name in ("inplace", "torch"):
        inputs = kernel.make_inputs(case(B=4), Generator(12))
        rows = {name: inputs[name][1:3] for name in ("x", "dt", "B", "C", "z", "state_indices")}
        before = inputs["state"].clone()
        step_of(kernel, name)({**inputs, **rows})
        changed = [slot for slot in range(4) if not same_bits(before[slot], inputs["state"][slot])]
        assert sorted(rows["state_indices"].tolist()) == changed


def test_out_state_may_have_slots_that_lie_apart(kernel: Kernel, module: ModuleType) -> None:
    inputs = kernel.make_inputs(case(), Generator(13))
    out = torch.full((2, 12 * 16 + 8), float("nan"))
    y = module.selective_scan_decode(**inputs, out_state=out[:, : 12 * 16].unflatten(1, (12, 16)))
    expected_y, expected = step_of(kernel, "fused")(inputs)
    assert same_bits(expected_y, y)
    assert same_bits(expected.flatten(1), out[:, : 12 * 16])
    assert out[:, 12 * 16 :].isnan().all()


def test_strided_inputs_equal_contiguous_ones_and_the_padding_is_not_read(kernel: Kernel, step: Step) -> None:
    inputs = kernel.make_inputs(case(), Generator(14))
    wide = clone(inputs)
    for name in ("x", "dt", "z", "B", "C"):
        rows, columns = wide[name].shape
        wide[name] = torch.full((rows, columns + 5), float("nan")).index_copy(1, torch.arange(columns), wide[name])[:, :columns]
    apart = torch.full((2, 12 * 16 + 7), float("nan")).index_copy(1, torch.arange(12 * 16), wide["state"].flatten(1))
    wide["state"] = apart[:, : 12 * 16].unflatten(1, (12, 16))
    (y, state), (wide_y, wide_state) = step(inputs), step(wide)
    assert same_bits(y, wide_y)
    assert same_bits(state, wide_state)
    assert apart[:, 12 * 16 :].isnan().all()


def test_slot_and_row_may_start_past_two_to_the_31_elements(kernel: Kernel) -> None:
    # The pages in between are never touched, so they take no memory. A 32-bit product of index and stride would fault.
    inputs = kernel.make_inputs(case("fp16", state="fp16", B=4), Generator(15))
    far, stride = clone(inputs), 2**30 + 64
    for name in ("x", "state"):
        tensor = far[name]
        buffer = torch.empty((len(tensor) - 1) * stride + tensor[0].numel(), dtype=torch.float16)
        far[name] = buffer.as_strided(tensor.shape, (stride, *tensor.stride()[1:])).copy_(tensor)
    step = step_of(kernel, "inplace")
    (y, state), (far_y, far_state) = step(inputs), step(far)
    assert same_bits(y, far_y)
    assert same_bits(state, far_state)


def test_nothing_is_launched_for_no_rows(kernel: Kernel, module: ModuleType, step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_selective_scan_decode", None)
    inputs = kernel.make_inputs(case(), Generator(16))
    none = {name: inputs[name][:0] for name in ("x", "dt", "B", "C", "z", "state_indices")}
    y, _ = step({**inputs, **none})
    assert (0, 12) == y.shape


# Storage


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_state_is_rounded_to_nearest_once(kernel: Kernel, step: Step, dtype: str) -> None:
    inputs = kernel.make_inputs(case(state=dtype), Generator(17))
    exact = {**clone(inputs), "state": inputs["state"].float()}
    (y, state), (exact_y, exact_state) = step(inputs), step(exact)
    assert same_bits(exact_y, y)
    assert same_bits(exact_state.to(torch_dtype(dtype)), state)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fp16_state_overflows_to_infinity_after_its_output_and_a_decay_of_zero_makes_that_nan(kernel: Kernel, step: Step) -> None:
    inputs = kernel.make_inputs(case(state="fp16"), Generator(18))
    inputs["x"].fill_(1e8)
    expected = kernel.reference(**clone(inputs))
    y, state = step(inputs)
    assert rel_l2(y, expected["y"]) <= 1e-6
    assert torch.equal(expected["state"].abs() >= 65520, state.isinf())
    assert state.isinf().any()
    assert not state.isnan().any()

    inputs["x"].fill_(1.0)
    _, kept = step({**inputs, "state": state.clone()})
    assert torch.equal(state.isinf(), kept.isinf())
    inputs["dt"].fill_(1e4)
    _, forgotten = step({**inputs, "state": state.clone()})
    assert torch.equal(state.isinf(), forgotten.isnan())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_other_states_hold_what_fp16_cannot(kernel: Kernel, step: Step, dtype: str) -> None:
    inputs = kernel.make_inputs(case(state=dtype), Generator(18))
    inputs["x"].fill_(1e8)
    _, state = step(inputs)
    assert state.isfinite().all()
    assert state.abs().max() > 65520


def storage_error(kernel: Kernel, one: Case) -> float:
    """The worst relative L2 error, at the checkpoints, of the reference whose state is rounded for storage at every step."""
    drift = drift_of(kernel)
    generator = Generator(19)
    inputs = kernel.make_inputs(one, generator)
    dtype = inputs["state"].dtype
    exact = stored = inputs["state"].double()
    worst = 0.0
    for step in range(1, drift.steps + 1):
        if step > 1:
            inputs.update(drift.step_inputs(one, generator))
        exact = kernel.reference(**{**inputs, "state": exact})["state"]
        stored = kernel.reference(**{**inputs, "state": stored})["state"].to(dtype).double()
        if step in drift.checkpoints:
            worst = max(worst, rel_l2(stored, exact))
    return worst


def test_drift_allows_three_times_what_storage_alone_gives(kernel: Kernel) -> None:
    errors = {dtype: storage_error(kernel, case(B=1, D=16, state=dtype)) for dtype in ("fp32", "bf16")}
    limits = {dtype: tolerance.rel_l2 for dtype, tolerance in drift_of(kernel).tolerance.items()}
    assert 3 * errors["bf16"] <= limits["bf16"] <= 6 * errors["bf16"]
    assert 3 * errors["fp32"] <= limits["fp32"]


# Refusals

REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "one axis of x": ({"x": torch.zeros(8)}, r"x has shape \(8,\)"),
    "two axes of state": ({"state": torch.zeros(2, 8)}, r"state \(2, 8\)"),
    "dtype of x": ({"x": torch.zeros(2, 8).double()}, r"x has .*float64"),
    "dtype of dt": ({"dt": torch.zeros(2, 8).half()}, r"dt has .*float16.*give \(2, 8\) of torch.float32"),
    "shape of B": ({"B": torch.zeros(2, 3)}, r"B has shape \(2, 3\).*give \(2, 4\)"),
    "dtype of C": ({"C": torch.zeros(2, 4).bfloat16()}, "C has .*bfloat16"),
    "shape of A": ({"A": torch.zeros(4, 8)}, r"A has shape \(4, 8\).*give \(8, 4\)"),
    "dtype of A": ({"A": torch.zeros(8, 4).bfloat16()}, "A has .*bfloat16.*float32"),
    "rows of A that lie apart": ({"A": torch.zeros(8, 5)[:, :4]}, r"A has strides \(5, 1\).*contiguous"),
    "shape of D": ({"D": torch.zeros(4)}, r"D has shape \(4,\).*give \(8,\)"),
    "dtype of dt_bias": ({"dt_bias": torch.zeros(8).half()}, "dt_bias has .*float16.*float32"),
    "shape of z": ({"z": torch.zeros(1, 8)}, r"z has shape \(1, 8\)"),
    "channels of state": ({"state": torch.zeros(2, 7, 4)}, r"state has shape \(2, 7, 4\).*give \(2, 8, 4\)"),
    "dtype of state": ({"state": torch.zeros(2, 8, 4).double()}, "state has .*float64"),
    "dtype of state_indices": ({"state_indices": torch.tensor([0, 1])}, "state_indices has .*int64.*int32"),
    "length of state_indices": ({"state_indices": torch.tensor([0], dtype=torch.int32)}, r"state_indices has shape \(1,\)"),
    "column stride of x": ({"x": torch.zeros(2, 16)[:, ::2]}, r"x has strides \(16, 2\).*contiguous"),
    "column stride of B": ({"B": torch.zeros(4, 2).T}, r"B has strides \(1, 2\)"),
    "column stride of state": ({"state": torch.zeros(2, 4, 8).mT}, "state has strides"),
    "rows of the state that lie apart": ({"state": torch.zeros(2, 8, 5)[:, :, :4]}, "each slot must be contiguous"),
    "slots that overlap": ({"state": torch.zeros(1, 8, 4).expand(2, 8, 4)}, "each slot must be contiguous"),
    "another device": ({"A": torch.zeros(8, 4, device="meta")}, "A is on meta: move it to cpu"),
    "no state": ({"state": torch.zeros(2, 8, 0)}, "d_inner and N must be 1 or more"),
    "N over the registers of a warp": ({"state": torch.zeros(2, 8, 2048)}, "N=2048"),
}


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refuses(kernel: Kernel, step: Step, change: dict[str, Any], message: str) -> None:
    given = {
        **{name: torch.zeros(2, 8) for name in ("x", "dt", "z")},
        **{name: torch.zeros(2, 4) for name in ("B", "C")},
        **{name: torch.zeros(8) for name in ("D", "dt_bias")},
        "A": torch.zeros(8, 4),
        "state": torch.zeros(2, 8, 4),
        "state_indices": torch.tensor([0, 1], dtype=torch.int32),
        "softplus": False,
    }
    with pytest.raises(ValueError, match=f"selective_scan_decode: .*{message}"):
        step({**given, **change})
    step(given)


@pytest.mark.parametrize(
    "out", [torch.zeros(2, 8, 3), torch.zeros(2, 8, 4).bfloat16(), torch.zeros(2, 8, 5)[:, :, :4]], ids=["shape", "dtype", "strides"]
)
def test_refuses_an_out_state_that_is_not_like_the_state(kernel: Kernel, module: ModuleType, out: torch.Tensor) -> None:
    inputs = kernel.make_inputs(case(D=8, N=4), Generator(20))
    with pytest.raises(ValueError, match="selective_scan_decode: out_state has"):
        module.selective_scan_decode(**inputs, out_state=out)


# Cost model


def test_traffic_is_the_sum_of_the_tensors(kernel: Kernel) -> None:
    for one in kernel.cases:
        inputs = kernel.make_inputs(one, Generator(0, "meta"))
        size = {name: value.numel() * value.element_size() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        found = kernel.traffic(one)  # y is as large as x
        written = size["state"] + size["x"]
        assert (sum(size.values()), written) == (found.read_bytes, found.written_bytes), one.key


def test_published_bytes_count_shared_operands_for_every_row(kernel: Kernel) -> None:
    one = kernel.case("B=1024,D=4096,N=16,dtype=fp32")
    assert 1024 * 4096 * (20 * 16 + 24) == kernel.other_traffic["published"](one)
    assert 2 < kernel.other_traffic["published"](one) / kernel.traffic(one).total < 2.5


def test_flops_are_seven_for_each_value_of_the_state(kernel: Kernel) -> None:
    assert 7 * 8 * 1536 * 16 == kernel.flops(kernel.case("B=8,D=1536,N=16,dtype=fp32"))


# Launch plan


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_tile_holds_four_to_sixteen_values_of_a_row_a_lane(module: ModuleType, kernel: Kernel, gpu: DeviceProperties) -> None:
    for one in kernel.cases:
        if "model" in one.tags:
            with pretend(gpu):
                rows, d = module.plan_tile(one.B, one.D, one.N)
            assert 4 * gpu.warp_size <= d * one.N <= 16 * gpu.warp_size, one.key
            assert one.B % rows == 0, one.key


PLANS = {
    "a lone row spreads over the multiprocessors": ((1, 1536, 16), {"small": (1, 32), "large": (1, 8), "wave64": (1, 16)}),
    "a large batch shares A": ((1024, 4096, 16), {"small": (2, 32), "large": (2, 32), "wave64": (2, 64)}),
    "an odd batch does not": ((1023, 4096, 16), {"small": (1, 32), "large": (1, 32), "wave64": (1, 64)}),
    "a wide state has fewer channels a tile": ((256, 4096, 64), {"small": (2, 8), "large": (2, 8), "wave64": (2, 16)}),
    "one channel at least": ((256, 4, 1024), {"small": (1, 1), "large": (1, 1), "wave64": (1, 1)}),
}


@pytest.mark.parametrize(("shape", "expected"), PLANS.values(), ids=PLANS)
def test_plan(module: ModuleType, shape: tuple[int, int, int], expected: dict[str, tuple[int, int]]) -> None:
    found = {}
    for name, gpu in GPUS.items():
        with pretend(gpu):
            found[name] = module.plan_tile(*shape)
    assert expected == found


@pytest.mark.parametrize("device", load_devices().values(), ids=load_devices())
def test_every_shape_has_a_tile_on_every_device(module: ModuleType, device: Device) -> None:
    lanes = max(device.properties.warp_size, 32)
    with pretend(device.properties):
        for batch, d_inner, BN in itertools.product((1, 2, 4, 1024), (1, 3, 16, 4096), (1 << n for n in range(11))):
            rows, d = module.plan_tile(batch, d_inner, BN)
            assert batch % rows == 0
            assert d == 1 or d * BN <= module.LANE_VALUES * lanes
            assert d >= 1


@pytest.mark.parametrize("N", [256, 1000, 1024])
def test_wide_state_of_few_channels(kernel: Kernel, step: Step, N: int) -> None:
    inputs = kernel.make_inputs(case(B=1, D=3, N=N), Generator(27))
    expected = kernel.reference(**clone(inputs))
    y, state = step(inputs)
    tolerance = kernel.tolerance_of(case())
    assert rel_l2(y, expected["y"]) <= tolerance.limit("y")
    assert rel_l2(state, expected["state"]) <= tolerance.limit("state")


# The cases

SHAPES = {(1, 1536, 16), (4, 1536, 16), (8, 1536, 16), (1, 3072, 16), (1, 1536, 64), (256, 1536, 16), (256, 4096, 16), (1024, 4096, 16)}


def test_peers_are_eight_shapes_in_fp32_and_in_bf16_with_a_bf16_state(kernel: Kernel) -> None:
    peers = [c for c in kernel.cases if "peers" in c.tags]
    assert 16 == len(peers)
    for dtype in ("fp32", "bf16"):
        assert {(c.B, c.D, c.N) for c in peers if dtype == c.dtype == c.state} == SHAPES


def test_three_headlines_and_one_smoke(kernel: Kernel) -> None:
    assert [(1, 1536), (256, 1536), (1024, 4096)] == [(c.B, c.D) for c in kernel.cases if "headline" in c.tags]
    assert 1 == sum("smoke" in c.tags for c in kernel.cases)


def test_cases_hold_every_shape_of_the_catalogue_in_every_dtype(kernel: Kernel) -> None:
    shapes = {(c.B, c.D, c.N, c.dtype) for c in kernel.cases if c.state == "fp32"}
    assert {(*shape, dtype) for shape in SHAPES for dtype in ("fp32", "fp16", "bf16")} <= shapes
    assert (1, 1536, 24, "fp32") in shapes


def test_cpu_cases_cover_every_option_and_are_small_enough(kernel: Kernel, module: ModuleType) -> None:
    cpu = [c for c in kernel.cases if "cpu" in c.tags]
    flags = ("D_term", "z", "dt_bias", "softplus")
    assert 16 == len({tuple(c.axes[flag] for flag in flags) for c in cpu})
    for dtype in ("fp32", "fp16", "bf16"):
        of_dtype = [c for c in cpu if c.dtype == dtype]
        assert {"fp32", "bf16"} <= {c.state for c in of_dtype}
        assert {0, 1} == {c.strided for c in of_dtype}
        assert any("ragged" in c.tags for c in of_dtype)
    assert {"fp32", "fp16"} == {c.dtype for c in cpu if c.state == "fp16"}
    shared = 0
    for c in cpu:
        rows, d = module.plan_tile(c.B, c.D, 1 << (c.N - 1).bit_length())
        shared += rows > 1
        assert c.B // rows * -(-c.D // d) <= (1 if "drift" in c.tags else 200), c.key
    assert shared >= 1


def test_drift_cases_cover_both_states_on_cpu_and_at_model_size(kernel: Kernel) -> None:
    found = sorted((c.state, "model" in c.tags) for c in kernel.cases if "drift" in c.tags)
    assert [("bf16", False), ("bf16", True), ("fp32", False), ("fp32", True)] == found


@pytest.mark.parametrize("options", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=["plain", "softplus", "bias", "bias and softplus"])
def test_decay_of_the_inputs_is_below_one_and_reaches_near_it(kernel: Kernel, options: tuple[int, int]) -> None:
    inputs = kernel.make_inputs(case("bf16", B=8, D=512, dt_bias=options[0], softplus=options[1]), Generator(21))
    dt = inputs["dt"].double() + (inputs["dt_bias"].double() if options[0] else 0)
    dt = torch.nn.functional.softplus(dt) if options[1] else dt
    decay = torch.exp(dt[:, :, None] * inputs["A"].double())
    assert 0.1 < decay.min()
    assert 0.99 < decay.max() < 1


def test_state_of_the_inputs_is_as_large_as_the_recurrence_keeps_it(kernel: Kernel) -> None:
    tokens = tokens_of(kernel, case(B=4, D=64), steps=300, seed=22)
    state = tokens[0]["state"]
    for token in tokens:
        state = kernel.reference(**{**token, "state": state})["state"]
    assert 0.2 < float(state.norm() / tokens[0]["state"].norm()) < 5


def test_meta_inputs_have_the_shapes_strides_and_dtypes_of_real_ones(kernel: Kernel) -> None:
    for one in kernel.cases:
        if "cpu" in one.tags:
            real, meta = (kernel.make_inputs(one, Generator(0, device)) for device in ("cpu", "meta"))
            assert list(real) == list(meta)
            for name, value in real.items():
                if isinstance(value, torch.Tensor):
                    found = meta[name]
                    assert (value.shape, value.stride(), value.dtype) == (found.shape, found.stride(), found.dtype), (one.key, name)
