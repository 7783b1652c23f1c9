"""`harness doctor`: is this machine fit to measure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from harness.commands import _options

if TYPE_CHECKING:
    from harness.devices.fitness import Check
    from harness.devices.health import Health

WIDTH = 24
"""Characters of a check's name: `temperature GPU-bb6e8c61`."""


@click.command(epilog="\b\nExamples:\n  harness doctor\n  harness doctor --format json")
@_options.format_text_json
def command(output: str) -> int:
    """Check whether this machine and its GPUs are fit to measure; nothing is set or changed.

    One line a check: ok, warn (measuring works, and you should know) or fail, what was found, and what to do. A driver or a
    library that does not answer within 30 s is a fail. Without a GPU, all that would be asked of one is a single warning.

    Ends with exit code 0 where nothing fails, else 1.
    """
    from collections import Counter

    from harness.devices.fitness import Level

    done = []
    for check in _checks():
        done.append(check)
        if output == "text":
            click.echo(f"{check.level:<4}  {check.name:<{WIDTH}}  {check.found}" + (f"; do: {check.do}" if check.do else ""))
    levels = Counter(check.level for check in done)
    code = 1 if levels[Level.FAIL] else 0
    if output == "json":
        import json
        from dataclasses import asdict

        click.echo(json.dumps({"checks": [asdict(check) for check in done], "exit_code": code}, indent=2))
        return code
    verdict = "not fit to measure" if code else "fit" if any(c.name.startswith("gpu ") for c in done) else "fit for what needs no GPU"
    click.echo(f"{verdict} (exit code {code}): " + ", ".join(f"{levels[level]} {level}" for level in Level))
    return code


def _checks() -> Iterator[Check]:
    import os

    from harness.commands import _host_checks as host
    from harness.devices.fitness import Level
    from harness.devices.probe import DRIVERS

    yield host.check_python()
    yield host.check_git()
    yield from host.check_folders(os.environ)
    gpus: list[Health] = []
    yield from _gpu(gpus)
    yield from host.check_histories([gpu.uuid for gpu in gpus])
    runtimes = (gpu.readings.get("newest_runtime") for gpu in gpus if gpu.readings)
    vendors = [str(vendor) for vendor, driver in DRIVERS.items() if gpus and driver.exists()]
    importable = True
    for check in host.check_libraries(vendors, next(filter(None, runtimes), None)):
        importable &= check.name == "ray" or check.level is not Level.FAIL
        yield check
    yield from host.check_launch(importable)


def _gpu(gpus: list[Health]) -> Iterator[Check]:
    """The checks of every GPU, which are put into `gpus`; one warning where there is none."""
    from harness.devices.fitness import Check, Level, gpu_checks
    from harness.devices.health import has_driver, read_health
    from harness.devices.probe import CannotList

    try:
        gpus += read_health()
    except CannotList as error:
        yield Check("driver", Level.FAIL, error.found, error.do)
        return
    if gpus:
        yield from gpu_checks(gpus)
        return
    why = "a driver is here and lists none that you may use" if has_driver() else "no driver of one either"
    yield Check("gpu", Level.WARN, f"no GPU here ({why})", "kernels are compiled and interpreted here; time them where a GPU is")
