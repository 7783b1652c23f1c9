"""Proves on the unit in hand that filling the cache with other data displaces what it held.

A part of a buffer is read, once a sample, with the cache filled in between; the whole of a buffer of more than three caches is read in
such parts, which is cold without any filling; and the part is read again and again, with nothing in between. Where the cache makes a
difference at all, the first must be as slow as the second. A device whose fills bypass a cache that its loads go through would fail it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from harness.measure.clock.validity import InvalidTiming, Reason

if TYPE_CHECKING:
    from harness.measure.clock.device import Call, Graph
    from harness.measure.clock.session import ClockSession

PIECES_A_CACHE = 4
HELD = 2
"""Pieces that are read again: half of the cache, which holds them where nothing displaces them."""
SAMPLES = 15
TOLD = 0.03
"""Part of a cold read that the cache must save, for the proof to tell anything."""
DISPLACED = 0.8
"""Part of that saving that must be gone after a filling."""


@dataclass(frozen=True)
class Filling:
    """What reading a piece takes (us).

    Args:
        cold_us: in a buffer of more than three caches that is read piece by piece.
        filled_us: with the cache filled since it was read last.
        warm_us: with nothing in between.
    """

    cold_us: float
    filled_us: float
    warm_us: float

    @property
    def displaces(self) -> bool:
        """Whether a filling empties the cache, as far as reading tells."""
        saved = self.cold_us - self.warm_us
        return saved <= TOLD * self.cold_us or self.filled_us >= self.warm_us + DISPLACED * saved

    def check(self) -> None:
        """Refuse a unit on which filling the cache does not empty it.

        Raises:
            InvalidTiming: not_cold.
        """
        if not self.displaces:
            found = f"{self.filled_us:.4g} us after it, {self.cold_us:.4g} cold and {self.warm_us:.4g} warm"
            raise InvalidTiming(Reason.NOT_COLD, f"filling this unit's cache does not displace what it holds: reading takes {found}")


def measure_filling(session: ClockSession) -> Filling:
    """Measure it with as many samples as a floor.

    Raises:
        InvalidTiming: negative_time.
    """
    device = session.device
    elements = max(1, device.limits.last_level_cache_bytes // 4 // PIECES_A_CACHE)
    count = session.settings.cache_multiples * PIECES_A_CACHE + 1
    buffer = torch.ones((count, elements), dtype=torch.float32, device=device.torch_device)
    reads: list[Call] = [partial(torch.sum, piece) for piece in buffer]
    device.run(reads[0])
    pool = device.new_pool()
    ring, held = session.capture(reads, pool), session.capture(reads[:HELD], pool)
    cold, filled = _median(session, ring, count), _median(session, held, HELD, session.evictions(1))
    found = Filling(cold, filled, _median(session, held, HELD))
    for graph in (ring, held):
        graph.release()
    del buffer, reads
    device.release_memory()
    return found


def _median(session: ClockSession, graph: Graph, calls: int, between: Sequence[Graph] = ()) -> float:
    return statistics.median(session.take([graph], calls, SAMPLES, between=between).samples)
