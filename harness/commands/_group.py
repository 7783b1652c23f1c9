"""A group of commands that answers an unknown one, and whatever else click refuses, in the three parts of every error."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any

import click


class Group(click.Group):
    """As click's, but an unknown command names those there are and the nearest, and a usage error has three parts."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **settings: Any) -> Any:
        """As click's; its usage errors are ours.

        Raises:
            HarnessError: an option or argument that is none, is missing, or has an unfit value.
        """
        try:
            return super().main(args, *rest, **settings)
        except click.exceptions.NoArgsIsHelpError:  # that is no error's text, but the help
            raise
        except click.UsageError as error:
            raise _in_three_parts(error, sys.argv[1:] if args is None else args) from error

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names, and what is left for it.

        Raises:
            UnknownNameError: there is none of that name.
            UsageError: it is no name, but an option.
        """
        from harness.errors import UnknownNameError

        name = args[0]
        if name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        what, own = (f"verb of {ctx.info_name}", f"harness {ctx.info_name}") if ctx.parent else ("verb", "harness")
        error = UnknownNameError.of(what, name, self.list_commands(ctx))
        raise UnknownNameError(error.asked, error.found, f"{error.do}; `{own} --help` says what each does")


def _in_three_parts(error: click.UsageError, args: Sequence[str]) -> Exception:
    from harness.errors import HarnessError

    found, use = error.format_message().removesuffix("."), ""
    if isinstance(error, click.NoSuchOption):
        found = f"no option {error.option_name}"
        use = f"use {' or '.join(sorted(error.possibilities))}; " if error.possibilities else ""
    verb = error.ctx.command_path if error.ctx else " ".join(["harness", *args[:1]])
    return HarnessError(shlex.join(["harness", *args]), found[:1].lower() + found[1:], f"{use}`{verb} --help` says what it takes")
