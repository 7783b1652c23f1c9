"""A fork server that does not answer is ended, and another takes its place."""

import os
import sys
from pathlib import Path

import pytest

from harness.devices.units import Unit
from harness.dispatch import launcher
from harness.dispatch.launcher import Flavour, ServerLost
from harness.dispatch.worker import Servers

H200 = Unit("GPU-0", "h200", "", 1)
READY = """
import os, socket, sys, time
channel = socket.socket(fileno=int(sys.argv[3]))
channel.sendall(b'{"ready": 1}\\n')
if os.fork() == 0:  # keeps the channel open
    time.sleep(5)
    os._exit(0)
time.sleep(600)
"""


@pytest.fixture
def servers(tmp_path, monkeypatch):
    """Fork servers that run `code` in place of the engine's."""

    def running(code):
        program = tmp_path / "python"
        program.write_text(f"#!{sys.executable}\n{code}")
        program.chmod(0o755)
        monkeypatch.setattr(launcher.sys, "executable", str(program))
        return made

    monkeypatch.setattr(launcher, "START_TIMEOUT_S", 1.0)
    made = Servers()
    yield running
    made.close()


def is_alive(server):
    return server._process.poll() is None


def given_up(server):
    """The server has ended although what it started keeps its channel open."""
    server._process.wait(timeout=5)
    return server.lost


def test_one_that_is_never_ready_is_ended_and_replaced(servers, tmp_path):
    all_of_them = servers("import time\ntime.sleep(600)")
    server = all_of_them.get(Flavour.GPU, H200, tmp_path)
    with pytest.raises(ServerLost, match="it did not answer within 1 s: it printed nothing"):
        server.wait_ready()
    assert given_up(server)
    other = all_of_them.get(Flavour.GPU, H200, tmp_path)
    assert (True, True) == (other is not server, is_alive(other))


def test_one_that_does_not_start_a_launch_never_will(servers, tmp_path):
    all_of_them = servers(READY)
    server = all_of_them.get(Flavour.GPU, H200, tmp_path)
    for _ in range(2):  # the second is told at once
        with Path(os.devnull).open("wb") as log, pytest.raises(ServerLost):
            server.launch("one", tmp_path / "spec.json", log.fileno(), log.fileno())
    assert given_up(server)
    assert all_of_them.get(Flavour.GPU, H200, tmp_path) is not server
