"""What a workspace declares, as plain data: read in a child process, so that a broken or slow kernel file cannot
take the command line down and the command line never imports torch.

    python -m harness.plan.describe ROOT        prints the description as JSON
    python -m harness.plan.describe ROOT FD     writes it to that file descriptor: files that are read may print
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness import errors
from harness.authoring.catalogue import as_known
from harness.authoring.model import Traffic
from harness.authoring.workspace import Workspace, read_workspace


@dataclass(frozen=True)
class CaseInfo:
    """One case: its key and tags, and what one call of it must move and compute.

    Args:
        parts: what a call must move of the variants that do a part of the work alone.
    """

    case: str
    tags: list[str]
    read_bytes: int = 0
    written_bytes: int = 0
    flops: int = 0
    parts: dict[str, Traffic] = field(default_factory=dict)

    def traffic_of(self, variant: str) -> Traffic:
        """What one call of a variant must move."""
        return self.parts.get(variant) or Traffic(self.read_bytes, self.written_bytes)


@dataclass(frozen=True)
class KernelInfo:
    """One kernel, as `harness kernels --format json` prints it; `doc` is its module docstring."""

    name: str
    file: str
    doc: str
    variants: list[str]
    default: str
    baseline: str
    cases: list[CaseInfo]
    mutates: list[str]
    cycle: bool
    drift: bool


@dataclass(frozen=True)
class KindCell:
    """One cell that a kind asks of a kernel, before devices; `limit` is its error tolerance, where it has one."""

    kernel: str
    variant: str
    case: str
    limit: float | None


@dataclass(frozen=True)
class KindInfo:
    """One kind of job and every cell it applies to."""

    name: str
    file: str
    on: str
    cell_seconds: float
    deadline_s: float
    replicates: bool
    cells: list[KindCell] = field(default_factory=list)


@dataclass(frozen=True)
class Description:
    """Everything a plan needs to know of a workspace."""

    kernels: list[KernelInfo]
    kinds: list[KindInfo]

    @property
    def tags(self) -> dict[tuple[str, str], frozenset[str]]:
        """(kernel, case) -> tags."""
        return {(k.name, c.case): frozenset(c.tags) for k in self.kernels for c in k.cases}


def describe(workspace: Workspace) -> Description:
    """Read a workspace in a child process.

    Raises:
        HarnessError: whatever is wrong with the workspace's files, as the child found it; they are named by their paths in it.
        WorkspaceError: the child died, or the extra `kernels` is not installed.
    """
    # the child must see the engine that runs here, and no device
    env = {
        **os.environ,
        "PYTHONPATH": _engine_path(),
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    env.pop("TRITON_INTERPRET", None)
    status, text, said = _ask(workspace.root, env)
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        tail = as_known("\n".join(said.splitlines()[-3:]), workspace.root)
        raise errors.WorkspaceError(
            "the kernels and jobs of the workspace",
            f"reading them ended with status {status}: {tail}",
            "install the extra `kernels` if torch or triton is missing; else mend the file named above",
        ) from None
    if "error" in answer:
        kind = getattr(errors, answer["error"].pop("type"))
        raise kind(**{part: as_known(words, workspace.root) for part, words in answer["error"].items()})
    return _from_json(answer)


def _ask(root: Path, env: Mapping[str, str]) -> tuple[int, str, str]:
    """Run this module on a workspace: its exit status, its answer, and what it said on standard error, else on output."""
    reader, writer = os.pipe()
    with os.fdopen(reader, encoding="utf-8") as answer, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        command = [sys.executable, "-m", "harness.plan.describe", str(root), str(writer)]
        try:
            child = subprocess.Popen(command, env=env, stdout=out, stderr=err, pass_fds=(writer,))
        finally:
            os.close(writer)  # the child's copy is then the last, and the answer ends with it
        try:
            text = answer.read()
            status = child.wait()
        except BaseException:
            child.kill()
            child.wait()
            raise
        said = [file.read().decode(errors="replace") for file in (err, out) if file.seek(0) == 0]
    return status, text, said[0] or said[1]


def _engine_path() -> str:
    here = str(Path(__file__).parent.parent.parent)
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


def _from_json(data: dict[str, Any]) -> Description:
    def case(given: dict[str, Any]) -> CaseInfo:
        return CaseInfo(**{**given, "parts": {variant: Traffic(**bytes_) for variant, bytes_ in given["parts"].items()}})

    kernels = [KernelInfo(**{**k, "cases": [case(c) for c in k["cases"]]}) for k in data["kernels"]]
    kinds = [KindInfo(**{**k, "cells": [KindCell(*c) for c in k["cells"]]}) for k in data["kinds"]]
    return Description(kernels, kinds)


def _read(workspace: Workspace) -> Description:
    from harness.authoring.catalogue import load_kernels, load_kinds
    from harness.authoring.model import Case, Kernel

    def limit(kind: str, kernel: Kernel, case: Case) -> float | None:
        if kind == "correctness":
            return kernel.tolerance_of(case).loosest
        if kind == "drift" and kernel.drift is not None:
            return kernel.drift.tolerance_of(case).loosest
        return None

    def _case(kernel: Kernel, case: Case) -> CaseInfo:
        traffic = kernel.traffic(case)
        parts = {name: kernel.traffic_of(name, case) for name in kernel.variants if kernel.variant(name).traffic is not None}
        return CaseInfo(case.key, sorted(case.tags), traffic.read_bytes, traffic.written_bytes, kernel.flops(case), parts)

    loaded = load_kernels(workspace)
    infos = [
        KernelInfo(
            name=name,
            file=str(one.file.relative_to(workspace.root)),
            doc=one.doc,
            variants=list(one.kernel.variants),
            default=one.kernel.default,
            baseline=one.kernel.baseline,
            cases=[_case(one.kernel, case) for case in one.kernel.cases],
            mutates=list(one.kernel.mutates),
            cycle=one.kernel.cycle is not None,
            drift=one.kernel.drift is not None,
        )
        for name, one in loaded.items()
    ]
    kinds = []
    for name, (kind, file) in load_kinds(workspace).items():
        cells = [
            KindCell(kernel.name, variant, case.key, limit(name, kernel, case))
            for kernel in (one.kernel for one in loaded.values())
            for variant in kernel.variants
            for case in kernel.cases
            if kind.applies(kernel, variant, case)
        ]
        kinds.append(KindInfo(name, file.name, kind.on, kind.cell_seconds, kind.deadline_s, kind.replicates, cells))
    return Description(infos, kinds)


def main() -> int:
    """Write the description of the workspace named on the command line, or the error."""
    root, *descriptors = sys.argv[1:]
    for descriptor in descriptors:
        os.set_inheritable(int(descriptor), False)  # a process that a kernel file starts must not keep it open
    try:
        answer = asdict(_read(read_workspace(Path(root))))
        for kind in answer["kinds"]:
            kind["cells"] = [list(cell.values()) for cell in kind["cells"]]
    except errors.HarnessError as error:
        answer = {"error": {"type": type(error).__name__, "asked": error.asked, "found": error.found, "do": error.do}}
    text = json.dumps(answer)
    if not descriptors:
        print(text)  # noqa: T201 -- a person reads it
    for descriptor in descriptors:
        with os.fdopen(int(descriptor), "w", encoding="utf-8") as pipe:
            pipe.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
