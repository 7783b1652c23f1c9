"""Selective scan of Mamba-1, one decode step: the recurrent state, addressed by slot, moves on by one token.

    dt = softplus(dt + dt_bias)              bias and softplus are optional, in this order
    dA = exp(dt*A);  h' = dA*h + (dt*B)*x    softplus(x) = x if x > 20 else log(1 + exp(x))
    y = sum_n C[n]*h'[n]
    y += D*x                                 optional
    y *= silu(z)                             optional

    tensor        axes                 dtype            layout                                     mutated
    x, dt, z      (batch, d_inner)     fp32, fp16, bf16 one dtype; rows may lie apart              no
    B, C          (batch, N)           x's              rows may lie apart                         no
    A             (d_inner, N)         fp32             contiguous; A = -exp(A_log), so negative   no
    D, dt_bias    (d_inner)            fp32             contiguous                                 no
    state         (slots, d_inner, N)  fp32, fp16, bf16 a slot is contiguous; slots may lie apart  by `inplace`, `torch`
    state_indices (batch)              int32            slot of each row, 0 or more, all distinct  no
    y             (batch, d_inner)     x's              contiguous                                 returned
    state'        (slots, d_inner, N)  state's          contiguous                                 returned by `fused`

`fused` leaves the given state alone and writes h' of each row into the row's slot of a new buffer, whose other slots hold
nothing: it is meant for one row a slot.

Numerics: everything is computed in fp32, and y is taken from h' before that is rounded for storage. log(1 + e) is computed as
log(w)*e/(w - 1) with w = 1 + e (Kahan's log1p), since the plain form keeps three digits of a step of 0.001. What is left of the error
is the rounding of y to its dtype and of the state to its own, so each has its own limit.

Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023 (arXiv 2312.00752), equation 2 and section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn.functional import silu, softplus

from harness import Case, Drift, Inputs, Kernel, Tolerance, Traffic, Variant, device_properties

IS_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
LARGEST_N = 1024
LANE_VALUES = 16
"""State values of one row that a lane holds: two or four 16-byte loads in flight at once."""

MOST_ROWS = 4
"""Rows a program: they share A, and their states fill a lane's registers."""


@triton.jit
def _rounded(b_x, dtype: tl.constexpr):
    # Triton's interpreter truncates to bf16 where a GPU rounds to nearest even: a carried state would drift towards zero.
    if IS_INTERPRETED and dtype == tl.bfloat16:
        bits = b_x.to(tl.int32, bitcast=True)
        bits = tl.where(b_x == b_x, bits + 0x7FFF + ((bits >> 16) & 1), bits)
        b_y = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        b_y = b_x.to(dtype)
    return b_y


@triton.jit
def _softplus(x):
    e = tl.exp(x)
    w = 1.0 + e
    log1p = tl.where(w == 1.0, e, tl.log(w) * (e / (w - 1.0)))
    return tl.where(x > 20.0, x, log1p)


@triton.jit
def _selective_scan_decode(
    p_x, p_dt, p_A, p_B, p_C, p_D, p_z, p_dt_bias, p_state, p_indices, p_new_state, p_y,
    stride_x, stride_dt, stride_B, stride_C, stride_z, stride_slot, stride_new_slot,
    D_INNER: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, USE_SOFTPLUS: tl.constexpr,
):  # fmt: skip
    # One warp a program, for a tile (ROWS, BD, BN) of states: a few lanes take each sum over N and need no barrier.
    N_TILES: tl.constexpr = (D_INNER + BD - 1) // BD
    o_b = (tl.program_id(0) // N_TILES).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    o_d = tl.program_id(0) % N_TILES * BD + tl.arange(0, BD)
    o_n = tl.arange(0, BN)
    o_dn = o_d[:, None] * N + o_n[None, :]
    # Where the tiles divide the axes there are no masks.
    IS_WHOLE: tl.constexpr = D_INNER % BD == 0 and N == BN
    ZERO: tl.constexpr = None if IS_WHOLE else 0.0
    in_d = None if IS_WHOLE else (o_d < D_INNER)[None, :]
    in_n = None if IS_WHOLE else (o_n < N)[None, :]
    in_dn = None if IS_WHOLE else (o_d < D_INNER)[:, None] & (o_n < N)[None, :]
    in_tile = None if IS_WHOLE else in_dn[None, :, :]

    # The states wait for the indices, so those are asked for first; nothing uses them before all small loads are under way.
    slots = tl.load(p_indices + o_b).to(tl.int64)[:, :, None]
    b_x = tl.load(p_x + o_b * stride_x + o_d[None, :], mask=in_d, other=ZERO).to(tl.float32)
    b_dt = tl.load(p_dt + o_b * stride_dt + o_d[None, :], mask=in_d, other=ZERO).to(tl.float32)
    b_B = tl.load(p_B + o_b * stride_B + o_n[None, :], mask=in_n, other=ZERO).to(tl.float32)
    b_C = tl.load(p_C + o_b * stride_C + o_n[None, :], mask=in_n, other=ZERO).to(tl.float32)
    b_A = tl.load(p_A + o_dn, mask=in_dn, other=ZERO)
    if p_dt_bias is not None:
        b_dt += tl.load(p_dt_bias + o_d[None, :], mask=in_d, other=ZERO)
    if p_D is not None:
        b_D = tl.load(p_D + o_d[None, :], mask=in_d, other=ZERO)
    if p_z is not None:
        b_z = tl.load(p_z + o_b * stride_z + o_d[None, :], mask=in_d, other=ZERO).to(tl.float32)
    b_h = tl.load(p_state + slots * stride_slot + o_dn[None, :, :], mask=in_tile, other=ZERO).to(tl.float32)

    if USE_SOFTPLUS:
        b_dt = _softplus(b_dt)
    b_h = tl.exp(b_dt[:, :, None] * b_A[None, :, :]) * b_h + (b_dt * b_x)[:, :, None] * b_B[:, None, :]
    tl.store(p_new_state + slots * stride_new_slot + o_dn[None, :, :], _rounded(b_h, p_new_state.dtype.element_ty), mask=in_tile)
    b_y = tl.sum(b_h * b_C[:, None, :], 2)
    if p_D is not None:
        b_y += b_D * b_x
    if p_z is not None:
        b_y *= b_z * tl.sigmoid(b_z)
    tl.store(p_y + o_b * D_INNER + o_d[None, :], _rounded(b_y, p_y.dtype.element_ty), mask=in_d)


def _refuse(found: str, do: str) -> ValueError:
    return ValueError(f"selective_scan_decode: {found}: {do}")


def _check(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
    z: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    state: torch.Tensor,
    state_indices: torch.Tensor,
) -> None:
    """Refuse shapes, dtypes and strides that the module's table does not allow, with a ValueError."""
    if x.dim() != 2 or state.dim() != 3:
        raise _refuse(
            f"x has shape {tuple(x.shape)}, state {tuple(state.shape)}", "give x (batch, d_inner) and state (slots, d_inner, N)"
        )
    batch, d_inner = x.shape
    N = state.shape[2]
    if N > LARGEST_N:
        raise _refuse(f"N={N}", f"a row of the state must fit the registers of one warp, so N is at most {LARGEST_N}")
    io, fp32 = (x.dtype,), (torch.float32,)
    for name, tensor, shape, dtypes in (
        ("x", x, (batch, d_inner), DTYPES),
        ("dt", dt, (batch, d_inner), io),
        ("A", A, (d_inner, N), fp32),
        ("B", B, (batch, N), io),
        ("C", C, (batch, N), io),
        ("D", D, (d_inner,), fp32),
        ("z", z, (batch, d_inner), io),
        ("dt_bias", dt_bias, (d_inner,), fp32),
        ("state", state, (state.shape[0], d_inner, N), DTYPES),
        ("state_indices", state_indices, (batch,), (torch.int32,)),
    ):
        if tensor is None:
            continue
        if tensor.shape != shape or tensor.dtype not in dtypes:
            raise _refuse(f"{name} has shape {tuple(tensor.shape)}, {tensor.dtype}", f"give {shape} of {' or '.join(map(str, dtypes))}")
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise _refuse(f"{name} has strides {tensor.stride()}", "its last axis must have stride 1, call .contiguous()")
        if tensor.device != x.device:
            raise _refuse(f"{name} is on {tensor.device}, x on {x.device}", "move them to one device")
    if not A.is_contiguous():
        raise _refuse(f"A has strides {A.stride()}", "it must be contiguous, call .contiguous()")
    if not state[:1].is_contiguous() or (state.shape[0] > 1 and state.stride(0) < d_inner * N):
        raise _refuse(f"state has strides {state.stride()}", "each slot must be contiguous, only the slots may lie apart")


@dataclass(frozen=True)
class Plan:
    """Tile of one program: batch rows and rows of A."""

    rows: int
    d: int


def plan_tile(batch: int, d_inner: int, BN: int) -> Plan:
    """LANE_VALUES of a state for each lane of one warp, halved while the device has multiprocessors to spare.

    Never less than four a lane. Batch rows share a program, and its part of A, while two rounds of full multiprocessors are left.
    """
    device = device_properties()
    lanes = max(device.warp_size, 32)
    d = max(1, min(triton.next_power_of_2(d_inner), LANE_VALUES * lanes // BN))
    while batch * triton.cdiv(d_inner, d) < 2 * device.multiprocessors and d * BN >= 8 * lanes:
        d //= 2
    rows, programs = 1, batch * triton.cdiv(d_inner, d)
    while rows < MOST_ROWS and batch % (2 * rows) == 0 and programs // (2 * rows) >= 2 * RESIDENT * device.multiprocessors:
        rows *= 2
    return Plan(rows, d)


def _launch(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
    z: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    softplus: bool,
    new_state: torch.Tensor,
) -> torch.Tensor:
    batch, d_inner = x.shape
    N = state.shape[2]
    BN = triton.next_power_of_2(N)
    tile = plan_tile(batch, d_inner, BN)
    y = x.new_empty((batch, d_inner))
    _selective_scan_decode[(batch // tile.rows * triton.cdiv(d_inner, tile.d),)](
        x, dt, A, B, C, D, z, dt_bias, state, state_indices, new_state, y,
        x.stride(0), dt.stride(0), B.stride(0), C.stride(0), 0 if z is None else z.stride(0), state.stride(0), new_state.stride(0),
        D_INNER=d_inner, N=N, ROWS=tile.rows, BD=tile.d, BN=BN, USE_SOFTPLUS=softplus, num_warps=1,
    )  # fmt: skip
    return y


def selective_scan_decode(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
    z: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    softplus: bool = False,
) -> torch.Tensor:
    """One step in one launch, `state` updated in place; returns y (batch, d_inner). Tensors: see the module.

    Raises:
        ValueError: a shape, dtype or stride that the module's table does not allow.
    """
    _check(x, dt, A, B, C, D, z, dt_bias, state, state_indices)
    return _launch(x, dt, A, B, C, D, z, dt_bias, state, state_indices, softplus, new_state=state)


def selective_scan_decode_functional(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
    z: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    softplus: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same step that leaves `state` alone; returns y and a new state, of which only the slots of rows are written.

    Raises:
        ValueError: as `selective_scan_decode`.
    """
    _check(x, dt, A, B, C, D, z, dt_bias, state, state_indices)
    new_state = state.new_empty(state.shape)
    return _launch(x, dt, A, B, C, D, z, dt_bias, state, state_indices, softplus, new_state), new_state


def selective_scan_decode_torch(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
    z: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    softplus: bool = False,
) -> torch.Tensor:
    """`selective_scan_decode` as PyTorch operations in fp32.

    Raises:
        ValueError: as `selective_scan_decode`.
    """
    _check(x, dt, A, B, C, D, z, dt_bias, state, state_indices)
    y, h = _step(x, dt, A, B, C, D, z, dt_bias, state[state_indices], softplus, torch.float32)
    state[state_indices] = h.to(state.dtype)
    return y.to(x.dtype)


def _step(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
    z: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    h: torch.Tensor,
    use_softplus: bool,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula as it stands, in `dtype`: y (batch, d_inner) and h' (batch, d_inner, N)."""
