"""A plan of two kinds of job, and what a driver would say of it; and real clusters for the slow tests."""

import dataclasses
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.dispatch.protocol import ArmCode, CellDone, RunContext
from harness.dispatch.ray.messages import cell_to_text
from harness.dispatch.stamp import Place, failure
from harness.plan.jobs import Job, Turn
from harness.records import Cell, Status


@pytest.fixture
def context(tmp_path):
    """A run of one arm, whose code is one file."""
    root = tmp_path / "code"
    (root / "jobs").mkdir(parents=True)
    (root / "jobs/correctness.py").write_text("")
    head = ArmCode("c" * 40, "t" * 40, False, "d" * 64, root)
    return RunContext("run-1", {"head": head}, root / "jobs", tmp_path / "scratch", {"correctness": "j" * 64, "static": "s" * 64})


@pytest.fixture
def make_job():
    """Builds a job of cells N=0, N=1, ... on a device."""

    def make(device="cpu", cells=3, *, on="unit", kind="correctness", turns=None, job_id=None):
        every = tuple(Cell("scale", "double", f"N={n},dtype=fp32", device) for n in range(cells))
        made = tuple(Turn(t.position, every, t.arm, t.block) for t in turns) if turns else (Turn(0, every),)
        return Job(job_id or f"{kind}-{device}", kind, on, "scale", device, every, made, 60.0, 10.0)

    return make


@pytest.fixture
def says(context):
    """Builds what the driver sends when a cell of a job has ended."""

    def say(job, number, *, turn=0, attempt=1, status=Status.OK, **changes):
        place = Place("cpu:0", "node", attempt, changes.pop("lease", "lease"))
        record = failure(context, job, job.turns[turn], job.cells[number], place, status, "none")
        done = CellDone(job, job.cells[number], (dataclasses.replace(record, **changes),))
        return {"event": "cell", "job": job.job_id, "attempt": attempt, "records": cell_to_text(done)}

    return say


@dataclass
class Fleet:
    """A simulated fleet that runs in a process of its own.

    Args:
        environment: variables by which the command line may use it.
    """

    address: str
    environment: dict[str, str]
    process: subprocess.Popen

    def head(self) -> int:
        """The head's process."""
        return next(int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if self._is_head(stat))

    def _is_head(self, stat: Path) -> bool:
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            return False
        return name == "gcs_server" and int(rest.split()[1]) == self.process.pid


@contextmanager
def running_fleet(devices: str):
    """A simulated fleet while the block runs; a token of the user's, stale, must not matter."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TRITON_"))}
    command = [sys.executable, "-m", "harness", "fleet", "up", "--simulate", devices]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            address = token = ""
            for line in process.stdout:
                address = address or line.partition("fleet at ")[2].partition(": ")[0]
                token = line.partition("RAY_AUTH_TOKEN_PATH=")[2].strip()
                if token:
                    break
            yield Fleet(address, {"RAY_AUTH_TOKEN_PATH": token}, process)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@pytest.fixture(scope="session")
def fleet():
    """A fleet of three simulated nodes, for all slow tests."""
    with running_fleet("a10g,b200,mi300x") as found:
        yield found


@pytest.fixture
def own_fleet():
    """A fleet that a test may ruin."""
    with running_fleet("a10g,b200") as found:
        yield found
