"""Refs: names to trees, `A..B` to its two sides, and the ancestors whose results may stand in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RefError, Undecided, WorkspaceError
from harness.plan.git import Git, GitFailed
from harness.plan.trees import Tree, code_digest, tree_of_commit, tree_of_worktree

MAX_ANCESTORS = 200
"""How many first-parent ancestors of a base are looked at before saying that there is no baseline."""


@dataclass(frozen=True)
class Ancestor:
    """An ancestor with its digest, and in how many digests it lies behind."""

    commit: str
    code_digest: str
    distance: int
    commits: int


def resolve(git: Git, ref: str) -> Tree:
    """The tree of a ref: `worktree`, `pr`, or a name tried as local branch or tag, then origin's, then the base branch
    that GITHUB_BASE_REF names.

    Raises:
        RefError: nothing of that name.
    """
    if ref == "worktree":
        return tree_of_worktree(git, ref)
    if ref == "pr":
        head, how = _pull_request(git)
        return tree_of_commit(git, head, ref, how)
    for name in (ref, f"refs/remotes/origin/{ref}"):
        if commit := git.commit(name):
            return tree_of_commit(git, commit, ref, f"{ref} at {commit[:12]}" if name == ref else f"origin/{ref} at {commit[:12]}")
    base = os.environ.get("GITHUB_BASE_REF")
    if base == ref and (commit := git.commit("FETCH_HEAD")):
        return tree_of_commit(git, commit, ref, f"FETCH_HEAD for GITHUB_BASE_REF {base} at {commit[:12]}")
    branches = git.run("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes").split()
    raise RefError(
        f"ref {ref!r}",
        f"no commit, branch or tag of that name; there are: {', '.join(branches[:12]) or '(none)'}",
        f"fetch it (git fetch origin {ref}), or name one of these, a commit, worktree, run:ID or run:last",
    )


def _pull_request(git: Git) -> tuple[str, str]:
    event = os.environ.get("GITHUB_EVENT_PATH")
    if event and Path(event).is_file():
        head = (json.loads(Path(event).read_text()).get("pull_request") or {}).get("head") or {}
        if sha := head.get("sha"):
            if commit := git.commit(sha):
                return commit, f"the pull request's head {commit[:12]}"
            raise RefError("ref 'pr'", f"the pull request's head {sha} is not in this clone", f"git fetch origin {sha}")
    for name in ("pr", "refs/remotes/origin/pr"):
        if commit := git.commit(name):
            return commit, f"branch pr at {commit[:12]}"
    if commit := git.commit("HEAD"):
        return commit, f"HEAD at {commit[:12]} (no pull request event and no branch pr)"
    raise RefError("ref 'pr'", "the repository has no commit", "commit first")


def split_range(text: str, is_known: Callable[[str], bool]) -> tuple[str, str]:
    """`A..B` -> (A, B): split at the first `..` with something known on both sides, as a path may begin with a dot or hold one more `..`.

    Where there is none, the first before which something known stands and after which a path seems meant, else the first that adjoins no
    other dot: what is not there is then missed by its name.

    Args:
        is_known: whether a side stands for something; asked only where there are several `..`, as in `main.../run.parquet`.

    Raises:
        RefError: not of that form.
    """
    dots = [i for i in range(1, len(text) - 2) if text[i : i + 2] == ".."]
    splits = [(text[:i], text[i + 2 :]) for i in dots]
    if len(splits) == 1:
        return splits[0]
    known = [(a, b) for a, b in splits if is_known(a)]
    likely = [(a, b) for a, b in known if is_known(b)] or [(a, b) for a, b in known if is_path(b)]
    plain = [(a, b) for a, b in splits if not a.endswith(".") and not b.startswith(".")]
    if not (either := likely or plain):
        neither = ", ".join(f"{a!r} and {b!r}" for a, b in splits)
        found = f"no two things that are there: {neither}" if splits else "not of the form A..B"
        raise RefError(f"range {text!r}", found, "write A..B, for example main..pr, HEAD..run:last or main.../run.parquet")
    return either[0]


def is_path(ref: str) -> bool:
    """Whether a ref that is none of git's was meant for a path."""
    return ref.startswith(("/", "./", "../", "~")) or ref.endswith((".parquet", "/"))


def is_ref(git: Git, ref: str) -> bool:
    """Whether `resolve` would find something, or may: `worktree`, `pr`, the base branch of CI, or a commit here or of origin."""
    special = ("worktree", "pr", os.environ.get("GITHUB_BASE_REF"))
    return ref in special or any(git.commit(name) for name in (ref, f"refs/remotes/origin/{ref}"))


def merge_base(git: Git, base: str, head: str) -> str:
    """The one merge base of two commits.

    Raises:
        Undecided: a shallow clone, unrelated histories, or several merge bases; each says what to do.
    """
    asked = f"the merge base of {base[:12]} and {head[:12]}"
    try:
        found = git.run("merge-base", "--all", base, head).split()
    except GitFailed:
        found = []
    if len(found) == 1:
        return found[0]
    if git.shallow:
        raise Undecided(
            asked, "this clone is shallow, its history is cut", "git fetch --unshallow origin (in CI: checkout with fetch-depth: 0)"
        )
    if not found:
        raise Undecided(asked, "the two histories are unrelated", "compare the tips with --exact, or name another base")
    raise Undecided(asked, f"{len(found)} merge bases: {', '.join(c[:12] for c in found)}", "name one of them as the base, with --exact")


def base_of(git: Git, ref: str, head: Tree) -> Tree:
    """The tree of the merge base of a ref and head: what head's change set out from.

    Raises:
        RefError: no such ref, or head has no commit.
        Undecided: there is not one merge base.
    """
    named = resolve(git, ref)
    if named.commit is None or head.commit is None:
        raise RefError(f"the merge base of {ref} and {head.ref}", "one of them has no commit", "name a commit, a branch or a tag")
    commit = merge_base(git, named.commit, head.commit)
    return tree_of_commit(
        git, commit, ref, f"{ref} at {commit[:12]}" if commit == named.commit else f"merge base with {ref} at {commit[:12]}"
    )


def ancestors(git: Git, commit: str) -> Iterator[Ancestor]:
    """The commit and its first-parent ancestors, one for every change of the code digest, nearest first."""
    distance, last = -1, None
    for behind, one in enumerate(git.run("rev-list", "--first-parent", f"--max-count={MAX_ANCESTORS}", commit).split()):
        try:
            digest = code_digest(git, git.run("rev-parse", f"{one}^{{tree}}"))
        except WorkspaceError:  # a commit from before the workspace existed ends the walk
            return
        if digest != last:
            distance, last = distance + 1, digest
            yield Ancestor(one, digest, distance, behind)
