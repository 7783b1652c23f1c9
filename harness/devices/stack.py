"""Imports one library of the stack and says what it is, as JSON. Runs as a child process: an import may hang or crash.

python -m harness.devices.stack torch
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from harness.devices.child import answer


def describe_library(name: str) -> dict[str, Any]:
    """The version of a library; of torch also what it was built for and how many GPUs it sees. It makes no context on any.

    Raises:
        ImportError: it is not installed, or needs what is not there.
    """
    module = importlib.import_module(name)
    found: dict[str, Any] = {"version": str(module.__version__)}
    if name == "torch":
        version = module.version
        found |= {"cuda": version.cuda, "hip": version.hip, "gpus": module.cuda.device_count()}
    return found


def main() -> None:
    """Print what the library is, or why it cannot be imported."""
    (name,) = sys.argv[1:]
    try:
        said: dict[str, Any] = describe_library(name)
    except ModuleNotFoundError as error:
        missing = "it is not installed" if error.name == name else f"it cannot be imported: no module {error.name!r}"
        said = {"found": missing, "do": f"install {error.name} into the environment of {sys.executable}"}
    except Exception as error:  # a library that is broken raises whatever it likes
        said = {"found": f"it cannot be imported: {' '.join(repr(error).split())[:300]}", "do": f"repair or reinstall {name}"}
    answer(said)
    sys.stdout.flush()
    os._exit(0)  # a library's own clean-up may hang, and has nothing to say


if __name__ == "__main__":
    main()
