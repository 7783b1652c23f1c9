"""Digests the Python code that decides how a variant launches: `launcher_digest`, which stands beside `binary_hash`.

The digest covers, whole, the file that declares the kernel, those that define the variant's launcher, `make_inputs` and the
cost model and, again and again, every file of the workspace that those import; where one of them may import or run what its
text does not name (importlib, runpy, exec, ...), every Python file of the workspace. Files of the workspace that are no Python,
which any of them may read, count too, by name and content. It leaves out the standard library, installed packages, torch,
triton and the harness: their versions are environment. Python files count by their syntax tree, so comments, blank lines and
line breaks change nothing, and neither do their names and folders. That is more than launches strictly depend on: an equal
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.authoring.catalogue import loaded_workspace
from harness.authoring.model import Kernel

ENGINE = ("harness", "torch", "triton")
"""Packages that are environment wherever they are installed."""
DYNAMIC_MODULES = frozenset({"importlib", "runpy", "imp", "pkgutil"})
DYNAMIC_CALLS = frozenset({"__import__", "exec", "eval", "compile"})
"""What may run code that a file's text does not name."""


def launcher_digest(kernel: Kernel, variant_name: str) -> str:
    """SHA-256, in hexadecimal, of the code that decides what one variant of a kernel launches.

    Raises:
        OSError: a function is defined in no file.
    """
    variant = kernel.variant(variant_name)
    found: dict[Path, str] = {}
    declared = list(_declaring(kernel))
    folders = _folders([path for path, _ in declared])
    functions: tuple[Callable[..., Any], ...] = (variant.call, kernel.make_inputs, variant.traffic or kernel.traffic, kernel.flops)
    waiting = [*declared, *map(_origin, functions)]
    while waiting:
        path, package = waiting.pop()
        if path in found:
            continue
        found[path], imports, is_dynamic = _syntax(path.read_text(encoding="utf-8"), package)
        waiting.extend(origin for name in imports if (origin := _workspace_module(name)) is not None)
        if is_dynamic:
            python = (file for folder in folders for file in _files(folder) if file.suffix == ".py")
            found |= {file: _digest(ast.parse(file.read_text(encoding="utf-8"))) for file in python if file not in found}
    digests = [*found.values(), *(_data_digest(folder) for folder in folders)]
    return hashlib.sha256("\n".join(sorted(filter(None, digests))).encode()).hexdigest()


def _declaring(kernel: Kernel) -> Iterator[tuple[Path, str]]:
    """File and package of the modules that declare this kernel, or another of the same inputs and reference."""
    for module in list(sys.modules.values()):
        # the dictionary itself: asking a module for an attribute may import
        names = getattr(module, "__dict__", {})
        declared, file = names.get("KERNEL"), names.get("__file__")  # what is typed at a prompt has no file
        same = isinstance(declared, Kernel) and (declared.make_inputs, declared.reference) == (kernel.make_inputs, kernel.reference)
        if same and file is not None:
            yield Path(file).resolve(), names.get("__package__") or ""


def _folders(declared: Sequence[Path]) -> tuple[Path, ...]:
    """The workspace's folders of code (its source files, where they are files), or where none is loaded those of the kernel's file."""
    workspace = loaded_workspace()
    if workspace is None or not any(file.is_relative_to(workspace.root.resolve()) for file in declared):
        return tuple({file.parent: None for file in declared})
    return tuple(path.resolve() for path in (workspace.kernels_dir, *(workspace.root / source for source in workspace.sources)))


@functools.cache
def _files(folder: Path) -> tuple[Path, ...]:
    """The files below a folder, or the one file that it is; without what Python or an editor keeps beside them."""
    if folder.is_file():
        return (folder,)
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return tuple(p for p in found if not any(part.startswith(".") or part == "__pycache__" for part in p.relative_to(folder).parts))


@functools.cache
def _data_digest(folder: Path) -> str | None:
    """Digest of the names and contents of the files that are no Python; None where there is none."""
    data = [path for path in _files(folder) if path.suffix not in (".py", ".pyc")]
    lines = [f"{path.relative_to(folder).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in data]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else None


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
def _syntax(text: str, package: str) -> tuple[str, tuple[str, ...], bool]:
    """Digest of a file's syntax tree, the dotted names that it may import, in functions too, and whether it may import others."""
    tree = ast.parse(text)
    names: set[str] = set()
    is_dynamic = False
    for node in ast.walk(tree):
        is_dynamic |= isinstance(node, ast.Name) and node.id in DYNAMIC_CALLS
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module or ""
            names.update(f"{base}.{alias.name}" for alias in node.names)
    with_parents = {name for full in names for name in _prefixes(full)}
    is_dynamic |= bool(with_parents & DYNAMIC_MODULES)
    return _digest(tree), tuple(sorted(with_parents)), is_dynamic


def _digest(tree: ast.AST) -> str:
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


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
