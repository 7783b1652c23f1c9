"""Asks a module of the harness that runs as a child process, within a time box that holds even where a driver hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.devices.probe import CannotList

ENGINE = str(Path(__file__).parent.parent.parent)
BOX_S = 30.0
"""Seconds in which a healthy driver or library has answered."""
REAP_S = 2.0


def ask(module: str, *arguments: str, timeout_s: float = BOX_S) -> Any:
    """The JSON of the last line that `python -m MODULE ARGUMENTS` prints: see `ask_python`."""
    return ask_python("-P", "-m", module, *arguments, timeout_s=timeout_s)


def ask_python(*arguments: str, timeout_s: float) -> Any:
    """The JSON of the last line that `python ARGUMENTS` prints; libraries print, too.

    Args:
        timeout_s: then the child is killed with its session. One that a driver holds in the kernel cannot be killed: it is left.

    Raises:
        CannotList: it did not answer in time, ended with an error, or its answer is {"found", "do"}: what was found instead.
    """
    words = [sys.executable, *arguments]
    by_hand = f"run {' '.join(['python', *words[1:]])} to see why"
    # files, not pipes: nobody waits for the end of a file that a stuck child holds open
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(words, env=_environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        try:
            status = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise CannotList(f"no answer within {timeout_s:g} s", by_hand) from None
        finally:
            _end(child)
        said, complained = (_read(file) for file in (out, err))
    if status != 0:
        raise CannotList(f"exit status {status}: {complained.strip()[-300:] or 'it printed nothing'}", by_hand)
    try:
        answer = json.loads(said.splitlines()[-1])
    except (json.JSONDecodeError, IndexError) as error:
        raise CannotList(f"an answer that is no JSON: {said.strip()[-300:]!r}", by_hand) from error
    if isinstance(answer, dict) and set(answer) == {"found", "do"}:
        raise CannotList(answer["found"], answer["do"])
    return answer


def answer(value: Any) -> None:
    """What a child says: one line of JSON, the last."""
    sys.stdout.write(json.dumps(value) + "\n")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [ENGINE, os.environ.get("PYTHONPATH", "")]))}


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a child with its session, if it still runs, and wait a little for it to be gone."""
    if child.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(REAP_S)


def _read(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))
