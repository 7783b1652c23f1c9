"""GitHub's checks API, and patience with it. Every request is held against GitHub's own description."""

from __future__ import annotations

import importlib.util
import sys
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from harness.report.github import MARK, opening
from harness.report.github_client import ATTEMPTS, BETWEEN_WRITES_S, PATIENCE_S, Checks, PostFailed
from harness.report.github_place import read_place

_SPEC = importlib.util.spec_from_file_location("fake_github", Path(__file__).parent / "fake_github.py")
fake_github = sys.modules[_SPEC.name] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fake_github)

SHA = "b" * 40
DONE = {"status": "completed", "conclusion": "success", "output": {"title": "pass", "summary": "all"}}


@pytest.fixture
def server():
    with fake_github.serve() as fake:
        yield fake
    assert [] == fake.problems
    assert [] == fake.planned, "a planned answer was never asked for"


@pytest.fixture
def pauses():
    return []


@pytest.fixture
def checks(server, pauses):
    place = read_place({"GITHUB_API_URL": server.url, "GITHUB_REPOSITORY": fake_github.REPOSITORY, "GITHUB_TOKEN": fake_github.TOKEN})
    return Checks(place, pauses.append)


def opened(checks, name="kernels"):
    return checks.open(name, SHA, opening("https://github.example/run/7"))


class TestOpen:
    def test_creates_one_in_progress(self, server, checks) -> None:
        number, was_there = opened(checks)
        (run,) = server.runs
        assert (run["id"], False) == (number, was_there)
        assert ("kernels", SHA, "in_progress", MARK) == tuple(run[k] for k in ("name", "head_sha", "status", "external_id"))
        assert "https://github.example/run/7" == run["details_url"]

    def test_takes_up_the_one_that_is_there(self, server, checks) -> None:
        run = server.put_run("kernels", SHA, external_id=MARK, status="completed", conclusion="failure")
        assert (run["id"], True) == opened(checks)
        assert [("PATCH", f"/repos/octo/kernels/check-runs/{run['id']}")] == [(w.method, w.path) for w in server.writes]
        assert ("in_progress", None) == (run["status"], run["conclusion"])

    @pytest.mark.parametrize(
        ("name", "sha", "mark"),
        [("other", SHA, MARK), ("kernels", "c" * 40, MARK), ("kernels", SHA, "a job of GitHub Actions")],
        ids=["name", "commit", "program"],
    )
    def test_leaves_one_alone_that_is_of_another(self, server, checks, name, sha, mark) -> None:
        server.put_run(name, sha, external_id=mark)
        assert opened(checks)[1] is False
        assert ["queued", "in_progress"] == [r["status"] for r in server.runs]

    def test_a_name_with_spaces_and_signs_is_found_again(self, server, checks) -> None:
        first, _ = opened(checks, "kernels (a&b=c #1)")
        assert (first, True) == opened(checks, "kernels (a&b=c #1)")
        assert 1 == len(server.runs)

    def test_a_create_whose_answer_was_lost_is_not_made_twice(self, server, checks) -> None:
        server.fail("POST", 502, takes_effect=True)
        number, was_there = opened(checks)
        assert ([number], True) == ([r["id"] for r in server.runs], was_there)


class TestPatience:
    def test_a_server_error_is_tried_again_after_longer_and_longer_pauses(self, server, checks, pauses) -> None:
        server.fail("GET", 500, times=3)
        opened(checks)
        assert [1.0, 2.0, 4.0] == pauses
        assert 1 == len(server.runs)

    def test_it_ends(self, server, checks, pauses) -> None:
        server.fail("GET", 503, "busy", times=ATTEMPTS)
        with pytest.raises(PostFailed, match=rf"GitHub answered 503: busy \({ATTEMPTS} times\)") as error:
            opened(checks)
        assert (True, 503) == (error.value.allowed, error.value.status)
        assert ATTEMPTS - 1 == len(pauses)
        assert PATIENCE_S > sum(pauses)

    @pytest.mark.parametrize("status", [403, 429, 503])
    def test_retry_after_is_honoured(self, server, checks, pauses, status) -> None:
        server.fail("GET", status, "You have exceeded a secondary rate limit", Retry_After="7")
        opened(checks)
        assert [7.0] == pauses

    def test_retry_after_may_be_a_date(self, server, checks, pauses) -> None:
        server.fail("GET", 429, Retry_After=format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True))
        opened(checks)
        assert 25 < pauses[0] <= 30

    def test_a_limit_whose_reset_is_told_is_waited_for(self, server, checks, pauses) -> None:
        server.fail("GET", 403, "API rate limit exceeded", X_RateLimit_Remaining="0", X_RateLimit_Reset=str(int(time.time()) + 20))
        opened(checks)
        assert 15 < pauses[0] <= 20

    def test_a_limit_of_untold_length_is_a_minute(self, server, checks, pauses) -> None:
        server.fail("GET", 403, "You have exceeded a secondary rate limit")
        opened(checks)
        assert [60.0] == pauses

    @pytest.mark.parametrize("after", [str(int(PATIENCE_S) + 1), "3600"])
    def test_a_longer_wait_than_its_patience_is_not_begun(self, server, checks, pauses, after) -> None:
        server.fail("GET", 429, "slow down", Retry_After=after)
        with pytest.raises(PostFailed, match=f"GitHub answered 429: slow down; it asks to wait {after} s") as error:
            opened(checks)
        assert error.value.allowed
        assert [] == pauses

    def test_waits_add_up(self, server, checks, pauses) -> None:
        server.fail("GET", 429, times=3, Retry_After="50")
        with pytest.raises(PostFailed, match="asks to wait 50 s"):
            opened(checks)
        assert [50.0, 50.0] == pauses

    @pytest.mark.parametrize(("status", "allowed"), [(401, True), (403, False), (404, True), (422, True)])
    def test_what_would_be_refused_again_is_not_repeated(self, server, checks, pauses, status, allowed) -> None:
        server.fail("GET", status, "Resource not accessible by integration")
        with pytest.raises(PostFailed, match=f"GitHub answered {status}: Resource not accessible") as error:
            opened(checks)
        assert (allowed, status) == (error.value.allowed, error.value.status)
        assert ([], 1) == (pauses, len(server.seen))

    def test_an_answer_that_its_client_cannot_read_is_a_failure_to_post_and_no_defect(self, server, checks, pauses) -> None:
        server.fail("GET", 404, {"of": "a proxy"})
        with pytest.raises(PostFailed, match="could not be understood"):
            opened(checks)
        assert [] == pauses

    def test_a_token_that_no_header_can_hold_is_a_failure_to_post_and_no_defect(self, pauses) -> None:
        place = read_place({"GITHUB_API_URL": "http://127.0.0.1:9", "GITHUB_REPOSITORY": "octo/kernels", "GITHUB_TOKEN": "t\u2013"})
        with pytest.raises(PostFailed, match="could not be understood: UnicodeEncodeError"):
            opened(Checks(place, pauses.append))

    def test_a_server_that_is_not_there_is_tried_again(self, checks, pauses) -> None:
        place = read_place({"GITHUB_API_URL": "http://127.0.0.1:9", "GITHUB_REPOSITORY": "octo/kernels", "GITHUB_TOKEN": "t"})
        with pytest.raises(PostFailed, match="GitHub was not reached: ConnectionError"):
            opened(Checks(place, pauses.append))
        assert [1.0, 2.0, 4.0, 8.0, 16.0] == pauses

    def test_writes_are_a_second_apart(self, server, checks, pauses) -> None:
        number, _ = opened(checks)
        checks.update(number, DONE)
        (pause,) = pauses
        assert BETWEEN_WRITES_S / 2 < pause <= BETWEEN_WRITES_S


class TestUpdate:
    def test_concludes_and_names_the_page(self, server, checks) -> None:
        number, _ = opened(checks)
        assert f"https://github.example/octo/kernels/runs/{number}" == checks.update(number, DONE)
        (run,) = server.runs
        assert ("completed", "success", "all") == (run["status"], run["conclusion"], run["output"]["summary"])

    def test_too_long_a_summary_is_refused(self, server, checks) -> None:
        number, _ = opened(checks)
        with pytest.raises(PostFailed, match="422"):
            checks.update(number, DONE | {"output": {"title": "t", "summary": "é" * 40_000}})

    def test_annotations_that_are_there_are_all_read(self, server, checks) -> None:
        made = [
            {"path": "k.py", "start_line": n, "end_line": n, "annotation_level": "failure", "title": "t", "message": "m"}
            for n in range(1, 251)
        ]
        run = server.put_run("kernels", SHA, annotations=made)
        assert {("k.py", n, "failure", "t", "m") for n in range(1, 251)} == checks.annotated(run["id"])


class TestTheServer:
    """The one who tests is tested too."""

    @pytest.mark.parametrize(
        ("method", "path", "body", "problem"),
        [
            ("POST", "check-runs", {"name": "k"}, "'head_sha' is a required property"),
            ("POST", "check-runs", {"name": "k", "head_sha": SHA, "state": "x"}, "body.state is unknown"),
            ("PATCH", "check-runs/1", {"status": "completed"}, "is not valid under any of the given schemas"),
            ("PATCH", "check-runs/1", {"conclusion": "passed"}, "'passed' is not one of"),
            ("PATCH", "check-runs/x", {}, "'x' is not of type 'integer'"),
            ("PUT", "check-runs/1", {}, "no such operation"),
        ],
    )
    def test_refuses_what_github_does_not_describe(self, method, path, body, problem) -> None:
        with fake_github.serve() as fake:
            place = read_place({"GITHUB_API_URL": fake.url, "GITHUB_REPOSITORY": fake_github.REPOSITORY, "GITHUB_TOKEN": fake_github.TOKEN})
            checks = Checks(place, lambda _: None)
            with pytest.raises(PostFailed, match="GitHub answered 400"):
                checks._patiently(lambda: checks._send(method, f"{checks.path}/{path}", body))
        assert any(problem in text for text in fake.problems)
