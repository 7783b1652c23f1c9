"""What the engine asks of a device that it times: memory, captured graphs, marks on its clock, and the host's clock.

`TorchDevice` answers for a GPU; tests answer with a scripted device. The engine's code is the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Grid = tuple[int, int, int]
Call = Callable[[], Any]


@dataclass(frozen=True)
class Limits:
    """What bounds a measurement on one device.

    Args:
        last_level_cache_bytes: cache in front of the memory, from the device table and never from what the runtime reports.
        max_graph_nodes: nodes that one captured graph may hold.
        usable_memory_bytes: memory that the runtime hands out on an idle device.
        peak_gbps: the memory's published bandwidth, in 10**9 bytes per second.
        warm_up_s: seconds of work before the first timing of a launch, and after the device was idle.
    """

    last_level_cache_bytes: int
    max_graph_nodes: int
    usable_memory_bytes: int
    peak_gbps: float
    warm_up_s: float


class Graph(Protocol):
    """A captured sequence of calls."""

    @property
    def nodes(self) -> int:
        """Nodes in the graph: kernels, copies and fills."""

    @property
    def grids(self) -> tuple[Grid | None, ...]:
        """The grid of each kernel node, in the order of capture; None where the runtime does not tell."""

    def replay(self) -> None:
        """Enqueue every node once."""

    def release(self) -> None:
        """Drop the graph; it is not replayed again."""


class ProbeKernels(Protocol):
    """Kernels of the engine's own, by which floors, ceilings and canaries are taken. Each method gives a call that launches one."""

    def empty(self, grid: Grid) -> Call:
        """A kernel that does nothing."""

    def touch(self, grid: Grid, source: torch.Tensor, target: torch.Tensor) -> Call:
        """One load and one store a program, of line `program % lines`; `source` and `target` are fp32 (lines, TOUCH_STRIDE)."""

    def copies(self, source: torch.Tensor, target: torch.Tensor) -> Sequence[Call]:
        """Several ways to copy `source` to `target`, both int32 (n) with n a multiple of BLOCK_MULTIPLE."""

    def reads(self, source: torch.Tensor) -> Sequence[Call]:
        """Several ways to read all of `source`, int32 (n) with n a multiple of BLOCK_MULTIPLE, and write next to nothing."""

    def arithmetic(self) -> Call:
        """A fixed amount of arithmetic in registers, on every multiprocessor."""


class TimedDevice(Protocol):
    """A device with a clock of its own. Work is enqueued in order and runs in order."""

    @property
    def limits(self) -> Limits:
        """What bounds a measurement."""

    @property
    def kernels(self) -> ProbeKernels:
        """The engine's own kernels."""

    @property
    def torch_device(self) -> str:
        """Where tensors live, as torch names it."""

    def free_bytes(self) -> int:
        """Memory that can still be allocated."""

    def now_ns(self) -> int:
        """The host's monotonic clock."""

    def run(self, call: Call) -> Any:
        """Make a call eagerly and give what it returns."""

    def new_pool(self) -> Any:
        """A memory pool for graphs that are replayed in the order of their capture, never at once."""

    def capture(self, calls: Sequence[Call], pool: Any) -> Graph:
        """Capture calls in a graph; nothing runs until it is replayed, and what they return stays where it is."""

    @property
    def works_while_capturing(self) -> bool:
        """Whether `replay_beside` may be called from a call that is being captured."""

    def replay_beside(self, graph: Graph) -> None:
        """Replay a graph at once, and into no graph, from a call that is being captured."""

    def mark(self) -> Any:
        """Enqueue a mark on the device's clock."""

    def elapsed_us(self, begin: Any, end: Any) -> float:
        """Device time between two marks that were both reached, as the clock gives it: it may be negative."""

    def synchronize(self) -> None:
        """Wait until everything enqueued is done."""

    def release_memory(self) -> None:
        """Give memory that nothing holds back to the device."""


TOUCH_STRIDE = 64
"""fp32 elements between what two programs of the touch kernel touch: 256 bytes, more than a cache line everywhere."""

BLOCK_MULTIPLE = 1 << 16
"""int32 elements that every copy and read kernel's block divides."""
