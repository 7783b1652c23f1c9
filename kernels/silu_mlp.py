"""The gated half of an MLP: silu(gate)*up element by element, or from x, with both products and the activation in one launch.

    y = silu(gate) * up                        silu(g) = g / (1 + exp(-g))
    y = silu(x gate^T) * (x up^T)              where x is given: gate and up are then weights

    tensor     axes                      dtype                layout                                       mutated
    gate, up   (M, N), or (N, K) with x  fp32, fp16 or bf16   unit stride along the last axis, any row;    no
                                                              each its own row stride
    x          (M, K)                    gate's               as gate                                      no
    y          (M, N)                    gate's               contiguous                                   returned

Packed, there is no `up`: gate is (M, 2N), or (2N, K) with x, and its second half is up.

Numerics: silu, product and all sums are fp32, and y is rounded once, by at most 2^-11 of a value in fp16 and 2^-8 in bf16. What
works in several launches (`elementwise` with x, `torch`) also rounds gate and up, and `torch` silu(gate): up to four roundings,
which is what the tolerance allows. In fp32 what is left is exp, a division of two units in the last place, and the order of
sums over K. NaN propagates: element by element to its own value of y, from x to its row, from a weight to its column. A gate of
minus infinity gives NaN, one below -88 zero; of infinity, infinity times up.

Source: Shazeer, "GLU Variants Improve Transformer", 2020 (arXiv 2002.05202), equation 6, without the product that follows it.
"""

from __future__ import annotations

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
from kernels._lib.rows import common_alignment, load_block, power_of_2_within, store_block

GEMV_LARGEST_M = 4
"""Rows of x that a GEMV multiplies without tensor cores: beyond, a weight costs more multiplications than its bytes take to arrive."""
LARGEST_M = 16
"""Rows of x that one launch takes: one tile of tl.dot. Beyond, weights are no longer all the traffic there is."""


@triton.jit
def _silu(b_g):
    return b_g / (1.0 + tl.exp(-b_g))


@triton.jit(do_not_specialize=["stride_gate", "stride_up", "M"])
def silu_mul_tiles(
    p_gate,
    p_up,
    p_y,
    stride_gate,
    stride_up,
    M,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
    IS_RAGGED_M: tl.constexpr,
):
    """A tile of ROWS x BLOCK a program; strides in units of ALIGN values."""
    COLUMN_TILES: tl.constexpr = (N + BLOCK - 1) // BLOCK
    IS_MASKED: tl.constexpr = IS_RAGGED_M or N % BLOCK != 0
    o_m = (tl.program_id(0) // COLUMN_TILES).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    o_n = tl.program_id(0) % COLUMN_TILES * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (o_m < M) & (o_n < N)
    b_gate = load_block(p_gate + o_m * stride_gate * ALIGN + o_n, mask, IS_MASKED)
    b_up = load_block(p_up + o_m * stride_up * ALIGN + o_n, mask, IS_MASKED)
    store_block(p_y + o_m * N + o_n, _silu(b_gate.to(tl.float32)) * b_up.to(tl.float32), mask, IS_MASKED)


@triton.jit
def _lane_sums(b, VECTOR: tl.constexpr):
    """Sums of VECTOR neighbours along the last axis: those of one load of one lane, so no lane waits for another."""
    return tl.sum(tl.reshape(b, [b.shape[0], b.shape[1] // VECTOR, VECTOR]), axis=2)


@triton.jit(do_not_specialize=["stride_x", "stride_gate", "stride_up", "N"])
def silu_mlp_gemv(
    p_x,
    p_gate,
    p_up,
    p_y,
    stride_x,
    stride_gate,
    stride_up,
    N,
    M: tl.constexpr,
    K: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    VECTOR: tl.constexpr,
    ALIGN: tl.constexpr,
    IS_RAGGED_N: tl.constexpr,
):
    """BN values of each row of y a program, by products without tensor cores: its lanes meet once, at the end."""
    IS_RAGGED_K: tl.constexpr = K % BK != 0
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_k = tl.arange(0, BK)[None, :]
    in_n = o_n[:, None] < N
    p_gate += o_n[:, None] * stride_gate * ALIGN
    p_up += o_n[:, None] * stride_up * ALIGN
    b_gate = ()
    b_up = ()
    for _ in tl.static_range(M):
        b_gate += (tl.zeros([BN, BK // VECTOR], tl.float32),)
        b_up += (tl.zeros([BN, BK // VECTOR], tl.float32),)
    for start in range(0, K, BK):
        o = start + o_k
        b_w_gate = load_block(p_gate + o, in_n & (o < K), IS_RAGGED_N or IS_RAGGED_K).to(tl.float32)
        b_w_up = load_block(p_up + o, in_n & (o < K), IS_RAGGED_N or IS_RAGGED_K).to(tl.float32)
        b_next_gate = ()
        b_next_up = ()
        for m in tl.static_range(M):
            b_x = load_block(p_x + m * stride_x.to(tl.int64) * ALIGN + o, o < K, IS_RAGGED_K).to(tl.float32)
            b_next_gate += (b_gate[m] + _lane_sums(b_w_gate * b_x, VECTOR),)
            b_next_up += (b_up[m] + _lane_sums(b_w_up * b_x, VECTOR),)
        b_gate = b_next_gate
        b_up = b_next_up
    for m in tl.static_range(M):
        b_gate_sum, b_up_sum = tl.split(tl.sum(tl.join(b_gate[m], b_up[m]), axis=1))  # side by side: half the barriers
        store_block(p_y + m * N.to(tl.int64) + o_n, _silu(b_gate_sum) * b_up_sum, o_n < N, IS_RAGGED_N)


@triton.jit(do_not_specialize=["stride_x", "stride_gate", "stride_up", "M", "N"])
def silu_mlp_gemm(
    p_x,
    p_gate,
    p_up,
    p_y,
    stride_x,
    stride_gate,
    stride_up,
    M,
    N,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    ALIGN: tl.constexpr,
    IS_RAGGED_M: tl.constexpr,
    IS_RAGGED_N: tl.constexpr,
):
    """BN values of each row of y a program, by tl.dot: the weights are the operand with many rows, x is padded to BM."""
    IS_RAGGED_K: tl.constexpr = K % BK != 0
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)[:, None]
    o_m = tl.arange(0, BM)[None, :].to(tl.int64)
    o_k = tl.arange(0, BK)
    p_gate += o_n * stride_gate * ALIGN + o_k[None, :]
    p_up += o_n * stride_up * ALIGN + o_k[None, :]
    p_x += o_m * stride_x * ALIGN + o_k[:, None]
    b_gate = tl.zeros([BN, BM], tl.float32)
    b_up = tl.zeros([BN, BM], tl.float32)
    for start in range(0, K, BK):
        in_k = o_k < K - start
        in_w = (o_n < N) & in_k[None, :]
        b_x = load_block(p_x + start, (o_m < M) & in_k[:, None], IS_RAGGED_M or IS_RAGGED_K)
        b_w_gate = load_block(p_gate + start, in_w, IS_RAGGED_N or IS_RAGGED_K)
        b_w_up = load_block(p_up + start, in_w, IS_RAGGED_N or IS_RAGGED_K)
        if IS_INTERPRETED:  # its tl.dot of bf16 operands is garbage
            b_x = b_x.to(tl.float32)
            b_w_gate = b_w_gate.to(tl.float32)
            b_w_up = b_w_up.to(tl.float32)
        b_gate = tl.dot(b_w_gate, b_x, b_gate, input_precision="ieee")
        b_up = tl.dot(b_w_up, b_x, b_up, input_precision="ieee")
    mask = (o_n < N) & (o_m < M)
    store_block(p_y + o_m * N + o_n, _silu(b_gate) * b_up, mask, IS_RAGGED_M or IS_RAGGED_N)


@dataclass(frozen=True)
class Tile:
    """What one program covers, and with how many warps: rows and columns of a matrix, or of weights."""

    rows: int
    columns: int
    warps: int


def _columns(n: int, itemsize: int, device: DeviceProperties) -> tuple[int, int]:
    """Columns and warps of a tile, one 16-byte load a lane: the widest of up to four warps that divides n, else four, masked."""
    of_warp = device.warp_size * 16 // itemsize
    warps = next((w for w in (4, 2, 1) if n % (w * of_warp) == 0), power_of_2_within(triton.cdiv(n, of_warp), 4))
    return warps * of_warp, warps


def plan_elementwise(m: int, n: int, itemsize: int, device: DeviceProperties) -> Tile:
    """Choose a program's tile of an (m, n) matrix: two rows, so four independent loads a lane, of gate and of up.

    One row where that would leave multiprocessors with fewer than four programs. With four rows ptxas saves registers and
    has two or three loads under way, not eight.
    """
    columns, warps = _columns(n, itemsize, device)
    rows = power_of_2_within(m * triton.cdiv(n, columns) // (4 * device.multiprocessors), 2)
    return Tile(rows, columns, warps)


def plan_gemv(n: int, k: int, itemsize: int, device: DeviceProperties) -> Tile:
    """Choose a program's rows of each (n, k) weight and the columns that it takes at a time.

    Four rows are eight independent 16-byte loads a lane, and x is read again for each program. The time is that of the
    busiest multiprocessor, so rows are halved until it has at most 3 % more programs than the average one.
    """
    columns, warps = _columns(k, itemsize, device)
    for rows in (4, 2):
        programs = triton.cdiv(n, rows)
        if triton.cdiv(programs, device.multiprocessors) * device.multiprocessors <= 1.03 * programs:
            return Tile(rows, columns, warps)
    return Tile(1, columns, warps)


def plan_gemm(n: int, itemsize: int, device: DeviceProperties) -> Tile:
    """Choose a program's rows of each (n, k) weight, in steps of 128 bytes of k: 64, the rows of one tensor core operation.

    Halved, down to 16, while there are not three programs for two multiprocessors. All are to be resident at once: then each
    has the same share of the bandwidth, however many fall on one multiprocessor.
    """
    rows = 64
    while rows > 16 and 2 * triton.cdiv(n, rows) < 3 * device.multiprocessors:
        rows //= 2
    return Tile(rows, 128 // itemsize, 4)


def _check(gate: torch.Tensor, up: torch.Tensor | None, x: torch.Tensor | None) -> tuple[int, int]:
    """(M, N) of y. Refuses what the kernels do not take, with a ValueError that says what was given and what to give."""
    shape = "(N, K)" if x is not None else "(M, N)"
    axis = 0 if x is not None else 1
    if gate.dim() != 2 or 0 in gate.shape[axis:] or (up is None and gate.shape[axis] % 2):
        packed = f"{shape}, its N doubled where there is no up" if up is None else shape
        raise refuse("silu_mlp", f"gate has shape {tuple(gate.shape)}", f"give {packed}, with axes that are not empty")
    check("silu_mlp", "gate", gate, gate.shape, FLOATS, gate.device)
    if up is not None:
        check("silu_mlp", "up", up, gate.shape, (gate.dtype,), gate.device)
    n = gate.shape[axis] // (2 if up is None else 1)
    if x is None:
        return gate.shape[0], n
    if x.dim() != 2:
        raise refuse("silu_mlp", f"x has shape {tuple(x.shape)}", f"give (M, {gate.shape[1]}), leading axes flattened")
    check("silu_mlp", "x", x, (x.shape[0], gate.shape[1]), (gate.dtype,), gate.device)
    return x.shape[0], n


def _halves(gate: torch.Tensor, up: torch.Tensor | None, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """gate and up, as views of the packed tensor where there is no up."""
    if up is not None:
        return gate, up
    first, second = gate.chunk(2, dim=axis)
    return first, second


def _silu_mul(gate: torch.Tensor, up: torch.Tensor | None) -> torch.Tensor:
    """silu(gate)*up of (M, N) matrices, or of the halves of one (M, 2N), in one launch."""
    gate, up = _halves(gate, up, axis=1)
    m, n = gate.shape
    y = gate.new_empty((m, n))
    if m == 0:
        return y
    align = common_alignment(gate.stride(0), up.stride(0))
    tile = plan_elementwise(m, n, gate.element_size(), device_properties())
    silu_mul_tiles[(triton.cdiv(m, tile.rows) * triton.cdiv(n, tile.columns),)](
        gate,
        up,
        y,
        gate.stride(0) // align,
        up.stride(0) // align,
        m,
        N=n,
        ROWS=tile.rows,
        BLOCK=tile.columns,
        ALIGN=align,
        IS_RAGGED_M=m % tile.rows != 0,
        num_warps=tile.warps,
    )
    return y


def silu_mlp_elementwise(gate: torch.Tensor, up: torch.Tensor | None = None, x: torch.Tensor | None = None) -> torch.Tensor:
    """y (M, N) by the element-wise kernel; with x after PyTorch's products, of which a packed gate needs one. Tensors: see the module.

    Raises:
        ValueError: a shape, stride or dtype that the module's table does not allow.
    """
    _check(gate, up, x)
    if x is None:
        return _silu_mul(gate, up)
    return _silu_mul(functional.linear(x, gate), None if up is None else functional.linear(x, up))


def silu_mlp_fused_gemv(gate: torch.Tensor, up: torch.Tensor | None, x: torch.Tensor | None) -> torch.Tensor:
    """y (M, N) from x and the weights in one launch that reads each weight once. Tensors: see the module.

    Raises:
        ValueError: no x, more than LARGEST_M rows of it, or a shape, stride or dtype that the module's table does not allow.
    """
    if x is None:
        raise refuse("silu_mlp", "x is None", "fused_gemv needs x (M, K) for its products, use elementwise for gate and up of (M, N)")
    m, n = _check(gate, up, x)
    if m > LARGEST_M:
        raise refuse("silu_mlp", f"x has {m} rows", f"fused_gemv takes up to {LARGEST_M}, use elementwise after two products")
    y = x.new_empty((m, n))
    if m == 0:
        return y
    gate, up = _halves(gate, up, axis=0)
    device, itemsize, k = device_properties(), x.element_size(), x.shape[1]
    strides = (x.stride(0), gate.stride(0), up.stride(0))
    align = common_alignment(*strides)
    arguments = (x, gate, up, y, *(stride // align for stride in strides))
    if m <= GEMV_LARGEST_M:
        tile = plan_gemv(n, k, itemsize, device)
        silu_mlp_gemv[(triton.cdiv(n, tile.rows),)](
            *arguments,
            n,
            M=m,
            K=k,
            BN=tile.rows,
            BK=tile.columns,
            VECTOR=16 // itemsize,
            ALIGN=align,
            IS_RAGGED_N=n % tile.rows != 0,
            num_warps=tile.warps,
        )
        return y
    tile = plan_gemm(n, itemsize, device)
    silu_mlp_gemm[(triton.cdiv(n, tile.rows),)](
        *arguments,
        m,
        n,
        K=k,
        BM=LARGEST_M,
        BN=tile.rows,
        BK=tile.columns,
        ALIGN=align,
        IS_RAGGED_M=m != LARGEST_M,
        IS_RAGGED_N=n % tile.rows != 0,
        num_warps=tile.warps,
        num_stages=2 if device.backend == "hip" else 4,
    )
    return y


def silu_mlp_torch(gate: torch.Tensor, up: torch.Tensor | None = None, x: torch.Tensor | None = None) -> torch.Tensor:
    """`silu_mlp_elementwise` as the PyTorch operations of a model file, each rounding what it gives.

    Raises:
        ValueError: as `silu_mlp_elementwise`.
    """
    _check(gate, up, x)
    if x is not None:
        gate, up = functional.linear(x, gate), None if up is None else functional.linear(x, up)
    gate, up = _halves(gate, up, axis=1)
    return functional.silu(gate) * up


def reference(gate: torch.Tensor, up: torch.Tensor | None = None, x: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """The formula in fp64; one product at a time, so that only one weight is widened at once."""
    gate, up = _halves(gate, up, axis=0 if x is not None else 1)
    if x is None:
        return {"y": gate.double() * torch.sigmoid(gate.double()) * up.double()}
    products = [x.double() @ weight.double().T for weight in (gate, up)]
    return {"y": products[0] * torch.sigmoid(products[0]) * products[1]}


def make_inputs(case: Case, generator: Any) -> Inputs:
    """Arguments of a call. Gates lie from -4 to 4, or, as products of weights of size K^-0.5, have a deviation of about 1.

    A strided case takes every tensor from a wider buffer, each with a row stride of its own.
    """

    def rows(m: int, n: int, padding: int, largest: float) -> torch.Tensor:
        return generator.uniform((m, n + padding * case.strided), case.dtype, -largest, largest)[:, :n]

    if case.K:
        largest = 3.0 / case.K**0.5
        n = case.N * (1 + case.packed)
        up = None if case.packed else rows(case.N, case.K, 128, largest)
        return {"gate": rows(n, case.K, 64, largest), "up": up, "x": rows(case.M, case.K, 192, 1.0)}
    if case.packed:
        return {"gate": rows(case.M, 2 * case.N, 64, 4.0), "up": None}
    return {"gate": rows(case.M, case.N, 64, 4.0), "up": rows(case.M, case.N, 128, 1.0)}


def traffic(case: Case) -> Traffic:
    """gate and up read once, or x and both weights; y written once."""
    item = ITEM_BYTES[case.dtype]
    read = case.M * case.K + 2 * case.N * case.K if case.K else 2 * case.M * case.N
    return Traffic(read_bytes=read * item, written_bytes=case.M * case.N * item)


def flops(case: Case) -> int:
    """Four for silu (negate, exp, add, divide), one for the product, and two for each weight and row of x."""
    return case.M * case.N * (5 + 4 * case.K)


TOLERANCE = {
    "fp32": Tolerance(1e-6, "exp and a division: a few 2^-24; 1.2e-7 seen", cosine=0.9999),
    "fp16": Tolerance(1e-3, "up to four roundings to fp16 of at most 2^-11 each; 5.2e-4 seen, 2.4e-4 with one", cosine=0.9999),
    "bf16": Tolerance(8e-3, "up to four roundings to bf16 of at most 2^-8 each; 4.6e-3 seen, 2.7e-3 with one", cosine=0.9999),
}
FP32_SUM = Tolerance(5e-6, "three times what sums of K=5120 products, one after another, give: 1.7e-6; 5e-7 seen", cosine=0.9999)


def tolerance(case: Case) -> Tolerance:
    """By dtype; in fp32 with products, by the order of their sums."""
    return FP32_SUM if case.K and case.dtype == "fp32" else TOLERANCE[case.dtype]


ROWS = (1, 16, 128, 1024, 8192)
QWEN = {"K": 5120, "N": 17408}
"""Hidden and inner width of Qwen3.5-27B's MLP."""


def _elementwise_cases() -> Iterator[Case]:
    for n in (17408, 5120):
        for m in ROWS:
            marks = [("headline", n == 17408 and m in (1, 8192)), ("smoke", (m, n) == (1, 17408)), ("cpu", m == 1)]
            yield Case(M=m, N=n, dtype="bf16", tags=["peers", "model", *(tag for tag, wanted in marks if wanted)])
    yield from Case.grid(M=(1, 128, 8192), N=17408, packed=1, dtype="bf16", tags="model")
    yield from Case.grid(M=(128, 1024), N=17408, dtype=("fp32", "fp16"), tags="model")
    yield Case(M=128, N=17408, strided=1, dtype="bf16", tags="model")
    yield from Case.grid(M=3, N=1024, packed=(0, 1), strided=(0, 1), dtype=("fp32", "fp16", "bf16"), tags="cpu")
    yield from Case.grid(M=5, N=1001, packed=(0, 1), dtype=("fp32", "bf16"), tags="ragged cpu")
    yield from Case.grid(M=3, N=5000, packed=1, strided=1, dtype=("fp16", "bf16"), tags="ragged cpu")
    yield from Case.grid(M=(1, 7), N=1, packed=(0, 1), dtype=("fp32", "bf16"), tags="ragged cpu")
    yield from Case.grid(M=(63, 1023), N=17400, dtype="bf16", tags="ragged")


def _gemv_cases() -> Iterator[Case]:
    yield Case(M=1, dtype="bf16", tags="model headline", **QWEN)
    yield from Case.grid(M=(2, 4, 8, 16), dtype="bf16", tags="model", **QWEN)
    yield from Case.grid(M=(1, 16), dtype=("fp32", "fp16"), tags="model", **QWEN)
    yield from Case.grid(M=(1, 16), packed=1, dtype="bf16", tags="model", **QWEN)
    yield from Case.grid(M=(1, 16), strided=1, dtype="bf16", tags="model", **QWEN)
    yield from Case.grid(M=(1, 4, 16), K=5000, N=1234, dtype="bf16", tags="ragged")
    yield from Case.grid(M=(1, 4, 16), K=1024, N=12, dtype=("fp32", "fp16", "bf16"), tags="cpu")
    yield from Case.grid(M=(2, 5), K=512, N=32, packed=1, strided=1, dtype=("fp32", "fp16", "bf16"), tags="cpu")
    yield from Case.grid(M=(3, 7), K=1000, N=10, dtype=("fp32", "fp16", "bf16"), tags="ragged cpu")
    yield from Case.grid(M=(1, 9), K=300, N=21, packed=1, strided=1, dtype=("fp32", "bf16"), tags="ragged cpu")
    yield from Case.grid(M=(1, 16), K=1, N=1, dtype="fp32", tags="ragged smoke cpu")


KERNEL = Kernel(
    variants={
        "elementwise": Variant(silu_mlp_elementwise),
        "fused_gemv": Variant(silu_mlp_fused_gemv, cases=lambda case: case.K > 0),
        "torch": Variant(silu_mlp_torch, triton=False),
    },
    default="elementwise",
    baseline="torch",
    axes=("M", "K", "N", "packed"),
    defaults={"K": 0, "packed": 0},
    cases=[*_elementwise_cases(), *_gemv_cases()],
    make_inputs=make_inputs,
    reference=reference,
    outputs=("y",),
    tolerance=tolerance,
    traffic=traffic,
    flops=flops,
    activations=lambda case: ("x",) if case.K else ("gate", "up"),
    data="gated-mlp/1",
)
