"""Options that choose what carries the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.dispatch.protocol import Dispatcher

dispatcher = click.option(
    "--dispatcher", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="What carries the jobs."
)
address = click.option(
    "--address", metavar="HOST:PORT|local", help="Head of the Ray cluster, or `local` to start one here (the default of --dispatcher ray)."
)
max_queue = click.option(
    "--max-queue", "max_queue", type=click.FloatRange(0), metavar="SECONDS", help="Give a job up when others hold its device for so long."
)


def make_dispatcher(name: str, address: str | None, slots: int | None, max_queue: float | None = None) -> Dispatcher:
    """The dispatcher of that name.

    Args:
        address: of a Ray cluster; `local` where none is given.
        slots: jobs at a time that need no GPU.
        max_queue: seconds that a job waits while others hold its device.

    Raises:
        HarnessError: an option of `ray` with another dispatcher, or an address that is none.
    """
    from harness.errors import HarnessError

    if name == "local":
        if address is not None or max_queue is not None:
            given = "--address" if address is not None else "--max-queue"
            raise HarnessError(f"{given} with --dispatcher {name}", "it belongs to --dispatcher ray", f"add that, or leave {given} out")
        from harness.dispatch.local import LocalDispatcher

        return LocalDispatcher(slots)
    from harness.dispatch.ray.dispatcher import RayDispatcher

    return RayDispatcher(address or "local", slots, max_queue)
