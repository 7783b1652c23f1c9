"""Every error the harness raises on purpose; the command line alone turns them into exit codes.

HarnessError                    exit 2   bad input: asked, found, do next
|-- WorkspaceError              no [tool.harness], bad TOML, no kernels/
|-- DeviceTableError            devices.toml: a row or a field that is not one
|-- KernelFileError             a kernel file that cannot be read: file and line are named
|-- UnknownNameError            a kernel, device, matrix, kind, metric or run nobody declared
|-- RefError                    a git ref that does not resolve, or no git at all
|-- DocumentError               diff.json: not one, or of another format
|-- GitHubError                 GitHub cannot be reached with what the environment says
|-- StoreError                  unreadable, foreign or newer Parquet; a run that may not be accepted
`-- Undecided                   exit 3   nothing to compare, no baseline, infrastructure
    `-- ProbeFailed             a GPU driver is here, but its GPUs cannot be listed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

FEW = 20
"""So many names are given whole; of more, the NEAREST."""
NEAREST = 10


class HarnessError(Exception):
    """An error with three parts: what was asked, what was found, what to do next.

    Args:
        asked: what the user or the caller wanted, with the value it named.
        found: what is there instead, with the value.
        do: the next step that would help.
    """

    exit_code = 2

    def __init__(self, asked: str, found: str, do: str) -> None:
        self.asked, self.found, self.do = asked, found, do
        super().__init__(f"asked: {asked}\nfound: {found}\ndo next: {do}")


class WorkspaceError(HarnessError):
    """The workspace (pyproject.toml, kernels/, jobs/) cannot be used."""


class KernelFileError(HarnessError):
    """A kernel file cannot be imported or declares something inconsistent."""


class UnknownNameError(HarnessError):
    """A name that nothing declares."""

    @classmethod
    def of(cls, what: str, name: str, known: Iterable[str], do: str | None = None, lists: str | None = None) -> UnknownNameError:
        """Build the error for `name`, suggesting the closest of `known`; of more names than fit, the nearest are given.

        Args:
            do: what to do next, in the place of the suggestion.
            lists: the command that lists all there are, named where not all are given here.
        """
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1)
        hint = do or (f"use {close[0]!r}" if close else "choose one of those named above")
        between = "; " if any("," in one for one in names) else ", "
        if len(names) <= FEW:
            return cls(f"{what} {name!r}", f"known: {between.join(names) or '(none)'}", hint)
        nearest = difflib.get_close_matches(name, names, n=NEAREST, cutoff=0)
        found = f"the nearest of those known: {between.join(nearest)}; and {len(names) - len(nearest)} more"
        return cls(f"{what} {name!r}", found, f"{hint}; {lists} lists all" if lists else hint)


class RefError(HarnessError):
    """A ref does not resolve to code or to records."""


class StoreError(HarnessError):
    """Stored records cannot be read, or may not be written."""


class Undecided(HarnessError):
    """There is not enough evidence for a verdict."""

    exit_code = 3
