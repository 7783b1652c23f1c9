"""The folder of one run on one node: code, launch caches and logs; whoever leaves last removes it, and a killed worker's is swept."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from harness.errors import Undecided

LOCK = ".lock"


class NodeFolder:
    """A folder that several workers of a run share on a node, held by a shared lock.

    Args:
        run_id: the run.
        node: the node, since simulated nodes share one host.
        base: where the folders of all runs lie (default: one of this user's own in the temporary folder).

    Raises:
        Undecided: `base` is somebody else's.
    """

    def __init__(self, run_id: str, node: str, base: Path | None = None) -> None:
        base = base or Path(tempfile.gettempdir()) / f"harness-{os.getuid()}"
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if base.stat().st_uid != os.getuid() or base.is_symlink():
            raise Undecided(f"the worker's folder {base}", "it belongs to somebody else", "remove it, or set TMPDIR where Ray is started")
        name = re.sub(r"[^A-Za-z0-9.@_-]", "_", f"{run_id}@{node}")
        self.path = base / name
        while True:
            self.path.mkdir(mode=0o755, exist_ok=True)
            self._lock = _open(self.path)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            if (self.path / LOCK).exists():
                break
            os.close(self._lock)  # somebody swept it in between
        for other in base.iterdir():
            if other.is_dir() and other != self.path:
                _remove_unless_held(other)

    def close(self) -> None:
        """Leave it; removed where nobody else is in it."""
        os.close(self._lock)
        _remove_unless_held(self.path)


def _open(folder: Path) -> int:
    return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _remove_unless_held(folder: Path) -> None:
    with suppress(OSError):
        lock = _open(folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path, _, _ in os.walk(folder):
                Path(path).chmod(0o755)  # code lies read-only
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
