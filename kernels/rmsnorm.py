"""RMSNorm of rows, with the residual add that precedes it in a transformer layer fused in.

    s         = x + residual, rounded to the residual's dtype           (s = x where there is no residual)
    y         = s * rsqrt(mean(s^2) + eps) * w                          (w + 1 with plus_one)
    residual' = s

    tensor     axes    dtype                  layout                          mutated
    x          (M, N)  fp32, fp16 or bf16     unit stride along N, any row    no
    weight     (N)     x's                    contiguous                      no
    residual   (M, N)  x's, or fp32           as x, its own row stride        no
    y          (M, N)  x's                    contiguous                      returned
    residual'  (M, N)  residual's             contiguous                      returned as `residual`; None without one

Numerics: sums and products in fp32. y is rounded once, after the weight (cast="after"); cast="before" rounds the normalised
row too, as `weight * normed.to(dtype)` does. residual' is bit-equal to the sum of a separate add, and the norm sees it
rounded; y is the norm of that sum but for the order in which squares are added, since a row with a residual may be spread over
more warps: in fp32 its last bits may differ. Rounding to fp16 is off by at most 2^-11 of a value and to bf16 by at most 2^-8;
the tolerance allows two roundings. In fp32 what is left is the order of the sum and rsqrt: a few 2^-24. A NaN makes its whole
row of y NaN; so does an infinity of its own value, and zero of the others. The mean square is fp32: it overflows beyond values
of 1e19.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, equation 4; the weight + 1 form is that of
Gemma and of Qwen3-Next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from harness import Case, Inputs, Kernel, Tolerance, Traffic, Variant, device_properties
from kernels._lib.arguments import FLOATS, ITEM_BYTES, check, refuse
from kernels._lib.numerics import rounded
from kernels._lib.rows import ROW_LIMIT, check_eps, common_alignment, load_block, plan_rows, row_stride, store_block

LOOP_BLOCK = 4096
"""Columns of one step over a row that is too long for registers."""


@triton.jit
def _load_sum(p_x, o_x, p_residual, o_residual, mask, IS_MASKED: tl.constexpr):
    """x, or x + residual as it rounds to the residual's dtype; fp32."""
    b_s = load_block(p_x + o_x, mask, IS_MASKED).to(tl.float32)
    if p_residual is not None:
        b_r = load_block(p_residual + o_residual, mask, IS_MASKED)
        b_s = rounded(b_s + b_r.to(tl.float32), b_r.dtype).to(tl.float32)
    return b_s


@triton.jit
def _scale(b_y, b_w, dtype: tl.constexpr, PLUS_ONE: tl.constexpr, CAST_BEFORE: tl.constexpr):
    """The normalised row times its weight; fp32."""
    b_w = b_w.to(tl.float32)
    if PLUS_ONE:
        b_w += 1.0
    if CAST_BEFORE:
        b_y = rounded(b_y, dtype).to(tl.float32)
    return b_y * b_w


@triton.jit(do_not_specialize=["stride_x", "stride_residual", "M"])
def rmsnorm_rows(
    p_x,
    p_w,
    p_residual,
    p_y,
    p_residual_out,
    stride_x,
    stride_residual,
    M,
    eps,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    ALIGN: tl.constexpr,
    IS_RAGGED_M: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    CAST_BEFORE: tl.constexpr,
):
    """ROWS whole rows a program, read once and kept in registers as CHUNKS blocks; strides in units of ALIGN values."""
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    o_x = i_m * stride_x * ALIGN
    o_r = i_m * stride_residual * ALIGN
    o_y = i_m * N
    o_block = tl.arange(0, BLOCK)[None, :]

    # All loads are to be under way before the first value is used. The weight is used last, and ptxas would move its loads
    # behind the sum of squares, where their latency adds to the row's; it moves no load across a barrier, which waits for none.
    b_w = ()
    for i in tl.static_range(CHUNKS):
        o_n = i * BLOCK + o_block
        b_w += (load_block(p_w + o_n, o_n < N, (i + 1) * BLOCK > N),)
    tl.debug_barrier()
    b_s = ()
    for i in tl.static_range(CHUNKS):
        o_n = i * BLOCK + o_block
        mask = (i_m < M) & (o_n < N)
        b_s += (_load_sum(p_x, o_x + o_n, p_residual, o_r + o_n, mask, IS_RAGGED_M or (i + 1) * BLOCK > N),)

    # Threads add their own squares before they meet: one reduction a row.
    b_ss = b_s[0] * b_s[0]
    for i in tl.static_range(1, CHUNKS):
        b_ss += b_s[i] * b_s[i]
    b_rstd = tl.rsqrt(tl.sum(b_ss, axis=1, keep_dims=True) * (1.0 / N) + eps)

    for i in tl.static_range(CHUNKS):
        o_n = i * BLOCK + o_block
        mask = (i_m < M) & (o_n < N)
        if p_residual_out is not None:
            store_block(p_residual_out + o_y + o_n, b_s[i], mask, IS_RAGGED_M or (i + 1) * BLOCK > N)
        b_y = _scale(b_s[i] * b_rstd, b_w[i], p_y.dtype.element_ty, PLUS_ONE, CAST_BEFORE)
        store_block(p_y + o_y + o_n, b_y, mask, IS_RAGGED_M or (i + 1) * BLOCK > N)


@triton.jit(do_not_specialize=["stride_x", "stride_residual"])
def rmsnorm_long_row(
    p_x,
    p_w,
    p_residual,
    p_y,
    p_residual_out,
    stride_x,
    stride_residual,
    eps,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    CAST_BEFORE: tl.constexpr,
):
    """One row a program, read twice: for the sum of squares, then, from cache, for the output."""
    IS_MASKED: tl.constexpr = N % BLOCK != 0
    i_m = tl.program_id(0).to(tl.int64)
    o_x = i_m * stride_x * ALIGN
    o_r = i_m * stride_residual * ALIGN
    o_y = i_m * N
    b_ss = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        o_n = start + tl.arange(0, BLOCK)
        b_s = _load_sum(p_x, o_x + o_n, p_residual, o_r + o_n, o_n < N, IS_MASKED)
        b_ss += b_s * b_s
    b_rstd = tl.rsqrt(tl.sum(b_ss) * (1.0 / N) + eps)
    for start in range(0, N, BLOCK):
        o_n = start + tl.arange(0, BLOCK)
        b_s = _load_sum(p_x, o_x + o_n, p_residual, o_r + o_n, o_n < N, IS_MASKED)
        b_w = load_block(p_w + o_n, o_n < N, IS_MASKED)
        if p_residual_out is not None:
            store_block(p_residual_out + o_y + o_n, b_s, o_n < N, IS_MASKED)
        b_y = _scale(b_s * b_rstd, b_w, p_y.dtype.element_ty, PLUS_ONE, CAST_BEFORE)
        store_block(p_y + o_y + o_n, b_y, o_n < N, IS_MASKED)


def _check_options(eps: float, plus_one: int, cast: str) -> None:
    """What variants and reference ask of the options alike. Raises ValueError."""
    check_eps("rmsnorm", eps)
    if not isinstance(plus_one, int) or plus_one not in (0, 1):
        raise refuse("rmsnorm", f"plus_one={plus_one!r}", "use 0 or 1, or a bool")
    if cast not in ("after", "before"):
        raise refuse("rmsnorm", f"cast={cast!r}", "use 'after' or 'before'")


def _check(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None, eps: float, plus_one: int, cast: str) -> None:
    """Refuse what the kernels do not take, with a ValueError that says what was given and what to give."""
    if x.dim() != 2 or x.shape[1] == 0:
        raise refuse("rmsnorm", f"x has shape {tuple(x.shape)}", "give (M, N) with N > 0, leading axes flattened")
    check("rmsnorm", "x", x, x.shape, FLOATS, x.device)
    check("rmsnorm", "weight", weight, x.shape[1:], (x.dtype,), x.device, contiguous=True)
    if residual is not None:
        check("rmsnorm", "residual", residual, x.shape, tuple({x.dtype: 0, torch.float32: 0}), x.device)
    _check_options(eps, plus_one, cast)


def rmsnorm_fused(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None = None,
    eps: float = 1e-6,
    plus_one: int = 0,
    cast: str = "after",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """RMSNorm in one launch: y and the new residual, which is None where there is no residual.

    Args:
        x: (M, N) fp32, fp16 or bf16, unit stride along N.
        weight: (N), x's dtype, contiguous.
        residual: (M, N), x's dtype or fp32, unit stride along N; added to x first.
        eps: added to the mean square, 0 or more.
        plus_one: whether the weight is stored less one: 0 or 1.
        cast: `after` rounds once, after the weight; `before` rounds the normalised row too.

    Raises:
        ValueError: a shape, stride, dtype or option that the kernel does not take.
    """
    _check(x, weight, residual, eps, plus_one, cast)
    m, n = x.shape
    y = x.new_empty((m, n))
    residual_out = None if residual is None else residual.new_empty((m, n))
    if m == 0:
        return y, residual_out
    strides = (row_stride(x), 0 if residual is None else row_stride(residual))
    align = common_alignment(*strides)
    tensors = (x, weight, residual, y, residual_out, *(stride // align for stride in strides))
    options: dict[str, Any] = {"ALIGN": align, "PLUS_ONE": bool(plus_one), "CAST_BEFORE": cast == "before"}
    if n > ROW_LIMIT:
        rmsnorm_long_row[(m,)](*tensors, eps, N=n, BLOCK=LOOP_BLOCK, num_warps=8, **options)
        return y, residual_out
    plan = plan_rows(m, n, x.element_size(), device_properties())
    # A residual is as much again to hold: with twice the warps a lane has half of each, and nothing spills.
    warps = plan.warps if residual is None or plan.chunks == 1 else min(2 * plan.warps, 16)
    rmsnorm_rows[(triton.cdiv(m, plan.rows),)](
        *tensors,
        m,
        eps,
        N=n,
        ROWS=plan.rows,
        BLOCK=plan.block,
        CHUNKS=plan.chunks,
        IS_RAGGED_M=m % plan.rows != 0,
        num_warps=warps,
        **options,
    )
    return y, residual_out


def rmsnorm_torch(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None = None,
    eps: float = 1e-6,
    plus_one: int = 0,
    cast: str = "after",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`rmsnorm_fused` as the seven or so PyTorch operations that a model file writes."""
    _check(x, weight, residual, eps, plus_one, cast)
    residual_out = None if residual is None else (x.float() + residual.float()).to(residual.dtype)
    summed = (x if residual_out is None else residual_out).float()
    normed = summed * torch.rsqrt(summed.square().mean(dim=-1, keepdim=True) + eps)
    scale = weight.float() + 1.0 if plus_one else weight
    return (scale * (normed.to(x.dtype) if cast == "before" else normed)).to(x.dtype), residual_out


def reference(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None, eps: float, plus_one: int, cast: str
) -> dict[str, torch.Tensor | None]:
    """The formula in fp64, with the roundings that it names. Raises ValueError for options that no variant takes."""
    _check_options(eps, plus_one, cast)
    summed = x.double() if residual is None else (x.double() + residual.double()).to(residual.dtype).double()
    normed = summed / torch.sqrt(summed.square().mean(dim=-1, keepdim=True) + eps)
    if cast == "before":
        normed = normed.to(x.dtype).double()
    return {"y": normed * (weight.double() + plus_one), "residual": None if residual is None else summed}


def make_inputs(case: Case, generator: Any) -> Inputs:
    """Arguments of a call. A strided case takes x and residual from wider buffers, each with a row stride of its own."""

    def rows(dtype: str, padding: int) -> torch.Tensor:
        return generator.uniform((case.M, case.N + padding * case.strided), dtype)[:, : case.N]

    return {
        "x": rows(case.dtype, 64),
        "weight": generator.uniform((case.N,), case.dtype),
        "residual": rows(residual_dtype(case), 128) if case.residual else None,
        "eps": case.eps,
        "plus_one": case.plus_one,
        "cast": case.cast,
    }


def residual_dtype(case: Case) -> str:
    """Dtype of the residual: `residual=1` is the case's own, `residual=fp32` a stream kept in fp32."""
    return "fp32" if case.residual == "fp32" else case.dtype


def traffic(case: Case) -> Traffic:
    """Bytes of x, weight and residual read once, y and the new residual written once."""
    rows = case.M * case.N * ITEM_BYTES[case.dtype]
    residual = case.M * case.N * ITEM_BYTES[residual_dtype(case)] if case.residual else 0
    return Traffic(read_bytes=rows + case.N * ITEM_BYTES[case.dtype] + residual, written_bytes=rows + residual)


def flops(case: Case) -> int:
    """Square, sum, scale and weight of each value, and the residual add; the scalar work of a row is left out."""
    return case.M * case.N * (5 if case.residual else 4)


TOLERANCE = {
    "fp32": Tolerance(1e-6, "order of the sum and rsqrt: a few 2^-24; 1e-7 seen", cosine=0.9999),
    "fp16": Tolerance(1e-3, "two roundings to fp16 of at most 2^-11 each; 2.1e-4 seen, which is one rounding", cosine=0.9999),
    "bf16": Tolerance(8e-3, "two roundings to bf16 of at most 2^-8 each; 1.7e-3 seen, which is one rounding", cosine=0.9999),
}


def tolerance(case: Case) -> Tolerance:
    """By dtype; a residual kept in fp32 is an fp32 sum whatever the case's dtype is."""
    found = TOLERANCE[case.dtype]
    return replace(found, tensors={"residual": TOLERANCE["fp32"].rel_l2}) if case.residual == "fp32" else found


PEER_ROWS = (1, 16, 128, 1024, 4096, 16384)
PEER_COLUMNS = (4096, 5120, 8192, 16384)
HEADLINE = {(1, 5120), (128, 5120), (4096, 5120)}


def _peer_tags(m: int, n: int) -> str:
    tags = ["peers", "headline" if (m, n) in HEADLINE else "", "cpu" if m == 1 else "", "smoke" if (m, n) == (1, 5120) else ""]
    return " ".join(tags)


CASES = [
    *(Case(M=m, N=n, dtype="bf16", tags=_peer_tags(m, n)) for n in PEER_COLUMNS for m in PEER_ROWS),
    *Case.grid(M=(64, 256), N=PEER_COLUMNS, dtype="bf16"),
    *Case.grid(M=(64, 4096), N=5120, dtype=("fp32", "fp16")),
    # Qwen3.5-27B, per token: the first norm of the stack, the 128 that add a residual, the q and k norms of 16 layers.
    Case(M=1, N=5120, plus_one=1, dtype="bf16", tags="model cpu"),
    Case(M=1, N=5120, residual=1, plus_one=1, dtype="bf16", tags="model cpu"),
    *Case.grid(M=(16, 64, 256, 4096), N=5120, residual=1, plus_one=1, dtype="bf16", tags="model"),
    Case(M=24, N=256, plus_one=1, dtype="bf16", tags="model cpu"),
    Case(M=4, N=256, plus_one=1, dtype="bf16", tags="model cpu"),
    *Case.grid(M=(64, 256, 384, 1536, 98304), N=256, plus_one=1, dtype="bf16", tags="model"),
    *Case.grid(M=24, N=256, dtype="bf16"),
    *Case.grid(M=4, N=256, dtype=("fp32", "fp16", "bf16"), tags="cpu"),
    # Mamba-130m: the residual stream stays in fp32 whatever the weights are.
    *Case.grid(M=1, N=768, residual=1, eps=1e-5, dtype="fp32", tags="model cpu"),
    *Case.grid(M=(1, 256), N=768, residual="fp32", eps=1e-5, dtype="bf16", tags="model"),
    *Case.grid(M=3, N=768, residual="fp32", eps=1e-5, dtype=("fp16", "bf16"), tags="cpu"),
    # One option at a time, then all at once.
    *Case.grid(M=4, N=5120, dtype=("fp32", "fp16"), tags="cpu"),
    *Case.grid(M=4, N=5120, residual=1, dtype=("fp32", "fp16", "bf16"), tags="cpu"),
    *Case.grid(M=4, N=5120, eps=1e-5, dtype=("fp32", "bf16"), tags="cpu"),
    *Case.grid(M=4, N=5120, cast="before", dtype=("fp16", "bf16"), tags="cpu"),
    *Case.grid(M=4, N=5120, residual=1, strided=1, dtype=("fp32", "bf16"), tags="cpu"),
    *Case.grid(M=(64, 4096), N=5120, residual=1, strided=1, dtype="bf16"),
    *Case.grid(M=3, N=5000, residual=1, plus_one=1, eps=1e-5, cast="before", strided=1, dtype=("fp32", "fp16", "bf16"), tags="ragged cpu"),
    # Rows that are no power of two, no multiple of a vector, one value long, longer than the registers hold.
    *Case.grid(M=(1, 64, 1024), N=5000, dtype="bf16", tags="ragged"),
    *Case.grid(M=2, N=5000, dtype=("fp32", "fp16", "bf16"), tags="ragged cpu"),
    *Case.grid(M=5, N=1001, strided=1, dtype=("fp32", "bf16"), tags="ragged cpu"),
    *Case.grid(M=37, N=256, residual=1, strided=1, dtype=("fp32", "bf16"), tags="ragged cpu"),
    *Case.grid(M=(1, 7), N=1, dtype=("fp32", "fp16", "bf16"), tags="ragged cpu"),
    *Case.grid(M=4096, N=1, dtype="bf16", tags="ragged"),
    *Case.grid(M=2, N=20000, residual=1, plus_one=1, dtype=("fp32", "bf16"), tags="ragged cpu"),
    *Case.grid(M=2, N=32768, dtype="fp16", tags="cpu"),
    *Case.grid(M=(64, 1024), N=20000, dtype="bf16", tags="ragged"),
]

KERNEL = Kernel(
    variants={"fused": Variant(rmsnorm_fused), "torch": Variant(rmsnorm_torch, triton=False)},
    default="fused",
    baseline="torch",
    axes=("M", "N", "residual", "plus_one", "eps", "cast"),
    defaults={"residual": 0, "plus_one": 0, "eps": 1e-6, "cast": "after"},
    cases=CASES,
    make_inputs=make_inputs,
    reference=reference,
    outputs=("y", "residual"),
    tolerance=tolerance,
    traffic=traffic,
    flops=flops,
)
