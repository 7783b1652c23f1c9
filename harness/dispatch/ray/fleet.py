"""The nodes of a Ray cluster as the harness sees them: which device each holds, what it can carry. Pure; no I/O.

A node is started with the label `harness/device=NAME` and a custom resource `harness_NAME` of one a unit; a node without a
label can compile and interpret.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.plan.matrix import INTERPRETER

DEVICE_LABEL = "harness/device"
SIMULATED_LABEL = "harness/simulated"
NODE_LABEL = "harness/node"


def resource_of(device: str) -> str:
    """The custom resource that counts a device's units on a node."""
    return f"harness_{device}"


@dataclass(frozen=True)
class FleetNode:
    """One node.

    Args:
        node_id: Ray's.
        name: how records call it: its label `harness/node`, else its host's name.
        device: what its label says; None on a node without one.
        simulated: it stands for a device that it does not have.
        units: units that it offers; 0 where its resources do not say any.
        cpus: cores that it offers.
    """

    node_id: str
    name: str
    address: str
    device: str | None
    simulated: bool
    alive: bool
    units: int
    cpus: int

    @property
    def measures(self) -> bool:
        """Whether it has units that compiling would disturb."""
        return self.units > 0 and not self.simulated

    @property
    def problem(self) -> str | None:
        """Why it cannot be used as what its label says."""
        if self.device is not None and self.units == 0:
            needs = "" if self.simulated else "GPUs and "
            return f"labelled {self.device}, but without {needs}the resource {resource_of(self.device)}"
        return None


def read_nodes(rows: Sequence[Mapping[str, Any]]) -> list[FleetNode]:
    """The nodes of `ray.nodes()`, dead ones included, in a steady order."""
    return sorted((_node(row) for row in rows), key=lambda n: (n.name, n.node_id))


def _node(row: Mapping[str, Any]) -> FleetNode:
    labels, resources = row.get("Labels") or {}, row.get("Resources") or {}
    device = labels.get(DEVICE_LABEL)
    simulated = labels.get(SIMULATED_LABEL) == "1"
    units = int(resources.get(resource_of(device), 0)) if device else 0
    return FleetNode(
        node_id=str(row["NodeID"]),
        name=str(labels.get(NODE_LABEL) or row.get("NodeManagerHostname") or row["NodeID"]),
        address=str(row.get("NodeManagerAddress", "")),
        device=device,
        simulated=simulated,
        alive=bool(row.get("Alive")),
        units=units if simulated else min(units, int(resources.get("GPU", 0))),
        cpus=int(resources.get("CPU", 0)),
    )


def units_of(device: str, nodes: Sequence[FleetNode], not_on: Collection[str] = ()) -> list[FleetNode]:
    """The live nodes on which a device's jobs run: simulated ones only where no real unit is."""
    found = [n for n in nodes if n.alive and n.device == device and n.units and n.name not in not_on]
    return [n for n in found if not n.simulated] or found


def capacity(nodes: Sequence[FleetNode], devices: Sequence[str]) -> dict[str, int]:
    """Units of each device, busy ones included; of the interpreter, cores."""
    found = {device: sum(n.units for n in units_of(device, nodes)) for device in devices}
    return found | {device: sum(n.cpus for n in nodes if n.alive) for device in devices if device == INTERPRETER}


def hosts_for(device: str, nodes: Sequence[FleetNode], not_on: Collection[str] = ()) -> list[FleetNode]:
    """The live nodes on which a job without a GPU runs: those that stand for its device, else those that measure nothing, else any."""
    able = [n for n in nodes if n.alive and n.cpus and n.name not in not_on]
    own = [n for n in able if n.simulated and n.device == device]
    return own or [n for n in able if not n.measures] or able


def loopback(address: str) -> bool:
    """Whether an address, or a name that says so, is reached from this host alone."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"
