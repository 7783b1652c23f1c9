"""One GPU of this machine: which one is meant, and the `local` dispatcher held to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from harness.devices.probe import DRIVERS
from harness.devices.units import Unit
from harness.dispatch.local import LocalDispatcher
from harness.errors import Undecided


class OneUnitDispatcher(LocalDispatcher):
    """Runs jobs on one GPU, whatever else this machine has.

    Args:
        unit: the GPU.
    """

    def __init__(self, unit: Unit) -> None:
        super().__init__(slots=1)
        self._unit = unit

    @property
    def units(self) -> list[Unit]:
        """The one unit."""
        return [self._unit]


def choose_unit(units: Sequence[Unit], devices: Collection[str] | None, asked: str, kernel: str | None = None) -> Unit:
    """The first GPU that is meant.

    Args:
        units: the GPUs of this machine.
        devices: names of devices.toml; any device where None.
        asked: what for, in the words of an error.
        kernel: the one that is asked about, where it is one: it can be proved without a GPU.

    Raises:
        Undecided: there is no GPU, none has a row in devices.toml, or none is one of `devices`.
    """
    if not units:
        drivers = " nor ".join(map(str, DRIVERS.values()))
        found = f"no GPU here: neither {drivers} lists one"
        proved = f"; `harness submit --kernel {kernel} --device cpu` proves the kernel without one" if kernel else ""
        raise Undecided(asked, found, f"run it where a GPU is{proved}")
    known = [unit for unit in units if unit.device is not None]
    here = ", ".join(f"{unit.device or 'no device of the table'} ({unit.model}, {unit.uuid})" for unit in units)
    if not known:
        raise Undecided(asked, f"here is {here}", "add a row to devices.toml: docs/devices.md says how")
    meant = [unit for unit in known if devices is None or unit.device in devices]
    if not meant:
        raise Undecided(asked, f"here is {here}", "name one of these, or run it where such a GPU is")
    return meant[0]
