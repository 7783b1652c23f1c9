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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import errors
from harness.authoring.catalogue import as_known
from harness.authoring.model import AxisValue, Case, Drift, Kernel, Tolerance, Traffic
from harness.authoring.workspace import Workspace, read_workspace


@dataclass(frozen=True)
class CaseInfo:
    """One case: its key and tags, what one call of it must move and compute, and how far its results may be off.

    Args:
        parts: what a call must move of the variants that do a part of the work alone.
        other_bytes: what a call moves by the kernel's further models, by their names; they gate nothing.
        cycle_steps: over how many steps bytes and flops are the mean: those of a cycle, 1 where a call's cost depends on no phase.
        variants: those that take the case.
        activations: by variant the inputs that the operation before has just written, as far as they are declared.
    """

    case: str
    tags: list[str]
    read_bytes: int = 0
    written_bytes: int = 0
    flops: int = 0
    parts: dict[str, Traffic] = field(default_factory=dict)
    other_bytes: dict[str, int] = field(default_factory=dict)
    cycle_steps: int = 1
    tolerance: Tolerance | None = None
    variants: list[str] = field(default_factory=list)
    activations: dict[str, list[str]] = field(default_factory=dict)

    def traffic_of(self, variant: str) -> Traffic:
        """What one call of a variant must move."""
        return self.parts.get(variant) or Traffic(self.read_bytes, self.written_bytes)


@dataclass(frozen=True)
class VariantInfo:
    """What one variant returns and changes in place, and whether it launches Triton kernels."""

    triton: bool
    outputs: list[str]
    mutates: list[str]


@dataclass(frozen=True)
class DriftInfo:
    """How a kernel with state is followed: `carry` from step to step, held at the checkpoints to `tolerance` by the state's dtype."""

    steps: int
    checkpoints: list[int]
    carry: dict[str, str]
    tolerance: dict[str, Tolerance]


@dataclass(frozen=True)
class KernelInfo:
    """One kernel, as `harness kernels show NAME --format json` prints it; `doc` is its module docstring.

    Args:
        cursor: the tensor that holds the phase of a cycle.
        defaults: of axes that a case's key leaves out where they have this value.
        slots: changed tensor -> the indices that say which of its first axis are in use; the first `null_slots` belong to nobody.
    """

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
    cursor: str | None = None
    axes: list[str] = field(default_factory=list)
    defaults: dict[str, AxisValue] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    slots: dict[str, str] = field(default_factory=dict)
    null_slots: int = 0
    deterministic: bool = True
    data: str = ""
    by_variant: dict[str, VariantInfo] = field(default_factory=dict)
    drift_limits: DriftInfo | None = None


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
        parts = {variant: Traffic(**bytes_) for variant, bytes_ in given["parts"].items()}
        return CaseInfo(**{**given, "parts": parts, "tolerance": Tolerance(**given["tolerance"])})

    def drift(given: dict[str, Any]) -> DriftInfo:
        return DriftInfo(**{**given, "tolerance": {dtype: Tolerance(**found) for dtype, found in given["tolerance"].items()}})

    def kernel(given: dict[str, Any]) -> KernelInfo:
        by_variant = {name: VariantInfo(**found) for name, found in given["by_variant"].items()}
        limits = given["drift_limits"] and drift(given["drift_limits"])
        return KernelInfo(**{**given, "cases": [case(c) for c in given["cases"]], "by_variant": by_variant, "drift_limits": limits})

    kernels = [kernel(k) for k in data["kernels"]]
    kinds = [KindInfo(**{**k, "cells": [KindCell(*c) for c in k["cells"]]}) for k in data["kinds"]]
    return Description(kernels, kinds)


def _kernel(name: str, file: str, doc: str, kernel: Kernel) -> KernelInfo:
    variants = {name: kernel.variant(name) for name in kernel.variants}
    return KernelInfo(
        name=name,
        file=file,
        doc=doc,
        variants=list(variants),
        default=kernel.default,
        baseline=kernel.baseline,
        cases=[_case(kernel, case) for case in kernel.cases],
        mutates=list(kernel.mutates),
        cycle=kernel.cycle is not None,
        drift=kernel.drift is not None,
        cursor=kernel.cycle.cursor if kernel.cycle else None,
        axes=list(kernel.axes),
        defaults=dict(kernel.defaults),
        outputs=list(kernel.outputs),
        slots=dict(kernel.slots),
        null_slots=kernel.null_slots,
        deterministic=kernel.deterministic,
        data=kernel.data,
        by_variant={name: VariantInfo(v.triton, list(v.outputs or ()), list(v.mutates or ())) for name, v in variants.items()},
        drift_limits=_drift(kernel.drift) if kernel.drift else None,
    )


def _case(kernel: Kernel, case: Case) -> CaseInfo:
    traffic = kernel.traffic(case)
    takes = [name for name in kernel.variants if kernel.variant(name).cases(case)]
    return CaseInfo(
        case=case.key,
        tags=sorted(case.tags),
        read_bytes=traffic.read_bytes,
        written_bytes=traffic.written_bytes,
        flops=kernel.flops(case),
        parts={name: kernel.traffic_of(name, case) for name in kernel.variants if kernel.variant(name).traffic is not None},
        other_bytes={name: model(case) for name, model in kernel.other_traffic.items()},
        cycle_steps=kernel.cycle.length(case) if kernel.cycle else 1,
        tolerance=_plain(kernel.tolerance_of(case)),
        variants=takes,
        activations={name: list(found) for name in takes if (found := kernel.activations_of(name, case))},
    )


def _drift(drift: Drift) -> DriftInfo:
    tolerance = {dtype: _plain(found) for dtype, found in drift.tolerance.items()}
    return DriftInfo(drift.steps, list(drift.checkpoints), dict(drift.carry), tolerance)


def _plain(tolerance: Tolerance) -> Tolerance:
    """The same in dicts, which `asdict` can copy whatever mapping the file uses."""
    return replace(tolerance, tensors=dict(tolerance.tensors))


def _read(workspace: Workspace) -> Description:
    from harness.authoring.catalogue import load_kernels, load_kinds

    def limit(kind: str, kernel: Kernel, case: Case) -> float | None:
        if kind == "correctness":
            return kernel.tolerance_of(case).loosest
        if kind == "drift" and kernel.drift is not None:
            return kernel.drift.tolerance_of(case).loosest
        return None

    loaded = load_kernels(workspace)
    infos = [_kernel(name, str(one.file.relative_to(workspace.root)), one.doc, one.kernel) for name, one in loaded.items()]
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
