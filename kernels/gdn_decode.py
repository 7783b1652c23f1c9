"""Gated delta net, one decode step: packed q, k and v in, the recurrent state updated in place by slot.

Per row and value head hv, with key head hv // (HV/H):

    g = -exp(A_log)*softplus(a + dt_bias)    softplus(x) = x if x > 20 else log(1 + exp(x))
    beta = sigmoid(b)                        kept in fp32
    q, k = q/sqrt(sum(q^2) + 1e-6), k/sqrt(sum(k^2) + 1e-6)    optional (l2norm)
    q = q*scale                              scale = K^-0.5
    S = exp(g)*S;  u = beta*(v - S k);  S += u k^T;  o = S q

    tensor         axes                  dtype            layout                                         mutated
    mixed_qkv      (B, 2*H*K + HV*V)     fp32, fp16, bf16 q heads, k heads, v heads; rows may lie apart  no
    a, b           (B, HV)               mixed_qkv's      rows may lie apart                             no
    A_log, dt_bias (HV)                  fp32             contiguous                                     no
    state          (slots, HV, V, K)     fp32, fp16, bf16 a slot is contiguous; slots may lie apart      yes
    state_indices  (B)                   int32            slot of each row, all distinct; < 0: padded    no
    out            (B, 1, HV, V)         mixed_qkv's      contiguous; zero in padded rows                returned

Numerics: everything is computed in fp32, and o is taken from the state before that is rounded for storage. log(1 + e) is computed as
log(w)*e/(w - 1) with w = 1 + e (Kahan's log1p), since the plain form keeps three digits of a step of 0.001. What is left of the error
is the rounding of `out` to its dtype and of the state to its own, so each has its own limit.

NaN or inf in a row's q reaches every output of the value heads that its key head serves; in k those and their states; in v or in a row of
the state that row of the state and its value of `out`. What is inf may arrive as inf or as NaN: sums are taken in another order than the
formula's, and not in the same by all variants. NaN in a gate takes its value head; a log gate of -inf forgets all before it, if that is
finite. A value that a fp16 state cannot hold is stored as inf.

Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024 (arXiv 2412.06464), equation 10; the gates are those of Qwen3-Next.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from harness import Case, Drift, Inputs, Kernel, Tolerance, Traffic, Variant, device_properties
from kernels._lib.arguments import ITEM_BYTES
from kernels._lib.gated_delta import (
    Packed,
    Rows,
    check_packed,
    draw_parameters,
    draw_slots,
    draw_slotted,
    draw_step,
    log_gate,
    log_gates,
    packed_axes,
    packed_bytes,
    split_packed,
    unit,
    unit_rows,
)
from kernels._lib.numerics import rounded

LANE_BYTES = 128
"""State bytes of a tile that one lane holds: eight 16-byte loads in flight at once."""


@triton.jit
def _gdn_decode(
    p_qkv, p_a, p_b, p_A_log, p_dt_bias, p_state, p_indices, p_out,
    stride_qkv, stride_a, stride_b, stride_slot, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, USE_L2NORM: tl.constexpr,
):  # fmt: skip
    # One warp a program: its lanes stream rows of the state in 16-byte accesses and need no barrier to add up.
    N_TILES: tl.constexpr = (V + BV - 1) // BV
    i_v = tl.program_id(0) % N_TILES
    i_head = tl.program_id(0) // N_TILES
    i_hv = i_head % HV
    i_h = i_hv // (HV // H)
    i_b = (i_head // HV).to(tl.int64)
    o_k = tl.arange(0, BK)
    o_v = i_v * BV + tl.arange(0, BV)
    # Where tiles divide the axes there are no masks.
    ZERO_K: tl.constexpr = None if K == BK else 0.0
    ZERO_V: tl.constexpr = None if V % BV == 0 else 0.0
    ZERO: tl.constexpr = None if K == BK and V % BV == 0 else 0.0
    in_k = None if ZERO_K is None else o_k < K
    in_v = None if ZERO_V is None else o_v < V
    in_tile = None if ZERO is None else (o_v < V)[:, None] & (o_k < K)[None, :]

    # The state waits for the index, so that is asked for first; nothing uses it before all small loads are under way.
    slot = tl.load(p_indices + i_b).to(tl.int64)
    p_row = p_qkv + i_b * stride_qkv
    b_q = tl.load(p_row + i_h * K + o_k, mask=in_k, other=ZERO_K).to(tl.float32)
    b_k = tl.load(p_row + (H + i_h) * K + o_k, mask=in_k, other=ZERO_K).to(tl.float32)
    b_v = tl.load(p_row + 2 * H * K + i_hv * V + o_v, mask=in_v, other=ZERO_V).to(tl.float32)
    b_a = tl.load(p_a + i_b * stride_a + i_hv).to(tl.float32)
    b_b = tl.load(p_b + i_b * stride_b + i_hv).to(tl.float32)
    b_A_log = tl.load(p_A_log + i_hv)
    b_dt_bias = tl.load(p_dt_bias + i_hv)
    p_o = p_out + (i_b * HV + i_hv) * V + o_v
    if slot < 0:
        tl.store(p_o, tl.zeros([BV], p_out.dtype.element_ty), mask=in_v)
        return

    p_tile = p_state + slot * stride_slot + i_hv * (V * K) + o_v[:, None] * K + o_k[None, :]
    b_S = tl.load(p_tile, mask=in_tile, other=ZERO).to(tl.float32)

    decay = tl.exp(log_gate(b_a, b_A_log, b_dt_bias))
    beta = tl.sigmoid(b_b)
    if USE_L2NORM:
        b_q = unit(b_q)
        b_k = unit(b_k)
    b_q *= scale

    # Both sums run over the old state, so neither waits for the other: with S' = decay*S + u k^T, S' q = decay*(S q) + u*(k q).
    b_Sk = tl.sum(b_S * b_k[None, :], 1)
    b_Sq = tl.sum(b_S * b_q[None, :], 1)
    b_u = beta * (b_v - decay * b_Sk)
    b_S = decay * b_S + b_u[:, None] * b_k[None, :]
    b_o = decay * b_Sq + b_u * tl.sum(b_k * b_q, 0)
    tl.store(p_tile, rounded(b_S, p_state.dtype.element_ty), mask=in_tile)
    tl.store(p_o, rounded(b_o, p_out.dtype.element_ty), mask=in_v)


def value_tile(heads: int, V: int, BK: int, item_bytes: int) -> int:
    """State rows per program: LANE_BYTES for each lane of one warp, halved while the device has multiprocessors to spare.

    Never less than one 16-byte access a lane.
    """
    device = device_properties()
    lanes, row_bytes = max(device.warp_size, 32), BK * item_bytes
    tile = max(1, min(triton.next_power_of_2(V), lanes * LANE_BYTES // row_bytes))
    while heads * triton.cdiv(V, tile) < 2 * device.multiprocessors and (tile // 2) * row_bytes >= 16 * lanes:
        tile //= 2
    return tile


def gdn_decode(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    l2norm: bool = True,
    scale: float | None = None,
) -> torch.Tensor:
    """One decode step in one launch; updates `state` in place and returns `out` (B, 1, HV, V). Tensors: see the module.

    Args:
        l2norm: normalise q and k per head.
        scale: factor of q; K^-0.5 by default.

    Raises:
        ValueError: HV is no multiple of H, or a shape, dtype or stride that the module's table does not allow.
    """
    n = check_packed("gdn_decode", mixed_qkv, a, b, A_log, dt_bias, state, state_indices)
    out = mixed_qkv.new_empty((n.B, 1, n.HV, n.V))
    BK = triton.next_power_of_2(n.K)
    BV = value_tile(n.B * n.HV, n.V, BK, state.element_size())
    _gdn_decode[(n.B * n.HV * triton.cdiv(n.V, BV),)](
        mixed_qkv, a, b, A_log, dt_bias, state, state_indices, out,
        mixed_qkv.stride(0), a.stride(0), b.stride(0), state.stride(0), n.K**-0.5 if scale is None else scale,
        H=n.H, HV=n.HV, K=n.K, V=n.V, BK=BK, BV=BV, USE_L2NORM=l2norm, num_warps=1,
    )  # fmt: skip
    return out


def gdn_decode_torch(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    l2norm: bool = True,
    scale: float | None = None,
) -> torch.Tensor:
    """The same step as PyTorch operations in fp32, free of host synchronisation, so that a graph can capture it.

    Raises:
        ValueError: as `gdn_decode`.
    """
    n = check_packed("gdn_decode", mixed_qkv, a, b, A_log, dt_bias, state, state_indices)
    if n.B == 0 or state.shape[0] == 0:  # without slots every row is padded
        return mixed_qkv.new_zeros((n.B, 1, n.HV, n.V))
    q, k, v = _split(mixed_qkv.float(), n)
    if l2norm:
        q, k = unit_rows(q), unit_rows(k)
    q = q * (n.K**-0.5 if scale is None else scale)

    rows = Rows.of(state_indices)
    old = state[rows.slots]
    S = old.float() * log_gates(a, A_log, dt_bias, torch.float32).exp()[:, :, None, None]
    u = b.float().sigmoid()[:, :, None] * (v - (S * k[:, :, None, :]).sum(-1))
    S = S + u[:, :, :, None] * k[:, :, None, :]
    out = (S * q[:, :, None, :]).sum(-1)
    rows.write(state, old, S)
    return torch.where(rows.live[:, None, None], out, 0.0).to(mixed_qkv.dtype)[:, None]


def _split(mixed_qkv: torch.Tensor, n: Packed) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k (B, HV, K), each key head repeated for the value heads that it serves, and v (B, HV, V)."""
    q, k, v = split_packed(mixed_qkv, n)
    group = n.HV // n.H
    return q.repeat_interleave(group, dim=1), k.repeat_interleave(group, dim=1), v


def reference(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    l2norm: bool,
) -> dict[str, torch.Tensor]:
    """The formula in fp64, for a state of any dtype: `out` and the whole new `state`."""
    n = packed_axes("gdn_decode", mixed_qkv, state)
    q, k, v = _split(mixed_qkv.double(), n)
    if l2norm:
        q, k = unit_rows(q), unit_rows(k)
    decay = log_gates(a, A_log, dt_bias, torch.float64).exp()
    beta = b.double().sigmoid()
    out, new_state = torch.zeros_like(v), state.to(torch.float64, copy=True)
    for row, slot in enumerate(state_indices.tolist()):
        if slot >= 0:
            S = new_state[slot]
            S *= decay[row, :, None, None]
            u = beta[row, :, None] * (v[row] - torch.einsum("hvk,hk->hv", S, k[row]))
            S += u[:, :, None] * k[row, :, None, :]
            out[row] = torch.einsum("hvk,hk->hv", S, q[row] * n.K**-0.5)
    return {"out": out[:, None], "state": new_state}


def step_inputs(case: Case, generator: Any) -> Inputs:
    """What a layer computes anew for each token. Keys that the kernel does not normalise have a norm of about 1.

    A strided case takes rows from wider buffers.
    """
    return draw_step(case, generator, 1.0 if case.l2norm else (3 / case.K) ** 0.5)


def make_inputs(case: Case, generator: Any) -> Inputs:
    """Arguments of a call. One slot belongs to no row, and neither do those of padded rows, which are spread over the batch."""
    state_indices = draw_slots(case, generator)
    state = draw_slotted(case, generator, (case.HV, case.V, case.K), case.state)
    return {
        **step_inputs(case, generator),
        **draw_parameters(case, generator),
        "state": state,
        "state_indices": state_indices,
        "l2norm": bool(case.l2norm),
    }


def traffic(case: Case) -> Traffic:
    """The live rows' q, k, v, a, b and state, A_log, dt_bias and the indices read once; the live rows' state and `out` written once."""
    state = (case.B - case.pad) * case.HV * case.V * case.K * ITEM_BYTES[case.state]
    return Traffic(packed_bytes(case) + state, state + case.B * case.HV * case.V * ITEM_BYTES[case.dtype])


def flops(case: Case) -> int:
    """Seven for each value of the live rows' states (decay, S k, the update, S q); the work of vectors is left out."""
    return 7 * (case.B - case.pad) * case.HV * case.V * case.K


TOLERANCE = {
    "fp32": Tolerance(1e-5, "fp32 arithmetic: sums over K and an exp of 2^-22; 3e-7 seen"),
    "fp16": Tolerance(5e-3, "one rounding to fp16, at most 2^-11; 2.4e-4 seen"),
    "bf16": Tolerance(8e-3, "one rounding to bf16, at most 2^-8; 1.9e-3 seen"),
}
STATE_LIMITS = {"fp32": 2e-6, "fp16": 5e-4, "bf16": 4e-3}
"""By the state's dtype. fp32: decay's exp is within 2^-22, one step away (2.1e-7 where every decay is off by that; 4e-7 seen). fp16
and bf16: three times the rounding to storage alone (1.7e-4 and 1.35e-3)."""

DRIFT = {
    "fp32": Tolerance(
        3e-6,
        "measured with K=V=128: storage alone gives at most 6.9e-8, an exp that is off by up to 2^-22 at random 3.6e-7, one that "
        "is always off by that 5.9e-6: half of this; 1.1e-7 seen in 1000 steps",
        cosine=0.999999,
    ),
    "bf16": Tolerance(
        1.35e-2,
        "three times what storage alone gives, measured with K=V=128: at most 4.5e-3 and a cosine of 0.99999; decay and the delta rule "
        "forget, so it does not grow",
        cosine=0.9999,
    ),
}
"""By the state's dtype. Storage alone: the fp64 reference with its state rounded to that dtype at each step."""


def tolerance(case: Case) -> Tolerance:
    """`out` by the case's dtype, the state by its own."""
    return replace(TOLERANCE[case.dtype], tensors={"state": STATE_LIMITS[case.state]})


QWEN = {"H": 16, "K": 128, "V": 128}
"""Heads and widths of Qwen3-Next (32 value heads) and Qwen3.5-27B (48)."""


def _model_cases() -> Iterator[Case]:
    for hv, b in itertools.product((32, 48), (1, 16, 64, 256)):
        headline = "headline" if hv == 32 and b in (1, 16, 256) else ""
        tags = ["model", headline, "peers" if hv == 32 else "", "smoke" if (hv, b) == (32, 1) else ""]
        yield Case(B=b, HV=hv, dtype="bf16", tags=" ".join(tags), **QWEN)
    for b in (1, 16, 64, 256):
        yield Case(B=b, HV=32, state="bf16", dtype="bf16", tags="model headline" if b == 16 else "model", **QWEN)
    yield from Case.grid(B=(1, 16, 64, 256), HV=(32, 48), dtype=("fp32", "fp16"), tags="model", **QWEN)
    yield Case(B=16, HV=32, l2norm=0, dtype="bf16", tags="model", **QWEN)
    yield Case(B=16, HV=32, strided=1, dtype="bf16", tags="model", **QWEN)
    yield from Case.grid(B=16, HV=48, pad=(5, 16), state=("fp32", "bf16"), dtype="bf16", tags="model", **QWEN)
    yield from Case.grid(B=4, HV=32, state=("fp32", "bf16"), dtype="bf16", tags="model drift", **QWEN)


def _ragged_cases() -> Iterator[Case]:
    yield from Case.grid(B=16, H=16, HV=32, K=96, V=80, state=("fp32", "bf16"), dtype=("bf16", "fp32"), tags="ragged")
    yield from Case.grid(B=7, H=5, HV=15, K=100, V=72, pad=2, strided=1, state=("fp32", "bf16"), dtype="bf16", tags="ragged")
    yield from Case.grid(B=2, H=1, HV=2, K=100, V=20, state=("fp32", "bf16"), dtype=("fp32", "fp16", "bf16"), tags="ragged cpu")
    yield from Case.grid(B=3, H=1, HV=3, K=24, V=10, pad=1, strided=1, l2norm=0, state=("fp32", "bf16"), dtype="bf16", tags="ragged cpu")
    yield Case(B=2, H=1, HV=1, K=1, V=1, dtype="fp32", tags="ragged cpu")


def _small_cases() -> Iterator[Case]:
    """One option at a time, small enough for the interpreter."""
    small = {"H": 2, "HV": 4, "K": 32, "V": 32}
    yield from Case.grid(B=2, state=("fp32", "bf16"), dtype=("fp32", "fp16", "bf16"), tags="cpu", **small)
    yield from Case.grid(B=2, l2norm=0, dtype=("fp32", "bf16"), tags="cpu", **small)
    yield from Case.grid(B=4, pad=(2, 4), dtype=("fp32", "bf16"), tags="cpu", **small)
    yield from Case.grid(B=2, strided=1, state=("fp32", "bf16"), dtype=("fp32", "fp16"), tags="cpu", **small)
    yield Case(B=1, H=16, HV=48, K=128, V=16, dtype="bf16", tags="smoke cpu")
    yield from Case.grid(B=1, H=1, HV=1, K=16, V=8, state=("fp32", "bf16"), dtype="bf16", tags="drift cpu")


KERNEL = Kernel(
    variants={"fused": Variant(gdn_decode), "torch": Variant(gdn_decode_torch, triton=False)},
    default="fused",
    baseline="torch",
    axes=("B", "H", "HV", "K", "V", "state", "l2norm", "pad"),
    defaults={"state": "fp32", "l2norm": 1, "pad": 0},
    cases=[*_model_cases(), *_ragged_cases(), *_small_cases()],
    make_inputs=make_inputs,
    reference=reference,
    outputs=("out",),
    mutates=("state",),
    slots={"state": "state_indices"},
    tolerance=tolerance,
    traffic=traffic,
    flops=flops,
    drift=Drift(step_inputs=step_inputs, carry={"state": "state"}, tolerance=DRIFT),
    data="gated-delta-step/1",
)
