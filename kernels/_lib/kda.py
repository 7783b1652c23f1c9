"""The launches of Kimi delta attention's decode step: convolution update, recurrent step, gated norm, and all three in one.

All arithmetic is fp32. A head has D = 128 channels each of q, k and v; its state is (D values, D keys). A token whose slot is
0 or negative is padded: no state changes, its outputs are zero.

Why nothing races. Live tokens have slots of their own, so programs of different tokens share no state. Of one token, a program of
`kda_conv` owns channels, one of `kda_recurrent` owns rows of one head's state and changes nothing else, and one of `kda_fused`
owns a whole head: all D rows of its state and its 3*D channels of the convolution's state. So what a program changes, no
other reads; splitting a head of `kda_fused` over programs would end that, for each would read the older inputs of q and k that one
of them replaces. Within a program several warps may each read an older input that one of them replaces: a barrier stands
between all such reads and the first replacement. A value of the state is read and written by one lane.
"""

import triton
import triton.language as tl

from kernels._lib.numerics import rounded

D = tl.constexpr(128)
"""Channels of a head: keys and values."""

TAPS = tl.constexpr(4)
"""Width of the causal convolution: this input and the three older ones that its state holds, oldest first."""

LINE = tl.constexpr(32)
"""Keys in a cache line, which eight lanes read in 16-byte accesses. A tile of the state is (D/RUN, rows, RUN), where RUN is one line or
two: a lane holds the same keys of each run of its rows, so that three or four shuffles end a sum over keys."""

QUERY_SCALE = tl.constexpr(128**-0.5)
LOWER_BOUND = tl.constexpr(-5.0)
L2_EPSILON = tl.constexpr(1e-6)
NORM_EPSILON = tl.constexpr(1e-5)


@triton.jit
def _convolved(p_x, p_weight, p_oldest, STRIDE: tl.constexpr):
    """silu(w0*x[t-3] + w1*x[t-2] + w2*x[t-1] + w3*x[t]) of a block of channels, then x[t-2], x[t-1] and x[t] as they are stored.

    `p_x`, `p_weight` and `p_oldest` point to each channel's x[t], w0 and x[t-3]; x[t-2] and x[t-1] follow it at STRIDE.
    """
    b_0, b_1, b_2, b_x = tl.load(p_oldest), tl.load(p_oldest + STRIDE), tl.load(p_oldest + 2 * STRIDE), tl.load(p_x)
    # The four weights of a channel are one 16-byte load, and stay in its lane when they are split.
    b_w = tl.load(p_weight[:, None] + tl.arange(0, TAPS)[None, :])
    b_w02, b_w13 = tl.split(tl.reshape(b_w, [b_w.shape[0], 2, 2]))
    b_w0, b_w2 = tl.split(b_w02)
    b_w1, b_w3 = tl.split(b_w13)
    b_y = b_w0 * b_0.to(tl.float32) + b_w1 * b_1.to(tl.float32) + b_w2 * b_2.to(tl.float32) + b_w3 * b_x.to(tl.float32)
    return b_y * tl.sigmoid(b_y), b_1, b_2, b_x


@triton.jit
def _store_inputs(p_oldest, STRIDE: tl.constexpr, b_1, b_2, b_x):
    """Make x[t-2], x[t-1] and x[t] the older inputs of the next token."""
    tl.store(p_oldest, b_1)
    tl.store(p_oldest + STRIDE, b_2)
    if p_oldest.dtype.scalar.element_ty == b_x.dtype:
        tl.store(p_oldest + 2 * STRIDE, b_x)
    else:
        tl.store(p_oldest + 2 * STRIDE, rounded(b_x.to(tl.float32), p_oldest.dtype.scalar.element_ty))


@triton.jit
def _decay(p_g, p_A_log, p_dt_bias, i_h, o_d):
    """exp(LOWER_BOUND*sigmoid(exp(A_log)*(raw_g + dt_bias))) of the head's key channels."""
    b_g = tl.load(p_g + i_h * D + o_d).to(tl.float32) + tl.load(p_dt_bias + i_h * D + o_d)
    return tl.exp(tl.sigmoid(tl.exp(tl.load(p_A_log + i_h)) * b_g) * LOWER_BOUND)


@triton.jit
def _normalised(b_q, b_k):
    """q and k over their L2 norms, q times D^-0.5 besides, and the product q k of the two."""
    q_factor = tl.rsqrt(tl.sum(b_q * b_q, 0) + L2_EPSILON) * QUERY_SCALE
    k_factor = tl.rsqrt(tl.sum(b_k * b_k, 0) + L2_EPSILON)
    return b_q * q_factor, b_k * k_factor, tl.sum(b_q * b_k, 0) * q_factor * k_factor


@triton.jit
def _rstd(b_sum):
    """1/sqrt(mean + eps) from a head's sum of squares. NaN where that is no finite number: its 0 would make zeros of the whole head."""
    b_square = b_sum * (1.0 / D) + NORM_EPSILON
    return tl.where(b_square < float("inf"), tl.rsqrt(b_square), float("nan"))


@triton.jit
def _state_tile(p_rows, BV: tl.constexpr, RUN: tl.constexpr):
    """Pointers to BV rows of a head's state: (D/RUN*BV, RUN), all rows' first runs, then their second ones and so on."""
    o_r = tl.arange(0, D // RUN * BV)
    return p_rows + (o_r % BV * D + o_r // BV * RUN)[:, None] + tl.arange(0, RUN)[None, :]


@triton.jit
def _delta_step(b_S, b_q, b_k, b_decay, b_v, beta, qk, BV: tl.constexpr, RUN: tl.constexpr):
    """A tile of the state after this token, and the o (BV) of its rows. q, k and decay are vectors over keys."""
    b_S = tl.reshape(b_S, [D // RUN, BV, RUN])
    b_q, b_k = tl.reshape(b_q, [D // RUN, 1, RUN]), tl.reshape(b_k, [D // RUN, 1, RUN])
    b_S *= tl.reshape(b_decay, [D // RUN, 1, RUN])
    # Both sums run over the decayed state, so neither waits for the other: (S + u k^T) q = S q + u*(k q).
    b_Sk = tl.sum(tl.sum(b_S * b_k, 0), 1)
    b_Sq = tl.sum(tl.sum(b_S * b_q, 0), 1)
    b_u = beta * (b_v - b_Sk)
    return tl.reshape(b_S + b_u[None, :, None] * b_k, [D // RUN * BV, RUN]), b_Sq + b_u * qk


@triton.jit
def kda_conv(
    p_qkv, p_conv, p_weight, p_indices, p_y, stride_qkv, stride_conv,
    C: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, IS_TIME_MAJOR: tl.constexpr,
):  # fmt: skip
    """Convolution update of BLOCKS blocks of BLOCK channels of one token, one channel a lane; y of a padded token is left unwritten."""
    N_PROGRAMS: tl.constexpr = C // (BLOCK * BLOCKS)
    i_t = (tl.program_id(0) // N_PROGRAMS).to(tl.int64)
    o_c = tl.program_id(0) % N_PROGRAMS * (BLOCK * BLOCKS) + tl.arange(0, BLOCK)
    slot = tl.load(p_indices + i_t).to(tl.int64)
    if slot <= 0:
        return
    STRIDE: tl.constexpr = C if IS_TIME_MAJOR else 1
    STRIDE_C: tl.constexpr = 1 if IS_TIME_MAJOR else TAPS - 1
    p_x, p_oldest = p_qkv + i_t * stride_qkv + o_c, p_conv + slot * stride_conv + o_c * STRIDE_C
    blocks = ()
    for i in tl.static_range(BLOCKS):
        block = _convolved(p_x + i * BLOCK, p_weight + (o_c + i * BLOCK) * TAPS, p_oldest + i * BLOCK * STRIDE_C, STRIDE)
        blocks += (block,)
    tl.debug_barrier()
    for i in tl.static_range(BLOCKS):
        b_y, b_1, b_2, b_x = blocks[i]
        tl.store(p_y + i_t * C + o_c + i * BLOCK, rounded(b_y, p_y.dtype.element_ty))
        _store_inputs(p_oldest + i * BLOCK * STRIDE_C, STRIDE, b_1, b_2, b_x)


@triton.jit
def kda_recurrent(
    p_qkv, p_g, p_beta, p_A_log, p_dt_bias, p_state, p_indices, p_o, stride_qkv, stride_g, stride_beta, stride_slot,
    HEADS: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One step of BV rows of one token and head, from q, k and v that are convolved already."""
    i_v = tl.program_id(0) % (D // BV)
    i_h = tl.program_id(0) // (D // BV) % HEADS
    i_t = (tl.program_id(0) // (D // BV * HEADS)).to(tl.int64)
    o_d = tl.arange(0, D)
    o_v = i_v * BV + tl.arange(0, BV)

    # The state waits for the index, so that is asked for first; nothing uses it before all small loads are under way.
    slot = tl.load(p_indices + i_t).to(tl.int64)
    p_head = p_qkv + i_t * stride_qkv + i_h * D
    b_q = tl.load(p_head + o_d).to(tl.float32)
    b_k = tl.load(p_head + HEADS * D + o_d).to(tl.float32)
    b_v = tl.load(p_head + 2 * HEADS * D + o_v).to(tl.float32)
    b_decay = _decay(p_g + i_t * stride_g, p_A_log, p_dt_bias, i_h, o_d)
    beta = tl.sigmoid(tl.load(p_beta + i_t * stride_beta + i_h).to(tl.float32))
    p_o_rows = p_o + (i_t * HEADS + i_h) * D + o_v
    if slot <= 0:
        tl.store(p_o_rows, tl.zeros([BV], p_o.dtype.element_ty))
        return

    p_tile = _state_tile(p_state + slot * stride_slot + (i_h * D + i_v * BV) * D, BV, LINE)
    b_S = tl.load(p_tile)
    b_q, b_k, qk = _normalised(b_q, b_k)
    b_S, b_o = _delta_step(b_S, b_q, b_k, b_decay, b_v, beta, qk, BV, LINE)
    tl.store(p_tile, b_S)
    tl.store(p_o_rows, rounded(b_o, p_o.dtype.element_ty))


@triton.jit
def kda_norm(
    p_o, p_gate, p_weight, p_indices, p_out, stride_o, stride_gate, n_rows,
    HEADS: tl.constexpr, ROWS: tl.constexpr, IS_RAGGED: tl.constexpr,
):  # fmt: skip
    """rmsnorm(o)*w*sigmoid(gate) of ROWS heads, counted over all tokens; zero in padded tokens."""
    o_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ZERO: tl.constexpr = 0 if IS_RAGGED else None
    in_rows = o_row < n_rows if IS_RAGGED else None
    in_tile = (o_row < n_rows)[:, None] if IS_RAGGED else None
    o_t = (o_row // HEADS).to(tl.int64)
    o_token = (o_row % HEADS)[:, None] * D + tl.arange(0, D)[None, :]
    is_live = tl.load(p_indices + o_t, mask=in_rows, other=ZERO) > 0
    b_o = tl.load(p_o + o_t[:, None] * stride_o + o_token, mask=in_tile, other=ZERO).to(tl.float32)
    b_gate = tl.load(p_gate + o_t[:, None] * stride_gate + o_token, mask=in_tile, other=ZERO).to(tl.float32)
    b_w = tl.load(p_weight + tl.arange(0, D))
    b_rstd = _rstd(tl.sum(b_o * b_o, 1))
    b_out = tl.where(is_live[:, None], b_o * b_rstd[:, None] * b_w[None, :] * tl.sigmoid(b_gate), 0.0)
    tl.store(p_out + o_t[:, None] * (HEADS * D) + o_token, rounded(b_out, p_out.dtype.element_ty), mask=in_tile)


@triton.jit
def kda_fused(
    p_qkv, p_conv, p_conv_weight, p_g, p_beta, p_A_log, p_dt_bias, p_state, p_indices, p_gate, p_norm_weight, p_out,
    stride_qkv, stride_conv, stride_g, stride_beta, stride_slot, stride_gate,
    HEADS: tl.constexpr, HALVES: tl.constexpr, IS_TIME_MAJOR: tl.constexpr,
):  # fmt: skip
    """The whole step of one token and head, its state at once or (HALVES = 2) in two tiles, which leaves room for more programs."""
    STRIDE: tl.constexpr = 3 * HEADS * D if IS_TIME_MAJOR else 1
    STRIDE_C: tl.constexpr = 1 if IS_TIME_MAJOR else TAPS - 1
    BV: tl.constexpr = D // HALVES
    RUN: tl.constexpr = LINE * HALVES  # fewer keys a lane are fewer registers: 168 of them let three programs of 128 lanes in
    i_h = tl.program_id(0) % HEADS
    i_t = (tl.program_id(0) // HEADS).to(tl.int64)
    o_d = tl.arange(0, D)
    o_q = i_h * D + o_d
    o_k, o_v = o_q + HEADS * D, o_q + 2 * HEADS * D
    p_head_out = p_out + i_t * (HEADS * D) + o_q

    slot = tl.load(p_indices + i_t).to(tl.int64)
    b_decay = _decay(p_g + i_t * stride_g, p_A_log, p_dt_bias, i_h, o_d)
    beta = tl.sigmoid(tl.load(p_beta + i_t * stride_beta + i_h).to(tl.float32))
    b_gate = tl.load(p_gate + i_t * stride_gate + o_q)
    b_norm_weight = tl.load(p_norm_weight + o_d)
    if slot <= 0:
        tl.store(p_head_out, tl.zeros([D], p_out.dtype.element_ty))
        return

    p_row = p_qkv + i_t * stride_qkv
    p_q = p_conv + slot * stride_conv + o_q * STRIDE_C
    p_k, p_v = p_q + HEADS * D * STRIDE_C, p_q + 2 * HEADS * D * STRIDE_C
    b_q, b_q1, b_q2, b_qx = _convolved(p_row + o_q, p_conv_weight + o_q * TAPS, p_q, STRIDE)
    b_k, b_k1, b_k2, b_kx = _convolved(p_row + o_k, p_conv_weight + o_k * TAPS, p_k, STRIDE)
    b_v, b_v1, b_v2, b_vx = _convolved(p_row + o_v, p_conv_weight + o_v * TAPS, p_v, STRIDE)
    p_tile = _state_tile(p_state + slot * stride_slot + i_h * D * D, BV, RUN)
    b_S = tl.load(p_tile)
    tl.debug_barrier()
    _store_inputs(p_q, STRIDE, b_q1, b_q2, b_qx)
    _store_inputs(p_k, STRIDE, b_k1, b_k2, b_kx)
    _store_inputs(p_v, STRIDE, b_v1, b_v2, b_vx)

    b_q, b_k, qk = _normalised(b_q, b_k)
    if HALVES == 1:
        b_S, b_o = _delta_step(b_S, b_q, b_k, b_decay, b_v, beta, qk, BV, RUN)
        tl.store(p_tile, b_S)
    else:
        b_v_low, b_v_high = tl.split(tl.trans(tl.reshape(b_v, [2, BV])))
        b_S, b_o_low = _delta_step(b_S, b_q, b_k, b_decay, b_v_low, beta, qk, BV, RUN)
        tl.store(p_tile, b_S)
        p_tile += BV * D
        b_S, b_o_high = _delta_step(tl.load(p_tile), b_q, b_k, b_decay, b_v_high, beta, qk, BV, RUN)
        tl.store(p_tile, b_S)
        b_o = tl.reshape(tl.trans(tl.join(b_o_low, b_o_high)), [D])

    b_out = b_o * _rstd(tl.sum(b_o * b_o, 0)) * b_norm_weight * tl.sigmoid(b_gate.to(tl.float32))
    tl.store(p_head_out, rounded(b_out, p_out.dtype.element_ty))
