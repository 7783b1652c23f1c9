"""Query, key and value projections of one attention layer with partial rotary position embedding, for decoding; or the rotation alone.

    q, [gate,] k, v = W x                       rows of W by head; gated: each query head has 2*Dh rows, q then gate
    q, k  = rmsnorm(q)*(q_norm + 1), rmsnorm(k)*(k_norm + 1)        gated form alone, over Dh, eps inside the root
    angle = position*inv_freq                   rounded to fp32
    q[i], q[i + rot/2] = q[i]*cos - q[i + rot/2]*sin, q[i + rot/2]*cos + q[i]*sin       for i < rot/2; k alike; the rest stays

    tensor         axes             dtype            layout                                                    mutated
    x              (M, K)           fp32, fp16, bf16 unit stride along K, rows may lie apart                   no
    weight         (N, K)           x's              as x; N = (Hq + 2*Hkv)*Dh, gated (2*Hq + 2*Hkv)*Dh        no
    positions      (M)              int32, int64     contiguous                                                no
    inv_freq       (rot/2)          fp32             contiguous                                                no
    q_norm, k_norm (Dh)             x's              contiguous; both or, in the plain form, neither           no
    arrivals       (M, Hq + Hkv)    int32            contiguous; gated form: scratch, zero before and after    left zero
    q, gate        (M, Hq, Dh)      x's              views of one (M, N) buffer; gate is None in the plain form returned
    k, v           (M, Hkv, Dh)     x's              views of the same buffer                                  returned
    q, k           (M, heads, Dh)   fp32, fp16, bf16 unit stride along Dh; others any, no two heads overlap    rotation alone: yes

Numerics: products, norm and rotation in fp32, rounded once (by `gemv_then_rope` and `torch` also after the product). cos and sin are
computed here in fp32: the angle less the nearest multiple of pi/2, which is held as three fp32 terms and taken off by fused
multiply-adds (the first exactly), then polynomials. For angles up to 4e6 they are within 1.6*2^-24 of the true values, so at position
262143 as at position 1, without the branches and the stack that Triton's own need for angles over 105615. table="bf16" rounds them to
bf16, as models do that keep a bf16 table. A NaN or infinity in a row of x spoils that row alone; one in a row of W its own column, in
q and k the column's rotary partner too and, in the gated form, the whole head.

Source: Su et al., "RoFormer", 2021 (arXiv 2104.09864), equation 34, with pairs half the rotary width apart as in GPT-NeoX; the gated
form, its norms and its partial rotation are those of Qwen3-Next and Qwen3.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional

from harness import Case, DeviceProperties, Inputs, Kernel, Tolerance, Traffic, Variant, device_properties
from kernels._lib.arguments import FLOATS, INT32, ITEM_BYTES, check, refuse
from kernels._lib.numerics import IS_INTERPRETED, rounded
from kernels._lib.rows import row_stride

POSITIONS = (torch.int32, torch.int64)
TABLES = ("fp32", "bf16")
EPS = 1e-6

TWO_OVER_PI = tl.constexpr(0.6366197466850281)
# pi/2 in three terms, each the fp32 value nearest to what the ones before leave.
HALF_PI_1 = tl.constexpr(1.5707963705062866)
HALF_PI_2 = tl.constexpr(-4.371138828673793e-08)
HALF_PI_3 = tl.constexpr(-1.7151245100058819e-15)
# Least maximum error over |r| <= 1.03*pi/4 (Lawson's iteration): sin(r)/r - 1 to 4.6e-9, cos(r) to 1.3e-10.
SIN_3, SIN_5, SIN_7 = tl.constexpr(-0.16666652262210846), tl.constexpr(0.008332033641636372), tl.constexpr(-0.00019497732864692807)
COS_4, COS_6, COS_8 = tl.constexpr(0.04166664183139801), tl.constexpr(-0.0013887177919968963), tl.constexpr(2.4416502128588036e-05)


@triton.jit
def _cos_sin(b_position, b_inv_freq, USE_BF16_TABLE: tl.constexpr):
    """cos and sin of position*inv_freq, each within 1.6*2^-24; angles up to 4e6."""
    b_angle = b_position.to(tl.float32) * b_inv_freq
    b_n = tl.floor(b_angle * TWO_OVER_PI + 0.5)
    if IS_INTERPRETED:  # whose fma rounds twice
        b_wide = b_n.to(tl.float64)
        b_r = (b_angle.to(tl.float64) - b_wide * HALF_PI_1).to(tl.float32)
        b_r = (b_r.to(tl.float64) - b_wide * HALF_PI_2).to(tl.float32)
        b_r = (b_r.to(tl.float64) - b_wide * HALF_PI_3).to(tl.float32)
    else:
        b_r = tl.fma(b_n, -HALF_PI_1, b_angle)
        b_r = tl.fma(b_n, -HALF_PI_2, b_r)
        b_r = tl.fma(b_n, -HALF_PI_3, b_r)
    b_z = b_r * b_r
    b_s = b_r + (b_z * b_r) * (SIN_3 + b_z * (SIN_5 + b_z * SIN_7))
    b_c = (1.0 - 0.5 * b_z) + (b_z * b_z) * (COS_4 + b_z * (COS_6 + b_z * COS_8))
    b_quarter = b_n.to(tl.int32)
    is_odd = (b_quarter & 1) != 0
    b_cos, b_sin = tl.where(is_odd, b_s, b_c), tl.where(is_odd, b_c, b_s)
    b_cos = tl.where(((b_quarter + 1) & 2) != 0, -b_cos, b_cos)
    b_sin = tl.where((b_quarter & 2) != 0, -b_sin, b_sin)
    if USE_BF16_TABLE:
        b_cos, b_sin = rounded(b_cos, tl.bfloat16).to(tl.float32), rounded(b_sin, tl.bfloat16).to(tl.float32)
    return b_cos, b_sin


@triton.jit
def _norm(b_a, b_b, b_rest, p_norm, eps, DH: tl.constexpr, HALF: tl.constexpr, BHALF: tl.constexpr, BREST: tl.constexpr):
    """RMSNorm of heads that are given as the two rotary halves (R, BHALF) and the rest (R, BREST), zero where there is nothing."""
    o_half, o_rest = tl.arange(0, BHALF), tl.arange(0, BREST)
    in_half, in_rest = o_half < HALF, o_rest < DH - 2 * HALF
    b_w_a = tl.load(p_norm + o_half, mask=in_half, other=0.0).to(tl.float32) + 1.0
    b_w_b = tl.load(p_norm + HALF + o_half, mask=in_half, other=0.0).to(tl.float32) + 1.0
    b_w_rest = tl.load(p_norm + 2 * HALF + o_rest, mask=in_rest, other=0.0).to(tl.float32) + 1.0
    b_ss = tl.sum(b_a * b_a + b_b * b_b, axis=1) + tl.sum(b_rest * b_rest, axis=1)
    b_rstd = tl.rsqrt(b_ss * (1.0 / DH) + eps)[:, None]
    return b_a * b_rstd * b_w_a[None, :], b_b * b_rstd * b_w_b[None, :], b_rest * b_rstd * b_w_rest[None, :]


@triton.jit
def _products_of_one(p_x, p_a, p_b, in_a, in_b, K: tl.constexpr, BK: tl.constexpr, IS_RAGGED: tl.constexpr):
    """Rows a and b of the weight times one token: two blocks (BH, 1).

    Each lane adds up the columns that it loads, so that a row costs it one register; lanes and warps meet once, at the end.
    """
    VECTOR: tl.constexpr = 128 // p_x.dtype.element_ty.primitive_bitwidth
    BH: tl.constexpr = p_a.shape[0]
    ZERO_K: tl.constexpr = None if K % BK == 0 else 0.0
    ZERO: tl.constexpr = 0.0 if IS_RAGGED else ZERO_K
    o_k = tl.arange(0, BK)
    b_a = tl.zeros([BH, BK // VECTOR], tl.float32)
    b_b = tl.zeros([BH, BK // VECTOR], tl.float32)
    for k in range(0, K, BK):
        in_k = None if ZERO_K is None else k + o_k < K
        in_tile_a = None if ZERO is None else in_a[:, None] & (k + o_k < K)[None, :]
        in_tile_b = None if ZERO is None else in_b[:, None] & (k + o_k < K)[None, :]
        b_w_a = tl.load(p_a + k + o_k[None, :], mask=in_tile_a, other=ZERO, eviction_policy="evict_first")
        b_w_b = tl.load(p_b + k + o_k[None, :], mask=in_tile_b, other=ZERO, eviction_policy="evict_first")
        b_x = tl.load(p_x + k + o_k, mask=in_k, other=ZERO_K).to(tl.float32)[None, :]
        b_a += tl.sum(tl.reshape(b_w_a.to(tl.float32) * b_x, [BH, BK // VECTOR, VECTOR]), axis=2)
        b_b += tl.sum(tl.reshape(b_w_b.to(tl.float32) * b_x, [BH, BK // VECTOR, VECTOR]), axis=2)
    return tl.sum(b_a, axis=1)[:, None], tl.sum(b_b, axis=1)[:, None]


@triton.jit
def _products_of_several(
    p_x, p_a, p_b, in_m, in_a, in_b,
    K: tl.constexpr, BK: tl.constexpr, IS_RAGGED: tl.constexpr, IS_RAGGED_M: tl.constexpr,
):  # fmt: skip
    """Rows a and b of the weight times BM tokens: two blocks (BH, BM)."""
    BH: tl.constexpr = p_a.shape[0]
    BM: tl.constexpr = p_x.shape[1]
    ZERO_X: tl.constexpr = 0.0 if IS_RAGGED_M or K % BK != 0 else None
    ZERO_W: tl.constexpr = 0.0 if IS_RAGGED or K % BK != 0 else None
    o_k = tl.arange(0, BK)
    b_a = tl.zeros([BH, BM], tl.float32)
    b_b = tl.zeros([BH, BM], tl.float32)
    for k in range(0, K, BK):
        in_x = None if ZERO_X is None else in_m[None, :] & (k + o_k < K)[:, None]
        in_tile_a = None if ZERO_W is None else in_a[:, None] & (k + o_k < K)[None, :]
        in_tile_b = None if ZERO_W is None else in_b[:, None] & (k + o_k < K)[None, :]
        b_x = tl.load(p_x + k + o_k[:, None], mask=in_x, other=ZERO_X)
        b_w_a = tl.load(p_a + k + o_k[None, :], mask=in_tile_a, other=ZERO_W, eviction_policy="evict_first")
        b_w_b = tl.load(p_b + k + o_k[None, :], mask=in_tile_b, other=ZERO_W, eviction_policy="evict_first")
        if IS_INTERPRETED:  # whose dot of bf16 operands is garbage
            b_x, b_w_a, b_w_b = b_x.to(tl.float32), b_w_a.to(tl.float32), b_w_b.to(tl.float32)
        b_a = tl.dot(b_w_a, b_x, b_a, input_precision="ieee")
        b_b = tl.dot(b_w_b, b_x, b_b, input_precision="ieee")
    return b_a, b_b


@triton.jit
def _finish_head(
    p_raw, p_out, p_positions, p_inv_freq, p_norm, stride_raw, stride_out, start, M, eps,
    DH: tl.constexpr, HALF: tl.constexpr, BM: tl.constexpr, BR: tl.constexpr, BHALF: tl.constexpr, BREST: tl.constexpr,
    USE_BF16_TABLE: tl.constexpr,
):  # fmt: skip
    """Norm and rotation of one head of a tile of tokens, whose fp32 products other programs wrote: read past the first-level cache."""
    o_half, o_rest = tl.arange(0, BHALF), tl.arange(0, BREST)
    b_inv_freq = tl.load(p_inv_freq + o_half, mask=o_half < HALF, other=0.0)[None, :]
    for m in range(0, BM, BR):
        if start + m < M:
            o_m = start + m + tl.arange(0, BR)
            in_m = o_m < M
            in_half = in_m[:, None] & (o_half < HALF)[None, :]
            in_rest = in_m[:, None] & (o_rest < DH - 2 * HALF)[None, :]
            p_half = p_raw + o_m.to(tl.int64)[:, None] * stride_raw + o_half[None, :]
            p_rest = p_raw + o_m.to(tl.int64)[:, None] * stride_raw + 2 * HALF + o_rest[None, :]
            b_position = tl.load(p_positions + o_m, mask=in_m, other=0)[:, None]
            b_a = tl.load(p_half, mask=in_half, other=0.0, cache_modifier=".cg")
            b_b = tl.load(p_half + HALF, mask=in_half, other=0.0, cache_modifier=".cg")
            b_rest = tl.load(p_rest, mask=in_rest, other=0.0, cache_modifier=".cg")
            b_a, b_b, b_rest = _norm(b_a, b_b, b_rest, p_norm, eps, DH, HALF, BHALF, BREST)
            b_cos, b_sin = _cos_sin(b_position, b_inv_freq, USE_BF16_TABLE)
            p_half = p_out + o_m.to(tl.int64)[:, None] * stride_out + o_half[None, :]
            p_rest = p_out + o_m.to(tl.int64)[:, None] * stride_out + 2 * HALF + o_rest[None, :]
            tl.store(p_half, rounded(b_a * b_cos - b_b * b_sin, p_out.dtype.element_ty), mask=in_half)
            tl.store(p_half + HALF, rounded(b_b * b_cos + b_a * b_sin, p_out.dtype.element_ty), mask=in_half)
            tl.store(p_rest, rounded(b_rest, p_out.dtype.element_ty), mask=in_rest)


@triton.jit(do_not_specialize=["M"])
def _qkv_rope(
    p_x, p_w, p_positions, p_inv_freq, p_q_norm, p_k_norm, p_out, p_raw, p_arrivals, stride_x, stride_w, M, eps,
    K: tl.constexpr, HQ: tl.constexpr, HKV: tl.constexpr, DH: tl.constexpr, HALF: tl.constexpr,
    BM: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, BHALF: tl.constexpr, BREST: tl.constexpr,
    USE_NORM: tl.constexpr, USE_BF16_TABLE: tl.constexpr, IS_RAGGED_M: tl.constexpr,
):  # fmt: skip
    # A program has 2*BH columns of one head: BH rotary pairs, whose halves lie HALF apart, or as many columns beside each other.
    ROTARY_TILES: tl.constexpr = (HALF + BH - 1) // BH
    TILES: tl.constexpr = ROTARY_TILES + (DH - 2 * HALF + 2 * BH - 1) // (2 * BH)
    IS_RAGGED: tl.constexpr = HALF % BH != 0 or (DH - 2 * HALF) % (2 * BH) != 0
    TURNED: tl.constexpr = HQ + HKV
    HEADS: tl.constexpr = 2 * TURNED if USE_NORM else TURNED + HKV
    m_tiles = tl.cdiv(M, BM)
    i_m = tl.program_id(0) % m_tiles
    i_tile = tl.program_id(0) // m_tiles % TILES
    i_slot = tl.program_id(0) // m_tiles // TILES
    # Heads that turn come first, so that the end of the last head's norm is hidden behind the products of gates and values.
    i_head = i_slot
    if USE_NORM:
        if i_slot < HQ:
            i_head = 2 * i_slot
        elif i_slot < TURNED:
            i_head = i_slot + HQ
        elif i_slot < TURNED + HQ:
            i_head = 2 * (i_slot - TURNED) + 1

    is_rotary = i_tile < ROTARY_TILES
    first = tl.where(is_rotary, i_tile * BH, 2 * HALF + (i_tile - ROTARY_TILES) * (2 * BH))
    o_a = first + tl.arange(0, BH)
    o_b = o_a + tl.where(is_rotary, HALF, BH)
    in_a = o_a < tl.where(is_rotary, HALF, DH)
    in_b = o_b < tl.where(is_rotary, 2 * HALF, DH)
    o_m = i_m * BM + tl.arange(0, BM)
    in_m = o_m < M

    # Asked for before the products, which take their time.
    b_position = tl.load(p_positions + o_m, mask=in_m, other=0)
    b_inv_freq = tl.load(p_inv_freq + o_a, mask=in_a & is_rotary, other=0.0)

    p_head = p_w + (i_head * DH).to(tl.int64) * stride_w
    p_a = p_head + o_a.to(tl.int64)[:, None] * stride_w
    p_b = p_head + o_b.to(tl.int64)[:, None] * stride_w
    if BM == 1:
        b_a, b_b = _products_of_one(p_x + i_m.to(tl.int64) * stride_x, p_a, p_b, in_a, in_b, K, BK, IS_RAGGED)
    else:
        p_rows = p_x + o_m.to(tl.int64)[None, :] * stride_x
        b_a, b_b = _products_of_several(p_rows, p_a, p_b, in_m, in_a, in_b, K, BK, IS_RAGGED, IS_RAGGED_M)

    # Where tiles divide the axes there are no masks.
    IS_MASKED: tl.constexpr = IS_RAGGED or IS_RAGGED_M
    in_a = in_a[:, None] & in_m[None, :] if IS_MASKED else None
    in_b = in_b[:, None] & in_m[None, :] if IS_MASKED else None
    o_row = o_m.to(tl.int64)[None, :]
    if USE_NORM:
        if i_slot < TURNED:
            p_products = p_raw + o_row * (TURNED * DH) + i_slot * DH
            tl.store(p_products + o_a[:, None], b_a, mask=in_a)
            tl.store(p_products + o_b[:, None], b_b, mask=in_b)
            # The program that arrives last finds the whole head written, and leaves the counter as it was.
            tl.debug_barrier()
            p_arrived = p_arrivals + i_m * TURNED + i_slot
            if tl.atomic_add(p_arrived, 1, sem="acq_rel") == TILES - 1:
                tl.store(p_arrived, 0)
                p_norm = tl.where(i_slot < HQ, p_q_norm, p_k_norm)
                _finish_head(
                    p_raw + i_slot * DH, p_out + i_head * DH, p_positions, p_inv_freq, p_norm, TURNED * DH, HEADS * DH,
                    i_m * BM, M, eps, DH, HALF, BM, BR, BHALF, BREST, USE_BF16_TABLE,
                )  # fmt: skip
            return
    elif is_rotary & (i_slot < TURNED):
        b_cos, b_sin = _cos_sin(b_position[None, :], b_inv_freq[:, None], USE_BF16_TABLE)
        b_a, b_b = b_a * b_cos - b_b * b_sin, b_b * b_cos + b_a * b_sin
    p_row = p_out + o_row * (HEADS * DH) + i_head * DH
    tl.store(p_row + o_a[:, None], rounded(b_a, p_out.dtype.element_ty), mask=in_a)
    tl.store(p_row + o_b[:, None], rounded(b_b, p_out.dtype.element_ty), mask=in_b)


@triton.jit(do_not_specialize=["M"])
def _rope_in_place(
    p_q, p_k, p_positions, p_inv_freq, p_q_norm, p_k_norm,
    stride_q, stride_q_head, stride_k, stride_k_head, M, eps,
    HQ: tl.constexpr, HKV: tl.constexpr, DH: tl.constexpr, HALF: tl.constexpr,
    BM: tl.constexpr, BH: tl.constexpr, BHALF: tl.constexpr, BREST: tl.constexpr, TILES: tl.constexpr,
    USE_NORM: tl.constexpr, USE_BF16_TABLE: tl.constexpr, IS_RAGGED_M: tl.constexpr,
):  # fmt: skip
    # Rows of a tile are BM tokens x BH heads; a program turns TILES of them with one set of cos and sin.
    ALL_TILES: tl.constexpr = (HQ + HKV) // BH
    GROUPS: tl.constexpr = (ALL_TILES + TILES - 1) // TILES
    ZERO: tl.constexpr = 0.0 if IS_RAGGED_M or HALF != BHALF or ALL_TILES % TILES != 0 else None
    i_m = tl.program_id(0) // GROUPS
    i_group = tl.program_id(0) % GROUPS
    o_r = tl.arange(0, BM * BH)
    o_m = i_m * BM + o_r // BH
    o_half, o_rest = tl.arange(0, BHALF), tl.arange(0, BREST)
    b_position = tl.load(p_positions + o_m, mask=o_m < M, other=0)
    b_inv_freq = tl.load(p_inv_freq + o_half, mask=o_half < HALF, other=0.0)

    # All loads of a program are under way before the first value is used.
    p_heads = ()
    b_as = ()
    b_bs = ()
    b_rests = ()
    for i in tl.static_range(TILES):
        i_tile = i_group * TILES + i
        # A choice of scalars: Triton 3.6 for AMD cannot compile branches that choose blocks of pointers.
        is_q = i_tile * BH < HQ
        o_h = tl.where(is_q, i_tile * BH, i_tile * BH - HQ) + o_r % BH
        p_head = tl.where(is_q, p_q, p_k) + o_m.to(tl.int64)[:, None] * tl.where(is_q, stride_q, stride_k)
        p_head += o_h.to(tl.int64)[:, None] * tl.where(is_q, stride_q_head, stride_k_head)
        in_row = (o_m < M) & (i_tile < ALL_TILES)
        in_half = None if ZERO is None else in_row[:, None] & (o_half < HALF)[None, :]
        p_heads += (p_head,)
        b_as += (tl.load(p_head + o_half[None, :], mask=in_half, other=ZERO),)
        b_bs += (tl.load(p_head + HALF + o_half[None, :], mask=in_half, other=ZERO),)
        if USE_NORM:
            in_rest = in_row[:, None] & (o_rest < DH - 2 * HALF)[None, :]
            b_rests += (tl.load(p_head + 2 * HALF + o_rest[None, :], mask=in_rest, other=0.0),)

    b_cos, b_sin = _cos_sin(b_position[:, None], b_inv_freq[None, :], USE_BF16_TABLE)
    for i in tl.static_range(TILES):
        i_tile = i_group * TILES + i
        b_a = b_as[i].to(tl.float32)
        b_b = b_bs[i].to(tl.float32)
        in_row = (o_m < M) & (i_tile < ALL_TILES)
        in_half = None if ZERO is None else in_row[:, None] & (o_half < HALF)[None, :]
        if USE_NORM:
            p_norm = tl.where(i_tile * BH < HQ, p_q_norm, p_k_norm)
            b_a, b_b, b_rest = _norm(b_a, b_b, b_rests[i].to(tl.float32), p_norm, eps, DH, HALF, BHALF, BREST)
            in_rest = in_row[:, None] & (o_rest < DH - 2 * HALF)[None, :]
            tl.store(p_heads[i] + 2 * HALF + o_rest[None, :], rounded(b_rest, p_q.dtype.element_ty), mask=in_rest)
        tl.store(p_heads[i] + o_half[None, :], rounded(b_a * b_cos - b_b * b_sin, p_q.dtype.element_ty), mask=in_half)
        tl.store(p_heads[i] + HALF + o_half[None, :], rounded(b_b * b_cos + b_a * b_sin, p_q.dtype.element_ty), mask=in_half)


@dataclass(frozen=True)
class _Shape:
    M: int
    K: int
    N: int
    Hq: int
    Hkv: int
    Dh: int
    rot: int
    is_gated: bool


def _refuse(found: str, do: str) -> ValueError:
    return refuse("qkv_rope", found, do)


def _check_option(table: str) -> None:
    """What variants and reference ask of the option alike. Raises ValueError."""
    if table not in TABLES:
        raise _refuse(f"table={table!r}", f"use {' or '.join(map(repr, TABLES))}")


def _check_counts(Hq: int, Hkv: int) -> None:
    """What variants and reference ask of the numbers of heads alike. Raises ValueError."""
    if not all(isinstance(count, int) and not isinstance(count, bool) and count > 0 for count in (Hq, Hkv)):
        raise _refuse(f"Hq={Hq!r}, Hkv={Hkv!r}", "give two ints, at least one head of each kind")


def _check_table(positions: torch.Tensor, inv_freq: torch.Tensor, table: str, M: int, Dh: int, device: torch.device) -> int:
    """What every variant asks of positions and frequencies; the number of dimensions that turn. Raises ValueError."""
    if inv_freq.dim() != 1 or not 0 < 2 * len(inv_freq) <= Dh:
        raise _refuse(f"inv_freq has shape {tuple(inv_freq.shape)}", f"give (rot/2), at least 1 and at most Dh/2 = {Dh // 2} frequencies")
    _check_option(table)
    check("qkv_rope", "positions", positions, (M,), POSITIONS, device, contiguous=True)
    check("qkv_rope", "inv_freq", inv_freq, inv_freq.shape, (torch.float32,), device, contiguous=True)
    return 2 * len(inv_freq)


def _check_norms(q_norm: torch.Tensor | None, k_norm: torch.Tensor | None, Dh: int, like: torch.Tensor) -> None:
    """Both norms or neither, of (Dh). Raises ValueError."""
    if (q_norm is None) != (k_norm is None):
        raise _refuse(f"{'q_norm' if q_norm is None else 'k_norm'} is None, the other is not", "give both (gated form) or neither (plain)")
    for name, norm in (("q_norm", q_norm), ("k_norm", k_norm)):
        if norm is not None:
            check("qkv_rope", name, norm, (Dh,), (like.dtype,), like.device, contiguous=True)


def _checked(
    x: torch.Tensor,
    weight: torch.Tensor,
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    Hq: int,
    Hkv: int,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    arrivals: torch.Tensor | None,
    table: str,
) -> _Shape:
    """The axes of a product whose arguments are those of the module's table. Raises ValueError."""
    if x.dim() != 2 or weight.dim() != 2 or 0 in (x.shape[1], *weight.shape):
        raise _refuse(f"x has shape {tuple(x.shape)}, weight {tuple(weight.shape)}", "give x (M, K) and weight (N, K), K and N over 0")
    (M, K), N = x.shape, weight.shape[0]
    check("qkv_rope", "x", x, (M, K), FLOATS, x.device)
    check("qkv_rope", "weight", weight, (N, K), (x.dtype,), x.device)
    _check_counts(Hq, Hkv)
    is_gated = q_norm is not None
    if N % (heads := Hq * (1 + is_gated) + 2 * Hkv):
        rows = "2*Hq + 2*Hkv" if is_gated else "Hq + 2*Hkv"
        raise _refuse(f"weight has {N} rows for Hq={Hq}, Hkv={Hkv}", f"give ({rows})*Dh rows")
    Dh = N // heads
    _check_norms(q_norm, k_norm, Dh, x)
    if arrivals is not None:
        check("qkv_rope", "arrivals", arrivals, (M, Hq + Hkv), INT32, x.device, contiguous=True)
    rot = _check_table(positions, inv_freq, table, M, Dh, x.device)
    return _Shape(M, K, N, Hq, Hkv, Dh, rot, is_gated)


def _comes_near(distance: int, steps: list[tuple[int, int, int]], width: int) -> bool:
    """Whether distance + sum(n*stride) lies within (-width, width) for some n in [first, last] of each step (stride, first, last).

    Strides fall and are over 0. Only those n are tried from which the steps that follow can still reach, one or two unless strides
    interlock.
    """
    if not steps:
        return abs(distance) < width
    (stride, first, last), *rest = steps
    low = distance + sum(step * least for step, least, _ in rest)
    high = distance + sum(step * most for step, _, most in rest)
    first, last = max(first, (-width - high) // stride + 1), min(last, -((low - width) // stride) - 1)
    return any(_comes_near(distance + n * stride, rest, width) for n in range(first, last + 1))


def _extent(tokens: int, count: int, width: int, of_token: int, of_head: int) -> int:
    """From the first element of heads to behind the last."""
    return (tokens - 1) * of_token + (count - 1) * of_head + width


def _heads_overlap(heads: torch.Tensor) -> bool:
    """Whether two heads of a tensor (M, heads, Dh), M over 0, share an element."""
    (tokens, count, width), (of_token, of_head, _) = heads.shape, heads.stride()
    if tokens == 1 or count == 1:
        return (tokens > 1 and of_token < width) or (count > 1 and of_head < width)
    if of_head >= width and of_token >= _extent(1, count, width, 0, of_head):
        return False  # token after token, as heads nearly always are
    steps = [(of_token, 0, tokens - 2), (of_head, 1 - count, count - 1)]
    return min(of_token, of_head) < width or _comes_near(of_token, sorted(steps, reverse=True), width)


def _share_memory(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Whether a head of q and one of k share an element, from addresses alone; in each of the two, heads do not overlap."""
    item, (M, Hq, Dh), Hkv = q.element_size(), q.shape, k.shape[1]
    (of_token_q, of_head_q, _), (of_token_k, of_head_k, _) = q.stride(), k.stride()
    distance = k.data_ptr() - q.data_ptr()
    if distance >= _extent(M, Hq, Dh, of_token_q, of_head_q) * item or -distance >= _extent(M, Hkv, Dh, of_token_k, of_head_k) * item:
        return False  # one behind the other
    if of_token_q == of_token_k and M > 1:
        period, token_q, token_k = of_token_q * item, _extent(1, Hq, Dh, 0, of_head_q) * item, _extent(1, Hkv, Dh, 0, of_head_k) * item
        if token_q <= distance % period <= period - token_k:
            return False  # one behind the other in each token of a packed buffer
    steps: dict[int, tuple[int, int]] = {}  # down along q, up along k; axes of one stride are one step
    for stride, reach in ((of_token_q, 1 - M), (of_head_q, 1 - Hq), (of_token_k, M - 1), (of_head_k, Hkv - 1)):
        if reach:
            first, last = steps.get(stride * item, (0, 0))
            steps[stride * item] = (first + min(0, reach), last + max(0, reach))
    return _comes_near(distance, [(stride, *steps[stride]) for stride in sorted(steps, reverse=True)], Dh * item)


def _check_heads(q: torch.Tensor, k: torch.Tensor) -> None:
    """q (M, Hq, Dh) and k (M, Hkv, Dh), whose tokens and heads may lie apart but share no element. Raises ValueError."""
    if q.dim() != 3 or k.dim() != 3 or 0 in (*q.shape[1:], k.shape[1]):
        raise _refuse(f"q has shape {tuple(q.shape)}, k {tuple(k.shape)}", "give q (M, Hq, Dh) and k (M, Hkv, Dh), no head or Dh of 0")
    check("qkv_rope", "q", q, q.shape, FLOATS, q.device)
    check("qkv_rope", "k", k, (q.shape[0], k.shape[1], q.shape[2]), (q.dtype,), q.device)
    if len(q) == 0:
        return
    for name, heads in (("q", q), ("k", k)):
        if _heads_overlap(heads):
            found = f"{name} has shape {tuple(heads.shape)}, strides {heads.stride()}"
            raise _refuse(found, "heads that turn in place must not overlap, call .contiguous()")
    if not q.is_meta and _share_memory(q, k):  # meta tensors have no addresses
        raise _refuse("q and k share memory", "what turns in place must not overlap, call .clone() on one of them")


@dataclass(frozen=True)
class ProductPlan:
    """How `_qkv_rope` is launched.

    Args:
        BM: tokens of a program.
        BH: half of the columns of a program.
        BK: inner columns of a step.
        BR: tokens whose norm is taken at a time, in the gated form.
        warps: warps of a program.
        stages: of the pipeline that loads tiles.
    """

    BM: int
    BH: int
    BK: int
    BR: int
    warps: int
    stages: int


def plan_product(M: int, K: int, is_gated: bool, item_bytes: int, device: DeviceProperties) -> ProductPlan:
    """Choose the launch for M tokens of K values.

    One token: eight rows of the weight at a time, one 16-byte load of each a lane, 128 lanes unless fewer divide K. Several:
    tensor cores, whose least tile is 16 x 16, and as many stages as let two programs share a multiprocessor. In the gated form a
    program of an AMD GPU is one wave: there a barrier does not wait for the stores of other waves, which the arrival must follow.
    """
    lanes = max(device.warp_size, 32)
    most = lanes if is_gated and device.backend == "hip" else 128
    if M == 1:
        warp_columns = lanes * 16 // item_bytes
        warps = next((n for n in (4, 2, 1) if n * lanes <= most and K % (n * warp_columns) == 0), 1)
        return ProductPlan(BM=1, BH=4, BK=warps * warp_columns, BR=1, warps=warps, stages=1)
    BM, BH, BK = min(64, max(16, triton.next_power_of_2(M))), 16, 256 // item_bytes
    stage_bytes = (2 * BH + BM) * BK * item_bytes
    stages = 2 if device.backend == "hip" else min(5, max(2, device.shared_bytes_per_block // (2 * stage_bytes)))
    return ProductPlan(BM, BH, BK, BR=max(4, BM // 8), warps=most // lanes, stages=stages)


@dataclass(frozen=True)
class RopePlan:
    """How `_rope_in_place` is launched: tokens and heads of a tile, tiles of a program."""

    BM: int
    BH: int
    tiles: int


def plan_rope(M: int, Hq: int, Hkv: int, width: int, item_bytes: int, device: DeviceProperties) -> RopePlan:
    """Choose the launch for M tokens, `width` being the widest part of a head that a tile holds: a 16-byte load for each lane of one warp.

    Several tiles share their cos and sin once the grid is larger than what the device holds at a time, 16 warps a multiprocessor.
    """
    rows = max(1, max(device.warp_size, 32) * 16 // (item_bytes * triton.next_power_of_2(width)))
    common = math.gcd(Hq, Hkv)
    BH = min(rows, common & -common)
    BM = min(rows // BH, triton.next_power_of_2(M))
    tiles, all_tiles = 1, (Hq + Hkv) // BH
    while tiles < all_tiles and triton.cdiv(M, BM) * triton.cdiv(all_tiles, tiles) > 16 * device.multiprocessors:
        tiles *= 2
    return RopePlan(BM, BH, min(tiles, all_tiles, LARGEST_TILES))


STRIDE_UNIT = 16
"""Triton compiles for strides that are multiples of it apart from others."""
LARGEST_TILES = 8
"""Tiles of one program of `_rope_in_place`: 16 values each a lane, all loaded before the first is used."""


def _strides(heads: torch.Tensor) -> tuple[int, int]:
    """Strides of tokens and of heads. Along an axis of length 1 one means nothing: if it would hide an alignment, it is made dense."""
    (tokens, count, width), (of_token, of_head, _) = heads.shape, heads.stride()
    if count == 1 and of_head % STRIDE_UNIT:
        of_head = width
    if tokens == 1 and of_token % STRIDE_UNIT:
        of_token = count * width
    return of_token, of_head


def _turn(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    table: str,
) -> None:
    """Norm, where there are weights, and rotation of q and k in place, in one launch."""
    (M, Hq, Dh), Hkv, half = q.shape, k.shape[1], len(inv_freq)
    if M == 0:
        return
    use_norm, rest = q_norm is not None, max(1, Dh - 2 * half)
    plan = plan_rope(M, Hq, Hkv, max(half, rest) if use_norm else half, q.element_size(), device_properties())
    _rope_in_place[(triton.cdiv(M, plan.BM) * triton.cdiv((Hq + Hkv) // plan.BH, plan.tiles),)](
        q, k, positions, inv_freq, q_norm, k_norm, *_strides(q), *_strides(k), M, EPS,
        HQ=Hq, HKV=Hkv, DH=Dh, HALF=half, BM=plan.BM, BH=plan.BH, BHALF=triton.next_power_of_2(half),
        BREST=triton.next_power_of_2(rest), TILES=plan.tiles,
        USE_NORM=use_norm, USE_BF16_TABLE=table == "bf16", IS_RAGGED_M=M % plan.BM != 0, num_warps=1,
    )  # fmt: skip


Projections = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]


def _split(out: torch.Tensor, n: _Shape) -> Projections:
    """Views of the product (M, N): q, k, v and, in the gated form, gate."""
    q, k, v = out.split((n.N - 2 * n.Hkv * n.Dh, n.Hkv * n.Dh, n.Hkv * n.Dh), dim=1)
    k, v = (part.unflatten(1, (n.Hkv, n.Dh)) for part in (k, v))
    if not n.is_gated:
        return q.unflatten(1, (n.Hq, n.Dh)), k, v, None
    q, gate = q.unflatten(1, (n.Hq, 2, n.Dh)).unbind(2)
    return q, k, v, gate


def qkv_rope(
    x: torch.Tensor,
    weight: torch.Tensor,
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    Hq: int,
    Hkv: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    arrivals: torch.Tensor | None = None,
    table: str = "fp32",
) -> Projections:
    """Product, norm and rotation in one launch: q, k, v and gate. Tensors: see the module.

    Args:
        Hq, Hkv: query heads, and key heads (as many value heads); Dh follows from the rows of `weight`.
        q_norm, k_norm: weights less one of the norms; with them the form is gated, without them plain.
        arrivals: zeros that the gated form counts in and leaves zero, so one for each call that may run at the same time;
            where it is None zeros are made, by a second launch.
        table: "bf16" rounds cos and sin to bf16.

    Raises:
        ValueError: a shape, dtype, stride or option that the module's table does not allow.
    """
    n = _checked(x, weight, positions, inv_freq, Hq, Hkv, q_norm, k_norm, arrivals, table)
    out = x.new_empty((n.M, n.N))
    if n.M == 0:
        return _split(out, n)
    products = None
    if n.is_gated:
        products = x.new_empty((n.M, (Hq + Hkv) * n.Dh), dtype=torch.float32)
        arrivals = x.new_zeros((n.M, Hq + Hkv), dtype=torch.int32) if arrivals is None else arrivals
    half, rest = n.rot // 2, n.Dh - n.rot
    plan = plan_product(n.M, n.K, n.is_gated, x.element_size(), device_properties())
    tiles = triton.cdiv(half, plan.BH) + triton.cdiv(rest, 2 * plan.BH)
    _qkv_rope[(triton.cdiv(n.M, plan.BM) * n.N // n.Dh * tiles,)](
        x, weight, positions, inv_freq, q_norm, k_norm, out, products, arrivals if n.is_gated else None,
        row_stride(x), row_stride(weight), n.M, EPS,
        K=n.K, HQ=Hq, HKV=Hkv, DH=n.Dh, HALF=half, BM=plan.BM, BH=plan.BH, BK=plan.BK, BR=plan.BR,
        BHALF=triton.next_power_of_2(half), BREST=triton.next_power_of_2(max(1, rest)),
        USE_NORM=n.is_gated, USE_BF16_TABLE=table == "bf16", IS_RAGGED_M=n.M % plan.BM != 0,
        num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return _split(out, n)


def gemv_then_rope(
    x: torch.Tensor,
    weight: torch.Tensor,
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    Hq: int,
    Hkv: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    arrivals: torch.Tensor | None = None,
    table: str = "fp32",
) -> Projections:
    """The vendor library's product, rounded, then norm and rotation in place in a second launch. Arguments and errors as `qkv_rope`."""
    n = _checked(x, weight, positions, inv_freq, Hq, Hkv, q_norm, k_norm, arrivals, table)
    q, k, v, gate = _split(functional.linear(x, weight), n)
    _turn(q, k, positions, inv_freq, q_norm, k_norm, table)
    return q, k, v, gate


def rope(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, inv_freq: torch.Tensor, table: str = "fp32"
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotation alone, in place, in one launch; returns q and k.

    Args:
        q, k: (M, Hq, Dh) and (M, Hkv, Dh), unit stride along Dh; heads and tokens may lie apart, as in views of one packed buffer,
            but no two heads may share memory.

    Raises:
        ValueError: a shape, dtype, stride or option that the module's table does not allow.
    """
    _check_heads(q, k)
    _check_table(positions, inv_freq, table, q.shape[0], q.shape[2], q.device)
    _turn(q, k, positions, inv_freq, None, None, table)
    return q, k


def _turned(x: torch.Tensor, positions: torch.Tensor, inv_freq: torch.Tensor, table: str) -> torch.Tensor:
    """The first rot dimensions of fp32 heads (M, heads, Dh) rotated, by PyTorch operations."""
    half = len(inv_freq)
    angle = (positions.float()[:, None] * inv_freq)[:, None]
    cos, sin = angle.cos(), angle.sin()
    if table == "bf16":
        cos, sin = cos.bfloat16().float(), sin.bfloat16().float()
    a, b, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def qkv_rope_torch(
    x: torch.Tensor,
    weight: torch.Tensor,
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    Hq: int,
    Hkv: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    arrivals: torch.Tensor | None = None,
    table: str = "fp32",
) -> Projections:
    """`qkv_rope` as the PyTorch operations that a model file writes. Arguments and errors as there."""
    n = _checked(x, weight, positions, inv_freq, Hq, Hkv, q_norm, k_norm, arrivals, table)
    q, k, v, gate = _split(functional.linear(x, weight), n)

    def norm_and_turn(heads: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        heads = heads.float()
        if norm is not None:
            heads = heads * torch.rsqrt(heads.square().mean(dim=-1, keepdim=True) + EPS) * (norm.float() + 1.0)
        return _turned(heads, positions, inv_freq, table).to(x.dtype)

    return norm_and_turn(q, q_norm), norm_and_turn(k, k_norm), v, gate


def rope_torch(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, inv_freq: torch.Tensor, table: str = "fp32"
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rope` as PyTorch operations; in place too. Arguments and errors as there."""
    _check_heads(q, k)
    rot = _check_table(positions, inv_freq, table, q.shape[0], q.shape[2], q.device)
    for heads in (q, k):
        turning = heads[..., :rot]
        turning.copy_(_turned(turning.float(), positions, inv_freq, table))
    return q, k


def baseline(**inputs: Any) -> Projections:
    """The PyTorch form of either: the whole layer where there is an x, else the rotation alone, which has neither v nor gate."""
    return qkv_rope_torch(**inputs) if "x" in inputs else (*rope_torch(**inputs), None, None)


def reference(**inputs: Any) -> dict[str, torch.Tensor | None]:
    """The formula in fp64, from the angle as fp32 rounds it and, with a bf16 table, from its cos and sin as bf16 rounds them.

    Raises ValueError for options that no variant takes.
    """
    _check_option(inputs["table"])
    if "x" not in inputs:
        q, k, v, gate = inputs["q"].double(), inputs["k"].double(), None, None
    else:
        x, weight, Hq, Hkv, q_norm, k_norm = (inputs[name] for name in ("x", "weight", "Hq", "Hkv", "q_norm", "k_norm"))
        _check_counts(Hq, Hkv)
        product = x.double() @ weight.double().T
        heads = product.unflatten(1, (Hq * (1 if q_norm is None else 2) + 2 * Hkv, -1))
        q, k, v = heads.split((heads.shape[1] - 2 * Hkv, Hkv, Hkv), dim=1)
        gate = None
        if q_norm is not None:
            q, gate = q[:, ::2], q[:, 1::2]
            q, k = (
                part / torch.sqrt(part.square().mean(dim=-1, keepdim=True) + EPS) * (norm.double() + 1)
                for part, norm in ((q, q_norm), (k, k_norm))
            )
    angle = (inputs["positions"].float()[:, None] * inputs["inv_freq"]).double()[:, None]
    cos, sin = angle.cos(), angle.sin()
    if inputs["table"] == "bf16":
        cos, sin = cos.float().bfloat16().double(), sin.float().bfloat16().double()
    half = len(inputs["inv_freq"])

    def turned(heads: torch.Tensor) -> torch.Tensor:
        a, b = heads[..., :half], heads[..., half : 2 * half]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, heads[..., 2 * half :]], dim=-1)

    return {"q": turned(q), "k": turned(k), "v": v, "gate": gate}


THETA = 1e7
"""Base of Qwen3.5's frequencies."""
LAST_POSITION = 262_143


def make_inputs(case: Case, generator: Any) -> Inputs:
    """Arguments of a call: tokens of different sequences, at positions up to 262143, which the last one has.

    Columns of W have a norm of about 1/sqrt(3), so that products of uniform x are about 1/3; norm weights less one are near 0. A strided
    case takes rows of x and W from wider buffers, q and k from a packed q, k, v, and gives positions as int32.
    """
    positions = generator.integers((case.M,), 0, LAST_POSITION + 1, torch.int32 if case.strided else torch.int64)
    positions[-1:] = LAST_POSITION
    inv_freq = torch.tensor([THETA ** (-i / case.rot) for i in range(0, case.rot, 2)], dtype=torch.float32, device=positions.device)
    common = {"positions": positions, "inv_freq": inv_freq, "table": case.table}
    if case.K == 0:
        if not case.strided:
            heads = {name: generator.uniform((case.M, count, case.Dh), case.dtype) for name, count in (("q", case.Hq), ("k", case.Hkv))}
            return {**heads, **common}
        packed = generator.uniform((case.M, case.Hq + 2 * case.Hkv, case.Dh), case.dtype)
        return {"q": packed[:, : case.Hq], "k": packed[:, case.Hq : case.Hq + case.Hkv], **common}
    is_gated, wide = case.form == "gated", case.K + 64 * case.strided
    spread = case.K**-0.5
    return {
        "x": generator.uniform((case.M, wide), case.dtype)[:, : case.K],
        "weight": generator.uniform((columns(case), wide), case.dtype, -spread, spread)[:, : case.K],
        **common,
        "Hq": case.Hq,
        "Hkv": case.Hkv,
        "q_norm": generator.normal((case.Dh,), case.dtype, 0.0, 0.25) if is_gated else None,
        "k_norm": generator.normal((case.Dh,), case.dtype, 0.0, 0.25) if is_gated else None,
        "arrivals": generator.full((case.M, case.Hq + case.Hkv), 0, torch.int32) if is_gated else None,
    }


def columns(case: Case) -> int:
    """N: columns of the product, which are rows of W."""
    return (case.Hq * (2 if case.form == "gated" else 1) + 2 * case.Hkv) * case.Dh


def traffic(case: Case) -> Traffic:
    """Inputs read once and outputs written once; of the rotation alone, the dimensions that turn. Scratch (`arrivals`) is left out."""
    io = ITEM_BYTES[case.dtype]
    table = case.M * (4 if case.strided else 8) + case.rot // 2 * 4
    if case.K == 0:
        turned = case.M * (case.Hq + case.Hkv) * case.rot * io
        return Traffic(read_bytes=turned + table, written_bytes=turned)
    norms = 2 * case.Dh if case.form == "gated" else 0
    return Traffic(
        read_bytes=(case.M * case.K + columns(case) * case.K + norms) * io + table,
        written_bytes=case.M * columns(case) * io,
    )


def flops(case: Case) -> int:
    """Two for each weight and token, four for each normalised value, three for each rotated one."""
    heads = case.M * (case.Hq + case.Hkv)
    norms = 4 * heads * case.Dh if case.form == "gated" else 0
    return 2 * case.M * columns(case) * case.K + norms + 3 * heads * case.rot


TOLERANCE = {
    "fp32": Tolerance(1e-5, "order of the sums over K, and cos and sin within 1.6*2^-24; 2.2e-7 seen", cosine=0.9999),
    "fp16": Tolerance(
        5e-3, "one rounding to fp16, at most 2^-11, or two where the product is stored first; 2.7e-4 and 3.3e-4 seen", cosine=0.9999
    ),
    "bf16": Tolerance(
        8e-3, "one rounding to bf16, at most 2^-8, or two where the product is stored first; 2.5e-3 and 3.4e-3 seen", cosine=0.9999
    ),
}


ROUNDED_TABLE = Tolerance(
    1e-4,
    "cos or sin within 2^-24 of the middle of two bf16 values may round to either: 5 of 10^5 do, each 2^-8 off, which makes 3e-5; "
    "2.2e-7 seen; without the table's rounding it is 1e-3",
    cosine=0.9999,
)
"""fp32 with a bf16 table."""


def tolerance(case: Case) -> Tolerance:
    """By dtype; in fp32 a bf16 table has its own."""
    return ROUNDED_TABLE if (case.dtype, case.table) == ("fp32", "bf16") else TOLERANCE[case.dtype]


QWEN: dict[str, Any] = {"Hq": 24, "Hkv": 4, "Dh": 256}
"""Heads of Qwen3.5-27B, whose hidden size is 5120."""
HIDDEN = 5120


def _product_cases() -> Iterator[Case]:
    yield Case(M=2, K=1024, Hq=2, Hkv=1, Dh=256, dtype="bf16", tags="smoke cpu")
    for m in (1, 8, 16):
        yield Case(M=m, K=HIDDEN, dtype="bf16", tags="model peers" + " headline" * (m != 8), **QWEN)
        yield Case(M=m, K=HIDDEN, form="gated", dtype="bf16", tags="model" + " headline" * (m == 1), **QWEN)
        yield Case(M=m, K=HIDDEN, dtype="bf16", tags="model", **{**QWEN, "Hq": 16})
    yield Case(M=64, K=HIDDEN, dtype="bf16", tags="model", **QWEN)
    yield from Case.grid(M=(1, 16), K=HIDDEN, dtype=("fp32", "fp16"), tags="model", **QWEN)
    yield from Case.grid(M=(1, 8), K=HIDDEN, form="gated", dtype=("fp32", "fp16"), tags="model", **QWEN)
    yield from Case.grid(M=(1, 8), K=HIDDEN, form="gated", table="bf16", dtype="bf16", tags="model", **QWEN)
    yield from Case.grid(M=(1, 16), K=HIDDEN, strided=1, dtype="bf16", tags="model", **QWEN)
    yield Case(M=8, K=HIDDEN, form="gated", strided=1, dtype="bf16", tags="model", **QWEN)


def _rope_cases() -> Iterator[Case]:
    for m in (1, 16, 128, 1024, 8192):
        yield Case(M=m, K=0, dtype="bf16", tags="model peers" + " smoke cpu" * (m == 1), **QWEN)
    yield from Case.grid(M=(1, 128), K=0, dtype="bf16", tags="model", **{**QWEN, "Hq": 16})
    yield from Case.grid(M=(16, 1024), K=0, dtype=("fp32", "fp16"), tags="model", **QWEN)
    yield Case(M=128, K=0, table="bf16", dtype="bf16", tags="model", **QWEN)
    yield from Case.grid(M=(16, 8192), K=0, strided=1, dtype="bf16", tags="model", **QWEN)


def _ragged_cases() -> Iterator[Case]:
    odd: dict[str, Any] = {"Hq": 6, "Hkv": 3, "Dh": 80, "rot": 24}
    yield from Case.grid(M=(1, 5, 70), K=1000, form=("plain", "gated"), dtype="bf16", tags="ragged", **odd)
    yield from Case.grid(M=(1, 333), K=0, strided=(0, 1), dtype="bf16", tags="ragged", **odd)
    # For the interpreter: halves of three, which no tile divides; two tiles of tokens; heads that turn as a whole.
    small: dict[str, Any] = {"Hq": 2, "Hkv": 1, "Dh": 12, "rot": 6}
    yield from Case.grid(M=(1, 5), K=50, form=("plain", "gated"), strided=1, dtype="bf16", tags="ragged cpu", **small)
    yield from Case.grid(M=(1, 5), K=51, form="gated", dtype=("fp32", "fp16"), tags="ragged cpu", **small)
    yield from Case.grid(M=7, K=0, strided=(0, 1), dtype=("fp32", "bf16"), tags="ragged cpu", **small)
    yield Case(M=65, K=20, Hq=1, Hkv=1, Dh=16, rot=8, form="gated", dtype="bf16", tags="ragged cpu")
    whole: dict[str, Any] = {"Hq": 1, "Hkv": 1, "Dh": 8, "rot": 8}
    yield from Case.grid(M=(1, 3), K=32, form=("plain", "gated"), dtype="fp32", tags="ragged cpu", **whole)
    yield Case(M=3, K=0, dtype="fp32", tags="ragged cpu", **whole)


def _small_cases() -> Iterator[Case]:
    """One option at a time, small enough for the interpreter; then heads of the model's width. Steps of a product divide K."""
    small: dict[str, Any] = {"Hq": 2, "Hkv": 1, "Dh": 16, "rot": 8}
    for m, k in ((1, 768), (3, 128)):
        yield from Case.grid(M=m, K=k, form=("plain", "gated"), dtype=("fp32", "fp16", "bf16"), tags="cpu", **small)
        yield Case(M=m, K=k, table="bf16", dtype="fp32", tags="cpu", **small)
        yield Case(M=m, K=k, form="gated", strided=1, dtype="fp32", tags="cpu", **small)
    yield Case(M=1, K=768, form="gated", table="bf16", dtype="bf16", tags="cpu", **small)
    yield from Case.grid(M=5, K=0, table=("fp32", "bf16"), dtype=("fp32", "fp16", "bf16"), tags="cpu", **small)
    yield from Case.grid(M=5, K=0, strided=1, dtype=("fp32", "bf16"), tags="cpu", **small)
    yield Case(M=2, K=128, Hq=1, Hkv=1, Dh=256, form="gated", dtype="bf16", tags="cpu")
    yield Case(M=3, K=0, dtype="fp32", tags="cpu", **QWEN)


KERNEL = Kernel(
    variants={
        "fused": Variant(qkv_rope, cases=lambda case: case.K > 0),
        "gemv_then_rope": Variant(gemv_then_rope, cases=lambda case: case.K > 0),
        "rope": Variant(rope, cases=lambda case: case.K == 0, outputs=("q", "k")),
        "torch": Variant(baseline, triton=False),
    },
    default="fused",
    baseline="torch",
    axes=("M", "K", "Hq", "Hkv", "Dh", "rot", "form", "table"),
    defaults={"rot": 64, "form": "plain", "table": "fp32"},
    cases=[*_product_cases(), *_rope_cases(), *_ragged_cases(), *_small_cases()],
    make_inputs=make_inputs,
    reference=reference,
    outputs=("q", "k", "v", "gate"),
    mutates=("q", "k"),
    tolerance=tolerance,
    traffic=traffic,
    flops=flops,
    activations=lambda case: ("x",) if case.K else ("q", "k"),
    data="attention-projections/1",
)
