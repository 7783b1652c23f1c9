"""Runs ncu over one call of each of several cells, and gives what it counted. ncu is NVIDIA's; where it is absent, that is the answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.devices.units import Unit
from harness.dispatch.launcher import Flavour, clean_environment
from harness.dispatch.lock import unit_lock
from harness.errors import HarnessError, Undecided
from harness.measure.calibration.ncu import METRICS, CallCounts, advice, by_marker, first_error, options, parse
from harness.records import HEAD, Cell

TOOL = "ncu"
START_S, CALL_S = 180.0, 20.0
"""Time after which ncu is given up: for its start, and for each call, which may have to be compiled and tuned before."""
MODULE = "harness.measure.calibration.profiled"


@dataclass(frozen=True)
class Counts:
    """What ncu counted.

    Args:
        spins: by the length of a spin (us).
        copies: by the bytes of a copied buffer.
        cells: by cell.
        failed: cell -> why nothing was counted of it.
    """

    spins: dict[float, CallCounts] = field(default_factory=dict)
    copies: dict[int, CallCounts] = field(default_factory=dict)
    cells: dict[Cell, CallCounts] = field(default_factory=dict)
    failed: dict[Cell, str] = field(default_factory=dict)


def find_tool() -> str | None:
    """The path of ncu, or None."""
    return shutil.which(TOOL)


def count(
    tool: str,
    root: Path,
    unit: Unit,
    scratch: Path,
    cells: Sequence[Cell],
    *,
    spins_us: Sequence[float] = (),
    copies_bytes: Sequence[int] = (),
    metrics: Sequence[str] = METRICS,
) -> Counts:
    """Let ncu look at one call of each, in one process, on a unit that is locked meanwhile.

    Args:
        tool: path of ncu.
        root: the workspace's code.
        scratch: folder for its files and its log.
        metrics: see `harness.measure.calibration.ncu.options`.

    Raises:
        Undecided: it counted nothing at all: it did not start, hung, failed, may not read the counters, or printed no table that can
            be read.
    """
    home = scratch / "ncu"
    home.mkdir(parents=True, exist_ok=True)
    spec, log, done, said = home / "spec.json", home / "ncu.csv", home / "done.json", home / "output.txt"
    asked = {"root": str(root), "device": unit.device, "cells": list(map(str, cells))}
    spec.write_text(json.dumps({**asked, "spins_us": list(spins_us), "copies_bytes": list(copies_bytes), "done": str(done)}))
    environment = clean_environment(Flavour.GPU, home, unit.environment)
    environment |= {"TRITON_CACHE_DIR": str(scratch / "triton" / HEAD), "LC_ALL": "C"}  # the locale decides how ncu writes numbers
    command = [tool, *options(metrics), "--log-file", str(log), sys.executable, "-m", MODULE, str(spec)]
    calls = len(spins_us) + len(copies_bytes) + len(cells)
    what = f"count {calls} calls on {unit.device} ({unit.uuid}) by {TOOL}"
    with unit_lock(unit.uuid, threading.Event()):
        code = _run(command, environment, home, said, START_S + CALL_S * calls, what)
    try:
        text = log.read_text(errors="replace") if log.exists() else ""
        found = by_marker(parse(text))
        if code:
            raise HarnessError(what, first_error(text) or f"{TOOL} failed with exit code {code}", advice(""))
    except HarnessError as error:
        raise _nothing(what, error, said.read_text(errors="replace")) from error
    return _sorted(found, _read_done(done, what), cells, spins_us, copies_bytes)


def _run(command: Sequence[str], environment: Mapping[str, str], home: Path, said: Path, limit_s: float, what: str) -> int:
    """The exit code of ncu, run to its end; one that is given up is ended with the process it looks at, which holds the GPU.

    Raises:
        Undecided: it did not start, or took over `limit_s`.
    """
    with said.open("wb") as output:
        try:
            process = subprocess.Popen(command, env=environment, cwd=home, stdout=output, stderr=output, start_new_session=True)
        except OSError as error:
            raise Undecided(what, f"{TOOL} did not start: {error}", f"see that `{command[0]} --version` runs") from error
        try:
            return process.wait(limit_s)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise Undecided(what, f"{TOOL} took over {limit_s:g} s", "ask for fewer cells at once") from error
            raise


def _nothing(what: str, error: HarnessError, said: str) -> Undecided:
    """Why there is no table, with what ncu, or the process it looked at, said last where its log names no error."""
    if named := first_error(error.found) or first_error(said):
        return Undecided(what, named, advice(named))
    tail = " | ".join(said.splitlines()[-2:])
    return Undecided(what, error.found + (f" ({TOOL} ended with: {tail:.200})" if tail else ""), error.do)


def _read_done(done: Path, what: str) -> list[str | None]:
    """What became of each call; empty where the profiled process ended before it wrote it, at its end and as a whole.

    Raises:
        Undecided: it is of another form.
    """
    if not done.exists():
        return []
    data = done.read_bytes()
    try:
        became = json.loads(data)
    except (ValueError, RecursionError):
        became = None
    if not isinstance(became, list) or not all(isinstance(one, str | None) for one in became):
        raise Undecided(what, f"{done.name} does not say what became of each call: {data!r:.100}", "see that no other program writes there")
    return became


def _sorted(
    found: Mapping[int, CallCounts],
    became: Sequence[str | None],
    cells: Sequence[Cell],
    spins_us: Sequence[float],
    copies_bytes: Sequence[int],
) -> Counts:
    """CallCounts by what was called, whose numbers follow the order spins, copies, cells."""
    copies_at, cells_at = len(spins_us), len(spins_us) + len(copies_bytes)
    failed = {}
    for number, cell in enumerate(cells, cells_at):
        error = became[number] if number < len(became) else "the profiled process ended before it"
        if error is not None or number not in found:
            failed[cell] = error or f"{TOOL} printed no kernel of it"
    return Counts(
        spins={us: found[i] for i, us in enumerate(spins_us) if i in found},
        copies={size: found[i] for i, size in enumerate(copies_bytes, copies_at) if i in found},
        cells={cell: found[i] for i, cell in enumerate(cells, cells_at) if i in found and cell not in failed},
        failed=failed,
    )
