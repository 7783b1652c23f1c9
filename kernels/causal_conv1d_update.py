"""Causal depthwise convolution, one token: the last W - 1 inputs of each channel, kept by slot, move on by one.

Per row and channel, with w the oldest first:

    window = [state, x]                      W values
    y = sum_w weight[w]*window[w] + bias     bias is optional
    y = y*sigmoid(y)                         optional (silu)
    state' = window[1:]

    tensor        axes             dtype            layout                                         mutated
    x             (B, C)           fp32, fp16, bf16 rows may lie apart                             no
    weight        (C, W)           x's              contiguous; W is 2, 3 or 4                     no
    bias          (C)              x's              contiguous; None for none                      no
    state         (slots, C, W-1)  fp32, fp16, bf16 a slot is contiguous; slots may lie apart      yes
    state_indices (B)              int32            slot of each row, all distinct; < 0: padded    no
    y             (B, C)           x's              contiguous; zero in padded rows                returned

Numerics: products and sum in fp32, y rounded once. The state moves without arithmetic: where its dtype holds x exactly it is compared
bit for bit, else x is rounded to it once, and what a fp16 state cannot hold becomes inf. NaN or inf in x stays in its row and channel:
in y for W tokens (inf as inf, or as NaN where it meets a weight of zero or silu's -inf*0), in the state for W - 1. What is left of the
error is the rounding of y, and sigmoid's exp of 2^-22.

Source: the short convolution of Mamba (Gu and Dao, 2023, arXiv 2312.00752, section 3.4) and of Gated DeltaNet (Yang et al., 2024, arXiv
2412.06464, section 3.4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional

from harness import Case, DeviceProperties, Drift, Inputs, Kernel, Tolerance, Traffic, Variant, device_properties
from kernels._lib.arguments import FLOATS, INT32, ITEM_BYTES, check, refuse
from kernels._lib.numerics import rounded

NAME = "causal_conv1d_update"
WIDTHS = (2, 3, 4)
WORD_BYTES = 8
"""What a lane of the packed kernel loads and stores at once: four values of 16 bits, or two of 32."""

MOST_ROWS = 4
"""Rows of a program: they share the weights."""

RESIDENT_PROGRAMS = 16
"""Programs of one warp for each multiprocessor below which rows are not put together."""


@triton.jit
def _activated(b_y, USE_SILU: tl.constexpr):
    return b_y * tl.sigmoid(b_y) if USE_SILU else b_y


@triton.jit
def _unpacked(words, i: tl.constexpr, dtype: tl.constexpr):
    """The i-th value, fp32, of those that lie packed in a tuple of words."""
    BITS: tl.constexpr = dtype.primitive_bitwidth
    INTEGER: tl.constexpr = tl.uint16 if BITS == 16 else tl.uint32
    bits = words[i * BITS // 64] >> (i * BITS % 64)
    return bits.to(INTEGER).to(dtype, bitcast=True).to(tl.float32)


@triton.jit
def _packed(b_y, i: tl.constexpr, dtype: tl.constexpr):
    """An fp32 block, rounded to `dtype`, as the i-th value of a word of zeros."""
    BITS: tl.constexpr = dtype.primitive_bitwidth
    INTEGER: tl.constexpr = tl.uint16 if BITS == 16 else tl.uint32
    return rounded(b_y, dtype).to(INTEGER, bitcast=True).to(tl.uint64) << (i * BITS)


@triton.jit
def _moved_on(b_word, b_next, b_x, r: tl.constexpr, W1: tl.constexpr, BITS: tl.constexpr):
    """Word r of a group's new state, given that word of the old one, the word after it and the group's x."""
    P: tl.constexpr = 64 // BITS
    ONE: tl.constexpr = 2**BITS - 1
    b_new = (b_word >> BITS) | (b_next << (64 - BITS))
    for s in tl.static_range(P):
        # Value P*r + s of the group is the newest of a channel, whose x takes the place of the next channel's oldest.
        if (P * r + s) % W1 == W1 - 1:
            b_new = (b_new & (2**64 - 1 - (ONE << (BITS * s)))) | (((b_x >> (BITS * ((P * r + s) // W1))) & ONE) << (BITS * s))
    return b_new


@triton.jit
def _conv1d_update_packed(
    p_x, p_weight, p_bias, p_state, p_indices, p_y, B, stride_x, stride_slot,
    C: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, FLAT: tl.constexpr,
    IS_WHOLE: tl.constexpr, USE_SILU: tl.constexpr,
):  # fmt: skip
    """ROWS rows of GROUPS groups a program; strides in words. A group is the P channels whose x fill one word, their state W - 1 words."""
    dtype: tl.constexpr = p_x.dtype.element_ty
    BITS: tl.constexpr = dtype.primitive_bitwidth
    P: tl.constexpr = 64 // BITS
    W1: tl.constexpr = W - 1
    N_TILES: tl.constexpr = (C // P + GROUPS - 1) // GROUPS
    word: tl.constexpr = tl.pointer_type(tl.uint64)
    o_b = (tl.program_id(0) // N_TILES).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i_first = tl.program_id(0) % N_TILES * GROUPS
    o_g = i_first + tl.arange(0, GROUPS)[None, :]
    o_f = tl.arange(0, FLAT)[None, :]
    in_b = o_b < B
    in_g = None if IS_WHOLE else o_g < C // P

    slots = tl.load(p_indices + o_b, mask=in_b, other=-1).to(tl.int64)
    live = slots >= 0
    p_rows = p_x.to(word) + o_b * stride_x
    p_slots = p_state.to(word) + slots * stride_slot
    b_weight = ()
    for j in tl.static_range(W):
        b_weight += (tl.load(p_weight.to(word) + o_g * W + j, mask=in_g, other=None if IS_WHOLE else 0),)
    in_group = live if IS_WHOLE else live & (o_g < C // P)
    b_x = tl.load(p_rows + o_g, mask=in_group, other=0)
    b_old = ()
    for j in tl.static_range(W1):
        b_old += (tl.load(p_slots + o_g * W1 + j, mask=in_group, other=0),)

    # The new state is made word by word in the order of memory, so that a warp stores whole lines of it: written group by group, from lanes
    # that lie W - 1 words apart, each sector would be written W - 1 times. What this reads again is in the first-level cache.
    o_fg = i_first + o_f // W1
    in_flat = live & (o_f < GROUPS * W1) & (o_fg < C // P)
    b_word = tl.load(p_slots + i_first * W1 + o_f, mask=in_flat, other=0)
    b_next = tl.load(p_slots + i_first * W1 + o_f + 1, mask=in_flat & (o_f % W1 != W1 - 1), other=0)
    b_newest = tl.load(p_rows + o_fg, mask=in_flat, other=0)
    b_new = _moved_on(b_word, b_next, b_newest, 0, W1, BITS)
    for r in tl.static_range(1, W1):
        b_new = tl.where(o_f % W1 == r, _moved_on(b_word, b_next, b_newest, r, W1, BITS), b_new)

    b_packed = tl.zeros([ROWS, GROUPS], tl.uint64)
    for i in tl.static_range(P):
        b_y = _unpacked(b_weight, i * W + W1, dtype) * _unpacked((b_x,), i, dtype)
        for w in tl.static_range(W1):
            b_y += _unpacked(b_weight, i * W + w, dtype) * _unpacked(b_old, i * W1 + w, dtype)
        if p_bias is not None:
            b_bias = tl.load(p_bias.to(word) + o_g, mask=in_g, other=None if IS_WHOLE else 0)
            b_y += _unpacked((b_bias,), i, dtype)
        b_packed |= _packed(_activated(b_y, USE_SILU), i, dtype)
    in_y = in_b if IS_WHOLE else in_b & (o_g < C // P)
    tl.store(p_y.to(word) + o_b * (C // P) + o_g, tl.where(live, b_packed, 0), mask=in_y)
    tl.debug_barrier()  # a lane overwrites what other lanes of its program have read
    tl.store(p_slots + i_first * W1 + o_f, b_new, mask=in_flat)


@triton.jit
def _conv1d_update_plain(
    p_x, p_weight, p_bias, p_state, p_indices, p_y, stride_x, stride_slot,
    C: tl.constexpr, W: tl.constexpr, BC: tl.constexpr, USE_SILU: tl.constexpr,
):  # fmt: skip
    """One row and BC channels a program, a lane a channel: for any C, alignment and dtype of the state."""
    N_TILES: tl.constexpr = (C + BC - 1) // BC
    W1: tl.constexpr = W - 1
    i_b = (tl.program_id(0) // N_TILES).to(tl.int64)
    o_c = tl.program_id(0) % N_TILES * BC + tl.arange(0, BC)
    in_c = o_c < C
    slot = tl.load(p_indices + i_b).to(tl.int64)
    if slot < 0:
        tl.store(p_y + i_b * C + o_c, tl.zeros([BC], p_y.dtype.element_ty), mask=in_c)
        return

    p_slot = p_state + slot * stride_slot + o_c * W1
    b_x = tl.load(p_x + i_b * stride_x + o_c, mask=in_c, other=0.0).to(tl.float32)
    b_old = ()
    b_weight = ()
    for w in tl.static_range(W1):
        b_old += (tl.load(p_slot + w, mask=in_c, other=0.0),)
        b_weight += (tl.load(p_weight + o_c * W + w, mask=in_c, other=0.0).to(tl.float32),)
    b_y = tl.load(p_weight + o_c * W + W1, mask=in_c, other=0.0).to(tl.float32) * b_x
    for w in tl.static_range(W1):
        b_y += b_weight[w] * b_old[w].to(tl.float32)
    if p_bias is not None:
        b_y += tl.load(p_bias + o_c, mask=in_c, other=0.0).to(tl.float32)
    if BC < 32:  # fewer channels than lanes: the other lanes read them too, and here one lane's channels are overwritten
        tl.debug_barrier()
    for w in tl.static_range(1, W1):
        tl.store(p_slot + w - 1, b_old[w], mask=in_c)
    tl.store(p_slot + W1 - 1, rounded(b_x, p_state.dtype.element_ty), mask=in_c)
    tl.store(p_y + i_b * C + o_c, rounded(_activated(b_y, USE_SILU), p_y.dtype.element_ty), mask=in_c)


@dataclass(frozen=True)
class Plan:
    """How the packed kernel is launched, one warp a program: rows, and groups of channels, of one program."""

    rows: int
    groups: int


def plan_packed(B: int, groups: int, device: DeviceProperties) -> Plan:
    """A group a lane; rows put together while there remain enough programs to fill the device."""
    tile = min(device.warp_size, triton.next_power_of_2(groups))
    programs, rows = B * triton.cdiv(groups, tile), 1
    while rows < MOST_ROWS and programs // (2 * rows) >= RESIDENT_PROGRAMS * device.multiprocessors:
        rows *= 2
    return Plan(rows, tile)


def plain_channels(B: int, C: int, device: DeviceProperties) -> int:
    """Channels of one program of the plain kernel: 8 a lane of its one warp, halved while the device has multiprocessors to spare."""
    channels = min(8 * device.warp_size, triton.next_power_of_2(C))
    while channels > device.warp_size and B * triton.cdiv(C, channels) < RESIDENT_PROGRAMS * device.multiprocessors:
        channels //= 2
    return channels


def _check(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, state: torch.Tensor, state_indices: torch.Tensor
) -> tuple[int, int, int]:
    """B, C and W of a call whose shapes, dtypes and strides are those of the module's table. Raises ValueError."""
    if x.dim() != 2 or weight.dim() != 2 or state.dim() != 3:
        found = f"x has shape {tuple(x.shape)}, weight {tuple(weight.shape)}, state {tuple(state.shape)}"
        raise refuse(NAME, found, "give x (B, C), weight (C, W) and state (slots, C, W-1)")
    (B, C), W = x.shape, weight.shape[1]
    if W not in WIDTHS:
        raise refuse(NAME, f"weight has width {W}", f"the widths are {', '.join(map(str, WIDTHS))}")
    if C == 0:
        raise refuse(NAME, f"x has shape {tuple(x.shape)}", "give one channel or more")
    check(NAME, "x", x, (B, C), FLOATS, x.device)
    check(NAME, "weight", weight, (C, W), (x.dtype,), x.device, contiguous=True)
    if bias is not None:
        check(NAME, "bias", bias, (C,), (x.dtype,), x.device, contiguous=True)
    check(NAME, "state", state, (state.shape[0], C, W - 1), FLOATS, x.device)
    check(NAME, "state_indices", state_indices, (B,), INT32, x.device, contiguous=True)
    if not state[:1].is_contiguous() or (state.shape[0] > 1 and state.stride(0) < C * (W - 1)):
        raise refuse(NAME, f"state has strides {state.stride()}", "each slot must be contiguous, only the slots may lie apart")
    return B, C, W


def takes_words(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, state: torch.Tensor) -> bool:
    """Whether x and state are of one dtype, and rows, slots and groups of channels all start at words: then the packed kernel serves."""
    tensors = [tensor for tensor in (x, weight, bias, state) if tensor is not None]
    starts = [tensor.data_ptr() for tensor in tensors]
    strides = [x.stride(0) * x.element_size(), state.stride(0) * state.element_size(), x.shape[1] * x.element_size()]
    return x.dtype == state.dtype and all(value % WORD_BYTES == 0 for value in (*starts, *strides))


def causal_conv1d_update(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    silu: bool = True,
) -> torch.Tensor:
    """One token in one launch; updates `state` in place and returns y (B, C). Tensors: see the module.

    Args:
        silu: whether y goes through SiLU.

    Raises:
        ValueError: a width, shape, dtype or stride that the module's table does not allow.
    """
    B, C, W = _check(x, weight, bias, state, state_indices)
    y = x.new_empty((B, C))
    if B == 0:
        return y
    device = device_properties()
    if takes_words(x, weight, bias, state):
        values = WORD_BYTES // x.element_size()
        plan = plan_packed(B, C // values, device)
        _conv1d_update_packed[(triton.cdiv(B, plan.rows) * triton.cdiv(C // values, plan.groups),)](
            x, weight, bias, state, state_indices, y, B, x.stride(0) // values, state.stride(0) // values,
            C=C, W=W, ROWS=plan.rows, GROUPS=plan.groups, FLAT=triton.next_power_of_2(plan.groups * (W - 1)),
            IS_WHOLE=C // values % plan.groups == 0, USE_SILU=bool(silu), num_warps=1,
        )  # fmt: skip
    else:
        BC = plain_channels(B, C, device)
        _conv1d_update_plain[(B * triton.cdiv(C, BC),)](
            x, weight, bias, state, state_indices, y, x.stride(0), state.stride(0),
            C=C, W=W, BC=BC, USE_SILU=bool(silu), num_warps=1,
        )  # fmt: skip
    return y


def causal_conv1d_update_torch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    silu: bool = True,
) -> torch.Tensor:
    """The same token as PyTorch operations in fp32, free of host synchronisation, so that a graph can capture it.

    Raises:
        ValueError: as `causal_conv1d_update`.
    """
    B, C, _ = _check(x, weight, bias, state, state_indices)
    if B == 0 or state.shape[0] == 0:  # without slots every row is padded
        return x.new_zeros((B, C))
    # A padded row has no slot of its own, and a boolean index would wait for the device: it repeats what the first live row writes.
    live = state_indices >= 0
    source = torch.where(live, torch.arange(B, device=x.device), live.int().argmax())
    slots = state_indices.clamp(min=0)[source]
    old = state[slots]
    new = torch.cat([old[:, :, 1:], x[source, :, None].to(state.dtype)], dim=2)
    window = torch.cat([old.float(), x[:, :, None].float()], dim=2)
    y = _convolved(window, weight.float(), None if bias is None else bias.float(), silu)
    state[slots] = torch.where(live[source, None, None], new, old)
    return torch.where(live[:, None], y, 0.0).to(x.dtype)


def reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, state: torch.Tensor, state_indices: torch.Tensor, silu: bool
) -> dict[str, torch.Tensor]:
    """The formula in fp64, for a state of any dtype: `y` and the whole new `state`."""
    live = state_indices >= 0
    slots = state_indices[live].long()
    new_state = state.to(torch.float64, copy=True)
    window = torch.cat([new_state[slots], x[live, :, None].double()], dim=2)
    y = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    y[live] = _convolved(window, weight.double(), None if bias is None else bias.double(), silu)
    new_state[slots] = window[:, :, 1:]
    return {"y": y, "state": new_state}


def _convolved(window: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, silu: bool) -> torch.Tensor:
    """y (B, C) of windows (B, C, W), in their own dtype."""
    y = (window * weight).sum(-1)
    if bias is not None:
        y = y + bias
    return functional.silu(y) if silu else y


def step_inputs(case: Case, generator: Any) -> Inputs:
    """The next token's x. A strided case takes it from a wider buffer."""
    return {"x": generator.uniform((case.B, case.C + 64 * case.strided), case.dtype)[:, : case.C]}


def make_inputs(case: Case, generator: Any) -> Inputs:
    """Arguments of a call. One slot belongs to no row, and neither do those of padded rows, which are spread over the batch.

    A strided case has slots that lie apart.
    """
    slots, values = case.B + 1, case.C * (case.W - 1)
    state_indices = generator.permutation(slots)[: case.B].clone()
    for i in range(case.pad):
        state_indices[i * case.B // case.pad] = -1 - i
    state = generator.uniform((slots, values + 64 * case.strided), state_dtype(case))[:, :values]
    return {
        **step_inputs(case, generator),
        "weight": generator.uniform((case.C, case.W), case.dtype),
        "bias": generator.uniform((case.C,), case.dtype, -0.5, 0.5) if case.bias else None,
        "state": state.unflatten(1, (case.C, case.W - 1)),
        "state_indices": state_indices,
        "silu": bool(case.silu),
    }


def state_dtype(case: Case) -> str:
    """Dtype of the state: `state=io` is the case's own."""
    return case.dtype if case.state == "io" else str(case.state)


def traffic(case: Case) -> Traffic:
    """The live rows' x and state, the weight, the bias and the indices read once; the live rows' state and y written once."""
    live, io = case.B - case.pad, ITEM_BYTES[case.dtype]
    state = live * case.C * (case.W - 1) * ITEM_BYTES[state_dtype(case)]
    parameters = case.C * (case.W + case.bias) * io
    return Traffic(read_bytes=live * case.C * io + parameters + state + case.B * 4, written_bytes=state + case.B * case.C * io)


def flops(case: Case) -> int:
    """Two for each value of the live rows' windows, one for the bias; SiLU is left out."""
    return (case.B - case.pad) * case.C * (2 * case.W + case.bias)


TOLERANCE = {
    "fp32": Tolerance(1e-5, "fp32 arithmetic: a sum of W that may cancel and an exp of 2^-22; 8e-8 seen", cosine=0.9999),
    "fp16": Tolerance(5e-3, "one rounding to fp16, at most 2^-11; 2.8e-4 seen", cosine=0.9999),
    "bf16": Tolerance(8e-3, "one rounding to bf16, at most 2^-8; 2.1e-3 seen", cosine=0.9999),
}
ROUNDED_STATE = {"fp16": 5.1e-4, "bf16": 5e-3}
"""Limits of a state that does not hold x exactly: three times its rounding alone (1.7e-4 and 1.7e-3)."""

DRIFT = {dtype: Tolerance(0.0, "values move and are not computed with, so no step may change a bit") for dtype in ITEM_BYTES}


def tolerance(case: Case) -> Tolerance:
    """y by the case's dtype; the state is exact where it holds every value of x."""
    is_exact = state_dtype(case) in (case.dtype, "fp32")
    return replace(TOLERANCE[case.dtype], tensors={"state": 0.0 if is_exact else ROUNDED_STATE[state_dtype(case)]})


BATCHES = (1, 4, 16, 64, 256)
CHANNELS = (10240, 4608, 36864)
"""Qwen3.5-27B, and Kimi's delta attention with 12 and with 96 heads; 8192 are Qwen3-Next's, 1536 Mamba-130m's."""


def _model_cases() -> Iterator[Case]:
    for b in BATCHES:
        extra = "headline" if b in (1, 16, 256) else "drift" if b == 4 else ""
        yield Case(B=b, C=8192, W=4, dtype="bf16", tags=f"model peers {extra}")
    yield from Case.grid(B=BATCHES, C=CHANNELS, W=4, dtype="bf16", tags="model")
    for b in BATCHES:
        yield Case(B=b, C=1536, W=4, bias=1, dtype="bf16", tags="model smoke cpu" if b == 1 else "model")
    yield from Case.grid(B=(1, 16), C=1536, W=4, bias=1, dtype="fp32", tags="model")
    yield from Case.grid(B=(1, 64), C=8192, W=4, dtype=("fp32", "fp16"), tags="model")
    yield from Case.grid(B=16, C=8192, W=(2, 3), dtype="bf16", tags="model")
    yield from Case.grid(B=16, C=8192, W=4, silu=0, dtype="bf16", tags="model")
    yield from Case.grid(B=64, C=8192, W=4, state="fp32", dtype="bf16", tags="model")
    yield from Case.grid(B=16, C=8192, W=4, pad=(5, 16), dtype="bf16", tags="model")
    yield from Case.grid(B=64, C=8192, W=4, strided=1, dtype="bf16", tags="model")
    yield Case(B=4, C=8192, W=4, dtype="fp32", tags="model drift")


def _ragged_cases() -> Iterator[Case]:
    yield from Case.grid(B=BATCHES, C=8190, W=4, dtype="bf16", tags="ragged")
    yield from Case.grid(B=7, C=8190, W=3, bias=1, pad=2, strided=1, dtype=("fp32", "bf16"), tags="ragged")
    yield from Case.grid(B=3, C=45, W=(2, 3, 4), bias=1, dtype=("fp32", "fp16", "bf16"), tags="ragged cpu")
    yield from Case.grid(B=3, C=45, W=4, pad=1, strided=1, dtype=("fp32", "bf16"), tags="ragged cpu")
    yield from Case.grid(B=3, C=76, W=(2, 3, 4), pad=1, strided=1, dtype=("fp32", "bf16"), tags="ragged cpu")
    yield from Case.grid(B=2, C=1, W=(2, 4), dtype="bf16", tags="ragged cpu")


def _small_cases() -> Iterator[Case]:
    """One option at a time, small enough for the interpreter."""
    flags = (0, 1)
    yield from Case.grid(B=1, C=128, W=(2, 3, 4), bias=flags, silu=flags, dtype="bf16", tags="cpu")
    yield from Case.grid(B=1, C=128, W=(2, 3, 4), dtype=("fp32", "fp16"), tags="cpu")
    yield from Case.grid(B=2, C=64, W=4, state="fp32", dtype=("fp16", "bf16"), tags="cpu")
    yield from Case.grid(B=2, C=64, W=4, state=("fp16", "bf16"), dtype="fp32", tags="cpu")
    yield Case(B=2, C=64, W=4, state="bf16", dtype="fp16", tags="cpu")
    yield from Case.grid(B=4, C=128, W=4, pad=(2, 4), state=("io", "fp32"), dtype="bf16", tags="cpu")
    yield from Case.grid(B=2, C=128, W=4, strided=1, dtype=("fp32", "fp16", "bf16"), tags="cpu")
    yield Case(B=1, C=32, W=4, dtype="bf16", tags="drift cpu")
    yield Case(B=1, C=31, W=3, dtype="bf16", tags="drift ragged cpu")


KERNEL = Kernel(
    variants={"fused": Variant(causal_conv1d_update), "torch": Variant(causal_conv1d_update_torch, triton=False)},
    default="fused",
    baseline="torch",
    axes=("B", "C", "W", "bias", "silu", "state", "pad"),
    defaults={"bias": 0, "silu": 1, "state": "io", "pad": 0},
    cases=[*_model_cases(), *_ragged_cases(), *_small_cases()],
    make_inputs=make_inputs,
    reference=reference,
    outputs=("y",),
    mutates=("state",),
    slots={"state": "state_indices"},
    tolerance=tolerance,
    traffic=traffic,
    flops=flops,
    drift=Drift(step_inputs=step_inputs, carry={"state": "state"}, tolerance=DRIFT),
)
