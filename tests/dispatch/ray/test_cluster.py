"""Ray carries the jobs: a simulated fleet of three nodes, real actors, real launches. Slow, so all share one fleet."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.authoring.workspace import find_workspace
from harness.dispatch.ray.dispatcher import RayDispatcher
from harness.dispatch.run import describe_run, execute, new_run_id
from harness.errors import Undecided
from harness.plan.matrix import Filters
from harness.plan.plan import make_plan

pytestmark = pytest.mark.slow


def parent_of(pid: str) -> str:
    """An expression for the parent of the process that another expression names."""
    return f"int(open('/proc/%d/stat' % {pid}).read().rsplit(')', 1)[1].split()[1])"


STATION = parent_of("os.getppid()")
"""In a launch: the process of the actor, which started the fork server."""
RAYLET = parent_of(STATION)


class MemoryStore:
    """Keeps what a run writes."""

    def save(self, run):
        pass

    def write(self, run, records, *, replace=False):
        pass


@pytest.fixture
def submit(repository, fleet, monkeypatch):
    """Runs the repository's matrix on the fleet, and again when it is given the description of a run."""

    def run(on=None, *, description=None, observe=lambda event: None, **options):
        found = on or fleet
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        workspace = find_workspace(repository.root)
        plan = make_plan(workspace, "worktree", "all", Filters())
        now = datetime.now(UTC)
        description = description or describe_run(plan, new_run_id(now), now, {})
        dispatcher = RayDispatcher(found.address, **options)
        return execute(plan, dispatcher, MemoryStore(), description, workspace.runs_dir / description["run_id"], observe=observe)

    return run


@pytest.fixture(autouse=True)
def _few_cells(repository):
    """One variant, whose cpu cases are N=8 and N=9."""
    text = (repository.root / "kernels/scale.py").read_text()
    one = text.replace('"twice": Variant(twice, triton=False)', "").replace('baseline="twice"', 'baseline="double"')
    repository.write("kernels/scale.py", one)


def matrix(repository, **kinds):
    """A matrix of kinds on devices."""
    entries = [f'[[all.cells]]\nkind = "{kind}"\ndevices = {json.dumps(devices)}\n' for kind, devices in kinds.items()]
    repository.write("jobs/matrix.toml", "\n".join(entries))


def answers(outcome):
    """(kind, device, N) -> status, node and attempt."""
    return {(r.kind, r.device, r.case.split(",")[0]): (r.status, r.node, r.attempt) for r in outcome.records}


def test_every_planned_cell_ends_with_a_record_under_the_right_node(repository, submit):
    repository.job("pass", kind="static")
    static = repository.root / "jobs/static.py"
    static.write_text(static.read_text().replace('on="unit"', 'on="host"'))
    repository.job("pass")
    matrix(repository, static=["a10g", "b200"], correctness=["cpu", "b200", "mi300x", "h200"])
    outcome = submit()
    found = answers(outcome)
    assert {(e["kind"], e["cell"]) for e in outcome.run["expected"]} == {(r.kind, str(r.cell)) for r in outcome.records}
    assert {("ok", "sim-a10g", 1)} == {a for (kind, device, _), a in found.items() if (kind, device) == ("static", "a10g")}
    assert {("ok", "sim-b200", 1)} == {a for (kind, device, _), a in found.items() if (kind, device) == ("static", "b200")}
    assert {("skipped", "sim-b200", 1)} == {a for (kind, device, _), a in found.items() if (kind, device) == ("correctness", "b200")}
    assert {("skipped", "sim-mi300x", 1)} == {a for (kind, device, _), a in found.items() if (kind, device) == ("correctness", "mi300x")}
    assert {("no_capacity", None, 0)} == {a for (kind, device, _), a in found.items() if (kind, device) == ("correctness", "h200")}
    interpreted = [a for (kind, device, _), a in found.items() if (kind, device) == ("correctness", "cpu")]
    assert {("ok", True)} == {(status, node.startswith("sim-")) for status, node, _ in interpreted}
    assert all(r.reason.startswith("simulated") for r in outcome.records if r.status == "skipped")
    assert 0 == outcome.exit_code


def test_a_worker_killed_in_mid_job_keeps_what_it_answered_and_another_goes_on(repository, submit, tmp_path):
    once = tmp_path / "once"
    die = f"open({str(once)!r}, 'w'), time.sleep(3), os.kill({STATION}, 9), time.sleep(60)"
    repository.job(f"if subject.case.N == 9 and not os.path.exists({str(once)!r}): {die}")
    outcome = submit()
    found = answers(outcome)
    first, second = found["correctness", "cpu", "N=8"], found["correctness", "cpu", "N=9"]
    assert ("ok", 1, "ok", 2) == (first[0], first[2], second[0], second[2])
    assert first[1] != second[1]
    assert 0 == outcome.exit_code


def test_a_worker_that_is_killed_each_time_is_given_up_after_three_hosts(repository, submit):
    repository.job(f"os.kill({STATION}, 9), time.sleep(60)")
    outcome = submit()
    assert {("infra", 3)} == {(status, attempt) for status, _, attempt in answers(outcome).values()}
    assert outcome.records[0].reason.startswith("worker_lost: sim-")
    assert 3 == outcome.exit_code


def test_cancelling_while_a_launch_runs_kills_it(repository, submit, tmp_path):
    note = tmp_path / "pid"
    repository.job(f"subject.case.N == 9 and (open({str(note)!r}, 'w').write(str(os.getpid())), time.sleep(60))")

    stopped = []

    def stop(event):
        while not (note.exists() and note.read_text()):
            time.sleep(0.05)
        stopped.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    outcome = submit(observe=stop)
    took = time.monotonic() - stopped[0]
    assert {"N=8": "ok", "N=9": "cancelled"} == {n: status for (_, _, n), (status, _, _) in answers(outcome).items()}
    assert 130 == outcome.exit_code
    assert not Path(f"/proc/{note.read_text()}").exists()
    assert took < 30


def test_no_node_of_a_device_is_known_at_once(repository, fleet, submit, monkeypatch):
    repository.job("pass")
    matrix(repository, correctness=["h200"])
    seen = []
    outcome = submit(observe=seen.append)
    assert {"no_capacity"} == {status for status, _, _ in answers(outcome).values()}
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", fleet.environment["RAY_AUTH_TOKEN_PATH"])
    dispatcher = RayDispatcher(fleet.address)
    try:
        dispatcher.nodes()
        began = time.monotonic()
        assert {"h200": 0} == dispatcher.capacity(["h200"])
        assert time.monotonic() - began < 10
    finally:
        dispatcher.close()


def test_a_node_that_dies_is_lost_and_its_job_goes_on_elsewhere(repository, fleet, submit, tmp_path):
    once = tmp_path / "once"
    with extra_node(fleet, "h200", "extra"):
        repository.job(
            f"if not os.path.exists({str(once)!r}): open({str(once)!r}, 'w'), os.kill({RAYLET}, 9), time.sleep(60)", kind="static"
        )
        static = repository.root / "jobs/static.py"
        static.write_text(static.read_text().replace('on="unit"', 'on="host"'))
        matrix(repository, static=["h200"])
        outcome = submit()
    assert {("ok", 2)} == {(status, attempt) for status, _, attempt in answers(outcome).values()}
    assert "extra" not in {node for _, node, _ in answers(outcome).values()}
    assert 0 == outcome.exit_code


def test_another_harness_on_a_node_is_refused_unread(repository, fleet, submit, tmp_path):
    engine = tmp_path / "engine"
    (engine / "harness").mkdir(parents=True)
    subprocess.run(["cp", "-r", *map(str, sources()), str(engine)], check=True)
    (engine / "harness/errors.py").write_text((engine / "harness/errors.py").read_text() + "# another\n")
    with extra_node(fleet, "h200", "skewed", PYTHONPATH=str(engine)):
        repository.job("pass", kind="static")
        static = repository.root / "jobs/static.py"
        static.write_text(static.read_text().replace('on="unit"', 'on="host"'))
        matrix(repository, static=["h200"])
        outcome = submit()
    assert {"infra"} == {status for status, _, _ in answers(outcome).values()}
    assert outcome.records[0].reason.startswith("version_skew: skewed has harness ")


def test_a_head_of_ones_own_lasts_for_the_run(repository, submit, monkeypatch):
    repository.job("pass")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.2:1")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "stale")
    outcome = submit(SimpleNamespace(address="local", environment={}), slots=1)
    assert {("ok", os.uname().nodename, 1)} == set(answers(outcome).values())
    assert 0 == outcome.exit_code


def test_a_wrong_token_is_said_within_seconds(fleet, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    began = time.monotonic()
    dispatcher = RayDispatcher(fleet.address)
    with pytest.raises(Undecided, match="token rejected"):
        dispatcher.capacity(["cpu"])
    assert time.monotonic() - began < 10
    dispatcher.close()


def test_when_the_head_dies_the_journal_is_whole_and_resume_finishes(repository, own_fleet, fleet, submit):
    repository.job("subject.case.N == 9 and time.sleep(15)")
    seen = []

    def behead(event):
        if not seen:
            os.kill(own_fleet.head(), signal.SIGKILL)
        seen.append(event)

    outcome = submit(own_fleet, observe=behead, head_timeout_s=6.0)
    first, second = outcome.records
    assert ("ok", "infra") == (first.status, second.status)
    assert second.reason.startswith("head_lost: ")
    assert 3 == outcome.exit_code
    again = submit(description=outcome.run)
    assert ["ok", "ok"] == [r.status for r in again.records]
    assert [True, False] == [r in outcome.records for r in again.records]
    assert 0 == again.exit_code


def test_no_process_outlives_a_killed_command_line(repository, fleet, harness, tmp_path):
    note = tmp_path / "pid"
    repository.job(f"open({str(note)!r}, 'w').write('%d %d' % (os.getpid(), {STATION})), time.sleep(60)")
    script = tmp_path / "run.py"
    script.write_text(
        "import sys; from datetime import UTC, datetime; from harness.authoring.workspace import find_workspace\n"
        "from harness.dispatch.ray.dispatcher import RayDispatcher; from harness.plan.matrix import Filters\n"
        "from harness.dispatch.run import describe_run, execute, new_run_id; from harness.plan.plan import make_plan\n"
        "from unittest.mock import MagicMock; from pathlib import Path\n"
        "w = find_workspace(); p = make_plan(w, 'worktree', 'all', Filters()); n = datetime.now(UTC)\n"
        "d = describe_run(p, new_run_id(n), n, {})\n"
        "execute(p, RayDispatcher(sys.argv[1]), MagicMock(), d, w.runs_dir / d['run_id'])\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | fleet.environment
    with subprocess.Popen([sys.executable, str(script), fleet.address], cwd=repository.root, env=env) as process:
        deadline = time.monotonic() + 120
        while not (note.exists() and note.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.kill()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in note.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def extra_node(fleet, device, name, **variables):
    """A node started as an owner would, `ray start`, while the block runs."""
    token = Path(fleet.environment["RAY_AUTH_TOKEN_PATH"])
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "TRITON_"))}
    guard = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token.read_text()}
    env = {**keep, "HOME": str(token.parent), "RAY_TMPDIR": str(token.parent), **guard, **variables}
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--address", fleet.address, "--node-ip-address", "127.0.0.2"]
    command += ["--labels", f"harness/device={device},harness/simulated=1,harness/node={name}", "--num-cpus", "1"]
    command += ["--resources", json.dumps({f"harness_{device}": 1}), "--disable-usage-stats"]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            deadline = time.monotonic() + 180
            while name not in alive(fleet):
                assert time.monotonic() < deadline
            yield
        finally:
            process.terminate()
            process.wait(60)


def alive(fleet):
    """Names of the fleet's live nodes, by the command line."""
    command = [sys.executable, "-m", "harness", "fleet", "--address", fleet.address, "--format", "json"]
    listed = subprocess.run(command, env={**os.environ, **fleet.environment}, capture_output=True, text=True, check=True)
    return [node["name"] for node in json.loads(listed.stdout) if node["alive"]]


def sources():
    root = Path(__file__).parents[3]
    return [root / "harness", root / "jobs"]
