"""What launches of one run find out about a unit and hand on: ceilings, floors, proofs that rings are cold, and canaries."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from harness.measure.clock.canaries import Canary
from harness.measure.clock.ceilings import Ceilings
from harness.measure.clock.filling import Filling
from harness.measure.clock.floors import CellFloors, ClockFloors


@dataclass(frozen=True)
class RingProof:
    """What doubling the ring of a cell did to its time.

    Args:
        growth: how many times as large the ring is as the cache asks for.
        evicted: how many of its slots are used where the cache is filled between samples; 0 for a ring that is cold by itself.
        us: a call's time with the ring.
        doubled_us: with twice the ring; None where memory did not allow it.
        change: relative change; None likewise.
    """

    growth: int
    evicted: int
    us: float
    doubled_us: float | None
    change: float | None


@dataclass
class LeaseFacts:
    """Facts about one unit. They are plain data, so that one launch can hand them to the next.

    All but the canaries hold for as long as the run holds the unit: its leases share them, and what one has measured no other measures
    again. Where the run takes the unit once more, resumed say, they begin anew.
    Canaries are of one lease: each begins without any.

    Args:
        clock: the clock's tick and floors.
        ceilings: the unit's own bandwidth.
        filling: whether filling the cache empties it.
        floors: by the grids of a call.
        rings: by cell, then by the code that it ran: other code may leave other things in the cache. All of a cell's are made alike.
        canaries: those of the lease in hand in the order taken: before and after each launch that has handed on what it found.
    """

    clock: ClockFloors | None = None
    ceilings: Ceilings | None = None
    filling: Filling | None = None
    floors: dict[str, CellFloors] = field(default_factory=dict)
    rings: dict[str, dict[str, RingProof]] = field(default_factory=dict)
    canaries: list[Canary] = field(default_factory=list)

    def proof(self, cell: str, code: str) -> RingProof | None:
        """The proof that a cell's ring is cold for this code; None where there is none yet."""
        return self.rings.get(cell, {}).get(code)

    def ring(self, cell: str) -> RingProof | None:
        """A proof that says how a cell's ring is made in this lease; None where it is not proved yet for any code."""
        return next(iter(self.rings.get(cell, {}).values()), None)

    def to_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {
            "clock": asdict(self.clock) if self.clock else None,
            "ceilings": asdict(self.ceilings) if self.ceilings else None,
            "filling": asdict(self.filling) if self.filling else None,
            "floors": {key: found.to_json() for key, found in self.floors.items()},
            "rings": {cell: {code: asdict(proof) for code, proof in proofs.items()} for cell, proofs in self.rings.items()},
            "canaries": [asdict(canary) for canary in self.canaries],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LeaseFacts:
        """Read facts back.

        Raises:
            TypeError: a field is missing or unknown.
        """
        return cls(
            clock=ClockFloors(**data["clock"]) if data["clock"] else None,
            ceilings=Ceilings(**data["ceilings"]) if data["ceilings"] else None,
            filling=Filling(**data["filling"]) if data["filling"] else None,
            floors={key: CellFloors.from_json(found) for key, found in data["floors"].items()},
            rings={cell: {code: RingProof(**proof) for code, proof in proofs.items()} for cell, proofs in data["rings"].items()},
            canaries=[Canary(**canary) for canary in data["canaries"]],
        )
