"""Reads what every GPU of this machine says of itself: what it is, how it stands, what its owner has set. Sets nothing.

    python -m harness.devices.health

prints it as JSON. The harness asks it as a child process, so that a driver that hangs is an answer, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.devices.child import BOX_S, answer, ask
from harness.devices.probe import DRIVERS, CannotList, probe
from harness.devices.sensors import open_sensors
from harness.devices.table import identify, load_devices


@dataclass(frozen=True)
class Health:
    """One GPU.

    Args:
        device: its row of devices.toml; None where no row is meant.
        driver: version of its driver; None where it is not told.
        partition: how the card is divided; `none` where it is whole.
        readings: what `Sensors.fast`, `slow` and `settings` say together; None where there are no sensors.
        unread: why there are none, and what to do; None where there are.
    """

    uuid: str
    device: str | None
    model: str
    driver: str | None
    partition: str | None
    readings: Mapping[str, Any] | None
    unread: tuple[str, str] | None = None


def has_driver() -> bool:
    """Whether a GPU driver shows itself on this machine."""
    return any(driver.exists() for driver in DRIVERS.values())


def read_health(timeout_s: float = BOX_S) -> list[Health]:
    """Every GPU that the caller's mask leaves, in the order of the drivers; none where no driver is here.

    Args:
        timeout_s: of the child that asks the drivers.

    Raises:
        CannotList: a driver is here, but its GPUs cannot be listed, or it does not answer in time.
    """
    if not has_driver():
        return []
    devices = load_devices()
    gpus = []
    for one in ask("harness.devices.health", timeout_s=timeout_s):
        found = one["found"]
        device = identify(found["model"], found["multiprocessors"], devices)
        gpus.append(
            Health(
                uuid=found["uuid"],
                device=device.name if device else None,
                model=found["model"],
                driver=found["driver"],
                partition=found["partition"],
                readings=one["readings"],
                unread=(one["unread"]["found"], one["unread"]["do"]) if one["unread"] else None,
            )
        )
    return gpus


def read_here(environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """As `read_health`, in this process and as plain data.

    Raises:
        CannotList: the GPUs cannot be listed.
    """
    return [{"found": found, **_readings(found["uuid"])} for found in probe(environ)]


def _readings(uuid: str) -> dict[str, Any]:
    try:
        sensors = open_sensors(uuid)
        sensors.fast()  # some count what is throttled from one look to the next
        return {"readings": {**sensors.fast(), **sensors.slow(), **sensors.settings()}, "unread": None}
    except CannotList as error:
        return {"readings": None, "unread": {"found": error.found, "do": error.do}}


def main() -> None:
    """Print the answer, or why there is none."""
    try:
        said: Any = read_here(os.environ)
    except CannotList as error:
        said = {"found": error.found, "do": error.do}
    answer(said)


if __name__ == "__main__":
    main()
