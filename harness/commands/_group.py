"""A group of commands that answers an unknown one in the three parts of every error."""

from __future__ import annotations

import click


class Group(click.Group):
    """As click's, but an unknown command names those there are and the nearest."""

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
