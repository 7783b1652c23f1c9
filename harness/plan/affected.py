"""What a change touches: the kernels whose file, or a file that it imports or may read, differs between two trees, and the kinds whose
job file does.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.authoring.workspace import Workspace
from harness.plan.describe import Description, describe
from harness.plan.dynamic import is_dynamic
from harness.plan.git import Git
from harness.plan.requirements import same_requirements
from harness.plan.trees import Tree, checkout, harness_table, listing
from harness.records import Cell, Expected

JOBS, MATRIX, SETTINGS = "jobs", "jobs/matrix.toml", "pyproject.toml"


@dataclass(frozen=True)
class Change:
    """What differs between base's code and head's.

    Args:
        kernels: names of the kernels whose own code differs.
        kinds: names of the kinds whose job file differs.
        proved: cells whose binaries, grids, configurations and launcher code are known to be equal on both sides.
    """

    kernels: frozenset[str]
    kinds: frozenset[str]
    proved: frozenset[Cell] = frozenset()

    def affects(self, one: Expected) -> bool:
        """Whether the answer for a cell may have changed."""
        return one.kind in self.kinds or (one.cell.kernel in self.kernels and one.cell not in self.proved)


@dataclass(frozen=True)
class _Reach:
    """What a kernel may depend on.

    Args:
        files: its own file and every file that it may import, again and again, with what links lead to; files that are not there any
            more count too.
        dynamic: one of them may import or read any other file.
    """

    files: frozenset[str]
    dynamic: bool


def change(
    what: Description,
    code: Workspace,
    base: Mapping[str, str],
    head: Mapping[str, str],
    proved: Collection[Cell] = (),
    *,
    base_config: Mapping[str, object],
    same_requirements: bool,
    removed: Collection[str] = (),
) -> Change:
    """What differs between two trees.

    Args:
        what: head's description.
        code: head's code, on disk.
        base, head: path below the workspace -> git blob id, as `trees.listing` gives them.
        proved: see Change.
        base_config: base's [tool.harness]; where head's is another, everything is touched, equal binaries or not.
        same_requirements: both declare the same requirements, see `requirements`; else everything is touched likewise.
        removed: files of kernels that base has and head has no more: no other kernel is read by name but by one that may read any file.
    """
    if base_config != code.config or not same_requirements:
        return Change(frozenset(k.name for k in what.kernels), frozenset(kind.name for kind in what.kinds))
    differing = {path for path in {*base, *head} if base.get(path) != head.get(path)} - {MATRIX, SETTINGS}
    of_jobs = {path for path in differing if PurePosixPath(path).parts[0] == JOBS}
    rest = differing - of_jobs
    roots = _roots(code)
    reached = {k.name: _reached(k.file, code.root, roots) for k in what.kernels}
    every = _any_other(rest - set(removed), set().union(*(reach.files for reach in reached.values())))
    kernels = {name for name, reach in reached.items() if every or (differing if reach.dynamic else differing & reach.files)}
    own = {f"{JOBS}/{kind.file}": kind.name for kind in what.kinds}
    shared = of_jobs - set(own)
    kinds = {name for path, name in own.items() if shared or path in of_jobs}
    return Change(frozenset(kernels), frozenset(kinds), frozenset(proved))


def change_between(workspace: Workspace, git: Git, base: Tree, head: Tree) -> Change:
    """What differs between the code of two trees.

    Raises:
        HarnessError: head's code cannot be checked out or read.
        GitFailed: git does not have one of the trees any more.
    """
    theirs, ours = listing(git, base), listing(git, head)
    code = checkout(git, head, workspace)
    same = same_requirements(git, base.tree, head.tree)
    config, removed = harness_table(git, base.tree), _removed(workspace, git, base, set(theirs) - set(ours))
    return change(describe(code), code, theirs, ours, base_config=config, same_requirements=same, removed=removed)


def _removed(workspace: Workspace, git: Git, base: Tree, gone: Collection[str]) -> frozenset[str]:
    """Which of the files that are gone were kernels' own."""
    if not any(PurePosixPath(path).suffix == ".py" for path in gone):
        return frozenset()
    return frozenset(k.file for k in describe(checkout(git, base, workspace)).kernels) & frozenset(gone)


def _any_other(paths: Collection[str], reached: Collection[str]) -> bool:
    """Whether a file differs that no import shows, such as data, or code whose name is made while it runs: any kernel may read it."""
    return any(PurePosixPath(path).suffix != ".py" or path not in reached for path in paths)


def _roots(code: Workspace) -> tuple[PurePosixPath, ...]:
    """Folders below the workspace from which absolute imports of its own files start (see authoring.catalogue)."""
    sources = [PurePosixPath(source) for source in code.sources]
    return tuple(dict.fromkeys([PurePosixPath(), *sources, *(source.parent for source in sources)]))


def _reached(file: str, root: Path, roots: Sequence[PurePosixPath]) -> _Reach:
    found: set[str] = set()
    dynamic = False
    waiting = [PurePosixPath(file)]
    while waiting:
        path = waiting.pop()
        if str(path) in found:
            continue
        found.add(str(path))
        if not (root / path).is_file():
            continue
        module = _parsed(root / path)
        dynamic = dynamic or module is None or is_dynamic(module, lambda name: _is_own(name, root, roots))
        if module is not None:
            waiting += _imports(path, module, roots)
    top = os.path.realpath(root)
    return _Reach(frozenset(found | {os.path.relpath(os.path.realpath(root / path), top) for path in found}), dynamic)


def _parsed(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_text(encoding="utf-8", errors="replace"))
    except (SyntaxError, ValueError):  # no module after all, else the kernel could not have been described
        return None


def _is_own(name: str, root: Path, roots: Sequence[PurePosixPath]) -> bool:
    return any((root / start / name).is_dir() or (root / start / f"{name}.py").is_file() for start in roots)


def _imports(path: PurePosixPath, module: ast.Module, roots: Sequence[PurePosixPath]) -> Iterator[PurePosixPath]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(roots, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            starts = roots if not node.level else (path.parents[min(node.level, len(path.parents)) - 1],)
            for alias in node.names:
                yield from _files(starts, [*(node.module or "").split("."), alias.name] if node.module else [alias.name])


def _files(starts: Sequence[PurePosixPath], parts: Sequence[str]) -> Iterator[PurePosixPath]:
    """The files that may be `a.b.c`: importing one imports its packages, and its last part may be a name in a module."""
    for start in starts:
        for n in range(1, len(parts) + 1):
            module = start.joinpath(*parts[:n])
            yield module.with_suffix(".py")
            yield module / "__init__.py"
