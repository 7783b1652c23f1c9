"""Writes the configuration of a compiled kernel as one line of text, the same for static jobs and for launches."""

from __future__ import annotations

from typing import Any

import triton.language
import triton.runtime.jit
from triton.compiler.compiler import make_backend


def config_text(source: Any, metadata: Any) -> str:
    """`num_warps=4,num_stages=3,BLOCK=1024` of a compiled kernel: warps, stages, options that are not the backend's default,
    constexprs.

    Args:
        source: the kernel's `ASTSource`.
        metadata: of the compiled kernel.
    """
    defaults = vars(make_backend(metadata.target).parse_options({}))
    shown = {"num_warps": metadata.num_warps, "num_stages": metadata.num_stages}
    for name, default in defaults.items():
        value = getattr(metadata, name, default)
        if name not in shown and isinstance(value, int | float | str | None) and value != default:
            shown[name] = value
    for path, value in getattr(source, "constants", {}).items():
        parameter = source.fn.params[path[0]]
        if parameter.is_constexpr:
            shown[parameter.name] = _plain(value)
    return ",".join(f"{name}={value}" for name, value in shown.items())


def _plain(value: Any) -> str:
    """A constexpr as text that is equal from process to process."""
    if isinstance(value, triton.runtime.jit.JITCallable):
        return str(value.__name__)
    if isinstance(value, triton.language.constexpr):
        return _plain(value.value)
    return str(value)
