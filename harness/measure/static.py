"""Measures a cell without its GPU: compiles every kernel launch of a variant for the device, and reads the binaries.

How several launches, or several configurations of an autotuned launch, become one value stands in the table `_VALUES`.
`binary_hash`, `grid` and `config` have one entry a launch, in launch order; `launcher_digest` is that of
`harness.measure.sources`. Two cells that agree in all four, built by one compiler stack, take the same device time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from triton import knobs

from harness.errors import HarnessError
from harness.measure.compiles import cache_of
from harness.measure.launches import Launch
from harness.measure.recording import Recorder, recording
from harness.measure.sources import launcher_digest
from harness.measure.subject import Reading, Subject
from harness.measure.target import load_meta_operations
from harness.records import Status


def preload() -> None:
    """Do once what every process needs before its first cell: seconds that a fork server saves its children."""
    load_meta_operations()


def compile_static(subject: Subject) -> list[Reading]:
    """Compile what one call of the variant launches; one reading a metric, or one that says why it cannot be built.

    Kernels already compiled in this process or found in Triton's cache are not compiled again. The cache is a folder of
    TRITON_CACHE_DIR for each launcher digest.

    Raises:
        HarnessError: the subject's tensors are not on `meta`, its device is no compile target, or TRITON_INTERPRET is set.
    """
    if subject.torch_device != "meta":
        raise HarnessError(f"compile {subject.cell}", f"its tensors are on {subject.torch_device}", "give a Subject on `meta`")
    digest = launcher_digest(subject.kernel, subject.variant_name)
    with recording(subject.device, cache_of(Path(knobs.cache.dir), digest)) as recorder:
        inputs = subject.inputs()
        recorder.forget()  # what making inputs launched is not the variant's
        try:
            subject.call(inputs)
        except Exception as error:
            reason = recorder.failed(error)
            if reason is None:
                raise
            return [Reading(None, None, Status.BUILD_FAILED, reason, {"launcher_digest": digest})]
    if not recorder.launches:
        return [Reading(None, None, Status.BUILD_FAILED, "launched no Triton kernel", {"launcher_digest": digest})]
    return _readings(recorder, digest)


def _readings(recorder: Recorder, digest: str) -> list[Reading]:
    launches = recorder.launches
    columns = {
        "launcher_digest": digest,
        "binary_hash": [launch.binary_hash for launch in launches],
        "grid": [launch.grid for launch in launches],
        "config": [launch.config for launch in launches],
    }
    values = {name: value(launches) for name, value in _VALUES.items()} | {"compile_s": recorder.compile_s}
    return [Reading(name, float(value), columns=columns) for name, value in values.items()]


def _code_bytes(launches: Sequence[Launch]) -> int:
    distinct = {c.binary.sha256: c.binary.resources.code_bytes for launch in launches for c in launch.choices}
    return sum(distinct.values())


# Of the configurations of an autotuned launch the largest counts: which one a GPU would choose is not known here.
_VALUES: dict[str, Callable[[Sequence[Launch]], int]] = {
    "registers": lambda launches: max(c.binary.resources.registers for launch in launches for c in launch.choices),
    "spill_bytes": lambda launches: sum(max(c.spill_bytes for c in launch.choices) for launch in launches),
    "stack_bytes": lambda launches: max(c.binary.resources.stack_bytes for launch in launches for c in launch.choices),
    "shared_bytes": lambda launches: max(c.shared_bytes for launch in launches for c in launch.choices),
    "code_bytes": _code_bytes,
    "kernel_launches": len,
}
