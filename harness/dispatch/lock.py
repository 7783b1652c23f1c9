"""One measurement at a time on a GPU: a lock of the whole host, keyed by the unit's UUID.

The kernel holds the lock for as long as its owner lives, so that one who died holds nothing up.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.devices.unit_files import open_for_everyone, unit_file
from harness.errors import Undecided

POLL_S = 0.5


def lock_file(uuid: str) -> Path:
    """Where the lock of a unit lies: one place for every user of the host."""
    return unit_file(uuid, ".lock")


@contextmanager
def unit_lock(uuid: str, cancelled: threading.Event) -> Iterator[None]:
    """Hold the unit inside the block; wait, with a warning that names the owner, while another process has it.

    Where `cancelled` is set while waiting, the block runs without the lock: it starts nothing then.

    Raises:
        Undecided: the lock file cannot be opened.
    """
    file = lock_file(uuid)
    try:
        descriptor = open_for_everyone(file)
    except OSError as error:
        raise Undecided(f"to lock unit {uuid}", f"{file}: {error.strerror}", "make that file writable, or remove it") from error
    try:
        told = False
        while not cancelled.is_set():
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                    logging.getLogger(__name__).warning("unit %s is being measured by process %s: waiting", uuid, owner)
                    told = True
                cancelled.wait(POLL_S)
            else:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                break
        yield
    finally:
        os.close(descriptor)
