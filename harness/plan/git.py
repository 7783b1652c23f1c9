"""Runs git, and says in our words why it could not."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from harness.authoring.workspace import temporary_dir
from harness.errors import RefError

_FOREIGN = frozenset(
    (
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_COMMON_DIR",
        "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_NAMESPACE",
        "GIT_PREFIX",
    )
)
"""Variables by which a caller, such as a git hook, says which repository is meant: ours is that of the folder."""


class GitFailed(Exception):
    """A git command ended with an error; the text is git's own."""


class Git:
    """The repository that holds a folder.

    Args:
        folder: any folder of the repository.

    Raises:
        RefError: git is not installed, or the folder is in no repository.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._objects: Mapping[str, str] = {}
        try:
            self.root = Path(self.run("rev-parse", "--show-toplevel"))
            prefix = self.run("rev-parse", "--show-prefix")
        except GitFailed as error:
            make = "run `git init` and commit there: results are kept by the code they measured"
            do = "trust it as git says there, or work as its owner" if "safe.directory" in str(error) else make
            raise RefError(f"the git repository of {folder}", str(error), do) from error
        self.prefix = prefix
        """Path of `folder` below the root, empty or ending in a slash."""
        own = Path(self.run("rev-parse", "--path-format=absolute", "--git-path", "objects"))
        if not os.access(own, os.W_OK):  # the worktree as a tree is put elsewhere then, where git finds it until this process ends
            objects = temporary_dir() / "objects"
            objects.mkdir(exist_ok=True)
            self._objects = {
                "GIT_OBJECT_DIRECTORY": str(objects),
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": json.dumps(str(own), ensure_ascii=False),
            }

    def run(self, *args: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> str:
        """Run a git command and return its output without its last line's end.

        Raises:
            GitFailed: git ended with an error.
        """
        return self.raw(*args, stdin=stdin, env=env).decode("utf-8", "surrogateescape").removesuffix("\n")

    def raw(self, *args: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> bytes:
        """As `run`, bytes."""
        # optional locks off: a status here must not disturb a git command of the user's
        inherited = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        environment = {**inherited, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **self._objects, **(env or {})}
        try:
            done = subprocess.run(["git", *args], cwd=self.folder, input=stdin, env=environment, capture_output=True, check=False)
        except FileNotFoundError as error:
            raise RefError("git", "no git program on PATH", "install git: results are kept by the code they measured") from error
        if done.returncode != 0:
            raise GitFailed(done.stderr.decode("utf-8", "replace").strip() or f"git {args[0]} ended with status {done.returncode}")
        return done.stdout

    def commit(self, name: str) -> str | None:
        """The commit that a name stands for, or None."""
        try:
            return self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except GitFailed:
            return None

    def has(self, name: str) -> bool:
        """Whether the repository has an object, by its id."""
        try:
            self.raw("cat-file", "-e", name)
        except GitFailed:
            return False
        return True

    def ignores(self, path: str) -> bool:
        """Whether an untracked path, from the workspace, would not be added; a folder's ends with a slash."""
        try:
            self.raw("check-ignore", "--quiet", "--", path)
        except GitFailed:
            return False
        return True

    @property
    def shallow(self) -> bool:
        """Whether history is cut (a CI checkout of depth 1)."""
        return self.run("rev-parse", "--is-shallow-repository") == "true"
