"""Kernels that are wrong in ways a comparison of outputs alone would miss: each is caught, for the reason meant for it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.measure import checks, correctness
from harness.measure.checks import Defect
from harness.measure.correctness import check_correctness
from harness.measure.subject import Subject

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in divide")  # the interpreter's own, at nan_output

HERE = Path(__file__).parent
EXPECTED = tomllib.loads((HERE / "expected.toml").read_text())
IN_PROCESS = [cell for cell, expected in EXPECTED.items() if "reason" in expected]
NAMES = sorted({cell.partition("/")[0] for cell in EXPECTED})

WITHOUT = {
    "low_precision": (Defect.TOLERANCE, "ok"),
    "dropped_tail": (Defect.TOLERANCE, "ok"),
    "unmasked_variance": (Defect.TOLERANCE, "ok"),
    "wrong_column": (Defect.TOLERANCE, "ok"),
    "unwritten_output": (Defect.UNWRITTEN, "non_finite"),
    "mutated_input": (Defect.MUTATED_INPUT, "ok"),
    "out_of_bounds_write": (Defect.OUT_OF_BOUNDS, "ok"),
    "nan_output": (Defect.NON_FINITE, "beyond_tolerance"),
    "wrong_dtype": (Defect.DTYPE, "ok"),
    "wrong_slot": (Defect.UNTOUCHED_SLOT, "beyond_tolerance"),
    "smoke_shape": (Defect.TOLERANCE, "ok"),
}
"""The check each kernel is there for, and what becomes of the kernel when that check is left out."""


def verdict(subject: Subject) -> tuple[str, str]:
    """The one status and reason that every reading of a cell carries."""
    found = {(str(reading.status), reading.reason or "") for reading in check_correctness(subject)}
    assert len(found) == 1, found
    return found.pop()


def test_every_kernel_file_has_its_expectation() -> None:
    assert NAMES == sorted(path.stem for path in (HERE / "kernels").glob("*.py"))


@pytest.mark.parametrize("cell", IN_PROCESS)
def test_the_bad_variant_is_caught_for_its_own_reason(subject: Callable[..., Subject], cell: str) -> None:
    status, reason = verdict(subject(*cell.split("/"), EXPECTED[cell].get("case", 0)))
    assert (EXPECTED[cell]["status"], EXPECTED[cell]["reason"]) == (status, reason[: len(EXPECTED[cell]["reason"])])


@pytest.mark.parametrize("name", NAMES)
def test_its_good_twin_passes(subject: Callable[..., Subject], name: str) -> None:
    cases = range(len(subject(name, "good").kernel.cases))
    assert {("ok", "")} == {verdict(subject(name, "good", case)) for case in cases}


def test_a_kernel_that_is_right_at_the_smoke_shape_alone_is_right_there(subject: Callable[..., Subject]) -> None:
    assert verdict(subject("smoke_shape", "bad", 0)) == ("ok", "")


@pytest.mark.parametrize("name", WITHOUT)
def test_no_other_check_stands_in_for_the_one_it_is_there_for(
    subject: Callable[..., Subject], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out, becomes = WITHOUT[name]
    monkeypatch.setattr(checks, "CHECKS", tuple(row for row in checks.CHECKS if row[0] is not left_out))
    status, reason = verdict(subject(name, "bad", EXPECTED[f"{name}/bad"].get("case", 0)))
    assert becomes == (reason.partition(":")[0] or status)


def test_only_new_content_in_the_same_buffers_shows_a_cached_answer(
    subject: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correctness, "STAGES", (correctness._same_again,))
    assert verdict(subject("cached_answer", "bad")) == ("ok", "")


def test_only_equal_content_elsewhere_shows_an_answer_remembered_by_content(
    subject: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correctness, "STAGES", (correctness._other_content,))
    assert verdict(subject("cached_content", "bad")) == ("ok", "")
