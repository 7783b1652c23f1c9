"""Posts a diff as one check run, and as a step summary: what cannot be posted is said, and never becomes a pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from harness.report import github, words
from harness.report.github_client import Checks, PostFailed
from harness.report.github_place import Place

Say = Callable[[str], None]

_FORK = "a pull request from a fork has a token that may only read; a workflow of the default branch (on: workflow_run) may post"


class Outcome(Enum):
    """What became of a check run."""

    PENDING = "pending"
    POSTED = "posted"
    NOT_ALLOWED = "not allowed"
    """There is no token, or it may not write checks, as that of a pull request from a fork."""
    FAILED = "failed"


def exit_code(verdict: int, outcome: Outcome) -> int:
    """The verdict's exit code; 3 for a pass that should have been posted and was not."""
    return 3 if verdict == 0 and outcome is Outcome.FAILED else verdict


class Post:
    """One check run, from in progress to its conclusion. A failure of GitHub is said and kept in `outcome`, not raised.

    Args:
        say: prints a line for people.
    """

    def __init__(self, place: Place, name: str, say: Say) -> None:
        self.place, self.name, self.say = place, name, say
        self.checks = Checks(place) if place.token and place.repository else None
        self.outcome = Outcome.PENDING
        self.page: str | None = None
        self._check: int | None = None
        self._was_there = False

    def begin(self, sha: str) -> None:
        """Put the check run in progress, once."""
        if self.checks is None:
            self._not_posted("there is no GITHUB_TOKEN", Outcome.NOT_ALLOWED)
        elif self._check is None and self.outcome is Outcome.PENDING:
            try:
                self._check, self._was_there = self.checks.open(self.name, sha, github.opening(self.place.run_url))
            except PostFailed as error:
                self._failed(error)

    def conclude(self, sha: str, diff: Mapping[str, Any], conclusion: github.Conclusion) -> None:
        """Post the conclusion, the summary and the annotations of a diff.

        The verdict goes first. An annotation that GitHub refuses takes nothing from it.
        """
        self.begin(sha)
        annotations = github.annotate(diff)
        if (left := len(annotations) - github.ANNOTATIONS_SHOWN) > 0 and self._check is not None:
            self.say(f"{words.count(left, 'annotation')} left out: {github.ANNOTATIONS_SHOWN} are posted, the JSON has all")
        annotations = self._new(annotations[: github.ANNOTATIONS_SHOWN])
        first, *more = github.concluding(diff, conclusion, annotations)
        try:
            self._update(first)
        except PostFailed as error:
            if error.status != 422 or not annotations:
                self._failed(error)
                return
            self.say(f"{words.count(len(annotations), 'annotation')} left out: {error}")
            self.conclude_as(sha, github.concluding(diff, conclusion, ())[0])
            return
        for n, body in enumerate(more, start=1):
            try:
                self._update(body)
            except PostFailed as error:
                self.say(f"{words.count(len(annotations) - n * github.ANNOTATIONS_LIMIT, 'annotation')} left out: {error}")
                return

    def conclude_as(self, sha: str, body: github.Body) -> None:
        """Post a conclusion that is one request."""
        self.begin(sha)
        try:
            self._update(body)
        except PostFailed as error:
            self._failed(error)

    def _new(self, annotations: list[github.Body]) -> list[github.Body]:
        """Those that an earlier attempt has not posted: GitHub adds to what is there."""
        if self.checks is None or self._check is None or not self._was_there or not annotations:
            return annotations
        try:
            there = self.checks.annotated(self._check)
        except PostFailed as error:
            self.say(f"{words.count(len(annotations), 'annotation')} left out, lest they stand twice: {error}")
            return []
        return [a for a in annotations if github.identity(a) not in there]

    def _update(self, body: github.Body) -> None:
        if self.checks is not None and self._check is not None:
            self.page = self.checks.update(self._check, body) or self.page
            self.outcome = Outcome.POSTED

    def _failed(self, error: PostFailed) -> None:
        stays = " The check run stays in progress." if self._check is not None else ""
        self._not_posted(f"{error}.{stays}", Outcome.FAILED if error.allowed else Outcome.NOT_ALLOWED)

    def _not_posted(self, why: str, outcome: Outcome) -> None:
        if self.outcome is Outcome.PENDING:
            self.outcome = outcome
            self.say(f"check {self.name!r} is not posted: {why}" + (f" ({_FORK})" if outcome is Outcome.NOT_ALLOWED else ""))


def append_summary(file: Path, render: Callable[[int], str], say: Say) -> None:
    """Append to a step summary what `render` makes of the bytes that are left there; GitHub drops all of a file that is too long."""
    try:
        size = file.stat().st_size if file.exists() else 0
        text = ("\n" if size else "") + render(max(github.STEP_LIMIT - size - 2, 0)) + "\n"
        if size + len(text.encode()) > github.STEP_LIMIT:
            say(f"the step summary {file} has {size} bytes and no room for the report")
            return
        with file.open("a", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        say(f"the step summary {file} is not written: {error.strerror or error}")
