"""The GPUs of this machine: which physical unit is which device of devices.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.devices.child import ask_python
from harness.devices.probe import DRIVERS, CannotList
from harness.devices.table import identify, load_devices
from harness.errors import Undecided

ASKED = "list the GPUs of this machine"
PROBE = ("-P", "-m", "harness.devices.probe")
PROBE_TIMEOUT_S = 60.0


class ProbeFailed(Undecided):
    """The machine has a GPU driver, but its GPUs could not be listed."""


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
    """The GPUs of this machine that the caller may use, by a child process (`harness.devices.probe`) so that no driver
    is opened here.

    Raises:
        ProbeFailed: a driver is there, but the probe failed or took over a minute.
    """
    if not any(driver.exists() for driver in DRIVERS.values()):
        return []
    devices = load_devices()
    units = []
    for found in _probe():
        device = identify(found["model"], found.pop("multiprocessors"), devices)
        units.append(Unit(device=device.name if device else None, **found))
    return units


def _probe() -> list[dict[str, Any]]:
    try:
        return list(ask_python(*PROBE, timeout_s=PROBE_TIMEOUT_S))
    except CannotList as error:
        raise ProbeFailed(ASKED, error.found, error.do) from error
