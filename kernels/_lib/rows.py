"""What kernels over the rows of a matrix share: strides, access that is masked where a shape needs it, a norm's eps and launch plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from harness import DeviceProperties
from kernels._lib.arguments import refuse
from kernels._lib.numerics import rounded

ROW_LIMIT = 16384
"""Longest row that a norm keeps in registers: 32 fp32 values a thread in a block of 512 threads."""


@triton.jit
def load_block(p, mask, IS_MASKED: tl.constexpr):
    """A block at pointers `p`, zero where a mask is needed and unset."""
    return tl.load(p, mask=mask, other=0.0) if IS_MASKED else tl.load(p)


@triton.jit
def store_block(p, b, mask, IS_MASKED: tl.constexpr):
    """Store an fp32 block, rounded to what `p` points at."""
    if IS_MASKED:
        tl.store(p, rounded(b, p.dtype.element_ty), mask=mask)
    else:
        tl.store(p, rounded(b, p.dtype.element_ty))


def row_stride(matrix: torch.Tensor) -> int:
    """From one row of a matrix to the next; the length of a lone row, whose stride means nothing and must not cost it an alignment."""
    return matrix.stride(0) if matrix.shape[0] > 1 else matrix.shape[1]


def common_alignment(*strides: int) -> int:
    """The largest power of two, 16 at most, that divides every stride.

    A launcher that passes strides in this unit shows the compiler that rows start at vector boundaries, whatever their
    stride; Triton alone sees it for multiples of 16 only.
    """
    return math.gcd(16, *strides)


def check_eps(kernel: str, eps: float) -> None:
    """Refuse an eps that is no int or float, or not 0 or more. Raises ValueError."""
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not eps >= 0:
        raise refuse(kernel, f"eps={eps!r}", "give an int or float, 0 or more")


@dataclass(frozen=True)
class Plan:
    """How rows are spread: rows a program, a row's columns as chunks of a block, warps a program."""

    rows: int
    block: int
    chunks: int
    warps: int


def plan_rows(m: int, n: int, itemsize: int, device: DeviceProperties, loads: int = 4) -> Plan:
    """Choose a norm's launch for (m, n) rows of `itemsize` bytes a value, n at most ROW_LIMIT.

    Every lane loads 16 bytes at a time. Rows that one warp covers with one such load share it, up to `loads` a lane, and then
    warps share a program, each with rows of its own, as long as every multiprocessor keeps four programs. A longer row takes
    as many warps as leave each lane `loads`: more would have less to do between the same barriers, and a lone row waits for
    instructions, not for bytes.

    Args:
        loads: 16-byte loads of one tensor's rows that a lane has under way at once.
    """
    columns_of_warp = device.warp_size * 16 // itemsize
    if n <= columns_of_warp:
        block, programs = triton.next_power_of_2(n), 4 * device.multiprocessors
        rows = power_of_2_within(m // programs, loads * columns_of_warp // block)
        warps = power_of_2_within(m // (programs * rows), 4)
        return Plan(rows * warps, block, chunks=1, warps=warps)
    warps = power_of_2_within(triton.cdiv(n, columns_of_warp) // loads, 512 // device.warp_size)
    block = warps * columns_of_warp
    return Plan(1, block, triton.cdiv(n, block), warps)


def power_of_2_within(wanted: int, limit: int) -> int:
    """The largest power of two that is at most `wanted` and `limit`, and at least 1."""
    return 1 << (max(1, min(wanted, limit)).bit_length() - 1)
