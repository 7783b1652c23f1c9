"""`harness check`: posts a diff as a GitHub check run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.commands import _judged

if TYPE_CHECKING:
    from harness.report.github_place import Place
    from harness.report.github_post import Post

NAME = "kernels"


@click.command(
    epilog="\b\nExamples:\n  harness check main..pr\n  harness check --from diff.json --sha $HEAD_SHA\n  harness check main..pr --dry-run"
)
@click.argument("range_", metavar="[A..B]", required=False)
@click.option("--from", "source", type=click.Path(path_type=Path), help="Post this diff: what `harness diff --format json` printed.")
@click.option("--name", metavar="NAME", help=f"Name of the check (default: {NAME}, with --matrix and --kernel in brackets).")
@click.option("--sha", metavar="COMMIT", help="The diff must be of this commit (default: the pull request's head, from GitHub's event).")
@click.option("--neutral-when-undecided", is_flag=True, help="An undecided diff is neutral, which branch rules let pass, not a failure.")
@click.option("--dry-run", is_flag=True, help="Print the requests as JSON, send and write nothing.")
@_judged.options
def command(
    range_: str | None,
    source: Path | None,
    name: str | None,
    sha: str | None,
    neutral_when_undecided: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """Post a diff to its head commit as a GitHub check run, and to the step summary.

    Judges A..B as `harness diff` does, or reads a diff from a file. Needs GITHUB_TOKEN with `checks: write`, and
    GITHUB_REPOSITORY; without a token, or with one that may not write, it says so. The exit code is the diff's: 0 nothing got
    worse, 1 something did, 3 undecided; 3 also where a pass could not be posted.
    """
    import os

    from harness.report import github
    from harness.report.github_place import GitHubError, check_sha, commit_of, read_place
    from harness.report.github_post import Post, append_summary, exit_code

    judging = _judged.Judging(**options)
    get = _source(range_, source, judging)
    place = read_place(os.environ)
    if place.token and not place.repository and not dry_run:
        raise GitHubError("to post a check", "GITHUB_TOKEN is set, GITHUB_REPOSITORY is not", "set it to owner/name, or use --dry-run")
    known = check_sha(sha, "--sha") if sha else check_sha(place.event_sha, "the event's head commit") if place.event_sha else None
    post = Post(place, name or _name(judging), lambda line: click.echo(line, err=True))
    if known and not dry_run:
        post.begin(known)
    try:
        diff = get()
        commit = commit_of(diff, known)
    except BaseException as error:
        if not dry_run:
            _no_diff(error, post, known, neutral=neutral_when_undecided)
        raise
    conclusion = github.conclude(diff["exit_code"], neutral_when_undecided=neutral_when_undecided)
    if dry_run:
        _print_requests(place, post.name, commit, diff, conclusion)
        return int(diff["exit_code"])
    if place.step_summary:
        append_summary(place.step_summary, lambda limit: github.summary(diff, limit), post.say)
    post.conclude(commit, diff, conclusion)
    _tell(post, commit, diff, conclusion)
    return exit_code(diff["exit_code"], post.outcome)


def _name(judging: _judged.Judging) -> str:
    """The name of a check, by what it compares: one of a part must not stand in the place of the whole's."""
    parts = [*([judging.matrix] if judging.matrix else []), *judging.kernels]
    return f"{NAME} ({', '.join(parts)})" if parts else NAME


def _source(range_: str | None, source: Path | None, judging: _judged.Judging) -> Callable[[], dict[str, Any]]:
    """What makes the diff, or reads it.

    Raises:
        HarnessError: not one of both is given, or a file and options of a range.
    """
    from harness.errors import HarnessError

    if (range_ is None) == (source is None):
        found = "neither a range nor --from" if source is None else f"both the range {range_} and --from {source}"
        raise HarnessError("to post a diff", found, "give a range A..B, or --from FILE")
    if source is None:
        text = str(range_)
        return lambda: _judged.judge_range(text, judging)
    if judging != _judged.Judging():
        found = "options that say how a range is judged, and the diff of a file is judged already"
        raise HarnessError(f"to post the diff of {source}", found, "give --metric, --fail-on and the like to `harness diff`")
    file = source

    def read() -> dict[str, Any]:
        from harness.report.document import read_document

        return read_document(file)

    return read


def _no_diff(error: BaseException, post: Post, sha: str | None, *, neutral: bool) -> None:
    """Conclude the check where an error stands in the diff's place, so that nothing stays in progress and silence is no pass."""
    from harness.errors import HarnessError
    from harness.report import github
    from harness.report.github_post import append_summary

    if isinstance(error, HarnessError):
        parts, code = (error.asked, error.found, error.do), error.exit_code
    elif isinstance(error, KeyboardInterrupt):
        parts, code = ("the diff", "it was stopped", "run the job again"), 130
    else:
        parts, code = ("the diff", f"{type(error).__name__}: {error}", "this may be a defect of the harness: read the job's log"), 3
    if post.place.step_summary:
        append_summary(post.place.step_summary, lambda _: github.error_summary(*parts), post.say)
    if sha is not None:
        post.conclude_as(sha, github.concluding_error(*parts, github.conclude(code, neutral_when_undecided=neutral)))


def _print_requests(place: Place, name: str, commit: str, diff: Mapping[str, Any], conclusion: Any) -> None:
    import json

    from harness.report import github

    path = f"/repos/{place.repository or 'OWNER/NAME'}"
    bodies = github.concluding(diff, conclusion, github.annotate(diff)[: github.ANNOTATIONS_SHOWN])
    requests = [
        {"method": "GET", "path": f"{path}/commits/{commit}/check-runs", "query": {"check_name": name, "filter": "latest"}},
        {"method": "POST", "path": f"{path}/check-runs", "body": {"name": name, "head_sha": commit} | github.opening(place.run_url)},
        *({"method": "PATCH", "path": f"{path}/check-runs/CHECK_RUN_ID", "body": body} for body in bodies),
    ]
    click.echo(json.dumps(requests, indent=2))


def _tell(post: Post, commit: str, diff: Mapping[str, Any], conclusion: Any) -> None:
    from harness.report import github
    from harness.report.github_post import Outcome

    posted = post.outcome is Outcome.POSTED
    click.echo(f"{github.title(diff)} (exit code {diff['exit_code']})")
    if posted:
        click.echo(f"check {post.name!r} on {commit[:12]}: {conclusion}" + (f", {post.page}" if post.page else ""))
    placed = set(diff.get("sources", {}))
    unplaced = sorted({f["cell"].partition("/")[0] for f in diff["findings"] if f["exit_code"]} - placed)
    if posted and unplaced:
        click.echo(f"not annotated, their lines are not known: {', '.join(unplaced)}", err=True)
    if post.outcome is Outcome.FAILED and not diff["exit_code"]:
        click.echo("exit code 3: the diff passes, and nobody can see it", err=True)
