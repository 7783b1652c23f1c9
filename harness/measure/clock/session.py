"""The clock of one launch: keeps the device warm, takes samples, and holds what is known of the unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from harness.measure.clock.canaries import LOOKS, check_canaries, take_canary
from harness.measure.clock.ceilings import Ceilings, measure_ceilings
from harness.measure.clock.device import Call, Graph, Grid, TimedDevice
from harness.measure.clock.estimate import is_accurate
from harness.measure.clock.facts import LeaseFacts
from harness.measure.clock.filling import Filling, measure_filling
from harness.measure.clock.floors import CellFloors, ClockFloors, grid_text, measure_cell, measure_clock
from harness.measure.clock.sampling import Sampled, Sampler
from harness.measure.clock.settings import ClockSettings
from harness.measure.clock.validity import InvalidTiming, Reason, check_elapsed, check_host_clock, check_samples

if TYPE_CHECKING:
    from harness.measure.clock.program import Program

REPLAYS_AT_A_TIME = 8
"""Replays that warming up enqueues before it waits."""
HOST_FLOORS = 3
"""How many times the host's floor a batch may differ from the device's clock: enqueueing, waiting, and being descheduled once."""


@dataclass(frozen=True)
class Batch:
    """Consecutive samples, with no gap between them.

    Args:
        samples: us a call.
        device_us: by the device's clock, from the first mark to the last.
        wall_us: by the host's clock, from before the first mark until all was done.
    """

    samples: tuple[float, ...]
    device_us: float
    wall_us: float


@dataclass
class ClockSession:
    """What measures inside one launch.

    Args:
        device: the device in hand.
        seed: from which every content of this launch is drawn; base and head of a pair share it.
        facts: what earlier launches of the lease found out about the unit; new findings are added to it.
        fault: why no number of this launch may be used, once that is known.
    """

    device: TimedDevice
    seed: int
    facts: LeaseFacts = field(default_factory=LeaseFacts)
    settings: ClockSettings = field(default_factory=ClockSettings)
    fault: InvalidTiming | None = None
    _busy_until_ns: int | None = None
    _evictions: tuple[Graph, ...] = ()
    _eviction_ns: float | None = None
    """What a replay of it takes; None where it has not been replayed yet."""

    def note_canary(self) -> None:
        """Take a canary and hold it against the lease's first; where it has moved at every look, no number of this launch may be used."""
        for look in range(1, LOOKS + 1):
            try:
                self.facts.canaries.append(take_canary(self))
                check_canaries(self.facts.canaries[0], self.facts.canaries[-1])
            except InvalidTiming as breach:
                if breach.reason is not Reason.CONTENDED or look == LOOKS:
                    self.fault = breach
                    return
                self._busy_until_ns = None  # as after idling: a whole warm-up lies before the next look
            else:
                return

    def know_unit(self) -> None:
        """Measure what holds for the unit whatever is timed, where no launch has yet: before the first cell, so that none comes between."""
        if self.fault is None:
            try:
                assert self.clock
                assert self.ceilings
                assert self.filling
            except InvalidTiming as breach:
                self.fault = breach

    @property
    def clock(self) -> ClockFloors:
        """The clock's tick and floors, measured when first asked for."""
        if self.facts.clock is None:
            self.facts.clock = measure_clock(self)
        return self.facts.clock

    @property
    def ceilings(self) -> Ceilings:
        """The unit's own bandwidth, measured when first asked for."""
        if self.facts.ceilings is None:
            self.facts.ceilings = measure_ceilings(self)
        return self.facts.ceilings

    @property
    def filling(self) -> Filling:
        """Whether filling the cache empties it, measured when first asked for."""
        if self.facts.filling is None:
            self.facts.filling = measure_filling(self)
        return self.facts.filling

    def floors(self, grids: Sequence[Grid]) -> CellFloors:
        """Floors of a call that launches kernels of these grids, measured when first asked for."""
        key = " ".join(map(grid_text, grids))
        if key not in self.facts.floors:
            self.facts.floors[key] = measure_cell(self, grids)
        return self.facts.floors[key]

    @property
    def least_sample_us(self) -> float:
        """How long a sample must be at least."""
        return self._least_us(self.settings.sample_us)

    @property
    def least_side_sample_us(self) -> float:
        """The same of a figure beside the main one, or of a proof."""
        return self._least_us(self.settings.side_sample_us)

    def _least_us(self, ours: float) -> float:
        clock, settings = self.clock, self.settings
        return max(settings.ticks_per_sample * clock.tick_us, settings.pairs_per_sample * clock.pair_us, ours)

    @property
    def eviction(self) -> Graph:
        """A graph that fills the cache with data of no interest."""
        return self.evictions(1)[0]

    def evictions(self, count: int) -> tuple[Graph, ...]:
        """So many graphs to replay in turn, each of which fills the cache with other data than the one before."""
        if not self._evictions:
            size = self.settings.cache_multiples * self.device.limits.last_level_cache_bytes // 4
            fillers = [torch.zeros(size, dtype=torch.float32, device=self.device.torch_device) for _ in range(2)]
            self._evictions = tuple(self.device.capture([partial(filler.fill_, 1.0)], self.device.new_pool()) for filler in fillers)
        return tuple(self._evictions[i % 2] for i in range(count))

    def keep_warm(self) -> None:
        """Work for the warm-up time where the device has done nothing yet in this launch; after an idle time of over 20 ms for
        as long as that was, at most for the warm-up time.

        What a unit loses by idling it has back after working as long: set-up between two figures idles it for a tenth of a
        second, and sampling begins only when windows of samples agree.
        """
        device = self.device
        whole = round(device.limits.warm_up_s * 1e9)
        idle = whole if self._busy_until_ns is None else min(whole, device.now_ns() - self._busy_until_ns)
        if idle > self.settings.idle_ns:
            graph, replays = self.eviction, 0
            begin = now = device.now_ns()
            while now < begin + idle:
                for _ in range(REPLAYS_AT_A_TIME):
                    graph.replay()
                device.synchronize()
                now, replays = device.now_ns(), replays + REPLAYS_AT_A_TIME
            self._eviction_ns = (now - begin) / replays
        self._busy_until_ns = device.now_ns()

    def capture(self, calls: Sequence[Call], pool: Any) -> Graph:
        """Capture calls in a graph. The device works meanwhile where it can: a host that captures thousands of calls would let it
        idle for as long, and warming it up again takes as long once more. Where it idled all the same it is warmed up as ever."""
        if self._eviction_ns is None or not self.device.works_while_capturing:
            return self.device.capture(calls, pool)
        self.keep_warm()
        graph = self.device.capture([partial(self._call_busily, call) for call in calls], pool)
        self.device.synchronize()
        self._busy_until_ns = min(self._busy_until_ns or 0, self.device.now_ns())
        return graph

    def _call_busily(self, call: Call) -> Any:
        """Make a call that is captured, on a device that has worked until lately, or is given work first.

        One that has idled for longer than needs no warming up is given none: it is warmed up when all is captured.
        """
        assert self._busy_until_ns is not None
        assert self._eviction_ns is not None
        now, settings = self.device.now_ns(), self.settings
        if settings.gap_ns < now - self._busy_until_ns <= settings.idle_ns:
            replays = max(1, round(settings.cover_ns / self._eviction_ns))
            for _ in range(replays):
                self.device.replay_beside(self.eviction)
            self._busy_until_ns = now + round(replays * self._eviction_ns)
        return call()

    def note_busy(self) -> None:
        """The device has worked until now: a gate, a fill, calls. Before the launch's warm-up that counts for nothing."""
        if self._busy_until_ns is not None:
            self._busy_until_ns = self.device.now_ns()

    def take(
        self,
        replays: Sequence[Graph],
        calls: int,
        count: int,
        prepare: Callable[[], None] | None = None,
        between: Sequence[Graph] = (),
    ) -> Batch:
        """Take consecutive samples. The device never idles between them, and runs one more sample before the first.

        That lead lets the host run ahead, so that no sample contains the time of enqueueing, and leaves in the cache
        what a sample in the middle would find there. Once the clock's floors are known, samples over which the device's and
        the host's clock disagree are taken once more: a host may stand still. `check_host` judges what is given.

        Args:
            replays: what one sample replays, in turn.
            calls: calls in a sample.
            count: how many samples.
            prepare: runs before, outside every sample.
            between: replayed in turn after each sample, outside it.

        Raises:
            InvalidTiming: negative_time or no_valid_samples.
        """
        batch = self._batch(replays, calls, count, prepare, between)
        if self.facts.clock is None:
            return batch
        try:
            self.check_host([batch])
        except InvalidTiming:
            batch = self._batch(replays, calls, count, prepare, between)
        return batch

    def _batch(
        self, replays: Sequence[Graph], calls: int, count: int, prepare: Callable[[], None] | None, between: Sequence[Graph]
    ) -> Batch:
        device = self.device
        self.keep_warm()
        if prepare is not None:
            prepare()
            device.synchronize()
        begin = device.now_ns()
        begins, ends = [device.mark()], []
        for _ in range(1 + count):
            for graph in replays:
                graph.replay()
            ends.append(device.mark())
            for graph in between:
                graph.replay()
            begins.append(device.mark() if between else ends[-1])
        device.synchronize()
        wall_us = (device.now_ns() - begin) / 1000
        self.note_busy()
        elapsed = [device.elapsed_us(a, b) for a, b in zip(begins[:-1], ends, strict=True)]
        check_elapsed(elapsed)
        return Batch(tuple(us / calls for us in elapsed[1:]), device.elapsed_us(begins[0], begins[-1]), wall_us)

    def take_cold(self, graph: Graph, calls: int, count: int, evictions: int = 1) -> list[float]:
        """Time single replays of a graph on an idle device, with everything evicted before each: us a call.

        Args:
            evictions: how often the cache is filled before each, with other data in turn.

        Raises:
            InvalidTiming: negative_time or no_valid_samples.
        """
        device = self.device
        self.keep_warm()
        elapsed: list[float] = []
        for _ in range(count):
            for eviction in self.evictions(evictions):
                eviction.replay()
            device.synchronize()
            begin = device.mark()
            graph.replay()
            end = device.mark()
            device.synchronize()
            elapsed.append(device.elapsed_us(begin, end))
        self.note_busy()
        check_elapsed(elapsed)
        return [us / calls for us in elapsed]

    def measure(
        self,
        program: Program,
        budget_s: float,
        prepare: Callable[[], None] | None = None,
        window: int | None = None,
        enough: Callable[[Sequence[float]], bool] = is_accurate,
    ) -> Sampled:
        """Take samples of a program until its time is known well enough, and hold the device's clock against the host's.

        Args:
            prepare: runs before each batch of samples, outside all.
            window: samples in each window of settling; the protocol's by default.
            enough: whether samples say well enough what a call takes.

        Raises:
            InvalidTiming: negative_time, no_valid_samples or host_clock.
        """
        batches: list[Batch] = []

        def take(count: int) -> tuple[float, ...]:
            batches.append(self.take(program.replays, program.calls, count, prepare, program.between))
            return batches[-1].samples

        sampled = self.sample(take, program.calls, budget_s, enough, window)
        self.check_host(batches)
        return sampled

    def check_host(self, batches: Sequence[Batch], tolerance: float | None = None) -> None:
        """Hold the device's clock against the host's over some batches, within the protocol's tolerance or another one.

        Raises:
            InvalidTiming: host_clock.
        """
        wall, device = sum(b.wall_us for b in batches), sum(b.device_us for b in batches)
        check_host_clock(wall, device, len(batches) * HOST_FLOORS * self.clock.host_us, tolerance or self.settings.host_tolerance)

    def sample(
        self,
        take: Callable[[int], Sequence[float]],
        calls: int,
        budget_s: float,
        enough: Callable[[Sequence[float]], bool] = is_accurate,
        window: int | None = None,
    ) -> Sampled:
        """Take samples of one figure until it is known well enough.

        Raises:
            InvalidTiming: no_valid_samples.
        """
        sampled = Sampler(take, calls, lambda: self.device.now_ns() * 1e-9, self.settings, enough, window).sample(budget_s)
        check_samples(sampled.samples)
        return sampled
