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

KERNEL_NAME = "rmsnorm"
DTYPES = ("fp32", "fp16", "bf16")

LENGTHS = {"one chunk": 250, "several chunks": 5000, "long row": 20000}
SHAPES = {"several rows a program": (41, 256), "several chunks": (3, 5000), "long row": (3, 20000)}

Fused = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


@pytest.fixture
def fused(module: ModuleType) -> Fused:
    return module.rmsnorm_fused


def rows(m: int, n: int, dtype: str = "fp32", seed: int = 1) -> torch.Tensor:
    return Generator(seed).uniform((m, n), dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


# Right on every case


def test_result_is_within_tolerance_of_the_reference(kernel: Kernel, cpu_cell: tuple[str, Case]) -> None:
    variant_name, case = cpu_cell
    inputs = kernel.make_inputs(case, Generator(2))
    expected = kernel.reference(**inputs)
    returned = kernel.variant(variant_name).call(**inputs)
    for name, actual in zip(kernel.outputs, returned, strict=True):
        if expected[name] is None:
            assert actual is None
            continue
        assert expected[name].shape == actual.shape
        assert actual.is_contiguous()
        assert rel_l2(actual, expected[name]) <= kernel.tolerance_of(case).limit(name), name


def test_inputs_stay_as_they_were(kernel: Kernel, cpu_cell: tuple[str, Case]) -> None:
    variant_name, case = cpu_cell
    inputs = kernel.make_inputs(case, Generator(3))
    before = {name: value.clone() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    kernel.variant(variant_name).call(**inputs)
    kernel.reference(**inputs)
    assert all(same_bits(before[name], inputs[name]) for name in before)


def test_reference_is_the_formula_in_fp64(kernel: Kernel) -> None:
    x, weight, rms = torch.tensor([[3.0, 4.0]]), torch.tensor([2.0, 1.0]), 12.5**0.5
    plain = kernel.reference(x, weight, residual=None, eps=0.0, plus_one=0, cast="after")
    added = kernel.reference(x - 1, weight, residual=torch.ones(1, 2), eps=0.0, plus_one=1, cast="after")
    assert plain["residual"] is None
    assert plain["y"].dtype == torch.float64
    assert [6.0 / rms, 4.0 / rms] == pytest.approx(plain["y"][0].tolist(), rel=1e-15)
    assert [9.0 / rms, 8.0 / rms] == pytest.approx(added["y"][0].tolist(), rel=1e-15)
    assert torch.equal(torch.tensor([[3.0, 4.0]]).double(), added["residual"])


# What each option means


@pytest.mark.parametrize("dtype", DTYPES)
def test_residual_out_is_the_sum_as_the_dtype_rounds_it(fused: Fused, dtype: str) -> None:
    x, residual = rows(3, 1000, dtype, seed=1), rows(3, 1000, dtype, seed=2)
    _, residual_out = fused(x, torch.ones(1000, dtype=x.dtype), residual)
    assert residual_out is not None
    assert same_bits((x.float() + residual.float()).to(x.dtype), residual_out)


def test_fp32_residual_of_a_bf16_row_is_added_and_returned_in_fp32(fused: Fused) -> None:
    x, residual = rows(3, 1000, "bf16", seed=1), rows(3, 1000, "fp32", seed=2)
    y, residual_out = fused(x, torch.ones(1000, dtype=x.dtype), residual)
    assert residual_out is not None
    assert same_bits(x.float() + residual, residual_out)
    assert y.dtype == torch.bfloat16


@pytest.mark.parametrize("n", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_add_is_the_add_and_then_the_norm_within_a_rounding(fused: Fused, dtype: str, n: int) -> None:
    x, residual, weight = rows(2, n, dtype, seed=1), rows(2, n, dtype, seed=2), rows(1, n, dtype, seed=3)[0]
    y, residual_out = fused(x, weight, residual)
    apart, _ = fused((x.float() + residual.float()).to(x.dtype), weight)
    assert residual_out is not None
    assert same_bits((x.float() + residual.float()).to(x.dtype), residual_out)
    # The squares of a row may be added in another order: the last bit may differ, in fp32 three bits.
    assert torch.allclose(apart.double(), y.double(), rtol={"fp32": 2**-20, "fp16": 2**-10, "bf16": 2**-7}[dtype], atol=2**-24)


def test_without_a_residual_there_is_no_residual_out(kernel: Kernel) -> None:
    for name in kernel.variants:
        assert kernel.variant(name).call(rows(2, 8), torch.ones(8))[1] is None


@pytest.mark.parametrize("n", LENGTHS.values(), ids=LENGTHS)
def test_plus_one_is_a_weight_of_one_more(fused: Fused, n: int) -> None:
    x = rows(2, n)
    weight = torch.round(rows(1, n, seed=2)[0] * 8) / 8  # eighths: adding one is exact
    assert same_bits(fused(x, weight + 1)[0], fused(x, weight, plus_one=1)[0])


@pytest.mark.parametrize("n", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_cast_before_rounds_the_normalised_row_and_cast_after_does_not(fused: Fused, dtype: str, n: int) -> None:
    x, weight = rows(2, n, dtype), rows(1, n, dtype, seed=2)[0]
    normed, _ = fused(x, torch.ones_like(weight))
    before, after = (fused(x, weight, cast=cast)[0] for cast in ("before", "after"))
    assert same_bits(normed * weight, before)
    assert 0.1 < (before != after).float().mean() < 0.9


def test_cast_order_changes_nothing_in_fp32(fused: Fused) -> None:
    x, weight = rows(2, 1000), rows(1, 1000, seed=2)[0]
    assert same_bits(fused(x, weight, cast="after")[0], fused(x, weight, cast="before")[0])


@pytest.mark.parametrize("eps", [1e-6, 1e-5])
@pytest.mark.parametrize("columns", [4, 20000], ids=["a row in registers", "a row read twice"])
def test_eps_is_inside_the_root(module: ModuleType, fused: Fused, columns: int, eps: float) -> None:
    assert 4 < module.ROW_LIMIT < 20000
    y, _ = fused(torch.full((1, columns), 1e-3), torch.ones(columns), eps=eps)
    assert [1e-3 / (1e-6 + eps) ** 0.5] * columns == pytest.approx(y[0].tolist(), rel=1e-6)


def test_row_of_zeros_gives_zeros(fused: Fused) -> None:
    assert same_bits(torch.zeros(2, 300), fused(torch.zeros(2, 300), torch.ones(300))[0])


# Rows


@pytest.mark.parametrize(("m", "n"), SHAPES.values(), ids=SHAPES)
def test_nan_stays_in_its_row(fused: Fused, m: int, n: int) -> None:
    x, weight = rows(m, n), rows(1, n, seed=2)[0]
    clean, _ = fused(x, weight)
    x[1, n - 1] = float("nan")
    y, _ = fused(x, weight)
    others = [row for row in range(m) if row != 1]
    assert y[1].isnan().all()
    assert same_bits(clean[others], y[others])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
@pytest.mark.parametrize(("m", "n"), SHAPES.values(), ids=SHAPES)
def test_infinity_makes_its_own_value_nan_and_the_rest_of_its_row_zero(kernel: Kernel, m: int, n: int) -> None:
    x, weight = rows(m, n), rows(1, n, seed=2)[0]
    x[1, 0] = float("inf")
    for name in kernel.variants:
        y, _ = kernel.variant(name).call(x, weight)
        assert y[1, 0].isnan()
        assert [0] == y[1, 1:].unique().tolist()
        assert y[[row for row in range(m) if row != 1]].isfinite().all()


@pytest.mark.parametrize(("m", "n"), SHAPES.values(), ids=SHAPES)
def test_row_does_not_depend_on_the_rows_beside_it(fused: Fused, m: int, n: int) -> None:
    x, residual, weight = rows(m, n), rows(m, n, seed=2), rows(1, n, seed=3)[0]
    y, _ = fused(x, weight, residual)
    for row in (0, 1, m - 1):
        others = torch.zeros(m, n).index_copy(0, torch.tensor([row]), x[row : row + 1])
        assert same_bits(y[row], fused(others, weight, residual)[0][row])


@pytest.mark.parametrize("n", [1, 256, 5000, 20000])
def test_strided_rows_equal_contiguous_ones_and_the_padding_is_not_read(fused: Fused, n: int) -> None:
    x, residual, weight = rows(3, n), rows(3, n, seed=2), rows(1, n, seed=3)[0]
    wide_x = torch.full((3, n + 8), float("nan")).index_copy(1, torch.arange(n), x)[:, :n]
    wide_residual = torch.full((3, n + 3), float("nan")).index_copy(1, torch.arange(n), residual)[:, :n]
    y, residual_out = fused(x, weight, residual)
    wide_y, wide_residual_out = fused(wide_x, weight, wide_residual)
    assert residual_out is not None
    assert wide_residual_out is not None
    assert same_bits(y, wide_y)
    assert same_bits(residual_out, wide_residual_out)


@pytest.mark.parametrize("n", [5000, 20000], ids=["whole row", "long row"])
def test_a_lone_row_is_as_aligned_as_it_is_long(module: ModuleType, fused: Fused, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    found: list[int] = []
    align = module.common_alignment
    monkeypatch.setattr(module, "common_alignment", lambda *strides: found.append(align(*strides)) or found[-1])
    x, residual, weight = rows(1, n), rows(1, n, seed=2), rows(1, n, seed=3)[0]
    wide_x, wide_residual = (torch.nn.functional.pad(row, (0, gap))[:, :n] for row, gap in ((x, 1), (residual, 3)))
    assert same_bits(fused(x, weight, residual)[0], fused(wide_x, weight, wide_residual)[0])
    assert [math.gcd(16, n)] * 2 == found


@pytest.mark.parametrize("n", [64, 20000], ids=["whole row", "long row"])
def test_row_may_start_past_two_to_the_31_elements(fused: Fused, n: int) -> None:
    # The pages between the rows are never touched, so they take no memory. A 32-bit offset would fault.
    stride = 2**31 + 64
    x = torch.empty(stride + n, dtype=torch.float16).as_strided((2, n), (stride, 1))
    x[0], x[1] = rows(2, n, "fp16")
    y, _ = fused(x, torch.ones(n, dtype=torch.float16))
    assert same_bits(fused(x.contiguous(), torch.ones(n, dtype=torch.float16))[0], y)


def test_no_rows_give_no_rows(kernel: Kernel) -> None:
    x = rows(0, 8)
    for name in kernel.variants:
        y, residual_out = kernel.variant(name).call(x, torch.ones(8), x)
        assert x.shape == y.shape == residual_out.shape


# Refusals

OPTION_REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "eps as text": ({"eps": "a"}, "eps='a': give an int or float, 0 or more"),
    "no eps": ({"eps": None}, "eps=None"),
    "eps as a flag": ({"eps": True}, "eps=True"),
    "eps as a tensor": ({"eps": torch.tensor(1e-6)}, "eps=tensor"),
    "plus_one that is no flag": ({"plus_one": 2}, "plus_one=2: use 0 or 1, or a bool"),
    "plus_one below zero": ({"plus_one": -1}, "plus_one=-1"),
    "plus_one as a float": ({"plus_one": 1.0}, r"plus_one=1\.0"),
    "plus_one as text": ({"plus_one": "1"}, "plus_one='1'"),
    "no plus_one": ({"plus_one": None}, "plus_one=None"),
    "cast as a flag": ({"cast": True}, "cast=True"),
}

REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "dtype": ({"x": rows(2, 8).double()}, r"x has .*float64: give .*float32 or torch\.float16 or torch\.bfloat16"),
    "one axis": ({"x": rows(2, 8)[0]}, r"x has shape \(8,\)"),
    "three axes": ({"x": rows(2, 8)[None]}, r"x has shape \(1, 2, 8\).*flattened"),
    "no columns": ({"x": rows(2, 0), "weight": torch.ones(0)}, r"x has shape \(2, 0\)"),
    "column stride of x": ({"x": rows(8, 2).T}, r"x has strides \(1, 2\).*contiguous"),
    "column stride of residual": ({"residual": rows(2, 16)[:, ::2]}, r"residual has strides \(16, 2\)"),
    "weight of another length": ({"weight": torch.ones(7)}, r"weight has shape \(7,\).*\(8,\)"),
    "weight of another dtype": ({"weight": torch.ones(8).half()}, r"weight has .*float16.*float32"),
    "strided weight": ({"weight": torch.ones(16)[::2]}, r"weight has strides \(2,\)"),
    "residual of another shape": ({"residual": rows(1, 8)}, r"residual has shape \(1, 8\).*\(2, 8\)"),
    "residual of a narrower dtype": ({"residual": rows(2, 8, "fp16")}, r"residual has .*float16"),
    "residual of a wider dtype": ({"residual": rows(2, 8).double()}, r"residual has .*float64: give .*float32$"),
    "weight on another device": ({"weight": torch.ones(8, device="meta")}, "weight is on meta: move it to cpu"),
    "residual on another device": ({"residual": rows(2, 8).to("meta")}, "residual is on meta: move it to cpu"),
    "cast": ({"cast": "during"}, "cast='during': use 'after' or 'before'"),
    "negative eps": ({"eps": -1.0}, r"eps=-1\.0"),
    "eps that is no number": ({"eps": float("nan")}, "eps=nan"),
    **OPTION_REFUSALS,
}


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refuses(kernel: Kernel, change: dict[str, Any], message: str) -> None:
    for name in kernel.variants:
        with pytest.raises(ValueError, match=message):
            kernel.variant(name).call(**{"x": rows(2, 8), "weight": torch.ones(8), "residual": None, **change})


@pytest.mark.parametrize(("change", "message"), OPTION_REFUSALS.values(), ids=OPTION_REFUSALS)
def test_reference_refuses_the_options_that_variants_refuse(kernel: Kernel, change: dict[str, Any], message: str) -> None:
    options = {"residual": None, "eps": 1e-6, "plus_one": 0, "cast": "after"}
    with pytest.raises(ValueError, match=f"rmsnorm: {message}"):
        kernel.reference(**{"x": rows(2, 8), "weight": torch.ones(8), **options, **change})


def test_plus_one_may_be_a_bool(kernel: Kernel) -> None:
    x, weight = rows(2, 8), rows(1, 8, seed=2)[0]
    for name in kernel.variants:
        for flag in (False, True):
            assert same_bits(*(kernel.variant(name).call(x, weight, plus_one=given)[0] for given in (flag, int(flag))))


# Cost model


def test_traffic_is_the_sum_of_the_tensors(kernel: Kernel) -> None:
    for case in kernel.cases:
        inputs = kernel.make_inputs(case, Generator(0, "meta"))
        returned = kernel.variant(kernel.baseline).call(**inputs)
        read = sum(t.numel() * t.element_size() for t in inputs.values() if isinstance(t, torch.Tensor))
        written = sum(t.numel() * t.element_size() for t in returned if t is not None)
        found = kernel.traffic(case)
        assert (read, written) == (found.read_bytes, found.written_bytes), case.key


def test_flops_count_each_value_and_the_residual_add(kernel: Kernel) -> None:
    expected = {"M=1,N=5120,dtype=bf16": 4 * 5120, "M=1,N=5120,residual=1,plus_one=1,dtype=bf16": 5 * 5120}
    assert expected == {key: kernel.flops(kernel.case(key)) for key in expected}


# Launch plan


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_plan_covers_every_row_within_the_limits_of_a_block(module: ModuleType, kernel: Kernel, gpu: DeviceProperties) -> None:
    for case in kernel.cases:
        if case.N > module.ROW_LIMIT:
            continue
        plan = module.plan_rows(case.M, case.N, torch_dtype(case.dtype).itemsize, gpu)
        threads = plan.warps * gpu.warp_size
        assert plan.block * (plan.chunks - 1) < case.N <= plan.block * plan.chunks, case.key
        assert threads <= 1024, case.key
        assert plan.rows * plan.block * plan.chunks <= 64 * threads, case.key


PLANS = {
    "a lone row takes four loads a lane": ((1, 8192), (1, 2048, 4, 8)),
    "a row among many too": ((4096, 8192), (1, 2048, 4, 8)),
    "a row that is no power of two takes five": ((4096, 5120), (1, 1024, 5, 4)),
    "a row of two loads takes one warp": ((64, 512), (1, 256, 2, 1)),
    "a short row takes one warp": ((24, 256), (1, 256, 1, 1)),
    "short rows share a warp once the grid is full": ((1536, 256), (2, 256, 1, 1)),
    "and warps a program once warps are full": ((98304, 256), (16, 256, 1, 4)),
    "the longest row stays within 512 threads": ((4096, 16384), (1, 4096, 4, 16)),
    "one value": ((1, 1), (1, 1, 1, 1)),
}


@pytest.mark.parametrize(("shape", "expected"), PLANS.values(), ids=PLANS)
def test_plan_in_bf16(module: ModuleType, shape: tuple[int, int], expected: tuple[int, int, int, int]) -> None:
    plan = module.plan_rows(*shape, 2, GPUS["large"])
    assert expected == (plan.rows, plan.block, plan.chunks, plan.warps)


def test_wider_warps_make_fewer_of_them(module: ModuleType) -> None:
    warps = {name: module.plan_rows(16384, 8192, 2, gpu).warps for name, gpu in GPUS.items()}
    expected = {"small": 8, "large": 8, "wave64": 4}
    assert expected == warps


# The cases


def test_cases_hold_every_shape_of_the_catalogue(kernel: Kernel) -> None:
    shapes = {(case.M, case.N) for case in kernel.cases}
    grid = {(m, n) for m in (1, 16, 64, 128, 256, 1024, 4096, 16384) for n in (4096, 5120, 8192, 16384)}
    assert grid | {(24, 256), (4, 256), (64, 5000), (7, 1)} <= shapes


def test_one_case_is_the_smoke_case_and_three_are_headlines(kernel: Kernel) -> None:
    tagged = {tag: [(case.M, case.N) for case in kernel.cases if tag in case.tags] for tag in ("smoke", "headline")}
    assert {"smoke": [(1, 5120)], "headline": [(1, 5120), (128, 5120), (4096, 5120)]} == tagged


def test_peers_are_six_row_counts_of_four_widths_in_bf16(kernel: Kernel) -> None:
    peers = {(case.M, case.N) for case in kernel.cases if "peers" in case.tags and case.dtype == "bf16"}
    assert {(m, n) for m in (1, 16, 128, 1024, 4096, 16384) for n in (4096, 5120, 8192, 16384)} == peers


def test_cpu_cases_cover_every_option_in_every_dtype(kernel: Kernel) -> None:
    cpu = [case for case in kernel.cases if "cpu" in case.tags]
    for dtype in DTYPES:
        of_dtype = [case for case in cpu if case.dtype == dtype]
        assert {0, 1} == {case.plus_one for case in of_dtype}
        assert {1e-6, 1e-5} == {case.eps for case in of_dtype}
        assert {"after", "before"} == {case.cast for case in of_dtype}
        assert {0, 1} == {case.strided for case in of_dtype}
        assert {0, 1} <= {case.residual for case in of_dtype}
        assert any("ragged" in case.tags for case in of_dtype)
        assert 1 in {case.N for case in of_dtype}


def test_cpu_cases_are_small_enough_for_the_interpreter(kernel: Kernel, module: ModuleType) -> None:
    for case in kernel.cases:
        if "cpu" in case.tags:
            assert case.M <= 200, case.key


def test_meta_inputs_have_the_shapes_strides_and_dtypes_of_real_ones(kernel: Kernel) -> None:
    for case in kernel.cases:
        if "cpu" in case.tags:
            real, meta = (kernel.make_inputs(case, Generator(0, device)) for device in ("cpu", "meta"))
            for name, value in real.items():
                if isinstance(value, torch.Tensor):
                    assert (value.shape, value.stride(), value.dtype) == (meta[name].shape, meta[name].stride(), meta[name].dtype)
                else:
                    assert value == meta[name]
