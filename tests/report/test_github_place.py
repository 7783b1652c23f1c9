"""Where a check is posted: the environment of a workflow, and the commit."""

from __future__ import annotations

import json
import re

import pytest

from harness.report.github_place import API_URL, GitHubError, check_sha, commit_of, read_place

HEAD, OTHER = "b" * 40, "c" * 40


@pytest.fixture
def event(tmp_path):
    """An environment whose event is this."""

    def put(data):
        file = tmp_path / "event.json"
        file.write_text(data if isinstance(data, str) else json.dumps(data))
        return {"GITHUB_EVENT_PATH": str(file), "GITHUB_SHA": OTHER}

    return put


class TestEvent:
    def test_the_pull_requests_head_is_meant_not_the_merge_commit(self, event) -> None:
        assert HEAD == read_place(event({"pull_request": {"head": {"sha": HEAD}}, "after": OTHER})).event_sha

    def test_the_head_of_the_run_that_a_workflow_run_followed_is_meant(self, event) -> None:
        assert HEAD == read_place(event({"workflow_run": {"head_sha": HEAD}})).event_sha

    @pytest.mark.parametrize("data", [{"after": OTHER}, {"pull_request": None}, {"pull_request": {"head": "x"}}, [], 3])
    def test_another_event_names_no_commit(self, event, data) -> None:
        assert read_place(event(data)).event_sha is None

    def test_one_that_cannot_be_read_is_an_error(self, event) -> None:
        with pytest.raises(GitHubError, match=r"event\.json"):
            read_place(event("{"))

    def test_a_file_that_is_not_there_names_no_commit(self, tmp_path) -> None:
        assert read_place({"GITHUB_EVENT_PATH": str(tmp_path / "absent")}).event_sha is None


class TestPlace:
    def test_an_empty_environment_is_github_itself_with_nothing_to_post_to(self) -> None:
        place = read_place({})
        assert (API_URL, None, None, None) == (place.api_url, place.repository, place.token, place.run_url)

    def test_empty_variables_are_none(self) -> None:
        place = read_place({"GITHUB_TOKEN": "", "GITHUB_REPOSITORY": "", "GITHUB_API_URL": "", "GITHUB_STEP_SUMMARY": ""})
        assert (API_URL, None, None, None) == (place.api_url, place.repository, place.token, place.step_summary)

    def test_an_enterprise_server_and_the_page_of_the_run(self) -> None:
        place = read_place(
            {
                "GITHUB_API_URL": "https://git.example.org/api/v3/",
                "GITHUB_SERVER_URL": "https://git.example.org",
                "GITHUB_REPOSITORY": "octo/kernels",
                "GITHUB_RUN_ID": "7",
            }
        )
        assert "https://git.example.org/api/v3" == place.api_url
        assert "https://git.example.org/octo/kernels/actions/runs/7" == place.run_url

    @pytest.mark.parametrize(
        "environ",
        [
            *({"GITHUB_API_URL": url} for url in ("file:///etc", "http://127.0.0.1:99999", "http://127.0.0.1:abc", "http://[::1")),
            {"GITHUB_REPOSITORY": "kernels"},
            {"GITHUB_REPOSITORY": "a/b/../c"},
        ],
        ids=str,
    )
    def test_what_has_no_meaning_is_named(self, environ) -> None:
        ((name, value),) = environ.items()
        with pytest.raises(GitHubError, match=re.escape(f"{name} '{value}'")):
            read_place(environ)

    def test_the_token_is_never_printed(self) -> None:
        assert "secret" not in repr(read_place({"GITHUB_TOKEN": "secret"}))


class TestCommit:
    def diff(self, **head):
        return {"head": {"ref": "pr", "commit": HEAD, "dirty": False} | head}

    def test_is_the_diffs_head(self) -> None:
        assert HEAD == commit_of(self.diff(), None) == commit_of(self.diff(), HEAD)

    def test_a_diff_of_another_commit_is_not_posted(self) -> None:
        with pytest.raises(GitHubError, match=f"found: the diff is of commit {HEAD}"):
            commit_of(self.diff(), OTHER)

    @pytest.mark.parametrize(
        ("head", "found"),
        [({"dirty": True}, "uncommitted changes on bbbbbbbbbbbb"), ({"commit": None}, "no commit")],
        ids=["dirty", "none"],
    )
    def test_what_is_no_commit_is_not_posted(self, head, found) -> None:
        with pytest.raises(GitHubError, match=f"found: its head is {found}"):
            commit_of(self.diff(**head), HEAD)

    @pytest.mark.parametrize("sha", ["main", "b" * 12, "g" * 40, ""])
    def test_a_name_is_no_commit_id(self, sha) -> None:
        with pytest.raises(GitHubError, match="not a full commit id"):
            check_sha(sha, "--sha")

    def test_capitals_mean_the_same(self) -> None:
        assert HEAD == check_sha(HEAD.upper(), "--sha")
