"""`harness check`: what it posts, what it says where it cannot, and its exit code."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.authoring.workspace import bundled_jobs
from harness.commands.check import command
from harness.errors import HarnessError
from harness.report.github import MARK, STEP_LIMIT

TESTS = Path(__file__).parent.parent
_SPEC = importlib.util.spec_from_file_location("fake_github", TESTS / "report/fake_github.py")
fake_github = sys.modules[_SPEC.name] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fake_github)

SHA = "b" * 40
SOURCES = {"norm": {"path": "kernels/norm.py", "line": 12}, "step": {"path": "kernels/step.py", "line": 30}}


@dataclass
class Ran:
    """What a run of the verb gave; `error` is what the command line turns into an exit code."""

    code: int | None
    out: str
    err: str
    error: BaseException | None


@pytest.fixture
def server():
    with fake_github.serve() as fake:
        yield fake
    assert [] == fake.problems
    assert [] == fake.planned, "a planned answer was never asked for"


@pytest.fixture
def pauses(monkeypatch):
    made = []
    monkeypatch.setattr("harness.report.github_client.time.sleep", made.append)
    return made


@pytest.fixture
def event(tmp_path, monkeypatch):
    """Set the head commit of GitHub's event."""

    def put(sha):
        file = tmp_path / "event.json"
        file.write_text(json.dumps({"pull_request": {"head": {"sha": sha}}}))
        monkeypatch.setenv("GITHUB_EVENT_PATH", str(file))

    return put


@pytest.fixture
def summary(tmp_path):
    return tmp_path / "summary.md"


@pytest.fixture
def check(server, pauses, summary, tmp_path, monkeypatch):
    """Runs `harness check ARGS...` in a job of a workflow, which knows the server."""
    monkeypatch.chdir(tmp_path)
    named = {
        "GITHUB_API_URL": server.url,
        "GITHUB_REPOSITORY": fake_github.REPOSITORY,
        "GITHUB_TOKEN": fake_github.TOKEN,
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_SHA": "c" * 40,
    }
    for name, value in named.items():
        monkeypatch.setenv(name, value)

    def run(*args):
        result = CliRunner().invoke(command, list(map(str, args)), standalone_mode=False)
        assert fake_github.TOKEN not in result.output
        return Ran(result.return_value, result.stdout, result.stderr, result.exception)

    return run


@pytest.fixture
def diff(tmp_path):
    """Writes a diff of a commit and returns the file: `diff(0)` passes, `diff(3)` is undecided."""

    def write(code=1, findings=None, **changes):
        document = json.loads((TESTS / "expected/diff.json").read_text(encoding="utf-8"))
        kept = (
            [f for f in document["findings"] if f["exit_code"] in {0: (0,), 1: (0, 1, 3), 3: (0, 3)}[code]]
            if findings is None
            else findings
        )
        counts = {verdict: sum(f["verdict"] == verdict for f in kept) for verdict in document["counts"]}
        head = document["head"] | {"dirty": False, "commit": SHA}
        whole = document | {"exit_code": code, "findings": kept, "counts": counts, "head": head, "sources": SOURCES} | changes
        file = tmp_path / "diff.json"
        file.write_text(json.dumps(whole), encoding="utf-8")
        return file

    return write


def regressions(count, detail=None):
    """As many regressions, each of a variant of its own."""
    found = json.loads((TESTS / "expected/diff.json").read_text(encoding="utf-8"))["findings"]
    one = next(f for f in found if f["verdict"] == "REGRESSED")
    return [{**one, "cell": f"norm/v{n}/M=1,dtype=bf16@h200", "detail": detail} for n in range(count)]


class TestPosted:
    def test_created_in_progress_then_concluded(self, server, check, diff) -> None:
        ran = check("--from", diff())
        (run,) = server.runs
        assert (1, None) == (ran.code, ran.error)
        assert ["GET", "POST", "PATCH"] == [s.method for s in server.seen]
        assert "in_progress" == server.writes[0].body["status"]
        assert ("kernels", SHA, "completed", "failure") == tuple(run[k] for k in ("name", "head_sha", "status", "conclusion"))
        assert "fail: 1 BROKEN, 1 DRIFTED, 5 REGRESSED" == run["output"]["title"]
        assert run["output"]["summary"].startswith("## :x: Kernels: fail")
        assert {"kernels/norm.py", "kernels/step.py"} == {a["path"] for a in run["annotations"]}
        assert f"check 'kernels' on bbbbbbbbbbbb: failure, {run['html_url']}" in ran.out

    @pytest.mark.parametrize(
        ("code", "options", "conclusion"),
        [
            (0, (), "success"),
            (1, (), "failure"),
            (3, (), "failure"),
            (3, ("--neutral-when-undecided",), "neutral"),
            (1, ("--neutral-when-undecided",), "failure"),
        ],
        ids=["pass", "fail", "undecided", "undecided-neutral", "fail-neutral"],
    )
    def test_the_exit_code_is_the_diffs(self, server, check, diff, code, options, conclusion) -> None:
        assert code == check("--from", diff(code), *options).code
        assert [conclusion] == [r["conclusion"] for r in server.runs]

    def test_to_the_head_of_the_event_not_github_sha(self, server, check, diff, event) -> None:
        event(SHA)
        check("--from", diff())
        assert {SHA} == {r["head_sha"] for r in server.runs}

    def test_one_run_for_each_name_and_commit(self, server, check, diff) -> None:
        check("--from", diff(1))
        check("--from", diff(0))
        check("--from", diff(1), "--name", "kernels (smoke)")
        assert [("kernels", "success"), ("kernels (smoke)", "failure")] == [(r["name"], r["conclusion"]) for r in server.runs]

    def test_a_repeated_diff_repeats_no_annotation(self, server, check, diff) -> None:
        check("--from", diff())
        (run,) = server.runs
        first = list(run["annotations"])
        check("--from", diff())
        assert first == run["annotations"]

    def test_more_than_fifty_annotations_go_in_further_requests(self, server, check, diff) -> None:
        check("--from", diff(findings=regressions(120)))
        (run,) = server.runs
        assert 120 == len(run["annotations"])
        assert [50, 50, 20] == [len(w.body["output"]["annotations"]) for w in server.writes if w.method == "PATCH"]
        assert "completed" == run["status"]

    def test_more_than_five_hundred_annotations_are_cut_with_a_count(self, server, check, diff) -> None:
        ran = check("--from", diff(findings=regressions(503)))
        assert [500] == [len(r["annotations"]) for r in server.runs]
        assert "3 annotations left out: 500 are posted" in ran.err

    def test_a_summary_that_is_too_long_is_cut_with_a_count(self, server, check, diff) -> None:
        assert 1 == check("--from", diff(findings=regressions(2000))).code
        (run,) = server.runs
        assert 65_535 >= len(run["output"]["summary"].encode()) > 64_000
        assert "of 2000 findings are cut here; the JSON has them all." in run["output"]["summary"]

    def test_the_page_of_the_workflow_run_is_linked(self, server, check, diff, monkeypatch) -> None:
        monkeypatch.setenv("GITHUB_SERVER_URL", "https://github.example")
        monkeypatch.setenv("GITHUB_RUN_ID", "7")
        check("--from", diff())
        assert ["https://github.example/octo/kernels/actions/runs/7"] == [r["details_url"] for r in server.runs]


class TestNotPosted:
    @pytest.mark.parametrize("code", [0, 1, 3])
    def test_without_a_token_the_verdict_and_the_step_summary_stay(self, server, check, diff, summary, monkeypatch, code) -> None:
        monkeypatch.delenv("GITHUB_TOKEN")
        ran = check("--from", diff(code))
        assert (code, []) == (ran.code, server.seen)
        assert "check 'kernels' is not posted: there is no GITHUB_TOKEN" in ran.err
        assert summary.read_text().startswith("## :")

    @pytest.mark.parametrize("code", [0, 1, 3])
    def test_a_forks_token_that_may_not_write_keeps_the_verdict(self, server, check, diff, summary, code) -> None:
        server.fail("POST", 403, "Resource not accessible by integration")
        ran = check("--from", diff(code))
        assert code == ran.code
        assert "is not posted: GitHub answered 403: Resource not accessible by integration" in ran.err
        assert "a pull request from a fork" in ran.err
        assert summary.exists()

    @pytest.mark.parametrize(("verdict", "code"), [(0, 3), (1, 1), (3, 3)])
    def test_another_failure_never_passes(self, server, check, diff, verdict, code) -> None:
        server.fail("GET", 404, "Not Found")
        ran = check("--from", diff(verdict))
        assert code == ran.code
        assert "is not posted: GitHub answered 404: Not Found" in ran.err
        assert ("exit code 3: the diff passes, and nobody can see it" in ran.err) is (verdict == 0)

    def test_a_conclusion_that_is_refused_is_said_to_be_missing(self, server, check, diff) -> None:
        server.fail("PATCH", 422, "Validation Failed")
        ran = check("--from", diff(0))
        assert 3 == ran.code
        assert "GitHub answered 422: Validation Failed. The check run stays in progress." in ran.err

    def test_refused_annotations_take_nothing_from_the_verdict(self, server, check, diff) -> None:
        server.fail("PATCH", 422, "annotations are invalid")
        ran = check("--from", diff(findings=regressions(60)))
        (run,) = server.runs
        assert (1, "failure", []) == (ran.code, run["conclusion"], run["annotations"])
        assert "60 annotations left out: GitHub answered 422: annotations are invalid" in ran.err

    def test_annotations_that_fail_later_are_counted(self, server, check, diff) -> None:
        server.fail("PATCH", 422, "too many", after=1)
        ran = check("--from", diff(findings=regressions(120)))
        (run,) = server.runs
        assert (1, "failure", 50) == (ran.code, run["conclusion"], len(run["annotations"]))
        assert "70 annotations left out: GitHub answered 422: too many" in ran.err

    def test_a_server_that_recovers_is_no_failure(self, server, check, diff, pauses) -> None:
        server.fail("POST", 500, times=2)
        server.fail("PATCH", 502)
        assert 0 == check("--from", diff(0)).code
        assert ["success"] == [r["conclusion"] for r in server.runs]
        assert {1.0, 2.0} <= set(pauses)

    @pytest.mark.parametrize("status", [403, 429])
    def test_a_rate_limit_is_waited_for(self, server, check, diff, pauses, status) -> None:
        server.fail("POST", status, "You have exceeded a secondary rate limit", Retry_After="9")
        assert 0 == check("--from", diff(0)).code
        assert 9.0 in pauses
        assert ["success"] == [r["conclusion"] for r in server.runs]

    def test_a_rate_limit_that_lasts_is_a_failure_not_a_forks(self, server, check, diff) -> None:
        server.fail("POST", 403, "API rate limit exceeded", Retry_After="3600")
        ran = check("--from", diff(0))
        assert 3 == ran.code
        assert "asks to wait 3600 s" in ran.err

    def test_a_token_without_a_repository_is_a_usage_error(self, check, diff, monkeypatch) -> None:
        monkeypatch.delenv("GITHUB_REPOSITORY")
        error = check("--from", diff()).error
        assert (2, "GITHUB_TOKEN is set, GITHUB_REPOSITORY is not") == (error.exit_code, error.found)


class TestNoDiff:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("", "an empty file"),
            ("FAIL (exit code 1)", "no JSON"),
            ('{"format": 1}', "no 'base'"),
            ('{"format": 2}', "format 2; this harness reads format 1"),
        ],
        ids=["empty", "no-json", "shape", "newer"],
    )
    def test_a_bad_file_exits_2_and_its_check_fails(self, server, check, tmp_path, summary, event, text, found) -> None:
        event(SHA)
        (tmp_path / "bad.json").write_text(text)
        error = check("--from", tmp_path / "bad.json").error
        assert isinstance(error, HarnessError)
        assert 2 == error.exit_code
        assert found in error.found
        (run,) = server.runs
        assert ("completed", "failure") == (run["status"], run["conclusion"])
        assert found in run["output"]["summary"]
        assert found in summary.read_text()

    def test_without_a_commit_nothing_is_posted(self, server, check, tmp_path) -> None:
        assert 2 == check("--from", tmp_path / "absent.json").error.exit_code
        assert [] == server.seen

    def test_a_diff_of_another_commit_is_not_this_commits_verdict(self, server, check, diff, event) -> None:
        event("d" * 40)
        error = check("--from", diff(0)).error
        assert (2, f"the diff is of commit {SHA}") == (error.exit_code, error.found)
        assert [("d" * 40, "failure")] == [(r["head_sha"], r["conclusion"]) for r in server.runs]

    def test_a_named_commit_binds_too(self, server, check, diff) -> None:
        assert 2 == check("--from", diff(0), "--sha", "d" * 40).error.exit_code
        assert [("d" * 40, "failure")] == [(r["head_sha"], r["conclusion"]) for r in server.runs]

    def test_a_stop_leaves_nothing_in_progress(self, server, check, diff, event, monkeypatch) -> None:
        def stop(_):
            raise KeyboardInterrupt

        event(SHA)
        monkeypatch.setattr("harness.report.document.read_document", stop)
        check("--from", diff(0))
        assert ["cancelled"] == [r["conclusion"] for r in server.runs]

    @pytest.mark.parametrize(
        "args",
        [(), ("main..pr", "--from", "x.json"), ("--from", "x.json", "--exact"), ("--from", "x.json", "--metric", "registers")],
        ids=str,
    )
    def test_a_source_that_is_not_one_is_a_usage_error(self, server, check, args) -> None:
        assert 2 == check(*args).error.exit_code
        assert [] == server.seen


class TestDryRun:
    def test_prints_the_requests_and_sends_and_writes_nothing(self, server, check, diff, summary) -> None:
        file = diff(findings=regressions(60))
        ran = check("--from", file, "--dry-run")
        assert (1, [], False) == (ran.code, server.seen, summary.exists())
        printed = json.loads(ran.out)
        check("--from", file)
        (run,) = server.runs
        sent = [(s.method, s.path.replace(str(run["id"]), "CHECK_RUN_ID"), s.body) for s in server.seen]
        assert sent == [(p["method"], p["path"], p.get("body")) for p in printed]

    def test_needs_neither_token_nor_repository(self, check, diff, monkeypatch) -> None:
        monkeypatch.delenv("GITHUB_TOKEN")
        monkeypatch.delenv("GITHUB_REPOSITORY")
        printed = json.loads(check("--from", diff(0), "--dry-run").out)
        assert "/repos/OWNER/NAME/check-runs" == printed[1]["path"]


class TestStepSummary:
    def test_is_appended_to_what_is_there(self, check, diff, summary) -> None:
        summary.write_text("before\n")
        check("--from", diff())
        assert summary.read_text().startswith("before\n\n## :x: Kernels: fail")

    @pytest.mark.parametrize("before", [0, 1000, STEP_LIMIT - 50_000], ids=["empty", "some", "nearly-full"])
    def test_is_cut_at_a_mebibyte_of_the_whole_file(self, check, diff, summary, monkeypatch, before) -> None:
        monkeypatch.delenv("GITHUB_TOKEN")
        summary.write_bytes(b"x" * before)
        check("--from", diff(findings=regressions(1500, "é" * 500)))
        size = summary.stat().st_size
        assert STEP_LIMIT >= size > STEP_LIMIT - 2000
        assert "of 1500 findings are cut here" in summary.read_text()

    def test_that_has_no_room_is_left_as_it_is(self, check, diff, summary) -> None:
        summary.write_bytes(b"x" * (STEP_LIMIT - 10))
        ran = check("--from", diff())
        assert (1, STEP_LIMIT - 10) == (ran.code, summary.stat().st_size)
        assert "no room for the report" in ran.err

    def test_that_cannot_be_written_is_said(self, server, check, diff, summary) -> None:
        summary.mkdir()
        ran = check("--from", diff())
        assert 1 == ran.code
        assert "is not written: Is a directory" in ran.err
        assert ["failure"] == [r["conclusion"] for r in server.runs]


class TestRange:
    """A..B, judged on the spot."""

    @pytest.mark.slow
    def test_is_judged_and_posted_to_its_head(self, server, check, repository, harness, monkeypatch) -> None:
        for name in ("correctness.py", "conftest.py"):
            repository.write(f"jobs/{name}", (bundled_jobs() / name).read_text())
        repository.write("jobs/matrix.toml", '[[all.cells]]\nkind = "correctness"\ndevices = ["cpu"]\n')
        repository.commit("job")
        assert 0 == harness("submit").code
        repository.git("checkout", "-q", "-b", "pr")
        text = (repository.root / "kernels/scale.py").read_text()
        repository.write("kernels/scale.py", text.replace("    return x * 2\n", "    return x * 3\n"))
        head = repository.commit("wrong")
        assert 1 == harness("submit").code
        monkeypatch.chdir(repository.root)
        assert 1 == check("main..pr", "--matrix", "all").code
        (shown,) = {r["query"]["check_name"] for r in json.loads(check("main..pr", "--kernel", "sc*", "--dry-run").out) if "query" in r}
        assert "kernels (sc*)" == shown
        (run,) = server.runs
        assert ("kernels (all)", head, "failure") == (run["name"], run["head_sha"], run["conclusion"])
        (annotation,) = run["annotations"]
        line = text.splitlines().index("KERNEL = Kernel(") + 1
        assert ("kernels/scale.py", line) == (annotation["path"], annotation["start_line"])
        assert annotation["title"].startswith("scale/double: rel_l2_error BROKEN")

    def test_that_cannot_be_judged_fails_its_check(self, server, check, repository, event, monkeypatch) -> None:
        monkeypatch.chdir(repository.root)
        sha = repository.git("rev-parse", "HEAD")
        event(sha)
        error = check("main..nothing").error
        assert 2 == error.exit_code
        assert [(sha, "failure")] == [(r["head_sha"], r["conclusion"]) for r in server.runs]
        assert "nothing" in server.runs[0]["output"]["summary"]


def test_an_earlier_run_of_a_job_with_our_name_is_left_alone(server, check, diff) -> None:
    server.put_run("kernels", SHA, external_id="0f0e6c3a-of-a-job", status="in_progress")
    check("--from", diff(0))
    assert [("0f0e6c3a-of-a-job", None), (MARK, "success")] == [(r["external_id"], r["conclusion"]) for r in server.runs]
