"""Kernels of known cost, by the timer that a GPU lets its kernels read; and a marker for profilers. Imports triton.

Tried on NVIDIA. On AMD the code is the same but for the timer, and has not been tried.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# A kernel's parameters are pointers and blocks, which Python has no types for.

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from harness.measure.clock.device import Call

NS_PER_COUNT = {"cuda": 1.0, "hip": 10.0}
"""NVIDIA's %globaltimer counts nanoseconds (PTX ISA, special registers); AMD's s_memrealtime counts at 100 MHz on CDNA (MI300 ISA)."""
READS = 20_000
"""Readings of the timer among which its resolution is found."""


@triton.jit(do_not_specialize=["counts"])
def spin_kernel(p_passed, counts, now: tl.constexpr):
    """Reads the timer until `counts` have passed, and stores how many had when it stopped."""
    start = now()
    passed = now() - start
    while passed < counts:
        passed = now() - start
    tl.store(p_passed, passed)


@triton.jit(do_not_specialize=["reads"])
def resolution_kernel(p_least, reads, now: tl.constexpr):
    """Stores the smallest step, other than none, between two readings of the timer."""
    before = now()
    least = before * 0 + 1_000_000_000
    for _ in range(reads):
        after = now()
        step = after - before
        least = tl.where(step > 0, tl.minimum(step, least), least)
        before = after
    tl.store(p_least, least)


@triton.jit
def marker_kernel():
    """Nothing; a profiler's output is told apart by its grid."""


class TritonKnown:
    """The kernels on the current GPU."""

    def __init__(self) -> None:
        backend = "hip" if torch.version.hip else "cuda"
        self.ns_per_count = NS_PER_COUNT[backend]
        self._now = tl.extra.hip.memrealtime if backend == "hip" else tl.extra.cuda.globaltimer

    def resolution(self, least: torch.Tensor) -> Call:
        """Find the timer's smallest step, in counts: `least` is int64 (1)."""
        return partial(resolution_kernel[(1,)], least, READS, self._now, num_warps=1)

    def spin(self, counts: int, passed: torch.Tensor) -> Call:
        """Spin until `counts` have passed; how many did is written to `passed`, int64 (1), aligned to 16 bytes."""
        return partial(spin_kernel[(1,)], passed, counts, self._now, num_warps=1)
