from __future__ import annotations

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
from harness.measure.data import Generator, torch_dtype

KERNEL_NAME = "gdn_decode"
VARIANTS = ("fused", "torch")

Call = Callable[..., torch.Tensor]


@pytest.fixture(params=VARIANTS)
def call(kernel: Kernel, request: pytest.FixtureRequest) -> Call:
    """A variant's launcher: what holds for one holds for the other."""
    return kernel.variant(request.param).call


def case(dtype: str = "fp32", **axes: Any) -> Case:
    full = {"B": 2, "H": 1, "HV": 2, "K": 16, "V": 16, "state": "fp32", "l2norm": 1, "pad": 0, "strided": 0, **axes}
    return Case(dtype=dtype, **full)


# Right on every case


def test_result_is_within_tolerance_of_the_reference(kernel: Kernel, cpu_cell: tuple[str, Case]) -> None:
    variant_name, case = cpu_cell
    inputs = kernel.make_inputs(case, Generator(2))
    expected = kernel.reference(**inputs)
    out = kernel.variant(variant_name).call(**inputs)
    tolerance = kernel.tolerance_of(case)
    assert expected["out"].shape == out.shape == (case.B, 1, case.HV, case.V)
    assert torch_dtype(case.dtype) == out.dtype
    if case.pad < case.B:
        assert rel_l2(out, expected["out"]) <= tolerance.limit("out")
    assert rel_l2(inputs["state"], expected["state"]) <= tolerance.limit("state")


def test_only_live_slots_change_and_padded_rows_are_zero(kernel: Kernel, cpu_cell: tuple[str, Case]) -> None:
    variant_name, case = cpu_cell
    inputs = kernel.make_inputs(case, Generator(3))
    indices = inputs["state_indices"]
    live = sorted(indices[indices >= 0].tolist())
    assert case.B - case.pad == len(live) == len(set(live))
    before = clone(inputs)
    kernel.reference(**inputs)
    assert all(same_bits(before[name], value) for name, value in inputs.items() if isinstance(value, torch.Tensor))

    out = kernel.variant(variant_name).call(**inputs)
    assert all(same_bits(before[name], value) for name, value in inputs.items() if isinstance(value, torch.Tensor) and name != "state")
    changed = [slot for slot in range(case.B + 1) if not same_bits(before["state"][slot], inputs["state"][slot])]
    assert live == changed
    assert same_bits(torch.zeros_like(out)[indices < 0], out[indices < 0])


# The recurrence


def naive_recurrence(tokens: list[dict[str, Any]], H: int, state: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Every token, row and head in turn, in fp64, from the published recurrence: outputs (T, B, HV, V) and the last state by row."""
    indices = tokens[0]["state_indices"].tolist()
    _, HV, V, K = state.shape
    S = state.double().numpy()[indices]
    out = np.zeros((len(tokens), len(indices), HV, V))
    for t, token in enumerate(tokens):
        packed, a, b, A_log, dt_bias = (token[name].double().numpy() for name in ("mixed_qkv", "a", "b", "A_log", "dt_bias"))
        for row in range(len(indices)):
            for hv in range(HV):
                h = hv // (HV // H)
                q = packed[row, h * K : (h + 1) * K]
                k = packed[row, (H + h) * K : (H + h + 1) * K]
                v = packed[row, 2 * H * K + hv * V : 2 * H * K + (hv + 1) * V]
                q, k = q / np.sqrt(q @ q + 1e-6) / np.sqrt(K), k / np.sqrt(k @ k + 1e-6)
                alpha = np.exp(-np.exp(A_log[hv]) * np.log1p(np.exp(a[row, hv] + dt_bias[hv])))
                beta = 1 / (1 + np.exp(-b[row, hv]))
                S[row, hv] = alpha * S[row, hv] @ (np.eye(K) - beta * np.outer(k, k)) + beta * np.outer(v, k)
                out[t, row, hv] = S[row, hv] @ q
    return out, S


@pytest.mark.parametrize(
    ("heads", "keys", "values"),
    [((1, 2), 16, 16), ((2, 6), 16, 12), ((1, 2), 24, 16)],
    ids=["two value heads a key head", "three, ragged values", "ragged keys"],
)
def test_steps_equal_the_naive_recurrence_over_all_tokens(
    kernel: Kernel, call: Call, heads: tuple[int, int], keys: int, values: int
) -> None:
    one = case(H=heads[0], HV=heads[1], K=keys, V=values, B=2)
    generator, steps = Generator(4), 8
    inputs = kernel.make_inputs(one, generator)
    tokens = [inputs, *({**inputs, **drift_of(kernel).step_inputs(one, generator)} for _ in range(steps - 1))]
    expected_out, expected_state = naive_recurrence(tokens, heads[0], inputs["state"])
    out = torch.stack([call(**token)[:, 0] for token in tokens])
    assert rel_l2(out, torch.from_numpy(expected_out)) <= 1e-6
    assert rel_l2(inputs["state"][inputs["state_indices"]], torch.from_numpy(expected_state)) <= 1e-6


def test_reference_is_the_naive_recurrence_and_takes_its_own_state(kernel: Kernel) -> None:
    one = case(H=2, HV=4, state="bf16")
    generator = Generator(5)
    inputs = kernel.make_inputs(one, generator)
    tokens = [inputs, {**inputs, **drift_of(kernel).step_inputs(one, generator)}]
    expected_out, expected_state = naive_recurrence(tokens, 2, inputs["state"])
    first = kernel.reference(**tokens[0])
    kept = first["state"].clone()
    second = kernel.reference(**{**tokens[1], "state": first["state"]})
    assert same_bits(kept, first["state"])
    assert torch.float64 == second["state"].dtype == second["out"].dtype
    assert rel_l2(second["out"][:, 0], torch.from_numpy(expected_out[1])) <= 1e-14
    assert rel_l2(second["state"][inputs["state_indices"]], torch.from_numpy(expected_state)) <= 1e-14


def test_variants_agree(kernel: Kernel) -> None:
    inputs = kernel.make_inputs(case(H=2, HV=6, V=40, pad=1, B=3), Generator(6))
    fused, by_torch = clone(inputs), clone(inputs)
    out = kernel.variant("fused").call(**fused)
    assert rel_l2(out, kernel.variant("torch").call(**by_torch)) <= 1e-6
    assert rel_l2(fused["state"], by_torch["state"]) <= 1e-6


def test_scale_multiplies_the_output_alone(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(), Generator(7))
    plain, doubled = clone(inputs), clone(inputs)
    out = call(**plain)
    assert torch.allclose(2 * out, call(**doubled, scale=2 * 16**-0.5), rtol=1e-6)
    assert same_bits(plain["state"], doubled["state"])


def test_keys_and_queries_are_normalised_on_request_alone(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(), Generator(8))
    normalised = clone(inputs)
    qk = normalised["mixed_qkv"][:, :32].unflatten(1, (2, 16))
    qk /= torch.sqrt((qk * qk).sum(-1, keepdim=True) + 1e-6)
    expected, actual = call(**inputs), call(**{**normalised, "l2norm": False})
    assert rel_l2(actual, expected) <= 1e-6
    assert rel_l2(normalised["state"], inputs["state"]) <= 1e-6


# Gates at their ends


def test_decay_of_zero_forgets_the_state(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(), Generator(9))
    inputs["A_log"].fill_(5.0)
    inputs["a"].fill_(30.0)  # over 20, where softplus is the identity
    other = clone(inputs)
    other["state"].uniform_(-3, 3)
    assert same_bits(call(**inputs), call(**other))
    assert same_bits(inputs["state"][inputs["state_indices"]], other["state"][inputs["state_indices"]])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
def test_decay_of_one_and_beta_of_zero_leave_the_state(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(), Generator(10))
    inputs["dt_bias"].fill_(-60.0)
    inputs["b"].fill_(-200.0)
    before = inputs["state"].clone()
    call(**inputs)
    assert torch.equal(before, inputs["state"])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
def test_small_steps_keep_their_digits(call: Call) -> None:
    """S' is the decay itself where k and v are zero and S is one; A_log makes every decay about exp(-1)."""
    a = torch.tensor([-40.0, -20.0, -15.0, -9.0, -7.0, -3.0, 0.0, 3.0, 19.9, 20.1, 90.0])
    steps = [x if x > 20 else math.log1p(math.exp(x)) for x in a.tolist()]
    A_log = -torch.tensor(steps, dtype=torch.float64).log().float()
    n = len(steps)
    state = torch.ones(1, n, 1, 1)
    call(torch.zeros(1, 2 + n), a[None], torch.zeros(1, n), A_log, torch.zeros(n), state, torch.zeros(1, dtype=torch.int32))
    expected = [math.exp(-math.exp(log) * step) for log, step in zip(A_log.tolist(), steps, strict=True)]
    assert expected == pytest.approx(state.flatten().tolist(), rel=5e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["a", "A_log", "dt_bias"])
def test_log_gate_of_minus_infinity_forgets_the_state(kernel: Kernel, call: Call, name: str) -> None:
    inputs = kernel.make_inputs(case(), Generator(9))
    inputs[name].fill_(float("inf"))
    other = clone(inputs)
    other["state"].uniform_(-3, 3)
    out = call(**inputs)
    assert out.isfinite().all()
    assert same_bits(out, call(**other))
    assert same_bits(inputs["state"][inputs["state_indices"]], other["state"][inputs["state_indices"]])


# NaN and infinity


@pytest.mark.parametrize(
    ("name", "place", "rows"), [("a", (1, 0), [1]), ("b", (1, 0), [1]), ("A_log", (0,), [0, 1]), ("dt_bias", (0,), [0, 1])]
)
def test_nan_in_a_gate_takes_its_value_head(kernel: Kernel, call: Call, name: str, place: tuple[int, ...], rows: list[int]) -> None:
    inputs = kernel.make_inputs(case(), Generator(11))
    inputs[name][place] = float("nan")
    out = call(**inputs)
    hit = torch.zeros(2, 2, dtype=torch.bool)
    hit[rows, 0] = True
    assert torch.equal(hit[:, None, :, None].expand(2, 1, 2, 16), out.isnan())
    assert torch.equal(hit[:, :, None, None].expand(2, 2, 16, 16), inputs["state"][inputs["state_indices"]].isnan())


ALL = slice(None)
HEADS = slice(2, 4)
"""The value heads that the second of two key heads serves."""

REACHED: dict[str, tuple[int | None, tuple[Any, ...], tuple[Any, ...] | None]] = {
    "q": (5 + 2, (HEADS, ALL), None),
    "k": (10 + 5 + 2, (HEADS, ALL), (HEADS, ALL, ALL)),
    "v": (20 + 3 * 3 + 1, (3, 1), (3, 1, ALL)),
    "state": (None, (3, 1), (3, 1, ALL)),
}
"""The column of mixed_qkv (none: a value of the state) that is not finite, and what it reaches of `out` and of the state."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("l2norm", [0, 1], ids=["as given", "normalised"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize(("column", "in_out", "in_state"), REACHED.values(), ids=REACHED)
def test_what_is_not_finite_reaches_what_depends_on_it_and_nothing_else(
    kernel: Kernel,
    call: Call,
    l2norm: int,
    value: float,
    column: int | None,
    in_out: tuple[Any, ...],
    in_state: tuple[Any, ...] | None,
) -> None:
    inputs = kernel.make_inputs(case(H=2, HV=4, K=5, V=3, l2norm=l2norm), Generator(21))
    slot = int(inputs["state_indices"][1])
    if column is None:
        inputs["state"][slot, 3, 1, 2] = value
    else:
        inputs["mixed_qkv"][1, column] = value
    out = call(**inputs)
    out_hit, state_hit = torch.zeros(2, 1, 4, 3, dtype=torch.bool), torch.zeros(3, 4, 3, 5, dtype=torch.bool)
    out_hit[(1, 0, *in_out)] = True
    if in_state:
        state_hit[(slot, *in_state)] = True
    assert torch.equal(out_hit, ~out.isfinite())
    assert torch.equal(state_hit, ~inputs["state"].isfinite())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_padding_of_k_makes_no_nan_of_an_infinite_query(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(K=5, V=3, l2norm=0), Generator(22))
    inputs["mixed_qkv"].abs_()
    inputs["mixed_qkv"][:, 1] = float("inf")
    inputs["mixed_qkv"][:, 10:] = 100.0  # every u is above zero
    inputs["state"].fill_(1.0)
    assert (call(**inputs) == float("inf")).all()


# Rows, slots, strides


def test_row_does_not_depend_on_the_rows_beside_it(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(B=3), Generator(12))
    together, alone = clone(inputs), clone(inputs)
    out = call(**together)
    one = {name: alone[name][1:2] for name in ("mixed_qkv", "a", "b", "state_indices")}
    assert rel_l2(call(**{**alone, **one}), out[1:2]) <= 1e-6
    slot = int(inputs["state_indices"][1])
    assert rel_l2(alone["state"][slot], together["state"][slot]) <= 1e-6


def test_padded_rows_may_hold_anything(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(B=4, pad=2), Generator(13))
    padded = inputs["state_indices"] < 0
    clean = clone(inputs)
    expected = call(**clean)
    for name in ("mixed_qkv", "a", "b"):
        inputs[name][padded] = float("nan")
    assert same_bits(expected, call(**inputs))
    assert same_bits(clean["state"], inputs["state"])


def test_strided_inputs_equal_contiguous_ones_and_the_padding_is_not_read(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(H=2, HV=4), Generator(14))
    wide = clone(inputs)
    for name in ("mixed_qkv", "a", "b"):
        rows, columns = wide[name].shape
        wide[name] = torch.full((rows, columns + 5), float("nan")).index_copy(1, torch.arange(columns), wide[name])[:, :columns]
    slots, values = wide["state"].shape[0], wide["state"][0].numel()
    apart = torch.full((slots, values + 7), float("nan")).index_copy(1, torch.arange(values), wide["state"].flatten(1))
    wide["state"] = apart[:, :values].unflatten(1, wide["state"].shape[1:])
    assert same_bits(call(**inputs), call(**wide))
    assert same_bits(inputs["state"], wide["state"])
    assert apart[:, values:].isnan().all()


def test_slot_and_row_may_start_past_two_to_the_31_elements(kernel: Kernel) -> None:
    # The pages in between are never touched, so they take no memory. A 32-bit product of index and stride would fault.
    inputs = kernel.make_inputs(case("fp16", state="fp16", B=4), Generator(15))
    far, stride = clone(inputs), 2**30 + 64
    for name in ("mixed_qkv", "state"):
        tensor = far[name]
        buffer = torch.empty((len(tensor) - 1) * stride + tensor[0].numel(), dtype=torch.float16)
        far[name] = buffer.as_strided(tensor.shape, (stride, *tensor.stride()[1:])).copy_(tensor)
    call = kernel.variant("fused").call
    assert same_bits(call(**inputs), call(**far))
    assert same_bits(inputs["state"], far["state"])


def test_no_rows_give_no_rows(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(), Generator(16))
    before = inputs["state"].clone()
    none = {name: inputs[name][:0] for name in ("mixed_qkv", "a", "b", "state_indices")}
    assert (0, 1, 2, 16) == call(**{**inputs, **none}).shape
    assert same_bits(before, inputs["state"])


def test_rows_without_slots_are_padded_ones(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(pad=2), Generator(16))
    assert same_bits(torch.zeros(2, 1, 2, 16), call(**{**inputs, "state": inputs["state"][:0]}))


# Storage


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_state_is_rounded_to_nearest_once(kernel: Kernel, call: Call, dtype: str) -> None:
    inputs = kernel.make_inputs(case(state=dtype), Generator(17))
    exact = {**clone(inputs), "state": inputs["state"].float()}
    assert same_bits(call(**exact), call(**inputs))
    assert same_bits(exact["state"].to(torch_dtype(dtype)), inputs["state"])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
def test_fp16_state_overflows_as_ieee_does(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(state="fp16"), Generator(18))
    inputs["mixed_qkv"][:, 32:] = 1e6
    call(**inputs)
    assert inputs["state"][inputs["state_indices"]].isinf().any()


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
    errors = {dtype: storage_error(kernel, case(B=1, H=8, HV=16, K=32, V=32, state=dtype)) for dtype in ("fp32", "bf16")}
    limits = {dtype: tolerance.rel_l2 for dtype, tolerance in drift_of(kernel).tolerance.items()}
    assert 3 * errors["bf16"] <= limits["bf16"] <= 6 * errors["bf16"]
    assert 3 * errors["fp32"] <= limits["fp32"]


# Refusals


def wide(rows: int, columns: int) -> torch.Tensor:
    return torch.zeros(rows, 2 * columns)[:, ::2]


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "value heads no multiple of key heads": ({"mixed_qkv": torch.zeros(2, 2 * 4 * 8 + 6 * 8)}, r"HV=6 is no multiple of H=4"),
    "width that fits no H": ({"mixed_qkv": torch.zeros(2, 2 * 2 * 8 + 6 * 8 + 1)}, "mixed_qkv has 81 columns"),
    "no key heads": ({"mixed_qkv": torch.zeros(2, 6 * 8)}, "mixed_qkv has 48 columns"),
    "one axis of mixed_qkv": ({"mixed_qkv": torch.zeros(80)}, r"mixed_qkv has shape \(80,\)"),
    "three axes of state": ({"state": torch.zeros(6, 8, 8)}, r"state \(6, 8, 8\)"),
    "dtype of mixed_qkv": ({"mixed_qkv": torch.zeros(2, 80).double()}, r"mixed_qkv has .*float64"),
    "dtype of a": ({"a": torch.zeros(2, 6).half()}, r"a has .*float16.*give \(2, 6\) of torch.float32"),
    "shape of b": ({"b": torch.zeros(2, 5)}, r"b has shape \(2, 5\).*give \(2, 6\)"),
    "dtype of A_log": ({"A_log": torch.zeros(6).bfloat16()}, r"A_log has .*bfloat16.*float32"),
    "shape of dt_bias": ({"dt_bias": torch.zeros(2)}, r"dt_bias has shape \(2,\).*give \(6,\)"),
    "dtype of state": ({"state": torch.zeros(3, 6, 8, 8).double()}, r"state has .*float64"),
    "dtype of state_indices": ({"state_indices": torch.tensor([0, 1])}, r"state_indices has .*int64.*int32"),
    "length of state_indices": ({"state_indices": torch.tensor([0], dtype=torch.int32)}, r"state_indices has shape \(1,\)"),
    "column stride of mixed_qkv": ({"mixed_qkv": wide(2, 80)}, r"mixed_qkv has strides \(160, 2\).*contiguous"),
    "column stride of a": ({"a": wide(2, 6)}, r"a has strides \(12, 2\)"),
    "column stride of state": ({"state": torch.zeros(3, 6, 8, 16)[..., ::2]}, "state has strides"),
    "state transposed to (K, V)": ({"state": torch.zeros(3, 6, 8, 8).mT}, r"state has strides \(384, 64, 1, 8\)"),
    "heads of the state that lie apart": (
        {"state": torch.zeros(3, 6, 64 + 8)[:, :, :64].unflatten(2, (8, 8))},
        "each slot must be contiguous",
    ),
    "value rows that lie apart": ({"state": torch.zeros(3, 6, 9, 8)[:, :, :8]}, "each slot must be contiguous"),
    "slots that overlap": ({"state": torch.zeros(1, 6, 8, 8).expand(3, 6, 8, 8)}, "each slot must be contiguous"),
    "another device": ({"A_log": torch.zeros(6, device="meta")}, "A_log is on meta, state on cpu"),
    "no keys": ({"mixed_qkv": torch.zeros(2, 6 * 8), "state": torch.zeros(3, 6, 8, 0)}, r"state .*\(3, 6, 8, 0\), so K=0: .*1 to 1024"),
    "K over the registers of a warp": ({"mixed_qkv": torch.zeros(2, 2 * 2048 + 6), "state": torch.zeros(3, 6, 1, 2048)}, "K=2048"),
}


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refuses(call: Call, change: dict[str, Any], message: str) -> None:
    given = {
        "mixed_qkv": torch.zeros(2, 2 * 2 * 8 + 6 * 8),
        "a": torch.zeros(2, 6),
        "b": torch.zeros(2, 6),
        "A_log": torch.zeros(6),
        "dt_bias": torch.zeros(6),
        "state": torch.zeros(3, 6, 8, 8),
        "state_indices": torch.tensor([0, 1], dtype=torch.int32),
    }
    call(**given)
    with pytest.raises(ValueError, match=f"gdn_decode: .*{message}"):
        call(**{**given, **change})


# Cost model


def test_traffic_is_the_sum_of_what_live_rows_touch(kernel: Kernel) -> None:
    for one in kernel.cases:
        inputs = kernel.make_inputs(one, Generator(0, "meta"))
        out = kernel.variant("torch").call(**inputs)
        size = {name: value.numel() * value.element_size() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        live = one.B - one.pad
        state = size["state"] // (one.B + 1) * live
        rows = sum(size[name] for name in ("mixed_qkv", "a", "b")) // one.B * live
        read = rows + state + sum(size[name] for name in ("A_log", "dt_bias", "state_indices"))
        found = kernel.traffic(one)
        assert (read, state + out.numel() * out.element_size()) == (found.read_bytes, found.written_bytes), one.key


def test_flops_count_live_rows(kernel: Kernel) -> None:
    expected = {
        "B=1,H=16,HV=32,K=128,V=128,dtype=bf16": 7 * 32 * 128 * 128,
        "B=4,H=2,HV=4,K=32,V=32,pad=2,dtype=bf16": 7 * 2 * 4 * 32 * 32,
    }
    assert expected == {key: kernel.flops(kernel.case(key)) for key in expected}


# Launch plan


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_tile_gives_each_lane_one_to_eight_vectors(module: ModuleType, kernel: Kernel, gpu: DeviceProperties) -> None:
    for one in kernel.cases:
        if "model" in one.tags:
            item = torch_dtype(one.state).itemsize
            with pretend(gpu):
                tile = module.value_tile(one.B * one.HV, one.V, one.K, item)
            assert 16 * gpu.warp_size <= tile * one.K * item <= 128 * gpu.warp_size, one.key


TILES = {
    "a lone row leaves no multiprocessor idle": ((32, 128, 128, 4), {"small": 8, "large": 8, "wave64": 4}),
    "few heads get the smallest tiles": ((2, 128, 128, 4), {"small": 4, "large": 1, "wave64": 2}),
    "many rows take all that a warp holds": ((8192, 128, 128, 4), {"small": 8, "large": 8, "wave64": 16}),
    "a bf16 state has twice as many rows a tile": ((8192, 128, 128, 2), {"small": 16, "large": 16, "wave64": 32}),
    "no more than the values there are": ((8192, 3, 16, 4), {"small": 4, "large": 4, "wave64": 4}),
    "one row at least": ((8192, 8, 1024, 4), {"small": 1, "large": 1, "wave64": 2}),
}


@pytest.mark.parametrize(("arguments", "expected"), TILES.values(), ids=TILES)
def test_tile(module: ModuleType, arguments: tuple[int, int, int, int], expected: dict[str, int]) -> None:
    found = {}
    for name, gpu in GPUS.items():
        with pretend(gpu):
            found[name] = module.value_tile(*arguments)
    assert expected == found


# The cases


def test_peers_are_the_four_batches_of_32_value_heads(kernel: Kernel) -> None:
    peers = [(c.B, c.H, c.HV, c.K, c.V, c.state, c.dtype) for c in kernel.cases if "peers" in c.tags]
    assert [(b, 16, 32, 128, 128, "fp32", "bf16") for b in (1, 16, 64, 256)] == peers


def test_headline_is_four_cases(kernel: Kernel) -> None:
    assert 4 == sum("headline" in c.tags for c in kernel.cases)


def test_cases_hold_every_shape_of_the_catalogue(kernel: Kernel) -> None:
    shapes = {(c.B, c.HV, c.dtype) for c in kernel.cases if (c.H, c.K, c.V, c.state) == (16, 128, 128, "fp32")}
    assert {(b, hv, dtype) for b in (1, 16, 64, 256) for hv in (32, 48) for dtype in ("fp32", "fp16", "bf16")} <= shapes


def test_cpu_cases_cover_every_option_and_are_small_enough(kernel: Kernel, module: ModuleType) -> None:
    cpu = [c for c in kernel.cases if "cpu" in c.tags]
    for dtype in ("fp32", "fp16", "bf16"):
        of_dtype = [c for c in cpu if c.dtype == dtype]
        assert {"fp32", "bf16"} == {c.state for c in of_dtype}
        assert any("ragged" in c.tags for c in of_dtype)
        assert {0, 1} == {c.strided for c in of_dtype}
    assert {0, 1} == {c.l2norm for c in cpu}
    assert any(0 < c.pad < c.B for c in cpu)
    assert any(c.pad == c.B for c in cpu)
    assert {1, 2, 3} == {c.HV // c.H for c in cpu}
    for c in cpu:
        tile = module.value_tile(c.B * c.HV, c.V, 1 << (c.K - 1).bit_length(), torch_dtype(c.state).itemsize)
        programs = c.B * c.HV * -(-c.V // tile)
        assert programs <= (1 if "drift" in c.tags else 200), c.key


def test_drift_cases_cover_both_states_on_cpu_and_at_model_size(kernel: Kernel) -> None:
    found = sorted((c.state, "model" in c.tags) for c in kernel.cases if "drift" in c.tags)
    assert [("bf16", False), ("bf16", True), ("fp32", False), ("fp32", True)] == found


def test_decay_of_the_inputs_is_below_one_and_reaches_near_it(kernel: Kernel) -> None:
    inputs = kernel.make_inputs(kernel.case("B=16,H=16,HV=48,K=128,V=128,pad=5,dtype=bf16"), Generator(20))
    step = torch.nn.functional.softplus(inputs["a"].double() + inputs["dt_bias"].double())
    decay = torch.exp(-inputs["A_log"].double().exp() * step)
    assert decay.max() < 1
    assert decay.max() > 0.999
    assert decay.median() > 0.8


def test_meta_inputs_have_the_shapes_strides_and_dtypes_of_real_ones(kernel: Kernel) -> None:
    for one in kernel.cases:
        if "cpu" in one.tags:
            real, meta = (kernel.make_inputs(one, Generator(0, device)) for device in ("cpu", "meta"))
            assert list(real) == list(meta)
            for name, value in real.items():
                if isinstance(value, torch.Tensor):
                    found = meta[name]
                    assert (value.shape, value.stride(), value.dtype) == (found.shape, found.stride(), found.dtype), (one.key, name)
