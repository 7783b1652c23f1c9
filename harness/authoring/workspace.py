"""Finds the workspace: the nearest pyproject.toml with a [tool.harness] table, the way pytest finds its root."""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from harness.authoring.model import API
from harness.errors import WorkspaceError

KEYS = {"api", "sources"}


def bundled_jobs() -> Path:
    """The job files of the engine: inside the wheel, or beside the package in a source tree."""
    package = Path(__file__).parent.parent
    inside = package / "jobs"
    return inside if inside.is_dir() else package.parent / "jobs"


def is_writable(folder: Path) -> bool:
    """Whether files may be put into a folder, which is made where it is not there."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    return os.access(there, os.W_OK | os.X_OK)


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="harness-")


def temporary_dir() -> Path:
    """A folder that ends with this process, for what belongs beside code that is not to be written to."""
    return Path(_temporary().name)


@dataclass(frozen=True)
class Workspace:
    """A repository of kernels.

    Args:
        root: folder of the pyproject.toml.
        sources: paths, relative to root, that the kernel files import from, beside kernels/ itself.
        config: the [tool.harness] table.
    """

    root: Path
    sources: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kernels_dir(self) -> Path:
        """Folder of kernel files."""
        return self.root / "kernels"

    @property
    def jobs_dir(self) -> Path:
        """The workspace's own job files, else the engine's."""
        own = self.root / "jobs"
        return own if own.is_dir() else bundled_jobs()

    @property
    def baselines_dir(self) -> Path:
        """Accepted records."""
        return self.root / "baselines"

    @property
    def state_dir(self) -> Path:
        """Everything that git does not keep: runs, trees, caches."""
        return self.root / ".harness"

    @property
    def runs_dir(self) -> Path:
        """Records of runs, with every sample."""
        return self.state_dir / "runs"

    @property
    def cache_dir(self) -> Path:
        """What can be made again: in `state_dir`, or where that cannot be written, in a folder that ends with this process."""
        return self.state_dir if is_writable(self.state_dir) else temporary_dir()

    @property
    def compiled_dir(self) -> Path:
        """Static records that a diff compiled on the spot."""
        return self.cache_dir / "compiled"

    @property
    def code_paths(self) -> tuple[str, ...]:
        """Paths, relative to root, whose content is the code digest."""
        return ("kernels", "jobs", *self.sources)


def find_workspace(start: Path | None = None) -> Workspace:
    """The workspace that holds `start` (default: the current folder).

    Raises:
        WorkspaceError: no pyproject.toml with [tool.harness] up to the root, bad TOML, or a bad table.
    """
    folder = (start or Path.cwd()).resolve()
    for candidate in (folder, *folder.parents):
        file = candidate / "pyproject.toml"
        if file.is_file() and (table := _table(file)) is not None:
            return read_workspace(candidate, table)
    raise WorkspaceError(
        f"a workspace at {folder}",
        "no pyproject.toml with a [tool.harness] table here or in a parent folder",
        "go to a repository of kernels, or add an empty [tool.harness] table to its pyproject.toml",
    )


def read_workspace(root: Path, table: Mapping[str, Any] | None = None) -> Workspace:
    """The workspace whose pyproject.toml is in `root`.

    Raises:
        WorkspaceError: as `find_workspace`.
    """
    file = root / "pyproject.toml"
    found = table if table is not None else _table(file)
    if found is None:
        raise WorkspaceError(f"the workspace {root}", "its pyproject.toml has no [tool.harness] table", "add an empty one")
    if unknown := sorted(set(found) - KEYS):
        raise WorkspaceError(f"[tool.harness] of {file}", f"unknown key {unknown[0]!r}", f"the keys are {', '.join(sorted(KEYS))}")
    api = found.get("api", API)
    if not isinstance(api, int) or not 1 <= api <= API:
        raise WorkspaceError(
            f"api = {api!r} in [tool.harness] of {file}",
            f"this harness has authoring API 1 to {API}",
            "install a harness that has it, or lower the number",
        )
    sources = found.get("sources", [])
    if not isinstance(sources, list) or not all(isinstance(s, str) for s in sources):
        raise WorkspaceError(f"sources in [tool.harness] of {file}", f"{sources!r}", "give a list of paths relative to the file")
    for source in sources:
        path = (root / source).resolve()
        if not path.is_relative_to(root.resolve()) or not path.exists():
            raise WorkspaceError(f"source {source!r} in [tool.harness] of {file}", f"{path}", "name an existing path inside the workspace")
    return Workspace(root, tuple(sources), found)


def _table(file: Path) -> Mapping[str, Any] | None:
    try:
        with file.open("rb") as stream:
            tool = tomllib.load(stream).get("tool", {})
    except FileNotFoundError:
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WorkspaceError(f"the workspace file {file}", f"bad TOML: {error}", "mend the file") from error
    return tool.get("harness") if isinstance(tool, dict) else None
