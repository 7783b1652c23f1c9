import json

import pytest

from harness.errors import RefError, Undecided
from harness.plan.git import Git
from harness.plan.refs import ancestors, merge_base, resolve, split_range


def test_a_branch_resolves_to_its_commit(repository):
    commit = repository.git("rev-parse", "HEAD")
    assert resolve(Git(repository.root), "main").commit == commit


def test_a_local_branch_comes_before_origins(repository):
    first = repository.git("rev-parse", "HEAD")
    second = repository.commit("second")
    repository.git("update-ref", "refs/remotes/origin/main", first)
    assert resolve(Git(repository.root), "main").commit == second


def test_origins_branch_stands_in_where_there_is_no_local_one(repository):
    commit = repository.git("rev-parse", "HEAD")
    repository.git("update-ref", "refs/remotes/origin/release", commit)
    tree = resolve(Git(repository.root), "release")
    assert (tree.commit, tree.resolved) == (commit, f"origin/release at {commit[:12]}")


def test_pr_is_the_pull_requests_head_and_not_the_merge_commit(repository, tmp_path, monkeypatch):
    head = repository.git("rev-parse", "HEAD")
    repository.commit("merge")
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"head": {"sha": head}}}))
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(event))
    assert resolve(Git(repository.root), "pr").commit == head


def test_pr_falls_back_to_head_and_says_so(repository):
    assert "no pull request event and no branch pr" in resolve(Git(repository.root), "pr").resolved


def test_pr_prefers_a_branch_of_that_name(repository):
    commit = repository.git("rev-parse", "HEAD")
    repository.git("branch", "pr")
    repository.commit("later")
    assert resolve(Git(repository.root), "pr").commit == commit


def test_an_unknown_ref_lists_what_there_is(repository):
    with pytest.raises(RefError, match="there are: main"):
        resolve(Git(repository.root), "mian")


KNOWN = {"main", "pr", ".state/run", "./x.parquet", "../other", "a/../b", "HEAD", "/x"}


@pytest.mark.parametrize("text", ["main", "main...pr", "..pr", "main..", "main....", ".."])
def test_a_range_is_two_refs_and_two_dots(text):
    with pytest.raises(RefError, match=r"A\.\.B"):
        split_range(text, KNOWN.__contains__)


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        ("HEAD..run:last", ("HEAD", "run:last")),
        ("nothing..nowhere", ("nothing", "nowhere")),
        ("main...state/run", ("main", ".state/run")),
        ("main.../x.parquet", ("main", "./x.parquet")),
        ("main..../other", ("main", "../other")),
        ("main../x", ("main", "/x")),
        ("../other..main", ("../other", "main")),
        ("a/../b..HEAD", ("a/../b", "HEAD")),
        ("a/../b..../other", ("a/../b", "../other")),
        ("../other..../other", ("../other", "../other")),
        ("main..../nope.parquet", ("main", "../nope.parquet")),
        ("main...state/nope.parquet", ("main", ".state/nope.parquet")),
        ("nope..main..pr", ("nope", "main..pr")),
    ],
)
def test_a_range_splits_where_something_is_on_both_sides(text, sides):
    assert sides == split_range(text, KNOWN.__contains__)


def test_three_dots_as_git_has_them_are_told_what_was_looked_for():
    with pytest.raises(RefError, match=r"no two things that are there: 'main' and '.pr', 'main.' and 'pr'"):
        split_range("main...pr", KNOWN.__contains__)


def test_no_git_repository_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(RefError, match="git init"):
        Git(tmp_path)


def test_a_shallow_clone_names_the_fetch_to_run(repository, tmp_path):
    repository.git("checkout", "-q", "-b", "pr")
    repository.commit("on pr")
    clone = tmp_path / "clone"
    repository.git("clone", "-q", "--depth", "1", "--no-single-branch", f"file://{repository.root}", str(clone))
    git = Git(clone)
    base, head = git.commit("origin/main"), git.commit("origin/pr")
    repository.git("checkout", "-q", "main")
    with pytest.raises(Undecided, match="git fetch --unshallow origin"):
        merge_base(git, base, head)


def test_unrelated_histories_are_told_apart_from_a_shallow_clone(repository):
    first = repository.git("rev-parse", "HEAD")
    repository.git("checkout", "-q", "--orphan", "other")
    second = repository.commit("another root")
    with pytest.raises(Undecided, match="unrelated"):
        merge_base(Git(repository.root), first, second)


def test_several_merge_bases_are_named(repository):
    for branch in ("a", "b"):
        repository.git("checkout", "-q", "-b", branch, "main")
        repository.commit(branch)
    a, b = repository.git("rev-parse", "a"), repository.git("rev-parse", "b")
    repository.git("merge", "-q", "-m", "b takes a", a)
    repository.git("checkout", "-q", "a")
    repository.git("merge", "-q", "-m", "a takes b", b)
    with pytest.raises(Undecided, match="2 merge bases"):
        merge_base(Git(repository.root), repository.git("rev-parse", "a"), repository.git("rev-parse", "b"))


def test_the_merge_base_is_where_the_branch_left_and_not_the_tip(repository):
    base = repository.git("rev-parse", "HEAD")
    repository.git("checkout", "-q", "-b", "pr")
    head = repository.commit("on pr")
    repository.git("checkout", "-q", "main")
    tip = repository.commit("main went on")
    assert merge_base(Git(repository.root), tip, head) == base


def test_distance_counts_changes_of_code_and_not_commits(repository):
    repository.write("kernels/scale.py", (repository.root / "kernels/scale.py").read_text() + "\n# changed\n")
    repository.commit("code")
    repository.write("README.md", "words")
    head = repository.commit("words only")
    found = [(a.distance, a.commits) for a in ancestors(Git(repository.root), head)]
    assert found == [(0, 0), (1, 2)]
