"""Selective scan of Mamba-1, one decode step: the recurrent state, addressed by slot, moves on by one token.

    dt = softplus(dt + dt_bias)              bias and softplus are optional, in this order
    dA = exp(dt*A);  h' = dA*h + (dt*x)*B    softplus(x) = x if x > 20 else log(1 + exp(x))
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
is the rounding of y to its dtype and of the state to its own, so each has its own limit. Products are taken in the order written: dt*x
comes first, once a channel, and where that is too large for fp32 no small B makes h' finite again.

A step that is so large that exp(dt*A) is 0 forgets the state, one so small that it is 1 keeps it, bit for bit in fp32. NaN or inf in x, dt,
z, D, A, dt_bias or the state reaches its channel of its row alone (A, D and dt_bias: of every row), in B or C every channel of its row; as
the formula has it in IEEE arithmetic: a state of inf that meets a decay of 0, or an infinite step an x of 0, is NaN. In z, C and D it stays
out of the state. What a fp16 state cannot hold (over 65504, which takes inputs far from a trained layer's) is stored as inf; the y of that
token comes from the value before, and the inf stays until a decay of 0 makes it NaN: use bf16 or fp32 where a state may grow so far.

Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023 (arXiv 2312.00752), equation 2 and section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional

from harness import Case, Drift, Inputs, Kernel, Tolerance, Traffic, Variant, device_properties
from kernels._lib.arguments import FLOATS, INT32, ITEM_BYTES, check, refuse
from kernels._lib.numerics import rounded, softplus

NAME = "selective_scan_decode"
LARGEST_N = 1024
LANE_VALUES = 16
"""State values of one row that a lane holds: two or four 16-byte loads in flight at once."""

MOST_ROWS = 2
"""Batch rows a program: they share A. Four would take over 200 registers a lane, which leaves few programs a multiprocessor."""

RESIDENT_PROGRAMS = 32
"""Programs of one warp that a multiprocessor holds at once."""


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
        b_dt = softplus(b_dt)
    b_h = tl.exp(b_dt[:, :, None] * b_A[None, :, :]) * b_h + (b_dt * b_x)[:, :, None] * b_B[:, None, :]
    tl.store(p_new_state + slots * stride_new_slot + o_dn[None, :, :], rounded(b_h, p_new_state.dtype.element_ty), mask=in_tile)
    b_terms = b_h * b_C[:, None, :]
    if N != BN:  # an infinite step or x makes NaN of the zeros beyond N
        b_terms = tl.where(in_n[:, None, :], b_terms, 0.0)
    b_y = tl.sum(b_terms, 2)
    if p_D is not None:
        b_y += b_D * b_x
    if p_z is not None:
        b_y *= b_z * tl.sigmoid(b_z)
    tl.store(p_y + o_b * D_INNER + o_d[None, :], rounded(b_y, p_y.dtype.element_ty), mask=in_d)


def _check(x: torch.Tensor, state: torch.Tensor, **others: torch.Tensor | None) -> None:
    """Refuse shapes, dtypes and strides that the module's table does not allow, with a ValueError."""
    if x.dim() != 2 or state.dim() != 3:
        found = f"x has shape {tuple(x.shape)}, state {tuple(state.shape)}"
        raise refuse(NAME, found, "give x (batch, d_inner) and state (slots, d_inner, N)")
    (batch, d_inner), (slots, _, N) = x.shape, state.shape
    if N > LARGEST_N:
        raise refuse(NAME, f"N={N}", f"a row of the state must fit the registers of one warp, so N is at most {LARGEST_N}")
    if not d_inner or not N:
        raise refuse(NAME, f"state has shape {tuple(state.shape)}", "d_inner and N must be 1 or more")
    io, fp32 = (x.dtype,), (torch.float32,)
    rows, columns, vector, whole = (batch, d_inner), (batch, N), (d_inner,), (slots, d_inner, N)
    allowed: dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...]]] = {
        "x": (rows, FLOATS),
        "dt": (rows, io),
        "z": (rows, io),
        "B": (columns, io),
        "C": (columns, io),
        "A": ((d_inner, N), fp32),
        "D": (vector, fp32),
        "dt_bias": (vector, fp32),
        "state": (whole, FLOATS),
        "out_state": (whole, (state.dtype,)),
        "state_indices": ((batch,), INT32),
    }
    for name, tensor in {"x": x, "state": state, **others}.items():
        if tensor is None:
            continue
        shape, dtypes = allowed[name]
        check(NAME, name, tensor, shape, dtypes, x.device, contiguous=name == "A")
        if tensor.dim() == 3 and not (tensor[:1].is_contiguous() and (slots < 2 or tensor.stride(0) >= d_inner * N)):
            raise refuse(NAME, f"{name} has strides {tensor.stride()}", "each slot must be contiguous, only the slots may lie apart")


def plan_tile(batch: int, d_inner: int, BN: int) -> tuple[int, int]:
    """Batch rows and rows of A in the tile of one program.

    LANE_VALUES of a state for each lane, halved, down to four, while the device has multiprocessors to spare; one row of A at
    least. Batch rows share a program, and the part of A that it holds, while there are as many programs as multiprocessors can hold.
    """
    device = device_properties()
    lanes = max(device.warp_size, 32)
    d = max(1, min(triton.next_power_of_2(d_inner), LANE_VALUES * lanes // BN))
    while d > 1 and d * BN >= 8 * lanes and batch * triton.cdiv(d_inner, d) < 2 * device.multiprocessors:
        d //= 2
    rows, programs = 1, batch * triton.cdiv(d_inner, d)
    while rows < MOST_ROWS and batch % (2 * rows) == 0 and programs // (2 * rows) >= RESIDENT_PROGRAMS * device.multiprocessors:
        rows *= 2
    return rows, d


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
    out_state: torch.Tensor | None = None,
) -> torch.Tensor:
    """One decode step in one launch; returns y (batch, d_inner). Tensors: see the module.

    Args:
        softplus: whether dt, after its bias, goes through softplus.
        out_state: where h' of each row goes, as `state` in shape and dtype; None updates `state` in place.

    Raises:
        ValueError: a shape, dtype or stride that the module's table does not allow.
    """
    new_state = state if out_state is None else out_state
    _check(x, state, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias, out_state=new_state, state_indices=state_indices)
    batch, d_inner = x.shape
    N = state.shape[2]
    y = x.new_empty((batch, d_inner))
    if batch == 0:
        return y
    BN = triton.next_power_of_2(N)
    rows, BD = plan_tile(batch, d_inner, BN)
    _selective_scan_decode[(batch // rows * triton.cdiv(d_inner, BD),)](
        x, dt, A, B, C, D, z, dt_bias, state, state_indices, new_state, y,
        x.stride(0), dt.stride(0), B.stride(0), C.stride(0), 0 if z is None else z.stride(0), state.stride(0), new_state.stride(0),
        D_INNER=d_inner, N=N, ROWS=rows, BD=BD, BN=BN, USE_SOFTPLUS=softplus, num_warps=1,
    )  # fmt: skip
    return y


def selective_scan_decode_functional(state: torch.Tensor, **inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`selective_scan_decode` that leaves `state` alone: y, and a new state of which only the slots of rows are written."""
    new_state = state.new_empty(state.shape)
    return selective_scan_decode(state=state, out_state=new_state, **inputs), new_state


def selective_scan_decode_torch(state: torch.Tensor, state_indices: torch.Tensor, softplus: bool = False, **tensors: Any) -> torch.Tensor:
    """`selective_scan_decode` in place, as PyTorch operations in fp32, which a graph can capture.

    Raises:
        ValueError: as `selective_scan_decode`.
    """
    _check(state=state, state_indices=state_indices, **tensors)
    y, h = _step(h=state[state_indices], softplus=softplus, dtype=torch.float32, **tensors)
    state[state_indices] = h.to(state.dtype)
    return y.to(tensors["x"].dtype)


def reference(state: torch.Tensor, state_indices: torch.Tensor, softplus: bool, **tensors: Any) -> dict[str, torch.Tensor]:
    """The formula in fp64, for a state of any dtype: `y` and the whole new `state`."""
    new_state = state.to(torch.float64, copy=True)
    y, new_state[state_indices] = _step(h=new_state[state_indices], softplus=softplus, dtype=torch.float64, **tensors)
    return {"y": y, "state": new_state}


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
    softplus: bool,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula as it is written above, in one dtype: y (batch, d_inner) and h' (batch, d_inner, N)."""
    x, dt, A, B, C, h = (tensor.to(dtype) for tensor in (x, dt, A, B, C, h))
    if dt_bias is not None:
        dt = dt + dt_bias.to(dtype)
    if softplus:
        dt = functional.softplus(dt)
    dA = torch.exp(dt[:, :, None] * A)
    h = dA * h + (dt * x)[:, :, None] * B[:, None, :]
    y = (C[:, None, :] * h).sum(-1)
    if D is not None:
        y = y + D.to(dtype) * x
    if z is not None:
        y = y * functional.silu(z.to(dtype))
    return y, h


def step_inputs(case: Case, generator: Any) -> Inputs:
    """What a layer computes anew for each token. A strided case takes x and z, and B and C, from one wide buffer each.

    The step, dt after bias and softplus, is 0.0005 to 0.1, as in trained layers; with A that gives a decay of 0.2 to 0.9995.
    """
    if case.softplus:
        low, high = (-1.0, 1.0) if case.dt_bias else (-7.0, -2.3)
    else:
        low, high = (0.0005, 0.05 if case.dt_bias else 0.1)
    if case.strided:
        x, z = generator.uniform((case.B, 2 * case.D + 64), case.dtype)[:, : 2 * case.D].split(case.D, dim=1)
        B, C = generator.uniform((case.B, 48 + 2 * case.N), case.dtype)[:, 48:].split(case.N, dim=1)
        dt = generator.uniform((case.B, case.D + 64), case.dtype, low, high)[:, : case.D]
    else:
        x, z, dt = (generator.uniform((case.B, case.D), case.dtype, *span) for span in ((-1.0, 1.0), (-1.0, 1.0), (low, high)))
        B, C = (generator.uniform((case.B, case.N), case.dtype) for _ in range(2))
    return {"x": x, "dt": dt, "B": B, "C": C, "z": z if case.z else None}


def make_inputs(case: Case, generator: Any) -> Inputs:
    """Arguments of a call: as many slots as rows, in random order; the state about as large as the recurrence keeps it.

    A strided case has slots that lie apart.
    """
    values = case.D * case.N
    state = generator.uniform((case.B, values + 64 * case.strided), case.state, -0.05, 0.05)[:, :values]
    bias_low, bias_high = (-6.0, -3.3) if case.softplus else (0.0, 0.05)
    return {
        **step_inputs(case, generator),
        "A": generator.uniform((case.D, case.N), "fp32", -16.0, -1.0),
        "D": generator.uniform((case.D,)) if case.D_term else None,
        "dt_bias": generator.uniform((case.D,), "fp32", bias_low, bias_high) if case.dt_bias else None,
        "state": state.unflatten(1, (case.D, case.N)),
        "state_indices": generator.permutation(case.B),
        "softplus": bool(case.softplus),
    }


def traffic(case: Case) -> Traffic:
    """x, dt, z, B, C, A, D, dt_bias, the state and the indices read once; y and the state written once."""
    io, rows = ITEM_BYTES[case.dtype], case.B * case.D
    state = rows * case.N * ITEM_BYTES[case.state]
    parameters = case.D * (case.N + case.D_term + case.dt_bias) * 4
    activations = ((2 + case.z) * rows + 2 * case.B * case.N) * io
    return Traffic(read_bytes=activations + parameters + state + case.B * 4, written_bytes=rows * io + state)


def published_bytes(case: Case) -> int:
    """The byte model by which this step was published for an fp32 kernel: every program's reads, so A, B and C count once a row."""
    return case.B * case.D * (20 * case.N + 24)


def flops(case: Case) -> int:
    """Seven for each value of the states (dt*A, exp, dA*h, B*(dt*x), the sum, C*h', its sum); the work of rows is left out."""
    return 7 * case.B * case.D * case.N


TOLERANCE = {
    "fp32": Tolerance(1e-5, "fp32 arithmetic: a sum over N that may cancel and an exp within 2^-22; 6e-7 seen", cosine=0.9999),
    "fp16": Tolerance(5e-3, "one rounding to fp16, at most 2^-11; 2.9e-4 seen", cosine=0.9999),
    "bf16": Tolerance(8e-3, "one rounding to bf16, at most 2^-8; 2.5e-3 seen", cosine=0.9999),
}
STATE_LIMITS = {"fp32": 2e-6, "fp16": 6e-4, "bf16": 5e-3}
"""By the state's dtype. fp32: dA's exp is within 2^-22, one step away (2.3e-7 where every one is off by that; 7e-8 seen). fp16 and
bf16: three times the rounding to storage alone (2.1e-4 and 1.7e-3)."""

DRIFT = {
    "fp32": Tolerance(
        3e-6,
        "measured with 1536 channels: storage alone gives at most 1.2e-7, an exp that is off by up to 2^-22 at random 4.9e-7, one that is "
        "always off by that 6.3e-6: half of this; 2.4e-7 seen in 1000 steps",
        cosine=0.999999,
    ),
    "bf16": Tolerance(
        2.3e-2,
        "three times what storage alone gives, measured with 8 and with 1536 channels: at most 7.8e-3 and a cosine of 0.99997; decay "
        "forgets, so it does not grow",
        cosine=0.9997,
    ),
}
"""By the state's dtype. Storage alone: the fp64 reference with its state rounded to that dtype at each step."""


def tolerance(case: Case) -> Tolerance:
    """y by the case's dtype, the state by its own."""
    return replace(TOLERANCE[case.dtype], tensors={"state": STATE_LIMITS[case.state]})


PEER_SHAPES = (
    (1, 1536, 16),
    (4, 1536, 16),
    (8, 1536, 16),
    (1, 3072, 16),
    (1, 1536, 64),
    (256, 1536, 16),
    (256, 4096, 16),
    (1024, 4096, 16),
)
HEADLINE = {(1, 1536, 16), (256, 1536, 16), (1024, 4096, 16)}


def _peer_cases() -> Iterator[Case]:
    """In fp32, and in bf16 with a bf16 state, as the peers were timed; and with an fp32 state in fp16 and bf16."""
    for shape in PEER_SHAPES:
        axes = dict(zip("BDN", shape, strict=True))
        tags = ["model", "cpu" if shape == (1, 1536, 16) else ""]
        smoke = "smoke" if shape == (1, 1536, 16) else ""
        headline = "headline" if shape in HEADLINE else ""
        yield Case(dtype="fp32", tags=" ".join([*tags, "peers", headline, smoke]), **axes)
        yield Case(dtype="bf16", state="bf16", tags=" ".join([*tags, "peers"]), **axes)
        yield from Case.grid(dtype=("fp16", "bf16"), tags="model", **axes)


def _model_cases() -> Iterator[Case]:
    """As a Mamba layer calls it: bias and softplus in the kernel."""
    layer = {"D": 1536, "N": 16, "dt_bias": 1, "softplus": 1}
    yield from Case.grid(B=(1, 256), dtype=("fp32", "bf16"), tags="model", **layer)
    yield from Case.grid(B=64, strided=1, state=("fp32", "bf16"), dtype="bf16", tags="model", **layer)
    yield Case(B=64, state="fp16", dtype="fp16", tags="model", **layer)
    yield from Case.grid(B=4, state=("fp32", "bf16"), dtype="bf16", tags="model drift", **layer)


def _ragged_cases() -> Iterator[Case]:
    yield from Case.grid(B=1, D=1536, N=24, dtype=("fp32", "fp16", "bf16"), tags="ragged")
    yield from Case.grid(B=250, D=1500, N=24, strided=1, state=("fp32", "bf16"), dtype="bf16", tags="ragged")
    yield from Case.grid(B=3, D=45, N=24, state=("fp32", "bf16"), dtype=("fp32", "fp16", "bf16"), tags="ragged cpu")
    yield from Case.grid(B=3, D=37, N=5, dt_bias=1, softplus=1, strided=1, dtype=("fp32", "bf16"), tags="ragged cpu")
    yield Case(B=2, D=1, N=1, dtype="fp32", tags="ragged cpu")


def _small_cases() -> Iterator[Case]:
    """Every option, small enough for the interpreter."""
    flags = (0, 1)
    yield from Case.grid(B=2, D=32, N=16, D_term=flags, z=flags, dt_bias=flags, softplus=flags, dtype="fp32", tags="cpu")
    yield from Case.grid(B=2, D=32, N=16, dt_bias=1, softplus=1, state=("fp32", "bf16"), dtype=("fp16", "bf16"), tags="cpu")
    yield from Case.grid(B=3, D=32, N=16, strided=1, state=("fp32", "bf16"), dtype=("fp32", "fp16", "bf16"), tags="cpu")
    yield from Case.grid(B=2, D=32, N=16, state="fp16", dtype=("fp32", "fp16"), tags="cpu")
    yield Case(B=128, D=64, N=16, dtype="fp32", tags="cpu")
    yield from Case.grid(B=1, D=8, N=16, dt_bias=1, softplus=1, state=("fp32", "bf16"), dtype="bf16", tags="drift cpu")


KERNEL = Kernel(
    variants={
        "inplace": Variant(selective_scan_decode),
        "fused": Variant(selective_scan_decode_functional, outputs=("y", "state"), mutates=()),
        "torch": Variant(selective_scan_decode_torch, triton=False),
    },
    default="inplace",
    baseline="torch",
    axes=("B", "D", "N", "state", "D_term", "z", "dt_bias", "softplus"),
    defaults={"state": "fp32", "D_term": 1, "z": 1, "dt_bias": 0, "softplus": 0},
    cases=[*_peer_cases(), *_model_cases(), *_ragged_cases(), *_small_cases()],
    make_inputs=make_inputs,
    reference=reference,
    outputs=("y",),
    mutates=("state",),
    slots={"state": "state_indices"},
    tolerance=tolerance,
    traffic=traffic,
    other_traffic={"published": published_bytes},
    flops=flops,
    drift=Drift(step_inputs=step_inputs, carry={"state": "state"}, tolerance=DRIFT),
    data="selective-scan-step/1",
)
