"""The journal: what became of each cell, one line each, and which cells were measured again, on disk before it counts.

A line is written whole and flushed to the disk; a torn last line (the machine stopped while writing) is dropped when
read, and its cell runs again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HarnessError, Undecided
from harness.records import Cell, Record

JOURNAL = "journal.jsonl"
"""Its name in a run's folder."""

Key = tuple[str, Cell]
"""A kind and a cell: what a plan expects and a run answers."""


@dataclass(frozen=True)
class Again:
    """From here on, what is said of these cells is of another round of all their launches."""

    cells: tuple[Key, ...]


Entry = list[Record] | Again


class Journal:
    """The journal of one run, locked against a second writer.

    Raises:
        HarnessError: another process writes this run, or a line of its journal cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seq = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._fd)
            raise HarnessError(
                f"run {path.parent.name}", "another process is running it", "wait for that one to end, or stop it, then --resume"
            ) from error
        try:
            whole, self.entries = read_entries(path)
            os.ftruncate(self._fd, whole)
            os.lseek(self._fd, whole, os.SEEK_SET)
        except BaseException:
            os.close(self._fd)  # whoever mends the file may open it again in this process
            raise
        self.seq = max((r.seq + 1 for entry in self.entries if not isinstance(entry, Again) for r in entry), default=0)

    def append(self, records: Sequence[Record]) -> None:
        """Write the records of one cell, durably, all or none.

        Raises:
            Undecided: the disk is full or fails; the journal keeps what it had.
        """
        self._write([r.to_json() for r in records])

    def begin_again(self, cells: Iterable[Key]) -> None:
        """Write, durably, that these cells are measured again.

        Raises:
            Undecided: as `append`.
        """
        self._write({"again": [[kind, str(cell)] for kind, cell in cells]})

    def _write(self, entry: object) -> None:
        data = json.dumps(entry, allow_nan=False).encode() + b"\n"
        start = os.lseek(self._fd, 0, os.SEEK_CUR)
        try:
            written = 0
            while written < len(data):
                written += os.write(self._fd, data[written:])
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, start)
            os.lseek(self._fd, start, os.SEEK_SET)  # else a later line would stand behind a hole
            do = f"make room, then: harness submit --resume {self.path.parent.name}, with --store, --dispatcher and --address as before"
            raise Undecided(f"to write {self.path}", f"{error.strerror}", do) from error

    def close(self) -> None:
        """Release the lock."""
        os.close(self._fd)


def read_entries(path: Path) -> tuple[int, list[Entry]]:
    """The length of the whole part of a journal in bytes, and its entries in order.

    Raises:
        HarnessError: a line other than the last cannot be read.
    """
    data = path.read_bytes() if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    entries: list[Entry] = []
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            entry = json.loads(line)
            if isinstance(entry, dict):
                entries.append(Again(tuple((str(kind), Cell.parse(cell)) for kind, cell in entry["again"])))
                continue
            if not isinstance(entry, list) or not entry:
                raise ValueError(f"it is no list of records: {line[:40].decode(errors='replace')!r}")
            entries.append([Record.from_json(record) for record in entry])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise HarnessError(
                f"journal {path}", f"line {number} cannot be read: {error}", "the file was changed by hand; restore it, or submit anew"
            ) from error
    return whole, entries
