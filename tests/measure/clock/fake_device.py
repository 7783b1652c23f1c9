"""A scripted device: torch operations on the CPU are its kernels, and its clock follows a script, not the host.

Capturing records operations without letting them take effect; replaying makes them again, in the same memory. The time
of an operation is a launch, plus its bytes over the memory's or the cache's bandwidth, where a cache of the scripted size
with least-recently-used replacement decides which. Faults are scripted too.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from harness.measure.clock.device import Call, Grid, Limits

ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
GARBAGE = 0x3C
"""Byte that fills what a captured operation has not computed yet."""


@dataclass
class Script:
    """How the device behaves. Times in us, bandwidths in 10**9 bytes per second."""

    cache_bytes: int = 16 << 10
    claimed_cache_bytes: int | None = None
    """What the device table says of the cache, where it is not the truth."""
    keeps_oldest: bool = False
    """Whether a full cache drops what comes last, as it does where a kernel asks for what it loads to be evicted first."""
    max_graph_nodes: int = 2000
    memory_bytes: int = 8 << 20
    warm_up_s: float = 0.005
    bandwidth_gbps: float = 1.0
    cache_gbps: float = 4.0
    launch_us: float = 0.7
    graph_gap_us: float = 1.0
    mark_us: float = 1.0
    enqueue_us: float = 5.0
    wait_us: float = 5.0
    tick_us: float = 0.032
    jitter: float = 0.0
    cost_us: Callable[[Operation], float | None] = lambda operation: None
    """The time of one operation, where it is not what its bytes say."""
    slowdown: Callable[[int], float] = lambda replays: 1.0
    """Factor on the time of every operation, by the number of replays since the start."""
    replay_computes: Callable[[int], bool] = lambda replays: True
    """Whether a replay has any effect, by the number of replays since the start."""
    pause_us: Callable[[int], float] = lambda waits: 0.0
    """For how long the host stands still after it has waited, by the number of waits since the start."""
    clock_divisor: float = 1.0
    elapsed: Callable[[int, float], float] = lambda reading, us: us
    """What the clock says: of the number of the reading and the true time."""


@dataclass
class Operation:
    """One kernel launch: what it computes, and the memory that it touches, as (address, bytes)."""

    compute: Callable[[], None]
    tensors: tuple[torch.Tensor, ...] = ()
    grid: Grid = (1, 1, 1)
    fixed_us: float | None = None
    touched: tuple[tuple[int, int], ...] = field(init=False)

    def __post_init__(self) -> None:
        self.touched = tuple({t.data_ptr(): _extent(t) for t in self.tensors if t.numel()}.items())


def _extent(tensor: torch.Tensor) -> int:
    return (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))) * tensor.element_size()


class Recorder(TorchDispatchMode):
    """Turns torch operations into `Operation`s: made at once by `eager`, else only when they are replayed."""

    def __init__(self, *, eager: bool) -> None:
        super().__init__()
        self.eager = eager
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense" and not self.eager:
            raise RuntimeError("a graph is being captured: the host cannot read a tensor")
        given = tuple(a for a in [*args, *kwargs.values()] if isinstance(a, torch.Tensor))
        if func._schema.is_mutable:
            return self._mutating(func, args, kwargs, given)
        made = func(*args, **kwargs)
        outputs = tuple(t for t in (made if isinstance(made, tuple | list) else (made,)) if isinstance(t, torch.Tensor))
        storages = {t.untyped_storage().data_ptr() for t in given}
        if name in ALLOCATIONS or not outputs or all(t.untyped_storage().data_ptr() in storages for t in outputs):
            return made

        def compute() -> None:
            again = func(*args, **kwargs)
            for target, value in zip(outputs, again if isinstance(again, tuple | list) else (again,), strict=True):
                target.copy_(value)

        self.operations.append(Operation(compute, (*given, *outputs), grid=(max(1, outputs[0].numel() // 128), 1, 1)))
        if not self.eager:
            for tensor in outputs:
                tensor.view(torch.uint8).fill_(GARBAGE) if tensor.is_contiguous() and tensor.dim() else tensor.zero_()
        return made

    def _mutating(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: tuple[torch.Tensor, ...]) -> Any:
        def compute() -> None:
            func(*args, **kwargs)

        self.operations.append(Operation(compute, given, grid=(max(1, given[0].numel() // 128), 1, 1)))
        if self.eager:
            return func(*args, **kwargs)
        bound = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | kwargs
        written = [bound[a.name] for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
        return None if not func._schema.returns else written[0] if len(written) == 1 else tuple(written)


class FakeGraph:
    """Recorded operations."""

    def __init__(self, device: FakeDevice, operations: Sequence[Operation], calls: Sequence[Call]) -> None:
        self._device, self._operations, self._calls = device, tuple(operations), tuple(calls)

    @property
    def nodes(self) -> int:
        return len(self._operations)

    @property
    def grids(self) -> tuple[Grid | None, ...]:
        return tuple(operation.grid for operation in self._operations)

    def replay(self) -> None:
        self._device.replay(self._operations)

    def release(self) -> None:
        self._operations = self._calls = ()


@dataclass
class FakeDevice:
    """The device, its cache and both clocks (us since the start)."""

    script: Script = field(default_factory=Script)
    torch_device: str = "cpu"
    works_while_capturing: bool = True
    replays: int = 0
    captured: list[int] = field(default_factory=list)
    """Nodes of every graph that was captured."""
    _host_us: float = 1000.0
    _device_us: float = 0.0
    _readings: int = 0
    waits: int = 0
    _cache: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _held: int = 0
    _recorder: Recorder | None = None
    _random: random.Random = field(default_factory=lambda: random.Random(20))

    @property
    def limits(self) -> Limits:
        s = self.script
        return Limits(s.claimed_cache_bytes or s.cache_bytes, s.max_graph_nodes, s.memory_bytes, 2 * s.bandwidth_gbps, s.warm_up_s)

    @property
    def kernels(self) -> FakeDevice:
        return self

    def free_bytes(self) -> int:
        return self.script.memory_bytes

    def now_ns(self) -> int:
        self._host_us += 0.05
        return round(self._host_us * 1000)

    def run(self, call: Call) -> Any:
        with self._recording(eager=True) as recorder:
            returned = call()
        for operation in recorder.operations:
            self._host_us += self.script.enqueue_us
            self._device_us = max(self._device_us, self._host_us) + self._time(operation)
        return returned

    def new_pool(self) -> object:
        return object()

    def capture(self, calls: Sequence[Call], pool: Any) -> FakeGraph:
        with self._recording(eager=False) as recorder:
            for call in calls:
                call()
        self.captured.append(len(recorder.operations))
        self._host_us += 50_000.0
        return FakeGraph(self, recorder.operations, calls)

    def replay(self, operations: Sequence[Operation]) -> None:
        self.replays += 1
        self._host_us += self.script.enqueue_us
        noise = 1 + self.script.jitter * self._random.gauss(0, 1)
        factor = self.script.slowdown(self.replays) * noise
        self._device_us = max(self._device_us, self._host_us) + self.script.graph_gap_us
        for operation in operations:
            if self.script.replay_computes(self.replays):
                operation.compute()
            self._device_us += factor * self._time(operation)

    def replay_beside(self, graph: FakeGraph) -> None:
        with _disable_current_modes():
            graph.replay()

    def mark(self) -> float:
        self._host_us += 0.2
        self._device_us = max(self._device_us, self._host_us) + self.script.mark_us
        return self._device_us

    def elapsed_us(self, begin: float, end: float) -> float:
        tick = self.script.tick_us
        true = (round(end / tick) - round(begin / tick)) * tick
        self._readings += 1
        return self.script.elapsed(self._readings, true / self.script.clock_divisor)

    def synchronize(self) -> None:
        self._host_us = max(self._host_us, self._device_us) + self.script.wait_us + self.script.pause_us(self.waits)
        self.waits += 1

    def release_memory(self) -> None:
        self._cache.clear()
        self._held = 0

    def sleep_us(self, us: float) -> None:
        """Let the host do nothing."""
        self._host_us += us

    def empty(self, grid: Grid) -> Call:
        return lambda: self._emit(Operation(lambda: None, grid=grid, fixed_us=self.script.launch_us))

    def touch(self, grid: Grid, source: torch.Tensor, target: torch.Tensor) -> Call:
        return lambda: self._emit(Operation(lambda: None, (source, target), grid))

    def copies(self, source: torch.Tensor, target: torch.Tensor) -> Sequence[Call]:
        return [lambda: target.copy_(source)]

    def reads(self, source: torch.Tensor) -> Sequence[Call]:
        return [lambda: self._emit(Operation(lambda: None, (source,)))]

    def arithmetic(self) -> Call:
        return lambda: self._emit(Operation(lambda: None, fixed_us=50.0))

    def _emit(self, operation: Operation) -> None:
        assert self._recorder is not None, "probe kernels are captured, or run by the device"
        self._recorder.operations.append(operation)

    def _recording(self, *, eager: bool) -> _Recording:
        return _Recording(self, Recorder(eager=eager))

    def _time(self, operation: Operation) -> float:
        cold = warm = 0
        for address, size in operation.touched:
            known = self._cache.pop(address, None)
            self._held += size - (known or 0)
            if known is None:
                cold += size
            else:
                warm += size
            self._cache[address] = size
        while self._held > self.script.cache_bytes:
            self._held -= self._cache.popitem(last=self.script.keeps_oldest)[1]
        scripted = operation.fixed_us if operation.fixed_us is not None else self.script.cost_us(operation)
        if scripted is not None:
            return scripted
        return self.script.launch_us + cold / (self.script.bandwidth_gbps * 1e3) + warm / (self.script.cache_gbps * 1e3)


class _Recording:
    def __init__(self, device: FakeDevice, recorder: Recorder) -> None:
        self.device, self.recorder = device, recorder

    def __enter__(self) -> Recorder:
        self.device._recorder = self.recorder
        return self.recorder.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.device._recorder = None
        self.recorder.__exit__(*error)
