"""Which configurations the launches of a cell chose, and the times of those in which both sides chose the same.

A time that moved because another configuration was chosen is a change of the choice; the same-configuration time says what
the code itself did. A row stands for one configuration, so that no number mixes two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.judge.paired import is_paired, is_valid, pairs_of
from harness.records import Record

Configuration = tuple[str, ...]
"""One entry for every kernel launch of the cell."""


@dataclass(frozen=True)
class Choice:
    """One configuration that was chosen, and its time on both sides.

    Args:
        config: one entry for every kernel launch.
        chosen: launches of base and of head that chose it.
        compared: those of them that the times are of: in paired runs, the pairs in which both chose it.
        base: their median, in the metric's unit; None where nothing is compared.
        head: likewise.
        ratio: head over base: the geometric mean over pairs; without pairs, of the medians.
        absent: why there is no time, in words.
    """

    config: Configuration
    chosen: tuple[int, int]
    compared: tuple[int, int] = (0, 0)
    base: float | None = None
    head: float | None = None
    ratio: float | None = None
    absent: str | None = None


def choices(base: Sequence[Record], head: Sequence[Record]) -> tuple[Choice, ...]:
    """A row for every configuration that a valid launch chose, the most chosen first; none where all chose one.

    Args:
        base: one record a launch, of one cell and metric; one that does not know its configuration counts for nothing.
        head: likewise.
    """
    sides = _known(base), _known(head)
    found = {_config(r) for side in sides for r in side}
    if len(found) < 2 or not all(sides):
        return ()
    pairs = pairs_of(*sides) if is_paired(*sides) else None
    rows = [_choice(config, sides, pairs) for config in found]
    return tuple(sorted(rows, key=lambda row: (-sum(row.compared), -sum(row.chosen), row.config)))


def _choice(config: Configuration, sides: Sequence[list[Record]], pairs: list[tuple[Record, Record]] | None) -> Choice:
    of_base, of_head = ([r for r in side if _config(r) == config] for side in sides)
    chosen = len(of_base), len(of_head)
    if not of_base or not of_head:
        return Choice(config, chosen, absent=f"no launch of {'head' if of_base else 'base'} chose {' | '.join(config)}")
    if pairs is None:
        before, after = statistics.median(_values(of_base)), statistics.median(_values(of_head))
        return Choice(config, chosen, chosen, before, after, after / before)
    both = [(b, h) for b, h in pairs if _config(b) == _config(h) == config]
    if not both:
        return Choice(config, chosen, absent=f"no pair of launches chose {' | '.join(config)} on both sides")
    times = [_values(side) for side in zip(*both, strict=True)]
    ratio = math.exp(statistics.fmean(math.log(after / before) for before, after in zip(*times, strict=True)))
    return Choice(config, chosen, (len(both), len(both)), statistics.median(times[0]), statistics.median(times[1]), ratio)


def _known(records: Iterable[Record]) -> list[Record]:
    return [r for r in records if r.config is not None and is_valid(r)]


def _config(record: Record) -> Configuration:
    return tuple(record.config or ())


def _values(records: Iterable[Record]) -> list[float]:
    return [r.value for r in records if r.value is not None]
