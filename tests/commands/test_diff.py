"""What `harness diff` takes for the two sides, through the command line, on a kernel that needs no Triton."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from harness.authoring.workspace import bundled_jobs

pytestmark = pytest.mark.slow
RIGHT, WRONG = "    return x * 2\n", "    return x * 3\n"
CORES = len(os.sched_getaffinity(0))
COMPILES = '''"""A job for tests: stands for compiling; of the variant `twice` only once `go` is there."""

import time
from pathlib import Path

from harness import Kind
from harness.measure.subject import Reading

KIND = Kind(on="host", applies=lambda kernel, variant, case: True, cell_seconds={seconds}, deadline_s=60.0)


def test_static(subject, record):
    if subject.variant_name == "twice":
        while not Path({go!r}).exists():
            time.sleep(0.05)
    record([Reading("registers", 8.0)])
'''


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


def test_what_a_run_left_out_is_compared_alone_by_the_command_that_is_named(both, harness):
    assert harness("submit", "--kernel", "scale").code == 0
    _, found = diff(harness, "main..pr")
    (note,) = [note for note in found["notes"] if "are missing" in note]
    assert note.startswith("4 cells (4 correctness) of base were left out of head's runs (--matrix all --kernel scale)")
    command = note.partition(": harness ")[2].split()
    assert command == ["diff", "main..pr", "--matrix", "all", "--kernel", "scale"]
    code, found = diff(harness, *command[1:])
    assert (code, {f["cell"].split("/")[0] for f in found["findings"]}) == (0, {"scale"})


def test_a_kernel_is_compared_alone(both, harness):
    assert harness("submit").code == 1
    assert diff(harness, "main..pr")[0] == 1
    code, found = diff(harness, "main..pr", "--kernel", "sc*")
    assert (code, {f["cell"].split("/")[0] for f in found["findings"]}) == (0, {"scale"})
    answer = harness("diff", "main..pr", "--kernel", "scales")
    assert (answer.code, "scale" in answer.err) == (2, True)


def test_a_kernel_that_was_added_and_run_alone_is_decided(both, harness):
    """What the others consist of did not change: nobody is told that they did, nor asked to run them."""
    both.git("checkout", "-q", "main")
    text = (both.root / "kernels/scale.py").read_text()
    both.write("kernels/third.py", text)
    assert harness("submit", "--kernel", "third").code == 0
    code, found = diff(harness, "HEAD..run:last")
    assert (code, found["counts"]["NEW"], found["counts"]["UNCHANGED"]) == (0, 4, 8)
    assert {f["reason"] for f in found["findings"]} == {"new_cell", "same_code"}

    for narrow in (("--kernel", "third"), ("--matrix", "all")):
        code, found = diff(harness, "HEAD..run:last", *narrow)
        assert (code, found["counts"]["NEW"], len(found["findings"])) == (0, 4, 4)
    both.write("kernels/other.py", text.replace(RIGHT, WRONG))
    assert harness("submit", "--kernel", "third").code == 0
    assert diff(harness, "HEAD..run:last", "--matrix", "all")[0] == 3
    assert diff(harness, "HEAD..run:last", "--kernel", "third")[0] == 0

    both.write("kernels/third.py", text.replace(RIGHT, WRONG))
    assert harness("submit", "--kernel", "third").code == 1
    assert diff(harness, "HEAD..run:last")[0] == 1


@pytest.mark.parametrize("name", ["jobs/correctness.py", "constraints.txt"])
def test_a_changed_job_file_or_requirement_leaves_no_result_standing_for_both(both, harness, name):
    both.git("checkout", "-q", "main")
    both.write("kernels/third.py", (both.root / "kernels/scale.py").read_text())
    file = both.root / name
    both.write(name, (file.read_text() if file.exists() else "") + "# changed\n")
    assert harness("submit", "--kernel", "third").code == 0
    code, found = diff(harness, "HEAD..run:last")
    assert (code, found["counts"]["MISSING"]) == (3, 8)


def test_static_rows_of_a_changed_kernel_that_head_left_out_are_compiled_on_the_spot(both, harness, tmp_path):
    (tmp_path / "go").touch()
    both.git("checkout", "-q", "main")
    text = (both.root / "kernels/other.py").read_text()
    both.write("jobs/static.py", COMPILES.format(go=str(tmp_path / "go"), seconds=1.0))
    both.write("jobs/matrix.toml", '[[all.cells]]\nkind = "static"\ndevices = ["h200"]\n')
    both.commit("static alone")
    assert harness("submit").code == 0
    both.write("kernels/other.py", text.replace(RIGHT, RIGHT + "# changed\n"))
    assert harness("submit", "--kernel", "scale").code == 0
    answer = harness("diff", "HEAD..run:last", "--format", "json")
    assert answer.err.startswith("compiling 6 cells of run ")
    found = json.loads(answer.out)
    assert {f["verdict"] for f in found["findings"]} == {"UNCHANGED"}
    assert (answer.code, {f["cell"].split("/")[0] for f in found["findings"]}) == (0, {"scale", "other"})


def test_a_matrix_that_is_named_narrows_the_comparison_and_says_so(both, harness):
    assert harness("submit", "--kernel", "scale").code == 0
    code, found = diff(harness, "main..pr", "--matrix", "all")
    assert code == 0
    assert any("outside of head's plan" in note for note in found["notes"])


class TestAChangeOfNoCode:
    """There is nothing to compare, and it passes: a check of each pull request must be green for one of the documentation alone."""

    @pytest.fixture(autouse=True)
    def _docs(self, both):
        both.git("checkout", "-q", "main")
        both.git("branch", "-q", "-D", "pr")
        both.git("checkout", "-q", "-b", "docs")
        both.write("README", "new\n")
        both.commit("docs")

    @pytest.mark.parametrize("run", [False, True], ids=["never-run", "run"])
    def test_passes(self, both, harness, run):
        if run:
            assert harness("submit").code == 0
        for args, cells in (((), 8), (("--matrix", "all"), 8), (("--kernel", "scale"), 4), (("--no-compile",), 8)):
            code, found = diff(harness, "main..docs", *args)
            assert (code, found["counts"]["UNCHANGED"], {f["reason"] for f in found["findings"]}) == (0, cells, {"same_code"})
            assert found["conclusion"][0].startswith("passes: nothing that a result depends on differs between the sides")
        answer = harness("check", "main..docs", "--dry-run")
        assert (answer.code, json.loads(answer.out)[-1]["body"]["conclusion"]) == (0, "success")
        both.write("README", "newer\n")
        assert diff(harness, "HEAD..worktree")[0] == 0
        shutil.rmtree(both.root / ".harness")
        assert diff(harness, "main..docs")[0] == 0

    def test_passes_of_a_change_that_was_taken_back(self, both, harness):
        text = (both.root / "kernels/other.py").read_text()
        for one in (text.replace(RIGHT, WRONG), text):
            both.write("kernels/other.py", one)
            both.commit("change")
        both.git("rm", "-q", "README")
        both.commit("as main is")
        assert both.git("rev-parse", "main^{tree}") == both.git("rev-parse", "docs^{tree}")
        assert diff(harness, "main..docs")[0] == 0

    def test_fails_where_what_is_known_of_the_code_is_wrong(self, both, harness):
        both.write("kernels/other.py", (both.root / "kernels/other.py").read_text().replace(RIGHT, WRONG))
        both.commit("other is wrong")
        both.git("checkout", "-q", "-b", "more")
        both.write("README", "more\n")
        both.commit("docs of it")
        assert harness("submit").code == 1
        code, found = diff(harness, "docs..more")
        assert (code, {(f["verdict"], f["reason"]) for f in found["findings"] if f["exit_code"]}) == (
            1,
            {("BROKEN", "also_broken_at_base")},
        )

    def test_is_undecided_where_it_declares_other_requirements(self, both, harness):
        both.write("constraints.txt", "torch==2.12.0\n")
        both.commit("another torch")
        answer = harness("diff", "main..docs")
        assert (answer.code, "the declared requirements are not" in answer.err) == (3, True)
        assert "harness submit --ref docs with what it declares, and compare that run: harness diff main..run:last" in answer.err


class TestAKernelThatWasRemoved:
    @pytest.fixture(autouse=True)
    def _removed(self, both):
        both.git("checkout", "-q", "-B", "pr", "main")
        both.git("rm", "-q", "kernels/other.py")
        both.commit("no other")

    @pytest.mark.parametrize("run", [False, True], ids=["never-run", "run"])
    def test_is_removed_and_said_at_the_top(self, harness, run):
        if run:
            assert harness("submit").code == 0
        for args, unchanged in ((), 4), (("--kernel", "other"), 0):
            code, found = diff(harness, "main..pr", *args)
            assert (code, found["counts"]["REMOVED"], found["counts"]["UNCHANGED"]) == (0, 4, unchanged)
            assert "removed: 4 results that base has: other" in found["conclusion"]


def test_one_commit_without_results_is_not_compared_with_itself(both, harness):
    both.git("checkout", "-q", "main")
    both.git("branch", "-q", "-D", "pr")
    both.write("README", "no code\n")
    both.write("kernels/third.py", (both.root / "kernels/scale.py").read_text().replace("scale", "third"))
    both.commit("a third kernel, never run")
    answer = harness("diff", "main..pr")
    assert answer.code == 3
    assert "both are one commit (main is main at" in answer.err
    assert "no branch pr" in answer.err


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


class TestAHeadThatWasNeverRun:
    """Its static rows are compiled on the spot, which a user may expect, watch, avoid and stop."""

    @pytest.fixture
    def never_run(self, repository, tmp_path):
        """A branch `pr` beside main, whose six cells are compiled for one device."""
        repository.write("jobs/static.py", COMPILES.format(go=str(tmp_path / "go"), seconds=20 * CORES))
        repository.write("jobs/matrix.toml", '[[all.cells]]\nkind = "static"\ndevices = ["h200"]\n')
        repository.commit("static alone")
        repository.git("checkout", "-q", "-b", "pr")
        text = (repository.root / "kernels/scale.py").read_text()
        repository.write("kernels/scale.py", text.replace(RIGHT, RIGHT + "# changed\n"))
        repository.commit("change")
        return repository

    def test_is_announced_with_its_size_and_the_ways_out_and_its_progress_is_shown(self, never_run, harness, tmp_path):
        (tmp_path / "go").touch()
        lines = harness("diff", "main..pr").err.splitlines()
        assert lines[0].startswith("compiling 6 cells of branch pr at ")
        ways_out = "(--no-compile leaves them out, --matrix NAME compares fewer; what is compiled is kept)"
        assert lines[0].endswith(f" without a GPU, about 2m on {CORES} cores {ways_out}")
        assert "[6 done] static scale on h200" in lines

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
    def test_that_is_stopped_ends_with_130_and_the_next_diff_goes_on(self, never_run, harness, tmp_path, number):
        command = [sys.executable, "-m", "harness", "diff", "main..pr"]
        env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        with subprocess.Popen(command, cwd=never_run.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            while _journaled(never_run) < 3 and process.poll() is None:
                time.sleep(0.05)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        assert (130, "") == (process.returncode, out)
        assert "stopped: 3 of 6 cells are compiled, and kept for the next diff" in err.splitlines()
        (tmp_path / "go").touch()
        assert harness("diff", "main..pr").err.startswith("compiling 3 cells of branch pr at ")


def _journaled(repository):
    """How many cells a diff has compiled and put on disk."""
    return sum(len(file.read_text().splitlines()) for file in repository.root.glob(".harness/compiled/*/journal.jsonl"))
