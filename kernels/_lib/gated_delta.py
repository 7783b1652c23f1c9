"""What the kernels of the packed gated delta step share: its gates and norms, the checks of its operands, and their content.

A call has B rows, H key heads and HV value heads, and a state of (V, K) for each value head, which a row finds by its slot:
mixed_qkv (B, 2*H*K + HV*V), a and b (B, HV), A_log and dt_bias (HV), state (slots, HV, V, K), state_indices (B).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional

from harness import Case, Inputs
from kernels._lib.arguments import FLOATS, INT32, ITEM_BYTES, check, refuse
from kernels._lib.numerics import softplus

EPSILON = tl.constexpr(1e-6)
LARGEST_K = 1024
GAP = 64
"""Values between the rows, and between the slots, of a strided case."""


@triton.jit
def log_gate(b_a, b_A_log, b_dt_bias):
    """The logarithm of the decay, -exp(A_log)*softplus(a + dt_bias); fp32."""
    return -tl.exp(b_A_log) * softplus(b_a + b_dt_bias)


@triton.jit
def unit(b_x):
    """A vector over its L2 norm, x/sqrt(sum(x^2) + 1e-6); fp32."""
    return b_x * tl.rsqrt(tl.sum(b_x * b_x, 0) + EPSILON)


@dataclass(frozen=True)
class Packed:
    """The axes of a call."""

    B: int
    H: int
    HV: int
    K: int
    V: int


def packed_axes(kernel: str, mixed_qkv: torch.Tensor, state: torch.Tensor) -> Packed:
    """The axes of a call: H follows from the width of mixed_qkv.

    Raises:
        ValueError: the shapes fit no H, HV is no multiple of it, or K is 0 or over LARGEST_K.
    """
    if mixed_qkv.dim() != 2 or state.dim() != 4:
        raise refuse(
            kernel,
            f"mixed_qkv has shape {tuple(mixed_qkv.shape)}, state {tuple(state.shape)}",
            "give mixed_qkv (B, 2*H*K + HV*V) and state (slots, HV, V, K)",
        )
    B, width = mixed_qkv.shape
    _, HV, V, K = state.shape
    if K == 0:
        raise refuse(kernel, f"state has shape {tuple(state.shape)}, so K=0", f"give keys of 1 to {LARGEST_K} values")
    H, rest = divmod(width - HV * V, 2 * K)
    if rest or H < 1:
        raise refuse(
            kernel,
            f"mixed_qkv has {width} columns, which are 2*H*K + HV*V for no H, with the state's HV={HV}, V={V}, K={K}",
            "pack q (H*K), k (H*K) and v (HV*V) in this order",
        )
    if HV % H:
        raise refuse(kernel, f"HV={HV} is no multiple of H={H}", "every key head serves HV/H value heads, so choose HV as a multiple of H")
    if K > LARGEST_K:
        raise refuse(kernel, f"K={K}", f"a row of the state must fit the registers of one warp, so K is at most {LARGEST_K}")
    return Packed(B, H, HV, K, V)


def check_packed(
    kernel: str,
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    state_dtypes: Sequence[torch.dtype] = FLOATS,
) -> Packed:
    """The axes of a call whose shapes, dtypes, strides and devices are those that the packed step takes.

    Raises:
        ValueError: they are others.
    """
    n = packed_axes(kernel, mixed_qkv, state)
    io, fp32 = (mixed_qkv.dtype,), (torch.float32,)
    for name, tensor, shape, dtypes in (
        ("mixed_qkv", mixed_qkv, mixed_qkv.shape, FLOATS),
        ("a", a, (n.B, n.HV), io),
        ("b", b, (n.B, n.HV), io),
        ("A_log", A_log, (n.HV,), fp32),
        ("dt_bias", dt_bias, (n.HV,), fp32),
        ("state_indices", state_indices, (n.B,), INT32),
    ):
        if tensor.device != state.device:
            raise refuse(kernel, f"{name} is on {tensor.device}, state on {state.device}", "move them to one device")
        check(kernel, name, tensor, shape, dtypes, state.device)
    check_slots(kernel, "state", state, state.shape, state_dtypes, state.device)
    return n


def check_slots(
    kernel: str, name: str, tensor: torch.Tensor, shape: Sequence[int], dtypes: Sequence[torch.dtype], device: torch.device
) -> None:
    """Refuse a tensor of another shape, dtype or device, or whose slots, along its first axis, are not contiguous or overlap.

    Raises:
        ValueError: as said.
    """
    check(kernel, name, tensor, shape, dtypes, device)
    if not tensor[:1].is_contiguous() or (tensor.shape[0] > 1 and tensor.stride(0) < math.prod(tensor.shape[1:])):
        raise refuse(kernel, f"{name} has strides {tensor.stride()}", "each slot must be contiguous, only the slots may lie apart")


def split_packed(mixed_qkv: torch.Tensor, n: Packed) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k (B, H, K) and v (B, HV, V)."""
    q, k, v = mixed_qkv.split((n.H * n.K, n.H * n.K, n.HV * n.V), dim=1)
    return q.reshape(n.B, n.H, n.K), k.reshape(n.B, n.H, n.K), v.reshape(n.B, n.HV, n.V)


def unit_rows(x: torch.Tensor) -> torch.Tensor:
    """`unit` of each vector along the last axis, in the tensor's dtype."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPSILON.value)


def log_gates(a: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`log_gate` in one dtype: (B, HV)."""
    return -A_log.to(dtype).exp() * functional.softplus(a.to(dtype) + dt_bias.to(dtype))


@dataclass(frozen=True)
class Rows:
    """What PyTorch operations gather and scatter for the rows of a call, without asking the device which rows are live.

    There must be a slot: where there is none all rows are padded, and nothing is gathered.

    A padded row has no slot of its own, and a boolean index would wait for the device: it repeats what the first live row
    writes, or, where none is live, writes back what is there.

    Args:
        live: which rows are not padded (B).
        source: the row that each row repeats, itself where it is live (B).
        slots: the slot that each row writes (B).
    """

    live: torch.Tensor
    source: torch.Tensor
    slots: torch.Tensor

    @staticmethod
    def of(state_indices: torch.Tensor) -> Rows:
        """The rows of a call that has at least one."""
        live = state_indices >= 0
        source = torch.where(live, torch.arange(len(live), device=live.device), live.int().argmax())
        return Rows(live, source, state_indices.clamp(min=0)[source])

    def write(self, tensor: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> None:
        """Put each live row's `new`, rounded to the tensor's dtype, into its slot; `old` is what was in the rows' slots."""
        wanted = self.live[self.source].reshape(-1, *[1] * (tensor.dim() - 1))
        tensor[self.slots] = torch.where(wanted, new.to(tensor.dtype)[self.source], old)


def draw_step(case: Case, generator: Any, spread: float) -> Inputs:
    """mixed_qkv, a and b of one token, q and k within +-spread. A strided case takes rows from wider buffers."""
    padding = GAP * case.strided
    qk = generator.uniform((case.B, 2 * case.H * case.K), case.dtype, -spread, spread)
    v = generator.uniform((case.B, case.HV * case.V + padding), case.dtype)
    gates = generator.normal((2, case.B, case.HV + padding), case.dtype)[:, :, : case.HV]
    return {"mixed_qkv": torch.cat([qk, v], dim=1)[:, : 2 * case.H * case.K + case.HV * case.V], "a": gates[0], "b": gates[1]}


def draw_slots(case: Case, generator: Any) -> torch.Tensor:
    """state_indices for B + 1 slots: one slot belongs to no row, and neither do those of padded rows, which are spread over the batch."""
    state_indices = generator.permutation(case.B + 1)[: case.B].clone()
    for i in range(case.pad):
        state_indices[i * case.B // case.pad] = -1 - i
    return state_indices


def draw_slotted(case: Case, generator: Any, shape: Sequence[int], dtype: str, bound: float = 1.0) -> torch.Tensor:
    """A tensor (B + 1, *shape), uniform within +-bound. The slots of a strided case lie apart."""
    values = math.prod(shape)
    drawn = generator.uniform((case.B + 1, values + GAP * case.strided), dtype, -bound, bound)
    return drawn[:, :values].unflatten(1, tuple(shape))


def draw_parameters(case: Case, generator: Any) -> Inputs:
    """A_log and dt_bias in the ranges of trained layers.

    exp(A_log) is 1 to 16, softplus(dt_bias) 0.001 to 0.1, which gives a decay of 0.2 to 0.999 a step.
    """
    return {
        "A_log": generator.uniform((case.HV,), "fp32", 0.0, math.log(16.0)),
        "dt_bias": generator.uniform((case.HV,), "fp32", -6.9, -2.25),
    }


def packed_bytes(case: Case) -> int:
    """Bytes of what every call reads beside slots: the live rows' q, k, v, a and b, A_log, dt_bias and all indices."""
    row = 2 * case.H * case.K + case.HV * case.V + 2 * case.HV
    return (case.B - case.pad) * row * ITEM_BYTES[case.dtype] + 2 * case.HV * 4 + case.B * 4
