"""Product of a weight matrix and one or a few activation rows, as a decode step makes it.

    y[m, n] = sum_k x[m, k] * W[n, k]

    tensor   axes     dtype                layout                                    mutated
    x        (M, K)   fp32, fp16 or bf16   unit stride along K, rows may lie apart   no
    W        (N, K)   x's                  unit stride along K, rows may lie apart   no
    y        (M, N)   x's                  contiguous                                returned

    variant        products                      M        one row of W is summed by
    gemv           fp32 multiply-adds            1 to 8   one program
    gemv_split_k   fp32 multiply-adds            1 to 8   several programs, then a second launch adds their sums
    gemm           tl.dot                        any      one program
    gemm_split_k   tl.dot                        any      several programs, then a second launch adds their sums
    auto           what `choose` names           any      the default
    torch          torch.nn.functional.linear    any      cuBLAS or hipBLASLt, the baseline

Numerics: products of fp16 and bf16 are exact in fp32, sums are in fp32, and y is rounded once. fp32 products are IEEE fp32, never
TF32. The split-K variants add their partial sums in ascending order of k, so every variant gives equal bits from run to run. What is
left of the error in fp16 and bf16 is the rounding of y, in fp32 the order of the sums. A NaN or an infinity in row m of x reaches
row m of y alone, one in row n of W column n of y alone, as IEEE arithmetic has it.

Source: "gemv" of the BLAS (Lawson, Hanson, Kincaid and Krogh, 1979; level 2 by Dongarra et al., 1988); the shapes are the projections of
Qwen3.5-27B and Mamba-130m.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional

from harness import Case, DeviceProperties, Inputs, Kernel, Tolerance, Traffic, Variant, device_properties
from kernels._lib.arguments import FLOATS, ITEM_BYTES, check, refuse
from kernels._lib.numerics import IS_INTERPRETED
from kernels._lib.rows import common_alignment, load_block, power_of_2_within, row_stride, store_block

NAME = "gemv_bf16"
GEMV_LARGEST_M = 8
"""Rows of x that `gemv` takes: beyond, its multiply-adds cost more than reading W."""
VECTOR_BYTES = 16
"""The widest access of a lane."""
LARGE_SHARED_BYTES = 2 * 3 * (64 + 16) * 128 * 2
"""Shared memory for three steps of 128 columns, of 64 rows of W and 16 of x, in each of two programs. With less, tiles are smaller."""
SUM_BLOCK = 512
"""Sums that one program of the second launch adds: four fp32 values for each of 128 threads."""
LARGEST_SPLITS = 64
"""Splits of K, whose sums the second launch has under way at once: 167 registers a lane on sm_90. 256 spill, and compile for a minute."""


@triton.jit(do_not_specialize=["N", "stride_x", "stride_w"])
def _gemv(
    p_x, p_w, p_y, N, stride_x, stride_w,
    M: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CHUNKS: tl.constexpr, STEPS: tl.constexpr,
    VECTOR: tl.constexpr, ALIGN: tl.constexpr, IS_RAGGED_K: tl.constexpr,
):  # fmt: skip
    """BN rows of W against M rows of x over STEPS steps of CHUNKS blocks; strides in units of ALIGN values.

    All warps lie along K, so that lanes hold the same columns of x as of W, and meet once, at the end.
    """
    i_n = tl.program_id(0) % tl.cdiv(N, BN)
    i_split = tl.program_id(0) // tl.cdiv(N, BN)
    o_n = i_n * BN + tl.arange(0, BN)
    o_k = tl.arange(0, BK)
    # Rows past the last read the last again: cheaper than a mask, and not stored.
    p_rows = p_w + (tl.minimum(o_n, N - 1).to(tl.int64) * stride_w * ALIGN)[:, None] + o_k[None, :]
    begin = i_split * (STEPS * CHUNKS * BK)

    b_acc = ()
    for _ in tl.static_range(M):
        b_acc += (tl.zeros([BN, BK // VECTOR], tl.float32),)
    for i_step in range(STEPS):
        k = begin + i_step * (CHUNKS * BK)
        b_w = ()
        for i in tl.static_range(CHUNKS):
            b_w += (load_block(p_rows + (k + i * BK), (k + i * BK + o_k < K)[None, :], IS_RAGGED_K),)
        for i in tl.static_range(CHUNKS):
            b_wf = b_w[i].to(tl.float32)
            b_sums = ()
            for m in tl.static_range(M):
                p_chunk = p_x + tl.cast(stride_x, tl.int64) * (m * ALIGN) + (k + i * BK) + o_k
                b_x = load_block(p_chunk, k + i * BK + o_k < K, IS_RAGGED_K).to(tl.float32)
                b_products = tl.reshape(b_wf * b_x[None, :], [BN, BK // VECTOR, VECTOR])
                b_sums += (b_acc[m] + tl.sum(b_products, 2),)  # over one lane's own values: no exchange
            b_acc = b_sums

    p_out = p_y + i_split.to(tl.int64) * M * N + o_n
    for m in tl.static_range(M):
        store_block(p_out + tl.cast(N, tl.int64) * m, tl.sum(b_acc[m], 1), o_n < N, True)


@triton.jit(do_not_specialize=["M", "N", "stride_x", "stride_w"])
def _gemm(
    p_x, p_w, p_y, M, N, stride_x, stride_w,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STEPS: tl.constexpr,
    ALIGN: tl.constexpr, IS_RAGGED_K: tl.constexpr,
):  # fmt: skip
    """BN rows of W against BM rows of x, of which those past M are zero, over STEPS steps; strides in units of ALIGN values."""
    tiles_n = tl.cdiv(N, BN)
    i_n = tl.program_id(0) % tiles_n
    i_m = tl.program_id(0) // tiles_n % tl.cdiv(M, BM)
    i_split = tl.program_id(0) // (tiles_n * tl.cdiv(M, BM))
    o_n = i_n * BN + tl.arange(0, BN)
    o_m = i_m * BM + tl.arange(0, BM)
    o_k = tl.arange(0, BK)
    p_x_rows = p_x + (o_m.to(tl.int64) * stride_x * ALIGN)[:, None] + o_k[None, :]
    # Rows past the last read the last again: cheaper than a mask, and not stored.
    p_w_rows = p_w + (tl.minimum(o_n, N - 1).to(tl.int64) * stride_w * ALIGN)[:, None] + o_k[None, :]
    in_m = (o_m < M)[:, None]
    begin = i_split * (STEPS * BK)

    # W is the left operand: its many rows fill the matrix unit's tall side, the few of x the short one.
    b_acc = tl.zeros([BN, BM], tl.float32)
    for i_step in range(STEPS):
        k = begin + i_step * BK
        in_k = (k + o_k < K)[None, :]
        b_w = load_block(p_w_rows + k, in_k, IS_RAGGED_K)
        b_x = load_block(p_x_rows + k, in_m & in_k if IS_RAGGED_K else in_m, True)
        if IS_INTERPRETED:  # its tl.dot of bf16 is wrong
            b_w, b_x = b_w.to(tl.float32), b_x.to(tl.float32)
        b_acc = tl.dot(b_w, tl.trans(b_x), b_acc, input_precision="ieee")

    o_y = (i_split.to(tl.int64) * M + o_m[None, :]) * N + o_n[:, None]
    store_block(p_y + o_y, b_acc, (o_n < N)[:, None] & (o_m < M)[None, :], True)


@triton.jit
def _add_splits(p_sums, p_y, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """y = the sum of SPLITS partial sums of `size` values each, in ascending order of k."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = o < size
    b_sums = ()
    for i in tl.static_range(SPLITS):
        b_sums += (load_block(p_sums + tl.cast(size, tl.int64) * i + o, mask, True),)
    b_y = b_sums[0]
    for i in tl.static_range(1, SPLITS):
        b_y += b_sums[i]
    store_block(p_y + o, b_y, mask, True)


@dataclass(frozen=True)
class GemvPlan:
    """How `_gemv` is launched.

    Args:
        rows: rows of W a program.
        block: columns that a program's lanes cover with one access each.
        chunks: such blocks of one step.
        warps: warps a program, all along K.
        steps: steps of one split.
        splits: programs that share a row.
    """

    rows: int
    block: int
    chunks: int
    warps: int
    steps: int
    splits: int


def _even_splits(steps: int, wanted: int, least_steps: int) -> int:
    """How many splits of at least `least_steps` steps share `steps` of them: a divisor where one is near `wanted`.

    Equal splits end together, and need no mask where the steps end with K. There are LARGEST_SPLITS at most.
    """
    most = max(1, min(steps // least_steps, LARGEST_SPLITS))
    near = [splits for splits in range(min(wanted, most), min(2 * wanted, most) + 1) if steps % splits == 0]
    return near[0] if near else min(wanted, most)


@functools.lru_cache(maxsize=1024)
def plan_gemv(m: int, n: int, k: int, item_bytes: int, is_split: bool, device: DeviceProperties) -> GemvPlan:
    """Choose the launch of `_gemv`; with `is_split` at least two splits, if K has two steps.

    Four warps, fewer where a row is short or is then covered without a rest. Four rows of W a program, or two where many rows of x
    take the registers, halved while a multiprocessor has fewer than eight programs. A step has so many chunks that a row is a whole
    number of steps, and at most eight loads of W a lane.
    """
    lane = VECTOR_BYTES // item_bytes
    column = device.warp_size * lane
    short = power_of_2_within(triton.cdiv(k, column), 4)
    warps = next((w for w in (4, 2) if w <= short and k % (w * column) == 0), 1 if k % column == 0 else short)
    block = warps * column
    blocks = triton.cdiv(k, block)
    wanted = 8 * device.multiprocessors
    rows = 4 if m <= 4 else 2
    while rows > 1 and triton.cdiv(n, rows) < wanted:
        rows //= 2
    chunks = 1
    if not is_split and m <= 2:
        chunks = next((c for c in (5, 4, 3, 2) if c * rows <= 8 and blocks % c == 0), 1)
    splits = _even_splits(blocks, max(2, triton.cdiv(wanted, triton.cdiv(n, rows))), least_steps=1) if is_split else 1
    steps = triton.cdiv(triton.cdiv(blocks, chunks), splits)
    return GemvPlan(rows, block, chunks, warps, steps, triton.cdiv(blocks, chunks * steps))


@dataclass(frozen=True)
class GemmPlan:
    """How `_gemm` is launched: rows of x and of W a program, columns a step, steps in flight, warps, steps a split, splits."""

    block_m: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    steps: int
    splits: int


@functools.lru_cache(maxsize=1024)
def plan_gemm(m: int, n: int, k: int, item_bytes: int, access_bytes: int, is_split: bool, device: DeviceProperties) -> GemmPlan:
    """Choose the launch of `_gemm`; with `is_split` at least two splits, if K has eight steps.

    64 rows of W a program, which is what the widest matrix units take, or 128 where the grid is many waves. A split grid has about two
    programs for each multiprocessor, each of at least four steps; an unsplit one that has fewer takes narrower tiles. Up to four programs
    a multiprocessor are best all resident, and so read at one rate: they divide its shared memory, and each fills its part with steps
    in flight, three at least. Rows that no 16-byte access fits cannot be copied ahead, only loaded, so a step of them is short to fit
    the registers.
    """
    block_m = max(16, min(64, triton.next_power_of_2(m)))
    is_large = device.shared_bytes_per_block >= LARGE_SHARED_BYTES
    if item_bytes == 4:
        block_k = 16
    elif access_bytes < VECTOR_BYTES:
        block_k = 32
    else:
        block_k = 128 if block_m == 16 and is_large else 64
    blocks_m, blocks_k = triton.cdiv(m, block_m), triton.cdiv(k, block_k)
    wanted = 2 * device.multiprocessors
    block_n = 128 if triton.cdiv(n, 128) * blocks_m >= 4 * wanted and item_bytes < 4 and is_large else 64
    splits = 1
    if is_split:
        splits = _even_splits(blocks_k, max(2, wanted // (triton.cdiv(n, block_n) * blocks_m)), least_steps=4)
    else:
        while block_n > 16 and triton.cdiv(n, block_n) * blocks_m < wanted:
            block_n //= 2
    steps = triton.cdiv(blocks_k, splits)
    splits = triton.cdiv(blocks_k, steps)
    waves = triton.cdiv(triton.cdiv(n, block_n) * blocks_m * splits, device.multiprocessors)
    step_bytes = (block_n + block_m) * block_k * item_bytes
    most = device.shared_bytes_per_block // step_bytes
    stages = max(2, min(6, most, steps, max(3, most // (waves if waves <= 4 else 2))))
    return GemmPlan(block_m, block_n, block_k, stages, 4, steps, splits)


def choose(m: int, n: int, item_bytes: int, device: DeviceProperties) -> str:
    """The variant that `auto` calls.

    One row needs no matrix unit; nor do a few of fp32, which has none. Where tiles of 64 rows leave multiprocessors
    idle, splitting K costs less than narrower tiles.
    """
    if m == 1 or (item_bytes == 4 and m <= GEMV_LARGEST_M):
        return "gemv"
    tiles = triton.cdiv(n, 64) * triton.cdiv(m, 64)
    return "gemm_split_k" if tiles < device.multiprocessors else "gemm"


def _checked(x: torch.Tensor, W: torch.Tensor) -> tuple[int, int, int]:
    """M, N and K of a call whose shapes, dtypes and strides are those of the module's table. Raises ValueError."""
    if x.dim() != 2 or W.dim() != 2 or x.shape[1] == 0 or W.shape[0] == 0:
        raise refuse(NAME, f"x has shape {tuple(x.shape)}, W {tuple(W.shape)}", "give x (M, K) and W (N, K) with N > 0 and K > 0")
    m, k = x.shape
    n = W.shape[0]
    check(NAME, "x", x, (m, k), FLOATS, x.device)
    check(NAME, "W", W, (n, k), (x.dtype,), x.device)
    return m, n, k


def _finish(sums: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Add partial sums (splits, M, N) into y where there are several; they are y itself where there is one."""
    if sums is not y:
        size = y.numel()
        _add_splits[(triton.cdiv(size, SUM_BLOCK),)](sums, y, size, SPLITS=sums.shape[0], BLOCK=SUM_BLOCK, num_warps=4)
    return y


def _gemv_launch(x: torch.Tensor, W: torch.Tensor, is_split: bool) -> torch.Tensor:
    m, n, k = _checked(x, W)
    if m > GEMV_LARGEST_M:
        raise refuse(NAME, f"x has {m} rows", f"gemv and gemv_split_k take at most {GEMV_LARGEST_M}, use auto or gemm")
    y = x.new_empty((m, n))
    if m == 0:
        return y
    plan = plan_gemv(m, n, k, x.element_size(), is_split, device_properties())
    sums = y if plan.splits == 1 else x.new_empty((plan.splits, m, n), dtype=torch.float32)
    stride_x, stride_w = row_stride(x), row_stride(W)
    align = common_alignment(k, stride_x, stride_w)
    _gemv[(triton.cdiv(n, plan.rows) * plan.splits,)](
        x, W, sums, n, stride_x // align, stride_w // align,
        M=m, K=k, BN=plan.rows, BK=plan.block, CHUNKS=plan.chunks, STEPS=plan.steps,
        VECTOR=VECTOR_BYTES // x.element_size(), ALIGN=align,
        IS_RAGGED_K=plan.splits * plan.steps * plan.chunks * plan.block != k, num_warps=plan.warps,
    )  # fmt: skip
    return _finish(sums, y)


def _gemm_launch(x: torch.Tensor, W: torch.Tensor, is_split: bool) -> torch.Tensor:
    m, n, k = _checked(x, W)
    y = x.new_empty((m, n))
    if m == 0:
        return y
    stride_x, stride_w = row_stride(x), row_stride(W)
    align = common_alignment(k, stride_x, stride_w)
    plan = plan_gemm(m, n, k, x.element_size(), align * x.element_size(), is_split, device_properties())
    sums = y if plan.splits == 1 else x.new_empty((plan.splits, m, n), dtype=torch.float32)
    _gemm[(triton.cdiv(n, plan.block_n) * triton.cdiv(m, plan.block_m) * plan.splits,)](
        x, W, sums, m, n, stride_x // align, stride_w // align,
        K=k, BM=plan.block_m, BN=plan.block_n, BK=plan.block_k, STEPS=plan.steps,
        ALIGN=align, IS_RAGGED_K=plan.splits * plan.steps * plan.block_k != k, num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return _finish(sums, y)


def gemv(x: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """y (M, N) = x (M, K) times W (N, K) transposed in one launch of multiply-adds, for M up to GEMV_LARGEST_M. Tensors: see the module.

    Raises:
        ValueError: M is larger, or a shape, dtype or stride that the module's table does not allow.
    """
    return _gemv_launch(x, W, is_split=False)


def gemv_split_k(x: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """`gemv` with K split over programs, their fp32 sums added in a second launch. Raises as `gemv`."""
    return _gemv_launch(x, W, is_split=True)


def gemm(x: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """y (M, N) = x (M, K) times W (N, K) transposed in one launch on the matrix units, for any M. Tensors: see the module.

    Raises:
        ValueError: a shape, dtype or stride that the module's table does not allow.
    """
    return _gemm_launch(x, W, is_split=False)


def gemm_split_k(x: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """`gemm` with K split over programs, their fp32 sums added in a second launch. Raises as `gemm`."""
    return _gemm_launch(x, W, is_split=True)


BY_NAME = {"gemv": gemv, "gemv_split_k": gemv_split_k, "gemm": gemm, "gemm_split_k": gemm_split_k}


def gemv_auto(x: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """y (M, N) = x (M, K) times W (N, K) transposed, for any M, by the variant that `choose` names. Raises as `gemm`."""
    m, n, _ = _checked(x, W)
    return BY_NAME[choose(m, n, x.element_size(), device_properties())](x, W)


def gemv_torch(x: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """The same by the vendor's library. Raises as `gemm`."""
    _checked(x, W)
    return functional.linear(x, W)


CHUNK_VALUES = 1 << 26
"""Weights that the reference holds in fp64 at a time: 512 MB."""


def reference(x: torch.Tensor, W: torch.Tensor) -> dict[str, torch.Tensor]:
    """The formula in fp64, a few rows of W at a time."""
    rows = max(1, CHUNK_VALUES // W.shape[1])
    wide = x.double()
    return {"y": torch.cat([wide @ part.double().T for part in W.split(rows)], dim=1)}


def make_inputs(case: Case, generator: Any) -> Inputs:
    """Arguments of a call: x uniform in [-1, 1], W such that y has variance 1. A strided case takes rows from wider buffers."""
    bound = 3 / math.sqrt(case.K)
    x = generator.uniform((case.M, case.K + 64 * case.strided), case.dtype)
    W = generator.uniform((case.N, case.K + 128 * case.strided), case.dtype, -bound, bound)
    return {"x": x[:, : case.K], "W": W[:, : case.K]}


def traffic(case: Case) -> Traffic:
    """x and W read once, y written once; partial sums of a split are not compulsory."""
    item = ITEM_BYTES[case.dtype]
    return Traffic(read_bytes=(case.M + case.N) * case.K * item, written_bytes=case.M * case.N * item)


def flops(case: Case) -> int:
    """A multiplication and an addition for each pair of a weight and a row of x."""
    return 2 * case.M * case.N * case.K


TOLERANCE = {
    "fp32": Tolerance(
        1e-5,
        "order of the fp32 sums: K additions in sequence are off by about 2^-26*sqrt(K), 1e-6 at K=5120; 3.5e-7 seen at K=1024",
        cosine=0.9999,
    ),
    "fp16": Tolerance(1e-3, "one rounding to fp16, at most 2^-11; 2.1e-4 seen", cosine=0.9999),
    "bf16": Tolerance(8e-3, "one rounding to bf16, at most 2^-8; 2.0e-3 seen; a library may round partial sums too", cosine=0.9999),
}

PEERS = {"up": (5120, 17408), "down": (17408, 5120), "lm_head": (5120, 248320)}
HEADLINE = {(1, "up"), (4, "down"), (16, "lm_head")}
MODEL = (
    (5120, 10240), (5120, 6144), (6144, 5120), (5120, 12288), (5120, 1024), (5120, 48), (5120, 16480), (5120, 14336), (5120, 34816),
    (768, 3072), (1536, 80), (48, 1536), (1536, 768), (768, 50280),
)  # fmt: skip
"""K and N of the other projections of Qwen3.5-27B, some fused, and of Mamba-130m."""


def _cases() -> Iterator[Case]:
    for name, (k, n) in PEERS.items():
        for m in (1, 2, 4, 8, 16, 64):
            tags = ["model", "peers" if m <= 16 else "", "headline" if (m, name) in HEADLINE else ""]
            yield Case(M=m, K=k, N=n, dtype="bf16", tags=" ".join(tags))
    for k, n in MODEL:
        yield from Case.grid(M=(1, 16), K=k, N=n, dtype="bf16", tags="model")
    yield Case(M=2, K=1536, N=80, dtype="bf16", tags="model smoke cpu")
    yield from Case.grid(M=(1, 16), K=5120, N=17408, dtype=("fp16", "fp32"), tags="model")
    yield from Case.grid(M=(1, 16), K=5120, N=17408, strided=1, dtype="bf16", tags="model")
    # Rows that are no whole number of vectors, blocks or tiles.
    yield from Case.grid(M=(1, 4, 16), K=5000, N=1234, dtype="bf16", tags="ragged")
    yield from Case.grid(M=(1, 3, 17), K=5000, N=1234, strided=1, dtype=("fp16", "fp32"), tags="ragged")
    # Small enough for the interpreter.
    yield from Case.grid(M=(1, 4, 8, 16), K=512, N=8, dtype="bf16", tags="cpu")
    yield from Case.grid(M=(2, 16), K=512, N=8, dtype="fp16", tags="cpu")
    yield from Case.grid(M=(1, 4, 16), K=512, N=8, dtype="fp32", tags="cpu")
    yield from Case.grid(M=(2, 16), K=512, N=8, strided=1, dtype=("fp32", "bf16"), tags="cpu")
    yield from Case.grid(M=(1, 3, 17), K=1000, N=5, dtype=("fp32", "fp16", "bf16"), tags="ragged cpu")
    yield from Case.grid(M=2, K=333, N=5, dtype="bf16", tags="ragged cpu")
    yield from Case.grid(M=2, K=334, N=5, strided=1, dtype=("fp32", "bf16"), tags="ragged cpu")
    yield Case(M=65, K=334, N=5, strided=1, dtype="fp32", tags="ragged cpu")
    # From 16 rows on PyTorch's bf16 product on x86 reads past the end of a row of x unless K is a multiple of 32.
    yield Case(M=65, K=320, N=5, strided=1, dtype="bf16", tags="ragged cpu")
    yield from Case.grid(M=(1, 7), K=1, N=1, dtype=("fp32", "bf16"), tags="ragged cpu")


def _is_gemv(case: Case) -> bool:
    return case.M <= GEMV_LARGEST_M


def _is_gemm(case: Case) -> bool:
    return case.M > 1


KERNEL = Kernel(
    variants={
        "auto": Variant(gemv_auto),
        "gemv": Variant(gemv, cases=_is_gemv),
        "gemv_split_k": Variant(gemv_split_k, cases=_is_gemv),
        "gemm": Variant(gemm, cases=_is_gemm),
        "gemm_split_k": Variant(gemm_split_k, cases=_is_gemm),
        "torch": Variant(gemv_torch, triton=False),
    },
    default="auto",
    baseline="torch",
    axes=("M", "K", "N"),
    cases=list(_cases()),
    make_inputs=make_inputs,
    reference=reference,
    outputs=("y",),
    tolerance=TOLERANCE,
    traffic=traffic,
    flops=flops,
    activations=("x",),
    data="uniform[-1,1], W*3/sqrt(K)/1",
)
