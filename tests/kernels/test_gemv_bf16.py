from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from kernel_testing import GPUS, rel_l2

from harness import Case, DeviceProperties, Kernel
from harness.devices.properties import device_properties, pretend
from harness.measure.data import Generator, torch_dtype

KERNEL_NAME = "gemv_bf16"
VARIANTS = ("auto", "gemv", "gemv_split_k", "gemm", "gemm_split_k", "torch")
TRITON = VARIANTS[:-1]
SPLIT = ("gemv_split_k", "gemm_split_k")
DTYPES = ("fp32", "fp16", "bf16")

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture(params=VARIANTS)
def call(kernel: Kernel, request: pytest.FixtureRequest) -> Call:
    """A variant's launcher: what holds for one holds for the others."""
    return kernel.variant(request.param).call


def integers(rows: int, columns: int, dtype: str, seed: int = 1) -> torch.Tensor:
    """Integers of -8 to 8: every sum of their products is exact in fp32."""
    return Generator(seed).integers((rows, columns), -8, 9).to(torch_dtype(dtype))


def product(x: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """The exact product, rounded once."""
    return (x.double() @ W.double().T).to(x.dtype)


# Right on every case


def test_result_is_within_tolerance_of_the_reference(kernel: Kernel, cpu_cell: tuple[str, Case]) -> None:
    variant_name, case = cpu_cell
    inputs = kernel.make_inputs(case, Generator(2))
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    expected = kernel.reference(**inputs)["y"]
    y = kernel.variant(variant_name).call(**inputs)
    tolerance = kernel.tolerance_of(case)
    assert (case.M, case.N) == tuple(expected.shape) == tuple(y.shape)
    assert torch_dtype(case.dtype) == y.dtype
    assert y.is_contiguous()
    assert rel_l2(y, expected) <= tolerance.limit("y")
    assert float(torch.cosine_similarity(y.double().flatten(), expected.flatten(), dim=0)) >= (tolerance.cosine or 0)
    assert all(torch.equal(before[name], inputs[name]) for name in before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_integers_are_exact_and_rounded_once_to_nearest(call: Call, dtype: str) -> None:
    # Sums reach thousands, which bf16 rounds; an interpreter that multiplies bf16 blocks wrongly, or truncates, fails here.
    x, W = integers(2, 600, dtype), integers(5, 600, dtype, seed=2)
    assert torch.equal(product(x, W), call(x, W))


@pytest.mark.parametrize("rows", range(1, 9))
def test_gemv_takes_one_to_eight_rows(kernel: Kernel, rows: int) -> None:
    x, W = integers(rows, 40, "bf16"), integers(2, 40, "bf16", seed=2)
    assert torch.equal(product(x, W), kernel.variant("gemv").call(x, W))


@pytest.mark.parametrize("variant", ["auto", "gemm", "gemm_split_k"])
def test_gemm_takes_one_row_and_more_than_a_tile_holds(kernel: Kernel, variant: str) -> None:
    W = integers(5, 40, "bf16", seed=2)
    for rows in (1, 130):
        x = integers(rows, 40, "bf16")
        assert torch.equal(product(x, W), kernel.variant(variant).call(x, W))


def test_reference_is_the_sum_of_products_in_double_precision_however_it_is_cut(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, W = Generator(3).uniform((2, 7)), Generator(4).uniform((5, 7))
    expected = [[math.fsum(a * b for a, b in zip(row, column, strict=True)) for column in W.tolist()] for row in x.tolist()]
    for values in (1, 14, 1 << 26):
        monkeypatch.setattr(module, "CHUNK_VALUES", values)
        found = module.reference(x, W)["y"]
        assert torch.float64 == found.dtype
        assert torch.allclose(torch.tensor(expected, dtype=torch.float64), found, rtol=1e-14)


def test_reference_chunks_leave_no_rest_behind(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    x, W = integers(2, 8, "bf16"), integers(21, 8, "bf16", seed=2)
    whole = module.reference(x, W)["y"]
    monkeypatch.setattr(module, "CHUNK_VALUES", 40)
    assert torch.equal(whole, module.reference(x, W)["y"])


# Split K


@pytest.mark.parametrize("variant", SPLIT)
def test_partial_sums_give_equal_bits_from_run_to_run(kernel: Kernel, variant: str) -> None:
    inputs = kernel.make_inputs(kernel.case("M=4,K=512,N=8,dtype=fp32"), Generator(5))
    first, second = (kernel.variant(variant).call(**inputs) for _ in range(2))
    assert torch.equal(first.view(torch.int32), second.view(torch.int32))


def test_partial_sums_are_added_in_ascending_order_of_k(module: ModuleType) -> None:
    sums = torch.tensor([1.0, 2.0**-24, 2.0**-24, -1.0]).reshape(4, 1, 1)  # in another order 2^-24 is not lost
    assert [[0.0]] == module._finish(sums, torch.empty(1, 1)).tolist()


@pytest.mark.parametrize("variant", SPLIT)
def test_a_split_grid_takes_a_workspace_and_adds_it_up(
    kernel: Kernel, module: ModuleType, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    given: list[tuple[int, ...]] = []
    finish = module._finish
    monkeypatch.setattr(module, "_finish", lambda sums, y: given.append(tuple(sums.shape)) or finish(sums, y))
    x, W = integers(2, 2048, "bf16"), integers(4, 2048, "bf16", seed=2)
    assert torch.equal(product(x, W), kernel.variant(variant).call(x, W))
    assert [(2, 4)] == [shape[1:] for shape in given]
    assert given[0][0] > 1


# NaN and infinity


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_nan_and_infinity_reach_their_row_or_column_alone(call: Call, dtype: str) -> None:
    x, W = integers(3, 70, dtype), integers(6, 70, dtype, seed=2)
    W[:, 3] = 1
    x[1, 3] = math.inf
    x[2, 69] = math.nan
    W[5, 0] = math.nan
    y = call(x, W)
    assert [True, False, False] == y[:, :5].isfinite().all(dim=1).tolist()
    assert (y[1, :5] == math.inf).all()
    assert y[2].isnan().all()
    assert y[:, 5].isnan().all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
def test_fp16_overflows_as_ieee_does(call: Call) -> None:
    x, W = torch.full((2, 64), 256.0, dtype=torch.float16), torch.full((3, 64), 256.0, dtype=torch.float16)
    W[1] = -256
    assert torch.tensor([[math.inf, -math.inf, math.inf]] * 2).equal(call(x, W).float())


# Strides


def apart(tensor: torch.Tensor, gap: int) -> torch.Tensor:
    """The same rows, `gap` NaN apart."""
    rows, columns = tensor.shape
    wide = torch.full((rows, columns + gap), math.nan, dtype=tensor.dtype)
    wide[:, :columns] = tensor
    return wide[:, :columns]


@pytest.mark.parametrize("gaps", [(5, 3), (64, 128)], ids=["unaligned", "aligned"])
def test_rows_may_lie_apart_and_what_is_between_is_not_read(call: Call, gaps: tuple[int, int]) -> None:
    x, W = integers(3, 200, "bf16"), integers(7, 200, "bf16", seed=2)
    assert torch.equal(product(x, W), call(apart(x, gaps[0]), apart(W, gaps[1])))


@pytest.mark.parametrize("variant", ["gemv", "gemm"])
def test_lone_rows_are_as_aligned_as_they_are_long(
    kernel: Kernel, module: ModuleType, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    found: list[int] = []
    align = module.common_alignment
    monkeypatch.setattr(module, "common_alignment", lambda *strides: found.append(align(*strides)) or found[-1])
    x, rows_of_w = integers(1, 208, "bf16"), integers(4, 208, "bf16", seed=2)
    for W in (rows_of_w, rows_of_w[:1], apart(rows_of_w[:1], 3)):
        assert torch.equal(product(x, W), kernel.variant(variant).call(apart(x, 1), W))
    assert [16, 16, 16] == found


@pytest.mark.parametrize("variant", TRITON)
def test_row_may_start_past_two_to_the_31_elements(kernel: Kernel, variant: str) -> None:
    # The pages in between are never touched, so they take no memory. A 32-bit product of index and stride would fault.
    def far(tensor: torch.Tensor) -> torch.Tensor:
        rows, columns = tensor.shape
        stride = 2**30 + 64
        buffer = torch.empty((rows - 1) * stride + columns, dtype=tensor.dtype)
        return buffer.as_strided(tensor.shape, (stride, 1)).copy_(tensor)

    x, W = integers(4, 48, "fp16"), integers(4, 48, "fp16", seed=2)
    assert torch.equal(product(x, W), kernel.variant(variant).call(far(x), far(W)))


def test_a_single_column_may_have_any_stride(call: Call) -> None:
    x, W = integers(2, 3, "fp32")[:, ::3], integers(4, 5, "fp32", seed=2)[:, ::5]
    assert torch.equal(product(x, W), call(x, W))


# Empty batches and refusals


def test_no_rows_give_no_rows_and_launch_nothing(call: Call, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for launched in ("_gemv", "_gemm", "_add_splits"):
        monkeypatch.setattr(module, launched, None)
    assert (0, 6) == call(torch.zeros(0, 4), torch.zeros(6, 4)).shape


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "one axis of x": ({"x": torch.zeros(8)}, r"x has shape \(8,\).*give x \(M, K\) and W \(N, K\)"),
    "three axes of W": ({"W": torch.zeros(1, 4, 8)}, r"W \(1, 4, 8\)"),
    "no columns": ({"x": torch.zeros(2, 0), "W": torch.zeros(4, 0)}, "K > 0"),
    "no rows of W": ({"W": torch.zeros(0, 8)}, "N > 0"),
    "another K": ({"W": torch.zeros(4, 9)}, r"W has shape \(4, 9\).*give \(4, 8\)"),
    "dtype of x": ({"x": torch.zeros(2, 8).double()}, "x has .*float64.*give .*float32 or torch.float16 or torch.bfloat16"),
    "dtype of W": ({"W": torch.zeros(4, 8).half()}, "W has .*float16.*give .*float32"),
    "column stride of x": ({"x": torch.zeros(2, 16)[:, ::2]}, r"x has strides \(16, 2\).*contiguous"),
    "W transposed": ({"W": torch.zeros(8, 4).T}, r"W has strides \(1, 4\).*contiguous"),
    "another device": ({"W": torch.zeros(4, 8, device="meta")}, "W is on meta.*cpu"),
}


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refuses(call: Call, change: dict[str, Any], message: str) -> None:
    given = {"x": torch.zeros(2, 8), "W": torch.zeros(4, 8)}
    with pytest.raises(ValueError, match=f"gemv_bf16: .*{message}"):
        call(**{**given, **change})


@pytest.mark.parametrize("variant", ["gemv", "gemv_split_k"])
def test_gemv_refuses_more_rows_than_it_is_made_for(kernel: Kernel, variant: str) -> None:
    with pytest.raises(ValueError, match=r"gemv_bf16: x has 9 rows: .*at most 8, use auto or gemm"):
        kernel.variant(variant).call(torch.zeros(9, 8), torch.zeros(4, 8))


# Cost model


def test_traffic_is_the_sum_of_the_tensors_sizes(kernel: Kernel) -> None:
    for case in kernel.cases:
        inputs = kernel.make_inputs(case, Generator(0, "meta"))
        y = kernel.variant("torch").call(**inputs)
        read = sum(tensor.numel() * tensor.element_size() for tensor in inputs.values())
        found = kernel.traffic(case)
        assert (read, y.numel() * y.element_size()) == (found.read_bytes, found.written_bytes), case.key


def test_flops_are_two_a_weight_and_row(kernel: Kernel) -> None:
    assert 2 * 2 * 1536 * 80 == kernel.flops(kernel.case("M=2,K=1536,N=80,dtype=bf16"))


# Launch plans


def sizes(kernel: Kernel) -> list[tuple[int, int, int, int]]:
    return [(c.M, c.N, c.K, torch_dtype(c.dtype).itemsize) for c in kernel.cases]


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
def test_gemv_plan_covers_every_column_once(module: ModuleType, kernel: Kernel, gpu: DeviceProperties, is_split: bool) -> None:
    for m, n, k, item in sizes(kernel):
        plan = module.plan_gemv(m, n, k, item, is_split, gpu)
        step = plan.block * plan.chunks
        assert (plan.splits - 1) * plan.steps * step < k <= plan.splits * plan.steps * step
        assert plan.block * item == plan.warps * gpu.warp_size * 16  # one vector a lane, all lanes along K
        assert plan.rows * plan.chunks <= 8
        assert (1 < plan.splits) == (is_split and k > plan.block)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
def test_gemm_plan_covers_every_column_once_and_fits_shared_memory(
    module: ModuleType, kernel: Kernel, gpu: DeviceProperties, is_split: bool
) -> None:
    for m, n, k, item in sizes(kernel):
        plan = module.plan_gemm(m, n, k, item, 16, is_split, gpu)
        assert (plan.splits - 1) * plan.steps * plan.block_k < k <= plan.splits * plan.steps * plan.block_k
        assert 2 <= plan.stages
        assert plan.stages * (plan.block_m + plan.block_n) * plan.block_k * item <= gpu.shared_bytes_per_block
        assert min(m, 64) <= plan.block_m
        assert is_split or 1 == plan.splits
        assert not is_split or plan.splits > 1 or k <= 7 * plan.block_k


LONG_ROWS = {"a power of two": 1 << 20, "no whole number of blocks": 999_999, "no divisor in reach": 1021 * 1024}


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
@pytest.mark.parametrize("k", LONG_ROWS.values(), ids=LONG_ROWS)
def test_splits_are_few_however_long_and_few_the_rows(module: ModuleType, gpu: DeviceProperties, k: int) -> None:
    gemv, gemm = module.plan_gemv(1, 1, k, 2, True, gpu), module.plan_gemm(16, 1, k, 2, 16, True, gpu)
    for splits, columns in ((gemv.splits, gemv.steps * gemv.chunks * gemv.block), (gemm.splits, gemm.steps * gemm.block_k)):
        assert 32 < splits <= module.LARGEST_SPLITS
        assert (splits - 1) * columns < k <= splits * columns


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_the_most_splits_are_out_of_reach_of_the_cases(module: ModuleType, kernel: Kernel, gpu: DeviceProperties) -> None:
    for m, n, k, item in sizes(kernel):
        assert module.plan_gemv(m, n, k, item, True, gpu).splits < module.LARGEST_SPLITS
        assert module.plan_gemm(m, n, k, item, 16, True, gpu).splits < module.LARGEST_SPLITS


GEMV_ROWS = {
    "a large matrix has four rows a program": ((1, 17408, 5120), {"small": 4, "large": 4, "wave64": 4}),
    "few rows are spread over all multiprocessors": ((1, 1024, 5120), {"small": 4, "large": 1, "wave64": 1}),
    "eight activations leave registers for two": ((8, 17408, 5120), {"small": 2, "large": 2, "wave64": 2}),
    "a lone row of W": ((1, 1, 5120), {"small": 1, "large": 1, "wave64": 1}),
}


@pytest.mark.parametrize(("shape", "expected"), GEMV_ROWS.values(), ids=GEMV_ROWS)
def test_rows_of_a_gemv_program(module: ModuleType, shape: tuple[int, int, int], expected: dict[str, int]) -> None:
    assert expected == {name: module.plan_gemv(*shape, 2, False, gpu).rows for name, gpu in GPUS.items()}


GEMM_TILES = {
    "many waves take the tallest tiles": ((16, 248320, 5120, False), {"small": (64, 1), "large": (128, 1), "wave64": (64, 1)}),
    "a grid of two programs a multiprocessor": ((16, 5120, 17408, False), {"small": (64, 1), "large": (16, 1), "wave64": (16, 1)}),
    "K is split, evenly, until it has that many": ((16, 5120, 17408, True), {"small": (64, 2), "large": (64, 4), "wave64": (64, 8)}),
    "but not below four steps": ((16, 48, 5120, True), {"small": (64, 20), "large": (64, 10), "wave64": (64, 20)}),
}


@pytest.mark.parametrize(("shape", "expected"), GEMM_TILES.values(), ids=GEMM_TILES)
def test_rows_and_splits_of_a_gemm_grid(
    module: ModuleType, shape: tuple[int, int, int, bool], expected: dict[str, tuple[int, int]]
) -> None:
    m, n, k, is_split = shape
    plans = {name: module.plan_gemm(m, n, k, 2, 16, is_split, gpu) for name, gpu in GPUS.items()}
    assert expected == {name: (plan.block_n, plan.splits) for name, plan in plans.items()}


CHOICES = {
    "one row": ((1, 17408, 2), "gemv"),
    "two rows of a large matrix": ((2, 17408, 2), "gemm"),
    "sixteen rows of a small one": ((16, 1024, 2), "gemm_split_k"),
    "fp32, which has no matrix unit": ((8, 17408, 4), "gemv"),
    "more fp32 rows than gemv takes": ((9, 17408, 4), "gemm"),
}


@pytest.mark.parametrize(("shape", "expected"), CHOICES.values(), ids=CHOICES)
def test_auto_is_the_variant_that_the_table_names(module: ModuleType, shape: tuple[int, int, int], expected: str) -> None:
    assert expected == module.choose(*shape, GPUS["large"])


@pytest.mark.parametrize(("rows", "dtype"), [(1, "bf16"), (4, "fp32"), (16, "bf16")])
def test_auto_launches_what_it_chose(kernel: Kernel, module: ModuleType, rows: int, dtype: str) -> None:
    inputs = kernel.make_inputs(kernel.case(f"M={rows},K=512,N=8,dtype={dtype}"), Generator(6))
    chosen = module.choose(rows, 8, torch_dtype(dtype).itemsize, device_properties())
    assert torch.equal(kernel.variant(chosen).call(**inputs), kernel.variant("auto").call(**inputs))


# The cases


def test_peers_are_the_three_matrices_at_five_batches(kernel: Kernel) -> None:
    peers = [(c.K, c.N, c.M, c.dtype) for c in kernel.cases if "peers" in c.tags]
    assert [(k, n, m, "bf16") for k, n in ((5120, 17408), (17408, 5120), (5120, 248320)) for m in (1, 2, 4, 8, 16)] == peers


def test_headline_and_smoke_are_few(kernel: Kernel) -> None:
    assert 3 == sum("headline" in c.tags for c in kernel.cases)
    assert 1 == sum("smoke" in c.tags for c in kernel.cases)


def test_cases_hold_every_shape_of_the_catalogue(kernel: Kernel) -> None:
    by_k = {
        5120: (17408, 248320, 10240, 6144, 12288, 1024, 48, 16480, 14336, 34816),
        17408: (5120,),
        6144: (5120,),
        768: (3072, 50280),
        1536: (80, 768),
        48: (1536,),
        5000: (1234,),
    }
    shapes = {(c.K, c.N) for c in kernel.cases if (c.M, c.dtype) == (1, "bf16")}
    assert {(k, n) for k, columns in by_k.items() for n in columns} <= shapes


def test_cpu_cases_cover_every_variant_and_are_small_enough(kernel: Kernel, module: ModuleType) -> None:
    cpu = [c for c in kernel.cases if "cpu" in c.tags]
    for dtype in DTYPES:
        assert set(VARIANTS) == {v for v in kernel.variants for c in cpu if c.dtype == dtype and kernel.variant(v).cases(c)}
    assert {0, 1} == {c.strided for c in cpu}
    assert any("ragged" in c.tags for c in cpu)
    device = device_properties()
    for c in cpu:
        item = torch_dtype(c.dtype).itemsize
        for is_split in (False, True):
            gemv, gemm = module.plan_gemv(c.M, c.N, c.K, item, is_split, device), module.plan_gemm(c.M, c.N, c.K, item, 2, is_split, device)
            assert -(-c.N // gemv.rows) * gemv.splits <= 200, c.key
            assert -(-c.N // gemm.block_n) * -(-c.M // gemm.block_m) * gemm.splits <= 200, c.key


def test_outputs_of_the_inputs_have_variance_one(kernel: Kernel) -> None:
    y = kernel.reference(**kernel.make_inputs(kernel.case("M=2,K=1536,N=80,dtype=bf16"), Generator(7)))["y"]
    assert 1 == pytest.approx(float(y.var()), abs=0.3)


def test_meta_inputs_have_the_shapes_strides_and_dtypes_of_real_ones(kernel: Kernel) -> None:
    for case in kernel.cases:
        if "cpu" in case.tags:
            real, meta = (kernel.make_inputs(case, Generator(0, device)) for device in ("cpu", "meta"))
            for name, tensor in real.items():
                found = meta[name]
                assert (tensor.shape, tensor.stride(), tensor.dtype) == (found.shape, found.stride(), found.dtype), (case.key, name)


def test_launcher_asks_for_the_properties_of_the_device_it_launches_on(
    kernel: Kernel, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[DeviceProperties] = []
    plan = module.plan_gemv
    monkeypatch.setattr(module, "plan_gemv", lambda *arguments: asked.append(arguments[-1]) or plan(*arguments))
    with pretend(GPUS["wave64"]):
        kernel.variant("gemv").call(integers(1, 40, "bf16"), integers(2, 40, "bf16"))
    assert [GPUS["wave64"]] == asked
