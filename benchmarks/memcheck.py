"""compute-sanitizer's memcheck over one case of every variant: a line a variant, and exit code 1 if it finds anything.

    python benchmarks/memcheck.py [KERNEL[/VARIANT]...] [--device NAME] [--case GLOB] [--timeout 120]

The case is the one that moves the most bytes up to 4 MiB, or of those that `--case` names. Needs `compute-sanitizer` and an NVIDIA GPU.
Each variant runs its correctness job in a process of its own, in which every tensor is an allocation of its own, so that a read or
write beside one is found. A run without the tool's summary, or without a test that passed, is not clean.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.authoring.workspace import find_workspace
from harness.devices.units import local_units
from harness.dispatch.one_unit import choose_unit
from harness.plan.describe import KindCell, describe

ROOT = Path(__file__).parents[1]
MOST_BYTES = 4 << 20
FOUND = 86
"""Exit code of a process in which the tool found an error."""


def one_of_each_variant(cases: str) -> list[KindCell]:
    """Of every variant the correctness cell whose call moves the most bytes up to MOST_BYTES, among cases that match the glob."""
    what = describe(find_workspace(ROOT))
    moved = {(kernel.name, case.case): case.read_bytes + case.written_bytes for kernel in what.kernels for case in kernel.cases}
    kind = next(kind for kind in what.kinds if kind.name == "correctness")
    chosen: dict[tuple[str, str], KindCell] = {}
    for cell in kind.cells:
        key, size = (cell.kernel, cell.variant), moved[cell.kernel, cell.case]
        if fnmatchcase(cell.case, cases) and 0 < size <= MOST_BYTES and (key not in chosen or size > moved[cell.kernel, chosen[key].case]):
            chosen[key] = cell
    return list(chosen.values())


def check(cell: KindCell, device: str, environment: dict[str, str], timeout_s: float) -> tuple[bool, str]:
    """Whether the tool finds nothing in the cell's correctness job, and what it says."""
    job = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "jobs/correctness.py"), "--device", device]
    chosen = ["--kernel", cell.kernel, "--variant", cell.variant, "--case", cell.case]
    tool = ["compute-sanitizer", "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", str(FOUND)]
    with subprocess.Popen(
        [*tool, *job, *chosen],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as done:
        try:
            text, _ = done.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False, f"no end within {timeout_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(done.pid, signal.SIGKILL)  # the tool alone would leave what it runs on the GPU
    if done.returncode:
        print(text[-4000:], file=sys.stderr)
    errors = re.search(r"ERROR SUMMARY: (\d+) error", text)
    passed = re.search(r"(\d+) passed", text)
    said = f"exit {done.returncode}, {errors[0] if errors else 'no summary'}, {passed[0] if passed else 'no test passed'}"
    return bool(done.returncode == 0 and errors and errors[1] == "0" and passed), said


def main() -> None:
    """Check every variant asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", metavar="KERNEL[/VARIANT]")
    parser.add_argument("--device")
    parser.add_argument("--case", default="*")
    parser.add_argument("--timeout", type=float, default=120.0)
    options = parser.parse_args()
    if shutil.which("compute-sanitizer") is None:
        parser.error("no compute-sanitizer on PATH: it comes with the CUDA toolkit")
    unit = choose_unit(local_units(), [options.device] if options.device else None, "check memory on the GPU of this machine")
    assert unit.device is not None
    environment = {**os.environ, **unit.environment, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    wanted = options.variants or ["*"]
    cells = [
        cell
        for cell in one_of_each_variant(options.case)
        if any(fnmatchcase(cell.kernel, name) or fnmatchcase(f"{cell.kernel}/{cell.variant}", name) for name in wanted)
    ]
    if not cells:
        parser.error(f"no variant matches {', '.join(wanted)} with a case that matches {options.case}")
    clean = True
    for cell in cells:
        good, said = check(cell, unit.device, environment, options.timeout)
        clean &= good
        print(f"{'clean' if good else 'NOT CLEAN'} {cell.kernel}/{cell.variant}/{cell.case}: {said}", flush=True)
    sys.exit(not clean)


if __name__ == "__main__":
    main()
