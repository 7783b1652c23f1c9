"""Talks to GitHub's checks API through PyGithub: finds, creates and updates one check run, and is patient with it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import count
from typing import Any, TypeVar

import requests
from github import Auth, Github, GithubException

from harness.report.github import MARK, Body, identity
from harness.report.github_place import Place

ATTEMPTS = 6
"""Times that one request is sent at most."""
PATIENCE_S = 120.0
"""Seconds waited for one request at most, all its pauses together."""
BETWEEN_WRITES_S = 1.0
"""Seconds from one write to the next, as GitHub asks of programs."""
UNSAID_S = 60.0
"""Seconds to wait where GitHub limits the rate and does not say for how long."""
TIMEOUT_S = 30

_HEADERS = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
_PAGES = 10

T = TypeVar("T")


class PostFailed(Exception):
    """GitHub did not take a request; `allowed` is False where the token may not make it."""

    def __init__(self, text: str, *, allowed: bool = True, status: int | None = None) -> None:
        super().__init__(text)
        self.allowed, self.status = allowed, status


class Checks:
    """The check runs of one repository.

    Args:
        place: with a repository and a token.
        sleep: waits for seconds (default: time.sleep).
    """

    def __init__(self, place: Place, sleep: Callable[[float], None] | None = None) -> None:
        assert place.repository is not None
        assert place.token is not None
        self.path = f"/repos/{place.repository}"
        self.sleep = sleep or time.sleep
        self.written = -math.inf
        # Patience is ours: PyGithub's own would wait an hour for a rate limit.
        self.github = Github(
            base_url=place.api_url,
            auth=Auth.Token(place.token),
            timeout=TIMEOUT_S,
            user_agent="kernel-harness",
            retry=None,
            seconds_between_requests=None,
            seconds_between_writes=None,
        )

    def open(self, name: str, sha: str, body: Body) -> tuple[int, bool]:
        """Put the commit's check run of that name in progress: id, and whether it was there before.

        Looking and creating are repeated together, so that a create whose answer was lost is found, not made twice.

        Raises:
            PostFailed: GitHub did not take it.
        """

        def attempt() -> tuple[int, bool]:
            found = self._find(name, sha)
            if found is None:
                return _id(self._send("POST", f"{self.path}/check-runs", {"name": name, "head_sha": sha} | body)), False
            self._send("PATCH", f"{self.path}/check-runs/{found}", body)
            return found, True

        return self._patiently(attempt)

    def update(self, check: int, body: Body) -> str | None:
        """Send one update, and return the check run's page.

        Raises:
            PostFailed: GitHub did not take it.
        """
        answer = self._patiently(lambda: self._send("PATCH", f"{self.path}/check-runs/{check}", body))
        page = answer.get("html_url")
        return page if isinstance(page, str) else None

    def annotated(self, check: int) -> set[tuple[Any, ...]]:
        """`identity` of the annotations that a check run has.

        Raises:
            PostFailed: GitHub did not say.
        """
        found: set[tuple[Any, ...]] = set()
        for page in range(1, _PAGES + 1):
            parameters = {"per_page": 100, "page": page}
            path = f"{self.path}/check-runs/{check}/annotations"
            rows = self._patiently(partial(self._get, path, parameters))
            found |= {identity(row) for row in rows if isinstance(row, dict)}
            if len(rows) < 100:
                break
        return found

    def _find(self, name: str, sha: str) -> int | None:
        """The newest check run of a name on a commit, unless another program has marked it as its own."""
        parameters = {"check_name": name, "filter": "latest", "per_page": 100}
        answer = self._get(f"{self.path}/commits/{sha}/check-runs", parameters)
        rows = answer.get("check_runs", []) if isinstance(answer, dict) else []
        return max((_id(row) for row in rows if row.get("name") == name and row.get("external_id") in (MARK, "", None)), default=None)

    def _get(self, path: str, parameters: Mapping[str, Any]) -> Any:
        return self.github.requester.requestJsonAndCheck("GET", path, parameters=dict(parameters), headers=dict(_HEADERS))[1]

    def _send(self, method: str, path: str, body: Body) -> dict[str, Any]:
        if (pause := self.written + BETWEEN_WRITES_S - time.monotonic()) > 0:
            self.sleep(pause)
        try:
            answer = self.github.requester.requestJsonAndCheck(method, path, headers=dict(_HEADERS), input=body)[1]
        finally:
            self.written = time.monotonic()
        return answer if isinstance(answer, dict) else {}

    def _patiently(self, request: Callable[[], T]) -> T:
        waited = 0.0
        for attempt in count(1):
            try:
                return request()
            except GithubException as error:
                failure, pause = _failed(error), _pause(error, attempt)
            except requests.RequestException as error:
                failure, pause = PostFailed(f"GitHub was not reached: {type(error).__name__}"), 2.0 ** (attempt - 1)
            except PostFailed:
                raise
            except Exception as error:  # an answer that is none of GitHub's, or one that its client cannot read, must not cost the verdict
                found = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                raise PostFailed(f"GitHub's answer, or the request, could not be understood: {found}") from error
            if pause is None:
                raise failure
            if attempt == ATTEMPTS:
                raise PostFailed(f"{failure} ({ATTEMPTS} times)", status=failure.status)
            if waited + pause > PATIENCE_S:
                raise PostFailed(
                    f"{failure}; it asks to wait {pause:.0f} s, over the {PATIENCE_S:.0f} s that are waited", status=failure.status
                )
            self.sleep(pause)
            waited += pause
        raise AssertionError


def _id(answer: Mapping[str, Any]) -> int:
    found = answer.get("id")
    if not isinstance(found, int):
        raise PostFailed("GitHub's answer is no check run: it has no id")
    return found


def _failed(error: GithubException) -> PostFailed:
    said = error.data.get("message") if isinstance(error.data, dict) else None
    text = f"GitHub answered {error.status}" + (f": {' '.join(str(said).split())[:300]}" if said else "")
    return PostFailed(text, allowed=error.status != 403 or _limited(error), status=error.status)


def _limited(error: GithubException) -> bool:
    """Whether the request came too soon, rather than being wrong or forbidden."""
    headers = _lower(error)
    said = str(error.data.get("message", "")) if isinstance(error.data, dict) else ""
    return error.status == 429 or (
        error.status == 403 and ("retry-after" in headers or headers.get("x-ratelimit-remaining") == "0" or "rate limit" in said.lower())
    )


def _pause(error: GithubException, attempt: int) -> float | None:
    """Seconds to wait before the request is sent again; None where it would be refused again."""
    if not _limited(error) and error.status < 500:
        return None
    headers = _lower(error)
    if after := headers.get("retry-after"):
        return _seconds(after)
    if _limited(error):
        reset = headers.get("x-ratelimit-reset", "") if headers.get("x-ratelimit-remaining") == "0" else ""
        return max(float(reset) - time.time(), 1.0) if reset.isdecimal() else UNSAID_S
    return 2.0 ** (attempt - 1)


def _seconds(retry_after: str) -> float:
    """Seconds that a Retry-After header asks for: a number, or a date."""
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        return max((parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return UNSAID_S


def _lower(error: GithubException) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in (error.headers or {}).items()}
