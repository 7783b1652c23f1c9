"""Says in one line why Triton cannot build a kernel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction, get_jit_fn_file_line


def summarise(error: BaseException, kernel: JITFunction[Any]) -> str:
    """Kernel, the innermost source line that Triton blames, and what is wrong with it; one line, equal from run to run."""
    return f"{kernel.__name__}: {_summarise(error, kernel)}"


def _summarise(error: BaseException, kernel: JITFunction[Any]) -> str:
    if isinstance(error, OutOfResources):
        return f"out of {error.name}: needs {error.required}, the target has {error.limit}"
    place = ""
    # A compilation error in a function that the kernel calls is the cause of one in the kernel.
    while isinstance(error, CompilationError):
        place = _place(error, kernel) or place
        if not isinstance(error.__cause__, Exception):
            return place + _headline(error.error_message or type(error).__name__)
        error = error.__cause__
    return place + _headline(f"{type(error).__name__}: {error}")


def _place(error: CompilationError, kernel: JITFunction[Any]) -> str:
    """The blamed line; with file and number where it is the kernel's own, for Triton does not say which file a helper is in."""
    line = getattr(error.node, "lineno", None)
    if error.src is None or line is None:
        return ""
    text = f"`{error.src.splitlines()[line - 1].strip()}`: "
    if error.src != kernel.src:
        return text
    _, first = get_jit_fn_file_line(kernel)
    return f"{Path(kernel.fn.__code__.co_filename).name}:{first + line - 1} {text}"


def _headline(text: str) -> str:
    """The first line that speaks of an error, else the first; without the names of ptxas's temporary files."""
    lines = [re.sub(r"\S+\.ptx\b", "PTX", " ".join(line.split())) for line in text.splitlines() if line.strip()]
    return next((line for line in lines if re.search(r"\b(error|fatal)\s*:", line)), lines[0] if lines else "")
