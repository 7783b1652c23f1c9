"""The driver's process as the command line holds it: started with an environment of its own, spoken to by lines."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import harness
from harness.dispatch.launcher import KEPT, VISIBLE
from harness.dispatch.ray.messages import MAX_LINE, BadMessage, Settings, line, read_line

END_S = 20.0
LAST_WORDS_S = 5.0
ENGINE = str(Path(harness.__file__).parent.parent)


class DriverGone(Exception):
    """The driver has ended, or says nothing any more; the text is the end of its log."""


class DriverProcess:
    """A running driver.

    Args:
        folder: for its log; it works in it, since Ray makes that folder importable on every node.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder.with_name(folder.name + ".log")
        ours, theirs = socket.socketpair()
        with theirs, self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "harness.dispatch.ray.driver", str(theirs.fileno()), json.dumps(dataclasses.asdict(settings))],
                env=driver_environment(os.environ),
                cwd=folder,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._channel = ours
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._in: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        for work in (self._write, self._read):
            threading.Thread(target=work, daemon=True, name=f"driver-{work.__name__}").start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Say something; never blocks, so that a signal handler may."""
        self._out.put(line(message))

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The next message; one that is none is an empty object.

        Raises:
            DriverGone: it ended.
            TimeoutError: nothing came in time.
        """
        try:
            message = self._in.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        if message is None:
            self._in.put(None)
            raise DriverGone(self._tail())
        return message

    def close(self) -> None:
        """Close the connection and see the driver end; what it started ends with it."""
        self._out.put(None)
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._channel.close()

    def _write(self) -> None:
        with suppress(OSError):
            while (data := self._out.get()) is not None:
                self._channel.sendall(data)

    def _read(self) -> None:
        with suppress(OSError), self._channel.makefile("rb") as stream:
            while data := stream.readline(MAX_LINE + 1):
                try:
                    self._in.put(read_line(data))
                except BadMessage:
                    self._in.put({})
        self._in.put(None)

    def _tail(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_WORDS_S)
        text = self.log.read_text(errors="replace")
        return " | ".join(" ".join(part.split()) for part in text.splitlines()[-3:])[:500] or "it printed nothing"


def driver_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a driver: what a launch may have, and what Ray needs. Nodes of a head that it starts inherit it, so no
    other variable of the user's, which might be a secret, is passed on.
    """
    kept = {name: value for name, value in environ.items() if name in (*KEPT, *VISIBLE, "HOME", "USER") or name.startswith("RAY_")}
    kept.pop("RAY_ADDRESS", None)
    return kept | {
        "PYTHONPATH": os.pathsep.join(filter(None, [ENGINE, kept.get("PYTHONPATH", "")])),
        "PYTHONDONTWRITEBYTECODE": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
