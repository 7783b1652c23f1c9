"""The engine's own Triton kernels: nothing, one touch a program, copies, reads, arithmetic. Imports triton."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# A kernel's parameters are pointers and blocks, which Python has no types for.

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import triton
import triton.language as tl

from harness.measure.clock.device import TOUCH_STRIDE, Call, Grid
from harness.measure.compiles import in_cache

BLOCKS = ((4096, 4), (8192, 8), (16384, 8), (16384, 16))
"""(int32 elements a program, warps) among which the fastest copy and read is found."""
ARITHMETIC_BLOCKS = 8
"""Programs a multiprocessor."""
ARITHMETIC_STEPS = 20_000
"""Dependent multiply-adds a thread: at 4 cycles each, some 50 us."""


@triton.jit
def empty_kernel():
    """Nothing."""


@triton.jit
def touch_kernel(p_source, p_target, lines, STRIDE: tl.constexpr):
    """Loads one element of a line and stores it to another."""
    i = tl.program_id(0).to(tl.int64) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2).to(tl.int64))
    o = (i % lines) * STRIDE
    tl.store(p_target + o, tl.load(p_source + o))


@triton.jit
def copy_kernel(p_source, p_target, BLOCK: tl.constexpr):
    """Copies BLOCK elements a program."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_target + o, tl.load(p_source + o))


@triton.jit
def read_kernel(p_source, p_sink, BLOCK: tl.constexpr):
    """Reads BLOCK elements a program and stores their sum, without which the compiler would drop the loads."""
    i = tl.program_id(0)
    o = i.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_sink + i, tl.sum(tl.load(p_source + o)))


@triton.jit
def arithmetic_kernel(p_sink, steps, BLOCK: tl.constexpr):
    """A chain of `steps` multiply-adds a thread, in registers."""
    b = tl.arange(0, BLOCK).to(tl.float32)
    for _ in range(steps):
        b = b * 0.999 + 1.0
    tl.store(p_sink + tl.program_id(0), tl.sum(b))


class TritonProbes:
    """The kernels on the current GPU.

    Args:
        multiprocessors: of the GPU.
        torch_device: where their own small tensors live.
        cache: folder in which Triton keeps them; None: with the kernels of the variant in hand, each of which compiles them anew.
    """

    def __init__(self, multiprocessors: int, torch_device: str, cache: str | None = None) -> None:
        self._multiprocessors, self._torch_device, self._cache = multiprocessors, torch_device, cache

    def _own(self, call: Call) -> Call:
        """The call with the cache that all launches share."""
        return partial(in_cache, self._cache, call) if self._cache else call

    def empty(self, grid: Grid) -> Call:
        """A kernel that does nothing."""
        return self._own(empty_kernel[grid])

    def touch(self, grid: Grid, source: torch.Tensor, target: torch.Tensor) -> Call:
        """One load and one store a program."""
        return self._own(partial(touch_kernel[grid], source, target, source.shape[0], STRIDE=TOUCH_STRIDE))

    def copies(self, source: torch.Tensor, target: torch.Tensor) -> Sequence[Call]:
        """Several ways to copy, torch's among them."""
        own = [partial(copy_kernel[(source.numel() // block,)], source, target, BLOCK=block, num_warps=warps) for block, warps in BLOCKS]
        return [*map(self._own, own), partial(target.copy_, source)]

    def reads(self, source: torch.Tensor) -> Sequence[Call]:
        """Several ways to read."""
        sink = torch.empty(source.numel() // min(block for block, _ in BLOCKS), dtype=torch.int32, device=source.device)
        return [
            self._own(partial(read_kernel[(source.numel() // block,)], source, sink, BLOCK=block, num_warps=warps))
            for block, warps in BLOCKS
        ]

    def arithmetic(self) -> Call:
        """Multiply-adds on every multiprocessor."""
        grid = ARITHMETIC_BLOCKS * self._multiprocessors
        sink = torch.empty(grid, dtype=torch.float32, device=self._torch_device)
        return self._own(partial(arithmetic_kernel[(grid,)], sink, ARITHMETIC_STEPS, BLOCK=128, num_warps=4))
