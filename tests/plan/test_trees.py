import dataclasses

import pytest

from harness.authoring.workspace import find_workspace
from harness.errors import RefError, WorkspaceError
from harness.plan.git import Git
from harness.plan.refs import resolve
from harness.plan.trees import checkout, tree_of_record


@pytest.fixture
def git(repository):
    return Git(repository.root)


def test_a_clean_worktree_has_its_commits_digest(repository, git):
    worktree = resolve(git, "worktree")
    assert (worktree.code_digest, worktree.dirty) == (resolve(git, "HEAD").code_digest, False)


@pytest.mark.parametrize("name", ["kernels/scale.py", "kernels/new.py", "jobs/matrix.toml"])
def test_changed_or_new_code_makes_the_worktree_dirty(repository, git, name):
    repository.write(name, "# changed\n")
    worktree = resolve(git, "worktree")
    assert worktree.dirty
    assert worktree.code_digest != resolve(git, "HEAD").code_digest


def test_words_do_not_change_the_code(repository, git):
    repository.write("README.md", "words")
    assert not resolve(git, "worktree").dirty


def test_the_users_index_is_left_alone(repository, git):
    repository.write("kernels/new.py", "# new\n")
    before = repository.git("status", "--porcelain")
    resolve(git, "worktree")
    assert repository.git("status", "--porcelain") == before == "?? kernels/new.py"


def test_accepting_baselines_keeps_the_digest(repository, git):
    before = resolve(git, "HEAD").code_digest
    repository.write("baselines/device=cpu/run.parquet", "rows")
    repository.commit("accept")
    assert resolve(git, "HEAD").code_digest == before


def test_the_workspace_table_is_part_of_the_digest(repository, git):
    before = resolve(git, "HEAD").code_digest
    repository.write("pyproject.toml", "[tool.harness]\napi = 1\n")
    repository.commit("table")
    assert resolve(git, "HEAD").code_digest != before


def test_a_declared_source_is_part_of_the_digest_and_of_what_is_written(repository, git):
    repository.write("src/team/ops.py", "ANSWER = 1\n")
    repository.write("pyproject.toml", '[tool.harness]\nsources = ["src"]\n')
    repository.commit("source")
    before = resolve(git, "HEAD").code_digest
    repository.write("src/team/ops.py", "ANSWER = 2\n")
    repository.commit("changed source")
    tree = resolve(git, "HEAD")
    code = checkout(git, tree, find_workspace(repository.root))
    assert tree.code_digest != before
    assert (code.root / "src/team/ops.py").read_text() == "ANSWER = 2\n"


def test_what_is_written_is_the_commits_code_and_not_the_worktrees(repository, git):
    committed = (repository.root / "kernels/scale.py").read_text()
    repository.write("kernels/scale.py", "# changed since\n")
    code = checkout(git, resolve(git, "HEAD"), find_workspace(repository.root))
    assert (code.root / "kernels/scale.py").read_text() == committed


def test_git_ignores_what_is_written(repository, git):
    before = resolve(git, "worktree").tree
    checkout(git, resolve(git, "HEAD"), find_workspace(repository.root))
    (repository.root / ".harness/runs").mkdir()
    (repository.root / ".harness/runs/a").write_text("a run")
    assert ("", before) == (repository.git("status", "--porcelain"), resolve(git, "worktree").tree)


@pytest.mark.parametrize("ignored", ["", ".harness\n", ".harness/\n", "/.harness/*\n"])
@pytest.mark.parametrize("folder", ["", "ops/"], ids=["at the root", "below it"])
def test_what_a_run_writes_before_there_is_code_is_in_no_worktrees_tree(repository, folder, ignored):
    repository.write(f"{folder}.gitignore", ignored)
    for name in ("pyproject.toml", "kernels/scale.py"):
        repository.write(folder + name, (repository.root / name).read_text())
    if folder:
        repository.commit("a workspace below the root")
    git = Git(repository.root / folder)
    before = resolve(git, "worktree").tree
    repository.write(f"{folder}.harness/runs/a/server.log", "a run")
    assert before == resolve(git, "worktree").tree
    repository.write("notes.txt", "another file")
    assert before != resolve(git, "worktree").tree


def test_the_same_code_is_written_once(repository, git):
    workspace = find_workspace(repository.root)
    first = checkout(git, resolve(git, "HEAD"), workspace)
    repository.write("README.md", "words")
    repository.commit("words")
    assert checkout(git, resolve(git, "HEAD"), workspace).root == first.root


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside"])
def test_a_link_that_leaves_the_tree_is_refused_by_name(repository, git, target):
    (repository.root / "kernels/link.py").symlink_to(target)
    repository.commit("link")
    with pytest.raises(RefError, match=r"kernels/link\.py leads out of the tree"):
        checkout(git, resolve(git, "HEAD"), find_workspace(repository.root))


def test_a_link_inside_the_tree_is_kept(repository, git):
    (repository.root / "kernels/_alias.py").symlink_to("scale.py")
    repository.commit("link")
    code = checkout(git, resolve(git, "HEAD"), find_workspace(repository.root))
    assert (code.root / "kernels/_alias.py").read_text() == (repository.root / "kernels/scale.py").read_text()


def test_a_commit_before_the_workspace_is_an_error(repository, git):
    repository.write("pyproject.toml", "[project]\n")
    repository.commit("no table")
    with pytest.raises(WorkspaceError, match=r"no \[tool.harness\] table"):
        resolve(git, "HEAD")


@pytest.fixture
def clone(repository, tmp_path):
    """A clone, which has what commits hold and no worktree's tree."""
    repository.git("clone", "-q", ".", str(tmp_path / "clone"))
    return Git(tmp_path / "clone")


def test_a_run_of_a_worktree_with_more_files_goes_on_in_a_clone_with_its_commits_tree(repository, git, clone):
    repository.write("notes.txt", "no code")
    worktree = resolve(git, "worktree")
    found = tree_of_record(clone, dataclasses.asdict(worktree))
    assert resolve(git, "HEAD").tree == found.tree != worktree.tree == tree_of_record(git, dataclasses.asdict(worktree)).tree
    assert (worktree.resolved, worktree.code_digest, False) == (found.resolved, found.code_digest, found.dirty)


def test_the_code_of_a_run_that_no_commit_holds_is_not_replaced(repository, git, clone):
    repository.write("kernels/scale.py", "# changed\n")
    worktree = resolve(git, "worktree")
    with pytest.raises(RefError, match=rf"(?s)git tree {worktree.tree[:12]}.*another clone.*submit anew"):
        tree_of_record(clone, dataclasses.asdict(worktree))


def test_nor_that_of_a_run_whose_commit_has_no_workspace_yet(repository, tmp_path):
    repository.git("rm", "-q", "--cached", "pyproject.toml")
    repository.git("commit", "-q", "-m", "without the workspace")
    repository.git("clone", "-q", ".", str(tmp_path / "clone"))
    run = {"ref": "worktree", "resolved": "worktree", "commit": repository.git("rev-parse", "HEAD")}
    with pytest.raises(RefError, match=r"(?s)git tree 0123456789ab.*another clone.*submit anew"):
        tree_of_record(Git(tmp_path / "clone"), {**run, "tree": "0123456789ab" + 28 * "0", "code_digest": "of another", "dirty": True})


def test_a_workspace_may_lie_below_the_repositorys_root(repository):
    for name in ("kernels", "pyproject.toml"):
        (repository.root / "ops").mkdir(exist_ok=True)
        repository.git("mv", name, f"ops/{name}")
    repository.commit("moved")
    workspace = find_workspace(repository.root / "ops" / "kernels")
    git = Git(workspace.root)
    code = checkout(git, resolve(git, "HEAD"), workspace)
    assert (workspace.root.name, (code.root / "kernels/scale.py").is_file()) == ("ops", True)


@pytest.mark.parametrize("change", ["edit", "add", "remove"])
def test_a_checkout_that_somebody_changed_is_written_anew(repository, git, change):
    workspace = find_workspace(repository.root)
    code = checkout(git, resolve(git, "HEAD"), workspace)
    file = code.root / "kernels/scale.py"
    committed = file.read_text()
    if change == "edit":
        file.write_text("# other code")
    elif change == "add":
        (code.root / "kernels/sneaked.py").write_text("")
    else:
        file.unlink()
    again = checkout(git, resolve(git, "HEAD"), workspace)
    assert (again.root / "kernels/scale.py").read_text() == committed
    assert not (again.root / "kernels/sneaked.py").exists()
