"""The GPUs of this machine: which physical unit is which device of devices.toml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.devices.table import identify, load_devices

DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
PROBE_TIMEOUT_S = 60.0


class ProbeFailed(Exception):
    """The machine has a GPU driver, but its GPUs could not be listed; the text says why."""


@dataclass(frozen=True)
class Unit:
    """One physical GPU, or one slot of the interpreter.

    Args:
        uuid: the vendor's UUID; `cpu:N` for a slot of the interpreter.
        device: name in devices.toml; None where no row has its model.
        environment: variables that make a process see this unit alone.
        driver: version of its driver.
        partition: how the card is divided; `none` where it is whole.
    """

    uuid: str
    device: str | None
    model: str
    memory_bytes: int
    environment: Mapping[str, str] = field(default_factory=dict)
    driver: str | None = None
    partition: str | None = None

    @classmethod
    def interpreter(cls, slot: int) -> Unit:
        """A slot of Triton's interpreter on this host."""
        return cls(f"cpu:{slot}", "cpu", "Triton's interpreter", 0)


def local_units() -> list[Unit]:
    """The GPUs of this machine, by a child process (`harness.devices.probe`) so that no driver is opened here.

    Raises:
        ProbeFailed: a driver is there, but the probe failed or took over a minute.
    """
    if not any(Path(path).exists() for path in DRIVERS):
        return []
    engine = str(Path(__file__).parent.parent.parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [engine, os.environ.get("PYTHONPATH", "")]))}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness.devices.probe"], env=env, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired as error:
        raise ProbeFailed(f"listing the GPUs took over {PROBE_TIMEOUT_S:g} s") from error
    except (subprocess.CalledProcessError, json.JSONDecodeError, IndexError) as error:
        raise ProbeFailed(f"listing the GPUs failed: {getattr(error, 'stderr', '') or error}".strip()[-500:]) from error
    devices = load_devices()
    units = []
    for one in found:
        device = identify(one["model"], one["multiprocessors"], devices)
        del one["multiprocessors"]
        units.append(Unit(device=device.name if device else None, **one))
    return units
