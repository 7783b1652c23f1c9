"""`harness devices`: the GPUs that the harness knows, with the figures it judges by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

    from harness.devices.table import Device

PIPED_WIDTH = 160
"""Columns of text when no terminal says how wide it is: wide enough that no cell is cut."""


@click.command(epilog="\b\nExample:\n  harness devices --format json")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print it.")
def command(form: str) -> None:
    """List the devices: every GPU that a matrix may name, and the interpreter.

    A device is a row of the harness's own table; its groups may be used wherever a device is named, and `all` means
    every row.
    """
    from harness.devices.table import load_devices

    devices = load_devices().values()
    if form == "json":
        import json

        click.echo(json.dumps([device_json(device) for device in devices], indent=2))
        return
    import sys

    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH).print(device_table(devices))


def device_json(device: Device) -> dict[str, Any]:
    """One device as plain data; `peak_gbps` in 10**9 bytes per second, `triton_target` null on the interpreter."""
    return {
        "device": device.name,
        "vendor": str(device.vendor),
        "model": device.model,
        "triton_target": device.triton_target,
        "peak_gbps": device.peak_gbps,
        "last_level_cache_bytes": device.last_level_cache_bytes,
        "groups": list(device.groups),
    }


def device_table(devices: Iterable[Device]) -> Table:
    """The devices as a table to read; memory in GiB and cache in MiB, `-` where there is nothing."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for header in ("device", "model", "Triton target"):
        table.add_column(header, no_wrap=True)
    for header in ("memory, GiB", "peak GB/s", "cache, MiB", "SMs or CUs"):
        table.add_column(header, no_wrap=True, justify="right")
    table.add_column("groups", no_wrap=True)
    for device in devices:
        table.add_row(
            device.name,
            device.model,
            device.triton_target or "-",
            f"{device.memory_bytes / 2**30:g}",
            f"{device.peak_gbps:g}",
            f"{device.last_level_cache_bytes / 2**20:g}",
            str(device.properties.multiprocessors),
            ", ".join(device.groups) or "-",
        )
    return table
