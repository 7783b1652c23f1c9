"""What a tree declares that it runs with: requirements in pyproject.toml, and files of constraints, requirements and locked versions."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any

from harness.errors import WorkspaceError
from harness.plan.git import Git

PYPROJECT = "pyproject.toml"
FILES = (
    "*constraints*",
    "*requirements*",
    "*.lock",
    "pylock*.toml",
    "conda-lock.y*ml",
    "environment*.y*ml",
    "pipfile",
    "pixi.toml",
    "setup.cfg",
    "setup.py",
)
"""Names, in lower case, of files and folders that count whole."""
TABLES = (
    "build-system.requires",
    "dependency-groups",
    "project.requires-python",
    "project.dependencies",
    "project.optional-dependencies",
    "tool.hatch.envs",
    "tool.pdm",
    "tool.pixi",
    "tool.poetry.dependencies",
    "tool.poetry.dev-dependencies",
    "tool.poetry.group",
    "tool.poetry.source",
    "tool.uv",
)
"""Keys of pyproject.toml that name requirements. Of its other tables, such as a linter's, nothing depends."""


def same_requirements(git: Git, base: str, head: str) -> bool:
    """Whether two git trees declare the same requirements, in the workspace and in the folders above it.

    Raises:
        GitFailed: git does not have one of the trees, or the workspace in it.
        WorkspaceError: a pyproject.toml is bad TOML.
    """
    return dict(_requirements(git, base)) == dict(_requirements(git, head))


def _requirements(git: Git, tree: str) -> Iterator[tuple[str, Any]]:
    """Path below the repository's root -> git object id; of a pyproject.toml, its tables."""
    workspace = PurePosixPath(git.prefix)
    for folder in (workspace, *workspace.parents):
        of = f"{tree}:{'' if folder == PurePosixPath() else folder}"
        for entry in filter(None, git.raw("ls-tree", "-z", "--full-tree", of).decode("utf-8", "surrogateescape").split("\0")):
            meta, _, name = entry.partition("\t")
            if name == PYPROJECT:
                yield str(folder / name), _tables(git, meta.split()[2], str(folder / name))
            elif any(fnmatch(name.lower(), pattern) for pattern in FILES):
                yield str(folder / name), meta


def _tables(git: Git, blob: str, path: str) -> dict[str, Any]:
    try:
        content = tomllib.loads(git.raw("cat-file", "blob", blob).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WorkspaceError(f"the requirements in {path}", f"bad TOML: {error}", "choose another ref, or mend the file") from error
    return {key: _value(content, key.split(".")) for key in TABLES}


def _value(table: Any, keys: list[str]) -> Any:
    """What stands below some keys; None where one of them is missing."""
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table
