"""What a static job knows of a kernel launch: the binary, its grid and its configuration."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.measure.binary import Resources


@dataclass(frozen=True)
class Binary:
    """One compiled kernel.

    Args:
        name: the kernel's name in the binary.
        code: cubin or hsaco.
        assembly: the file with the PTX or AMD assembly it was made from.
    """

    name: str
    code: bytes
    assembly: Path
    resources: Resources
    sha256: str


@dataclass(frozen=True)
class Configured:
    """A kernel in one configuration, as it would be launched.

    Args:
        kernel: the kernel function's name.
        grid: programs along x, y, z.
        config: `num_warps=4,num_stages=3,BLOCK=1024`: warps, stages, options that are not the backend's default, constexprs.
        shared_bytes: dynamic shared memory of a block.
        signature: type of each argument, by name, `constexpr` where specialisation made it constant.
        attributes: what Triton may assume of arguments, by position (`tt.divisibility`, `tt.pointer_range`).
        spill_bytes: bytes of register spill a thread.
    """

    kernel: str
    binary: Binary
    grid: tuple[int, int, int]
    config: str
    shared_bytes: int
    signature: dict[str, Any]
    attributes: dict[tuple[int, ...], Any]
    spill_bytes: int


@dataclass(frozen=True)
class Launch:
    """One kernel launch: one configuration, or all those that its autotuner would choose from.

    Args:
        choices: sorted by configuration.
        refused: why the target cannot run further configurations, which an autotuner therefore drops; sorted.
    """

    choices: tuple[Configured, ...]
    refused: tuple[str, ...] = ()

    @property
    def binary_hash(self) -> str:
        """SHA-256 of the binary; with several configurations, of the set of them: configuration, grid and binary."""
        if len(self.choices) == 1 and not self.refused:
            return self.choices[0].binary.sha256
        lines = [f"{c.config} {_xyz(c.grid)} {c.binary.sha256}" for c in self.choices]
        return hashlib.sha256("\n".join(sorted([*lines, *self.refused])).encode()).hexdigest()

    @property
    def grid(self) -> str:
        """`x,y,z`; with several configurations, each one's."""
        return " | ".join(_xyz(c.grid) for c in self.choices)

    @property
    def config(self) -> str:
        """The configuration, or all of them."""
        return " | ".join(c.config for c in self.choices)


def _xyz(grid: tuple[int, int, int]) -> str:
    return ",".join(map(str, grid))
