"""`harness fleet`: the nodes of a Ray cluster, and a simulated one to try things on."""

from __future__ import annotations

from typing import Any

import click

from harness.commands import _options
from harness.commands._group import Group


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog="\b\nExamples:\n  harness fleet --address 10.0.0.7:6379\n  harness fleet up --simulate nvidia",
)
@click.option("--address", metavar="HOST:PORT", help="Head of the Ray cluster.")
@_options.format_text_json
@click.pass_context
def command(context: click.Context, address: str | None, output: str) -> None:
    """List the nodes of a Ray cluster: which device each holds, and what of it is free."""
    if context.invoked_subcommand is not None:
        return
    if address is None:
        from harness.errors import HarnessError

        do = "give --address HOST:PORT; `harness fleet up --simulate DEVICES` starts a fleet to try things on"
        raise HarnessError("the nodes of a Ray cluster", "no --address", do)
    from harness.dispatch.ray.dispatcher import RayDispatcher

    dispatcher = RayDispatcher(address)
    try:
        nodes = dispatcher.nodes()
    finally:
        dispatcher.close()
    if output == "json":
        import json

        click.echo(json.dumps(nodes, indent=2))
        return
    from harness.commands._table import print_table

    columns = ("node", "device", "simulated", "alive", "units", "free", "cores", "free cores", "problem")
    print_table(columns, [_row(node) for node in nodes], right=("units", "free", "cores", "free cores"))


@command.command(epilog="\b\nExample:\n  harness fleet up --simulate fleet")
@click.option("--simulate", "devices", required=True, metavar="DEVICE,...", help="Devices and groups; each gets a node.")
def up(devices: str) -> None:
    """Run a simulated fleet on this machine until Ctrl-C.

    Its nodes compile for their device and interpret; what needs the GPU itself ends as skipped(simulated).
    """
    import signal
    import threading
    from contextlib import suppress

    from harness.devices.table import load_devices, resolve_devices
    from harness.dispatch.ray.simulated import simulated_fleet
    from harness.errors import HarnessError

    names = [name.strip() for name in devices.split(",") if name.strip()]
    table = {name: device for name, device in load_devices().items() if device.triton_target is not None}
    each = [device for name in names for device in resolve_devices([name], table)]
    if not each:
        raise HarnessError(f"--simulate {devices!r}", "it names no device", "name devices or groups: `harness devices` lists them")
    click.echo(f"starting a head and {len(each)} nodes, which takes about {3 + 2 * len(each)} s", err=True)
    with suppress(KeyboardInterrupt), simulated_fleet(each) as fleet:
        click.echo(f"fleet at {fleet.address}: {', '.join(fleet.nodes)}")
        click.echo(f"  export RAY_AUTH_TOKEN_PATH={fleet.token}")
        click.echo(f"  harness fleet --address {fleet.address}")
        click.echo(f"  harness submit --matrix all --dispatcher ray --address {fleet.address}")
        click.echo("Ctrl-C ends it, or SIGTERM", err=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray, when it started, put its own in the place of ours
        threading.Event().wait()


def _row(node: dict[str, Any]) -> list[str]:
    yes = {True: "yes", False: "no"}
    counts = [str(node[name]) for name in ("units", "free_units", "cpus", "free_cpus")]
    return [node["name"], node["device"] or "-", yes[node["simulated"]], yes[node["alive"]], *counts, node["problem"] or ""]
