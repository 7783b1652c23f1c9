"""Times a subject by the clock that its device has, and hands what it found out about the unit to the next launch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.measure.interpreter import time_in_interpreter
from harness.measure.subject import Reading, Subject

if TYPE_CHECKING:
    from harness.devices.table import Device
    from harness.measure.clock.figures import Main
    from harness.measure.clock.session import ClockSession
    from harness.records import Cell


@dataclass(frozen=True)
class Timing:
    """What was read, and the samples (us a call) of the main figure, which pytest-benchmark shows.

    Nothing is read yet where the timer has put off what is left of the cell, as it does for the engine's own latency job alone.
    """

    readings: Sequence[Reading]
    samples_us: Sequence[float]


class Timer:
    """The clock of one launch.

    Args:
        device: the row of the device in hand.
        seed: from which the contents of this launch are drawn; base and head of a pair share it.
        lease: file in which launches hand on what they found out about the unit, see `LeaseFacts`; all leases that a run has of a
            unit share it for as long as the run holds the unit. None for a run by hand.
        first: whether a lease begins: the canaries that the file has are another lease's, and are taken out of it at once. This
            launch may end without handing on its own, and launches after it are held against the first canary in the file.
        beside: take the figures beside the main one too; once a lease is enough, since nothing is judged by them.
        engine_cache: folder in which Triton keeps the engine's own kernels, whatever variant is in hand; None: with the variant's.
    """

    def __init__(
        self,
        device: Device,
        seed: int,
        lease: Path | None,
        *,
        first: bool = True,
        beside: bool = True,
        engine_cache: str | None = None,
    ) -> None:
        self.device, self.seed, self.lease, self.beside, self.engine_cache = device, seed, lease, beside, engine_cache
        self.puts_off: Cell | None = None
        """The cell in hand, where what only some launches measure of it may wait until all cells have their main figure."""
        self.put_off: dict[Cell, Callable[[], Sequence[Reading]]] = {}
        """What is left to measure of a cell, and then gives all its readings."""
        if first and (known := self._known()):
            self._hand_on({**known, "canaries": []})

    @cached_property
    def session(self) -> ClockSession:
        """The device clock, set up when the first cell is timed."""
        from harness.measure.clock.facts import LeaseFacts
        from harness.measure.clock.session import ClockSession
        from harness.measure.clock.torch_device import TorchDevice

        known = self._known()
        facts = LeaseFacts.from_json(known) if known else LeaseFacts()
        session = ClockSession(TorchDevice(self.device, self.engine_cache), self.seed, facts)
        session.note_canary()
        session.know_unit()
        return session

    def know_unit(self) -> None:
        """Find out what holds for the unit whatever is timed, where no launch has yet. Timing the first cell does the same before it."""
        assert self.session

    def __call__(self, subject: Subject) -> Timing:
        """Time one cell; on `cpu` by the interpreter's clock."""
        return _shown(time_in_interpreter(subject)) if subject.torch_device == "cpu" else self._on_device(subject)

    def _on_device(self, subject: Subject) -> Timing:
        from harness.measure.clock.launches import record_launches
        from harness.measure.clock.timing import time_cell, time_main
        from harness.measure.sources import launcher_digest

        subject.call(subject.inputs())
        with record_launches() as launches:
            subject.call(subject.inputs())
        built = {
            "binary_hash": [launch.binary_hash for launch in launches],
            "grid": [launch.grid for launch in launches],
            "config": [launch.config for launch in launches],
            "launcher_digest": launcher_digest(subject.kernel, subject.variant_name),
        }
        code = hashlib.sha256(json.dumps(built).encode()).hexdigest()[:16]
        keeps = any(launch.keeps for launch in launches)

        def whole(main: Main | None = None) -> list[Reading]:
            return told(time_cell(subject, session, code=code, keeps=keeps, beside=self.beside, main=main))

        def told(readings: Sequence[Reading]) -> list[Reading]:
            return [replace(r, columns={**built, **r.columns}) for r in readings]

        session, cell = self.session, subject.cell
        if self.puts_off != cell or not (self.beside or session.facts.proof(str(cell), code) is None):
            return _shown(whole())
        main = time_main(subject, session, code=code, keeps=keeps)
        if isinstance(main, list):
            return _shown(told(main))
        self.put_off[cell] = partial(whole, main)
        return Timing((), main.figure.samples)

    @property
    def fault(self) -> str | None:
        """Why no figure of this launch may be used: its clock was caught lying, or a canary moved."""
        return str(self.session.fault) if "session" in self.__dict__ and self.session.fault else None

    def close(self) -> None:
        """Take the last canary, and write what was found out about the unit for the launches after this one; nothing by a clock
        that was caught lying or beside a canary that moved."""
        if "session" in self.__dict__ and self.fault is None:
            self.session.note_canary()
        if "session" in self.__dict__ and self.fault is None:
            self._hand_on(self.session.facts.to_json())

    def _known(self) -> dict[str, Any] | None:
        """What launches before this one handed on, as plain data; None where none has."""
        if self.lease is not None:
            with suppress(FileNotFoundError):
                known: dict[str, Any] = json.loads(self.lease.read_text())
                return known
        return None

    def _hand_on(self, facts: Mapping[str, Any]) -> None:
        if self.lease is not None:
            part = self.lease.with_suffix(".part")
            part.write_text(json.dumps(facts))
            part.replace(self.lease)


def _shown(readings: Sequence[Reading]) -> Timing:
    return Timing(readings, next((r.columns["samples"] for r in readings if r.value is not None), ()))
