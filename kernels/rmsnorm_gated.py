"""RMSNorm of rows, times a gate: the norm that ends a gated delta net layer, per value head or over the whole row.

    y = x * rsqrt(mean(x^2) + eps) * weight * act(gate)      act(g) = g*sigmoid(g) (silu) or sigmoid(g); norm first, then gate

    tensor     axes    dtype                  layout                              mutated
    x          (M, N)  fp32, fp16 or bf16     unit stride along N, any row        no
    gate       (M, N)  x's                    as x, its own row stride            no
    weight     (N)     x's                    contiguous; not stored less one     no
    y          (M, N)  x's                    contiguous                          returned

A row is one head of one token (N = 128, M = tokens times heads) or everything that a token has (N = 4096).

Numerics: everything is computed in fp32, and y is rounded once. Rounding to fp16 is off by at most 2^-11 of a value and to
bf16 by at most 2^-8; in fp32 what is left is the order of the sum, rsqrt and exp: a few 2^-24. A NaN in x makes its whole row
NaN; so does an infinity of its own value, and zero of the others. A gate acts on its own value alone: NaN gives NaN, an
infinity infinity, minus infinity NaN as silu and zero as sigmoid. The mean square is fp32: it overflows beyond values of 1e19.

Source: the output norm of Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024 (arXiv 2412.06464), as in Qwen3-Next; with a
sigmoid and eps 1e-5, that of Kimi Linear (arXiv 2510.26692).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional

from harness import Case, Inputs, Kernel, Tolerance, Traffic, Variant, device_properties
from kernels._lib.arguments import FLOATS, ITEM_BYTES, check, refuse
from kernels._lib.rows import ROW_LIMIT, check_eps, common_alignment, load_block, plan_rows, row_stride, store_block

LOADS = 2
"""16-byte loads a lane of x, and of its gate. With four of each, ptxas puts loads of x behind the sigmoids, to save registers."""


@triton.jit(do_not_specialize=["stride_x", "stride_gate", "M"])
def rmsnorm_gated_rows(
    p_x,
    p_gate,
    p_w,
    p_y,
    stride_x,
    stride_gate,
    M,
    eps,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    ALIGN: tl.constexpr,
    IS_RAGGED_M: tl.constexpr,
    IS_SILU: tl.constexpr,
):
    """ROWS whole rows a program, kept in registers as CHUNKS blocks; strides in units of ALIGN values."""
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    o_block = tl.arange(0, BLOCK)[None, :]

    # All loads are to be under way before the first value is used. Weight and gate are used last, and ptxas would move their
    # loads behind the sum of squares, where their latency adds to the row's; it moves no load across a barrier, which waits
    # for none.
    b_w = ()
    b_g = ()
    for i in tl.static_range(CHUNKS):
        o_n = i * BLOCK + o_block
        mask = (i_m < M) & (o_n < N)
        b_w += (load_block(p_w + o_n, o_n < N, (i + 1) * BLOCK > N),)
        b_g += (load_block(p_gate + i_m * stride_gate * ALIGN + o_n, mask, IS_RAGGED_M or (i + 1) * BLOCK > N),)
    tl.debug_barrier()
    b_x = ()
    for i in tl.static_range(CHUNKS):
        o_n = i * BLOCK + o_block
        mask = (i_m < M) & (o_n < N)
        b_x += (load_block(p_x + i_m * stride_x * ALIGN + o_n, mask, IS_RAGGED_M or (i + 1) * BLOCK > N).to(tl.float32),)

    # Threads add their own squares before they meet: one reduction a row.
    b_ss = b_x[0] * b_x[0]
    for i in tl.static_range(1, CHUNKS):
        b_ss += b_x[i] * b_x[i]
    b_rstd = tl.rsqrt(tl.sum(b_ss, axis=1, keep_dims=True) * (1.0 / N) + eps)

    for i in tl.static_range(CHUNKS):
        o_n = i * BLOCK + o_block
        mask = (i_m < M) & (o_n < N)
        b_gate = b_g[i].to(tl.float32)
        b_act = b_gate * tl.sigmoid(b_gate) if IS_SILU else tl.sigmoid(b_gate)
        b_y = b_x[i] * b_rstd * b_w[i].to(tl.float32) * b_act
        store_block(p_y + i_m * N + o_n, b_y, mask, IS_RAGGED_M or (i + 1) * BLOCK > N)


def _check_options(eps: float, activation: str) -> None:
    """What variants and reference ask of the options alike. Raises ValueError."""
    check_eps("rmsnorm_gated", eps)
    if activation not in ("silu", "sigmoid"):
        raise refuse("rmsnorm_gated", f"activation={activation!r}", "use 'silu' or 'sigmoid'")


def _check(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, activation: str) -> None:
    """Refuse what the kernel does not take, with a ValueError that says what was given and what to give."""
    if x.dim() != 2 or not 1 <= x.shape[1] <= ROW_LIMIT:
        raise refuse("rmsnorm_gated", f"x has shape {tuple(x.shape)}", f"give (M, N) with N from 1 to {ROW_LIMIT}, leading axes flattened")
    check("rmsnorm_gated", "x", x, x.shape, FLOATS, x.device)
    check("rmsnorm_gated", "gate", gate, x.shape, (x.dtype,), x.device)
    check("rmsnorm_gated", "weight", weight, x.shape[1:], (x.dtype,), x.device, contiguous=True)
    _check_options(eps, activation)


def rmsnorm_gated(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, activation: str = "silu") -> torch.Tensor:
    """Norm and gate in one launch: y (M, N), contiguous, x's dtype. Tensors: see the module.

    Args:
        eps: added to the mean square, 0 or more.
        activation: `silu` or `sigmoid`, of the gate.

    Raises:
        ValueError: a shape, stride, dtype or option that the module's table does not allow.
    """
    _check(x, gate, weight, eps, activation)
    m, n = x.shape
    y = x.new_empty((m, n))
    if m == 0:
        return y
    strides = (row_stride(x), row_stride(gate))
    align = common_alignment(*strides)
    plan = plan_rows(m, n, x.element_size(), device_properties(), LOADS)
    rmsnorm_gated_rows[(triton.cdiv(m, plan.rows),)](
        x,
        gate,
        weight,
        y,
        *(stride // align for stride in strides),
        m,
        eps,
        N=n,
        ROWS=plan.rows,
        BLOCK=plan.block,
        CHUNKS=plan.chunks,
        ALIGN=align,
        IS_RAGGED_M=m % plan.rows != 0,
        IS_SILU=activation == "silu",
        num_warps=plan.warps,
    )
    return y


def rmsnorm_gated_torch(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, activation: str = "silu"
) -> torch.Tensor:
    """`rmsnorm_gated` as the ten or so PyTorch operations that a model file writes.

    Raises:
        ValueError: as `rmsnorm_gated`.
    """
    _check(x, gate, weight, eps, activation)
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    act = functional.silu if activation == "silu" else torch.sigmoid
    return (normed * weight * act(gate.float())).to(x.dtype)


def reference(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, activation: str) -> dict[str, torch.Tensor]:
    """The formula in fp64. Raises ValueError for options that no variant takes."""
    _check_options(eps, activation)
    x, gate = x.double(), gate.double()
    act = torch.sigmoid(gate) * (gate if activation == "silu" else 1.0)
    return {"y": x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight.double() * act}


def make_inputs(case: Case, generator: Any) -> Inputs:
    """Arguments of a call; gates from -4 to 4 cover both ends of the sigmoid.

    A strided case takes x and gate from wider buffers, each with a row stride of its own.
    """

    def rows(padding: int, largest: float) -> torch.Tensor:
        return generator.uniform((case.M, case.N + padding * case.strided), case.dtype, -largest, largest)[:, : case.N]

    return {
        "x": rows(64, 1.0),
        "gate": rows(128, 4.0),
        "weight": generator.uniform((case.N,), case.dtype),
        "eps": case.eps,
        "activation": case.gate,
    }


def traffic(case: Case) -> Traffic:
    """Bytes of x, gate and weight read once, y written once."""
    rows = case.M * case.N * ITEM_BYTES[case.dtype]
    return Traffic(read_bytes=2 * rows + case.N * ITEM_BYTES[case.dtype], written_bytes=rows)


def flops(case: Case) -> int:
    """Square, sum, scale, weight and gate of each value, and three for a sigmoid (exp, add, divide), one more for silu."""
    return case.M * case.N * (9 if case.gate == "silu" else 8)


TOLERANCE = {
    "fp32": Tolerance(1e-6, "order of the sum, rsqrt and exp: a few 2^-24; 1.5e-7 seen", cosine=0.9999),
    "fp16": Tolerance(1e-3, "one rounding to fp16 of at most 2^-11; 2.2e-4 seen", cosine=0.9999),
    "bf16": Tolerance(8e-3, "one rounding to bf16 of at most 2^-8; 1.7e-3 seen in rows, 3.2e-3 in a single value", cosine=0.9999),
}

TOKENS = (1, 16, 64, 512, 4096)
HEADLINE_TOKENS = (1, 64, 4096)


def _head_tags(heads: int, tokens: int) -> str:
    headline = "peers headline" if tokens in HEADLINE_TOKENS else "peers"
    return " ".join(["model", headline if heads == 48 else "", "smoke" if (heads, tokens) == (48, 1) else "", "cpu" if tokens == 1 else ""])


CASES = [
    # Per value head: 32 of them in Qwen3-Next, 48 in Qwen3.5-27B.
    *(Case(M=heads * tokens, N=128, dtype="bf16", tags=_head_tags(heads, tokens)) for heads in (32, 48) for tokens in TOKENS),
    *Case.grid(M=(768, 24576), N=128, dtype=("fp32", "fp16"), tags="model"),
    *Case.grid(M=24576, N=128, strided=1, dtype="bf16", tags="model"),
    # Kimi Linear: 12 or 96 heads, and its gate.
    *Case.grid(M=(12, 96), N=128, gate="sigmoid", eps=1e-5, dtype="bf16", tags="model cpu"),
    *Case.grid(M=(1536, 12288), N=128, gate="sigmoid", eps=1e-5, dtype="bf16", tags="model"),
    # The whole row of a token.
    *Case.grid(M=1, N=4096, dtype=("fp32", "fp16", "bf16"), tags="model cpu"),
    *Case.grid(M=(16, 64, 512, 4096), N=4096, dtype="bf16", tags="model"),
    *Case.grid(M=512, N=4096, dtype=("fp32", "fp16"), tags="model"),
    # One option at a time, then all at once.
    *Case.grid(M=48, N=128, dtype=("fp32", "fp16"), tags="cpu"),
    *Case.grid(M=6, N=128, gate="sigmoid", dtype=("fp32", "fp16", "bf16"), tags="cpu"),
    *Case.grid(M=6, N=128, eps=1e-5, dtype=("fp32", "fp16", "bf16"), tags="cpu"),
    *Case.grid(M=(3, 10), N=128, strided=1, dtype=("fp32", "fp16", "bf16"), tags="cpu"),
    *Case.grid(M=4, N=4096, gate="sigmoid", eps=1e-5, strided=1, dtype=("fp32", "bf16"), tags="cpu"),
    # Rows that are no power of two, no multiple of a vector, one value long; and the longest.
    *Case.grid(M=37, N=100, dtype=("fp32", "fp16", "bf16"), tags="ragged cpu"),
    *Case.grid(M=5, N=1001, gate="sigmoid", strided=1, dtype=("fp32", "bf16"), tags="ragged cpu"),
    *Case.grid(M=3, N=5000, eps=1e-5, strided=1, dtype=("fp32", "fp16", "bf16"), tags="ragged cpu"),
    *Case.grid(M=(1, 7), N=1, dtype=("fp32", "bf16"), tags="ragged cpu"),
    *Case.grid(M=24571, N=128, dtype="bf16", tags="ragged"),
    *Case.grid(M=(64, 1024), N=5000, dtype="bf16", tags="ragged"),
    *Case.grid(M=2, N=ROW_LIMIT, dtype=("fp32", "bf16"), tags="cpu"),
]

KERNEL = Kernel(
    variants={"fused": Variant(rmsnorm_gated), "torch": Variant(rmsnorm_gated_torch, triton=False)},
    default="fused",
    baseline="torch",
    axes=("M", "N", "gate", "eps"),
    defaults={"gate": "silu", "eps": 1e-6},
    cases=CASES,
    make_inputs=make_inputs,
    reference=reference,
    outputs=("y",),
    tolerance=TOLERANCE,
    traffic=traffic,
    flops=flops,
    data="gated-norm/1",
)
