"""What `harness diff` takes for the two sides, through the command line, on a kernel that needs no Triton."""

import json

import pytest

from harness.authoring.workspace import bundled_jobs

pytestmark = pytest.mark.slow
RIGHT, WRONG = "    return x * 2\n", "    return x * 3\n"


@pytest.fixture
def both(repository, harness):
    """main with two kernels, run; on branch pr the second is wrong."""
    text = (repository.root / "kernels/scale.py").read_text()
    repository.write("kernels/other.py", text)
    repository.write("jobs/matrix.toml", '[[all.cells]]\nkind = "correctness"\ndevices = ["cpu"]\n')
    for name in ("correctness.py", "conftest.py"):
        repository.write(f"jobs/{name}", (bundled_jobs() / name).read_text())
    repository.commit("two kernels")
    assert harness("submit").code == 0
    repository.git("checkout", "-q", "-b", "pr")
    repository.write("kernels/other.py", text.replace(RIGHT, WRONG))
    repository.commit("other is wrong")
    return repository


def diff(harness, *args):
    answer = harness("diff", *args, "--format", "json")
    return answer.code, json.loads(answer.out)


def test_a_change_that_was_not_run_is_no_pass(both, harness):
    assert harness("submit", "--kernel", "scale").code == 0
    code, found = diff(harness, "main..pr")
    missing = {f["cell"].split("/")[0] for f in found["findings"] if f["verdict"] == "MISSING"}
    assert (code, missing) == (3, {"other"})


def test_a_matrix_that_is_named_narrows_the_comparison_and_says_so(both, harness):
    assert harness("submit", "--kernel", "scale").code == 0
    code, found = diff(harness, "main..pr", "--matrix", "all")
    assert code == 0
    assert any("outside of head's plan" in note for note in found["notes"])


def test_a_failure_is_not_hidden_by_a_later_pass(both, harness):
    text = (both.root / "kernels/other.py").read_text()
    flaky = f"    import pathlib\n    mark = pathlib.Path({str(both.root / '.harness' / 'mark')!r})\n"
    both.write("kernels/other.py", text.replace(WRONG, flaky + "    return x * (2 if mark.exists() else 3)\n"))
    both.commit("flaky")
    assert harness("submit").code == 1
    (both.root / ".harness/mark").touch()
    assert harness("submit").code == 0
    code, found = diff(harness, "main..pr")
    assert (code, found["counts"]["BROKEN"]) == (1, 2)


def test_a_dirty_worktree_may_be_the_base(both, harness):
    assert harness("submit").code == 1
    both.write("kernels/other.py", (both.root / "kernels/other.py").read_text().replace(WRONG, RIGHT + "# again\n"))
    assert harness("submit").code == 0
    code, found = diff(harness, "worktree..pr")
    assert found["base"]["dirty"] is True
    assert (code, found["counts"]["BROKEN"]) == (1, 2)


def test_a_required_device_that_was_only_compiled_for_is_missing(both, harness):
    both.git("checkout", "-q", "main")
    answer = harness("submit", "--require", "h200", "--format", "json")
    assert answer.code == 3
    assert json.loads(answer.out)["exit_code"] == 3
