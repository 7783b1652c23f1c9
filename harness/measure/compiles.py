"""What a launch on a GPU compiles: it reads what static jobs compiled ahead of it, and counts what was left to compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from triton import knobs

from harness.measure.sources import launcher_digest
from harness.measure.subject import Subject


def cache_of(root: Path, digest: str) -> Path:
    """Triton's cache of one launcher digest: its own key misses constants that a kernel reads from another module."""
    return root / digest[:32]


class Compiles:
    """Compilations of the cell in hand that no cache answered."""

    def __init__(self) -> None:
        self.count = 0
        self._root = Path(knobs.cache.dir)

    def begin(self, subject: Subject) -> None:
        """Count anew, and read and write the cache that the static kind fills for this variant."""
        self.count = 0
        knobs.cache.dir = str(cache_of(self._root, launcher_digest(subject.kernel, subject.variant_name)))
        knobs.compilation.listener = self._note

    def _note(self, *, cache_hit: bool, **_: Any) -> None:
        self.count += not cache_hit
