"""Records the Triton launches that a call makes on the device in hand: kernel, grid, configuration, binary.

Record a call that has been made before: a first call may tune itself, and then launches every configuration.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import HarnessError
from harness.measure.config import config_text
from harness.measure.seams import replaced

BINARIES = ("cubin", "hsaco")
KEEPING = "L2::evict_last"
"""In PTX, of a load or of the policy that one is given (PTX ISA, Cache Eviction Priority Hints); AMD's assembly has no such hint."""


@dataclass(frozen=True)
class LaunchRecord:
    """One Triton kernel launch.

    Args:
        kernel: name of the compiled kernel.
        grid: programs as `x,y,z`.
        config: `num_warps=4,num_stages=3,BLOCK=1024`: what was chosen, then the constants of the kernel by name.
        binary_hash: SHA-256 of the cubin or hsaco.
        keeps: whether it asks the cache to keep what it loads.
    """

    kernel: str
    grid: str
    config: str
    binary_hash: str
    keeps: bool


@contextlib.contextmanager
def record_launches() -> Iterator[list[LaunchRecord]]:
    """Record every Triton launch made inside the block, in order; each runs as usual.

    Raises:
        HarnessError: Triton interprets its kernels in this process, so that there are no binaries.
        SeamError: this Triton has no longer what the recording hooks into.
    """
    from triton import knobs
    from triton.runtime.jit import JITFunction

    if knobs.runtime.interpret:
        raise HarnessError("record kernel launches", "TRITON_INTERPRET is set: nothing is compiled", "unset it in this process")
    launches: list[LaunchRecord] = []
    launch = JITFunction.run

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        asked = grid

        def noting(bound: Any) -> Any:
            nonlocal asked
            asked = grid(bound)
            return asked

        compiled = launch(function, *args, grid=noting if callable(grid) else grid, warmup=warmup, **kwargs)
        if compiled is not None and not warmup:
            launches.append(_record(compiled, asked))
        return compiled

    with replaced(JITFunction, "run", run):
        yield launches


def _record(compiled: Any, grid: Sequence[int]) -> LaunchRecord:
    code = next((compiled.asm[kind] for kind in BINARIES if kind in compiled.asm), None)
    if code is None:
        raise HarnessError(f"hash the binary of {compiled.name}", f"it was compiled to {', '.join(compiled.asm)}", "use a tested Triton")
    return LaunchRecord(
        compiled.name,
        ",".join(map(str, (*grid, 1, 1)[:3])),
        config_text(compiled.src, compiled.metadata),
        hashlib.sha256(code).hexdigest(),
        KEEPING in str(compiled.asm.get("ptx", "")),
    )
