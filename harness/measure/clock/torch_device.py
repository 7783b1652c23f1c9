"""A GPU through torch, NVIDIA and AMD alike: the device that cells are timed on.

Whatever tells the time is bound when this module is imported, so that code under test, imported later, cannot put its
own in place of it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from harness.devices.table import Device
from harness.measure.clock.device import Call, Graph, Grid, Limits
from harness.measure.clock.graph_nodes import count_nodes, read_grids
from harness.measure.memory import free_bytes

if TYPE_CHECKING:
    from harness.measure.clock.device import ProbeKernels

WARM_UP_S = {"cuda": 0.5, "hip": 1.0}

_now_ns = time.perf_counter_ns
_Event = torch.cuda.Event
_record = torch.cuda.Event.record
_elapsed_time = torch.cuda.Event.elapsed_time
_synchronize = torch.cuda.synchronize
_CudaGraph = torch.cuda.CUDAGraph
_capturing = torch.cuda.graph
_instantiate = torch.cuda.CUDAGraph.instantiate
_replay = torch.cuda.CUDAGraph.replay
_raw_graph = torch.cuda.CUDAGraph.raw_cuda_graph
_new_pool = torch.cuda.graph_pool_handle
_on_stream = torch.cuda.stream


class TorchGraph:
    """A captured graph; it keeps what its calls refer to alive."""

    def __init__(self, graph: torch.cuda.CUDAGraph, calls: Sequence[Call], backend: str) -> None:
        self._graph, self._calls, self._backend = graph, tuple(calls), backend
        self.nodes = count_nodes(_raw_graph(graph), backend)

    @property
    def grids(self) -> tuple[Grid | None, ...]:
        """The grid of each kernel node, read when asked for: of a single call, not of thousands."""
        return read_grids(_raw_graph(self._graph), self._backend)

    def replay(self) -> None:
        """Enqueue every node once."""
        _replay(self._graph)

    def release(self) -> None:
        """Drop the graph and what it keeps alive."""
        self._graph.reset()
        self._calls = ()


class TorchDevice:
    """The current GPU of this process.

    Args:
        row: its row of the device table, from which the limits come.
        engine_cache: folder in which Triton keeps the engine's own kernels; None: with those of the variant in hand.
    """

    torch_device = "cuda"

    def __init__(self, row: Device, engine_cache: str | None = None) -> None:
        self._backend = "hip" if torch.version.hip else "cuda"
        _, total = torch.cuda.mem_get_info()
        self.limits = Limits(
            last_level_cache_bytes=row.last_level_cache_bytes,
            max_graph_nodes=row.max_graph_nodes,
            usable_memory_bytes=min(row.usable_memory_bytes, total),
            peak_gbps=row.peak_gbps,
            warm_up_s=WARM_UP_S[self._backend],
        )
        self._stream = torch.cuda.current_stream()
        self._side_stream = torch.cuda.Stream()
        # Not tried on ROCm, and a capture that the runtime voids would void every cell: there the device idles, and is re-warmed.
        self.works_while_capturing = self._backend == "cuda"
        self._multiprocessors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self._engine_cache = engine_cache
        self._kernels: ProbeKernels | None = None

    @property
    def kernels(self) -> ProbeKernels:
        """The engine's own kernels."""
        if self._kernels is None:
            from harness.measure.clock.probe_kernels import TritonProbes

            self._kernels = TritonProbes(self._multiprocessors, self.torch_device, self._engine_cache)
        return self._kernels

    def free_bytes(self) -> int:
        """Memory that can still be allocated."""
        return free_bytes()

    def now_ns(self) -> int:
        """The host's monotonic clock."""
        return _now_ns()

    def run(self, call: Call) -> Any:
        """Make a call eagerly."""
        return call()

    def new_pool(self) -> Any:
        """A memory pool for graphs."""
        return _new_pool()

    def capture(self, calls: Sequence[Call], pool: Any) -> Graph:
        """Capture calls on a side stream; what they return stays in the pool.

        Raises:
            HarnessError: the driver does not tell what was captured.
        """
        graph = _CudaGraph(keep_graph=True)  # else the graph is gone before its nodes are counted and read
        with _capturing(graph, pool=pool, stream=self._side_stream):
            for call in calls:
                call()
        found = TorchGraph(graph, calls, self._backend)
        _instantiate(graph)
        return found

    def replay_beside(self, graph: Graph) -> None:
        """Replay a graph on the stream that is not captured."""
        with _on_stream(self._stream):
            graph.replay()

    def mark(self) -> Any:
        """Enqueue an event."""
        event = _Event(enable_timing=True)
        _record(event, self._stream)
        return event

    def elapsed_us(self, begin: Any, end: Any) -> float:
        """Time between two events."""
        return _elapsed_time(begin, end) * 1000

    def synchronize(self) -> None:
        """Wait for the device."""
        _synchronize()

    def release_memory(self) -> None:
        """Give cached memory back."""
        torch.cuda.empty_cache()
