"""The fork server: imports torch, triton and pytest once, then forks one child per launch.

    python -m harness.measure.server FD KIND [DEVICE CACHE]

KIND is `static` where its launches compile, else anything. With DEVICE, the engine's own kernels are compiled for that device into CACHE
before the server is ready. FD is one end of a Unix socket pair. A request is one JSON line
{"launch", "spec"} (the path of a JSON file) with two file descriptors attached (records, log), sent once the last is
answered; the answers are {"launch", "pid"} when the child runs and {"launch", "status"} when it has ended. When the other
end closes, every child is killed and the server ends, so that a killed parent leaves no orphan.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from harness.devices.processes import adopt_orphans, children, die_with_parent

AHEAD_S = 60.0
"""How long compiling the engine's own kernels may take: a few seconds, where nothing hangs."""
POLL_S = 0.02


def _preload(kind: str, *ahead: str) -> None:
    # what every launch needs; importing makes no device context
    import pytest
    import pytest_benchmark.plugin
    import torch
    import triton
    from triton.runtime.cache import triton_key

    import harness.measure.launch
    import harness.measure.plugin
    from harness.measure.environment import lock_digest

    del pytest, triton, pytest_benchmark
    compiling, began = _compile_ahead(*ahead) if ahead else None, time.monotonic()
    lock_digest()  # reads the metadata of every installed package
    triton_key()  # hashes Triton itself, which every look into its cache needs
    if kind in ("static", "gpu"):
        with contextlib.suppress(ImportError):  # where a Triton has it no longer, nothing imports it
            import triton.experimental.gluon  # noqa: F401 -- a process's first look for a compiled kernel does
    if kind == "static":
        from harness.measure.static import preload

        preload()
    if kind == "gpu":
        # torch imports its compiler when a kernel is first launched under it: seconds, once for all launches
        import torch._dynamo

        import harness.measure.clock
        import harness.measure.correctness
        import harness.measure.timing  # noqa: F401
    torch.set_num_threads(1)
    if compiling is not None:
        _await(compiling, began + AHEAD_S)


def _compile_ahead(device: str, cache: str) -> int:
    """Compile the engine's own kernels in a child, so that none of what that takes is in this process; what it cannot compile, launches
    do, and say so."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setsid()  # what it starts can be ended with it
            die_with_parent()
            from harness.devices.table import load_devices
            from harness.measure.ahead import compile_engine

            compile_engine(load_devices()[device], Path(cache))
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    return pid


def _await(child: int, until: float) -> None:
    """Return when a child has ended; one that has not by then is killed with its session: launches can do without it."""
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            sys.stderr.write(f"compiling the engine's own kernels ahead did not end within {AHEAD_S:g} s: launches compile them\n")
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
        time.sleep(POLL_S)


class Server:
    """Reads requests from `channel` until it closes."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.children: dict[int, str] = {}

    def serve(self) -> None:
        """Fork a child for each request and report each that ends."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        selector = selectors.DefaultSelector()
        selector.register(self.channel, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        self._send({"ready": os.getpid()})
        while True:
            for key, _ in selector.select():
                if key.fileobj is self.channel:
                    if not self._receive():
                        return
                else:
                    os.read(wake_read, 4096)
                    self._reap()

    def _receive(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self.channel, 65536, 2)
        except ConnectionError:
            return False
        if not data:
            return False
        request = json.loads(data)
        records, log = fds
        pid = os.fork()
        if pid == 0:
            self._child(request, records, log)
        os.close(records)
        os.close(log)
        self.children[pid] = request["launch"]
        self._send({"launch": request["launch"], "pid": pid})
        return True

    def _child(self, request: dict[str, Any], records: int, log: int) -> None:
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setsid()
            die_with_parent()
            self.channel.close()
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            from harness.measure.launch import run_launch

            status = run_launch(json.loads(Path(request["spec"]).read_text()), records)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            launch = self.children.pop(pid, None)
            _kill_group(pid)  # what the launch started and left behind
            self._kill_orphans()
            if launch is not None:
                self._send({"launch": launch, "status": status})

    def _kill_orphans(self) -> None:
        """End what launches started in sessions of their own and left behind: it is this process's to reap now."""
        while orphans := [pid for pid in children() if pid not in self.children]:
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            self.channel.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Kill every child with all it started."""
        for pid in self.children:
            _kill_group(pid)
        self.children.clear()
        self._kill_orphans()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def main() -> None:
    """Serve on the socket whose descriptor the command line names."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the parent's to handle
    adopt_orphans()
    channel = socket.socket(fileno=int(sys.argv[1]))
    _preload(*sys.argv[2:])
    server = Server(channel)
    try:
        server.serve()
    finally:
        server.close()


if __name__ == "__main__":
    main()
