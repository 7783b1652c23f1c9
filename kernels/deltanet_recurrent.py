"""Gated delta rule, T tokens in one launch: each head's state, laid out (K, V), moves on by T tokens in place.

Per head, for each token in turn:

    S = exp(g)*S;  r = v - S^T k;  d = beta*r;  S += outer(k, d);  o = S^T q

    tensor   axes           dtype            layout                                        mutated
    q, k     (T, heads, K)  fp32, fp16, bf16 one dtype; tokens and heads may lie apart     no
    v        (T, heads, V)  q's              tokens and heads may lie apart                no
    g, beta  (T, heads)     fp32             tokens may lie apart; g <= 0, beta in (0, 1)  no
    state    (heads, K, V)  fp32, fp16, bf16 a head is contiguous; heads may lie apart     yes
    out      (T, heads, V)  q's              contiguous                                    returned

`heads` are those of all sequences of a batch: each has its own state. g is the logarithm of the decay. The state is the
transpose of the one that packed gated delta kernels keep. q is not scaled.

The caller normalises q and k (x/sqrt(sum(x^2) + 1e-6)). The update multiplies what the state holds along k by 1 - beta*|k|^2, so that
with |k|^2 over 2/beta it grows at every step: keys uniform in [-1, 1] take |S| to 1e22 within 100 tokens. Nothing checks for it.

Numerics: everything is computed in fp32; the state is rounded for storage once a launch, not once a token. NaN or inf (inf as inf or NaN)
in q stays in the head's outputs of that token; in v or the state it stays in its column of the state and of the outputs from that token on;
in k or beta it takes the whole head from that token on, as NaN in g does. g of -inf forgets the head's state, if that is finite. A value
that a fp16 state cannot hold is stored as inf. What is left of the error is the rounding of `out` to its dtype and of the state to its own,
so each has its own limit.

Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024 (arXiv 2412.06464), equation 10, transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from harness import Case, DeviceProperties, Drift, Inputs, Kernel, Tolerance, Traffic, Variant, device_properties
from kernels._lib.arguments import FLOATS, ITEM_BYTES, check, refuse
from kernels._lib.numerics import rounded

NAME = "deltanet_recurrent"
EPSILON = 1e-6
SECTOR_BYTES = 32
"""What memory moves at once: a row of a tile takes no less from a row of a state, but where registers allow only ACCESS_BYTES."""

ACCESS_BYTES = 16
"""What a lane loads and stores at once."""

LANE_VALUES = 64
"""State values of a tile that one lane holds, in as many fp32 registers: 8 or 16 loads of 16 bytes in flight at once."""

BLOCK_THREADS = 256
"""Threads of a program that shares a tall tile between its warps."""

MOST_HEADS = 8
"""Heads of a program that takes several."""

LARGEST_K = {"rowwise": 256, "tiled": 1024, "multihead": 128}
"""Rows of a state that the tile of one program can hold in registers."""


@triton.jit
def _load_token(
    p_q, p_k, p_v, p_g, p_beta, i_t, stride_q, stride_k, stride_v, stride_g, stride_beta,
    in_k, in_v, in_h, ZERO: tl.constexpr,
):  # fmt: skip
    """One token's operands, fp32: q and k (HEADS, BK), v (HEADS, BV), g and beta (HEADS, 1)."""
    i_t = i_t.to(tl.int64)
    b_q = tl.load(p_q + i_t * stride_q, mask=in_k, other=ZERO).to(tl.float32)
    b_k = tl.load(p_k + i_t * stride_k, mask=in_k, other=ZERO).to(tl.float32)
    b_v = tl.load(p_v + i_t * stride_v, mask=in_v, other=ZERO).to(tl.float32)
    b_g = tl.load(p_g + i_t * stride_g, mask=in_h, other=ZERO)
    b_beta = tl.load(p_beta + i_t * stride_beta, mask=in_h, other=ZERO)
    return b_q, b_k, b_v, b_g, b_beta


@triton.jit
def _deltanet_recurrent(
    p_q, p_k, p_v, p_g, p_beta, p_state, p_out, heads,
    stride_qt, stride_qh, stride_kt, stride_kh, stride_vt, stride_vh, stride_g, stride_beta, stride_state,
    T: tl.constexpr, K: tl.constexpr, V: tl.constexpr, HEADS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, IS_WHOLE: tl.constexpr,
):  # fmt: skip
    # A tile (HEADS, BK, BV) of states stays in registers over all tokens. Each row of it is BV contiguous values; sums run over BK.
    N_TILES: tl.constexpr = (V + BV - 1) // BV
    o_h = (tl.program_id(0) // N_TILES).to(tl.int64) * HEADS + tl.arange(0, HEADS)[:, None]
    o_k = tl.arange(0, BK)[None, :]
    o_v = tl.program_id(0) % N_TILES * BV + tl.arange(0, BV)[None, :]
    # Where tiles divide the axes there are no masks.
    ZERO: tl.constexpr = None if IS_WHOLE else 0.0
    in_h = None if IS_WHOLE else o_h < heads
    in_k = None if IS_WHOLE else (o_h < heads) & (o_k < K)
    in_v = None if IS_WHOLE else (o_h < heads) & (o_v < V)
    in_tile = None if IS_WHOLE else ((o_h < heads) & (o_k < K))[:, :, None] & (o_v < V)[:, None, :]

    p_q += o_h * stride_qh + o_k
    p_k += o_h * stride_kh + o_k
    p_v += o_h * stride_vh + o_v
    p_g += o_h
    p_beta += o_h
    p_o = p_out + o_h * V + o_v
    p_tile = p_state + o_h[:, :, None] * stride_state + o_k[:, :, None] * V + o_v[:, None, :]
    b_S = tl.load(p_tile, mask=in_tile, other=ZERO).to(tl.float32)
    first = tl.full([], 0, tl.int32)
    b_q, b_k, b_v, b_g, b_beta = _load_token(
        p_q, p_k, p_v, p_g, p_beta, first, stride_qt, stride_kt, stride_vt, stride_g, stride_beta, in_k, in_v, in_h, ZERO
    )
    for i_t in range(T):
        # The next token is asked for before this one is worked on; the last asks for itself again.
        i_next = tl.minimum(first + i_t + 1, T - 1)
        n_q, n_k, n_v, n_g, n_beta = _load_token(
            p_q, p_k, p_v, p_g, p_beta, i_next, stride_qt, stride_kt, stride_vt, stride_g, stride_beta, in_k, in_v, in_h, ZERO
        )
        # Both sums run over the old state, so neither waits for the other: with S' = decay*S + k d^T, S'^T q = decay*(S^T q) + d*(k q).
        decay = tl.exp(b_g)
        b_Sk = tl.sum(b_S * b_k[:, :, None], 1)
        b_Sq = tl.sum(b_S * b_q[:, :, None], 1)
        b_d = b_beta * (b_v - decay * b_Sk)
        b_S = decay[:, :, None] * b_S + b_k[:, :, None] * b_d[:, None, :]
        b_o = decay * b_Sq + b_d * tl.sum(b_k * b_q, 1)[:, None]
        tl.store(p_o + (first + i_t).to(tl.int64) * heads * V, rounded(b_o, p_out.dtype.element_ty), mask=in_v)
        b_q, b_k, b_v, b_g, b_beta = n_q, n_k, n_v, n_g, n_beta
    tl.store(p_tile, rounded(b_S, p_state.dtype.element_ty), mask=in_tile)


@dataclass(frozen=True)
class Plan:
    """How a program works: `heads` states, all BK rows and `values` columns of each, on `warps` warps."""

    heads: int
    values: int
    warps: int


def _columns(V: int, most: int, item_bytes: int) -> int:
    """Columns of a tile: up to `most`, at least those of one access, no more than there are; a power of two."""
    return min(triton.next_power_of_2(V), max(most, ACCESS_BYTES // item_bytes))


def plan_rowwise(heads: int, BK: int, V: int, item_bytes: int, device: DeviceProperties) -> Plan:
    """One head and one warp a program, which needs no barrier.

    LANE_VALUES a lane, the columns halved, down to a sector of each row, while there are fewer than eight programs for each multiprocessor.
    """
    values = _columns(V, LANE_VALUES * device.warp_size // BK, item_bytes)
    while values * item_bytes > SECTOR_BYTES and heads * triton.cdiv(V, values) < 8 * device.multiprocessors:
        values //= 2
    return Plan(1, values, 1)


def plan_tiled(heads: int, BK: int, V: int, item_bytes: int, device: DeviceProperties) -> Plan:
    """One head a program, the tile's rows shared between the warps of BLOCK_THREADS threads, half of LANE_VALUES a lane."""
    values = _columns(V, max(LANE_VALUES // 2 * BLOCK_THREADS // BK, SECTOR_BYTES // item_bytes), item_bytes)
    while values * item_bytes > SECTOR_BYTES and heads * triton.cdiv(V, values) < 2 * device.multiprocessors:
        values //= 2
    threads = min(BLOCK_THREADS, BK * values // (LANE_VALUES // 2))
    return Plan(1, values, max(1, threads // device.warp_size))


def plan_multihead(heads: int, BK: int, V: int, item_bytes: int, device: DeviceProperties) -> Plan:
    """One warp and a sector's columns of as many heads as make LANE_VALUES a lane, two at least: for many small states."""
    values = _columns(V, SECTOR_BYTES // item_bytes, item_bytes)
    fitting = LANE_VALUES * device.warp_size // (BK * values)
    return Plan(min(max(2, fitting), MOST_HEADS, triton.next_power_of_2(heads)), values, 1)


PLANS: dict[str, Callable[[int, int, int, int, DeviceProperties], Plan]] = {
    "rowwise": plan_rowwise,
    "tiled": plan_tiled,
    "multihead": plan_multihead,
}


def _check(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[int, int, int, int]:
    """T, heads, K and V of a call whose shapes, dtypes and strides are those of the module's table. Raises ValueError."""
    if q.dim() != 3 or state.dim() != 3:
        found = f"q has shape {tuple(q.shape)}, state {tuple(state.shape)}"
        raise refuse(NAME, found, "give q (T, heads, K) and state (heads, K, V)")
    T, (heads, K, V) = q.shape[0], state.shape
    if not K or not V:
        raise refuse(NAME, f"state has shape {tuple(state.shape)}", "K and V must be 1 or more")
    fp32 = (torch.float32,)
    check(NAME, "q", q, (T, heads, K), FLOATS, state.device)
    check(NAME, "k", k, (T, heads, K), (q.dtype,), state.device)
    check(NAME, "v", v, (T, heads, V), (q.dtype,), state.device)
    check(NAME, "g", g, (T, heads), fp32, state.device)
    check(NAME, "beta", beta, (T, heads), fp32, state.device)
    check(NAME, "state", state, (heads, K, V), FLOATS, state.device)
    if not state[:1].is_contiguous() or (heads > 1 and state.stride(0) < K * V):
        raise refuse(NAME, f"state has strides {state.stride()}", "each head must be contiguous (K, V), only the heads may lie apart")
    return T, heads, K, V


def deltanet_recurrent(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    *,
    variant: str = "rowwise",
) -> torch.Tensor:
    """T tokens in one launch; updates `state` in place and returns `out` (T, heads, V). Tensors: see the module.

    Args:
        variant: how states are shared out between programs, a key of PLANS.

    Raises:
        ValueError: no such variant, a shape, dtype or stride that the module's table does not allow, or more rows of a state than the
            variant holds.
    """
    if variant not in PLANS:
        raise refuse(NAME, f"variant={variant!r}", f"give one of {', '.join(PLANS)}")
    T, heads, K, V = _check(q, k, v, g, beta, state)
    if LARGEST_K[variant] < K:
        larger = [f", or up to {most} with {name}" for name, most in LARGEST_K.items() if most > LARGEST_K[variant]]
        do = f"{variant} keeps a state's rows in registers: give K up to {LARGEST_K[variant]}{''.join(larger)}"
        raise refuse(NAME, f"K={K}", do)
    out = q.new_empty((T, heads, V))
    if out.numel() == 0:
        return out
    BK = triton.next_power_of_2(K)
    plan = PLANS[variant](heads, BK, V, state.element_size(), device_properties())
    _deltanet_recurrent[(triton.cdiv(heads, plan.heads) * triton.cdiv(V, plan.values),)](
        q, k, v, g, beta, state, out, heads,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), g.stride(0), beta.stride(0), state.stride(0),
        T=T, K=K, V=V, HEADS=plan.heads, BK=BK, BV=plan.values,
        IS_WHOLE=K == BK and V % plan.values == 0 and heads % plan.heads == 0, num_warps=plan.warps,
    )  # fmt: skip
    return out


def deltanet_recurrent_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """The same tokens as PyTorch operations in fp32, five for each.

    Raises:
        ValueError: a shape, dtype or stride that the module's table does not allow.
    """
    T, heads, _, V = _check(q, k, v, g, beta, state)
    if T * heads == 0:
        return q.new_empty((T, heads, V))
    S = state.float()  # the state itself where that is fp32
    out = _tokens(q.float(), k.float(), v.float(), g, beta, S)
    if S is not state:
        state.copy_(S)
    return out.to(q.dtype)


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The formula in fp64, for a state of any dtype: `out` and the new `state`."""
    new_state = state.to(torch.float64, copy=True)
    out = _tokens(*(tensor.double() for tensor in (q, k, v, g, beta)), new_state)
    return {"out": out, "state": new_state}


def _tokens(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, S: torch.Tensor) -> torch.Tensor:
    """The formula as it is written above, in the tensors' own dtype; S moves on in place. Returns out (T, heads, V)."""
    out = torch.empty_like(v)
    for i_t in range(q.shape[0]):
        S *= g[i_t].exp()[:, None, None]
        d = beta[i_t][:, None] * (v[i_t] - torch.bmm(k[i_t][:, None], S)[:, 0])
        S.baddbmm_(k[i_t][:, :, None], d[:, None])
        out[i_t] = torch.bmm(q[i_t][:, None], S)[:, 0]
    return out


WEAK, STRONG = (-0.002, 0.0), (-2.0, -0.1)
"""Ranges of g: a head that remembers and one that forgets within a few tokens; trained layers have both."""


def step_inputs(case: Case, generator: Any) -> Inputs:
    """What a layer computes anew for each token: unit keys and queries, values of O(1). Heads are weak and strong in turn.

    A strided case takes q, k and v from one wide buffer, and both gates from another.
    """
    T, heads = case.T, case.heads
    v = generator.uniform((T, heads, case.V), case.dtype)
    rows = [generator.uniform((T, heads, case.K), torch.float64) for _ in "qk"]
    # In fp64, so that the rounded quotients are the same on every host.
    q, k = ((x / torch.sqrt((x * x).sum(-1, keepdim=True) + EPSILON)).to(v.dtype) for x in rows)
    weak, strong = (generator.uniform((T, (heads + 1) // 2), "fp32", *span) for span in (WEAK, STRONG))
    g = torch.stack([weak, strong], dim=2).flatten(1)[:, :heads].contiguous()
    beta = generator.uniform((T, heads), "fp32", 0.01, 0.99)
    if case.strided:
        q, k, v = torch.cat([q, k, v], dim=2).split((case.K, case.K, case.V), dim=2)
        g, beta = torch.stack([g, beta], dim=1).unbind(1)
    return {"q": q, "k": k, "v": v, "g": g, "beta": beta}


def make_inputs(case: Case, generator: Any) -> Inputs:
    """Arguments of a call; the state about as large as the weak heads keep it. A strided case has heads that lie apart."""
    values = case.K * case.V
    state = generator.uniform((case.heads, values + 64 * case.strided), case.state, -0.6, 0.6)[:, :values]
    return {**step_inputs(case, generator), "state": state.unflatten(1, (case.K, case.V))}


def traffic(case: Case) -> Traffic:
    """q, k, v, g, beta and the state read once; the state and `out` written once, however many tokens there are."""
    io, rows = ITEM_BYTES[case.dtype], case.T * case.heads
    state = case.heads * case.K * case.V * ITEM_BYTES[case.state]
    return Traffic(read_bytes=rows * ((2 * case.K + case.V) * io + 2 * 4) + state, written_bytes=state + rows * case.V * io)


def flops(case: Case) -> int:
    """Seven for each value of the states and token (decay, S^T k, the update, S^T q); the work of vectors is left out."""
    return 7 * case.T * case.heads * case.K * case.V


TOLERANCE = {
    "fp32": Tolerance(1e-5, "fp32 arithmetic: sums over K and an exp of 2^-22; 2.3e-7 seen", cosine=0.9999),
    "fp16": Tolerance(5e-3, "one rounding to fp16, at most 2^-11; 2.5e-4 seen", cosine=0.9999),
    "bf16": Tolerance(8e-3, "one rounding to bf16, at most 2^-8; 2.0e-3 seen", cosine=0.9999),
}
STATE_LIMITS = {"fp32": 2e-6, "fp16": 6e-4, "bf16": 5e-3}
"""By the state's dtype. fp32: decay's exp is within 2^-22, one step away (1.6e-7 seen). fp16 and bf16: three times the rounding to storage
alone (2.1e-4 and 1.7e-3)."""

DRIFT = {
    "fp32": Tolerance(
        2e-5,
        "measured with K=V=128 and weak gates: storage alone gives at most 2.9e-7, an exp that is off by up to 2^-22 at random 2.5e-6, one "
        "that is always off by that 4.6e-5: this is less than half of that; 5.3e-7 seen in 1000 steps",
        cosine=0.9999,
    ),
    "fp16": Tolerance(
        7.5e-3,
        "three times what storage alone gives with weak gates, measured with K=V=128: at most 2.5e-3 and a cosine of 0.999997",
        cosine=0.9999,
    ),
    "bf16": Tolerance(
        6.3e-2,
        "three times what storage alone gives with weak gates, measured with K=V=128: at most 2.1e-2 and a cosine of 0.99979, where "
        "the cosine stops sooner; strong gates give 1.9e-3 and 0.999998",
        cosine=0.999,
    ),
}
"""By the state's dtype. Storage alone: the fp64 reference with its state rounded to that dtype at each step."""


def tolerance(case: Case) -> Tolerance:
    """`out` by the case's dtype, the state by its own."""
    return replace(TOLERANCE[case.dtype], tensors={"state": STATE_LIMITS[case.state]})


LAYER = {"K": 128, "V": 128}
"""Widths of Qwen3-Next and Qwen3.5; they have 16, 32 or 48 heads, times the sequences of a batch."""


def _model_cases() -> Iterator[Case]:
    yield Case(T=1, heads=16, dtype="bf16", tags="model smoke cpu", **LAYER)
    headline = (32, 512, 8192)
    for heads in (32, 48, 512, 2048, 8192):
        yield Case(T=1, heads=heads, dtype="bf16", tags="model headline" if heads in headline else "model", **LAYER)
    yield from Case.grid(T=(2, 4, 8, 16), heads=32, dtype="bf16", tags="model", **LAYER)
    yield from Case.grid(T=(2, 16), heads=512, dtype="bf16", tags="model", **LAYER)
    yield from Case.grid(T=1, heads=(32, 512, 8192), state="bf16", dtype="bf16", tags="model", **LAYER)
    yield from Case.grid(T=1, heads=512, state="fp16", dtype=("fp16", "bf16"), tags="model", **LAYER)
    yield Case(T=8, heads=512, state="bf16", dtype="bf16", tags="model", **LAYER)
    yield from Case.grid(T=1, heads=(32, 512), dtype=("fp32", "fp16"), tags="model", **LAYER)
    yield Case(T=8, heads=512, strided=1, dtype="bf16", tags="model", **LAYER)
    yield from Case.grid(T=1, heads=34, state=("fp32", "fp16", "bf16"), dtype="bf16", tags="model drift", **LAYER)
    yield Case(T=8, heads=34, state="bf16", dtype="bf16", tags="model drift", **LAYER)
    # States over 128, and the small states of small models.
    yield from Case.grid(T=1, heads=(32, 512), K=256, V=256, state=("fp32", "bf16"), dtype="bf16", tags="model")
    yield Case(T=8, heads=32, K=256, V=256, dtype="bf16", tags="model")
    yield Case(T=1, heads=32, K=128, V=256, dtype="bf16", tags="model")
    yield from Case.grid(T=1, heads=(512, 8192), K=64, V=64, dtype="bf16", tags="model")


def _ragged_cases() -> Iterator[Case]:
    yield from Case.grid(T=(1, 5), heads=31, K=96, V=80, state=("fp32", "bf16"), dtype="bf16", tags="ragged")
    yield Case(T=3, heads=509, K=100, V=72, strided=1, dtype="bf16", tags="ragged")
    yield from Case.grid(T=1, heads=31, K=192, V=320, state=("fp32", "bf16"), dtype="bf16", tags="ragged")
    yield Case(T=1, heads=16, K=576, V=512, dtype="bf16", tags="ragged")
    yield from Case.grid(T=2, heads=3, K=24, V=10, dtype=("fp32", "fp16", "bf16"), tags="ragged cpu")
    yield from Case.grid(T=2, heads=3, K=24, V=10, state=("fp16", "bf16"), dtype="bf16", tags="ragged cpu")
    yield from Case.grid(T=2, heads=5, K=7, V=17, strided=1, state=("fp32", "bf16"), dtype="bf16", tags="ragged cpu")
    yield from Case.grid(T=2, heads=1, K=130, V=20, strided=(0, 1), dtype=("fp32", "bf16"), tags="ragged cpu")
    yield Case(T=2, heads=1, K=12, V=136, dtype="bf16", tags="ragged cpu")
    yield Case(T=1, heads=1, K=1, V=1, dtype="fp32", tags="ragged cpu")


def _small_cases() -> Iterator[Case]:
    """One option at a time, small enough for the interpreter."""
    yield from Case.grid(T=1, heads=2, K=32, V=16, state=("fp32", "fp16", "bf16"), dtype=("fp32", "fp16", "bf16"), tags="cpu")
    yield from Case.grid(T=(2, 4, 8, 16), heads=2, K=16, V=8, dtype="bf16", tags="cpu")
    yield from Case.grid(T=3, heads=2, K=32, V=16, strided=1, state=("fp32", "bf16"), dtype=("fp32", "fp16", "bf16"), tags="cpu")
    yield from Case.grid(T=1, heads=2, K=256, V=16, state=("fp32", "bf16"), dtype="bf16", tags="cpu")
    yield Case(T=2, heads=1, K=512, V=16, dtype="bf16", tags="smoke cpu")
    yield from Case.grid(T=1, heads=2, K=16, V=8, state=("fp32", "fp16", "bf16"), dtype="bf16", tags="drift cpu")
    yield Case(T=1, heads=1, K=136, V=8, state="bf16", dtype="fp32", tags="drift ragged cpu")


def _holds(variant: str) -> Callable[[Case], bool]:
    return lambda case: LARGEST_K[variant] >= case.K and (variant != "tiled" or max(case.K, case.V) > 128)


KERNEL = Kernel(
    variants={
        **{name: Variant(partial(deltanet_recurrent, variant=name), cases=_holds(name)) for name in PLANS},
        "torch": Variant(deltanet_recurrent_torch, triton=False),
    },
    default="rowwise",
    baseline="torch",
    axes=("T", "heads", "K", "V", "state"),
    defaults={"state": "fp32"},
    cases=[*_model_cases(), *_ragged_cases(), *_small_cases()],
    make_inputs=make_inputs,
    reference=reference,
    outputs=("out",),
    mutates=("state",),
    tolerance=tolerance,
    traffic=traffic,
    flops=flops,
    drift=Drift(step_inputs=step_inputs, carry={"state": "state"}, tolerance=DRIFT),
    data="delta-rule-step/1",
)
