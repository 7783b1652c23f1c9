"""A checkout that cannot be written: verbs that read work there and leave nothing behind, and those that measure say what to do."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1

Run = Callable[..., subprocess.CompletedProcess[str]]


def bound() -> None:
    """Let root be held by permissions, once it runs another program."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


@pytest.fixture
def run(repository, tmp_path) -> Iterator[Run]:
    """`run("plan")` in a repository whose worktree is dirty, none of which can be written."""
    repository.write("kernels/scale.py", (repository.root / "kernels/scale.py").read_text() + "# dirty\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    folders = [repository.root, *(path for path in repository.root.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"TMPDIR": str(temporary)}

    def call(*args: str, command: tuple[str, ...] = (sys.executable, "-m", "harness")) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *args], cwd=repository.root, env=env, capture_output=True, text=True, check=False, preexec_fn=bound
        )

    if call(command=("test", "-w", ".")).returncode == 0:
        pytest.skip("nothing holds this user from writing")
    yield call
    for folder in folders:
        folder.chmod(0o755)
    assert [] == list(temporary.iterdir())


@pytest.mark.parametrize(
    "args",
    [("plan",), ("submit", "--dry-run"), ("submit", "--dry-run", "--budget", "1m"), ("kernels",), ("runs",), ("baseline", "list")],
    ids=" ".join,
)
def test_a_verb_that_reads_works(run: Run, args: tuple[str, ...]) -> None:
    done = run(*args)
    assert (0, "") == (done.returncode, done.stderr)


def test_a_diff_finds_the_code_of_both_sides(run: Run) -> None:
    done = run("diff", "HEAD..worktree")
    assert 3 == done.returncode
    assert "worktree on" in done.stdout


@pytest.mark.parametrize("store", [False, True], ids=["", "--store"])
def test_a_verb_that_measures_says_what_to_do(run: Run, tmp_path: Path, store: bool) -> None:
    done = run("submit", *(("--store", str(tmp_path / "records")) if store else ()))
    asked, found, do = done.stderr.splitlines()
    assert (2, "found: it cannot be written") == (done.returncode, found)
    assert ".harness/runs" in asked
    assert do.startswith("do next: make it writable, or work in a clone: git clone . ELSEWHERE")
