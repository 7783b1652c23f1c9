"""The smoke cases of every kernel: few, and enough to find a wrong kernel on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Kernel

NAMES = sorted(file.stem for file in (Path(__file__).parents[2] / "kernels").glob("*.py") if not file.name.startswith("_"))


@pytest.fixture(params=NAMES)
def kernel(request: pytest.FixtureRequest, load_kernel: Callable[[str], Kernel]) -> Kernel:
    return load_kernel(request.param)


def test_every_variant_has_a_smoke_case(kernel: Kernel) -> None:
    smoke = [case for case in kernel.cases if "smoke" in case.tags]
    assert [] == [name for name in kernel.variants if not any(kernel.variant(name).cases(case) for case in smoke)]


def test_the_default_variant_is_proved_right_on_cpu_by_a_smoke_case(kernel: Kernel) -> None:
    proved = [case for case in kernel.cases if {"smoke", "cpu"} <= case.tags and kernel.variant(kernel.default).cases(case)]
    assert proved, "tag a small case `smoke cpu`: else `--matrix smoke` passes a kernel that is wrong"


def test_smoke_is_a_few_cases(kernel: Kernel) -> None:
    assert len([case for case in kernel.cases if "smoke" in case.tags]) <= 4
