from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from kernel_testing import GPUS, rel_l2

from harness import Case, DeviceProperties, Kernel
from harness.measure.data import Generator, torch_dtype

KERNEL_NAME = "rmsnorm_gated"
VARIANTS = ("fused", "torch")
DTYPES = ("fp32", "fp16", "bf16")
SHAPES = {"heads": (41, 128), "ragged": (3, 1000), "several chunks": (3, 5000)}

Call = Callable[..., torch.Tensor]


@pytest.fixture(params=VARIANTS)
def call(kernel: Kernel, request: pytest.FixtureRequest) -> Call:
    """A variant's launcher: what holds for one holds for the other."""
    return kernel.variant(request.param).call


def rows(m: int, n: int, dtype: str = "fp32", seed: int = 1) -> torch.Tensor:
    return Generator(seed).uniform((m, n), dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


# Right on every case


def test_result_is_within_tolerance_of_the_reference(kernel: Kernel, cpu_cell: tuple[str, Case]) -> None:
    variant_name, case = cpu_cell
    inputs = kernel.make_inputs(case, Generator(2))
    before = {name: value.clone() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    expected = kernel.reference(**inputs)["y"]
    y = kernel.variant(variant_name).call(**inputs)
    assert expected.shape == y.shape
    assert torch_dtype(case.dtype) == y.dtype
    assert y.is_contiguous()
    assert rel_l2(y, expected) <= kernel.tolerance_of(case).limit("y")
    assert all(same_bits(before[name], inputs[name]) for name in before)


def test_reference_is_the_formula_in_fp64(kernel: Kernel) -> None:
    x, gate, weight = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, math.log(3.0)]]), torch.tensor([2.0, 5.0])
    rms = 12.5**0.5
    silu = kernel.reference(x, gate, weight, eps=0.0, activation="silu")["y"]
    sigmoid = kernel.reference(x, gate, weight, eps=0.0, activation="sigmoid")["y"]
    assert torch.float64 == silu.dtype == sigmoid.dtype
    assert [0.0, 20.0 / rms * 0.75 * math.log(3.0)] == pytest.approx(silu[0].tolist(), rel=1e-7)
    assert [6.0 / rms * 0.5, 20.0 / rms * 0.75] == pytest.approx(sigmoid[0].tolist(), rel=1e-7)


# What each option means


def test_norm_comes_first_and_the_gate_does_not_enter_it(call: Call) -> None:
    x, gate, weight = rows(3, 128), rows(3, 128, seed=2), rows(1, 128, seed=3)[0]
    gates = torch.stack([gate[0], gate[0] * 2, gate[0] - 1])
    y = call(x[:1].expand(3, -1).contiguous(), gates, weight)
    ungated = y / torch.nn.functional.silu(gates)
    assert rel_l2(ungated[1], ungated[0]) <= 1e-6
    assert rel_l2(ungated[2], ungated[0]) <= 1e-6


def test_silu_is_the_gate_times_its_sigmoid(call: Call) -> None:
    x, gate, weight = rows(3, 128), rows(3, 128, seed=2), rows(1, 128, seed=3)[0]
    assert rel_l2(call(x, gate, weight), gate * call(x, gate, weight, activation="sigmoid")) <= 1e-6


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
def test_gates_far_from_zero_are_open_or_shut(call: Call) -> None:
    x, weight = rows(1, 4), torch.ones(4)
    gate = torch.tensor([[200.0, -200.0, 40.0, -40.0]])
    normed = call(x, torch.full_like(x, 200.0), weight, activation="sigmoid")
    assert torch.allclose(
        normed * torch.tensor([1.0, 0.0, 1.0, math.exp(-40)]), call(x, gate, weight, activation="sigmoid"), rtol=1e-5, atol=0
    )
    assert torch.allclose(normed * torch.tensor([200.0, 0.0, 40.0, -40 * math.exp(-40)]), call(x, gate, weight), rtol=1e-5, atol=0)


def test_weight_is_not_stored_less_one(call: Call) -> None:
    x, gate = rows(2, 128), rows(2, 128, seed=2)
    assert same_bits(torch.zeros(2, 128), call(x, gate, torch.zeros(128)).abs())


@pytest.mark.parametrize("eps", [1e-6, 1e-5])
def test_eps_is_inside_the_root(call: Call, eps: float) -> None:
    y = call(torch.full((1, 4), 1e-3), torch.zeros(1, 4), torch.ones(4), eps=eps, activation="sigmoid")
    assert [0.5e-3 / (1e-6 + eps) ** 0.5] * 4 == pytest.approx(y[0].tolist(), rel=1e-6)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_result_is_rounded_once(kernel: Kernel, dtype: str) -> None:
    x, gate, weight = rows(3, 1000, dtype), rows(3, 1000, dtype, seed=2), rows(1, 1000, dtype, seed=3)[0]
    wide = kernel.variant("fused").call(x.float(), gate.float(), weight.float())
    assert same_bits(wide.to(x.dtype), kernel.variant("fused").call(x, gate, weight))


# Rows


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
@pytest.mark.parametrize(("m", "n"), SHAPES.values(), ids=SHAPES)
def test_nan_and_infinity_in_x_stay_in_their_row(call: Call, m: int, n: int) -> None:
    x, gate, weight = rows(m, n), rows(m, n, seed=2), rows(1, n, seed=3)[0]
    clean = call(x, gate, weight)
    x[1, n - 1], x[2, 0] = float("nan"), float("inf")
    y = call(x, gate, weight)
    others = [row for row in range(m) if row not in (1, 2)]
    assert y[1].isnan().all()
    assert y[2, 0].isnan()
    assert [0] == y[2, 1:].abs().unique().tolist()
    assert same_bits(clean[others], y[others])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
def test_gate_acts_on_its_own_value_alone(call: Call) -> None:
    x, gate, weight = rows(2, 128).abs() + 1, rows(2, 128, seed=2), torch.ones(128)
    clean = {activation: call(x, gate, weight, activation=activation) for activation in ("silu", "sigmoid")}
    gate[0, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    silu, sigmoid = (call(x, gate, weight, activation=activation) for activation in ("silu", "sigmoid"))
    assert silu[0, 0].isnan()
    assert sigmoid[0, 0].isnan()
    assert float("inf") == silu[0, 1]
    assert 0 < sigmoid[0, 1] < float("inf")
    assert silu[0, 2].isnan()
    assert 0 == sigmoid[0, 2]
    assert same_bits(clean["silu"].flatten()[3:], silu.flatten()[3:])
    assert same_bits(clean["sigmoid"].flatten()[3:], sigmoid.flatten()[3:])


@pytest.mark.parametrize(("m", "n"), SHAPES.values(), ids=SHAPES)
def test_strided_rows_equal_contiguous_ones_and_the_padding_is_not_read(kernel: Kernel, m: int, n: int) -> None:
    x, gate, weight = rows(m, n), rows(m, n, seed=2), rows(1, n, seed=3)[0]
    wide_x = torch.full((m, n + 8), float("nan")).index_copy(1, torch.arange(n), x)[:, :n]
    wide_gate = torch.full((m, n + 3), float("nan")).index_copy(1, torch.arange(n), gate)[:, :n]
    fused = kernel.variant("fused").call
    assert same_bits(fused(x, gate, weight), fused(wide_x, wide_gate, weight))


def test_a_lone_row_is_as_aligned_as_it_is_long(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    align = module.common_alignment
    monkeypatch.setattr(module, "common_alignment", lambda *strides: found.append(align(*strides)) or found[-1])
    x, gate, weight = rows(1, 5000), rows(1, 5000, seed=2), rows(1, 5000, seed=3)[0]
    wide_x, wide_gate = (torch.nn.functional.pad(row, (0, gap))[:, :5000] for row, gap in ((x, 1), (gate, 3)))
    assert same_bits(module.rmsnorm_gated(x, gate, weight), module.rmsnorm_gated(wide_x, wide_gate, weight))
    assert [8, 8] == found


def test_rows_may_start_past_two_to_the_31_elements(kernel: Kernel) -> None:
    # The pages between the rows are never touched, so they take no memory. A 32-bit offset would fault.
    stride, ones = 2**31 + 64, torch.ones(64, dtype=torch.float16)
    wide = torch.empty(stride + 64, dtype=torch.float16).as_strided((2, 64), (stride, 1))
    wide[0], wide[1] = rows(2, 64, "fp16")
    near = wide.contiguous()
    fused = kernel.variant("fused").call
    assert same_bits(fused(near, near, ones), fused(wide, wide, ones))


def test_no_rows_give_no_rows(call: Call) -> None:
    assert (0, 8) == call(rows(0, 8), rows(0, 8), torch.ones(8)).shape


# Refusals

OPTION_REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "activation": ({"activation": "tanh"}, "activation='tanh': use 'silu' or 'sigmoid'"),
    "negative eps": ({"eps": -1.0}, r"eps=-1\.0"),
    "eps that is no number": ({"eps": float("nan")}, "eps=nan"),
    "activation as a flag": ({"activation": True}, "activation=True"),
    "eps as text": ({"eps": "a"}, "eps='a': give an int or float, 0 or more"),
    "no eps": ({"eps": None}, "eps=None"),
    "eps as a flag": ({"eps": True}, "eps=True"),
    "eps as a tensor": ({"eps": torch.tensor(1e-6)}, "eps=tensor"),
}

REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "dtype": ({"x": rows(2, 8).double()}, r"x has .*float64: give .*float32"),
    "one axis": ({"x": rows(2, 8)[0]}, r"x has shape \(8,\).*flattened"),
    "no columns": ({"x": rows(2, 0)}, r"x has shape \(2, 0\).*N from 1"),
    "longer than registers hold": ({"x": torch.ones(1, 16385)}, r"x has shape \(1, 16385\).*to 16384"),
    "column stride of x": ({"x": rows(8, 2).T}, r"x has strides \(1, 2\).*contiguous"),
    "column stride of gate": ({"gate": rows(2, 16)[:, ::2]}, r"gate has strides \(16, 2\)"),
    "gate of another shape": ({"gate": rows(1, 8)}, r"gate has shape \(1, 8\).*\(2, 8\)"),
    "gate of another dtype": ({"gate": rows(2, 8, "fp16")}, r"gate has .*float16: give .*float32"),
    "gate on another device": ({"gate": rows(2, 8).to("meta")}, "gate is on meta: move it to cpu"),
    "weight of another length": ({"weight": torch.ones(7)}, r"weight has shape \(7,\).*\(8,\)"),
    "strided weight": ({"weight": torch.ones(16)[::2]}, r"weight has strides \(2,\)"),
    **OPTION_REFUSALS,
}


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refuses(call: Call, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(**{"x": rows(2, 8), "gate": rows(2, 8), "weight": torch.ones(8), **change})


@pytest.mark.parametrize(("change", "message"), OPTION_REFUSALS.values(), ids=OPTION_REFUSALS)
def test_reference_refuses_the_options_that_variants_refuse(kernel: Kernel, change: dict[str, Any], message: str) -> None:
    given = {"x": rows(2, 8), "gate": rows(2, 8), "weight": torch.ones(8), "eps": 1e-6, "activation": "silu"}
    with pytest.raises(ValueError, match=f"rmsnorm_gated: {message}"):
        kernel.reference(**{**given, **change})


# Cost model


def test_traffic_is_the_sum_of_the_tensors(kernel: Kernel) -> None:
    for case in kernel.cases:
        inputs = kernel.make_inputs(case, Generator(0, "meta"))
        y = kernel.variant(kernel.baseline).call(**inputs)
        read = sum(t.numel() * t.element_size() for t in inputs.values() if isinstance(t, torch.Tensor))
        found = kernel.traffic(case)
        assert (read, y.numel() * y.element_size()) == (found.read_bytes, found.written_bytes), case.key


def test_silu_costs_one_operation_more_than_a_sigmoid(kernel: Kernel) -> None:
    expected = {"M=48,N=128,dtype=bf16": 9 * 48 * 128, "M=6,N=128,gate=sigmoid,dtype=bf16": 8 * 6 * 128}
    assert expected == {key: kernel.flops(kernel.case(key)) for key in expected}


# Launch plan and cases


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_plan_covers_every_row_within_the_limits_of_a_block(module: ModuleType, kernel: Kernel, gpu: DeviceProperties) -> None:
    for case in kernel.cases:
        plan = module.plan_rows(case.M, case.N, torch_dtype(case.dtype).itemsize, gpu, module.LOADS)
        threads = plan.warps * gpu.warp_size
        assert plan.block * (plan.chunks - 1) < case.N <= plan.block * plan.chunks, case.key
        assert threads <= 512, case.key
        assert plan.rows * plan.block * plan.chunks <= 64 * threads, case.key


HEAD_PLANS = {"one token": (48, (1, 1)), "64 tokens": (3072, (4, 1)), "512 tokens": (24576, (16, 4))}


@pytest.mark.parametrize(("m", "expected"), HEAD_PLANS.values(), ids=HEAD_PLANS)
def test_heads_share_a_warp_and_warps_a_program_as_the_grid_fills(module: ModuleType, m: int, expected: tuple[int, int]) -> None:
    plan = module.plan_rows(m, 128, 2, GPUS["large"], module.LOADS)
    assert expected == (plan.rows, plan.warps)


def test_cases_hold_every_shape_of_the_catalogue(kernel: Kernel) -> None:
    shapes = {(case.M, case.N) for case in kernel.cases if case.dtype == "bf16"}
    tokens = (1, 16, 64, 512, 4096)
    assert {(hv * b, 128) for hv in (32, 48) for b in tokens} | {(b, 4096) for b in tokens} <= shapes


def test_peers_are_the_48_heads_of_five_token_counts(kernel: Kernel) -> None:
    assert {(48 * b, 128) for b in (1, 16, 64, 512, 4096)} == {(c.M, c.N) for c in kernel.cases if "peers" in c.tags}


def test_one_case_is_the_smoke_case_and_three_are_headlines(kernel: Kernel) -> None:
    tagged = {tag: [case.M for case in kernel.cases if tag in case.tags] for tag in ("smoke", "headline")}
    assert {"smoke": [48], "headline": [48, 3072, 196608]} == tagged


def test_cpu_cases_cover_every_option_in_every_dtype_and_are_small(kernel: Kernel) -> None:
    cpu = [case for case in kernel.cases if "cpu" in case.tags]
    assert all(case.M <= 200 for case in cpu)
    for dtype in DTYPES:
        of_dtype = [case for case in cpu if case.dtype == dtype]
        assert {"silu", "sigmoid"} == {case.gate for case in of_dtype}
        assert {1e-6, 1e-5} == {case.eps for case in of_dtype}
        assert {0, 1} == {case.strided for case in of_dtype}
        assert any("ragged" in case.tags for case in of_dtype)


def test_meta_inputs_have_the_shapes_strides_and_dtypes_of_real_ones(kernel: Kernel) -> None:
    for case in kernel.cases:
        if "cpu" in case.tags:
            real, meta = (kernel.make_inputs(case, Generator(0, device)) for device in ("cpu", "meta"))
            for name, value in real.items():
                if isinstance(value, torch.Tensor):
                    assert (value.shape, value.stride(), value.dtype) == (meta[name].shape, meta[name].stride(), meta[name].dtype)
                else:
                    assert value == meta[name]
