"""A fleet to try things on: a Ray cluster on this machine whose nodes stand for devices that are not here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.dispatch.ray.connect import LOOPBACK, isolated_environment, new_home
from harness.dispatch.ray.fleet import DEVICE_LABEL, NODE_LABEL, SIMULATED_LABEL, resource_of

QUICK_DEATHS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}
"""Ray's own settings by which a dead node is known after a second or two, not fifteen."""
STORE_BYTES = 150 << 20


@dataclass
class SimulatedFleet:
    """A running fleet.

    Args:
        address: of its head, on this host's loopback.
        token: file with the token that it asks for.
        nodes: Ray's nodes by the name that records give them.
    """

    address: str
    token: Path
    cluster: Any
    nodes: dict[str, Any] = field(default_factory=dict)

    def add(self, device: str | None, name: str, cpus: int) -> None:
        """Start a node that stands for one unit of `device`, or for none; it is up a second or two later."""
        labels = {NODE_LABEL: name, SIMULATED_LABEL: "1"}
        more: dict[str, Any] = {"labels": labels}
        if device is not None:
            labels[DEVICE_LABEL] = device
            more["resources"] = {resource_of(device): 1}
        self.nodes[name] = self.cluster.add_node(
            wait=False, num_cpus=cpus, num_gpus=0, node_ip_address=LOOPBACK, object_store_memory=STORE_BYTES, **more
        )

    def remove(self, name: str) -> None:
        """Kill a node's processes, without a word to the others."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)


@contextmanager
def simulated_fleet(devices: Sequence[str], cpus: int | None = None) -> Iterator[SimulatedFleet]:
    """A fleet of one node a device, inside the block; it reads and writes nothing of the user's, and asks for a token.

    Args:
        cpus: cores of each node (default: this machine's, divided among them, at least 1).
    """
    home = new_home()
    before = dict(os.environ)
    os.environ.update(isolated_environment(home))
    cluster = None
    try:
        from ray.cluster_utils import Cluster

        token = home / "token"
        token.touch(mode=0o600)
        token.write_text(os.environ["RAY_AUTH_TOKEN"])
        head = {"num_cpus": 0, "num_gpus": 0, "node_ip_address": LOOPBACK, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": QUICK_DEATHS})
        fleet = SimulatedFleet(cluster.address, token, cluster)
        share = max(1, len(os.sched_getaffinity(0)) // max(1, len(devices)))
        for number, device in enumerate(devices):
            repeated = devices[:number].count(device)
            fleet.add(device, f"sim-{device}" + (f"-{repeated + 1}" if repeated else ""), cpus or share)
        cluster.wait_for_nodes(timeout=60)
        yield fleet
    finally:
        if cluster is not None:
            cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(home, ignore_errors=True)
