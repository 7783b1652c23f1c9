"""Whether code may import or read files that its import statements do not name. In doubt it may."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator

PLAIN = frozenset(
    [
        "__future__",
        "abc",
        "bisect",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "decimal",
        "enum",
        "fractions",
        "functools",
        "harness",
        "heapq",
        "itertools",
        "math",
        "numbers",
        "numpy",
        "operator",
        "random",
        "re",
        "statistics",
        "string",
        "textwrap",
        "time",
        "torch",
        "triton",
        "types",
        "typing",
        "typing_extensions",
        "warnings",
        "weakref",
    ]
)
"""Modules from outside of the workspace that lead to no file in it, but by `_LOADERS`. Of any other it is not known."""
_LOADERS = frozenset(
    [
        "authoring",
        "cpp_extension",
        "from_file",
        "fromfile",
        "genfromtxt",
        "hub",
        "load",
        "load_library",
        "loadtxt",
        "memmap",
        "package",
        "serialization",
    ]
)
"""What imports or reads files by name, in modules of PLAIN."""
_BUILTINS = frozenset(("__builtins__", "__import__", "compile", "eval", "exec", "open"))
_PLACES = frozenset(("__cached__", "__file__", "__loader__", "__path__", "__spec__"))
"""Where a module says which files lie beside it."""


def is_dynamic(module: ast.Module, is_own: Callable[[str], bool]) -> bool:
    """Whether a module may import or read files that its import statements do not name.

    Args:
        is_own: whether a name at the start of an import may be that of a module or package of the workspace.
    """
    nodes = list(ast.walk(module))
    imported = [one for node in nodes for one in _imported(node)]
    if any(_hides(name.split("."), is_own) for name, _ in imported):
        return True
    outside = {bound for name, bound in imported if name.partition(".")[0] in PLAIN - {"triton"}}
    return any(_loads(node, outside) for node in nodes)


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Whatever a statement imports, by its full name (a relative one begins with a dot) and the name that it is bound to."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = "." * node.level + (node.module or "")
        yield from ((f"{package}.{alias.name}", alias.asname or alias.name) for alias in node.names)


def _hides(name: list[str], is_own: Callable[[str], bool]) -> bool:
    """Whether more than what it names may come with an import: `*` takes what `__all__` lists, modules too."""
    first, last = name[0], name[-1]
    if last == "*":
        return True
    if first in PLAIN:
        return not _LOADERS.isdisjoint(name)
    return first != "" and (first in sys.stdlib_module_names or not is_own(first))


def _loads(node: ast.AST, outside: set[str]) -> bool:
    """Whether a name or an attribute imports or reads by name; a `load` of Triton's does not.

    Args:
        outside: names that modules of PLAIN, and what is in them, are bound to.
    """
    if isinstance(node, ast.Name):
        return node.id in _BUILTINS | _PLACES
    if isinstance(node, ast.Attribute):
        return node.attr in _PLACES or (node.attr in _LOADERS and _root(node) in outside)
    return False


def _root(node: ast.expr) -> str | None:
    """The name that a chain of attributes starts from."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
