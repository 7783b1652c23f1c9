"""What is started before the jobs are known: fork servers import while the run is planned."""

import os
import signal
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.authoring.workspace import find_workspace
from harness.devices.units import Unit
from harness.dispatch import worker
from harness.dispatch.journal import JOURNAL, Journal
from harness.dispatch.launcher import Flavour, ForkServer
from harness.dispatch.local import LocalDispatcher
from harness.dispatch.one_unit import OneUnitDispatcher
from harness.dispatch.run import describe_run, execute, new_run_id, prepared
from harness.errors import HarnessError
from harness.plan.matrix import Filters
from harness.plan.plan import make_plan
from harness.store.runs import RunStore

H200, SECOND, A10G = (Unit(f"GPU-{n}", device, "", 1) for n, device in enumerate(("h200", "h200", "a10g")))
NO_DEVICE = Unit("GPU-9", None, "Vendor Z9", 1)


@pytest.fixture
def dispatcher():
    made = LocalDispatcher(1)
    made._units = [H200, A10G, SECOND, NO_DEVICE]
    yield made
    made.close()


@pytest.fixture
def asked(monkeypatch):
    """The servers that are asked for, none of which is started: a flavour, or the UUID of its GPU."""
    found = []

    def get(_self, flavour, unit, _scratch):
        found.append(unit.uuid if flavour is Flavour.GPU else str(flavour))

    monkeypatch.setattr(worker.Servers, "get", get)
    return found


def servers():
    """Process ids of the fork servers that this process has started, one that has only just begun or ended (no command) too."""
    found = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends meanwhile has started none
            found += map(int, (thread / "children").read_text().split())
    commands = {}
    for pid in found:
        with suppress(FileNotFoundError, ProcessLookupError):  # as git, which planning calls, and which has been reaped
            commands[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
    return [pid for pid, command in commands.items() if not command or b"harness.measure.server" in command]


def test_a_gpus_server_is_told_its_device_and_compiles_the_engines_kernels_for_it(tmp_path, monkeypatch):
    commands = []

    class Process:
        def __init__(self, command, **_):
            commands.append(command)
            raise InterruptedError

    monkeypatch.setattr("harness.dispatch.launcher.subprocess.Popen", Process)
    for flavour in Flavour:
        with pytest.raises(InterruptedError):
            worker.Servers().get(flavour, H200, tmp_path)
    ahead = {command[4]: command[5:] for command in commands}
    assert {"interpreter": [], "static": [], "gpu": ["h200", str(tmp_path / "server-gpu-0" / "engine")]} == ahead


class TestWhichServers:
    @pytest.mark.parametrize(
        ("devices", "kinds", "expected"),
        [
            (None, None, ["static", "GPU-0", "GPU-2", "GPU-1"]),
            (None, ["static"], ["static"]),
            (None, ["latency", "drift"], ["GPU-0", "GPU-2", "GPU-1"]),
            (["h200"], None, ["static", "GPU-0", "GPU-1"]),
            (["h200", "cpu"], ["static", "latency"], ["static", "GPU-0", "GPU-1"]),
            (["b200"], None, ["static"]),
            (["a10g"], ["latency"], ["GPU-2"]),
            (["cpu"], None, ["interpreter"]),
            (["cpu"], ["static"], []),
            ([], [], []),
        ],
    )
    def test_are_those_that_the_devices_and_kinds_need(self, dispatcher, asked, tmp_path, devices, kinds, expected):
        dispatcher.prepare(tmp_path, devices, kinds)
        assert expected == asked

    def test_of_one_unit_are_its_own(self, asked, tmp_path):
        made = OneUnitDispatcher(SECOND)
        made.prepare(tmp_path, ["h200"], ["latency"])
        made.close()
        assert ["GPU-1"] == asked

    def test_no_gpu_is_looked_for_where_only_the_host_is_asked(self, dispatcher, asked, tmp_path, monkeypatch):
        dispatcher._units = None
        monkeypatch.setattr("harness.dispatch.local.local_units", lambda: pytest.fail("the GPUs were listed"))
        dispatcher.prepare(tmp_path, None, ["static"])
        assert ["static"] == asked


def test_a_run_uses_the_servers_that_were_prepared(repository):
    repository.job("assert os.environ['HOME'].endswith('server-interpreter-0')")
    workspace, now = find_workspace(repository.root), datetime.now(UTC)
    run_id = new_run_id(now)
    folder = workspace.runs_dir / run_id
    dispatcher = LocalDispatcher(1)
    with prepared(dispatcher, folder, ["cpu"], ["correctness"]):
        (server,) = servers()
        plan = make_plan(workspace, "worktree", "all", Filters())
        assert [server] == servers()
    run = describe_run(plan, run_id, now, {"filters": {}, "require": [], "launches": 1})
    seen = []
    outcome = execute(plan, dispatcher, RunStore(workspace.runs_dir), run, folder, observe=lambda event: seen.extend(servers()))
    assert ({"ok": 4}, {server}) == (outcome.run["by_status"], set(seen))
    assert ["server-interpreter-0"] == [home.name for home in (folder / "scratch").glob("server-*")]
    assert [] == servers()


class TestAPlanThatFails:
    @staticmethod
    def plan(dispatcher, folder, error):
        with prepared(dispatcher, folder, None, None):
            assert 2 == len(servers())
            raise error

    @pytest.fixture
    def fail(self, tmp_path):
        """Raises when two servers have been started; the seconds that this and their end took."""

        def run(error):
            dispatcher = LocalDispatcher(1)
            dispatcher._units = [H200]
            began = time.monotonic()
            with pytest.raises(type(error)) as caught:
                self.plan(dispatcher, tmp_path / "run", error)
            assert error is caught.value
            return time.monotonic() - began

        return run

    @pytest.mark.parametrize("error", [HarnessError("a", "b", "c"), KeyboardInterrupt(), OSError("disk full")], ids=repr)
    def test_leaves_no_process_and_no_folder(self, fail, tmp_path, error):
        fail(error)
        assert ([], []) == (servers(), list(tmp_path.iterdir()))

    def test_does_not_wait_for_the_imports(self, fail):
        assert fail(KeyboardInterrupt()) < 1.5

    def test_leaves_the_folder_of_a_run_that_is_resumed(self, fail, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "journal.jsonl").touch()
        fail(KeyboardInterrupt())
        assert (tmp_path / "run" / "journal.jsonl").exists()
        assert [] == servers()

    def test_and_is_stopped_while_a_server_starts_leaves_no_process(self, tmp_path, monkeypatch):
        class Slow(ForkServer):
            """Takes a while, in which Ctrl-C comes."""

            def __init__(self, *args):
                time.sleep(0.2)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
                super().__init__(*args)

        monkeypatch.setattr(worker, "ForkServer", Slow)
        with pytest.raises(KeyboardInterrupt), prepared(LocalDispatcher(1), tmp_path / "run", None, ["static"]):
            pytest.fail("it was not stopped")
        assert ([], []) == (servers(), list(tmp_path.iterdir()))


def test_a_run_that_another_process_writes_ends_the_servers(repository, monkeypatch):
    repository.job("pass")
    workspace, now = find_workspace(repository.root), datetime.now(UTC)
    folder = workspace.runs_dir / "r1"
    dispatcher = LocalDispatcher(1)
    with prepared(dispatcher, folder, ["cpu"], None):
        plan = make_plan(workspace, "worktree", "all", Filters())
    run = describe_run(plan, "r1", now, {"filters": {}, "require": [], "launches": 1})

    def taken(_path):
        raise HarnessError("run r1", "another process is running it", "wait")

    monkeypatch.setattr("harness.dispatch.run.Journal", taken)
    with pytest.raises(HarnessError, match="another process"):
        execute(plan, dispatcher, RunStore(workspace.runs_dir), run, folder)
    assert [] == servers()


class TestARunThatIsResumed:
    @pytest.fixture
    def folder(self, tmp_path):
        folder = tmp_path / "run"
        folder.mkdir()
        Journal(folder / JOURNAL).close()
        return folder

    def test_while_it_is_written_starts_nothing(self, dispatcher, asked, folder):
        writer = Journal(folder / JOURNAL)
        with pytest.raises(HarnessError, match="another process"), prepared(dispatcher, folder, None, None):
            pytest.fail("it went on")
        writer.close()
        assert [] == asked

    def test_is_locked_from_before_it_is_planned_until_it_ends(self, dispatcher, asked, folder):
        with prepared(dispatcher, folder, None, None) as journal, pytest.raises(HarnessError, match="another process"):
            Journal(folder / JOURNAL)
        journal.close()
        Journal(folder / JOURNAL).close()
        assert asked

    def test_is_not_locked_any_more_where_its_plan_fails(self, dispatcher, asked, folder):
        with pytest.raises(KeyboardInterrupt), prepared(dispatcher, folder, None, None):
            raise KeyboardInterrupt
        Journal(folder / JOURNAL).close()
