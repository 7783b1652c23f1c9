from __future__ import annotations

from dataclasses import replace

import torch

from harness import Case, Kernel, Tolerance, Traffic, Variant
from harness.devices.table import load_devices
from harness.measure import correctness
from harness.measure.correctness import check_correctness
from harness.measure.memory import needed_bytes
from harness.measure.subject import Subject
from harness.records import Status

N = 1 << 20


def subject_of(mutates: tuple[str, ...] = ()) -> Subject:
    kernel = Kernel(
        variants={"only": lambda x, y: None},
        default="only",
        baseline="only",
        axes=("N",),
        cases=[Case(N=N, dtype="bf16", tags="smoke")],
        make_inputs=lambda case, generator: {"x": generator.uniform((N,), "bf16"), "y": generator.uniform((N,), "fp32")},
        reference=lambda x, y: {"y": y.double() + x.double()},
        outputs=() if mutates else ("z",),
        mutates=mutates,
        tolerance={"bf16": Tolerance(1e-2, "a test")},
        traffic=lambda case: Traffic(6 * N, 4 * N),
        flops=lambda case: N,
        name="memory",
    )
    return Subject(kernel, "only", kernel.cases[0], load_devices()["h200"], "cuda")


def test_the_estimate_holds_copies_of_the_inputs_and_the_reference_in_fp64() -> None:
    inputs, values, written = 6 * N, 2 * N, 4 * N
    assert 4 * inputs + 8 * values + 16 * written == needed_bytes(subject_of())
    assert 4 * inputs + 8 * values + 16 * N == needed_bytes(subject_of(("y",))), "what is changed in place is not returned, too"


def test_a_variant_that_does_a_part_returns_no_more_than_its_part() -> None:
    whole = subject_of()
    variants = {**whole.kernel.variants, "part": Variant(lambda x, y: None, traffic=lambda case: Traffic(6 * N, N))}
    part = replace(whole, kernel=replace(whole.kernel, variants=variants), variant_name="part")
    assert needed_bytes(whole) - 16 * 3 * N == needed_bytes(part)


def test_a_check_that_does_not_fit_is_skipped_before_anything_is_allocated(monkeypatch) -> None:
    monkeypatch.setattr(correctness, "free_bytes", lambda: 1 << 20)
    (reading,) = check_correctness(subject_of())  # on a device that is not here
    assert (Status.SKIPPED, True) == (reading.status, (reading.reason or "").startswith("memory: the check takes up to "))
    assert not torch.cuda.is_initialized()
