from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from kernel_testing import GPUS, drift_of, rel_l2, same_bits

from harness import Case, DeviceProperties, Kernel
from harness.devices.properties import pretend
from harness.measure.data import Generator, torch_dtype

KERNEL_NAME = "deltanet_recurrent"
VARIANTS = ("rowwise", "tiled", "multihead", "torch")

Call = Callable[..., torch.Tensor]


@pytest.fixture(params=VARIANTS)
def call(kernel: Kernel, request: pytest.FixtureRequest) -> Call:
    """A variant's launcher: what holds for one holds for the others."""
    return kernel.variant(request.param).call


def case(dtype: str = "fp32", **axes: Any) -> Case:
    return Case(dtype=dtype, **{"T": 1, "heads": 2, "K": 16, "V": 8, "state": "fp32", "strided": 0, **axes})


def cosine(actual: torch.Tensor, expected: torch.Tensor) -> float:
    a, e = actual.double().flatten(), expected.double().flatten()
    return float(a @ e / a.norm() / e.norm())


def clone(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() for name, value in inputs.items()}


def one_token(inputs: dict[str, Any], t: int) -> dict[str, Any]:
    """The call of token t alone, on the same state."""
    return {name: value if name == "state" else value[t : t + 1] for name, value in inputs.items()}


# Right on every case


def test_result_is_within_tolerance_of_the_reference_and_only_the_state_changes(kernel: Kernel, cpu_cell: tuple[str, Case]) -> None:
    variant_name, case = cpu_cell
    inputs = kernel.make_inputs(case, Generator(2))
    before = clone(inputs)
    expected = kernel.reference(**inputs)
    assert all(same_bits(before[name], inputs[name]) for name in inputs)

    out = kernel.variant(variant_name).call(**inputs)
    tolerance = kernel.tolerance_of(case)
    assert (case.T, case.heads, case.V) == out.shape
    assert torch_dtype(case.dtype) == out.dtype
    assert rel_l2(out, expected["out"]) <= tolerance.limit("out")
    assert rel_l2(inputs["state"], expected["state"]) <= tolerance.limit("state")
    assert min(cosine(out, expected["out"]), cosine(inputs["state"], expected["state"])) > 0.9999
    assert all(same_bits(before[name], inputs[name]) for name in inputs if name != "state")


# The recurrence


def naive_recurrence(inputs: dict[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Every token and head in turn, in fp64, with the transition matrix of the published recurrence: outputs and the last state."""
    q, k, v, g, beta, S = (inputs[name].double().numpy().copy() for name in ("q", "k", "v", "g", "beta", "state"))
    out = np.zeros(v.shape)
    for t in range(q.shape[0]):
        for h in range(q.shape[1]):
            forget = np.exp(g[t, h]) * (np.eye(q.shape[2]) - beta[t, h] * np.outer(k[t, h], k[t, h]))
            S[h] = forget @ S[h] + beta[t, h] * np.outer(k[t, h], v[t, h])
            out[t, h] = q[t, h] @ S[h]
    return out, S


SHAPES: dict[str, dict[str, Any]] = {
    "one token": {},
    "two tokens": {"T": 2},
    "sixteen tokens": {"T": 16, "heads": 1},
    "ragged": {"T": 3, "heads": 3, "K": 10, "V": 5},
    "strided": {"T": 3, "strided": 1},
}


@pytest.mark.parametrize("axes", SHAPES.values(), ids=SHAPES)
def test_tokens_of_one_launch_equal_the_naive_recurrence(kernel: Kernel, call: Call, axes: dict[str, Any]) -> None:
    inputs = kernel.make_inputs(case(**axes), Generator(3))
    expected_out, expected_state = naive_recurrence(inputs)
    assert rel_l2(call(**inputs), torch.from_numpy(expected_out)) <= 1e-6
    assert rel_l2(inputs["state"], torch.from_numpy(expected_state)) <= 1e-6


@pytest.mark.parametrize("T", [2, 3])
def test_tokens_of_one_launch_equal_a_launch_for_each(kernel: Kernel, call: Call, T: int) -> None:
    inputs = kernel.make_inputs(case(T=T, heads=3), Generator(4))
    apart = clone(inputs)
    out = call(**inputs)
    assert same_bits(torch.cat([call(**one_token(apart, t)) for t in range(T)]), out)
    assert same_bits(apart["state"], inputs["state"])


def test_reference_is_the_naive_recurrence_and_takes_its_own_state(kernel: Kernel) -> None:
    inputs = kernel.make_inputs(case(T=2, state="bf16"), Generator(5))
    expected_out, expected_state = naive_recurrence(inputs)
    first = kernel.reference(**one_token(inputs, 0))
    kept = first["state"].clone()
    second = kernel.reference(**{**one_token(inputs, 1), "state": first["state"]})
    assert same_bits(kept, first["state"])
    assert torch.float64 == second["state"].dtype == second["out"].dtype
    assert rel_l2(second["out"][0], torch.from_numpy(expected_out[1])) <= 1e-14
    assert rel_l2(second["state"], torch.from_numpy(expected_state)) <= 1e-14


@pytest.mark.parametrize("axes", [{"T": 3, "heads": 5, "K": 20, "V": 12}, {"heads": 4, "K": 32, "V": 32}], ids=["ragged", "whole"])
def test_variants_agree(kernel: Kernel, axes: dict[str, Any]) -> None:
    inputs = kernel.make_inputs(case(**axes), Generator(6))
    given = {name: clone(inputs) for name in VARIANTS}
    out = {name: kernel.variant(name).call(**given[name]) for name in VARIANTS}
    for name in ("tiled", "multihead", "torch"):
        assert rel_l2(out[name], out["rowwise"]) <= 1e-6, name
        assert rel_l2(given[name]["state"], given["rowwise"]["state"]) <= 1e-6, name


def test_query_is_not_scaled(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(), Generator(7))
    doubled = {**clone(inputs), "q": 2 * inputs["q"]}
    assert torch.equal(2 * call(**inputs), call(**doubled))
    assert same_bits(inputs["state"], doubled["state"])


def test_state_read_along_a_fresh_unit_key_is_its_value(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(), Generator(8))
    inputs["beta"].fill_(1.0)
    inputs["q"] = inputs["k"].clone()
    assert rel_l2(call(**inputs), inputs["v"]) <= 1e-5


# Gates


def test_decay_of_zero_forgets_the_state(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(), Generator(9))
    inputs["g"].fill_(-200.0)
    other = clone(inputs)
    other["state"].uniform_(-3, 3)
    assert same_bits(call(**inputs), call(**other))
    assert torch.equal(inputs["state"], other["state"])


def test_decay_of_zero_may_be_a_log_gate_of_minus_infinity(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(T=3), Generator(9))
    inputs["g"][1, 0] = -float("inf")
    other = clone(inputs)
    other["state"][0].uniform_(-3, 3)
    out = call(**inputs)
    assert out.isfinite().all()
    assert same_bits(out[1:], call(**other)[1:])
    assert inputs["state"].isfinite().all()
    assert torch.equal(inputs["state"], other["state"])


def test_decay_of_one_and_beta_of_zero_leave_the_state(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(T=2), Generator(10))
    inputs["g"].zero_()
    inputs["beta"].zero_()
    before = inputs["state"].clone()
    call(**inputs)
    assert torch.equal(before, inputs["state"])


def test_heads_of_the_inputs_are_weak_and_strong_in_turn(kernel: Kernel) -> None:
    inputs = kernel.make_inputs(kernel.case("T=8,heads=512,K=128,V=128,strided=1,dtype=bf16"), Generator(11))
    decay = inputs["g"].exp()
    assert decay[:, ::2].min() >= 0.998
    assert decay[:, ::2].max() > 0.9999
    assert decay[:, 1::2].max() < 0.91
    assert decay.max() <= 1
    assert 0 < inputs["beta"].min() < 0.05
    assert 0.95 < inputs["beta"].max() < 1


def test_keys_and_queries_of_the_inputs_are_normalised(kernel: Kernel) -> None:
    for dtype, rounding in (("fp32", 1e-5), ("fp16", 1e-3), ("bf16", 8e-3)):
        inputs = kernel.make_inputs(case(dtype, K=128, heads=8), Generator(12))
        for name in ("q", "k"):
            assert (inputs[name].double().norm(dim=-1) - 1).abs().max() < rounding


def test_unnormalised_keys_blow_up_within_a_hundred_tokens(kernel: Kernel) -> None:
    norms = {}
    for name, scale in (("unit", 1.0), ("uniform", (128 / 3) ** 0.5)):
        inputs = kernel.make_inputs(case(T=100, heads=1, K=128), Generator(13))
        inputs["k"] *= scale
        norms[name] = float(kernel.reference(**inputs)["state"].norm())
    assert norms["unit"] < 20
    assert norms["uniform"] > 1e20


# Drift

GATES = {"weak": (-0.002, 0.0), "strong": (-2.0, -0.1)}
LEAST_COSINE = {
    "weak": {"fp32": 0.9999999, "fp16": 0.9999, "bf16": 0.999},
    "strong": {"fp32": 0.9999999, "fp16": 0.999999, "bf16": 0.99999},
}


def carried_states(
    kernel: Kernel, one: Case, step: Callable[[dict[str, Any]], torch.Tensor], gates: tuple[float, float], steps: int
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The states that `step` carries in each dtype, and the reference's in fp64, after `steps` tokens of one call each."""
    generator = Generator(14)
    inputs = kernel.make_inputs(one, generator)
    carried = {dtype: inputs["state"].to(torch_dtype(dtype)) for dtype in ("fp32", "fp16", "bf16")}
    exact = inputs["state"].double()
    for i in range(steps):
        if i:
            inputs.update(drift_of(kernel).step_inputs(one, generator))
        inputs["g"] = generator.uniform((1, one.heads), "fp32", *gates)
        exact = kernel.reference(**{**inputs, "state": exact})["state"]
        carried = {dtype: step({**inputs, "state": state}) for dtype, state in carried.items()}
    return carried, exact


@pytest.mark.parametrize("gates", GATES)
def test_state_keeps_its_direction_over_a_thousand_tokens(kernel: Kernel, gates: str) -> None:
    def step(inputs: dict[str, Any]) -> torch.Tensor:
        kernel.variant("torch").call(**inputs)
        return inputs["state"]

    carried, exact = carried_states(kernel, case("bf16", state="bf16", heads=1, K=64), step, GATES[gates], 1000)
    for dtype, state in carried.items():
        assert cosine(state, exact) > LEAST_COSINE[gates][dtype], dtype


@pytest.mark.parametrize("variant", ["rowwise", "tiled", "multihead"])
@pytest.mark.parametrize("gates", GATES)
def test_variants_carry_a_state_as_well_as_the_baseline(kernel: Kernel, variant: str, gates: str) -> None:
    def carry(name: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        def step(inputs: dict[str, Any]) -> torch.Tensor:
            kernel.variant(name).call(**inputs)
            return inputs["state"]

        return carried_states(kernel, case("bf16", state="bf16", heads=1), step, GATES[gates], 12)

    (carried, exact), (baseline, _) = carry(variant), carry("torch")
    for dtype, state in carried.items():
        assert rel_l2(state, exact) <= 1.5 * rel_l2(baseline[dtype], exact), dtype


def test_drift_allows_three_times_what_storage_alone_gives(kernel: Kernel) -> None:
    def step(inputs: dict[str, Any]) -> torch.Tensor:
        return kernel.reference(**inputs)["state"].to(inputs["state"].dtype)

    carried, exact = carried_states(kernel, case("bf16", state="bf16", heads=1, K=128, V=16), step, GATES["weak"], 1000)
    errors = {dtype: rel_l2(state, exact) for dtype, state in carried.items()}
    limits = {dtype: tolerance.rel_l2 for dtype, tolerance in drift_of(kernel).tolerance.items()}
    for dtype in ("fp16", "bf16"):
        assert 2.5 * errors[dtype] <= limits[dtype] <= 6 * errors[dtype], dtype
    assert 3 * errors["fp32"] <= limits["fp32"]


def test_drift_gates_the_cosine_of_every_state(kernel: Kernel) -> None:
    least = {dtype: tolerance.cosine for dtype, tolerance in drift_of(kernel).tolerance.items()}
    assert {"fp32": 0.9999, "fp16": 0.9999, "bf16": 0.999} == least


# NaN and infinity


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_value_that_is_not_finite_stays_in_its_column_from_its_token_on(kernel: Kernel, call: Call, value: float) -> None:
    inputs = kernel.make_inputs(case(T=3), Generator(16))
    inputs["v"][1, 0, 3] = value
    out = call(**inputs)
    hit = torch.zeros(3, 2, 8, dtype=torch.bool)
    hit[1:, 0, 3] = True
    assert torch.equal(hit, ~out.isfinite())
    in_state = torch.zeros(2, 16, 8, dtype=torch.bool)
    in_state[0, :, 3] = True
    assert torch.equal(in_state, ~inputs["state"].isfinite())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_state_that_is_not_finite_stays_so_in_its_column(kernel: Kernel, call: Call, value: float) -> None:
    inputs = kernel.make_inputs(case(T=2), Generator(16))
    inputs["state"][0, 5, 3] = value
    out = call(**inputs)
    hit = torch.zeros(2, 16, 8, dtype=torch.bool)
    hit[0, :, 3] = True
    assert torch.equal(hit[:, :2].transpose(0, 1), ~out.isfinite())
    assert torch.equal(hit, ~inputs["state"].isfinite())


NAN_AND_INF = {
    "nan in k": ("k", (1, 1, 5), float("nan")),
    "inf in k": ("k", (1, 1, 5), float("inf")),
    "nan in g": ("g", (1, 1), float("nan")),
    "nan in beta": ("beta", (1, 1), float("nan")),
    "inf in beta": ("beta", (1, 1), float("inf")),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "place", "value"), NAN_AND_INF.values(), ids=NAN_AND_INF)
def test_key_or_gate_that_is_not_finite_takes_its_head_from_its_token_on(
    kernel: Kernel, call: Call, name: str, place: tuple[int, ...], value: float
) -> None:
    inputs = kernel.make_inputs(case(T=3), Generator(17))
    inputs[name][place] = value
    out = call(**inputs)
    hit = torch.zeros(3, 2, 8, dtype=torch.bool)
    hit[1:, 1] = True
    assert torch.equal(hit, ~out.isfinite())
    assert not inputs["state"][1].isfinite().any()
    assert inputs["state"][0].isfinite().all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_query_that_is_not_finite_stays_in_the_output_of_its_token(kernel: Kernel, call: Call, value: float) -> None:
    inputs = kernel.make_inputs(case(T=2), Generator(18))
    inputs["q"][0, 1, 5] = value
    out = call(**inputs)
    assert not out[0, 1].isfinite().any()
    assert 8 == int((~out.isfinite()).sum())
    assert inputs["state"].isfinite().all()


# Strides, sizes, storage


def test_strided_inputs_equal_contiguous_ones_and_the_gaps_are_not_touched(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(T=2, heads=3), Generator(19))
    wide = clone(inputs)
    for name in ("q", "k", "v"):
        shape = wide[name].shape
        wide[name] = torch.full((shape[0], shape[1] + 1, shape[2] + 5), float("nan"))[:, : shape[1], : shape[2]].copy_(wide[name])
    for name in ("g", "beta"):
        wide[name] = torch.full((2, 3 + 5), float("nan"))[:, :3].copy_(wide[name])
    apart = torch.full((3, 16 * 8 + 7), float("nan"))
    wide["state"] = apart[:, : 16 * 8].unflatten(1, (16, 8)).copy_(wide["state"])
    assert same_bits(call(**inputs), call(**wide))
    assert same_bits(inputs["state"], wide["state"])
    assert apart[:, 16 * 8 :].isnan().all()


def test_head_and_token_may_start_past_two_to_the_31_elements(kernel: Kernel) -> None:
    # The pages in between are never touched, so they take no memory. A 32-bit product of index and stride would fault.
    inputs = kernel.make_inputs(case("fp16", state="fp16", T=4, heads=4), Generator(20))
    far, stride = clone(inputs), 2**30 + 64
    for name in ("q", "state"):
        tensor = far[name]
        buffer = torch.empty((len(tensor) - 1) * stride + tensor[0].numel(), dtype=torch.float16)
        far[name] = buffer.as_strided(tensor.shape, (stride, *tensor.stride()[1:])).copy_(tensor)
    call = kernel.variant("rowwise").call
    assert same_bits(call(**inputs), call(**far))
    assert same_bits(inputs["state"], far["state"])


@pytest.mark.parametrize(("T", "heads"), [(0, 2), (2, 0), (0, 0)], ids=["no tokens", "no heads", "neither"])
def test_nothing_is_launched_for_nothing(
    kernel: Kernel, module: ModuleType, call: Call, monkeypatch: pytest.MonkeyPatch, T: int, heads: int
) -> None:
    monkeypatch.setattr(module, "_deltanet_recurrent", None)
    inputs = kernel.make_inputs(case(T=2), Generator(21))
    none = {name: value[:heads] if name == "state" else value[:T, :heads] for name, value in inputs.items()}
    before = inputs["state"].clone()
    assert (T, heads, 8) == call(**none).shape
    assert same_bits(before, inputs["state"])


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_state_is_rounded_to_nearest_once_a_launch(kernel: Kernel, call: Call, dtype: str) -> None:
    inputs = kernel.make_inputs(case(T=3, state=dtype), Generator(22))
    exact = {**clone(inputs), "state": inputs["state"].float()}
    assert same_bits(call(**exact), call(**inputs))
    assert same_bits(exact["state"].to(torch_dtype(dtype)), inputs["state"])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fp16_state_overflows_as_ieee_does(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(state="fp16"), Generator(23))
    inputs["v"].fill_(1e7)
    call(**inputs)
    assert inputs["state"].isinf().any()
    assert not inputs["state"].isnan().any()


# Refusals

REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "two axes of q": ({"q": torch.zeros(3, 8)}, r"q has shape \(3, 8\)"),
    "two axes of state": ({"state": torch.zeros(8, 4)}, r"state \(8, 4\)"),
    "no rows": ({"state": torch.zeros(3, 0, 4)}, "K and V must be 1 or more"),
    "dtype of q": ({"q": torch.zeros(2, 3, 8).double()}, "q has .*float64"),
    "heads of q": ({"q": torch.zeros(2, 4, 8)}, r"q has shape \(2, 4, 8\).*give \(2, 3, 8\)"),
    "dtype of k": ({"k": torch.zeros(2, 3, 8).half()}, "k has .*float16.*float32"),
    "tokens of k": ({"k": torch.zeros(1, 3, 8)}, r"k has shape \(1, 3, 8\).*give \(2, 3, 8\)"),
    "shape of v": ({"v": torch.zeros(2, 3, 8)}, r"v has shape \(2, 3, 8\).*give \(2, 3, 4\)"),
    "dtype of g": ({"g": torch.zeros(2, 3).bfloat16()}, "g has .*bfloat16.*float32"),
    "shape of beta": ({"beta": torch.zeros(2, 4)}, r"beta has shape \(2, 4\)"),
    "dtype of state": ({"state": torch.zeros(3, 8, 4).double()}, "state has .*float64"),
    "state as (V, K)": ({"state": torch.zeros(3, 4, 8)}, "has shape"),
    "state transposed": ({"state": torch.zeros(3, 4, 8).mT}, r"state has strides \(32, 1, 8\)"),
    "column stride of q": ({"q": torch.zeros(2, 3, 16)[..., ::2]}, "q has strides"),
    "column stride of g": ({"g": torch.zeros(2, 6)[:, ::2]}, "g has strides"),
    "rows of a head that lie apart": ({"state": torch.zeros(3, 8, 5)[:, :, :4]}, "each head must be contiguous"),
    "heads that overlap": ({"state": torch.zeros(1, 8, 4).expand(3, 8, 4)}, "each head must be contiguous"),
    "another device": ({"g": torch.zeros(2, 3, device="meta")}, "g is on meta"),
}


def small_call() -> dict[str, Any]:
    zeros = {name: torch.zeros(2, 3, 8) for name in ("q", "k")} | {name: torch.zeros(2, 3) for name in ("g", "beta")}
    return {**zeros, "v": torch.zeros(2, 3, 4), "state": torch.zeros(3, 8, 4)}


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refuses(call: Call, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"deltanet_recurrent: .*{message}"):
        call(**{**small_call(), **change})


def test_takes_what_the_refusals_change(call: Call) -> None:
    assert (2, 3, 4) == call(**small_call()).shape


@pytest.mark.parametrize(
    ("variant", "K", "limits"),
    [
        ("multihead", 129, "up to 128, or up to 256 with rowwise, or up to 1024 with tiled"),
        ("rowwise", 257, "up to 256, or up to 1024 with tiled"),
        ("rowwise", 2000, "up to 256, or up to 1024 with tiled"),
        ("tiled", 1025, "up to 1024"),
    ],
)
def test_refuses_more_rows_than_the_variant_holds_and_names_what_does(kernel: Kernel, variant: str, K: int, limits: str) -> None:
    inputs = kernel.make_inputs(case(K=K), Generator(24))
    with pytest.raises(ValueError, match=f"deltanet_recurrent: K={K}: {variant} keeps a state's rows in registers: give K {limits}$"):
        kernel.variant(variant).call(**inputs)


def test_refuses_a_variant_that_there_is_not_and_names_those_that_there_are(module: ModuleType) -> None:
    with pytest.raises(ValueError, match="deltanet_recurrent: variant='x': give one of rowwise, tiled, multihead"):
        module.deltanet_recurrent(**small_call(), variant="x")


# Cost model


def test_traffic_is_the_sum_of_the_tensors(kernel: Kernel) -> None:
    for one in kernel.cases:
        inputs = kernel.make_inputs(one, Generator(0, "meta"))
        size = {name: value.numel() * value.element_size() for name, value in inputs.items()}
        found = kernel.traffic(one)  # `out` is as large as v
        assert (sum(size.values()), size["state"] + size["v"]) == (found.read_bytes, found.written_bytes), one.key


def test_flops_grow_with_tokens_and_bytes_of_the_state_do_not(kernel: Kernel) -> None:
    one, sixteen = (kernel.case(f"T={t},heads=32,K=128,V=128,dtype=bf16") for t in (1, 16))
    assert 7 * 32 * 128 * 128 == kernel.flops(one) == kernel.flops(sixteen) // 16
    assert kernel.traffic(sixteen).total < 1.2 * kernel.traffic(one).total


# Launch plans

PLANS = {
    "few heads leave no multiprocessor idle": (
        "rowwise",
        (32, 128, 128, 4),
        {"small": (1, 16, 1), "large": (1, 8, 1), "wave64": (1, 8, 1)},
    ),
    "many heads take all that a warp holds": (
        "rowwise",
        (8192, 128, 128, 4),
        {"small": (1, 16, 1), "large": (1, 16, 1), "wave64": (1, 32, 1)},
    ),
    "a tall fp32 state has a sector": ("rowwise", (32, 256, 256, 4), {"small": (1, 8, 1), "large": (1, 8, 1), "wave64": (1, 8, 1)}),
    "a tall bf16 state has an access": ("rowwise", (32, 256, 256, 2), {"small": (1, 8, 1), "large": (1, 8, 1), "wave64": (1, 16, 1)}),
    "no more columns than there are": ("rowwise", (8192, 16, 3, 4), {"small": (1, 4, 1), "large": (1, 4, 1), "wave64": (1, 4, 1)}),
    "a tall tile is shared between warps": ("tiled", (8192, 256, 256, 4), {"small": (1, 32, 8), "large": (1, 32, 8), "wave64": (1, 32, 4)}),
    "few heads share it between fewer": ("tiled", (8, 256, 256, 4), {"small": (1, 32, 8), "large": (1, 8, 2), "wave64": (1, 8, 1)}),
    "the tallest": ("tiled", (64, 1024, 512, 4), {"small": (1, 8, 8), "large": (1, 8, 8), "wave64": (1, 8, 4)}),
    "two large heads a program": ("multihead", (32, 128, 128, 4), {"small": (2, 8, 1), "large": (2, 8, 1), "wave64": (4, 8, 1)}),
    "many small ones": ("multihead", (512, 32, 32, 4), {"small": (8, 8, 1), "large": (8, 8, 1), "wave64": (8, 8, 1)}),
    "no more heads than there are": ("multihead", (1, 32, 32, 4), {"small": (1, 8, 1), "large": (1, 8, 1), "wave64": (1, 8, 1)}),
}


@pytest.mark.parametrize(("variant", "shape", "expected"), PLANS.values(), ids=PLANS)
def test_plan(module: ModuleType, variant: str, shape: tuple[int, ...], expected: dict[str, tuple[int, int, int]]) -> None:
    found = {name: module.PLANS[variant](*shape, gpu) for name, gpu in GPUS.items()}
    assert expected == {name: (plan.heads, plan.values, plan.warps) for name, plan in found.items()}


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_lane_never_holds_more_than_its_registers(module: ModuleType, kernel: Kernel, gpu: DeviceProperties) -> None:
    for one in kernel.cases:
        for variant, plan_of in module.PLANS.items():
            if kernel.variant(variant).cases(one):
                rows = 1 << (one.K - 1).bit_length()
                plan = plan_of(one.heads, rows, one.V, torch_dtype(one.state).itemsize, gpu)
                assert plan.heads * rows * plan.values / (plan.warps * gpu.warp_size) <= 128, (variant, one.key)


@pytest.mark.parametrize("multiprocessors", [1, 64], ids=["one multiprocessor", "many"])
def test_result_does_not_depend_on_the_plan(kernel: Kernel, multiprocessors: int) -> None:
    inputs = kernel.make_inputs(case(heads=3, K=8, V=40), Generator(25))
    expected = kernel.reference(**inputs)
    with pretend(DeviceProperties("cpu", multiprocessors, 65_536, 32, 32 << 20)):
        assert rel_l2(kernel.variant("rowwise").call(**inputs), expected["out"]) <= 1e-6
    assert rel_l2(inputs["state"], expected["state"]) <= 1e-6


# The cases


def test_variants_cover_the_states_that_they_are_for(kernel: Kernel) -> None:
    for one in kernel.cases:
        covered = {name for name in VARIANTS if kernel.variant(name).cases(one)}
        expected = {"rowwise": one.K <= 256, "tiled": max(one.K, one.V) > 128, "multihead": one.K <= 128, "torch": True}
        assert {name for name, covers in expected.items() if covers} == covered, one.key


def test_three_cases_are_headline(kernel: Kernel) -> None:
    assert [32, 512, 8192] == [c.heads for c in kernel.cases if "headline" in c.tags]


def test_cases_hold_every_length_and_storage_at_model_size(kernel: Kernel) -> None:
    model = [c for c in kernel.cases if "model" in c.tags and (c.K, c.V) == (128, 128)]
    assert {1, 2, 4, 8, 16} == {c.T for c in model if c.heads == 32}
    assert {"fp32", "fp16", "bf16"} == {c.state for c in model} == {c.dtype for c in model}
    assert {0, 1} == {c.strided for c in model}


def test_cpu_cases_cover_every_option_and_are_small_enough(kernel: Kernel, module: ModuleType) -> None:
    cpu = [c for c in kernel.cases if "cpu" in c.tags]
    assert 9 <= len({(c.dtype, c.state) for c in cpu if c.T == 1})
    for dtype in ("fp32", "fp16", "bf16"):
        assert {0, 1} == {c.strided for c in cpu if c.dtype == dtype}
        assert any("ragged" in c.tags for c in cpu if c.dtype == dtype)
    assert {1, 2, 4, 8, 16} <= {c.T for c in cpu}
    device = DeviceProperties("cpu", 4, 65_536, 32, 32 << 20)
    for c in cpu:
        for variant, plan_of in module.PLANS.items():
            plan = plan_of(c.heads, 1 << (c.K - 1).bit_length(), c.V, torch_dtype(c.state).itemsize, device)
            programs = -(-c.heads // plan.heads) * -(-c.V // plan.values)
            assert programs <= (4 if "drift" in c.tags else 200), (variant, c.key)


def test_drift_cases_cover_every_storage_on_cpu_and_at_model_size(kernel: Kernel) -> None:
    for where in ("cpu", "model"):
        drifting = [c for c in kernel.cases if {"drift", where} <= c.tags]
        assert {"fp32", "fp16", "bf16"} == {c.state for c in drifting if c.heads > 1}


def test_state_of_the_inputs_is_as_large_as_weak_heads_keep_it(kernel: Kernel) -> None:
    generator, one = Generator(26), case(T=400, heads=1, K=32, V=32)
    inputs = kernel.make_inputs(one, generator)
    assert 0.5 < float(kernel.reference(**inputs)["state"].norm() / inputs["state"].norm()) < 2


def test_meta_inputs_have_the_shapes_strides_and_dtypes_of_real_ones(kernel: Kernel) -> None:
    for one in kernel.cases:
        if "cpu" in one.tags:
            real, meta = (kernel.make_inputs(one, Generator(0, device)) for device in ("cpu", "meta"))
            assert list(real) == list(meta)
            for name, value in real.items():
                found = meta[name]
                assert (value.shape, value.stride(), value.dtype) == (found.shape, found.stride(), found.dtype), (one.key, name)
