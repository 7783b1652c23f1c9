"""Settings of every test: nothing of the user's machine is read or written, and Triton interprets in this process.

Tests that compile, or start launches, do so in processes of their own. `make test-gpu` sets HARNESS_TEST_GPU: then Triton
compiles in this process, for the tests marked gpu.
"""

import os
import signal
import tempfile
from pathlib import Path

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs us in the background has it ignored, by all we start
HOME = Path(tempfile.mkdtemp(prefix="harness-test-home-"))
os.environ |= {
    "HOME": str(HOME),
    "TRITON_CACHE_DIR": str(HOME / "triton"),
    "RAY_AUTH_MODE": "disabled",
    "GIT_CONFIG_GLOBAL": str(HOME / "gitconfig"),
    "GIT_CONFIG_NOSYSTEM": "1",
}
if "HARNESS_TEST_GPU" not in os.environ:
    os.environ["TRITON_INTERPRET"] = "1"
for name in ("GITHUB_EVENT_PATH", "GITHUB_BASE_REF", "GITHUB_SHA"):
    os.environ.pop(name, None)
(HOME / "gitconfig").write_text("[user]\n\tname = Tester\n\temail = tester@example.org\n[init]\n\tdefaultBranch = main\n")

import subprocess  # noqa: E402 -- after the environment is set
from collections.abc import Callable  # noqa: E402
from dataclasses import dataclass  # noqa: E402

import pytest  # noqa: E402

KERNEL = '''"""y = 2 x, a kernel for tests."""

import torch

from harness import Case, Kernel, Tolerance, Traffic, Variant


def make_inputs(case, generator):
    return {"x": generator.uniform((case.N,), case.dtype)}


def double(x):
    return x * 2


def twice(x):
    return x + x


def reference(x):
    return {"y": x.double() * 2}


KERNEL = Kernel(
    variants={"double": Variant(double, triton=False), "twice": Variant(twice, triton=False)},
    default="double",
    baseline="twice",
    axes=("N",),
    cases=[Case(N=8, dtype="fp32", tags="smoke cpu"), Case(N=9, dtype="fp32", tags="cpu ragged"), Case(N=64, dtype="fp32")],
    make_inputs=make_inputs,
    reference=reference,
    outputs=("y",),
    tolerance={"fp32": Tolerance(1e-6, "one rounding")},
    traffic=lambda case: Traffic(4 * case.N, 4 * case.N),
    flops=lambda case: case.N,
)
'''

JOB = '''"""A job for tests: does what the case's size asks for."""

import os
import signal
import time

from harness import Kind
from harness.measure.subject import Reading

KIND = Kind(on="unit", applies=lambda kernel, variant, case: True, cell_seconds=1.0, deadline_s={deadline})


def test_probe(subject, record):
    {body}
    record([Reading("rel_l2_error", 0.0)])
'''


@dataclass(frozen=True)
class Repository:
    """A git repository that is a workspace."""

    root: Path

    def git(self, *args: str) -> str:
        return subprocess.run(["git", *args], cwd=self.root, check=True, capture_output=True, text=True).stdout.strip()

    def write(self, name: str, text: str) -> Path:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def commit(self, message: str = "change") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def job(self, body: str, deadline: float = 60.0, kind: str = "correctness") -> None:
        """Give the repository a job file of its own, whose test runs `body`, and a matrix of it on cpu."""
        self.write(f"jobs/{kind}.py", JOB.format(body=body, deadline=deadline))
        self.write("jobs/matrix.toml", f'[[all.cells]]\nkind = "{kind}"\ndevices = ["cpu"]\n')


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A committed workspace with one kernel and the engine's own jobs."""
    found = Repository(tmp_path / "repository")
    found.write("pyproject.toml", "[tool.harness]\n")
    found.write(".gitignore", "__pycache__/\n")
    found.write("kernels/scale.py", KERNEL)
    found.git("init", "-q")
    found.commit("start")
    return found


@dataclass(frozen=True)
class Answer:
    """What a run of the command line gave."""

    code: int
    out: str
    err: str


@pytest.fixture
def harness(repository: Repository) -> Callable[..., Answer]:
    """Runs `harness ARGS...` in the repository, as a user would, in a process of its own."""

    def run(*args: str, **kwargs: object) -> Answer:
        import sys

        env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        command = [sys.executable, "-m", "harness", *args]
        done = subprocess.run(command, cwd=kwargs.get("cwd", repository.root), env=env, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)

    return run
