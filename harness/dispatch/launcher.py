"""Starts fork servers with a cleared environment, and launches in them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import harness

START_TIMEOUT_S = 120.0
KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "SSL_CERT_FILE", "CUDA_HOME", "ROCM_PATH")
"""Variables of the caller that a launch may see. Nothing else is passed on: no token, no secret."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class Flavour(StrEnum):
    """What a server's launches do; it decides their environment before triton is imported."""

    INTERPRETER = "interpreter"
    STATIC = "static"
    GPU = "gpu"


class ServerLost(Exception):
    """The fork server ended by itself, or did not answer and was ended; the text says which, and has the end of its log."""


class Launch:
    """One child of a fork server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid: int | None = None
        self.status: int | None = None
        self.started = threading.Event()
        self.ended = threading.Event()

    def kill(self) -> None:
        """End the launch with everything in its session that shares its process group."""
        if self.pid is not None and not self.ended.is_set():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def clean_environment(flavour: Flavour, home: Path, unit: Mapping[str, str]) -> dict[str, str]:
    """The environment of a fork server: an allow-list of the caller's, and what the flavour needs.

    Args:
        home: becomes HOME, so that nothing is read from or written to the user's.
        unit: variables that choose the unit, for `gpu`.
    """
    found = {name: os.environ[name] for name in KEPT if name in os.environ}
    engine = str(Path(harness.__file__).parent.parent)
    found |= {
        "PYTHONPATH": os.pathsep.join(filter(None, [engine, found.get("PYTHONPATH", "")])),
        "HOME": str(home),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OMP_NUM_THREADS": "1",
        "TRITON_DISABLE_LINE_INFO": "1",  # with it, moving a line would change every binary's hash
        "COLUMNS": "400",  # pytest cuts error lines to the width of the terminal
    }
    if flavour is Flavour.GPU:
        found |= {name: os.environ[name] for name in VISIBLE if name in os.environ} | dict(unit)
    else:
        found |= dict.fromkeys(VISIBLE, "")
    if flavour is Flavour.INTERPRETER:
        found["TRITON_INTERPRET"] = "1"
    return found


class ForkServer:
    """A running fork server. Start it from a thread that outlives it: Linux kills it when that thread ends.

    Args:
        flavour: see Flavour.
        scratch: folder for its log and its HOME.
        unit: variables that choose the unit.
        device: of that unit, for `gpu`: the engine's own kernels are compiled for it. None: launches compile them.

    Raises:
        ServerLost: it did not come up; the text is the end of its log.
    """

    def __init__(self, flavour: Flavour, scratch: Path, unit: Mapping[str, str] | None = None, device: str | None = None) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.log = scratch / "server.log"
        self.engine_cache = scratch / "engine"
        """Where its launches find the engine's own kernels, whatever code they run."""
        ahead = [device, str(self.engine_cache)] if device is not None and flavour is Flavour.GPU else []
        ours, theirs = socket.socketpair()
        with theirs, self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.measure.server", str(theirs.fileno()), str(flavour), *ahead],
                env=clean_environment(flavour, scratch, unit or {}),
                cwd=scratch,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._channel = ours
        self._lock = threading.Lock()
        self._launches: dict[str, Launch] = {}
        self._ready = threading.Event()
        self._lost = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True, name=f"server-{flavour}")
        self._reader.start()

    def launch(self, name: str, spec: Path, records: int, log: int) -> Launch:
        """Fork a child that runs the launch described by the file `spec`.

        Raises:
            ServerLost: the server is gone. One that does not answer is ended, lest it start the launch beside its repetition.
        """
        launch = Launch(name)
        with self._lock:
            self.wait_ready()  # whoever had the lock may have ended it
            self._launches[name] = launch
            try:
                socket.send_fds(self._channel, [json.dumps({"launch": name, "spec": str(spec)}).encode()], [records, log])
            except OSError as error:
                raise ServerLost(self._tail()) from error
            self._wait(launch.started)
        return launch

    @property
    def lost(self) -> bool:
        """Whether the server has ended."""
        return self._lost.is_set()

    def wait_ready(self) -> None:
        """Return when the server has imported what its launches need.

        Raises:
            ServerLost: it ended before, or took over two minutes and was ended.
        """
        self._wait(self._ready)

    def close(self) -> None:
        """End the server and all its launches."""
        if not self._ready.is_set():
            self._process.kill()  # it looks at its channel only when it has imported all, and has no launches before
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._reader.join(timeout=5)
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._channel.close()

    def _wait(self, event: threading.Event) -> None:
        if not event.wait(START_TIMEOUT_S):
            self._process.kill()  # its launches end with it; those in its queue never begin
            self._lost.set()  # its channel may stay open for as long as something that it started lives
            self._ready.set()
            raise ServerLost(f"it did not answer within {START_TIMEOUT_S:g} s: {self._tail()}")
        if self._lost.is_set():
            raise ServerLost(self._tail())

    def _tail(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-3:]) or "it printed nothing"

    def _read(self) -> None:
        buffer = b""
        while True:
            try:
                data = self._channel.recv(65536)
            except OSError:
                data = b""
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
        self._lost.set()
        self._ready.set()
        for launch in list(self._launches.values()):
            launch.started.set()
            launch.ended.set()

    def _take(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._ready.set()
            return
        launch = self._launches[message["launch"]]
        if "pid" in message:
            launch.pid = message["pid"]
            launch.started.set()
        else:
            launch.status = message["status"]
            del self._launches[launch.name]
            launch.ended.set()
