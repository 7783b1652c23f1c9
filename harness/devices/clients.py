"""Tells the harness's own processes on a GPU from those of others, by who descends from whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path


class Clients:
    """Who computes on one GPU, look by look.

    A driver may number processes by another namespace than ours (a container's), or hide those of others: what it lists is
    believed once one of our own was among it.

    Args:
        root: the process that the harness runs in; what descends from it is our own.
        proc: where Linux tells of processes.
    """

    def __init__(self, root: int, proc: Path = Path("/proc")) -> None:
        self._root, self._proc = root, proc
        self._own: set[int] = set()
        self._suspects: set[int] = set()

    def others(self, processes: Sequence[int] | None) -> list[int] | None:
        """Those of the listed processes that are not our own; None where that is not known.

        A process is another's in its second look running: at the end of one of our own, its line may be cut, or it may be listed
        and gone.
        """
        if processes is None:
            return None
        self._own |= {pid for pid in set(processes) - self._own if self._root in self._ancestry(pid)}
        suspects = set(processes) - self._own
        strangers = sorted(suspects & self._suspects)
        self._suspects = suspects
        return strangers if self._own else None

    def _ancestry(self, pid: int) -> Iterator[int]:
        """A process, its parent, and so on; nothing where there is no such process."""
        while pid > 0:
            try:
                stat = (self._proc / str(pid) / "stat").read_text()
            except OSError:
                return
            yield pid
            pid = int(stat.rpartition(")")[2].split()[1])  # a name may hold blanks and brackets
