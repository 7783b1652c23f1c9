"""`harness doctor`: its lines and exit code; libraries, GPUs and servers that it asks are stood in for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from harness.commands import _host_checks as host
from harness.commands.doctor import command
from harness.devices import health, probe
from harness.devices.fitness import Check, Level
from harness.devices.health import Health
from harness.devices.history import PastLease, Stack
from harness.devices.history_file import append_lease, history_file
from harness.devices.probe import CannotList
from harness.devices.table import Vendor
from harness.dispatch.launcher import KEPT, ServerLost

READINGS = {
    "sm_clock_mhz": 345.0,
    "memory_clock_mhz": 3201.0,
    "power_w": 76.0,
    "temperature_c": 31.0,
    "throttled": ["idle"],
    "utilisation": 0.0,
    "ecc_uncorrected": 0,
    "processes": [],
    "sm_clock_max_mhz": 1980.0,
    "memory_clock_max_mhz": 3201.0,
    "clock_setting": "default",
    "power_limit_w": 700.0,
    "power_limit_default_w": 700.0,
    "ecc": True,
    "persistence": True,
    "newest_runtime": "13.0",
}
H200 = Health("GPU-aaaa0000-1111", "h200", "NVIDIA H200", "580.1", "none", READINGS)
TORCH = {"version": "2.11.0+cu130", "cuda": "13.0", "hip": None, "gpus": 1}


class Server:
    """Stands for ForkServer: it comes up at once, or `fails` with these words."""

    fails: str | None = None

    def __init__(self, flavour: Any, scratch: Path) -> None:
        assert scratch.is_dir()

    def wait_ready(self) -> None:
        if self.fails:
            raise ServerLost(self.fails)

    def close(self) -> None: ...


@pytest.fixture
def machine(workspace: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine in good order with `gpus` (none), whose `libraries` answer or raise; its units have no history."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("host")))
    found = SimpleNamespace(gpus=[], libraries={"torch": TORCH, "triton": {"version": "3.6.0"}, "ray": {"version": "2.60.0"}})

    def ask(module: str, name: str) -> Any:
        answer = found.libraries[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def read_health() -> list[Health]:
        if isinstance(found.gpus, Exception):
            raise found.gpus
        return list(found.gpus)

    for vendor in probe.DRIVERS:
        monkeypatch.setitem(probe.DRIVERS, vendor, Path("/nonexistent"))
    found.driver = lambda vendor=Vendor.NVIDIA: monkeypatch.setitem(probe.DRIVERS, vendor, Path("/dev/null"))
    monkeypatch.setattr(health, "read_health", read_health)
    monkeypatch.setattr(host, "ask", ask)
    monkeypatch.setattr(host, "ForkServer", Server)
    monkeypatch.setattr(host, "_other_uid", lambda: Check("launch as another user", Level.OK, "stood in for"))
    monkeypatch.setattr(host.shutil, "disk_usage", lambda path: SimpleNamespace(free=50 << 30))
    return found


@pytest.fixture
def doctor(machine: SimpleNamespace) -> Callable[[], tuple[int, dict[str, tuple[str, str, str]]]]:
    """Exit code, and name -> (level, found, do)."""

    def run() -> tuple[int, dict[str, tuple[str, str, str]]]:
        done = CliRunner().invoke(command, ["--format", "json"], catch_exceptions=False, standalone_mode=False)
        answer = json.loads(done.stdout)
        assert done.return_value == answer["exit_code"]
        return answer["exit_code"], {c["name"]: (c["level"], c["found"], c["do"]) for c in answer["checks"]}

    return run


class TestTheVerb:
    def test_without_a_gpu_there_is_one_warning_and_no_failure(self, doctor: Any) -> None:
        code, found = doctor()
        assert code == 0
        assert ["gpu"] == [name for name, (level, _, _) in found.items() if level == "warn"]
        assert "no GPU here (no driver of one either)" == found["gpu"][1]
        assert ["python", "git", "workspace", "triton cache", "gpu", "torch", "triton", "ray", "launch", "launch as another user"] == list(
            found
        )

    def test_a_driver_that_lists_no_gpu_is_no_failure_of_torch(self, doctor: Any, machine: SimpleNamespace) -> None:
        machine.driver()
        machine.libraries["torch"] = TORCH | {"gpus": 0}
        code, found = doctor()
        assert (0, "no GPU here (a driver is here and lists none that you may use)") == (code, found["gpu"][1])

    def test_a_line_a_check_and_a_verdict(self, say: Any, machine: SimpleNamespace) -> None:
        machine.driver()
        machine.gpus = [H200]
        lines = say(command).splitlines()
        assert "ok    gpu GPU-aaaa0000          h200: NVIDIA H200, driver 580.1" in lines
        assert "ok    torch                     2.11.0+cu130, built for CUDA 13.0, sees 1 GPU" in lines
        assert "fit (exit code 0): 19 ok, 0 warn, 0 fail" == lines[-1]
        assert len(lines) == 20

    def test_one_that_fails_makes_the_exit_code_one(self, say: Any, doctor: Any, machine: SimpleNamespace) -> None:
        machine.driver()
        machine.gpus = [Health(*list(vars(H200).values())[:5], READINGS | {"processes": [7]})]
        assert doctor()[0] == 1
        text = say(command)
        assert "fail  processes GPU-aaaa0000    others compute on it: 7; do: wait until they have ended, or take another GPU" in text
        assert "not fit to measure (exit code 1): 18 ok, 0 warn, 1 fail" in text

    def test_a_driver_that_hangs_is_a_line_and_the_rest_is_checked(self, doctor: Any, machine: SimpleNamespace) -> None:
        machine.driver()
        machine.gpus = CannotList("no answer within 30 s", "look at the driver")
        code, found = doctor()
        assert (1, ("fail", "no answer within 30 s", "look at the driver")) == (code, found["driver"])
        assert found["triton"][0] == "ok"


class TestLibraries:
    @pytest.mark.parametrize(
        ("vendor", "torch", "level", "words"),
        [
            (Vendor.NVIDIA, TORCH, "ok", "built for CUDA 13.0, sees 1 GPU"),
            (Vendor.NVIDIA, TORCH | {"cuda": "12.8", "gpus": 8}, "ok", "sees 8 GPUs"),
            (Vendor.NVIDIA, TORCH | {"cuda": "14.0"}, "fail", "the driver serves CUDA 13.0 at most"),
            (Vendor.NVIDIA, TORCH | {"cuda": "13.4"}, "ok", "built for CUDA 13.4"),
            (Vendor.NVIDIA, TORCH | {"cuda": None}, "fail", "built for the CPU alone; the driver here is of nvidia"),
            (Vendor.NVIDIA, TORCH | {"gpus": 0}, "fail", "sees 0 GPUs"),
            (Vendor.AMD, TORCH | {"cuda": None, "hip": "7.0.2"}, "ok", "built for HIP 7.0.2, sees 1 GPU"),
            (Vendor.AMD, TORCH, "fail", "the driver here is of amd"),
        ],
        ids=["equal", "older", "newer", "minor version", "cpu build", "blind", "hip", "of another vendor"],
    )
    def test_torch_is_held_against_the_driver(
        self, doctor: Any, machine: SimpleNamespace, vendor: Vendor, torch: Any, level: str, words: str
    ) -> None:
        machine.driver(vendor)
        machine.gpus, machine.libraries["torch"] = [H200], torch
        found = doctor()[1]["torch"]
        assert level == found[0]
        assert words in found[1]

    @pytest.mark.parametrize("name", ["torch", "triton"])
    def test_without_torch_or_triton_nothing_is_launched(
        self, doctor: Any, machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        machine.libraries[name] = CannotList("it is not installed", f"install {name}")
        monkeypatch.setattr(host, "ForkServer", lambda *_: pytest.fail("a server was started"))
        code, found = doctor()
        assert (1, "fail", "it is not installed") == (code, *found[name][:2])
        assert ("fail", "not tried: launches need torch and triton") == found["launch"][:2]

    def test_ray_may_be_missing_old_or_broken_and_launches_need_none(
        self, doctor: Any, machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine.libraries["ray"] = {"version": "2.9.3"}
        assert ("warn", "2.9.3", "a fleet needs Ray 2.60 or later") == doctor()[1]["ray"]
        machine.libraries["ray"] = CannotList("no answer within 30 s", "see why")
        code, found = doctor()
        assert (1, "fail", "ok") == (code, found["ray"][0], found["launch"][0])
        monkeypatch.setattr(host.importlib.util, "find_spec", lambda name: None)
        assert ("ok", "not installed; only a fleet needs it (the extra `fleet`)") == doctor()[1]["ray"][:2]


class TestHistory:
    @pytest.fixture
    def history(self, doctor: Any, machine: SimpleNamespace) -> Callable[[], tuple[str, str, str]]:
        """The line of the GPU's history."""
        machine.gpus = [H200]
        return lambda: doctor()[1]["history GPU-aaaa0000"]

    def append(self, *canaries: tuple[float, float], hour: int = 12, torch: str = "2.11.0", of: int = 1) -> None:
        """Leases, a minute apart; `of` of them are a run."""
        for minute, (arithmetic, copy) in enumerate(canaries):
            when = f"2026-01-31T{hour}:{minute:02}:00.000000+00:00"
            append_lease(
                H200.uuid, PastLease(when, f"r{hour}.{minute // of}", Stack("canary/2", "580.1", torch, "3.6.0"), arithmetic, copy)
            )

    def test_of_a_new_unit_says_from_when_on_it_counts(self, history: Any) -> None:
        assert ("ok", "no run yet; a canary is held against the last ones from 3 on", "") == history()
        self.append((50.0, 800.0))
        assert history()[1].startswith("canaries of the last run on one stack: arithmetic 50 us (spread 0.0%), copy 800 us (0.0%); ")

    def test_is_that_of_the_stack_used_last(self, history: Any) -> None:
        self.append((50.0, 800.0), (51.0, 800.0), (49.0, 820.0), hour=13)
        self.append(*[(70.0, 900.0)] * 4, hour=12, torch="2.10.0")
        assert ("ok", "canaries of the last 3 runs on one stack: arithmetic 50 us (spread 4.0%), copy 800 us (2.5%)", "") == history()

    def test_counts_runs_not_their_leases(self, history: Any) -> None:
        self.append(*[(50.0, 800.0)] * 4, of=2)
        assert history()[1].startswith("canaries of the last 2 runs on one stack: ")
        assert history()[1].endswith("; a canary is held against the last ones from 3 on")

    def test_that_cannot_be_read_is_a_warning(self, history: Any) -> None:
        history_file(H200.uuid).mkdir()
        level, found, do = history()
        assert ("warn", True) == (level, "cannot be read: it is no file; no canary is held against it" in found)
        assert "make it readable and writable for every user, or remove it" == do

    def test_that_cannot_be_written_is_a_warning(self, history: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host.os, "access", lambda path, mode: not (str(path).startswith(tempfile.gettempdir()) and mode == os.W_OK))
        level, found, _ = history()
        assert ("warn", True) == (level, found.endswith("cannot be written"))


class TestHost:
    @pytest.mark.parametrize(
        ("said", "level"),
        [("git version 2.39.5\n", "ok"), ("git version 2.31.0\n", "ok"), ("git version 2.30.9 (Apple Git-1)\n", "fail"), ("", "fail")],
        ids=["newer", "first", "older", "silent"],
    )
    def test_git_has_a_first_version(self, monkeypatch: pytest.MonkeyPatch, said: str, level: str) -> None:
        monkeypatch.setattr(host.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=said))
        assert level == host.check_git().level

    def test_without_git_it_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nonexistent")
        check = host.check_git()
        assert (Level.FAIL, True) == (check.level, "No such file" in check.found)

    def test_python_has_a_first_version(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert host.check_python().level is Level.OK
        monkeypatch.setattr(host, "PYTHON", (9, 0))
        assert (Level.FAIL, "use Python 9.0 or later") == (host.check_python().level, host.check_python().do)

    @pytest.mark.parametrize(
        ("free", "level"), [(100 << 20, "fail"), (1 << 30, "warn"), (3 << 30, "ok")], ids=["no room", "little", "enough"]
    )
    def test_folders_need_room(self, doctor: Any, monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
        monkeypatch.setattr(host.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
        found = doctor()[1]
        assert [level, level] == [found[name][0] for name in ("workspace", "triton cache")]

    def test_a_folder_that_cannot_be_written_fails_and_nothing_is_left_behind(self, workspace: Path) -> None:
        assert [Level.OK, Level.OK] == [check.level for check in host.check_folders({"TRITON_CACHE_DIR": str(workspace / "a/b")})]
        assert ["pyproject.toml"] == [path.name for path in workspace.iterdir()]
        check = list(host.check_folders({"TRITON_CACHE_DIR": "/proc/sys/cache"}))[1]
        assert (Level.FAIL, True) == (check.level, check.found.startswith("/proc/sys/cache cannot be written"))

    def test_outside_a_workspace_that_is_a_warning(self, doctor: Any, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
        code, found = doctor()
        assert (0, "warn") == (code, found["workspace"][0])

    def test_a_cache_on_another_machines_disk_is_a_warning(self, doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host, "_file_system", lambda path: "nfs4")
        level, found, do = doctor()[1]["triton cache"]
        assert ("warn", True, True) == (level, found.endswith(", on nfs4"), "TRITON_CACHE_DIR" in do)

    @pytest.mark.parametrize(
        ("path", "expected"),
        [("/etc", "ext4"), ("/data/cache", "nfs4"), ("/database", "ext4"), ("/with space/x", "lustre"), ("/mnt/twice", "xfs")],
    )
    def test_the_nearest_mount_tells_the_file_system(self, path: str, expected: str) -> None:
        points = (("/", "ext4"), ("/data", "nfs4"), ("/with\\040space", "lustre"), ("/mnt/twice", "ext3"), ("/mnt/twice", "xfs"))
        mounts = "".join(f"source {point} {kind} rw 0 0\n" for point, kind in points)
        assert expected == host._file_system(Path(path), mounts)


class TestLaunch:
    def test_a_server_that_comes_up_says_what_is_passed_on_to_it(self, doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in KEPT:
            monkeypatch.delenv(name, raising=False)
        for name in ("LC_ALL", "TMPDIR", "GITHUB_TOKEN"):
            monkeypatch.setenv(name, "x")
        level, found, _ = doctor()[1]["launch"]
        assert "ok" == level
        assert found.startswith("a fork server comes up in ")
        assert f"; its environment is cleared: of your {len(os.environ)} variables it is passed LC_ALL, TMPDIR" == found[found.index(";") :]

    def test_a_server_that_does_not_come_up_says_its_last_words(self, doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Server, "fails", "ImportError: libfoo.so")
        code, found = doctor()
        assert (1, "fail", "the fork server does not come up: ImportError: libfoo.so") == (code, *found["launch"][:2])

    def test_a_server_that_hangs_is_given_up(self, doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        import threading

        closed = threading.Event()
        monkeypatch.setattr(Server, "wait_ready", lambda self: closed.wait(60))
        monkeypatch.setattr(Server, "close", lambda self: closed.set())
        monkeypatch.setattr(host, "START_TIMEOUT_S", 0.2)
        assert "no answer within 0.2 s" in doctor()[1]["launch"][1]

    def test_who_is_not_root_launches_as_himself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host.os, "geteuid", lambda: 1000)
        assert Check("launch as another user", Level.OK, "not root: launches run as you (uid 1000)") == host._other_uid()

    def test_another_user_is_tried_in_a_cleared_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: dict[str, Any] = {}
        monkeypatch.setenv("CANARY_TOKEN", "secret")
        monkeypatch.setattr(host.os, "geteuid", lambda: 0)
        monkeypatch.setattr(host.subprocess, "run", lambda words, **how: seen.update(how) or SimpleNamespace(returncode=0, stderr=b""))
        assert host._other_uid().level is Level.OK
        assert (65534, 65534, [], False) == (seen["user"], seen["group"], seen["extra_groups"], "CANARY_TOKEN" in seen["env"])

    def test_a_home_that_is_closed_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        home = tmp_path / "home"
        (home / "bin").mkdir(parents=True)
        (home / "bin/python").touch(0o755)
        home.chmod(0o700)
        monkeypatch.setattr(host.os, "geteuid", lambda: 0)
        monkeypatch.setattr(sys, "executable", str(home / "bin/python"))
        monkeypatch.setattr(host.subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
        check = host._other_uid()
        assert check.level is Level.WARN
        assert " is closed to others" in check.found
        assert home in list(host._closed(home / "bin/python"))


@pytest.mark.slow
def test_the_real_verb_ends_with_the_code_it_prints(harness: Any) -> None:
    answer = harness("doctor", "--format", "json")
    found = json.loads(answer.out)
    levels = {check["name"]: check["level"] for check in found["checks"]}
    assert answer.code == found["exit_code"] == int("fail" in levels.values())
    assert ("ok", "ok", "ok") == (levels["torch"], levels["triton"], levels["launch"])


@pytest.mark.gpu
@pytest.mark.slow
def test_a_real_gpu_is_checked_in_full() -> None:
    if not health.has_driver():
        pytest.skip("no GPU here")
    words = [sys.executable, "-m", "harness", "doctor", "--format", "json"]
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = json.loads(subprocess.run(words, env=env, capture_output=True, text=True, check=False).stdout)
    names = {check["name"].split()[0] for check in found["checks"]}
    assert {"gpu", "clocks", "throttling", "ecc", "processes", "partition", "persistence", "temperature", "power"} <= names
