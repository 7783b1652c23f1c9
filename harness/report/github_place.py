"""Where a check is posted: what the environment of a GitHub workflow says, read once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.errors import HarnessError

API_URL = "https://api.github.com"
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class GitHubError(HarnessError):
    """What should be posted, or where, is not clear."""


@dataclass(frozen=True)
class Place:
    """A repository, and what may be done there.

    Args:
        repository: `owner/name`; None outside of GitHub.
        token: None where there is none; never printed.
        event_sha: head commit of the pull request, or of the workflow run, that GitHub's event is about.
        step_summary: file to which a step appends its summary.
        run_url: page of the workflow run.
    """

    api_url: str
    repository: str | None
    token: str | None = field(repr=False)
    event_sha: str | None
    step_summary: Path | None
    run_url: str | None


def read_place(environ: Mapping[str, str]) -> Place:
    """The place that GITHUB_API_URL, _REPOSITORY, _TOKEN, _EVENT_PATH, _STEP_SUMMARY, _SERVER_URL and _RUN_ID describe.

    Raises:
        GitHubError: one of them has no meaning.
    """
    api_url = environ.get("GITHUB_API_URL") or API_URL
    if not re.match(r"https?://[^/]", api_url) or not _is_address(api_url):
        raise GitHubError(f"GITHUB_API_URL {api_url!r}", "no http or https address", f"leave it out for {API_URL}")
    repository = environ.get("GITHUB_REPOSITORY") or None
    if repository and not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise GitHubError(f"GITHUB_REPOSITORY {repository!r}", "not of the form owner/name", "set it to the repository's full name")
    server, run = environ.get("GITHUB_SERVER_URL"), environ.get("GITHUB_RUN_ID")
    summary, event = environ.get("GITHUB_STEP_SUMMARY"), environ.get("GITHUB_EVENT_PATH")
    return Place(
        api_url=api_url.rstrip("/"),
        repository=repository,
        token=environ.get("GITHUB_TOKEN") or None,
        event_sha=_event_sha(Path(event)) if event else None,
        step_summary=Path(summary) if summary else None,
        run_url=f"{server}/{repository}/actions/runs/{run}" if server and repository and run else None,
    )


def _is_address(url: str) -> bool:
    """Whether host and port of an address can be read."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _event_sha(file: Path) -> str | None:
    """The head commit of an event: GITHUB_SHA is a merge commit, or the default branch's, and not what was measured."""
    try:
        event = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise GitHubError(
            f"GitHub's event {file}", f"cannot be read: {error}", "unset GITHUB_EVENT_PATH, or name the commit with --sha"
        ) from error
    for found in (_at(event, "pull_request", "head", "sha"), _at(event, "workflow_run", "head_sha")):
        if isinstance(found, str):
            return found
    return None


def _at(data: Any, *keys: str) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def check_sha(sha: str, whose: str) -> str:
    """The full commit id, in lower case.

    Raises:
        GitHubError: it is none.
    """
    if not _SHA.fullmatch(sha.lower()):
        raise GitHubError(f"{whose} {sha!r}", "not a full commit id of 40 hexadecimal digits", "write what `git rev-parse REF` prints")
    return sha.lower()


def commit_of(diff: Mapping[str, Any], sha: str | None) -> str:
    """The commit a diff is posted to: its head's, which must be `sha` where that is known.

    Raises:
        GitHubError: the diff's head is no commit, or another one.
    """
    head = diff["head"]
    if head["dirty"] or not head["commit"]:
        found = f"uncommitted changes on {head['commit'][:12]}" if head["commit"] else "no commit"
        raise GitHubError(f"to post the diff of {head['ref']!r}", f"its head is {found}", "commit, and compare that commit")
    commit = check_sha(head["commit"], "the diff's head commit")
    if sha is not None and commit != sha:
        raise GitHubError(f"to post to commit {sha}", f"the diff is of commit {commit}", "make the diff of that commit")
    return commit
