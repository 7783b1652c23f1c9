"""Trees: the code of a ref, its digest, and the files of it on disk.

What runs is always files written from git objects, so that what ran is what the record says: the worktree too is
first written as a git tree, through a temporary index that leaves the user's own alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from harness.authoring.workspace import Workspace, read_workspace
from harness.errors import RefError, WorkspaceError
from harness.plan.git import Git, GitFailed


@dataclass(frozen=True)
class Tree:
    """The code that a ref names.

    Args:
        ref: as the user wrote it.
        resolved: what it was taken for, for people.
        commit: the commit it belongs to.
        tree: git tree id of the whole repository.
        code_digest: over kernels/, jobs/, the declared sources and [tool.harness].
        dirty: the code is not that of `commit`.
    """

    ref: str
    resolved: str
    commit: str | None
    tree: str
    code_digest: str
    dirty: bool


def tree_of_commit(git: Git, commit: str, ref: str, resolved: str) -> Tree:
    """The tree of a commit."""
    tree = git.run("rev-parse", f"{commit}^{{tree}}")
    return Tree(ref, resolved, commit, tree, code_digest(git, tree), dirty=False)


def tree_of_worktree(git: Git, ref: str = "worktree") -> Tree:
    """The worktree as it is: tracked and untracked files, without ignored ones and the harness's own. Dirty where its code is not HEAD's.

    Raises:
        RefError: there is no commit yet.
    """
    head = git.commit("HEAD")
    if head is None:
        raise RefError("the worktree", "the repository has no commit", "commit once: a run belongs to a commit")
    with tempfile.TemporaryDirectory(prefix="harness-index-") as folder:
        index = Path(folder) / "index"
        own = Path(git.run("rev-parse", "--path-format=absolute", "--git-path", "index"))
        if own.exists():
            shutil.copyfile(own, index)
        env = {"GIT_INDEX_FILE": str(index)}
        try:
            # a run writes there before there is a `.gitignore`; and git refuses to leave out by name what it ignores
            own_files = [] if git.ignores(".harness/") else [f":(exclude,top,literal){git.prefix}.harness"]
            git.run("add", "--all", "--", ":/", *own_files, env=env)
            tree = git.run("write-tree", env=env)
        except GitFailed as error:
            raise RefError("the worktree as a git tree", str(error), "mend what git names, or commit and use --ref HEAD") from error
    digest = code_digest(git, tree)
    dirty = digest != code_digest(git, git.run("rev-parse", f"{head}^{{tree}}"))
    return Tree(ref, f"worktree on {head[:12]}" + (" (dirty)" if dirty else ""), head, tree, digest, dirty)


def tree_of_record(git: Git, of: Mapping[str, Any]) -> Tree:
    """The tree that a run was made of, as its run.json names it.

    A worktree's tree is in no commit: git has it only where the run was made, and removes it in time. The commit's own tree does as well
    where its code is the same.

    Raises:
        RefError: git has neither.
    """
    tree = Tree(of["ref"], of["resolved"], of["commit"], of["tree"], of["code_digest"], of["dirty"])
    if git.has(tree.tree):
        return tree
    if tree.commit is not None and git.has(tree.commit):
        with contextlib.suppress(WorkspaceError):  # a commit before the workspace
            committed = tree_of_commit(git, tree.commit, tree.ref, tree.resolved)
            if committed.code_digest == tree.code_digest:
                return committed
    raise RefError(
        f"the code of {tree.resolved}, git tree {tree.tree[:12]}",
        "git has no such object here: the run was made in another clone, or git has removed what no commit holds since",
        "go on with it in the clone where it was made, or submit anew",
    )


def code_digest(git: Git, tree: str) -> str:
    """Digest of the code in a tree: the object ids of the code paths, and [tool.harness].

    Raises:
        WorkspaceError: the tree holds no workspace.
    """
    table = harness_table(git, tree)
    paths = [git.prefix + p for p in ("kernels", "jobs", *_sources(table))]
    listing = git.raw("ls-tree", "-z", "--full-tree", tree, "--", *paths).decode("utf-8", "surrogateescape")
    content = {"table": table, "paths": sorted(entry for entry in listing.split("\0") if entry)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def harness_table(git: Git, tree: str) -> dict[str, object]:
    """[tool.harness] of a tree.

    Raises:
        WorkspaceError: the tree holds no workspace, or bad TOML.
    """
    path = f"{git.prefix}pyproject.toml"
    try:
        table = tomllib.loads(git.raw("show", f"{tree}:{path}").decode()).get("tool", {}).get("harness")
    except GitFailed as error:
        raise WorkspaceError(f"{path} in tree {tree[:12]}", str(error), "choose a ref that has the workspace") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WorkspaceError(f"{path} in tree {tree[:12]}", f"bad TOML: {error}", "choose another ref, or mend the file") from error
    if table is None:
        raise WorkspaceError(f"{path} in tree {tree[:12]}", "no [tool.harness] table", "choose a ref that has the workspace")
    return dict(table)


def checkout(git: Git, tree: Tree, workspace: Workspace) -> Workspace:
    """Write the code of a tree below `.harness/trees/`, or where that cannot be written elsewhere, and return it as a workspace.

    It is kept by its digest and used again, once every file in it is found to be what git has: code under test, or a person,
    may have changed it.

    Raises:
        RefError: a symbolic link leads out of the tree, a name is unsafe, or a code path is a submodule.
    """
    target = workspace.cache_dir / "trees" / tree.code_digest[:20]
    target.parent.mkdir(parents=True, exist_ok=True)
    if not (ignored := workspace.cache_dir / ".gitignore").exists():
        ignored.write_text("*\n")  # git keeps none of it, whatever the workspace's own .gitignore says
    if target.is_dir() and differences(listing(git, tree), target):
        with tempfile.TemporaryDirectory(prefix=".changed-", dir=target.parent) as aside:
            target.rename(Path(aside) / "tree")
    if not target.is_dir():
        with tempfile.TemporaryDirectory(prefix=".part-", dir=target.parent) as part:
            written = Path(part) / "tree"
            _write(git, tree, written)
            try:
                written.rename(target)
            except OSError:  # another process wrote the same content first
                if not target.is_dir():
                    raise
    return read_workspace(target)


def listing(git: Git, tree: Tree) -> dict[str, str]:
    """Path below the workspace -> git blob id, of every file that `checkout` writes."""
    return {str(path): blob for _, _, blob, path in _entries(git, tree)}


def differences(files: Mapping[str, str], target: Path) -> list[str]:
    """Paths below `target` that are missing, changed or added; a link counts as the text of its target."""
    found = {str(path.relative_to(target)): path for path in target.rglob("*") if path.is_symlink() or not path.is_dir()}
    changed = [name for name, blob in files.items() if name not in found or _blob_id(found[name], len(blob)) != blob]
    return sorted({*changed, *(set(found) - set(files))})


def _blob_id(path: Path, digits: int) -> str:
    data = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
    digest = hashlib.sha1(usedforsecurity=False) if digits == 40 else hashlib.sha256()
    digest.update(b"blob %d\0" % len(data) + data)
    return digest.hexdigest()


def _entries(git: Git, tree: Tree) -> Iterator[tuple[str, str, str, PurePosixPath]]:
    """Mode, type, id and path below the workspace of every entry that belongs to the code."""
    paths = [git.prefix + p for p in ("kernels", "jobs", "pyproject.toml", *_sources(harness_table(git, tree.tree)))]
    text = git.raw("ls-tree", "-r", "-z", "--full-tree", tree.tree, "--", *paths).decode("utf-8", "surrogateescape")
    for entry in filter(None, text.split("\0")):
        meta, _, name = entry.partition("\t")
        mode, kind, blob = meta.split()
        yield mode, kind, blob, PurePosixPath(name).relative_to(git.prefix or ".")


def _write(git: Git, tree: Tree, target: Path) -> None:
    entries = list(_entries(git, tree))
    blobs = _blobs(git, [blob for _, kind, blob, _ in entries if kind == "blob"])
    for mode, kind, blob, path in entries:
        if kind != "blob" or ".." in path.parts or any(ord(c) < 32 for c in str(path)):
            raise RefError(f"the code of {tree.ref}", f"{str(path)!r} is a {kind} (mode {mode})", "keep plain files under the code paths")
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if mode == "120000":
            link = blobs[blob].decode("utf-8", "surrogateescape")
            if link.startswith("/") or not Path(os.path.normpath(file.parent / link)).is_relative_to(target):
                raise RefError(f"the code of {tree.ref}", f"the link {path} leads out of the tree, to {link}", "replace it by a file")
            file.symlink_to(link)
        else:
            file.write_bytes(blobs[blob])
            file.chmod(0o755 if mode == "100755" else 0o644)


def _blobs(git: Git, ids: list[str]) -> dict[str, bytes]:
    wanted = sorted(set(ids))
    stream = git.raw("cat-file", "--batch", stdin="".join(f"{i}\n" for i in wanted).encode())
    found: dict[str, bytes] = {}
    at = 0
    for blob in wanted:
        end = stream.index(b"\n", at)
        size = int(stream[at:end].split()[2])
        found[blob] = stream[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
    return found


def _sources(table: dict[str, object]) -> list[str]:
    sources = table.get("sources", [])
    return [str(s) for s in sources] if isinstance(sources, list) else []
