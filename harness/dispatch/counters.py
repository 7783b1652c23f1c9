"""Runs ncu over one call of each of several cells, and gives what it counted. ncu is NVIDIA's; where it is absent, that is the answer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.devices.units import Unit
from harness.dispatch.launcher import Flavour, clean_environment
from harness.dispatch.lock import unit_lock
from harness.errors import HarnessError
from harness.measure.calibration.ncu import OPTIONS, Totals, by_marker, parse
from harness.records import Cell

TOOL = "ncu"
TIMEOUT_S = 420.0
MODULE = "harness.measure.calibration.profiled"


@dataclass(frozen=True)
class Counts:
    """What ncu counted.

    Args:
        why_not: why it counted nothing at all; None where it did.
        spins: length of a spin (us) -> its totals.
        copies: bytes of a copied buffer -> its totals.
        cells: cell -> its totals.
        failed: cell -> why it has none.
    """

    why_not: str | None = None
    spins: dict[float, Totals] = field(default_factory=dict)
    copies: dict[int, Totals] = field(default_factory=dict)
    cells: dict[Cell, Totals] = field(default_factory=dict)
    failed: dict[Cell, str] = field(default_factory=dict)


def find_tool() -> str | None:
    """The path of ncu, or None."""
    return shutil.which(TOOL)


def count(
    tool: str, root: Path, unit: Unit, scratch: Path, cells: Sequence[Cell], spins_us: Sequence[float], copies_bytes: Sequence[int]
) -> Counts:
    """Let ncu look at one call of each, on a unit that is locked meanwhile.

    Args:
        tool: path of ncu.
        root: the workspace's code.
        scratch: folder for its files and its log.
    """
    home = scratch / "ncu"
    home.mkdir(parents=True, exist_ok=True)
    spec, log, done, said = home / "spec.json", home / "ncu.csv", home / "done.json", home / "output.txt"
    asked = {"root": str(root), "device": unit.device, "cells": list(map(str, cells))}
    spec.write_text(json.dumps({**asked, "spins_us": list(spins_us), "copies_bytes": list(copies_bytes), "done": str(done)}))
    environment = clean_environment(Flavour.GPU, home, unit.environment) | {"TRITON_CACHE_DIR": str(scratch / "triton" / "head")}
    command = [tool, *OPTIONS, "--log-file", str(log), sys.executable, "-m", MODULE, str(spec)]
    with unit_lock(unit.uuid, threading.Event()), said.open("wb") as output:
        try:
            subprocess.run(command, env=environment, cwd=home, stdout=output, stderr=output, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return Counts(f"{TOOL} took over {TIMEOUT_S:g} s")
        except OSError as error:
            return Counts(f"{TOOL} did not start: {error}")
    try:
        totals = by_marker(parse(log.read_text(errors="replace") if log.exists() else ""))
    except HarnessError as error:
        tail = " | ".join(said.read_text(errors="replace").splitlines()[-2:])
        return Counts(f"{error.found}; {error.do}" + (f" ({TOOL} ended with: {tail:.200})" if tail else ""))
    became: list[str | None] = json.loads(done.read_text()) if done.exists() else []
    return _sorted(totals, became, cells, spins_us, copies_bytes)


def _sorted(
    totals: dict[int, Totals], became: Sequence[str | None], cells: Sequence[Cell], spins_us: Sequence[float], copies_bytes: Sequence[int]
) -> Counts:
    """Totals by what was called, whose numbers follow the order spins, copies, cells."""
    copies_at, cells_at = len(spins_us), len(spins_us) + len(copies_bytes)
    failed = {}
    for number, cell in enumerate(cells, cells_at):
        error = became[number] if number < len(became) else "the profiled process ended before it"
        if error is not None or number not in totals:
            failed[cell] = error or f"{TOOL} printed no kernel of it"
    return Counts(
        spins={us: totals[i] for i, us in enumerate(spins_us) if i in totals},
        copies={size: totals[i] for i, size in enumerate(copies_bytes, copies_at) if i in totals},
        cells={cell: totals[i] for i, cell in enumerate(cells, cells_at) if i in totals and cell not in failed},
        failed=failed,
    )
