"""The environment of a launch: what a record must say of the software and the device that made it."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import platform
import socket
from typing import Any

import harness
from harness.records import ENVIRONMENT


@functools.cache
def lock_digest() -> str:
    """Digest of every installed distribution and its version."""
    names = sorted({f"{d.metadata['Name']}=={d.version}".lower() for d in importlib.metadata.distributions()})
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def node_name() -> str:
    """The host's name."""
    return socket.gethostname()


def environment(target: str | None, *, on_unit: bool) -> dict[str, Any]:
    """The environment struct of this process.

    Args:
        target: Triton target of the device (`cuda 90`, `hip gfx942`), whose compiler is named; None in the interpreter.
        on_unit: whether this process uses a GPU, which is then described.
    """
    import torch
    import triton

    found: dict[str, Any] = dict.fromkeys(ENVIRONMENT)
    found |= {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "compiler": _compiler(target) if target else None,
        "python": platform.python_version(),
        "lock_digest": lock_digest(),
        "harness": harness.__version__,
    }
    return with_id(found | (_unit() if on_unit else {}))


def _unit() -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu_model": properties.name,
        "memory_bytes": properties.total_memory,
        "runtime": f"hip {torch.version.hip}" if torch.version.hip else f"cuda {torch.version.cuda}",
    }


def with_id(found: dict[str, Any]) -> dict[str, Any]:
    """The struct with its id: a digest of everything else in it."""
    content = json.dumps({k: v for k, v in found.items() if k != "id"}, sort_keys=True)
    return {**found, "id": hashlib.sha256(content.encode()).hexdigest()[:16]}


def _compiler(target: str) -> str:
    backend, arch = target.split()
    if backend == "hip":
        import triton

        return f"llvm of triton {triton.__version__}"
    from triton import knobs

    # Triton brings a second assembler for the newest architectures
    blackwell = getattr(knobs.nvidia, "ptxas_blackwell", None)
    tool = blackwell if int(arch) >= 100 and blackwell is not None else knobs.nvidia.ptxas
    return f"ptxas {tool.version}"
