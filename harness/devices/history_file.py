"""A unit's history on its host: a file of JSON lines, one a lease, which every user of the host reads and appends to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from harness.devices.history import PastLease
from harness.devices.unit_files import open_for_everyone, unit_file

TAIL_BYTES = 1 << 20
"""As much of the file's end is read: some 4,500 leases, of more than RECENT runs for all but huge ones."""


def history_file(uuid: str) -> Path:
    """Where the history of a unit lies, beside its lock."""
    return unit_file(uuid, ".history.jsonl")


def read_leases(uuid: str) -> list[PastLease]:
    """The unit's leases, the last appended last; none where there is no file. What is no lease, a torn line for instance, is passed
    over: leases are judged in numbers, and one line is never needed.

    Raises:
        OSError: the file is there and cannot be read, or something is in its end and no lease, which one long line would hide.
    """
    try:
        descriptor = os.open(history_file(uuid), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return []
    try:
        begin = max(0, _size(descriptor) - TAIL_BYTES)
        data = os.pread(descriptor, TAIL_BYTES, begin)
    finally:
        os.close(descriptor)
    leases = [lease for line in data.split(b"\n") if (lease := PastLease.from_line(line)) is not None]
    if data.strip() and not leases:
        raise OSError(None, f"its last {len(data)} bytes hold no lease")
    return leases


def append_lease(uuid: str, lease: PastLease) -> None:
    """Add a lease to the unit's history. Lines of several writers do not mix: each is one write at the file's end.

    Raises:
        OSError: the file cannot be written, or not whole.
    """
    line = lease.to_line()
    descriptor = open_for_everyone(history_file(uuid), os.O_APPEND | os.O_NONBLOCK)
    try:
        size = _size(descriptor)
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # the last line is torn
            line = b"\n" + line
        if (written := os.write(descriptor, line)) != len(line):
            raise OSError(None, f"{written} of {len(line)} bytes were written")
    finally:
        os.close(descriptor)


def _size(descriptor: int) -> int:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(None, "it is no file")
    return found.st_size
