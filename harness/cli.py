"""The command line: a group that finds its verbs in harness/commands, one file a verb.

Help must be quick: a verb's module imports click alone at its top, and what it needs inside its function.
"""

from __future__ import annotations

import atexit
import importlib
import io
import os
import pkgutil
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

import click

import harness.commands
from harness.commands._group import Group
from harness.errors import HarnessError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


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

    Exit code 1 means that something got worse, so no fault of ours or of the machine may end with it. A verb whose output nobody
    reads goes to its end and keeps its exit code; one whose output cannot be written never ends with 0.
    """
    out, sys.stdout = _stream(1, sys.stdout)
    _, sys.stderr = _stream(2, sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` has it
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        status = group.main(prog_name="harness", standalone_mode=False)
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
        _say(str(error), "mend that (is the disk full?) and repeat")
        status = 3
    except Exception:
        traceback.print_exc()
        click.echo("harness: this is a defect of the harness; nothing was decided", err=True)
        status = 3
    status = status if isinstance(status, int) else 0
    sys.stdout.flush()
    if out.lost is not None and not isinstance(out.lost, BrokenPipeError):
        _say(f"its output cannot be written: {out.lost.strerror}", "make room where its output goes, or send it elsewhere, and repeat")
        status = status or 3
    sys.exit(status)


class _Output(io.FileIO):
    """A descriptor that takes all it is given: what it could not write is lost, and why is kept in `lost`."""

    lost: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        """Write what can be written; none of it once something was lost."""
        if self.lost is None:
            try:
                return super().write(data)
            except OSError as error:
                self.lost = error
        return memoryview(data).nbytes


def _stream(descriptor: int, now: TextIO | None) -> tuple[_Output, TextIO]:
    """An output of this process and the stream that writes to it, in the place of `now`, which is None where it was closed."""
    if now is None:  # the next file to be opened would take its number, and what is printed by a child
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        os.set_inheritable(descriptor, True)
    output = _Output(descriptor, "w", closefd=False)
    encoding, errors = (now.encoding, now.errors) if now else (None, "backslashreplace")
    return output, io.TextIOWrapper(io.BufferedWriter(output), encoding, errors, line_buffering=True)


def _say(found: str, do: str) -> None:
    click.echo(f"harness: asked: {shlex.join(['harness', *sys.argv[1:]])}\nfound: {found}\ndo next: {do}", err=True)


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
