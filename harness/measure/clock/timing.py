"""Times one cell: sets up its ring, and takes its figures.

What a process allocated and captured before a cell moves that cell's time by up to half a per cent, and only some launches prove rings
and take the figures beside. So such a launch takes the main figures of all its cells first (`time_main`), as the others do, and hands
them to `time_cell` for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from harness.measure.clock.figures import MAIN, Figures, Main
from harness.measure.clock.readings import invalid, skipped
from harness.measure.clock.session import ClockSession
from harness.measure.clock.set_up import set_up
from harness.measure.clock.validity import InvalidTiming, Reason, RingTooSmall
from harness.measure.subject import Reading, Subject

Taking = TypeVar("Taking")


def time_cell(
    subject: Subject, session: ClockSession, *, code: str = "", keeps: bool = False, beside: bool = True, main: Main | None = None
) -> list[Reading]:
    """Measure a cell that passed its correctness gate in this launch.

    Args:
        code: what tells the code in hand from other code that the lease times in this cell: its ring is proved cold once for each.
        keeps: whether it asks the cache to keep what it loads.
        beside: take the figures that nothing is judged by too: warm, serving, chained, one replay, eager.
        main: the main figure, where `time_main` has taken it in this launch.

    Returns:
        `latency_us` first: invalid or skipped and alone, or valid with every other figure that the cell has. A number
        that failed a check is in no reading.
    """
    return _guard(subject, session, lambda: _time_cell(subject, session, code, beside, main, keeps=keeps))


def time_main(subject: Subject, session: ClockSession, *, code: str = "", keeps: bool = False) -> Main | list[Reading]:
    """Take the main figure alone, of which nothing is known until `time_cell` has been given it.

    Returns:
        The figure, or, where there is none, the readings that say why.
    """

    def take() -> Main | list[Reading]:
        known = session.facts.ring(str(subject.cell))
        ready = set_up(subject, session, code, known.growth if known else 1, beside=False, keeps=keeps)
        if ready is None:
            return [skipped(MAIN, Reason.MEMORY, {"data": subject.kernel.data})]
        try:
            return Figures(ready, session, ready.bench, beside=False).main_alone()
        finally:
            ready.bench.release()

    return _guard(subject, session, take)


def _guard(subject: Subject, session: ClockSession, take: Callable[[], Taking]) -> Taking | list[Reading]:
    """What was taken, or an invalid reading of what spoilt it."""
    if session.fault is not None:
        return [invalid(MAIN, session.fault, subject)]
    try:
        session.note_busy()  # the cell's gate ran until now, or what the cell before it did
        return take()
    except InvalidTiming as breach:
        if breach.reason is Reason.NEGATIVE_TIME:
            # The clock itself is wrong: nothing that it said in this launch can be used.
            session.fault = InvalidTiming(breach.reason, breach.detail)
        return [invalid(MAIN, breach, subject)]
    finally:
        session.device.release_memory()


def _time_cell(subject: Subject, session: ClockSession, code: str, beside: bool, main: Main | None, *, keeps: bool) -> list[Reading]:
    """Measure with the smallest ring that is proved cold. Once a lease has timed other code of the cell, with that code's ring alone."""
    known = session.facts.ring(str(subject.cell))
    growth = known.growth if known else 1
    breach: RingTooSmall | None = None
    attempt = 0 if main is None else 1
    while True:
        ready = set_up(subject, session, code, growth, beside=beside, keeps=keeps)
        if ready is None:
            if breach is not None:
                raise InvalidTiming(Reason.NOT_COLD, f"{breach.detail}, and there is no room to prove a ring {growth} times as large")
            return [skipped(MAIN, Reason.MEMORY, {"data": subject.kernel.data})]
        try:
            return Figures(ready, session, ready.bench, beside, main, attempt).readings()
        except RingTooSmall as small:
            breach = small
            attempt += 1
        finally:
            ready.bench.release()
        session.device.release_memory()
        main = None  # of a ring that was not cold
        if known is not None:
            found = f"{breach.detail}; with this ring other code of the cell was cold: time each in a run of its own"
            raise InvalidTiming(Reason.NOT_COLD, found)
        if growth == session.settings.most_growth:
            raise breach
        growth *= 2
