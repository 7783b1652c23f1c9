"""How the driver gets to a cluster: the check of address and token before Ray connects, and a head of one's own."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from harness.devices.units import Unit, local_units
from harness.dispatch.ray.fleet import DEVICE_LABEL, loopback, read_nodes, resource_of
from harness.errors import HarnessError, Undecided

LOCAL = "local"
LOOPBACK = "127.0.0.2"
"""Ray turns 127.0.0.1 into the host's outward address; this one it leaves alone, so that the head is reached from here only."""
CHECK_S = 3.0
CHECK = "/ray.rpc.NodeInfoGcsService/CheckAlive"
STORE_BYTES = 200 << 20
START = "harness fleet up --simulate DEVICES starts one; docs/fleet.md says how to start nodes"


class Refused(Undecided):
    """The cluster cannot, or may not, be used."""


class Answer(StrEnum):
    """What a head says to a caller."""

    WELCOME = "welcome"
    UNAUTHENTICATED = "unauthenticated"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True)
class Connection:
    """A connection that is open.

    Args:
        home: temporary folder of a head that was started for it; None where a running cluster was joined.
    """

    address: str
    home: Path | None = None

    def close(self) -> None:
        """Leave the cluster; a head of one's own ends."""
        import ray

        ray.shutdown()
        if self.home is not None:
            shutil.rmtree(self.home, ignore_errors=True)


def connect(address: str, slots: int | None) -> Connection:
    """Connect this process to the cluster at `address`, or to one that is started here (`local`).

    Args:
        slots: jobs at a time that need no GPU, for a head that is started here (default: one a core).

    Raises:
        Refused: nobody answers, the token is missing or rejected, anybody may use the cluster, or Ray refuses.
        HarnessError: the address is none; or this machine holds several devices, or GPUs that cannot be listed.
    """
    return _start(slots) if address == LOCAL else _join(address)


def isolated_environment(home: Path) -> dict[str, str]:
    """Variables of a cluster that is started here: nothing of the user's is read or written, and a token guards it."""
    return {
        "HOME": str(home),
        "RAY_TMPDIR": str(home),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def new_home() -> Path:
    """A folder for a cluster; its name is short, since sockets lie in it."""
    return Path(tempfile.mkdtemp(prefix="harness-ray-"))


def token(environ: Mapping[str, str]) -> str | None:
    """The token that Ray would use, in Ray's order: RAY_AUTH_TOKEN, the file RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token."""
    if value := environ.get("RAY_AUTH_TOKEN", "").strip():
        return value
    path = environ.get("RAY_AUTH_TOKEN_PATH") or Path(environ.get("HOME", "/")) / ".ray" / "auth_token"
    try:
        return Path(path).read_text().strip() or None
    except OSError:
        return None


def choose_authentication(address: str, environ: MutableMapping[str, str], ask: Any) -> None:
    """Set in `environ` how Ray must authenticate, by asking the head; what the user's environment says of it may be stale.

    Args:
        ask: gives the head's Answer to a token, or to none.

    Raises:
        Refused: see `connect`.
    """
    host = address.rpartition(":")[0]
    open_to_all = ask(None)
    if open_to_all is Answer.UNREACHABLE:
        raise Refused(f"the Ray cluster at {address}", f"nobody answers within {CHECK_S:g} s", f"check the address; {START}")
    if open_to_all is Answer.WELCOME:
        if not loopback(host):
            raise _open_cluster(address)
        environ["RAY_AUTH_MODE"] = "disabled"
        return
    mine = token(environ)
    if mine is None:
        raise Refused(
            f"the Ray cluster at {address}",
            "it asks for a token, and there is none here",
            "set RAY_AUTH_TOKEN_PATH to a file with the cluster's token",
        )
    if ask(mine) is not Answer.WELCOME:
        raise Refused(
            f"the Ray cluster at {address}",
            "token rejected: the one found here is not the cluster's",
            "set RAY_AUTH_TOKEN_PATH to a file with the cluster's token",
        )
    environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=mine)


def check_address(address: str) -> None:
    """Refuse what is no address of a head.

    Raises:
        HarnessError: it is neither HOST:PORT nor `local`.
    """
    host, _, port = address.rpartition(":")
    if address != LOCAL and (not host or not port.isdecimal()):
        raise HarnessError(f"--address {address}", "it is neither HOST:PORT nor `local`", f"give the address of a Ray head; {START}")


def ask_head(address: str, bearer: str | None) -> Answer:
    """What the head at `address` says to a token, within seconds; Ray itself would try for half a minute."""
    import grpc

    metadata = [("authorization", f"Bearer {bearer}")] if bearer else []
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(CHECK)(b"", timeout=CHECK_S, metadata=metadata)
        except grpc.RpcError as error:
            return Answer.UNAUTHENTICATED if error.code() is grpc.StatusCode.UNAUTHENTICATED else Answer.UNREACHABLE
    return Answer.WELCOME


def _join(address: str) -> Connection:
    choose_authentication(address, os.environ, lambda bearer: ask_head(address, bearer))
    import ray

    _init(address=address)
    away = [n.address for n in read_nodes(ray.nodes()) if n.alive and not loopback(n.address)]
    if os.environ["RAY_AUTH_MODE"] == "disabled" and away:
        ray.shutdown()
        raise _open_cluster(f"{address} (node {away[0]})")
    return Connection(address)


def _start(slots: int | None) -> Connection:
    units = [unit for unit in local_units() if unit.device]
    devices = sorted({str(unit.device) for unit in units})
    if len(devices) > 1:
        raise HarnessError(
            "--address local", f"this machine holds {', '.join(devices)}", "start a node for each, with a GPU mask: see docs/fleet.md"
        )
    home = new_home()
    os.environ |= isolated_environment(home) | _mask(units)
    try:
        _init(
            address=LOCAL,
            num_cpus=slots or len(os.sched_getaffinity(0)),
            num_gpus=len(units),
            resources={resource_of(devices[0]): len(units)} if devices else None,
            labels={DEVICE_LABEL: devices[0]} if devices else None,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            _node_ip_address=LOOPBACK,
        )
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    return Connection(LOCAL, home)


def _init(**arguments: Any) -> None:
    import ray

    try:
        ray.init(log_to_driver=False, configure_logging=False, logging_level=logging.ERROR, **arguments)
    except (RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        words = " ".join(str(error).split())
        raise Refused(f"the Ray cluster at {arguments['address']}", f"{words:.500}", START) from error


def _mask(units: list[Unit]) -> dict[str, str]:
    """The mask that leaves these units, from those that leave one each."""
    names = {name for unit in units for name in unit.environment}
    return {name: ",".join(unit.environment[name] for unit in units) for name in names}


def _open_cluster(address: str) -> Refused:
    return Refused(
        f"the Ray cluster at {address}",
        "it is open: whoever reaches it can run anything on every node",
        "start it with RAY_AUTH_MODE=token, or keep it on a loopback address",
    )
