"""The doctor's checks of the host: Python, git, folders, libraries, and whether a launch can be started."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import harness
from harness.authoring.workspace import find_workspace
from harness.devices.child import BOX_S, ask
from harness.devices.fitness import Check, Level
from harness.devices.history import LEAST, instant, usual_of
from harness.devices.history_file import history_file, read_leases
from harness.devices.probe import CannotList
from harness.dispatch.launcher import KEPT, START_TIMEOUT_S, Flavour, ForkServer, ServerLost, clean_environment
from harness.errors import WorkspaceError

PYTHON = (3, 11)
GIT = (2, 31)
"""The first with `rev-parse --path-format`."""
RAY = (2, 60)
FEW_BYTES, SOME_BYTES = 256 << 20, 2 << 30
"""A run of the whole matrix leaves some 100 MB: below the first it may not end, below the second a few runs fill the disk."""
REMOTE = frozenset(
    (
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "smb3",
    )
)
"""File systems of another machine: they are slow, lock badly, and are shared between hosts."""
NOBODY = 65534
"""The uid and gid by which it is tried what another user can read."""


def check_python() -> Check:
    """The interpreter that runs launches, too."""
    found = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info[:2] < PYTHON:
        return Check("python", Level.FAIL, found, f"use Python {_dotted(PYTHON)} or later")
    return Check("python", Level.OK, found)


def check_git() -> Check:
    """The git program: results are kept by the code they measured."""
    try:
        said = subprocess.run(["git", "--version"], capture_output=True, text=True, errors="replace", timeout=BOX_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("git", Level.FAIL, f"it does not run: {error}", f"install git {_dotted(GIT)} or later")
    version = _version(said)
    if version < GIT:
        return Check("git", Level.FAIL, said.strip() or "it does not say its version", f"install git {_dotted(GIT)} or later")
    return Check("git", Level.OK, said.strip())


def check_folders(environ: Mapping[str, str]) -> Iterator[Check]:
    """Where records and compiled kernels go.

    Args:
        environ: of which TRITON_CACHE_DIR is read.
    """
    try:
        yield _folder("workspace", find_workspace().state_dir, "free some space, or submit with --store elsewhere")
    except WorkspaceError as error:
        yield Check("workspace", Level.WARN, error.found, error.do)
    cache = Path(environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    check = _folder("triton cache", cache, "free some space, or set TRITON_CACHE_DIR")
    kind = _file_system(cache)
    if check.level is not Level.FAIL and kind in REMOTE:
        check = Check(check.name, Level.WARN, f"{check.found}, on {kind}", "set TRITON_CACHE_DIR to a folder of a local disk")
    yield check


def check_histories(uuids: Sequence[str]) -> Iterator[Check]:
    """What the canaries of each GPU took in its last runs, on the stack of the newest: another one is held against that."""
    for uuid in uuids:
        yield _history(f"history {uuid[:12]}", uuid)


def check_libraries(vendors: Sequence[str], newest_runtime: str | None) -> Iterator[Check]:
    """torch and triton, which launches need; Ray, where it is installed. Each is imported in a child process.

    Args:
        vendors: `nvidia`, `amd`: whose GPUs are here.
        newest_runtime: the newest CUDA that the driver serves, `13.0`; None where it is not told.
    """
    yield _library("torch", lambda found: _torch(found, vendors, newest_runtime))
    yield _library("triton", lambda found: Check("triton", Level.OK, found["version"]))
    if importlib.util.find_spec("ray") is None:
        yield Check("ray", Level.OK, "not installed; only a fleet needs it (the extra `fleet`)")
    else:
        yield _library("ray", _ray)


def check_launch(importable: bool) -> Iterator[Check]:
    """Whether a fork server comes up in its cleared environment, and whether another user could run it.

    Args:
        importable: torch and triton are; without them no server comes up.
    """
    if importable:
        yield _fork_server()
    else:
        yield Check("launch", Level.FAIL, "not tried: launches need torch and triton", "mend those first")
    yield _other_uid()


def _folder(name: str, path: Path, do: str) -> Check:
    """Whether files can be written in a folder, or where it would be made, and how much more fits."""
    place = next(parent for parent in (path, *path.parents) if parent.is_dir())
    try:
        with tempfile.NamedTemporaryFile(prefix=".harness-doctor-", dir=place) as file:
            file.write(b"\0" * 4096)
            file.flush()
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Check(name, Level.FAIL, f"{path} cannot be written: {error.strerror}", "make it writable for this user")
    level = Level.FAIL if free < FEW_BYTES else Level.WARN if free < SOME_BYTES else Level.OK
    return Check(name, level, f"{path}, {free / 2**30:.1f} GiB free", "" if level is Level.OK else do)


def _file_system(path: Path, mounts: str | None = None) -> str | None:
    """The type of the file system that holds a path; None where Linux does not say.

    Args:
        mounts: the text of /proc/self/mounts.
    """
    if mounts is None:
        with suppress(OSError):
            mounts = Path("/proc/self/mounts").read_text(errors="replace")
    best: tuple[int, str | None] = (-1, None)
    for line in (mounts or "").splitlines():
        point, kind = line.split()[1:3]
        folder = Path(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), point))
        if path.resolve().is_relative_to(folder) and len(folder.parts) >= best[0]:
            best = (len(folder.parts), kind)  # of two mounts on one place the later hides the first
    return best[1]


def _history(name: str, uuid: str) -> Check:
    file = history_file(uuid)
    do = "make it readable and writable for every user, or remove it"
    try:
        leases = read_leases(uuid)
    except OSError as error:
        return Check(name, Level.WARN, f"{file} cannot be read: {error.strerror}; no canary is held against it", do)
    now = instant(datetime.now(UTC))
    newest = max((lease for lease in leases if lease.when <= now), key=lambda lease: lease.when, default=None)
    usual = usual_of(leases, newest.stack, now) if newest else None
    if usual is None:
        found = "no run yet"
    else:
        found = f"canaries of the last {_many(usual.runs)} on one stack: arithmetic {usual.arithmetic_us:.4g} us"
        found += f" (spread {usual.arithmetic_spread:.1%}), copy {usual.copy_us:.4g} us ({usual.copy_spread:.1%})"
    if usual is None or usual.runs < LEAST:
        found += f"; a canary is held against the last ones from {LEAST} on"
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        return Check(name, Level.WARN, f"{found}; {file} cannot be written", do)
    return Check(name, Level.OK, found)


def _many(runs: int) -> str:
    return "run" if runs == 1 else f"{runs} runs"


def _library(name: str, judge: Any) -> Check:
    try:
        check: Check = judge(ask("harness.devices.stack", name))
    except CannotList as error:
        return Check(name, Level.FAIL, error.found, error.do)
    return check


def _torch(found: Mapping[str, Any], vendors: Sequence[str], newest_runtime: str | None) -> Check:
    built = f"CUDA {found['cuda']}" if found["cuda"] else f"HIP {found['hip']}" if found["hip"] else "the CPU alone"
    said = f"{found['version']}, built for {built}"
    if not vendors:
        return Check("torch", Level.OK, said)
    whose = "nvidia" if found["cuda"] else "amd" if found["hip"] else None
    if whose not in vendors:
        return Check("torch", Level.FAIL, f"{said}; the driver here is of {' and '.join(vendors)}", "install a build for the GPU")
    if whose == "nvidia" and newest_runtime and _version(found["cuda"])[0] > _version(newest_runtime)[0]:
        do = "update the driver, or install a torch of an older CUDA"
        return Check("torch", Level.FAIL, f"{said}; the driver serves CUDA {newest_runtime} at most", do)
    said += f", sees {found['gpus']} GPU" + ("" if found["gpus"] == 1 else "s")
    if not found["gpus"]:
        return Check("torch", Level.FAIL, said, "run python -c 'import torch; torch.cuda.init()' to see why")
    return Check("torch", Level.OK, said)


def _ray(found: Mapping[str, Any]) -> Check:
    if _version(found["version"]) < RAY:
        return Check("ray", Level.WARN, found["version"], f"a fleet needs Ray {_dotted(RAY)} or later")
    return Check("ray", Level.OK, found["version"])


def _fork_server() -> Check:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="harness-doctor-") as folder:
        scratch = Path(folder)
        server = ForkServer(Flavour.INTERPRETER, scratch)
        failure: list[str] = []
        waiting = threading.Thread(target=_wait, args=(server, failure), daemon=True)
        waiting.start()
        waiting.join(START_TIMEOUT_S)
        late = waiting.is_alive()
        server.close()
    if late:
        failure = [f"no answer within {START_TIMEOUT_S:g} s"]
    if failure:
        do = "mend what it names; what it needs of the environment must be installed, since variables are not passed on"
        return Check("launch", Level.FAIL, f"the fork server does not come up: {failure[0]}", do)
    passed = [name for name in KEPT if name in os.environ]
    kept = f"its environment is cleared: of your {len(os.environ)} variables it is passed {', '.join(passed) or 'none'}"
    return Check("launch", Level.OK, f"a fork server comes up in {time.monotonic() - began:.1f} s; {kept}")


def _wait(server: ForkServer, failure: list[str]) -> None:
    try:
        server.wait_ready()
    except ServerLost as error:
        failure.append(str(error))


def _other_uid() -> Check:
    """Whether another user can run the interpreter with the harness: where root, the code under test is to run as one."""
    if os.geteuid() != 0:
        return Check("launch as another user", Level.OK, f"not root: launches run as you (uid {os.geteuid()})")
    engine = Path(harness.__file__).parent.parent
    words = [sys.executable, "-P", "-c", "import harness, click"]
    environment = clean_environment(Flavour.STATIC, Path("/"), {})
    try:
        done = subprocess.run(
            words, env=environment, cwd="/", user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, timeout=BOX_S, check=False
        )
        failure = "" if done.returncode == 0 else (done.stderr.decode(errors="replace").strip().splitlines() or ["no word of why"])[-1]
    except subprocess.TimeoutExpired:
        failure = f"no answer within {BOX_S:g} s"
    except OSError as error:
        failure = str(error)
    if not failure:
        return Check("launch as another user", Level.OK, f"uid {NOBODY} can run {sys.executable} with the harness")
    needed = (Path(sys.executable), Path(sys.executable).resolve(), Path(sys.prefix), Path(sys.base_prefix), engine)
    closed = next((path for path in needed for path in _closed(path)), None)
    found = f"uid {NOBODY} cannot run {sys.executable}: " + (f"{closed} is closed to others" if closed else failure)
    return Check(
        "launch as another user", Level.WARN, found, "put interpreter, venv and harness where others may read, not under a 0700 home"
    )


def _closed(path: Path) -> Iterator[Path]:
    """The folders on the way to a path, and the path itself, that other users cannot pass or read."""
    for part in (*reversed(path.parents), path):
        with suppress(OSError):
            mode = part.stat().st_mode
            needed = stat.S_IXOTH if stat.S_ISDIR(mode) and part != path else stat.S_IROTH
            if not mode & needed:
                yield part


def _version(text: str) -> tuple[int, ...]:
    """The first version number in a text: `git version 2.39.5` -> (2, 39, 5); () where there is none."""
    match = re.search(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match.group().split("."))) if match else ()


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
