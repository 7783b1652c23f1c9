"""What a launch on a GPU compiles: it reads what static jobs compiled ahead of it, and counts what was left to compile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from triton import knobs
from triton.runtime import driver

from harness.measure.sources import launcher_digest
from harness.measure.subject import Subject


def cache_of(root: Path, digest: str) -> Path:
    """Triton's cache of one launcher digest: its own key misses constants that a kernel reads from another module."""
    return root / digest[:32]


def in_cache(folder: str, call: Callable[[], Any]) -> Any:
    """Make a call with Triton's cache in another folder."""
    before = knobs.cache.dir
    knobs.cache.dir = folder
    try:
        return call()
    finally:
        knobs.cache.dir = before


class Compiles:
    """Compilations of the cell in hand that no cache answered.

    Args:
        engine_cache: folder in which Triton keeps what no variant owns: the engine's kernels, and the module by which its driver
            speaks to the GPU, which is built when a process first does; None: with those of the variant in hand.
    """

    def __init__(self, engine_cache: str | None) -> None:
        self.count = 0
        self._root = Path(knobs.cache.dir)
        if engine_cache:
            in_cache(engine_cache, lambda: driver.active.utils)

    def begin(self, subject: Subject) -> None:
        """Count anew, and read and write the cache that the static kind fills for this variant."""
        self.count = 0
        knobs.cache.dir = str(cache_of(self._root, launcher_digest(subject.kernel, subject.variant_name)))
        knobs.compilation.listener = self._note

    def _note(self, *, cache_hit: bool, **_: Any) -> None:
        self.count += not cache_hit
