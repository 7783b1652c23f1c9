"""Files that a host keeps of a unit, keyed by its UUID: one place for every user of the host."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

EVERYONE = 0o666


def unit_file(uuid: str, suffix: str) -> Path:
    """Where a file of a unit lies: in the folder for temporary files, which every user may write.

    Args:
        suffix: what the file is, `.lock`.
    """
    return Path(tempfile.gettempdir()) / f"harness-unit-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}{suffix}"


def open_for_everyone(file: Path, flags: int = 0) -> int:
    """A descriptor of the file, to read and write; made, writable by every user, where it is not there.

    Linux refuses to *create* another user's file in a sticky folder even where it is there and may be written
    (fs.protected_regular), so it is first opened as it is.

    Args:
        flags: of `os.open`, beside those that open for reading and writing.

    Raises:
        OSError: it cannot be opened or made, or is a link.
    """
    how = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags
    try:
        return os.open(file, how)
    except FileNotFoundError:
        descriptor = os.open(file, how | os.O_CREAT, EVERYONE)
        os.fchmod(descriptor, EVERYONE)  # whatever the umask is
        return descriptor
