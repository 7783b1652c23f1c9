"""The commands of README.md, CONTRIBUTING.md and docs/matrices.md, run as a reader would; the links of every document."""

import json
import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from harness.authoring.model import TAGS
from harness.cli import group
from harness.devices.table import load_devices, resolve_devices
from harness.errors import UnknownNameError
from harness.plan.matrix import ROLES

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


def commands(document):
    """The lines after `$` in a document's console blocks, split into words."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return [shlex.split(line.removeprefix("$ ")) for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def mentioned(document):
    """What a document says to type outside of its blocks, split into words; a verb alone in a code span is only its name."""
    prose = re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.DOTALL)
    lines = [part for line in re.findall(r"^    (harness .*?)(?: {2,}.*)?$", prose, re.MULTILINE) for part in line.split(" && ")]
    found = [shlex.split(text) for text in (*re.findall(r"`(harness [^`]+ [^`]+)`", prose), *lines)]
    return [words[1:] for words in found if words[0] == "harness"]


def parse(words):
    """Read a command line as `harness` does, and run nothing."""
    found = group
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        _, found, words = found.resolve_command(click.Context(found, info_name="harness"), words)
    found.make_context("harness", words)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_what_the_prose_says_to_type_is_understood(document):
    found = mentioned(document)
    assert found
    for words in found:
        parse(words)


def test_what_the_readme_says_is_not_there_yet_is_refused():
    (sentence,) = re.findall(r"^Not written yet are (.*?)\. ", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    for span in re.findall(r"`(.+?)`", sentence):
        with pytest.raises((UnknownNameError, click.UsageError)) as refused:
            parse(span.split())
        assert not isinstance(refused.value, click.MissingParameter), span


@pytest.fixture
def copy(repository):
    """The bundled kernels, jobs and baselines in a repository of their own."""
    (repository.root / "kernels/scale.py").unlink()
    for name in ("kernels", "jobs", "baselines"):
        shutil.copytree(ROOT / name, repository.root / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    repository.commit("bundled")
    return repository


def test_the_commands_of_the_readme_run(copy, harness):
    found = commands("README.md")
    assert len(found) >= 7
    for words in found:
        assert words[0] == "harness"
        answer = harness(*words[1:])
        # the accepted baselines may be of other code than the worktree under test: then the run is its commit's only result
        alone = words[1] == "diff" and answer.code == 3 and "a run is never its own baseline" in answer.err
        assert alone or (answer.code == 0 and answer.out), (words, answer.out, answer.err)


def test_a_kernel_is_added_by_the_steps_of_contributing(copy, harness):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    copy.write("kernels/axpy.py", code)
    listed, submitted, differed = [harness(*words[1:]) for words in commands("CONTRIBUTING.md")]
    assert "axpy" in listed.out
    assert submitted.code == 0, submitted.out
    assert "correctness: 6 of 6 right" in submitted.out
    # the accepted baselines may be of other code than the worktree under test: then nothing is compared
    assert differed.code in (0, 3), differed.out
    assert "axpy/fused" in differed.out
    assert "changed, and no result says" not in differed.out


def test_the_matrix_of_the_documents_is_planned(copy, harness):
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/matrices.md").read_text(), re.DOTALL)
    copy.write("mine.toml", text)
    ((_, *words),) = commands("docs/matrices.md")
    answer = harness(*words, "--format", "json")
    assert answer.code == 0, answer.err
    planned = {(cell["kind"], cell["cell"].rpartition("@")[2]) for cell in json.loads(answer.out)["cells"]}
    assert planned == {("correctness", "cpu"), *(("latency", gpu) for gpu in resolve_devices(["fleet"], load_devices()))}


def test_the_documents_name_every_tag_and_role_of_a_matrix():
    text = (ROOT / "docs/matrices.md").read_text()
    assert [word for word in (*TAGS, *ROLES) if f"`{word}`" not in text] == []


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def links(document):
    """Where a document's links to files lead."""
    prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    return [(document.parent / target).resolve() for target in re.findall(r"\]\(([^)#:]+)\)", prose)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_somewhere(document):
    assert [target for target in links(document) if not target.exists()] == []


def test_every_tag_is_explained():
    _, tags = (ROOT / "docs/glossary.md").read_text().split("\n## Tags\n")
    assert list(TAGS) == re.findall(r"^\| `(\w+)` \|", tags, re.MULTILINE)


def test_every_document_is_linked_from_the_readme_or_the_index_of_its_folder():
    pages = {document for document in DOCUMENTS if document.parent.parent == ROOT / "docs"}
    assert set(DOCUMENTS[1:]) - pages <= set(links(DOCUMENTS[0]))
    assert [page for page in pages if page not in links(page.parent.with_suffix(".md"))] == []
