from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from kernel_testing import GPUS

from harness import Case, DeviceProperties, Kernel
from harness.devices.properties import device_properties
from harness.measure.data import Generator, torch_dtype

KERNEL_NAME = "lm_head_argmax"
VARIANTS = ("fused", "torch")
DTYPES = ("fp32", "fp16", "bf16")

Call = Callable[..., torch.Tensor]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines


@pytest.fixture(params=VARIANTS)
def call(kernel: Kernel, request: pytest.FixtureRequest) -> Call:
    """A variant's launcher: what holds for one holds for the other."""
    return kernel.variant(request.param).call


@pytest.fixture(params=[*VARIANTS, "reference"])
def answer(kernel: Kernel, request: pytest.FixtureRequest) -> Call:
    """A variant or the reference: what an answer means holds for all."""
    if request.param == "reference":
        return lambda x, W, k=1: kernel.reference(x, W, k)["indices"]
    return kernel.variant(request.param).call


def head_of(logits: list[float] | torch.Tensor, dtype: str = "fp32") -> tuple[torch.Tensor, torch.Tensor]:
    """x and W whose product is exactly one row of the given logits, which have the dtype."""
    return torch.ones(1, 1, dtype=torch_dtype(dtype)), torch.as_tensor(logits).to(torch_dtype(dtype))[:, None]


# Right on every case


def test_result_is_the_reference(kernel: Kernel, cpu_cell: tuple[str, Case]) -> None:
    variant_name, case = cpu_cell
    inputs = kernel.make_inputs(case, Generator(2))
    expected = kernel.reference(**inputs)["indices"]
    indices = kernel.variant(variant_name).call(**inputs)
    assert (case.M, case.k) == tuple(expected.shape)
    assert torch.int64 == expected.dtype == indices.dtype
    assert expected.tolist() == indices.tolist()


def test_reference_is_a_sort_by_value_and_index(kernel: Kernel) -> None:
    for key in ("M=4,K=128,N=512,k=8,dtype=bf16", "M=5,K=100,N=333,k=3,strided=1,dtype=fp16"):
        case = kernel.case(key)
        inputs = kernel.make_inputs(case, Generator(3))
        exact = inputs["x"].double().numpy() @ inputs["W"].double().numpy().T
        logits = torch.from_numpy(exact).to(inputs["x"].dtype).tolist()
        expected = [
            [-1] * case.k if any(map(math.isnan, row)) else sorted(range(case.N), key=lambda n, row=row: (-row[n], n))[: case.k]
            for row in logits
        ]
        assert expected == kernel.reference(**inputs)["indices"].tolist()


# What an answer means


TIES = [(5, 6), (3, 70), (64, 65, 129), (0, 129)]


@pytest.mark.parametrize(("ties", "dtype"), [*((ties, "bf16") for ties in TIES), (TIES[2], "fp16"), (TIES[2], "fp32")], ids=str)
def test_lowest_index_wins_a_tie(answer: Call, ties: tuple[int, ...], dtype: str) -> None:
    logits = torch.linspace(-1, 0.5, 130)
    logits[list(ties)] = 1.5
    assert [[ties[0]]] == answer(*head_of(logits, dtype)).tolist()
    others = [n for n in range(129, 0, -1) if n not in ties]
    assert [[*ties, *others][: len(ties)]] == answer(*head_of(logits, dtype), k=len(ties)).tolist()


@pytest.mark.parametrize(("dtype", "step"), [("fp16", 2.0**-12), ("bf16", 2.0**-9)])
def test_logits_are_compared_as_they_round_to_nearest_even(answer: Call, dtype: str, step: float) -> None:
    x = torch.ones(1, 2, dtype=torch_dtype(dtype))
    W = torch.tensor([[0.5, 0], [1, -step], [1, step], [1, 0]], dtype=torch_dtype(dtype))
    assert [2] == (x.float() @ W.float().T).argmax(dim=1).tolist()  # unrounded, 1 + step is the largest
    assert [[2]] == answer(x.float(), W.float()).tolist()
    assert [[1, 2, 3]] == answer(x, W, k=3).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("place", [0, 77, 99])
def test_nan_anywhere_in_a_row_gives_minus_one(answer: Call, dtype: str, k: int, place: int) -> None:
    x, W = head_of(torch.linspace(0, 1, 100), dtype)
    x, W = torch.cat([x, x]), torch.cat([W, torch.zeros_like(W)], dim=1)
    x = torch.cat([x, torch.zeros_like(x)], dim=1)
    W[place, 1] = math.inf  # 0*inf is NaN; 1*inf is not
    x[1, 1] = 1
    found = answer(x, W, k=k).tolist()
    assert [-1] * k == found[0]
    assert [place, *(n for n in range(99, 95, -1) if n != place)][:k] == found[1]


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["positive", "negative"])
def test_nan_of_either_sign_is_a_nan(answer: Call, sign: float) -> None:
    nan = math.copysign(math.nan, sign)
    assert [[-1]] == answer(*head_of([math.inf, nan, 1.0])).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_minus_infinity_gives_the_first_indices(answer: Call, dtype: str) -> None:
    logits = [-math.inf] * 70
    assert [[0]] == answer(*head_of(logits, dtype)).tolist()
    assert [[0, 1, 2, 3]] == answer(*head_of(logits, dtype), k=4).tolist()


def test_infinities_are_ordered_as_numbers(answer: Call) -> None:
    logits = [-math.inf, 3e38, math.inf, -3e38, math.inf, 0.0]
    assert [[2, 4, 1, 5, 3, 0]] == answer(*head_of(logits), k=6).tolist()


def test_both_zeros_are_equal(answer: Call) -> None:
    logits = [-1.0, -0.0, 0.0, -0.0, -2.0]
    assert [[1, 2, 3, 0, 4]] == answer(*head_of(logits), k=5).tolist()


def test_a_product_that_rounds_to_negative_zero_is_zero(answer: Call) -> None:
    tiny = 2.0**-14  # its square is below half of fp16's least number
    x, W = torch.tensor([[tiny]], dtype=torch.float16), torch.tensor([[-1.0], [-tiny], [0.0], [-tiny]], dtype=torch.float16)
    assert [[1, 2, 3, 0]] == answer(x, W, k=4).tolist()


def test_negative_and_tiny_logits_are_ordered(answer: Call) -> None:
    logits = [-3.0, -1e-40, 1e-40, -2.5, 1e-38, -1e-38]
    assert [[4, 2, 1, 5, 3, 0]] == answer(*head_of(logits), k=6).tolist()


@pytest.mark.parametrize("n", [1, 15, 16, 17, 65])
def test_nothing_beyond_the_vocabulary_is_found(call: Call, n: int) -> None:
    logits = torch.full((n,), -5.0)
    logits[-1] = -4.0
    assert [[n - 1]] == call(*head_of(logits)).tolist()


def test_fp16_overflow_ties_at_infinity(answer: Call) -> None:
    x, W = torch.full((1, 2), 256.0, dtype=torch.float16), torch.ones(4, 2, dtype=torch.float16)
    W[1], W[3] = 200, 250
    assert [[1, 3, 0]] == answer(x, W, k=3).tolist()


# Candidates


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("k", [1, 5, 8])
def test_merges_of_several_levels_find_the_same(
    kernel: Kernel, module: ModuleType, monkeypatch: pytest.MonkeyPatch, block: int, k: int
) -> None:
    inputs = kernel.make_inputs(kernel.case("M=4,K=128,N=512,dtype=bf16"), Generator(4))
    monkeypatch.setattr(module, "MERGE_BLOCK", block)
    expected = kernel.reference(**{**inputs, "k": k})["indices"]
    assert expected.tolist() == kernel.variant("fused").call(**{**inputs, "k": k}).tolist()


def test_largest_logits_may_all_lie_in_one_tile(answer: Call) -> None:
    logits = torch.zeros(300)
    logits[130:138] = torch.tensor([3.0, 5.0, 5.0, 1.0, 4.0, 9.0, 2.0, 6.0])
    assert [[135, 137, 131, 132, 134, 130, 136, 133]] == answer(*head_of(logits), k=8).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [-9, 0, 9])
def test_the_first_eight_are_those_of_a_sort_by_value_and_index(answer: Call, dtype: str, shift: int) -> None:
    values = Generator(5).integers((90,), -40, 41).float() / 16 + shift
    order = np.lexsort((np.arange(90), -values.numpy()))
    assert [order[:8].tolist()] == answer(*head_of(values, dtype), k=8).tolist()


# Rows and strides


def apart(tensor: torch.Tensor, gap: int) -> torch.Tensor:
    """The same rows, `gap` NaN apart."""
    rows, columns = tensor.shape
    wide = torch.full((rows, columns + gap), math.nan, dtype=tensor.dtype)
    wide[:, :columns] = tensor
    return wide[:, :columns]


@pytest.mark.parametrize("gaps", [(5, 3), (64, 128)], ids=["unaligned", "aligned"])
def test_rows_may_lie_apart_and_what_is_between_is_not_read(kernel: Kernel, call: Call, gaps: tuple[int, int]) -> None:
    inputs = kernel.make_inputs(kernel.case("M=1,K=128,N=512,dtype=bf16"), Generator(6))
    wide = {"x": apart(inputs["x"], gaps[0]), "W": apart(inputs["W"], gaps[1])}
    assert kernel.reference(**inputs)["indices"].tolist() == call(**{**inputs, **wide}).tolist()


def test_row_may_start_past_two_to_the_31_elements(kernel: Kernel) -> None:
    # The pages in between are never touched, so they take no memory. A 32-bit product of index and stride would fault.
    def far(tensor: torch.Tensor) -> torch.Tensor:
        rows, columns = tensor.shape
        stride = 2**30 + 64
        buffer = torch.empty((rows - 1) * stride + columns, dtype=tensor.dtype)
        return buffer.as_strided(tensor.shape, (stride, 1)).copy_(tensor)

    x, W = Generator(7).uniform((4, 32), "fp16"), Generator(8).uniform((4, 32), "fp16")
    call = kernel.variant("fused").call
    assert call(x, W, k=4).tolist() == call(far(x), far(W), k=4).tolist()


def test_more_rows_than_a_tile_holds(call: Call, kernel: Kernel) -> None:
    x, W = Generator(9).integers((70, 16), -3, 4).half(), Generator(10).integers((40, 16), -3, 4).half()
    assert kernel.reference(x, W, 2)["indices"].tolist() == call(x, W, k=2).tolist()


# Empty batches and refusals


def test_no_rows_give_no_rows_and_launch_nothing(call: Call, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for launched in ("_lm_head_tiles", "_lm_head_merge"):
        monkeypatch.setattr(module, launched, None)
    found = call(torch.zeros(0, 4), torch.zeros(6, 4), k=3)
    assert ((0, 3), torch.int64) == (tuple(found.shape), found.dtype)


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "one axis of x": ({"x": torch.zeros(8)}, r"x has shape \(8,\).*give x \(M, K\) and W \(N, K\)"),
    "no columns": ({"x": torch.zeros(2, 0), "W": torch.zeros(4, 0)}, "K > 0"),
    "no vocabulary": ({"W": torch.zeros(0, 8)}, "N > 0"),
    "another K": ({"W": torch.zeros(4, 9)}, r"W has shape \(4, 9\).*give \(4, 8\)"),
    "dtype of x": ({"x": torch.zeros(2, 8).double()}, "x has .*float64"),
    "dtype of W": ({"W": torch.zeros(4, 8).half()}, r"W has .*float16.*give .*float32"),
    "column stride of x": ({"x": torch.zeros(2, 16)[:, ::2]}, r"x has strides \(16, 2\).*contiguous"),
    "W transposed": ({"W": torch.zeros(8, 4).T}, r"W has strides \(1, 4\).*contiguous"),
    "another device": ({"W": torch.zeros(4, 8, device="meta")}, r"W is on meta.*cpu"),
    "no index": ({"k": 0}, "k=0: give an int, 1 to 4"),
    "more indices than the vocabulary has": ({"k": 5}, "k=5: give an int, 1 to 4, with N=4"),
    "more indices than a tile finds": ({"k": 9, "W": torch.zeros(20, 8)}, "k=9: give an int, 1 to 8, with N=20"),
    "a float of indices": ({"k": 2.0}, r"k=2\.0: give an int, 1 to 4, with N=4"),
    "a flag for indices": ({"k": True}, "k=True: give an int, 1 to 4, with N=4"),
    "None for indices": ({"k": None}, "k=None: give an int, 1 to 4, with N=4"),
}


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refuses(call: Call, change: dict[str, Any], message: str) -> None:
    given = {"x": torch.zeros(2, 8), "W": torch.zeros(4, 8), "k": 1}
    with pytest.raises(ValueError, match=f"lm_head_argmax: .*{message}"):
        call(**{**given, **change})


# Cost model


def test_traffic_is_the_sum_of_the_tensors_sizes(kernel: Kernel) -> None:
    for case in kernel.cases:
        inputs = kernel.make_inputs(case, Generator(0, "meta"))
        indices = kernel.variant("torch").call(**inputs)
        read = sum(tensor.numel() * tensor.element_size() for tensor in inputs.values() if isinstance(tensor, torch.Tensor))
        found = kernel.traffic(case)
        assert (read, indices.numel() * indices.element_size()) == (found.read_bytes, found.written_bytes), case.key


def test_flops_are_two_a_weight_and_row(kernel: Kernel) -> None:
    assert 2 * 4 * 128 * 512 == kernel.flops(kernel.case("M=4,K=128,N=512,dtype=bf16"))


# The inputs make the answer exact


def test_every_partial_sum_is_an_exact_fp32_number_in_every_case(kernel: Kernel, module: ModuleType) -> None:
    assert all(case.K * module.LARGEST_INTEGER**2 < 2**24 for case in kernel.cases)
    for case in kernel.cases:
        if "cpu" in case.tags:
            inputs = kernel.make_inputs(case, Generator(11))
            unit = float(inputs["W"][0, 0]) / module.LARGEST_INTEGER
            for tensor, step in ((inputs["x"], 0.25), (inputs["W"], unit)):
                whole = tensor.double()[tensor.isfinite()] / step
                assert torch.equal(whole.round(), whole)
                assert whole.abs().max() <= module.LARGEST_INTEGER


def test_sums_in_any_order_give_the_same_logits(kernel: Kernel) -> None:
    inputs = kernel.make_inputs(kernel.case("M=2,K=768,N=1024,dtype=bf16"), Generator(12))
    x, W = inputs["x"].float(), inputs["W"].float()
    exact = x.double() @ W.double().T
    for order in (torch.arange(768), torch.arange(768).flip(0), Generator(13).permutation(768).long()):
        total = torch.zeros(2, 1024)
        for k in order.tolist():
            total += x[:, k, None] * W[None, :, k]
        assert torch.equal(exact, total.double())


def test_inputs_hold_ties_a_nan_row_and_a_row_of_minus_infinity(kernel: Kernel) -> None:
    inputs = kernel.make_inputs(kernel.case("M=16,K=128,N=512,dtype=bf16"), Generator(14))
    logits = (inputs["x"].double() @ inputs["W"].double().T).bfloat16()
    assert torch.equal(logits[:14, :256:2], logits[:14, 256::2])
    assert logits[14].isnan().all()
    assert (logits[15] == -math.inf).all()
    assert logits[:14].isfinite().all()
    assert 1 == pytest.approx(float(logits[:14].float().var()), abs=0.4)
    top = logits[:14].max(dim=1, keepdim=True).values
    assert ((logits[:14] == top).sum(dim=1) > 1).any()


def test_rounding_and_ties_decide_some_rows(kernel: Kernel) -> None:
    """A variant that compares unrounded sums, or takes the last of equal ones, is wrong on the inputs of a case."""
    inputs = kernel.make_inputs(kernel.case("M=16,K=128,N=512,dtype=bf16"), Generator(15))
    exact = (inputs["x"].double() @ inputs["W"].double().T)[:14]
    expected = kernel.reference(**inputs)["indices"][:14, 0]
    last = 511 - exact.bfloat16().flip(1).double().argmax(dim=1)
    assert not torch.equal(expected, last)
    rows = kernel.make_inputs(Case(M=200, K=128, N=512, k=1, strided=0, dtype="bf16"), Generator(16))
    unrounded = (rows["x"].double() @ rows["W"].double().T)[:198].argmax(dim=1)
    assert not torch.equal(kernel.reference(**rows)["indices"][:198, 0], unrounded)


def test_meta_inputs_have_the_shapes_strides_and_dtypes_of_real_ones(kernel: Kernel) -> None:
    for case in kernel.cases:
        if "cpu" in case.tags:
            real, meta = (kernel.make_inputs(case, Generator(0, device)) for device in ("cpu", "meta"))
            for name, value in real.items():
                if isinstance(value, torch.Tensor):
                    found = meta[name]
                    assert (value.shape, value.stride(), value.dtype) == (found.shape, found.stride(), found.dtype), (case.key, name)


# Launch plans


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_plan_fits_shared_memory_and_leaves_room_for_a_second_program(module: ModuleType, kernel: Kernel, gpu: DeviceProperties) -> None:
    for case in kernel.cases:
        item = torch_dtype(case.dtype).itemsize
        plan = module.plan_tiles(case.M, case.N, case.k, item, 16, gpu)
        step = (plan.block_m + plan.block_n) * plan.block_k * item
        assert plan.stages * step <= gpu.shared_bytes_per_block
        assert 2 <= plan.stages
        assert plan.stages <= 3 or 2 * plan.stages * step <= gpu.shared_bytes_per_block
        assert min(case.M, 64) <= plan.block_m


TILES = {
    "many waves take the tallest tiles": ((16, 248320, 1), {"small": 64, "large": 128, "wave64": 64}),
    "rows of x that leave registers for all keys, too": ((32, 248320, 8), {"small": 64, "large": 128, "wave64": 64}),
    "two keys of a full tile fit the registers": ((64, 248320, 2), {"small": 64, "large": 128, "wave64": 64}),
    "three do not": ((64, 248320, 3), {"small": 64, "large": 64, "wave64": 64}),
    "nor do those of two full tiles": ((65, 248320, 8), {"small": 64, "large": 64, "wave64": 64}),
    "a small vocabulary is spread over all multiprocessors": ((1, 4096, 1), {"small": 64, "large": 16, "wave64": 16}),
}


@pytest.mark.parametrize(("shape", "expected"), TILES.values(), ids=TILES)
def test_rows_of_a_tile(module: ModuleType, shape: tuple[int, int, int], expected: dict[str, int]) -> None:
    assert expected == {name: module.plan_tiles(*shape, 2, 16, gpu).block_n for name, gpu in GPUS.items()}


# The cases


def test_peers_are_the_large_head_at_three_batches(kernel: Kernel) -> None:
    peers = [(c.K, c.N, c.M, c.k, c.dtype) for c in kernel.cases if "peers" in c.tags]
    assert [(5120, 248320, m, 1, "bf16") for m in (1, 4, 16)] == peers


def test_headline_and_smoke_are_few(kernel: Kernel) -> None:
    assert 3 == sum("headline" in c.tags for c in kernel.cases)
    assert 1 == sum("smoke" in c.tags for c in kernel.cases)


def test_cases_hold_every_shape_of_the_catalogue(kernel: Kernel) -> None:
    shapes = {(c.M, c.K, c.N) for c in kernel.cases if "model" in c.tags and (c.k, c.dtype) == (1, "bf16")}
    assert {(m, k, n) for m in (1, 4, 16) for k, n in ((5120, 248320), (768, 50280))} <= shapes
    assert {1, 2, 8} <= {c.k for c in kernel.cases if "model" in c.tags}
    assert (64, 5120, 248320, 8) in {(c.M, c.K, c.N, c.k) for c in kernel.cases}


def test_cpu_cases_cover_every_option_and_are_small_enough(kernel: Kernel, module: ModuleType) -> None:
    cpu = [c for c in kernel.cases if "cpu" in c.tags]
    for dtype in DTYPES:
        of_dtype = [c for c in cpu if c.dtype == dtype]
        assert {1, 2, 3, 8} <= {c.k for c in of_dtype}
        assert {0, 1} == {c.strided for c in of_dtype}
        assert any("ragged" in c.tags for c in of_dtype)
    for c in cpu:
        plan = module.plan_tiles(c.M, c.N, c.k, torch_dtype(c.dtype).itemsize, 2, device_properties())
        assert -(-c.N // plan.block_n) * -(-c.M // plan.block_m) + c.M <= 200, c.key
