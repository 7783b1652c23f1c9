from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from kernel_testing import rel_l2

from harness import Case, DeviceProperties, Kernel
from harness.measure.data import Generator, torch_dtype

KERNEL_NAME = "silu_mlp"
DTYPES = ("fp32", "fp16", "bf16")
GPUS = {
    "small": DeviceProperties("cuda", 20, 101_376, 32, 6 << 20),
    "large": DeviceProperties("cuda", 132, 232_448, 32, 60 << 20),
    "larger": DeviceProperties("cuda", 148, 232_448, 32, 126 << 20),
    "wave64": DeviceProperties("hip", 304, 65_536, 64, 256 << 20),
}
MATRICES = {"one row": (1, 1024), "several": (5, 512), "ragged": (3, 1001)}
PRODUCTS = {"gemv": (1, 300, 9), "gemv, four rows": (4, 256, 8), "dot": (16, 128, 16), "ragged dot": (5, 100, 21)}

Call = Callable[..., torch.Tensor]


@pytest.fixture(params=("elementwise", "torch"))
def elementwise(kernel: Kernel, request: pytest.FixtureRequest) -> Call:
    """A variant that takes matrices as well as products."""
    return kernel.variant(request.param).call


@pytest.fixture(params=("elementwise", "fused_gemv", "torch"))
def product(kernel: Kernel, request: pytest.FixtureRequest) -> Call:
    """A variant that takes x and weights: all do."""
    return kernel.variant(request.param).call


def rows(m: int, n: int, dtype: str = "fp32", seed: int = 1) -> torch.Tensor:
    return Generator(seed).uniform((m, n), dtype)


def operands(m: int, k: int, n: int, dtype: str = "fp32") -> dict[str, torch.Tensor]:
    return {"gate": rows(n, k, dtype, seed=1), "up": rows(n, k, dtype, seed=2), "x": rows(m, k, dtype, seed=3)}


def widened(tensor: torch.Tensor, padding: int) -> torch.Tensor:
    """The same rows in a wider buffer, with NaN between them."""
    m, n = tensor.shape
    return torch.full((m, n + padding), float("nan"), dtype=tensor.dtype).index_copy(1, torch.arange(n), tensor)[:, :n]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


# Right on every case


def test_result_is_within_tolerance_of_the_reference(kernel: Kernel, cpu_cell: tuple[str, Case]) -> None:
    variant_name, case = cpu_cell
    inputs = kernel.make_inputs(case, Generator(2))
    before = {name: value.clone() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    expected = kernel.reference(**inputs)["y"]
    y = kernel.variant(variant_name).call(**inputs)
    assert (case.M, case.N) == expected.shape == y.shape
    assert torch_dtype(case.dtype) == y.dtype
    assert y.is_contiguous()
    assert rel_l2(y, expected) <= kernel.tolerance_of(case).limit("y")
    assert all(same_bits(before[name], inputs[name]) for name in before)


def test_reference_is_the_formula_in_fp64(kernel: Kernel) -> None:
    gate, up, silu = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[3.0, 5.0, 7.0]]), lambda g: g / (1 + math.exp(-g))
    alone = kernel.reference(gate, up)["y"]
    product = kernel.reference(gate, up, torch.tensor([[1.0, 1.0, 0.5], [0.0, 0.0, 1.0]]))["y"]
    assert torch.float64 == alone.dtype == product.dtype
    assert [3 * silu(2), 0.0, 7 * silu(-1)] == pytest.approx(alone[0].tolist(), rel=1e-15)
    assert [11.5 * silu(1.5), 7 * silu(-1)] == pytest.approx(product[:, 0].tolist(), rel=1e-15)


# What each option means


@pytest.mark.parametrize(("m", "n"), MATRICES.values(), ids=MATRICES)
def test_packed_matrix_is_gate_and_then_up(elementwise: Call, m: int, n: int) -> None:
    gate, up = rows(m, n), rows(m, n, seed=2)
    assert torch.allclose(elementwise(gate, up), elementwise(torch.cat([gate, up], dim=1)), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("m", "k", "n"), PRODUCTS.values(), ids=PRODUCTS)
def test_packed_weight_is_gate_and_then_up(product: Call, m: int, k: int, n: int) -> None:
    apart = operands(m, k, n)
    packed = {"gate": torch.cat([apart["gate"], apart["up"]]), "up": None, "x": apart["x"]}
    assert torch.allclose(product(**apart), product(**packed), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("m", "k", "n"), PRODUCTS.values(), ids=PRODUCTS)
def test_one_launch_gives_what_three_give(kernel: Kernel, m: int, k: int, n: int) -> None:
    inputs = operands(m, k, n)
    assert rel_l2(kernel.variant("fused_gemv").call(**inputs), kernel.variant("elementwise").call(**inputs)) <= 2e-6


def test_gate_and_up_are_not_interchangeable(elementwise: Call) -> None:
    gate, up = rows(2, 64), rows(2, 64, seed=2)
    assert rel_l2(elementwise(gate, up), elementwise(up, gate)) > 0.1


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_elementwise_result_is_rounded_once(kernel: Kernel, dtype: str) -> None:
    gate, up = rows(3, 1000, dtype), rows(3, 1000, dtype, seed=2)
    call = kernel.variant("elementwise").call
    assert same_bits(call(gate.float(), up.float()).to(gate.dtype), call(gate, up))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(("m", "k", "n"), PRODUCTS.values(), ids=PRODUCTS)
def test_one_launch_rounds_once_and_three_round_the_products_too(kernel: Kernel, dtype: str, m: int, k: int, n: int) -> None:
    inputs = operands(m, k, n, dtype)
    wide = kernel.reference(**inputs)["y"]
    fused, apart = (kernel.variant(name).call(**inputs) for name in ("fused_gemv", "elementwise"))
    alone = rel_l2(wide.to(fused.dtype), wide)
    assert rel_l2(fused, wide) <= 1.01 * alone
    assert rel_l2(apart, wide) > 1.01 * alone


# Values that are not finite, and rows


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
def test_extreme_gates(elementwise: Call) -> None:
    gate = torch.tensor([[float("inf"), -float("inf"), float("nan"), 100.0, -200.0, 0.0]])
    y = elementwise(gate, torch.full((1, 6), 2.0))[0]
    assert float("inf") == y[0]
    assert y[1].isnan()
    assert y[2].isnan()
    assert [200.0, 0.0, 0.0] == y[3:].abs().tolist()


def test_nan_stays_where_it_is(elementwise: Call) -> None:
    gate, up = rows(3, 1000), rows(3, 1000, seed=2)
    clean = elementwise(gate, up)
    up[1, 7] = gate[2, 999] = float("nan")
    y = elementwise(gate, up)
    assert [[1, 7], [2, 999]] == y.isnan().nonzero().tolist()
    assert torch.allclose(clean, torch.where(y.isnan(), clean, y), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("m", "k", "n"), PRODUCTS.values(), ids=PRODUCTS)
def test_nan_in_x_fills_its_row_and_one_in_a_weight_its_column(product: Call, m: int, k: int, n: int) -> None:
    inputs = operands(m, k, n)
    inputs["x"][m - 1, k - 1] = inputs["up"][3, 0] = inputs["gate"][n - 1, 1] = float("nan")
    expected = torch.zeros(m, n, dtype=torch.bool)
    expected[m - 1], expected[:, 3], expected[:, n - 1] = True, True, True
    assert torch.equal(expected, product(**inputs).isnan())


@pytest.mark.parametrize(("m", "n"), MATRICES.values(), ids=MATRICES)
def test_strided_matrices_equal_contiguous_ones_and_the_padding_is_not_read(kernel: Kernel, m: int, n: int) -> None:
    gate, up = rows(m, n), rows(m, n, seed=2)
    call = kernel.variant("elementwise").call
    assert same_bits(call(gate, up), call(widened(gate, 8), widened(up, 3)))


@pytest.mark.parametrize(("m", "k", "n"), PRODUCTS.values(), ids=PRODUCTS)
def test_strided_operands_equal_contiguous_ones_and_the_padding_is_not_read(kernel: Kernel, m: int, k: int, n: int) -> None:
    inputs = operands(m, k, n)
    wide = {name: widened(tensor, padding) for (name, tensor), padding in zip(inputs.items(), (8, 16, 3), strict=True)}
    call = kernel.variant("fused_gemv").call
    assert same_bits(call(**inputs), call(**wide))


def test_rows_may_start_past_two_to_the_31_elements(kernel: Kernel) -> None:
    # The pages between the rows are never touched, so they take no memory. A 32-bit offset would fault.
    stride = 2**31 + 64
    far = torch.empty(stride + 64, dtype=torch.float16).as_strided((2, 64), (stride, 1))
    far[0], far[1] = rows(2, 64, "fp16")
    near = far.contiguous()
    elementwise, fused = (kernel.variant(name).call for name in ("elementwise", "fused_gemv"))
    assert same_bits(elementwise(near, near), elementwise(far, far))
    for m in (1, 16):
        x = rows(m, 64, "fp16")
        assert same_bits(fused(near, near, x), fused(far, far, x))
    assert same_bits(fused(near, near, near), fused(near, near, far))


def test_no_rows_give_no_rows(elementwise: Call, product: Call) -> None:
    assert (0, 8) == elementwise(rows(0, 8), rows(0, 8)).shape
    assert (0, 8) == elementwise(rows(0, 16)).shape
    assert (0, 8) == product(rows(8, 4), rows(8, 4), rows(0, 4)).shape
    assert (0, 8) == product(rows(16, 4), None, rows(0, 4)).shape


# Refusals

MATRIX_REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "dtype": ({"gate": rows(2, 8).double()}, r"gate has .*float64: give .*float32"),
    "one axis": ({"gate": rows(2, 8)[0]}, r"gate has shape \(8,\).*\(M, N\)"),
    "no columns": ({"gate": rows(2, 0), "up": rows(2, 0)}, r"gate has shape \(2, 0\)"),
    "odd packed columns": ({"gate": rows(2, 7), "up": None}, r"gate has shape \(2, 7\).*N doubled where there is no up"),
    "column stride of gate": ({"gate": rows(8, 2).T}, r"gate has strides \(1, 2\).*contiguous"),
    "column stride of up": ({"up": rows(2, 16)[:, ::2]}, r"up has strides \(16, 2\)"),
    "up of another shape": ({"up": rows(1, 8)}, r"up has shape \(1, 8\).*\(2, 8\)"),
    "up of another dtype": ({"up": rows(2, 8, "fp16")}, r"up has .*float16: give .*float32"),
    "up on another device": ({"up": rows(2, 8).to("meta")}, "up is on meta: move it to cpu"),
}


@pytest.mark.parametrize(("change", "message"), MATRIX_REFUSALS.values(), ids=MATRIX_REFUSALS)
def test_refuses_matrices(elementwise: Call, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        elementwise(**{"gate": rows(2, 8), "up": rows(2, 8), **change})


PRODUCT_REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "x of one axis": ({"x": rows(1, 8)[0]}, r"x has shape \(8,\): give \(M, 8\)"),
    "x of another width": ({"x": rows(1, 9)}, r"x has shape \(1, 9\).*\(1, 8\)"),
    "x of another dtype": ({"x": rows(1, 8, "bf16")}, r"x has .*bfloat16: give .*float32"),
    "column stride of x": ({"x": rows(8, 2).T}, r"x has strides \(1, 2\).*contiguous"),
    "odd packed rows": ({"gate": rows(5, 8), "up": None}, r"gate has shape \(5, 8\).*N doubled where there is no up"),
    "no columns": ({"gate": rows(4, 0), "up": rows(4, 0), "x": rows(1, 0)}, r"gate has shape \(4, 0\).*\(N, K\)"),
    "up of another shape": ({"up": rows(3, 8)}, r"up has shape \(3, 8\).*\(4, 8\)"),
}


@pytest.mark.parametrize(("change", "message"), PRODUCT_REFUSALS.values(), ids=PRODUCT_REFUSALS)
def test_refuses_operands(product: Call, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        product(**{"gate": rows(4, 8), "up": rows(4, 8), "x": rows(1, 8), **change})


def test_one_launch_refuses_more_rows_than_a_tile_has(kernel: Kernel) -> None:
    with pytest.raises(ValueError, match="x has 17 rows: fused_gemv takes up to 16, use elementwise"):
        kernel.variant("fused_gemv").call(**operands(17, 8, 4))


@pytest.mark.parametrize("up", [rows(4, 8), None], ids=["apart", "packed"])
def test_one_launch_refuses_a_product_of_nothing(kernel: Kernel, up: torch.Tensor | None) -> None:
    with pytest.raises(ValueError, match=r"silu_mlp: x is None: fused_gemv needs x \(M, K\).*use elementwise"):
        kernel.variant("fused_gemv").call(rows(4, 8), up, None)


# Cost model


def test_traffic_is_the_sum_of_the_tensors(kernel: Kernel) -> None:
    for case in kernel.cases:
        inputs = kernel.make_inputs(case, Generator(0, "meta"))
        y = kernel.variant(kernel.baseline).call(**inputs)
        read = sum(t.numel() * t.element_size() for t in inputs.values() if isinstance(t, torch.Tensor))
        found = kernel.traffic(case)
        assert (read, y.numel() * y.element_size()) == (found.read_bytes, found.written_bytes), case.key


def test_flops_are_five_a_value_and_four_a_pair_of_weights(kernel: Kernel) -> None:
    expected = {"M=1,N=17408,dtype=bf16": 5 * 17408, "M=4,K=5120,N=17408,dtype=bf16": 4 * 17408 * (5 + 4 * 5120)}
    assert expected == {key: kernel.flops(kernel.case(key)) for key in expected}


# Launch plans

ELEMENTWISE_PLANS = {
    "one row": ((1, 17408), (1, 1024, 4)),
    "two rows once the grid is full": ((128, 17408), (2, 1024, 4)),
    "columns that two warps divide": ((8192, 512), (2, 512, 2)),
    "columns that nothing divides": ((63, 17400), (2, 1024, 4)),
    "one value": ((1, 1), (1, 256, 1)),
}


@pytest.mark.parametrize(("shape", "expected"), ELEMENTWISE_PLANS.values(), ids=ELEMENTWISE_PLANS)
def test_elementwise_plan_in_bf16(module: ModuleType, shape: tuple[int, int], expected: tuple[int, int, int]) -> None:
    assert module.Tile(*expected) == module.plan_elementwise(*shape, 2, GPUS["large"])


def test_gemv_keeps_every_multiprocessor_as_busy_as_the_busiest(module: ModuleType) -> None:
    tiles = {name: module.plan_gemv(17408, 5120, 2, gpu) for name, gpu in GPUS.items()}
    assert {"small": 4, "large": 4, "larger": 4, "wave64": 2} == {name: tile.rows for name, tile in tiles.items()}
    assert {1024} == {tile.columns for tile in tiles.values()}
    assert {"small": 4, "large": 4, "larger": 4, "wave64": 2} == {name: tile.warps for name, tile in tiles.items()}
    assert 1 == module.plan_gemv(100, 5120, 2, GPUS["large"]).rows


def test_dot_tile_halves_until_there_are_programs_for_all(module: ModuleType) -> None:
    expected = {"small": 64, "large": 64, "larger": 64, "wave64": 32}
    assert expected == {name: module.plan_gemm(17408, 2, gpu).rows for name, gpu in GPUS.items()}
    assert 16 == module.plan_gemm(100, 2, GPUS["large"]).rows
    assert {2: 64, 4: 32} == {itemsize: module.plan_gemm(17408, itemsize, GPUS["large"]).columns for itemsize in (2, 4)}


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_plans_of_every_case_keep_within_a_block(module: ModuleType, kernel: Kernel, gpu: DeviceProperties) -> None:
    for case in kernel.cases:
        itemsize = torch_dtype(case.dtype).itemsize
        tiles = [module.plan_elementwise(case.M, case.N, itemsize, gpu)]
        if case.K:
            tiles.append(module.plan_gemv(case.N, case.K, itemsize, gpu))
        for tile in tiles:
            assert tile.columns * itemsize == 16 * gpu.warp_size * tile.warps, case.key
            assert tile.rows in (1, 2, 4), case.key
            assert tile.warps in (1, 2, 4), case.key


# The cases


def test_cases_hold_every_shape_of_the_catalogue(kernel: Kernel) -> None:
    shapes = {(case.M, case.K, case.N) for case in kernel.cases if case.dtype == "bf16"}
    assert {(m, 0, n) for m in (1, 16, 128, 1024, 8192) for n in (17408, 5120)} <= shapes
    assert {(m, 5120, 17408) for m in (1, 4, 16)} <= shapes


def test_peers_are_five_row_counts_of_two_widths(kernel: Kernel) -> None:
    peers = {(case.M, case.K, case.N) for case in kernel.cases if "peers" in case.tags}
    assert {(m, 0, n) for m in (1, 16, 128, 1024, 8192) for n in (17408, 5120)} == peers


def test_three_cases_are_headline(kernel: Kernel) -> None:
    assert [(1, 0), (8192, 0), (1, 5120)] == [(case.M, case.K) for case in kernel.cases if "headline" in case.tags]


def test_both_forms_of_a_product_are_variants_of_one_case(kernel: Kernel) -> None:
    for case in kernel.cases:
        covering = {name for name in kernel.variants if kernel.variant(name).cases(case)}
        assert ({"elementwise", "fused_gemv", "torch"} if case.K else {"elementwise", "torch"}) == covering


def test_cpu_cases_cover_every_option_in_every_dtype_and_are_small(kernel: Kernel, module: ModuleType) -> None:
    cpu = [case for case in kernel.cases if "cpu" in case.tags]
    assert all(case.M <= 200 for case in cpu)
    for dtype in DTYPES:
        for products in (False, True):
            of_dtype = [case for case in cpu if case.dtype == dtype and bool(case.K) == products]
            assert {0, 1} == {case.packed for case in of_dtype}
            assert {0, 1} == {case.strided for case in of_dtype}
            assert any("ragged" in case.tags for case in of_dtype)
        assert {True, False} == {case.M <= module.GEMV_LARGEST_M for case in of_dtype}


def test_meta_inputs_have_the_shapes_strides_and_dtypes_of_real_ones(kernel: Kernel) -> None:
    for case in kernel.cases:
        if "cpu" in case.tags:
            real, meta = (kernel.make_inputs(case, Generator(0, device)) for device in ("cpu", "meta"))
            for name, value in real.items():
                if isinstance(value, torch.Tensor):
                    assert (value.shape, value.stride(), value.dtype) == (meta[name].shape, meta[name].stride(), meta[name].dtype)
                else:
                    assert value == meta[name]
