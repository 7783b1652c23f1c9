import os
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from harness.dispatch.lock import lock_file, unit_lock
from harness.errors import Undecided

UUID = "GPU-0123/odd name"
HOLD = """
import sys, threading
from harness.dispatch.lock import unit_lock
with unit_lock(sys.argv[1], threading.Event()):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def owner():
    """Another process that holds the unit."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, UUID], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_unit_that_another_process_measures_is_waited_for(owner, caplog):
    began = time.monotonic()
    threading.Timer(1.0, owner.stdin.close).start()
    with unit_lock(UUID, threading.Event()):
        assert time.monotonic() - began > 0.9
    assert [f"unit {UUID} is being measured by process {owner.pid}: waiting"] == caplog.messages


def test_an_owner_that_was_killed_holds_nothing(owner, caplog):
    owner.kill()
    owner.wait()
    with unit_lock(UUID, threading.Event()):
        assert [] == caplog.messages, "it was waited for"


def test_waiting_ends_when_the_run_is_cancelled(owner):
    cancelled = threading.Event()
    threading.Timer(0.3, cancelled.set).start()
    began = time.monotonic()
    with unit_lock(UUID, cancelled):
        assert time.monotonic() - began < 5


def test_another_unit_is_free(owner):
    with unit_lock("GPU-other", threading.Event()):
        pass


def test_a_lock_file_that_cannot_be_opened_is_named(tmp_path):
    lock_file(UUID).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Undecided, match="harness-unit-GPU-0123_odd_name"), unit_lock(UUID, threading.Event()):
        pass


def test_a_lock_file_that_is_there_is_opened_without_creating_it(monkeypatch):
    with unit_lock(UUID, threading.Event()):
        pass
    assert 0o666 == lock_file(UUID).stat().st_mode & 0o777
    opened, real = [], os.open
    monkeypatch.setattr(os, "open", lambda path, flags, *mode: opened.append(flags) or real(path, flags, *mode))
    with unit_lock(UUID, threading.Event()):
        pass
    assert [False] == [bool(flags & os.O_CREAT) for flags in opened]
