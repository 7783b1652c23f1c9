"""Finds the line of a commit's kernel files that an annotation stands on; the files are parsed, never imported."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.plan.git import Git


@dataclass(frozen=True)
class Line:
    """A line of a file: `path` relative to the repository's root, `line` from 1."""

    path: str
    line: int


def locate(git: Git, commit: str, kernels: Collection[str]) -> dict[str, Line]:
    """Kernel -> its line at a commit. A kernel that no file there declares, or whose commit is not in this clone, is left out."""
    if not kernels or git.commit(commit) is None:
        return {}
    found = {}
    for path, source in _files(git, commit):
        try:
            module = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):  # such a file declares no kernel at this commit
            continue
        name = _declared_name(module) or path.rpartition("/")[2].removesuffix(".py")
        if name in kernels:
            found[name] = Line(path, _line(module))
    return found


def _files(git: Git, commit: str) -> Iterator[tuple[str, str]]:
    folder = f"{git.prefix}kernels/"
    names = git.raw("ls-tree", "-z", "--name-only", "--full-tree", commit, "--", folder).decode("utf-8", "surrogateescape")
    for path in filter(None, names.split("\0")):
        if path.endswith(".py") and not path.removeprefix(folder).startswith("_"):
            yield path, git.raw("show", f"{commit}:{path}").decode("utf-8", "replace")


def _declared_name(module: ast.Module) -> str | None:
    """What `KERNEL = Kernel(name="...")` says, where it does."""
    call = _kernel_statement(module)
    keywords = call.value.keywords if call is not None and isinstance(call.value, ast.Call) else []
    values = [k.value for k in keywords if k.arg == "name"]
    return next((v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)), None)


def _kernel_statement(module: ast.Module) -> ast.Assign | ast.AnnAssign | None:
    for statement in module.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if isinstance(statement, ast.Assign | ast.AnnAssign) and any(isinstance(t, ast.Name) and t.id == "KERNEL" for t in targets):
            return statement
    return None


def _line(module: ast.Module) -> int:
    """The `@triton.jit` line of the first public kernel function, else of the first; where none is in the file, that of KERNEL."""
    jitted = [(f, d) for f in module.body if isinstance(f, ast.FunctionDef) for d in f.decorator_list if _is_jit(d)]
    public = [pair for pair in jitted if not pair[0].name.startswith("_")]
    for _, decorator in (public or jitted)[:1]:
        return decorator.lineno
    statement = _kernel_statement(module)
    return statement.lineno if statement is not None else 1


def _is_jit(decorator: ast.expr) -> bool:
    """`@triton.jit`, `@jit`, or a call of one."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)) == "jit"
