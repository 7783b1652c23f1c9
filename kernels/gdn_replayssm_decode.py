"""Gated delta net, one decode step whose state is written only every L steps; the steps between are kept as records in rings.

Per row at position p = write_pos and value head hv, with key head hv // (HV/H), and `state` the checkpoint S_0:

    g = -exp(A_log)*softplus(a + dt_bias)    softplus(x) = x if x > 20 else log(1 + exp(x))
    beta = sigmoid(b)                        kept in fp32
    q, k = q/sqrt(sum(q^2) + 1e-6), k/sqrt(sum(k^2) + 1e-6);  q = q*scale    scale = K^-0.5
    c_j = exp(g + sum_{j<i<p} g_i)           what is left of record j;  c = exp(g + sum_{i<p} g_i), of the checkpoint
    S = c*S_0 + sum_{j<p} c_j d_j k_j^T;  u = beta*(v - S k);  o = S q + u*(k q)
    p < L-1: append the record (d, k, g)_p = (u, k, g);  the checkpoint stays as it is
    p = L-1: fold, S_0 = S + u k^T, with u and k as they are, not rounded;  append nothing

    tensor         axes                  dtype               layout                                         mutated
    mixed_qkv      (B, 2*H*K + HV*V)     fp32, fp16, bf16    q heads, k heads, v heads; rows may lie apart  no
    a, b           (B, HV)               mixed_qkv's         rows may lie apart                             no
    A_log, dt_bias (HV)                  fp32                contiguous                                     no
    state          (slots, HV, V, K)     fp32                a slot is contiguous; slots may lie apart      yes
    ring_d         (slots, HV, L, V)     mixed_qkv's or fp32 as state                                       yes
    ring_k         (slots, H, L, K)      ring_d's            as state; k normalised, not scaled             yes
    ring_g         (slots, HV, L)        fp32                as state; the log gate                         yes
    write_pos      (B)                   int32               position of each live row, 0 to L-1            no
    state_indices  (B)                   int32               slot of each row, all distinct; < 0: padded    no
    out            (B, 1, HV, V)         mixed_qkv's         contiguous; zero in padded rows                returned

Rows may stand at different positions. Records p to L-1 of a row's rings are void and may hold anything; with L=1 the rings stay empty.
The caller moves the positions on by `advance_write_pos` after the step, once for all layers that share them.

Neither S k nor S q needs S: the checkpoint is read once and met with k and q, the records through the products k_j k and k_j q. The
tile of the checkpoint stays in registers until u is known, so a fold reads it once too. K is summed in nk chunks, first over the
chunks within each lane and then across lanes: the more chunks, the fewer lanes share a row and the fewer exchanges a sum takes. K may be
1 to 1024; up to 16 it is one chunk.

Numerics: everything is computed in fp32, the gates of records are added before one exp. Over a cycle the step differs from the
unbuffered one by the rounding of records to the rings' dtype, each once; within a step the limits are those of one rounding.
NaN in a row's inputs, in its checkpoint or in a record that is in use reaches every output that depends on it, and no other. A log
gate of -inf forgets all before it, if that is finite.

Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024 (arXiv 2412.06464), equation 10, unrolled over the last p tokens
as its section 3.3 does for a chunk; the gates are those of Qwen3-Next.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from harness import Case, Cycle, Drift, Inputs, Kernel, Tolerance, Traffic, Variant, device_properties
from kernels._lib.arguments import INT32, ITEM_BYTES, check, refuse
from kernels._lib.gated_delta import (
    Packed,
    Rows,
    check_packed,
    check_slots,
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

NAME = "gdn_replayssm_decode"
FP32 = (torch.float32,)
MUTATED = ("state", "ring_d", "ring_k", "ring_g")
LARGEST_L = 64
LARGEST_RING = 16384
"""Key values of the records of one head that a program holds at once: at most eight warps' worth."""

LEAST_CHUNK = 16
"""Key values of a chunk, where there are several."""

LANE_BYTES = {False: 128, True: 256}
"""State bytes of a tile that one lane holds, without and with records: each program meets all records with k and q, which pays
with more rows of the state."""

ADVANCE_BLOCK = 1024
"""Positions that a program moves on."""

LANE_KEYS = 64
"""Key values of records that one lane holds."""


@triton.jit
def _gdn_replayssm_decode(
    p_qkv, p_a, p_b, p_A_log, p_dt_bias, p_state, p_ring_d, p_ring_k, p_ring_g, p_write_pos, p_indices, p_out,
    stride_qkv, stride_a, stride_b, stride_slot, stride_slot_d, stride_slot_k, stride_slot_g, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, L: tl.constexpr,
    NK: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    # One warp a program where the records fit: its lanes stream rows of the state in 16-byte accesses and add up by themselves.
    N_TILES: tl.constexpr = (V + BV - 1) // BV
    CHUNK: tl.constexpr = BK // NK
    i_v = tl.program_id(0) % N_TILES
    i_head = tl.program_id(0) // N_TILES
    i_hv = i_head % HV
    i_h = i_hv // (HV // H)
    i_b = (i_head // HV).to(tl.int64)
    o_k = tl.arange(0, BK)
    o_v = i_v * BV + tl.arange(0, BV)
    # The same columns in chunks. Axes of a tile of the state: (chunks, rows, columns of a chunk).
    o_c = tl.arange(0, NK)[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    o_tile = o_v[None, :, None] * K + o_c[:, None, :]
    # Where tiles divide the axes there are no masks.
    ZERO_K: tl.constexpr = None if K == BK else 0.0
    ZERO_V: tl.constexpr = None if V % BV == 0 else 0.0
    ZERO: tl.constexpr = None if K == BK and V % BV == 0 else 0.0
    in_k = None if ZERO_K is None else o_k < K
    in_c = None if ZERO_K is None else o_c < K
    in_v = None if ZERO_V is None else o_v < V
    in_tile = None if ZERO is None else (o_v < V)[None, :, None] & (o_c < K)[:, None, :]

    # Slot and position come first, since everything large waits for them. A position is never negative: it is asked for its sign
    # so that both are under way before the branch, which other loads may be moved behind.
    slot = tl.load(p_indices + i_b).to(tl.int64)
    position = 0 if L == 1 else tl.load(p_write_pos + i_b)
    p_o = p_out + (i_b * HV + i_hv) * V + o_v
    if (slot < 0) | (position < 0):
        tl.store(p_o, tl.zeros([BV], p_out.dtype.element_ty), mask=in_v)
        return

    # All loads come before the first use of any, so that they wait together.
    p_row = p_qkv + i_b * stride_qkv
    p_tile = p_state + slot * stride_slot + i_hv * (V * K) + o_tile
    p_d = p_ring_d + slot * stride_slot_d + i_hv * (L * V)
    p_k = p_ring_k + slot * stride_slot_k + i_h * (L * K)
    p_g = p_ring_g + slot * stride_slot_g + i_hv * L
    b_q = tl.load(p_row + i_h * K + o_k, mask=in_k, other=ZERO_K).to(tl.float32)
    b_k = tl.load(p_row + (H + i_h) * K + o_k, mask=in_k, other=ZERO_K).to(tl.float32)
    b_v = tl.load(p_row + 2 * H * K + i_hv * V + o_v, mask=in_v, other=ZERO_V).to(tl.float32)
    b_a = tl.load(p_a + i_b * stride_a + i_hv).to(tl.float32)
    b_b = tl.load(p_b + i_b * stride_b + i_hv).to(tl.float32)
    b_A_log = tl.load(p_A_log + i_hv)
    b_dt_bias = tl.load(p_dt_bias + i_hv)
    b_S = tl.load(p_tile, mask=in_tile, other=ZERO)
    if L > 1:
        o_l = tl.arange(0, BL)
        is_used = o_l < position
        in_keys = is_used[:, None] if ZERO_K is None else is_used[:, None] & (o_k < K)[None, :]
        in_values = is_used[:, None] if ZERO_V is None else is_used[:, None] & (o_v < V)[None, :]
        b_gates = tl.load(p_g + o_l, mask=is_used, other=0.0)
        b_keys = tl.load(p_k + o_l[:, None] * K + o_k[None, :], mask=in_keys, other=0.0)
        b_d = tl.load(p_d + o_l[:, None] * V + o_v[None, :], mask=in_values, other=0.0)

    g = log_gate(b_a, b_A_log, b_dt_bias)
    b_q = unit(b_q) * scale
    b_k = unit(b_k)
    b_qc = tl.reshape(b_q, [NK, CHUNK])
    b_kc = tl.reshape(b_k, [NK, CHUNK])

    c = tl.exp(g)
    if L > 1:
        c = tl.exp(g + tl.sum(b_gates, 0))
    b_Sk = c * tl.sum(tl.sum(b_S * b_kc[:, None, :], 0), 1)
    b_Sq = c * tl.sum(tl.sum(b_S * b_qc[:, None, :], 0), 1)
    if L > 1:
        # Gates of later records are added one by one: a gate of -inf forgets, and a difference of two sums would make it NaN.
        b_c = tl.exp(g + tl.sum(tl.where(o_l[None, :] > o_l[:, None], b_gates[None, :], 0.0), 1))
        b_keys = b_keys.to(tl.float32)
        b_d = b_c[:, None] * b_d.to(tl.float32)
        b_Sk += tl.sum(tl.sum(b_keys * b_k[None, :], 1)[:, None] * b_d, 0)
        b_Sq += tl.sum(tl.sum(b_keys * b_q[None, :], 1)[:, None] * b_d, 0)
    b_u = tl.sigmoid(b_b) * (b_v - b_Sk)
    b_o = b_Sq + b_u * tl.sum(b_k * b_q, 0)
    tl.store(p_o, rounded(b_o, p_out.dtype.element_ty), mask=in_v)

    if position >= L - 1:
        b_S = c * b_S + b_u[None, :, None] * b_kc[:, None, :]
        if L > 1:
            # From the last record back, so that one sum gives every c_j. The loads find what was read above.
            later = g
            for back in range(L - 1):
                j = L - 2 - back
                b_dj = tl.exp(later) * tl.load(p_d + j * V + o_v, mask=in_v, other=ZERO_V).to(tl.float32)
                b_kj = tl.load(p_k + j * K + o_c, mask=in_c, other=ZERO_K).to(tl.float32)
                b_S += b_dj[None, :, None] * b_kj[:, None, :]
                later += tl.load(p_g + j)
        tl.store(p_tile, b_S, mask=in_tile)
    else:
        tl.store(p_d + position * V + o_v, rounded(b_u, p_ring_d.dtype.element_ty), mask=in_v)
        if i_v == 0:
            tl.store(p_g + position, g)
            if i_hv % (HV // H) == 0:
                tl.store(p_k + position * K + o_k, rounded(b_k, p_ring_k.dtype.element_ty), mask=in_k)


def _checked(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    ring_d: torch.Tensor,
    ring_k: torch.Tensor,
    ring_g: torch.Tensor,
    write_pos: torch.Tensor,
    state_indices: torch.Tensor,
    nk: int | None,
) -> tuple[Packed, int, int]:
    """The axes of a call, L and the number of chunks, where all arguments are as the module's table says. Raises ValueError."""
    n = check_packed(NAME, mixed_qkv, a, b, A_log, dt_bias, state, state_indices, FP32)
    if ring_d.dim() != 4:
        raise refuse(NAME, f"ring_d has shape {tuple(ring_d.shape)}", "give ring_d (slots, HV, L, V)")
    slots, L = state.shape[0], ring_d.shape[2]
    if not 1 <= L <= LARGEST_L:
        raise refuse(NAME, f"ring_d has L={L} records", f"give 1 to {LARGEST_L}: the gates of all must fit the registers of a program")
    check_slots(NAME, "ring_d", ring_d, (slots, n.HV, L, n.V), (mixed_qkv.dtype, torch.float32), state.device)
    check_slots(NAME, "ring_k", ring_k, (slots, n.H, L, n.K), (ring_d.dtype,), state.device)
    check_slots(NAME, "ring_g", ring_g, (slots, n.HV, L), FP32, state.device)
    check(NAME, "write_pos", write_pos, (n.B,), INT32, state.device)
    BK = triton.next_power_of_2(n.K)
    if triton.next_power_of_2(L) * BK > LARGEST_RING:
        do = f"the records must fit the registers of a program: give L up to {LARGEST_RING // BK}"
        raise refuse(NAME, f"L={L} with K={n.K}", do)
    return n, L, count_chunks(nk, n.K, BK)


def count_chunks(nk: int | None, K: int, BK: int) -> int:
    """The chunks in which a call with `nk` sums K, rounded up to BK: two by default, or one where they would be shorter than LEAST_CHUNK.

    Raises:
        ValueError: nk splits BK into no such chunks.
    """
    allowed = [1 << i for i in range(max(1, BK // LEAST_CHUNK).bit_length())]
    if nk is None:
        return min(2, allowed[-1])
    if nk not in allowed:
        do = f"give nk={' or '.join(map(str, allowed))}: one chunk, or chunks of at least {LEAST_CHUNK} of the {BK} that K is rounded up to"
        raise refuse(NAME, f"nk={nk} with K={K}", do)
    return nk


def plan_program(heads: int, V: int, BK: int, BL: int) -> tuple[int, int]:
    """State rows and warps of a program.

    One warp, or as many as hold all records at LANE_KEYS a lane. Rows: LANE_BYTES for each lane, halved while the device has
    multiprocessors to spare, but never less than one 16-byte access a lane. A shorter row counts as one of LEAST_CHUNK keys, since
    all records have a value for each row.
    """
    device = device_properties()
    lanes, row_bytes = max(device.warp_size, 32), max(BK, LEAST_CHUNK) * 4
    warps = max(1, BL * BK // (lanes * LANE_KEYS)) if BL > 1 else 1
    tile = max(1, min(triton.next_power_of_2(V), warps * lanes * LANE_BYTES[BL > 1] // row_bytes))
    while heads * triton.cdiv(V, tile) < 2 * device.multiprocessors and (tile // 2) * row_bytes >= 16 * warps * lanes:
        tile //= 2
    return tile, warps


def gdn_replayssm_decode(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    ring_d: torch.Tensor,
    ring_k: torch.Tensor,
    ring_g: torch.Tensor,
    write_pos: torch.Tensor,
    state_indices: torch.Tensor,
    nk: int | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """One decode step in one launch: appends to the rings or folds them into `state`, and returns `out` (B, 1, HV, V).

    Tensors: see the module. `write_pos` is left as it is: `advance_write_pos` moves it on.

    Args:
        nk: chunks in which K is summed: 1, or what divides the power of two that K is rounded up to into chunks of at least 16. By
            default 2, and 1 where K is up to 16.
        scale: factor of q; K^-0.5 by default.

    Raises:
        ValueError: HV is no multiple of H, nk does not divide K so, or a shape, dtype or stride that the module's table does not allow.
    """
    n, L, nk = _checked(mixed_qkv, a, b, A_log, dt_bias, state, ring_d, ring_k, ring_g, write_pos, state_indices, nk)
    out = mixed_qkv.new_empty((n.B, 1, n.HV, n.V))
    if n.B == 0:
        return out
    BK, BL = triton.next_power_of_2(n.K), triton.next_power_of_2(L)
    BV, warps = plan_program(n.B * n.HV, n.V, BK, BL)
    _gdn_replayssm_decode[(n.B * n.HV * triton.cdiv(n.V, BV),)](
        mixed_qkv, a, b, A_log, dt_bias, state, ring_d, ring_k, ring_g, write_pos, state_indices, out,
        mixed_qkv.stride(0), a.stride(0), b.stride(0), state.stride(0), ring_d.stride(0), ring_k.stride(0), ring_g.stride(0),
        n.K**-0.5 if scale is None else scale,
        H=n.H, HV=n.HV, K=n.K, V=n.V, L=L, NK=nk, BK=BK, BV=BV, BL=BL, num_warps=warps,
    )  # fmt: skip
    return out


@triton.jit
def _advance(p_write_pos, rows, L: tl.constexpr, BLOCK: tl.constexpr):
    o_b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_position = tl.load(p_write_pos + o_b, mask=o_b < rows, other=0)
    b_next = (b_position + 1) % L
    # The remainder has the sign of a padded row's position, which is free.
    tl.store(p_write_pos + o_b, tl.where(b_next < 0, b_next + L, b_next), mask=o_b < rows)


def advance_write_pos(write_pos: torch.Tensor, L: int) -> None:
    """Move every position on by one, (p + 1) % L, in place and in one launch: a replay of a graph that captured it moves them too.

    Whatever a padded row's position was, it is 0 to L-1 after this.

    Raises:
        ValueError: write_pos is no contiguous int32 tensor of one axis, or L is below 1.
    """
    check(NAME, "write_pos", write_pos, (write_pos.numel(),), INT32, write_pos.device, contiguous=True)
    if L < 1:
        raise refuse(NAME, f"L={L}", "give the number of steps in a cycle, 1 or more")
    if write_pos.numel():
        _advance[(triton.cdiv(write_pos.numel(), ADVANCE_BLOCK),)](write_pos, write_pos.numel(), L=L, BLOCK=ADVANCE_BLOCK)


def gdn_replayssm_decode_torch(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    ring_d: torch.Tensor,
    ring_k: torch.Tensor,
    ring_g: torch.Tensor,
    write_pos: torch.Tensor,
    state_indices: torch.Tensor,
    nk: int | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """The same step as PyTorch operations in fp32, free of host synchronisation, so that a graph can capture it; nk changes nothing.

    Raises:
        ValueError: as `gdn_replayssm_decode`.
    """
    n, L, _ = _checked(mixed_qkv, a, b, A_log, dt_bias, state, ring_d, ring_k, ring_g, write_pos, state_indices, nk)
    if n.B == 0 or state.shape[0] == 0:  # without slots every row is padded
        return mixed_qkv.new_zeros((n.B, 1, n.HV, n.V))
    group = n.HV // n.H
    q, k, v = split_packed(mixed_qkv.float(), n)
    k = unit_rows(k)
    q_heads = (unit_rows(q) * (n.K**-0.5 if scale is None else scale)).repeat_interleave(group, dim=1)
    k_heads = k.repeat_interleave(group, dim=1)
    rows = Rows.of(state_indices)
    checkpoint, d, keys, gates = (tensor[rows.slots] for tensor in (state, ring_d, ring_k, ring_g))

    record = torch.arange(L, device=write_pos.device)
    is_used, is_next = record < write_pos[:, None], record == write_pos[:, None]
    folds = (write_pos == L - 1)[:, None]
    g = log_gates(a, A_log, dt_bias, torch.float32)
    since = torch.where(is_used[:, None], gates, 0.0).flip(-1).cumsum(-1).flip(-1)
    c = torch.exp(g[:, :, None] + torch.cat([since[:, :, 1:], torch.zeros_like(since[:, :, :1])], dim=-1))
    left = torch.where(is_used[:, None, :, None], d.float(), 0.0) * c[:, :, :, None]
    used_keys = torch.where(is_used[:, None, :, None], keys.float(), 0.0).repeat_interleave(group, dim=1)

    S = checkpoint * torch.exp(g + since[:, :, 0])[:, :, None, None] + left.mT @ used_keys
    u = b.float().sigmoid()[:, :, None] * (v - (S * k_heads[:, :, None, :]).sum(-1))
    S = S + u[:, :, :, None] * k_heads[:, :, None, :]
    out = (S * q_heads[:, :, None, :]).sum(-1)

    rows.write(state, checkpoint, torch.where(folds[:, :, None, None], S, checkpoint))
    appends = is_next & ~folds
    rows.write(ring_d, d, torch.where(appends[:, None, :, None], u[:, :, None, :].to(d.dtype), d))
    rows.write(ring_k, keys, torch.where(appends[:, None, :, None], k[:, :, None, :].to(keys.dtype), keys))
    rows.write(ring_g, gates, torch.where(appends[:, None], g[:, :, None], gates))
    return torch.where(rows.live[:, None, None], out, 0.0).to(mixed_qkv.dtype)[:, None]


def reference(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    ring_d: torch.Tensor,
    ring_k: torch.Tensor,
    ring_g: torch.Tensor,
    write_pos: torch.Tensor,
    state_indices: torch.Tensor,
    nk: int,
) -> dict[str, torch.Tensor]:
    """The recurrence in fp64, record after record, for a state and rings of any dtype: `out` and the whole new state and rings."""
    n, L = packed_axes(NAME, mixed_qkv, state), ring_d.shape[2]
    group = n.HV // n.H
    q, k, v = split_packed(mixed_qkv.double(), n)
    q, k = unit_rows(q) * n.K**-0.5, unit_rows(k)
    g, beta = log_gates(a, A_log, dt_bias, torch.float64), b.double().sigmoid()
    out = torch.zeros_like(v)
    new = {
        name: tensor.to(torch.float64, copy=True)
        for name, tensor in (("state", state), ("ring_d", ring_d), ("ring_k", ring_k), ("ring_g", ring_g))
    }
    for row, (slot, position) in enumerate(zip(state_indices.tolist(), write_pos.tolist(), strict=True)):
        if slot < 0:
            continue
        S, d, keys, gates = (tensor[slot] for tensor in new.values())
        replayed = S.clone()
        for j in range(position):
            replayed = gates[:, j, None, None].exp() * replayed + d[:, j, :, None] * keys[:, j].repeat_interleave(group, dim=0)[:, None, :]
        replayed = g[row, :, None, None].exp() * replayed
        key = k[row].repeat_interleave(group, dim=0)
        u = beta[row, :, None] * (v[row] - torch.einsum("hvk,hk->hv", replayed, key))
        replayed = replayed + u[:, :, None] * key[:, None, :]
        out[row] = torch.einsum("hvk,hk->hv", replayed, q[row].repeat_interleave(group, dim=0))
        if position == L - 1:
            S.copy_(replayed)
        else:
            d[:, position], keys[:, position], gates[:, position] = u, k[row], g[row]
    return {"out": out[:, None], **new}


def ring_dtype(case: Case) -> str:
    """The dtype of the rings of d and k: the case's own (`io`), or the one that the axis names."""
    return str(case.dtype if case.ring == "io" else case.ring)


def positions(case: Case, device: torch.device) -> torch.Tensor:
    """write_pos of a case's rows, int32 (B). The axis `phase` is the position of all of them, at which they are timed, or a word.

    `cycle`: all rows stand in the middle of a cycle and move on together, so that appends and folds can be timed apart.
    `mixed`: they stand as far apart as they can, the last row at its fold, and move on.
    """
    if case.phase == "mixed":
        row = torch.arange(case.B, dtype=torch.int32, device=device)
        return (case.L - 1 - (case.B - 1 - row) * max(1, case.L // case.B)) % case.L
    position = case.L // 2 if case.phase == "cycle" else case.phase
    return torch.full((case.B,), position, dtype=torch.int32, device=device)


def step_inputs(case: Case, generator: Any) -> Inputs:
    """What a layer computes anew for each token. A strided case takes rows from wider buffers."""
    return draw_step(case, generator, 1.0)


def make_inputs(case: Case, generator: Any) -> Inputs:
    """Arguments of a call. One slot belongs to no row, and neither do those of padded rows, which are spread over the batch.

    All records of the rings are as the step makes them, void ones too: as after earlier cycles. Their keys have a norm of
    about 1, their log gates are between -1.6 and -0.001 with a median of -0.18, as the parameters give them.
    """
    ring = ring_dtype(case)
    state_indices = draw_slots(case, generator)
    magnitude = draw_slotted(case, generator, (case.HV, case.L), "fp32", 0.5)
    magnitude.add_(0.5).mul_(0.84).add_(0.16)
    return {
        **step_inputs(case, generator),
        **draw_parameters(case, generator),
        "state": draw_slotted(case, generator, (case.HV, case.V, case.K), "fp32", 0.5),
        "ring_d": draw_slotted(case, generator, (case.HV, case.L, case.V), ring, 0.7),
        "ring_k": draw_slotted(case, generator, (case.H, case.L, case.K), ring, (3 / case.K) ** 0.5),
        "ring_g": magnitude.square_().square_().mul_(-1.6),
        "write_pos": positions(case, generator.device),
        "state_indices": state_indices,
        "nk": case.nk,
    }


def _mean_over_phases(case: Case) -> tuple[float, float]:
    """Records that a step reads, and the part of steps that fold: at the case's position, or the mean of a cycle."""
    if isinstance(case.phase, int):
        return case.phase, float(case.phase == case.L - 1)
    return (case.L - 1) / 2, 1 / case.L


def traffic(case: Case) -> Traffic:
    """What the live rows read: their operands, the checkpoint, the records in use, positions and indices, A_log and dt_bias.

    Written: `out`, and a record or, in a fold, the checkpoint. Where the position moves, the mean of a cycle, to the nearest byte.
    """
    live = case.B - case.pad
    records, folds = _mean_over_phases(case)
    record = (case.HV * case.V + case.H * case.K) * ITEM_BYTES[ring_dtype(case)] + case.HV * 4
    state = case.HV * case.V * case.K * 4
    position = 4 if case.L > 1 else 0
    return Traffic(
        read_bytes=round(packed_bytes(case) + live * (state + records * record + position)),
        written_bytes=round(live * (folds * state + (1 - folds) * record) + case.B * case.HV * case.V * ITEM_BYTES[case.dtype]),
    )


def flops(case: Case) -> int:
    """For each value of the live rows' states four (S k and S q), and in a fold one (decay) and two for each of the L tokens.

    The mean of a cycle where the position moves; the work of vectors is left out.
    """
    _, folds = _mean_over_phases(case)
    return round((case.B - case.pad) * case.HV * case.V * case.K * (4 + folds * (1 + 2 * case.L)))


TOLERANCE = {
    "fp32": Tolerance(1e-5, "fp32 arithmetic: sums over K and over records, exps within 2^-22; 1.9e-7 seen", cosine=0.9999),
    "fp16": Tolerance(5e-3, "one rounding to fp16, at most 2^-11; 2.5e-4 seen", cosine=0.9999),
    "bf16": Tolerance(8e-3, "one rounding to bf16, at most 2^-8; 2.0e-3 seen", cosine=0.9999),
}
RING_LIMITS = {"fp32": 2e-6, "fp16": 3.1e-4, "bf16": 2.4e-3}
"""By the rings' dtype, over all records of a live row, of which a step writes one: three times the rounding alone where that is one
in three (1.03e-4 and 7.9e-4). fp32: 4e-8 seen."""

FP32_LIMIT = 2e-6
"""The checkpoint and the log gates: an exp is within 2^-22, one step away (1.2e-7 and 1.9e-7 seen)."""

DRIFT = {
    "fp32": Tolerance(
        3e-6,
        "as the unbuffered step: half of what an exp gives that is always off by 2^-22; storage alone gives 5e-8, and as many exps as "
        "there are folds, not steps, reach the checkpoint; 1.4e-7 seen in 1000 steps",
        cosine=0.999999,
    ),
    "fp16": Tolerance(
        9e-4,
        "three times what storage alone gives, measured with K=V=128: at most 2.9e-4, of the rings 2.3e-4, and a cosine of 0.9999999; "
        "decay and the delta rule forget, so it does not grow; 3.0e-4 seen in 1000 steps",
        tensors={"ring_d": 7e-4, "ring_k": 7e-4, "ring_g": 3e-6},
        cosine=0.999999,
    ),
    "bf16": Tolerance(
        7.2e-3,
        "as fp16: at most 2.4e-3, of the rings 1.8e-3, and a cosine of 0.999997; 2.0e-3 seen in 1000 steps",
        tensors={"ring_d": 5.6e-3, "ring_k": 5.6e-3, "ring_g": 3e-6},
        cosine=0.9999,
    ),
}
"""By the rings' dtype, which in drift cases is the case's. Storage alone: the fp64 reference with each record and each checkpoint
rounded to the dtype that holds it."""


def tolerance(case: Case) -> Tolerance:
    """`out` by the case's dtype, the rings by theirs; the checkpoint and the log gates are fp32."""
    ring = RING_LIMITS[ring_dtype(case)]
    return replace(TOLERANCE[case.dtype], tensors={"state": FP32_LIMIT, "ring_g": FP32_LIMIT, "ring_d": ring, "ring_k": ring})


QWEN = {"H": 16, "K": 128, "V": 128}
"""Heads and widths of Qwen3-Next (32 value heads) and Qwen3.5-27B (48)."""

PEER_PHASES = {8: (4, 7), 16: (8, 15)}
"""By L: the append and the fold at which peers were timed; with L=1 every step folds."""


def _model_cases() -> Iterator[Case]:
    for length, b in itertools.product((1, 8, 16), (1, 16, 64, 256)):
        headline = "headline" if length == 8 and b in (1, 16, 64) else ""
        smoke = "smoke" if (length, b) == (8, 1) else ""
        peers = "peers" if length == 1 else ""
        yield Case(B=b, HV=32, L=length, dtype="bf16", tags=f"model {headline} {smoke} {peers}", **QWEN)
        for phase in PEER_PHASES.get(length, ()):
            yield Case(B=b, HV=32, L=length, phase=phase, dtype="bf16", tags="model peers", **QWEN)
    yield from Case.grid(B=(1, 16, 64, 256), HV=48, L=16, dtype="bf16", tags="model", **QWEN)
    yield from Case.grid(B=(1, 16, 64, 256), HV=32, L=8, dtype=("fp32", "fp16"), tags="model", **QWEN)
    yield from Case.grid(B=(1, 16, 256), HV=32, L=8, nk=(1, 4), dtype="bf16", tags="model", **QWEN)
    yield Case(B=16, HV=32, L=8, ring="fp32", dtype="bf16", tags="model", **QWEN)
    yield Case(B=16, HV=32, L=8, strided=1, phase="mixed", dtype="bf16", tags="model", **QWEN)
    yield from Case.grid(B=64, HV=32, L=(8, 16), phase="mixed", dtype="bf16", tags="model", **QWEN)
    yield from Case.grid(B=16, HV=48, L=8, pad=(5, 16), phase="mixed", dtype="bf16", tags="model", **QWEN)
    yield from Case.grid(B=8, HV=32, L=8, phase="mixed", dtype=("fp32", "fp16", "bf16"), tags="model drift", **QWEN)


def _ragged_cases() -> Iterator[Case]:
    yield from Case.grid(B=16, H=16, HV=32, K=96, V=80, L=8, phase="mixed", dtype=("bf16", "fp32"), tags="ragged")
    yield Case(B=7, H=5, HV=15, K=100, V=72, L=5, pad=2, strided=1, phase="mixed", dtype="bf16", tags="ragged")
    yield from Case.grid(B=3, H=1, HV=1, K=100, V=20, L=3, phase="mixed", dtype=("fp32", "fp16", "bf16"), tags="ragged cpu")
    yield Case(B=4, H=1, HV=3, K=24, V=10, L=5, pad=1, strided=1, phase="mixed", dtype="bf16", tags="ragged cpu")
    yield Case(B=2, H=1, HV=1, K=9, V=1, L=2, nk=1, phase="mixed", dtype="fp32", tags="ragged cpu")


def _small_cases() -> Iterator[Case]:
    """One option at a time, small enough for the interpreter."""
    lone, apart = {"B": 1, "H": 1, "HV": 2, "K": 32, "V": 8}, {"B": 3, "H": 1, "HV": 2, "K": 32, "V": 4, "L": 4, "phase": "mixed"}
    yield from Case.grid(dtype=("fp32", "fp16", "bf16"), tags="cpu", **apart)
    yield from Case.grid(ring="fp32", dtype=("fp16", "bf16"), tags="cpu", **apart)
    yield from Case.grid(strided=1, dtype=("fp32", "fp16"), tags="cpu", **apart)
    yield from Case.grid(L=(1, 8, 16), dtype=("fp32", "bf16"), tags="cpu", **lone)
    yield from Case.grid(L=8, phase=(0, 6, 7), dtype="bf16", tags="cpu", **lone)
    yield Case(L=16, phase=15, dtype="fp32", tags="cpu", **lone)
    yield from Case.grid(pad=(2, 4), dtype=("fp32", "bf16"), tags="cpu", **{**apart, "B": 4})
    yield from Case.grid(nk=(1, 4), dtype="bf16", tags="cpu", **{**apart, "B": 2, "K": 64})
    yield Case(B=1, H=2, HV=6, K=128, V=8, L=8, dtype="bf16", tags="smoke cpu")
    yield from Case.grid(B=2, H=1, HV=1, K=32, V=4, L=8, phase="mixed", dtype=("fp32", "bf16"), tags="drift cpu")


KERNEL = Kernel(
    variants={"fused": Variant(gdn_replayssm_decode), "torch": Variant(gdn_replayssm_decode_torch, triton=False)},
    default="fused",
    baseline="torch",
    axes=("B", "H", "HV", "K", "V", "L", "nk", "ring", "pad", "phase"),
    defaults={"nk": 2, "ring": "io", "pad": 0, "phase": "cycle"},
    cases=[*_model_cases(), *_ragged_cases(), *_small_cases()],
    make_inputs=make_inputs,
    reference=reference,
    outputs=("out",),
    mutates=MUTATED,
    slots=dict.fromkeys(MUTATED, "state_indices"),
    tolerance=tolerance,
    traffic=traffic,
    flops=flops,
    drift=Drift(step_inputs=step_inputs, carry={name: name for name in MUTATED}, tolerance=DRIFT),
    cycle=Cycle(
        length=lambda case: 1 if isinstance(case.phase, int) else case.L,
        cursor="write_pos",
        advance=lambda inputs: advance_write_pos(inputs["write_pos"], inputs["ring_d"].shape[2]),
    ),
    data="gated-delta-replay/1",
)
