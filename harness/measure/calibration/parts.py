"""The parts of a calibration: what one launch measures of the unit itself, each part a cell of its own. Data only."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from harness.records import Cell

KIND = "calibration"
METHOD = "calibration/1"
"""Name and version of how the figures are taken."""
SUBJECT = "unit"
"""What stands where other cells name a kernel."""
CASE = "dtype=any"
JOBS_DIR = Path(__file__).parent / "job"
"""Folder of the job file that a launch of the unit's own parts runs."""


class Part(StrEnum):
    """What is calibrated; it stands where other cells name a variant."""

    CLOCK = "clock"
    """Tick and floors."""
    GRAPHS = "graphs"
    """What graphs cost by their number of nodes."""
    MEMORY = "memory"
    """Bandwidth by size, cold and warm."""
    RING = "ring"
    """Bandwidth by the size of the ring: from when on it is cold."""
    SPINS = "spins"
    """Kernels that spin for a known time."""
    SLOWDOWNS = "slowdowns"
    """Known slow-downs, injected and read back."""
    COPIES = "copies"
    """Copies of known size."""


UNIT_PARTS = (Part.CLOCK, Part.GRAPHS, Part.MEMORY, Part.RING)
TRUTH_PARTS = (Part.SPINS, Part.SLOWDOWNS, Part.COPIES)


def cell_of(part: Part, device: str) -> Cell:
    """The cell under which a part is recorded."""
    return Cell(SUBJECT, part, CASE, device)
