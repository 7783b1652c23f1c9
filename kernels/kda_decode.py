"""Kimi delta attention, one decode step: causal convolution, per-channel decay, delta rule and gated norm, in one launch.

Per token and head, with dim = heads*128:

    x = silu(conv(mixed_qkv))           width 4, causal, no bias: this token and the three older inputs in conv_state
    q, k, v = x                         dim channels each
    q, k = q/sqrt(sum(q^2) + 1e-6), k/sqrt(sum(k^2) + 1e-6);  q = q*128^-0.5
    decay = exp(-5*sigmoid(exp(A_log)*(raw_g + dt_bias)))     of each key channel
    beta = sigmoid(raw_beta)
    S = S*diag(decay);  u = beta*(v - S k);  S += u k^T;  o = S q
    out = rmsnorm(o)*norm_weight*sigmoid(g2)                  eps 1e-5: norm, then gate

    tensor        axes                       dtype            layout                                            mutated
    mixed_qkv     (T, 3*dim)                 fp32, fp16, bf16 q heads, k heads, v heads; tokens may lie apart   no
    conv_state    (slots, 3*dim, 3)          fp32, fp16, bf16 oldest first; slots may lie apart, each dense:    yes
                                                              (3*dim, 3), or time-major, a transposed (3, 3*dim)
    conv_weight   (3*dim, 4)                 fp32             contiguous; the last weighs this token            no
    raw_g         (1, T, heads, 128)         mixed_qkv's      tokens may lie apart                              no
    raw_beta      (1, T, heads)              mixed_qkv's      tokens may lie apart                              no
    A_log         (heads)                    fp32             contiguous                                        no
    dt_bias       (dim)                      fp32             contiguous                                        no
    state         (slots, heads, 128, 128)   fp32             (values, keys); slots may lie apart, each dense   yes
    state_indices (T)                        int32            slot of each token, all distinct; <= 0: padded    no
    g2            (T, heads, 128)            mixed_qkv's      tokens may lie apart                              no
    norm_weight   (128)                      fp32             contiguous                                        no
    out           (T, heads, 128)            mixed_qkv's      contiguous; zero for padded tokens                returned
    convolved     (T, 3*dim)                 mixed_qkv's      x, which `recurrent` is given; tokens may lie     no
                                                              apart
    o             (T, heads, 128)            mixed_qkv's      contiguous; zero for padded tokens                by `recurrent`

Both states have the same number of slots. Slot 0 is the null slot: no token owns it, none changes it. Inputs of several layers have a
layer axis: first, except that the states have it after the slots, and the indices, which the layers share, have none. Each layer is then
launched in turn.

Numerics: everything is computed in fp32. `fused` rounds nothing but its output. The chain stores the convolved q, k and v and then o in
the dtype of mixed_qkv, as models do, so in bf16 and fp16 the limits of the state and of o allow three times what that rounding gives.
A NaN or infinity goes where the formula takes it; from a token's inputs and states that is never to another token or head. The rmsnorm of
an o with an infinity, whose mean square is infinite, is NaN in the whole head, so that none hides among zeros; so is that of an o whose
squares fp32 cannot sum, of a norm past 1.8e19 (such a q or k may count as zero). Where S q of the formula is inf - inf, the o that
`recurrent` returns may be an infinity: it is S q before the update, and u*(k q).

Source: Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", 2025 (arXiv 2510.26692), section 3; the lower-bounded
gate, the width of 4 and the order of norm and gate are those of its public implementations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import triton
from torch.nn import functional

from harness import Case, Drift, Inputs, Kernel, Tolerance, Traffic, Variant, device_properties
from kernels._lib import kda
from kernels._lib.arguments import FLOATS, INT32, ITEM_BYTES, check, refuse

D = kda.D.value
TAPS = kda.TAPS.value
FP32 = (torch.float32,)
LANES = 128
"""Lanes of a program for a whole head: one a channel."""

TILE_VALUES, NORM_VALUES = 64, 32
"""Values a lane at most, of the state in `kda_recurrent` and of o in `kda_norm`."""


def is_time_major(conv_state: torch.Tensor) -> bool:
    """Whether a conv_state (slots, 3*dim, 3) lies in memory as (slots, 3, 3*dim)."""
    return conv_state.stride(1) == 1 and conv_state.stride(2) != 1


def _axes(mixed_qkv: torch.Tensor) -> tuple[int, int]:
    """T and heads of a call. Raises ValueError."""
    if mixed_qkv.dim() != 2 or mixed_qkv.shape[1] == 0 or mixed_qkv.shape[1] % (3 * D):
        raise refuse("kda_decode", f"mixed_qkv has shape {tuple(mixed_qkv.shape)}", f"give (T, 3*heads*{D}): q, k and v of every head")
    return mixed_qkv.shape[0], mixed_qkv.shape[1] // (3 * D)


def _check(tokens: int, heads: int, like: torch.Tensor, **tensors: torch.Tensor | None) -> None:
    """Refuse, with a ValueError, tensors that the module's table does not allow beside `like`, whose dtype and device they share."""
    io, channels = (like.dtype,), 3 * heads * D
    if like.dtype not in FLOATS:
        raise refuse("kda_decode", f"the dtype is {like.dtype}", f"give one of {', '.join(map(str, FLOATS))}")
    rows = {
        "mixed_qkv": (tokens, channels),
        "convolved": (tokens, channels),
        "raw_g": (1, tokens, heads, D),
        "raw_beta": (1, tokens, heads),
        "g2": (tokens, heads, D),
        "o": (tokens, heads, D),
        "out": (tokens, heads, D),
    }
    vectors = {"conv_weight": (channels, TAPS), "A_log": (heads,), "dt_bias": (heads * D,), "norm_weight": (D,)}
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if name in vectors:
            check("kda_decode", name, tensor, vectors[name], FP32, like.device, contiguous=True)
        elif name == "state_indices":
            check("kda_decode", name, tensor, (tokens,), INT32, like.device)
        elif name == "state":
            _check_slots(name, tensor, (heads, D, D), FP32, like.device)
        elif name == "conv_state":
            _check_slots(name, tensor, (channels, TAPS - 1), FLOATS, like.device)
        else:
            check("kda_decode", name, tensor, rows[name], io, like.device, contiguous=name == "out")
            if name in ("raw_g", "g2", "o") and tokens and not tensor.narrow(-3, 0, 1).is_contiguous():
                raise refuse("kda_decode", f"{name} has strides {tensor.stride()}", "only tokens may lie apart, call .contiguous()")
    conv_state, state = tensors.get("conv_state"), tensors.get("state")
    if conv_state is not None and state is not None:
        _check_same_slots(conv_state, state)


def _check_slots(name: str, tensor: torch.Tensor, slot: tuple[int, ...], dtypes: tuple[torch.dtype, ...], device: torch.device) -> None:
    """Refuse a state of another shape, or whose slots overlap or are not dense. Raises ValueError."""
    if tensor.dim() != len(slot) + 1:
        raise refuse("kda_decode", f"{name} has shape {tuple(tensor.shape)}", f"give (slots, {', '.join(map(str, slot))})")
    if name == "conv_state" and is_time_major(tensor):
        tensor, slot = tensor.mT, slot[::-1]
    check("kda_decode", name, tensor, (tensor.shape[0], *slot), dtypes, device)
    if not tensor[:1].is_contiguous() or (tensor.shape[0] > 1 and tensor.stride(0) < math.prod(slot)):
        raise refuse("kda_decode", f"{name} has strides {tensor.stride()}", "each slot must be dense, only slots may lie apart")


def _check_same_slots(conv_state: torch.Tensor, state: torch.Tensor) -> None:
    """Refuse states that differ in their number of slots: the same indices address both. Raises ValueError."""
    if len(conv_state) != len(state):
        found = f"conv_state has {len(conv_state)} slots, state {len(state)}"
        raise refuse("kda_decode", found, "give both the same slots, state_indices address both")


def whole_head_warps() -> int:
    """Warps that have LANES lanes."""
    return LANES // max(device_properties().warp_size, 32)


def state_halves(programs: int) -> int:
    """Tiles in which a program of `kda_fused` streams its state.

    One while the programs find room on the multiprocessors at once, two on each: then all of it is in flight. Two in larger grids:
    a tile takes half the registers, so that one program computes while others load.
    """
    return 1 if programs <= 2 * device_properties().multiprocessors else 2


def value_tile(heads: int) -> int:
    """State rows in a one-warp program of `kda_recurrent`, for that many heads of all tokens.

    TILE_VALUES a lane, halved while the device has multiprocessors to spare; never less than a 16-byte access of every lane.
    """
    device = device_properties()
    lanes = max(device.warp_size, 32)
    tile = TILE_VALUES * lanes // D
    while heads * (D // tile) < 2 * device.multiprocessors and tile * D > 4 * 4 * lanes:
        tile //= 2
    return tile


def conv_blocks(tokens: int, heads: int) -> int:
    """Blocks of LANES channels in a program of `kda_conv`: four, loaded at once, where they divide the channels and fill the device."""
    return 4 if heads % 4 == 0 and tokens * 3 * heads // 4 >= 2 * device_properties().multiprocessors else 1


def norm_rows(rows: int) -> int:
    """Rows in a one-warp program of `kda_norm`: NORM_VALUES a lane, down to one 16-byte access, while multiprocessors are to spare."""
    device = device_properties()
    lanes = max(device.warp_size, 32)
    block = NORM_VALUES * lanes // D
    while triton.cdiv(rows, block) < 4 * device.multiprocessors and block * D > 8 * lanes:
        block //= 2
    return block


def kda_decode(
    mixed_qkv: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    raw_g: torch.Tensor,
    raw_beta: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    g2: torch.Tensor,
    norm_weight: torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One decode step of a layer in one launch; updates `conv_state` and `state` in place. Tensors: see the module.

    Args:
        out: where the result goes, (T, heads, 128) contiguous; a new tensor by default.

    Returns:
        out (T, heads, 128).

    Raises:
        ValueError: a shape, dtype or stride that the module's table does not allow.
    """
    T, heads = _axes(mixed_qkv)
    _check(
        T, heads, mixed_qkv, mixed_qkv=mixed_qkv, conv_state=conv_state, conv_weight=conv_weight, raw_g=raw_g, raw_beta=raw_beta,
        A_log=A_log, dt_bias=dt_bias, state=state, state_indices=state_indices, g2=g2, norm_weight=norm_weight, out=out,
    )  # fmt: skip
    out = g2.new_empty((T, heads, D)) if out is None else out
    kda.kda_fused[(T * heads,)](
        mixed_qkv, conv_state, conv_weight, raw_g, raw_beta, A_log, dt_bias, state, state_indices, g2, norm_weight, out,
        mixed_qkv.stride(0), conv_state.stride(0), raw_g.stride(1), raw_beta.stride(1), state.stride(0), g2.stride(0),
        HEADS=heads, HALVES=state_halves(T * heads), IS_TIME_MAJOR=is_time_major(conv_state), num_warps=whole_head_warps(),
    )  # fmt: skip
    return out


def kda_conv_update(
    mixed_qkv: torch.Tensor, conv_state: torch.Tensor, conv_weight: torch.Tensor, state_indices: torch.Tensor
) -> torch.Tensor:
    """The convolution alone: updates `conv_state` in place, returns silu of the result (T, 3*dim); padded tokens' rows hold nothing.

    Raises:
        ValueError: as `kda_decode`.
    """
    T, heads = _axes(mixed_qkv)
    _check(T, heads, mixed_qkv, mixed_qkv=mixed_qkv, conv_state=conv_state, conv_weight=conv_weight, state_indices=state_indices)
    convolved = mixed_qkv.new_empty(mixed_qkv.shape)
    blocks = conv_blocks(T, heads)
    kda.kda_conv[(T * 3 * heads // blocks,)](
        mixed_qkv, conv_state, conv_weight, state_indices, convolved, mixed_qkv.stride(0), conv_state.stride(0),
        C=3 * heads * D, BLOCK=D, BLOCKS=blocks, IS_TIME_MAJOR=is_time_major(conv_state), num_warps=whole_head_warps(),
    )  # fmt: skip
    return convolved


def kda_recurrent(
    convolved: torch.Tensor,
    raw_g: torch.Tensor,
    raw_beta: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The recurrent step alone, from q, k and v that are convolved: updates `state` in place, returns o (T, heads, 128).

    Args:
        out: where o goes; a new tensor by default.

    Raises:
        ValueError: as `kda_decode`.
    """
    T, heads = _axes(convolved)
    _check(
        T, heads, convolved, convolved=convolved, raw_g=raw_g, raw_beta=raw_beta, A_log=A_log, dt_bias=dt_bias, state=state,
        state_indices=state_indices, out=out,
    )  # fmt: skip
    o = convolved.new_empty((T, heads, D)) if out is None else out
    tile = value_tile(T * heads)
    kda.kda_recurrent[(T * heads * (D // tile),)](
        convolved, raw_g, raw_beta, A_log, dt_bias, state, state_indices, o,
        convolved.stride(0), raw_g.stride(1), raw_beta.stride(1), state.stride(0), HEADS=heads, BV=tile, num_warps=1,
    )  # fmt: skip
    return o


def kda_gated_norm(
    o: torch.Tensor, g2: torch.Tensor, norm_weight: torch.Tensor, state_indices: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The gated norm alone: rmsnorm(o)*norm_weight*sigmoid(g2), (T, heads, 128), zero for padded tokens; into `out` if given.

    Raises:
        ValueError: as `kda_decode`.
    """
    T, heads = _check_norm(o, g2, norm_weight, state_indices, out)
    out = g2.new_empty((T, heads, D)) if out is None else out
    rows = norm_rows(T * heads)
    kda.kda_norm[(triton.cdiv(T * heads, rows),)](
        o, g2, norm_weight, state_indices, out, o.stride(0), g2.stride(0), T * heads,
        HEADS=heads, ROWS=rows, IS_RAGGED=T * heads % rows != 0, num_warps=1,
    )  # fmt: skip
    return out


def kda_gated_norm_eager(
    o: torch.Tensor, g2: torch.Tensor, norm_weight: torch.Tensor, state_indices: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """`kda_gated_norm` as the ten or so PyTorch operations that a model file writes, free of host synchronisation.

    Raises:
        ValueError: as `kda_decode`.
    """
    _check_norm(o, g2, norm_weight, state_indices, out)
    x = o.float()
    normed = x * torch.rsqrt(mean_square(x) + kda.NORM_EPSILON.value)
    gated = normed * norm_weight * g2.float().sigmoid()
    live = torch.where((state_indices > 0)[:, None, None], gated, 0.0)
    return live.to(o.dtype) if out is None else out.copy_(live)


def mean_square(x: torch.Tensor) -> torch.Tensor:
    """Of the last axis, which is kept; NaN where it is infinite, so that no norm shows zeros beside an infinity."""
    return x.square().mean(-1, keepdim=True).nan_to_num(nan=math.nan, posinf=math.nan)


def _check_norm(
    o: torch.Tensor, g2: torch.Tensor, norm_weight: torch.Tensor, state_indices: torch.Tensor, out: torch.Tensor | None
) -> tuple[int, int]:
    """T and heads of a norm. Raises ValueError."""
    if o.dim() != 3:
        raise refuse("kda_decode", f"o has shape {tuple(o.shape)}", f"give (T, heads, {D})")
    T, heads = o.shape[:2]
    _check(T, heads, o, o=o, g2=g2, norm_weight=norm_weight, state_indices=state_indices, out=out)
    return T, heads


def kda_decode_chain(
    mixed_qkv: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    raw_g: torch.Tensor,
    raw_beta: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    g2: torch.Tensor,
    norm_weight: torch.Tensor,
    out: torch.Tensor | None = None,
    norm: Callable[..., torch.Tensor] = kda_gated_norm,
) -> torch.Tensor:
    """`kda_decode` as its three steps, each a launch that hands its result on in the dtype of `mixed_qkv`.

    Args:
        norm: the last of them.

    Raises:
        ValueError: as `kda_decode`.
    """
    if (conv_state.dim(), state.dim()) == (3, 4):  # the steps refuse other axes, but each of them sees one state alone
        _check_same_slots(conv_state, state)
    convolved = kda_conv_update(mixed_qkv, conv_state, conv_weight, state_indices)
    o = kda_recurrent(convolved, raw_g, raw_beta, A_log, dt_bias, state, state_indices)
    return norm(o, g2, norm_weight, state_indices, out)


def kda_decode_chain_eager_norm(**tensors: torch.Tensor) -> torch.Tensor:
    """`kda_decode_chain` whose norm is PyTorch's. Raises ValueError."""
    return kda_decode_chain(**tensors, norm=kda_gated_norm_eager)


STATES = ("conv_state", "state")
RECURRENCE = ("raw_g", "raw_beta", "A_log", "dt_bias", "state", "state_indices")
STEP = ("mixed_qkv", "conv_state", "conv_weight", *RECURRENCE, "g2", "norm_weight")
"""The inputs that a whole step takes; those of its middle are `convolved` and RECURRENCE."""


def _layer(name: str, tensor: torch.Tensor, layer: int) -> torch.Tensor:
    """One layer of an input that has a layer axis."""
    if name == "state_indices":
        return tensor
    return tensor[:, layer] if name in STATES else tensor[layer]


def by_layer(launch: Callable[..., torch.Tensor], names: tuple[str, ...]) -> Callable[..., torch.Tensor]:
    """A variant of which `launch`, given the inputs `names` and `out`, is one layer; inputs without a layer axis are one layer."""

    def call(**inputs: torch.Tensor) -> torch.Tensor:
        if inputs["A_log"].dim() == 1:
            return launch(**{name: inputs[name] for name in names})
        layers, heads = inputs["A_log"].shape
        out = inputs["raw_g"].new_empty((layers, len(inputs["state_indices"]), heads, D))
        for i in range(layers):
            launch(**{name: _layer(name, inputs[name], i) for name in names}, out=out[i])
        return out

    return call


def convolve(mixed_qkv: torch.Tensor, older: torch.Tensor, conv_weight: torch.Tensor) -> torch.Tensor:
    """silu of the convolution, in fp64: mixed_qkv (..., T, 3*dim), its older inputs (..., T, 3*dim, 3), weight (..., 3*dim, 4)."""
    x = torch.cat([older.double(), mixed_qkv.double()[..., None]], dim=-1)
    return functional.silu((x * conv_weight.double()[..., None, :, :]).sum(-1))


def reference(
    mixed_qkv: torch.Tensor, conv_state: torch.Tensor, state: torch.Tensor, state_indices: torch.Tensor, A_log: torch.Tensor, **others: Any
) -> dict[str, torch.Tensor]:
    """The formula in fp64, for states of any dtype: `out`, `o` and the whole new `state` and `conv_state`; `convolved` is not used."""
    new = {"state": state.to(torch.float64, copy=True), "conv_state": conv_state.to(torch.float64, copy=True)}
    tensors = {"mixed_qkv": mixed_qkv, "state_indices": state_indices, "A_log": A_log, **others, **new}
    if A_log.dim() == 1:
        out, o = _reference_of_layer(**tensors)
    else:
        layers = [_reference_of_layer(**{name: _layer(name, t, i) for name, t in tensors.items()}) for i in range(len(A_log))]
        out, o = (torch.stack(of_layers) for of_layers in zip(*layers, strict=True))
    return {"out": out, "o": o, **new}


def _reference_of_layer(
    mixed_qkv: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    raw_g: torch.Tensor,
    raw_beta: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    g2: torch.Tensor,
    norm_weight: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`out` and `o` of one layer, whose fp64 states are updated in place."""
    heads = _axes(mixed_qkv)[1]
    convolved = convolve(mixed_qkv, conv_state[state_indices.clamp(min=0).long()], conv_weight)
    q, k, v = (x.unflatten(1, (heads, D)) for x in convolved.split(heads * D, dim=1))
    q, k = (x / torch.sqrt((x * x).sum(-1, keepdim=True) + kda.L2_EPSILON.value) for x in (q, k))
    gate = A_log.double().exp()[:, None] * (raw_g[0].double() + dt_bias.double().unflatten(0, (heads, D)))
    decay = torch.exp(kda.LOWER_BOUND.value * gate.sigmoid())
    beta = raw_beta[0].double().sigmoid()
    o = torch.zeros_like(v)
    for row, slot in enumerate(state_indices.tolist()):
        if slot > 0:
            S = state[slot]
            S *= decay[row, :, None, :]
            u = beta[row, :, None] * (v[row] - torch.einsum("hvk,hk->hv", S, k[row]))
            S += u[:, :, None] * k[row, :, None, :]
            o[row] = torch.einsum("hvk,hk->hv", S, q[row] * D**-0.5)
            conv_state[slot] = torch.cat([conv_state[slot, :, 1:], mixed_qkv[row, :, None].double()], dim=1)
    normed = o / torch.sqrt(mean_square(o) + kda.NORM_EPSILON.value)
    out = normed * norm_weight.double() * g2.double().sigmoid()
    return torch.where((state_indices > 0)[:, None, None], out, 0.0), o


def _token_inputs(case: Case, generator: Any) -> Inputs:
    """What a layer computes anew for each token, with a layer axis. A strided case takes tokens from wider buffers."""
    n, T, dim, padding = case.layers, case.T, case.heads * D, 64 * case.strided
    raw_g = generator.normal((n, 1, T, dim + padding), case.dtype)[..., :dim]
    return {
        "mixed_qkv": generator.uniform((n, T, 3 * dim + padding), case.dtype, -2.0, 2.0)[..., : 3 * dim],
        "raw_g": raw_g.unflatten(-1, (case.heads, D)),
        "raw_beta": generator.normal((n, 1, T, case.heads + padding), case.dtype)[..., : case.heads],
        "g2": generator.normal((n, T, dim + padding), case.dtype)[..., :dim].unflatten(-1, (case.heads, D)),
    }


def _of_case(case: Case, inputs: Inputs) -> Inputs:
    """Inputs without their layer axis where the case has one layer."""
    return inputs if case.layers > 1 else {name: _layer(name, tensor, 0) for name, tensor in inputs.items()}


def step_inputs(case: Case, generator: Any) -> Inputs:
    """What changes from token to token; `convolved`, which belongs to the state of the first, does not."""
    return _of_case(case, _token_inputs(case, generator))


def make_inputs(case: Case, generator: Any) -> Inputs:
    """Arguments of a call. Slot 0 is the null slot and one more belongs to no token; padded tokens are spread over the others.

    Every other padded token has index 0, the rest negative ones. The gate's parameters give a decay of 0.1 to 0.9999 a step, 0.9 in
    the middle, and the state is about as large as the recurrence keeps it. `convolved` is what the convolution gives.
    """
    n, dim, slots = case.layers, case.heads * D, case.T + 2
    state_indices = (generator.permutation(slots - 1) + 1)[: case.T].clone()
    for i in range(case.pad):
        state_indices[i * case.T // case.pad] = 0 if i % 2 else -1 - i
    tokens = _token_inputs(case, generator)
    padding = 64 * case.strided
    older = generator.uniform((slots, n, 3 * dim * (TAPS - 1) + padding), case.dtype)[..., : 3 * dim * (TAPS - 1)]
    is_transposed = case.layout == "time"
    conv_state = older.unflatten(-1, (TAPS - 1, 3 * dim)).mT if is_transposed else older.unflatten(-1, (3 * dim, TAPS - 1))
    conv_weight = generator.uniform((n, 3 * dim, TAPS))
    state = generator.uniform((slots, n, dim * D + padding), "fp32", -0.15, 0.15)[..., : dim * D]
    read = conv_state[state_indices.clamp(min=0).long()].movedim(1, 0)
    return _of_case(
        case,
        {
            **tokens,
            "conv_state": conv_state,
            "conv_weight": conv_weight,
            "A_log": generator.uniform((n, case.heads), "fp32", math.log(0.5), math.log(2.0)),
            "dt_bias": generator.uniform((n, dim), "fp32", -7.0, -2.0),
            "state": state.unflatten(-1, (case.heads, D, D)),
            "state_indices": state_indices,
            "norm_weight": generator.uniform((n, D), "fp32", 0.5, 1.5),
            "convolved": convolve(tokens["mixed_qkv"], read, conv_weight).to(tokens["mixed_qkv"].dtype),
        },
    )


def traffic(case: Case) -> Traffic:
    """A live token's inputs and states and each layer's weights, the indices once; the states and `out` written once."""
    live, io, dim = case.T - case.pad, ITEM_BYTES[case.dtype], case.heads * D
    states = live * dim * (3 * (TAPS - 1) * io + D * 4)
    token = (3 * dim + dim + case.heads + dim) * io
    weights = (3 * dim * TAPS + case.heads + dim + D) * 4
    return Traffic(
        read_bytes=case.layers * (live * token + weights + states) + case.T * 4, written_bytes=case.layers * (states + case.T * dim * io)
    )


def recurrent_traffic(case: Case) -> Traffic:
    """What of `traffic` is the recurrent step's: its inputs, with q, k and v convolved, and the recurrent states; o written once."""
    live, io, dim = case.T - case.pad, ITEM_BYTES[case.dtype], case.heads * D
    states = live * dim * D * 4
    token = (3 * dim + dim + case.heads) * io
    weights = (case.heads + dim) * 4
    return Traffic(
        read_bytes=case.layers * (live * token + weights + states) + case.T * 4, written_bytes=case.layers * (states + case.T * dim * io)
    )


def state_bytes(case: Case) -> int:
    """The recurrent states of live tokens, read and written: the model by which this step is published."""
    return case.layers * (case.T - case.pad) * case.heads * D * D * 4 * 2


def flops(case: Case) -> int:
    """Seven for each value of the live tokens' states (decay, S k, the update, S q); the work of vectors is left out."""
    return 7 * case.layers * (case.T - case.pad) * case.heads * D * D


TOLERANCE = {
    "fp32": Tolerance(1e-5, "fp32 arithmetic: sums over 128 keys and two exps of 2^-22 in the decay; 1.7e-7 seen", cosine=0.9999),
    "fp16": Tolerance(
        1.2e-3, "three times what storing q, k, v, o and the result in fp16 gives, 3.7e-4 in the chain; fused 2.1e-4 seen", cosine=0.9999
    ),
    "bf16": Tolerance(
        8e-3, "three times what storing q, k, v, o and the result in bf16 gives, 2.9e-3 in the chain; fused 1.8e-3 seen", cosine=0.9999
    ),
}
STATE_LIMITS = {"fp32": 2e-6, "fp16": 3e-4, "bf16": 2.5e-3}
"""By the case's dtype. fp32: one step of a decay that is off by 2^-22 is 2.3e-7; 6.9e-8 seen. fp16 and bf16: three times what storing
the chain's q, k and v gives in one step (1e-4 and 8.3e-4); `fused` stores none of them and is as near as in fp32."""

DRIFT = {
    "fp32": Tolerance(
        3e-6,
        "fp32 storage alone gives at most 7.5e-8, decays that are off by up to 2^-22 at random 3.6e-7, ones that are always off by that "
        "3.3e-6",
        tensors={"conv_state": 0.0},
        cosine=0.999999,
    ),
    "bf16": Tolerance(
        6.5e-3,
        "three times what storing the chain's q, k and v in bf16 gives, at most 2.2e-3 and a cosine of 0.999997; decay and the delta rule "
        "forget, so it does not grow",
        tensors={"conv_state": 0.0},
        cosine=0.9999,
    ),
}
"""By the case's dtype; the state itself is fp32 in both. Each figure from the fp64 reference with that one error, over 1000 steps."""


def tolerance(case: Case) -> Tolerance:
    """Outputs and the state by the case's dtype; the older inputs are copies."""
    return replace(TOLERANCE[case.dtype], tensors={"state": STATE_LIMITS[case.dtype], "conv_state": 0.0})


def _model_cases() -> Iterator[Case]:
    headline = {(12, 1), (12, 32), (96, 128)}
    for heads in (12, 96):
        for T in (1, 8, 32, 64, 128):
            tags = ["model", "peers", "headline" if (heads, T) in headline else "", "smoke" if (heads, T) == (12, 1) else ""]
            yield Case(T=T, heads=heads, dtype="bf16", tags=" ".join(tags))
    yield from Case.grid(T=(1, 8, 32, 64, 128), heads=12, layout="time", dtype="bf16", tags="model")
    yield from Case.grid(T=(1, 32, 128), heads=96, layout="time", dtype="bf16", tags="model")
    yield from Case.grid(T=(1, 32), heads=12, dtype=("fp32", "fp16"), tags="model")
    yield from Case.grid(T=(1, 32, 128), heads=12, layers=69, dtype="bf16", tags="model")
    yield from Case.grid(T=(1, 8, 128), heads=96, layers=69, dtype="bf16", tags="model")
    yield Case(T=32, heads=12, pad=5, dtype="bf16", tags="model")
    yield from Case.grid(T=32, heads=12, layout=("channel", "time"), strided=1, dtype="bf16", tags="model")
    yield Case(T=33, heads=5, pad=2, strided=1, dtype="bf16", tags="ragged")
    yield from Case.grid(T=4, heads=12, dtype=("fp32", "bf16"), tags="model drift")


def _small_cases() -> Iterator[Case]:
    """One option at a time, small enough for the interpreter."""
    yield Case(T=2, heads=2, dtype="bf16", tags="smoke cpu")
    yield Case(T=1, heads=2, layout="time", dtype="bf16", tags="cpu")
    yield Case(T=2, heads=1, dtype="fp32", tags="cpu")
    yield from Case.grid(T=1, heads=1, layout=("channel", "time"), dtype="fp16", tags="cpu")
    yield from Case.grid(T=3, heads=1, pad=2, dtype=("fp32", "bf16"), tags="cpu")
    yield Case(T=2, heads=1, pad=2, dtype="bf16", tags="cpu")
    yield from Case.grid(T=2, heads=1, layout=("channel", "time"), strided=1, dtype="bf16", tags="cpu")
    yield Case(T=2, heads=3, pad=1, strided=1, dtype="bf16", tags="ragged cpu")
    yield Case(T=1, heads=1, layers=2, dtype="bf16", tags="cpu")
    yield Case(T=2, heads=1, layout="time", layers=2, pad=1, strided=1, dtype="fp32", tags="cpu")
    yield from Case.grid(T=1, heads=1, dtype=("fp32", "bf16"), tags="drift cpu")


def _is_no_drift(case: Case) -> bool:
    return "drift" not in case.tags


def _is_no_interpreted_drift(case: Case) -> bool:
    return not {"drift", "cpu"} <= case.tags


KERNEL = Kernel(
    variants={
        "fused": Variant(by_layer(kda_decode, STEP)),
        # Its q, k and v belong to the first token's older inputs, and it moves none on: it takes one step.
        "recurrent": Variant(
            by_layer(kda_recurrent, ("convolved", *RECURRENCE)),
            outputs=("o",),
            mutates=("state",),
            cases=_is_no_drift,
            traffic=recurrent_traffic,
            activations=("convolved", "raw_g", "raw_beta"),
        ),
        # Ten programs a token are too many for a thousand interpreted steps.
        "chain": Variant(by_layer(kda_decode_chain, STEP), cases=_is_no_interpreted_drift),
        "chain_eager_norm": Variant(by_layer(kda_decode_chain_eager_norm, STEP), cases=_is_no_interpreted_drift),
    },
    default="fused",
    baseline="chain",
    axes=("T", "heads", "layout", "layers", "pad"),
    defaults={"layout": "channel", "layers": 1, "pad": 0},
    cases=[*_model_cases(), *_small_cases()],
    make_inputs=make_inputs,
    reference=reference,
    outputs=("out",),
    mutates=("state", "conv_state"),
    slots={"state": "state_indices", "conv_state": "state_indices"},
    null_slots=1,
    tolerance=tolerance,
    traffic=traffic,
    flops=flops,
    other_traffic={"state": state_bytes},
    drift=Drift(step_inputs=step_inputs, carry={"state": "state", "conv_state": "conv_state"}, tolerance=DRIFT),
    data="kimi-delta-step/1",
)
