"""Digests the Python code that decides how a variant launches: `launcher_digest`, which stands beside `binary_hash`.

The digest covers, whole, the files that define the variant's launcher, the kernel's `make_inputs` and its cost model
(so the file that declares the kernel, when launcher and inputs come from elsewhere) and, again and again, every file of
the workspace that those import. It leaves out the standard library, installed packages, torch,
triton and the harness: their versions are environment. Files count by their syntax tree, so comments, blank lines and
line breaks change nothing, and neither do file and folder names. That is more than launches strictly depend on: an equal
digest proves equal launcher code, a different one proves nothing.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.authoring.model import Kernel

ENGINE = ("harness", "torch", "triton")
"""Packages that are environment wherever they are installed."""


def launcher_digest(kernel: Kernel, variant_name: str) -> str:
    """SHA-256, in hexadecimal, of the code that decides what one variant of a kernel launches.

    Raises:
        OSError: a function is defined in no file.
    """
    variant = kernel.variant(variant_name)
    found: dict[Path, str] = {}
    waiting = [_origin(function) for function in (variant.call, kernel.make_inputs, kernel.traffic, kernel.flops)]
    while waiting:
        path, package = waiting.pop()
        if path in found:
            continue
        found[path], imports = _syntax(path.read_text(encoding="utf-8"), package)
        waiting.extend(origin for name in imports if (origin := _workspace_module(name)) is not None)
    return hashlib.sha256("\n".join(sorted(found.values())).encode()).hexdigest()


def _origin(function: Callable[..., Any]) -> tuple[Path, str]:
    """The file that defines a function, and the package from which its relative imports start."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not inspect.isroutine(function):
        function = type(function).__call__
    path = Path(inspect.getsourcefile(function) or inspect.getfile(function))
    return path.resolve(), getattr(function, "__globals__", {}).get("__package__") or ""


@functools.cache
def _syntax(text: str, package: str) -> tuple[str, tuple[str, ...]]:
    """Digest of a file's syntax tree, and the dotted names that it may import, in functions too."""
    tree = ast.parse(text)
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module or ""
            names.update(f"{base}.{alias.name}" for alias in node.names)
    with_parents = {name for full in names for name in _prefixes(full)}
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), tuple(sorted(with_parents))


def _prefixes(name: str) -> Iterator[str]:
    """`a.b.c` -> `a`, `a.b`, `a.b.c`: importing one imports them all."""
    parts = name.split(".")
    yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def _workspace_module(name: str) -> tuple[Path, str] | None:
    """File and package of an imported name, or None where it is no module or none of the workspace's."""
    if name.partition(".")[0] in ENGINE or name.partition(".")[0] in sys.stdlib_module_names:
        return None
    path = _loaded_file(name) or _file_on_path(name)
    if path is None or path.suffix != ".py" or any(path.is_relative_to(folder) for folder in _installed()):
        return None
    return path, name if path.name == "__init__.py" else name.rpartition(".")[0]


def _loaded_file(name: str) -> Path | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file).resolve() if file else None


def _file_on_path(name: str) -> Path | None:
    """A module that no launch has imported yet: found as the import system would, without running it."""
    top, *rest = name.split(".")
    loaded = getattr(sys.modules.get(top), "__path__", None)
    starts = [Path(folder) for folder in loaded] if loaded is not None else [Path(folder, top) for folder in sys.path]
    for start in starts:
        module = start.joinpath(*rest)
        for candidate in (module / "__init__.py", module.with_suffix(".py")):
            if candidate.is_file():
                return candidate.resolve()
    return None


@functools.cache
def _installed() -> tuple[Path, ...]:
    """Folders of installed packages and of the standard library."""
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update(site.getsitepackages(), [site.getusersitepackages()])
    return tuple(Path(folder).resolve() for folder in folders)
