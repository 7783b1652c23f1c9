"""Two trees run with the same where they declare the same requirements, whatever else their settings say."""

import pytest

from harness.authoring.workspace import find_workspace
from harness.errors import WorkspaceError
from harness.plan.affected import change_between
from harness.plan.git import Git
from harness.plan.refs import resolve
from harness.plan.requirements import same_requirements
from harness.records import Cell, Expected

PYPROJECT = """[project]
name = "team"
version = "1"
dependencies = ["numpy>=2"]

[project.optional-dependencies]
kernels = ["torch>=2.11", "triton>=3.6"]

[dependency-groups]
test = ["pytest"]

[tool.uv]
constraint-dependencies = ["numpy<3"]

[tool.ruff]
line-length = 100

[tool.harness]
"""


@pytest.fixture
def same(repository):
    """Whether the repository's last two commits declare the same."""
    repository.write("pyproject.toml", PYPROJECT)
    repository.write("constraints.txt", "torch==2.12.0\n")
    repository.commit("base")

    def of(folder=""):
        repository.commit("head")
        git = Git(repository.root / folder)
        return same_requirements(git, *(git.run("rev-parse", f"{ref}^{{tree}}") for ref in ("HEAD~1", "HEAD")))

    return of


@pytest.mark.parametrize(
    ("old", "new"),
    [("numpy>=2", "numpy>=2.1"), ("triton>=3.6", "triton>=3.7"), ('["pytest"]', '["pytest>=8"]'), ("numpy<3", "numpy<2.4")],
    ids=["dependencies", "optional", "group", "uv"],
)
def test_other_requirements_of_the_project_are_not_the_same(repository, same, old, new):
    repository.write("pyproject.toml", PYPROJECT.replace(old, new))
    assert not same()


@pytest.mark.parametrize(
    "name", ["constraints.txt", "requirements-gpu.txt", "requirements/gpu.txt", "uv.lock", "Pipfile.lock", "pylock.toml", "setup.py"]
)
def test_another_file_of_requirements_is_not_the_same(repository, same, name):
    repository.write(name, "torch==2.13.0\n")
    assert not same()


@pytest.mark.parametrize(
    ("old", "new"),
    [('version = "1"', 'version = "2"'), ("line-length = 100", "line-length = 120")],
    ids=["version", "linter"],
)
def test_other_settings_are_the_same(repository, same, old, new):
    repository.write("pyproject.toml", PYPROJECT.replace(old, new))
    repository.write("README.md", "words")
    repository.write("docs/requirements.txt", "mkdocs\n")
    assert same()


def test_requirements_above_the_workspace_count(repository, same):
    repository.write("team/pyproject.toml", "[tool.harness]\n")
    repository.commit("a workspace in a folder")
    repository.write("uv.lock", "torch 2.13.0\n")
    assert not same("team")


def test_a_bad_file_is_named(repository, same):
    repository.write("pyproject.toml", "[project")
    with pytest.raises(WorkspaceError, match=r"pyproject\.toml"):
        same()


@pytest.mark.parametrize(("text", "affects"), [("torch==2.13.0\n", True), ("torch==2.12.0\n", False)], ids=["bumped", "equal"])
def test_other_requirements_affect_every_cell(repository, same, text, affects):
    repository.write("constraints.txt", text)
    repository.commit("head")
    workspace = find_workspace(repository.root)
    git = Git(workspace.root)
    found = change_between(workspace, git, resolve(git, "HEAD~1"), resolve(git, "HEAD"))
    assert affects == found.affects(Expected(Cell("scale", "double", "N=8,dtype=fp32", "cpu"), "correctness"))
