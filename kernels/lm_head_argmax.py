"""The indices of the k largest logits of each row, taken while the head's weights stream by: the logits are never written.

    l[m, n] = sum_k x[m, k] * W[n, k], rounded to x's dtype
    indices[m] = the k values of n with the largest l[m, n], largest first, the lower n first where two are equal

    tensor    axes     dtype                layout                                    mutated
    x         (M, K)   fp32, fp16 or bf16   unit stride along K, rows may lie apart   no
    W         (N, K)   x's                  unit stride along K, rows may lie apart   no
    indices   (M, k)   int64                contiguous                                returned

k is 1 to 8; indices are int64 as torch.argmax gives them, and (M, k) for k = 1 too. A NaN logit anywhere in a row makes all its
indices -1. Infinities are ordered as numbers, so a row of -inf gives 0, 1, ..., k - 1. Both zeros are equal.

Numerics: sums in fp32 (fp32 products are IEEE fp32, never TF32), rounded once, to nearest even, before they are compared: a sampler that
reads bf16 logits sees ties that fp32 sums do not have. A logit and its index become one 64-bit integer whose order is the wanted one, so
taking maxima in any order gives the same answer: bits are equal from run to run.

What exact means: two right implementations add in different orders, and a sum that lies next to a rounding boundary may round either
way, which changes the answer for a few of many random rows. So the inputs of the cases are integers times a power of two, small
enough that every partial sum, in any order, is an exact fp32 number (K times the largest product is below 2^24 units). Every right
implementation then has the same logits bit for bit, those of the fp64 reference among them, and the indices must be equal: the
tolerance is 0. Ties at the top are as frequent as in other random data, and half of the vocabulary has a twin far away whose logit is
always equal.

Source: greedy decoding; the shapes are the heads of Qwen3.5-27B and Mamba-130m.
"""

from __future__ import annotations

import contextlib
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
from kernels._lib.numerics import IS_INTERPRETED, rounded
from kernels._lib.rows import common_alignment, load_block

NAME = "lm_head_argmax"
LARGEST_K = 8
VECTOR_BYTES = 16
"""The widest access of a lane."""
LARGE_SHARED_BYTES = 2 * 3 * (64 + 16) * 128 * 2
"""Shared memory for three steps of 128 columns, of 64 rows of W and 16 of x, in each of two programs. With less, tiles are smaller."""
MOST_KEYS_OF_A_FULL_TILE = 2
"""Indices that a tile of 128 rows of W and 64 of x finds without spilling: three spill 76 bytes, eight 1236 (compute capability 10.0)."""
MERGE_BLOCK = 4096
"""Candidates that one program of a merge takes: 16 keys for each of 256 threads."""
INDEX_BITS = 32
NAN_ORDER = tl.constexpr(0x7FFFFFFF)
"""Order of a NaN: above infinity's 0x7F800000."""
LAST_INDEX = tl.constexpr(0x7FFFFFFF)
"""Keys hold an index n as LAST_INDEX ^ n, which is LAST_INDEX - n: the lower index has the larger key."""
LOWEST_KEY = tl.constexpr(-(1 << 63))
"""Below the key of -inf: what stands for no candidate."""


@triton.jit
def _keys(b_logits, b_n):
    """One int64 for a logit (fp32) and its index, larger where the logit is, or where the logits are equal and the index is lower."""
    b_bits = tl.where(b_logits == 0.0, 0.0, b_logits).to(tl.int32, bitcast=True)
    b_order = b_bits ^ ((b_bits >> 31) & 0x7FFFFFFF)  # of negative numbers the magnitude counts down
    b_order = tl.where(b_logits == b_logits, b_order, NAN_ORDER)
    return (b_order.to(tl.int64) << 32) | (b_n ^ LAST_INDEX).to(tl.int64)


@triton.jit(do_not_specialize=["M", "N", "stride_x", "stride_w"])
def _lm_head_tiles(
    p_x, p_w, p_keys, M, N, stride_x, stride_w,
    K: tl.constexpr, TOP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ALIGN: tl.constexpr, IS_RAGGED_K: tl.constexpr,
):  # fmt: skip
    """The TOP largest keys of BN rows of W for each of BM rows of x; strides in units of ALIGN values."""
    tiles = tl.cdiv(N, BN)
    i_n = tl.program_id(0) % tiles
    i_m = tl.program_id(0) // tiles
    o_n = i_n * BN + tl.arange(0, BN)
    o_m = i_m * BM + tl.arange(0, BM)
    o_k = tl.arange(0, BK)
    p_x_rows = p_x + (o_m.to(tl.int64) * stride_x * ALIGN)[:, None] + o_k[None, :]
    # Rows past the last read the last again: cheaper than a mask, and no candidates.
    p_w_rows = p_w + (tl.minimum(o_n, N - 1).to(tl.int64) * stride_w * ALIGN)[:, None] + o_k[None, :]
    in_m = (o_m < M)[:, None]

    # W is the left operand: its many rows fill the matrix unit's tall side, the few of x the short one.
    b_acc = tl.zeros([BN, BM], tl.float32)
    for k in range(0, K, BK):
        in_k = (k + o_k < K)[None, :]
        b_w = load_block(p_w_rows + k, in_k, IS_RAGGED_K)
        b_x = load_block(p_x_rows + k, in_m & in_k if IS_RAGGED_K else in_m, True)
        if IS_INTERPRETED:  # its tl.dot of bf16 is wrong
            b_w, b_x = b_w.to(tl.float32), b_x.to(tl.float32)
        b_acc = tl.dot(b_w, tl.trans(b_x), b_acc, input_precision="ieee")

    b_keys = _keys(rounded(b_acc, p_x.dtype.element_ty).to(tl.float32), o_n[:, None])
    b_keys = tl.where((o_n < N)[:, None], b_keys, LOWEST_KEY)
    p_best = p_keys + (o_m.to(tl.int64) * tiles + i_n) * TOP
    for i in tl.static_range(TOP):
        b_best = tl.max(b_keys, 0)
        tl.store(p_best + i, b_best, mask=o_m < M)
        b_keys = tl.where(b_keys == b_best[None, :], LOWEST_KEY, b_keys)  # no two keys are equal


@triton.jit(do_not_specialize=["count", "groups"])
def _lm_head_merge(p_keys, p_best, count, groups, TOP: tl.constexpr, BLOCK: tl.constexpr, IS_LAST: tl.constexpr):
    """The TOP largest of BLOCK keys of one row; the last merge gives their indices, or -1 for a row with a NaN."""
    i_m = (tl.program_id(0) // groups).to(tl.int64)
    i_group = tl.program_id(0) % groups
    o = i_group * BLOCK + tl.arange(0, BLOCK)
    b_keys = tl.load(p_keys + i_m * count + o, mask=o < count, other=LOWEST_KEY)
    p_out = p_best + (i_m * groups + i_group) * TOP
    largest = tl.max(b_keys, 0)
    best = largest
    for i in tl.static_range(TOP):
        if IS_LAST:
            tl.store(p_out + i, tl.where((largest >> 32) == NAN_ORDER, -1, (best & LAST_INDEX) ^ LAST_INDEX))
        else:
            tl.store(p_out + i, best)
        b_keys = tl.where(b_keys == best, LOWEST_KEY, b_keys)
        best = tl.max(b_keys, 0)


@dataclass(frozen=True)
class Plan:
    """How `_lm_head_tiles` is launched: rows of x and of W a program, columns a step, steps in flight."""

    block_m: int
    block_n: int
    block_k: int
    stages: int


@functools.lru_cache(maxsize=1024)
def plan_tiles(m: int, n: int, k: int, item_bytes: int, access_bytes: int, device: DeviceProperties) -> Plan:
    """Choose the launch of `_lm_head_tiles`.

    64 rows of W a program, which is what the widest matrix units take: 128 where the grid is many waves and the keys fit the
    registers, fewer where multiprocessors would have less than two programs. Two programs share a multiprocessor's memory, so that
    one reads while the other finds its maxima; each fills its half with steps in flight, three at least. Rows that no 16-byte access
    fits cannot be copied ahead, only loaded, so a step of them is short to fit the registers.
    """
    block_m = max(16, min(64, triton.next_power_of_2(m)))
    blocks_m = triton.cdiv(m, block_m)
    is_large = device.shared_bytes_per_block >= LARGE_SHARED_BYTES
    if item_bytes == 4:
        block_k = 16
    elif access_bytes < VECTOR_BYTES:
        block_k = 32
    else:
        block_k = 128 if block_m == 16 and is_large else 64
    wanted = 2 * device.multiprocessors
    fits_128 = item_bytes < 4 and is_large and (block_m < 64 or k <= MOST_KEYS_OF_A_FULL_TILE)
    block_n = 128 if fits_128 and triton.cdiv(n, 128) * blocks_m >= 4 * wanted else 64
    while block_n > 16 and triton.cdiv(n, block_n) * blocks_m < wanted:
        block_n //= 2
    step_bytes = (block_n + block_m) * block_k * item_bytes
    most = device.shared_bytes_per_block // step_bytes
    return Plan(block_m, block_n, block_k, min(6, most, max(3, most // 2)))


def _checked(x: torch.Tensor, W: torch.Tensor, k: int) -> tuple[int, int]:
    """M and N of a call whose shapes, dtypes and strides are those of the module's table. Raises ValueError."""
    if x.dim() != 2 or W.dim() != 2 or x.shape[1] == 0 or W.shape[0] == 0:
        raise refuse(NAME, f"x has shape {tuple(x.shape)}, W {tuple(W.shape)}", "give x (M, K) and W (N, K) with N > 0 and K > 0")
    m, n = x.shape[0], W.shape[0]
    check(NAME, "x", x, x.shape, FLOATS, x.device)
    check(NAME, "W", W, (n, x.shape[1]), (x.dtype,), x.device)
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= min(LARGEST_K, n):
        raise refuse(NAME, f"k={k!r}", f"give an int, 1 to {min(LARGEST_K, n)}, with N={n}")
    return m, n


def _merge(keys: torch.Tensor, k: int) -> torch.Tensor:
    """The indices (M, k) of the k largest keys (M, candidates) of each row, in as many launches as blocks must be merged."""
    m, count = keys.shape
    while True:
        block = min(MERGE_BLOCK, triton.next_power_of_2(count))
        groups = triton.cdiv(count, block)
        best = keys.new_empty((m, groups * k))
        _lm_head_merge[(m * groups,)](keys, best, count, groups, TOP=k, BLOCK=block, IS_LAST=groups == 1, num_warps=8)
        if groups == 1:
            return best
        keys, count = best, groups * k


def lm_head_argmax(x: torch.Tensor, W: torch.Tensor, k: int = 1) -> torch.Tensor:
    """The indices (M, k), int64, of the k largest logits of each row: maxima of tiles of W, then a merge. Tensors: see the module.

    Raises:
        ValueError: k is not an int from 1 to 8 and N, or a shape, dtype or stride that the module's table does not allow.
    """
    m, n = _checked(x, W, k)
    if m == 0:
        return x.new_empty((0, k), dtype=torch.int64)
    columns = x.shape[1]
    align = common_alignment(columns, x.stride(0), W.stride(0))
    plan = plan_tiles(m, n, k, x.element_size(), align * x.element_size(), device_properties())
    tiles = triton.cdiv(n, plan.block_n)
    keys = x.new_empty((m, tiles * k), dtype=torch.int64)
    _lm_head_tiles[(tiles * triton.cdiv(m, plan.block_m),)](
        x, W, keys, m, n, x.stride(0) // align, W.stride(0) // align,
        K=columns, TOP=k, BM=plan.block_m, BN=plan.block_n, BK=plan.block_k, ALIGN=align,
        IS_RAGGED_K=columns % plan.block_k != 0, num_warps=4, num_stages=plan.stages,
    )  # fmt: skip
    return _merge(keys, k)


@contextlib.contextmanager
def rounded_once() -> Iterator[None]:
    """Keep the vendor's library from adding up parts of a product that are rounded to 16 bits already: logits round once."""
    flags = torch.backends.cuda.matmul
    before = flags.allow_bf16_reduced_precision_reduction, flags.allow_fp16_reduced_precision_reduction
    flags.allow_bf16_reduced_precision_reduction = flags.allow_fp16_reduced_precision_reduction = False
    try:
        yield
    finally:
        flags.allow_bf16_reduced_precision_reduction, flags.allow_fp16_reduced_precision_reduction = before


def lm_head_argmax_torch(x: torch.Tensor, W: torch.Tensor, k: int = 1) -> torch.Tensor:
    """The same by the vendor's library and PyTorch, with the logits in memory. Raises as `lm_head_argmax`."""
    m, n = _checked(x, W, k)
    if m == 0:
        return x.new_empty((0, k), dtype=torch.int64)
    with rounded_once():
        logits = functional.linear(x, W)
    if k == 1:
        indices = logits.argmax(dim=1, keepdim=True)  # the first of equal ones, and a NaN before all others
        return torch.where(logits.gather(1, indices).isnan(), -1, indices)
    # torch.topk takes equal values in any order, so it is given the same distinct keys as the merge.
    bits = torch.where(logits == 0, 0.0, logits.float()).view(torch.int32)
    order = torch.where(logits.isnan(), NAN_ORDER.value, bits ^ ((bits >> 31) & 0x7FFFFFFF))
    keys = (order.long() << INDEX_BITS) | (LAST_INDEX.value ^ torch.arange(n, device=x.device))
    best = keys.topk(k, dim=1).values
    has_nan = (best[:, :1] >> INDEX_BITS) == NAN_ORDER.value
    return torch.where(has_nan, -1, (best & LAST_INDEX.value) ^ LAST_INDEX.value)


CHUNK_VALUES = 1 << 26
"""Weights that the reference holds in fp64 at a time: 512 MB."""


def reference(x: torch.Tensor, W: torch.Tensor, k: int) -> dict[str, torch.Tensor]:
    """The definition: fp64 logits, a few rows of W at a time, rounded to x's dtype; a stable sort keeps equal ones in order."""
    rows = max(1, CHUNK_VALUES // W.shape[1])
    wide = x.double()
    logits = torch.cat([wide @ part.double().T for part in W.split(rows)], dim=1).to(x.dtype).double()
    indices = logits.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return {"indices": torch.where(logits.isnan().any(dim=1, keepdim=True), -1, indices)}


LARGEST_INTEGER = 8
"""Inputs are integers of at most this magnitude times a power of two: K*8*8 is below 2^24 for K up to 262143."""


def make_inputs(case: Case, generator: Any) -> Inputs:
    """Arguments of a call: integers -8 to 8 times a power of two, which makes every logit exact; its variance is about 1.

    Every other row of the first half of W stands again in the second half. From M=4 the last row of x but one has a NaN, and
    the last gives -inf everywhere: its first value is -inf, and W's first column is positive. A strided case takes rows from wider buffers.
    """

    def grid(rows: int, padding: int, unit: float) -> torch.Tensor:
        top = LARGEST_INTEGER - 0.5
        values = generator.uniform((rows, case.K + padding * case.strided), case.dtype, -top, top)
        return values.round_().mul_(unit)[:, : case.K]

    unit = 2.0 ** -round(math.log2(4.7 * math.sqrt(case.K)))
    x, W = grid(case.M, 64, 0.25), grid(case.N, 128, unit)
    W[:, 0] = LARGEST_INTEGER * unit
    half = case.N // 2
    W[half : 2 * half : 2] = W[:half:2]
    if case.M >= 4:
        x[case.M - 2, case.K // 2] = math.nan
        x[case.M - 1, 0] = -math.inf
    return {"x": x, "W": W, "k": case.k}


def traffic(case: Case) -> Traffic:
    """x and W read once, int64 indices written once; the candidates of tiles are not compulsory."""
    return Traffic(read_bytes=(case.M + case.N) * case.K * ITEM_BYTES[case.dtype], written_bytes=case.M * case.k * 8)


def flops(case: Case) -> int:
    """A multiplication and an addition for each pair of a weight and a row of x; comparisons are left out."""
    return 2 * case.M * case.N * case.K


EXACT = Tolerance(0.0, "the inputs make every logit exact in fp32 whatever the order of its sum, so the indices are determined")

QWEN = {"K": 5120, "N": 248320}
MAMBA = {"K": 768, "N": 50280}


def _cases() -> Iterator[Case]:
    for m in (1, 4, 16):
        yield Case(M=m, dtype="bf16", tags="model peers" + (" headline" if m != 4 else ""), **QWEN)
        yield Case(M=m, dtype="bf16", tags="model" + (" headline" if m == 1 else ""), **MAMBA)
    yield from Case.grid(M=(1, 4), dtype=("fp16", "fp32"), tags="model", **MAMBA)
    yield from Case.grid(M=(1, 16, 64), k=8, dtype="bf16", tags="model", **QWEN)
    yield from Case.grid(M=4, k=(2, 8), dtype="bf16", tags="model", **MAMBA)
    yield Case(M=4, strided=1, dtype="bf16", tags="model", **MAMBA)
    yield from Case.grid(M=(1, 5, 17, 64), K=5000, N=50001, k=(1, 5), dtype="bf16", tags="ragged")
    # Small enough for the interpreter.
    yield Case(M=2, K=768, N=1024, dtype="bf16", tags="smoke cpu")
    yield from Case.grid(M=(1, 4, 16), K=128, N=512, dtype=("fp32", "fp16", "bf16"), tags="cpu")
    yield from Case.grid(M=4, K=128, N=512, k=(2, 8), dtype=("fp32", "fp16", "bf16"), tags="cpu")
    yield from Case.grid(M=4, K=128, N=512, strided=1, dtype=("fp32", "fp16", "bf16"), tags="cpu")
    yield from Case.grid(M=5, K=100, N=333, k=(1, 3), strided=1, dtype=("fp32", "fp16", "bf16"), tags="ragged cpu")
    yield Case(M=17, K=65, N=130, dtype="fp32", tags="ragged cpu")
    # From 16 rows on PyTorch's bf16 product on x86 reads past the end of a row of x unless K is a multiple of 32.
    yield Case(M=17, K=96, N=130, dtype="bf16", tags="ragged cpu")
    yield from Case.grid(M=3, K=1, N=8, k=8, dtype=("fp32", "bf16"), tags="ragged cpu")


KERNEL = Kernel(
    variants={"fused": Variant(lm_head_argmax), "torch": Variant(lm_head_argmax_torch, triton=False)},
    default="fused",
    baseline="torch",
    axes=("M", "K", "N", "k"),
    defaults={"k": 1},
    cases=list(_cases()),
    make_inputs=make_inputs,
    reference=reference,
    outputs=("indices",),
    tolerance=lambda case: EXACT,
    traffic=traffic,
    flops=flops,
    activations=("x",),
    data="integers of [-8,8] times a power of two, twins, NaN and -inf rows/1",
)
