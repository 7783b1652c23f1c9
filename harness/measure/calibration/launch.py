"""What a calibration does inside its launch: each part in turn, sent to the supervisor like the cells of any job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from harness.measure.calibration.known import known_copies, known_slowdowns, known_spins
from harness.measure.calibration.parts import Part
from harness.measure.calibration.unit import calibrate_clock, calibrate_graphs, calibrate_memory, calibrate_ring
from harness.measure.clock.session import ClockSession
from harness.measure.clock.validity import InvalidTiming, Reason
from harness.measure.subject import Reading
from harness.records import Cell, Status

Send = Callable[[dict[str, Any]], None]


class HasSession(Protocol):
    """What holds the clock of this launch, see `harness.measure.timing.Timer`."""

    @property
    def session(self) -> ClockSession:
        """The device clock."""


def measure_parts(cells: Sequence[str], timer: HasSession, send: Send) -> list[Reading]:
    """Measure the parts that `cells` name and send what was read of each; one that fails costs itself alone.

    Returns:
        Every reading that is not ok.
    """
    bad: list[Reading] = []
    for text in cells:
        send({"type": "begin", "cell": text})
        started_at, began = datetime.now(UTC).isoformat(), time.monotonic()
        readings = _readings(Part(Cell.parse(text).variant), timer)
        bad += [r for r in readings if r.status is not Status.OK]
        answer = {"cell": text, "readings": [{**vars(r), "columns": dict(r.columns)} for r in readings]}
        send({"type": "end", **answer, "started_at": started_at, "duration": time.monotonic() - began})
    return bad


def _readings(part: Part, timer: HasSession) -> list[Reading]:
    try:
        session = timer.session
        if session.fault is not None:
            return [Reading(None, None, Status.INVALID, str(session.fault))]
        found = _measure(part, session)
        return found or [Reading(None, None, Status.SKIPPED, str(Reason.MEMORY))]
    except InvalidTiming as breach:
        return [Reading(None, None, Status.INVALID, str(breach))]
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        return [Reading(None, None, Status.CRASH, words)]


def _measure(part: Part, session: ClockSession) -> list[Reading]:
    match part:
        case Part.CLOCK:
            return calibrate_clock(session)
        case Part.GRAPHS:
            return calibrate_graphs(session)
        case Part.MEMORY:
            return calibrate_memory(session)
        case Part.RING:
            return calibrate_ring(session)
        case Part.COPIES:
            return known_copies(session)
        case Part.SPINS | Part.SLOWDOWNS:
            from harness.measure.calibration.known_kernels import TritonKnown

            return (known_spins if part is Part.SPINS else known_slowdowns)(session, TritonKnown())
