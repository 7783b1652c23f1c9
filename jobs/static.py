"""Static: compiles every kernel launch of a cell for its device, which need not be there, and reads the binaries.

Registers, spills, stack, shared memory, machine code, launches; and the hashes that prove two cells equal.
"""

from harness import Kind
from harness.measure.plugin import Recorder
from harness.measure.static import compile_static
from harness.measure.subject import Subject
from harness.records import Status

KIND = Kind(
    on="host",
    applies=lambda kernel, variant, case: kernel.variant(variant).triton and kernel.variant(variant).cases(case),
    cell_seconds=1.0,
    deadline_s=120.0,
)


def test_static(subject: Subject, record: Recorder) -> None:
    """Compiles one cell; a kernel that cannot be built for the device is a finding, not a crash."""
    readings = compile_static(subject)
    record(readings)
    bad = [r for r in readings if r.status is not Status.OK]
    assert not bad, f"{subject.cell}: {bad[0].status}: {bad[0].reason}"
