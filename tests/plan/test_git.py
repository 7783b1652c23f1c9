"""Git is asked about the folder at hand, whatever the folder's name and the caller's environment."""

import os
from dataclasses import replace

import pytest

from harness.errors import RefError
from harness.plan.git import Git
from harness.plan.refs import resolve


@pytest.mark.parametrize("name", ["ends in a space ", " begins with one", "ends in a line\n"])
def test_a_folder_name_is_taken_as_it_is(repository, name):
    moved = repository.root.with_name(name)
    repository.root.rename(moved)
    git = Git(moved)
    assert moved == git.root
    assert not resolve(git, "worktree").dirty


def test_the_prefix_below_the_root_is_taken_as_it_is(repository):
    folder = repository.root / " team "
    folder.mkdir()
    assert Git(folder).prefix == " team /"


@pytest.fixture
def other(repository, tmp_path):
    """Another repository, whose hook might be what runs us."""
    found = replace(repository, root=tmp_path / "other")
    found.write("README.md", "words")
    found.git("init", "-q")
    found.commit("other")
    return found


@pytest.mark.parametrize("name", ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"])
def test_the_repository_of_a_hook_is_not_taken_for_ours(repository, other, monkeypatch, name):
    expected = resolve(Git(repository.root), "worktree")
    theirs = {
        "GIT_DIR": other.root / ".git",
        "GIT_WORK_TREE": other.root,
        "GIT_INDEX_FILE": other.root / ".git" / "index",
        "GIT_COMMON_DIR": other.root / ".git",
        "GIT_OBJECT_DIRECTORY": other.root / ".git" / "objects",
    }
    monkeypatch.setenv(name, str(theirs[name]))
    git = Git(repository.root)
    index = git.run("rev-parse", "--path-format=absolute", "--git-path", "index")
    assert (repository.root, str(repository.root / ".git" / "index")) == (git.root, index)
    assert expected == resolve(git, "worktree")
    assert os.environ[name] == str(theirs[name])


def test_an_index_that_we_name_is_used(repository, tmp_path):
    git = Git(repository.root)
    git.run("read-tree", "HEAD", env={"GIT_INDEX_FILE": str(tmp_path / "index")})
    assert (tmp_path / "index").exists()


def test_a_repository_of_another_owner_is_to_be_trusted_and_not_made_anew(repository, monkeypatch):
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(RefError, match=r"(?s)git config --global --add safe\.directory .*do next: trust it as git says there"):
        Git(repository.root)
