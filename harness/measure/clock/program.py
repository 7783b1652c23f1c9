"""A program: calls over a ring, and moves of a cycle's cursor, captured in graphs that are replayed in turn."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from harness.authoring.model import Cycle, Inputs
from harness.errors import HarnessError
from harness.measure.clock.content import group
from harness.measure.clock.device import Call, Graph, Grid, TimedDevice
from harness.measure.clock.ring import fit_repetitions, split
from harness.measure.clock.slots import SlotRing
from harness.measure.clock.validity import InvalidTiming, Reason
from harness.measure.extents import returned_bytes
from harness.measure.subject import Subject

if TYPE_CHECKING:
    from harness.measure.clock.session import ClockSession

ADVANCE = None
"""The step that moves the cursor of every slot; every other step is the slot that is called on."""
Step = int | None


@dataclass(frozen=True)
class Shape:
    """What a record says of a program.

    Args:
        slots: how many it calls on.
        nodes: of all its graphs; None where nothing was captured.
        evictions: how often the cache is filled between two samples.
    """

    slots: int
    nodes: int | None
    evictions: int


@dataclass
class Program:
    """Captured steps.

    Args:
        graphs: replayed in turn.
        repeats: how often they are replayed for one sample.
        steps: what one replay of the graphs does.
        between: replayed in turn between two samples, outside both.
        outputs: what the last captured call on each slot returned.
    """

    graphs: tuple[Graph, ...]
    repeats: int
    steps: tuple[Step, ...]
    outputs: dict[int, Any] = field(default_factory=dict)
    between: tuple[Graph, ...] = ()

    @property
    def replays(self) -> tuple[Graph, ...]:
        """The graphs of one sample."""
        return self.graphs * self.repeats

    @property
    def calls(self) -> int:
        """Calls in one sample."""
        return sum(step is not ADVANCE for step in self.steps) * self.repeats

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots that are called on, each once."""
        return tuple(dict.fromkeys(step for step in self.steps if step is not ADVANCE))

    @property
    def nodes(self) -> int:
        """Nodes of all graphs."""
        return sum(graph.nodes for graph in self.graphs)

    @property
    def shape(self) -> Shape:
        """What a record says of it."""
        return Shape(len(self.slots), self.nodes, len(self.between))

    def replay(self) -> None:
        """Replay every graph once."""
        for graph in self.graphs:
            graph.replay()

    def release(self) -> None:
        """Drop the graphs and what they hold."""
        for graph in self.graphs:
            graph.release()
        self.graphs = ()
        self.outputs.clear()


@dataclass
class Bench:
    """One cell set up for timing: its ring, and how its calls are captured.

    Args:
        ring: inputs of every slot.
        slots: how many of them make the cold ring; further ones are there to double it.
        scratch: one more slot, for eager calls beside the graphs.
        contents: seeds of the distinct contents of the ring.
        pool: memory that all its graphs share.
        probes: graphs of one call and of one move; a pool lives as long as one of its graphs does, so they stay to the end.
        programs: everything captured.
        nodes: nodes of one call.
        advance_nodes: nodes of one move of the cursor.
        grids: the grid of each kernel of one call.
        output_bytes: of what one call returns.
        data_hash: hash of the ring's first content.
    """

    subject: Subject
    session: ClockSession
    ring: SlotRing
    scratch: SlotRing
    slots: int
    contents: tuple[int, ...]
    pool: Any
    probes: list[Graph] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    nodes: int = 0
    advance_nodes: int = 0
    grids: tuple[Grid | None, ...] = ()
    output_bytes: int = 0
    data_hash: str = ""

    @property
    def device(self) -> TimedDevice:
        """The device that times it."""
        return self.session.device

    @property
    def cycle(self) -> Cycle | None:
        """The kernel's cycle, where the case has more than one phase: else its calls are all alike, and the cursor is held."""
        cycle = self.subject.kernel.cycle
        return cycle if cycle and cycle.length(self.subject.case) > 1 else None

    @property
    def cycle_length(self) -> int:
        """Steps in a whole cycle; 1 for a kernel without."""
        return self.cycle.length(self.subject.case) if self.cycle else 1

    @property
    def changing(self) -> frozenset[str]:
        """Inputs that calls or the cursor's moves change, as far as the case has them."""
        mutated = {name for name in self.subject.variant.mutates or () if isinstance(self.scratch.inputs(0).get(name), torch.Tensor)}
        return frozenset(mutated | ({self.cycle.cursor} if self.cycle else set()))

    def reset(self) -> None:
        """Give every slot the content it began with, in what calls change."""
        if self.changing:
            self.ring.fill(self.contents, self.subject, self.changing)

    def restore(self, slot: int) -> None:
        """Give one slot all of the content it began with."""
        self.ring.load(slot, self.subject.inputs(self.contents[slot % len(self.contents)]))

    def call(self, slot: int) -> Call:
        """The call of the variant on one slot, as a user makes it."""
        return functools.partial(self.subject.variant.call, **self.ring.inputs(slot))

    def advance(self) -> Call:
        """The move of every slot's cursor by one step."""
        assert self.cycle is not None
        name = self.cycle.cursor
        inputs = {**self.ring.inputs(0), name: self.ring.everywhere(name)}
        return functools.partial(self.cycle.advance, inputs)

    def prepare(self) -> None:
        """Compile everything by eager calls, then count what one call captures.

        Raises:
            InvalidTiming: not_capturable, or kernel_count where a captured call launches nothing.
            HarnessError: the cursor shares its memory with other inputs.
        """
        device = self.device
        self.scratch.load(0, self.subject.inputs(self.contents[0]))
        self._check_cursor()
        call = functools.partial(self.subject.variant.call, **self.scratch.inputs(0))
        for _ in range(2):  # a first call may tune itself, and then launches other kernels
            returned = device.run(call)
        device.synchronize()
        values = returned if isinstance(returned, tuple) else (returned,)
        self.output_bytes = returned_bytes(values)
        self._probe(call)
        self.nodes, self.grids = self.probes[-1].nodes, self.probes[-1].grids
        if self.nodes == 0:
            raise InvalidTiming(Reason.KERNEL_COUNT, "a captured call launches nothing: its answer is remembered, or made by the host")
        if self.cycle is not None:
            advance = self.advance()
            device.run(advance)
            self._probe(advance)
            self.advance_nodes = self.probes[-1].nodes
            self.reset()

    def _probe(self, call: Call) -> None:
        try:
            self.probes.append(self.session.capture([call], self.pool))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            found = " ".join(str(error).split())[:200]
            raise InvalidTiming(
                Reason.NOT_CAPTURABLE, f"a call cannot be captured in a graph, which times it without the host: {found}"
            ) from error

    def _check_cursor(self) -> None:
        if self.cycle is None:
            return
        name = self.cycle.cursor
        shared = next((g.names for g in group(self.scratch.inputs(0), self.subject.torch_device) if name in g.names), frozenset())
        if shared != {name}:
            raise HarnessError(
                f"advance the cursor {name!r} of {self.subject.cell}",
                f"it shares memory with {', '.join(sorted(shared - {name})) or 'nothing, and is no tensor on the device'}",
                "give the cursor a tensor of its own in make_inputs",
            )

    @property
    def one_pass(self) -> tuple[Step, ...]:
        """One call on each slot of the ring."""
        return tuple(range(self.slots))

    def pass_over(self, slots: int) -> tuple[Step, ...]:
        """One call on each of `slots` slots; for a kernel with a cycle, a whole one: in each of its steps those calls, then one
        move of all cursors.

        The move is one operation for the whole ring, so that a call carries only its small share of it.
        """
        calls = tuple(range(slots))
        return (*calls, ADVANCE) * self.cycle_length if self.cycle else calls

    def capture(self, steps: Sequence[Step], repetitions: int = 1, shared: Inputs | None = None, evictions: int = 0) -> Program:
        """Capture steps so that one sample does them `repetitions` times, within the device's cap on nodes.

        Args:
            shared: inputs that every call is given instead of its slot's own; what it returns is dropped then.
            evictions: how often the cache is filled between two samples, each time with other data.

        Raises:
            InvalidTiming: kernel_count, where the graphs hold other nodes than as many single calls.
        """
        per_step = [self.advance_nodes if step is ADVANCE else self.nodes for step in steps]
        captured, repeats = fit_repetitions(repetitions, sum(per_step), self.device.limits.max_graph_nodes)
        program = Program((), repeats, tuple(steps) * captured, between=self.session.evictions(evictions))
        calls = [
            self.advance() if step is ADVANCE else self._keeping(step, program) if shared is None else self._dropping(step, shared)
            for step in program.steps
        ]
        return self.capture_calls(program, calls, per_step * captured)

    def capture_calls(self, program: Program, calls: Sequence[Call], nodes: Sequence[int]) -> Program:
        """Capture the calls of a program, of which each is known to have so many nodes.

        Raises:
            InvalidTiming: kernel_count.
        """
        graphs: list[Graph] = []
        for part in split(nodes, self.device.limits.max_graph_nodes):
            graphs.append(self.session.capture(calls[part], self.pool))
            if graphs[-1].nodes != sum(nodes[part]):
                found = f"a graph of {len(calls[part])} calls has {graphs[-1].nodes} nodes, not {sum(nodes[part])}: some calls launch less"
                raise InvalidTiming(Reason.KERNEL_COUNT, found)
        program.graphs = tuple(graphs)
        self.programs.append(program)
        return program

    def release(self) -> None:
        """Drop every graph and what it holds, so that their memory can be freed."""
        for program in self.programs:
            program.release()
        for probe in self.probes:
            probe.release()

    def _keeping(self, slot: int, program: Program) -> Call:
        """The call on one slot that keeps what it returns, so that calls on other slots write elsewhere.

        A later call on the same slot replaces it: only as many outputs are alive as there are slots.
        """
        call = self.call(slot)

        def keep() -> None:
            program.outputs[slot] = call()

        return keep

    def _dropping(self, slot: int, shared: Inputs) -> Call:
        inputs = {**self.ring.inputs(slot), **shared}

        def drop() -> None:
            self.subject.variant.call(**inputs)

        return drop


def make_bench(
    subject: Subject, session: ClockSession, slots: int, seed: int, contents: int, *, allocated: int, spare_bytes: int = 0
) -> Bench:
    """Allocate and fill the ring of a cell: `contents` distinct contents from seed on, repeated over `allocated` slots.

    Args:
        spare_bytes: memory in which what calls change may be kept, so that a reset need not draw it again.
    """
    seeds = tuple(range(seed, seed + min(contents, slots)))
    template = subject.inputs(seed)
    ring, scratch = (SlotRing(template, n, subject.torch_device) for n in (allocated, 1))
    del template
    bench = Bench(subject, session, ring, scratch, slots, seeds, session.device.new_pool())
    ring.keep(bench.changing, min(len(seeds), allocated), spare_bytes)
    bench.data_hash = ring.fill(seeds, subject)
    return bench
