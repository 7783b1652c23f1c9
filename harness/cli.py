"""The command line: a group that finds its verbs in harness/commands, one file a verb.

Help must be quick: a verb's module imports click alone at its top, and what it needs inside its function.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pkgutil
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

import click

import harness.commands
from harness.commands._group import Group
from harness.errors import HarnessError


class Verbs(Group):
    """A group whose commands are the modules of harness.commands that have a `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every verb, sorted."""
        return sorted(m.name for m in pkgutil.iter_modules(harness.commands.__path__) if not m.name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of that name, or None."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"harness.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(harness.__version__, prog_name="harness")
def group() -> None:
    """Regression and CI harness for GPU kernels.

    \b
    harness submit --matrix all     prove every kernel right, compile it for every GPU, time it where a GPU is
    harness diff main..pr           what a change did to latency, GB/s and numerical drift

    Exit codes: 0 pass; 1 a regression, a wrong result or drift; 2 usage; 3 undecided; 130 cancelled.
    """


def main() -> None:
    """Run the command line; the one place where errors become exit codes.

    Exit code 1 means that something got worse, so no fault of ours or of the machine may end with it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` has it
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        status = group.main(standalone_mode=False)
    except HarnessError as error:
        click.echo(f"harness: {error}", err=True)
        status = error.exit_code
    except click.exceptions.Abort:
        status = 130
    except KeyboardInterrupt:
        status = 130
    except click.ClickException as error:
        error.show()
        status = 2
    except OSError as error:
        click.echo(f"harness: asked: {' '.join(sys.argv[1:])}\nfound: {error}\ndo next: mend that (is the disk full?) and repeat", err=True)
        status = 3
    except Exception:
        traceback.print_exc()
        click.echo("harness: this is a defect of the harness; nothing was decided", err=True)
        status = 3
    sys.exit(status if isinstance(status, int) else 0)


def run() -> None:
    """`main` in a process of its own, which ends with its exit code whatever else is in it.

    Arrow's worker threads have aborted the process while its libraries were taken down, after all had been said: a verdict of 0 ended
    with SIGABRT. What Python does at an end is done, and then the process leaves.
    """
    ended = [3]
    atexit.register(_leave, ended)  # the first to be registered is the last to be called
    try:
        main()
    except SystemExit as end:
        ended[0] = end.code if isinstance(end.code, int) else 0
        raise


def _leave(ended: Sequence[int]) -> None:
    with suppress(OSError, ValueError):  # nobody listens any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(ended[0])


if __name__ == "__main__":
    run()
