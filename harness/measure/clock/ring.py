"""How large a cold ring is, and how its calls are split over graphs: arithmetic only.

Cold means: between two uses of a buffer at least `cache_multiples` caches of other data are touched. That is counted
over all graphs that are replayed in turn, and from what a call touches, not from what is allocated.

Of a call that touches a few bytes such a ring has millions of buffers. There each buffer is used once a sample, and between two
samples, outside both, the cache is filled with other data. What a call writes is then written back outside the sample, and what filled
the cache inside it; a ring that is too long has calls so small that neither counts: launches are what they take. Code that asks the
cache to keep what it loads is not timed so: other data would not displace that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.authoring.model import Traffic
from harness.measure.clock.device import Limits

ALIGNMENT = 256
"""Bytes to which every slot is aligned: at least what the device's own allocator gives."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of one call's tensors.

    Args:
        allocated: of the inputs, gaps and untouched rows included, each rounded up to ALIGNMENT.
        outputs: of what the call returns.
        touched: distinct bytes that a call reads or writes; a lower bound.
    """

    allocated: int
    outputs: int
    touched: int


def footprint(allocated: int, dense: int, mutated: int, traffic: Traffic) -> Footprint:
    """The footprint of a call.

    Args:
        allocated: bytes of its inputs as they are allocated.
        dense: bytes of its inputs' elements.
        mutated: bytes of the inputs that it changes in place, which `traffic` counts twice where all of them are touched.
    """
    in_place = min(mutated, traffic.read_bytes, traffic.written_bytes)
    outputs = traffic.written_bytes - in_place
    return Footprint(allocated, outputs, min(dense + outputs, traffic.total - in_place))


@dataclass(frozen=True)
class RingPlan:
    """A cold ring.

    Args:
        slots: sets of inputs.
        touched: bytes that one call touches.
        cache_bytes: the last-level cache.
        growth: how many times as many slots there are as the cache asks for, or as often as it asks for the cache is filled.
        evictions: how often the cache is filled between two samples; 0 for a ring that is cold by itself.
    """

    slots: int
    touched: int
    cache_bytes: int
    growth: int = 1
    evictions: int = 0

    def evicted(self, slots: int) -> RingPlan:
        """So many of the slots, with the cache filled between two samples."""
        return replace(self, slots=min(slots, self.slots), evictions=self.growth)

    def reuse_bytes(self, buffers_touched: int) -> int:
        """Bytes of other data between two uses of a buffer, when `buffers_touched` slots are used in turn and nothing is filled."""
        return (min(buffers_touched, self.slots) - 1) * self.touched

    def is_cold(self, buffers_touched: int, calls: int, evictions: int, multiples: int) -> bool:
        """Whether a sample's calls find nothing in the cache: the whole ring, and far enough apart or each buffer once.

        Args:
            buffers_touched: slots that the sample uses.
            calls: in the sample.
            evictions: how often the cache is filled between two samples.
            multiples: caches of other data that must lie between two uses.
        """
        if buffers_touched != self.slots or evictions != self.evictions:
            return False
        if evictions:
            return calls == self.slots
        return self.reuse_bytes(buffers_touched) >= multiples * self.cache_bytes


def plan_ring(touched: int, limits: Limits, multiples: int, growth: int = 1) -> RingPlan:
    """The smallest ring that is cold for calls that touch `touched` bytes, in a cache that drops what was used least recently.

    Args:
        growth: by how much it is enlarged for calls that tell the cache to drop what they load before what it holds. A part of a ring
            outlives a pass then: about as much of it as the cache holds.

    Raises:
        ValueError: the call touches nothing.
    """
    if touched <= 0:
        raise ValueError(f"plan_ring: a call that touches {touched} bytes cannot be made cold; check the kernel's traffic")
    wanted = multiples * limits.last_level_cache_bytes
    return RingPlan((-(-wanted // touched) + 1) * growth, touched, limits.last_level_cache_bytes, growth)


def is_warm(touched: int, limits: Limits, fraction: float) -> bool:
    """Whether one call's data may be called warm: it fits into `fraction` of the cache."""
    return touched <= fraction * limits.last_level_cache_bytes


def estimate_bytes(one: Footprint, slots: int, programs: int = 1) -> int:
    """Memory that measuring with a ring takes: inputs of the slots, outputs of the programs, one scratch slot, making a content.

    Making a content takes up to four times its size, since it is drawn in fp32 and then rounded.

    Args:
        slots: allocated.
        programs: programs over all of them that are captured at a time.
    """
    return (slots + 5) * one.allocated + (programs * slots + 1) * one.outputs


def split(nodes: Sequence[int], cap: int) -> list[slice]:
    """Split a sequence of calls into graphs of at most `cap` nodes, as equal as can be; a call is never split.

    Args:
        nodes: nodes of each call.
        cap: nodes that a graph may hold; a call with more has a graph of its own.
    """
    graphs = max(1, -(-sum(nodes) // cap))
    target = sum(nodes) / graphs
    slices: list[slice] = []
    begin = held = placed = 0
    for i, own in enumerate(nodes):
        due = target * (len(slices) + 1)
        if held and (held + own > cap or placed + own / 2 > due):
            slices.append(slice(begin, i))
            begin, held = i, 0
        held, placed = held + own, placed + own
    slices.append(slice(begin, len(nodes)))
    return slices


def fit_repetitions(repetitions: int, nodes: int, cap: int) -> tuple[int, int]:
    """Split repetitions of a pass, a power of two, into those within the captured graphs and replays of the graphs.

    Args:
        nodes: nodes of one pass; where they exceed `cap` a pass is several graphs, and is captured once.

    Returns:
        (passes captured, replays of what was captured); their product is `repetitions`.
    """
    captured = max(1, min(repetitions, cap // nodes if nodes <= cap else 1))
    captured = 1 << (captured.bit_length() - 1)
    return captured, repetitions // captured
