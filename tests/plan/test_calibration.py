"""Which cells a calibration times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness import Traffic
from harness.devices.table import load_devices
from harness.plan.calibration import MOST_CACHES, largest_of_each_kernel, no_cell, one_of_each_class, traffic_of
from harness.plan.describe import CaseInfo, Description, KernelInfo, KindCell, KindInfo

DEVICE = load_devices()["h200"]
US = DEVICE.peak_gbps * 1e3
"""Bytes that the memory moves in a microsecond."""


def kernel(name, *cases):
    return KernelInfo(name, f"kernels/{name}.py", "", ["fast", "slow"], "fast", "slow", list(cases), [], cycle=False, drift=False)


def case(name, us, tags=("headline",), flops=0):
    return CaseInfo(f"N={name},dtype=fp32", list(tags), int(us * US), 0, flops)


def described(*kernels, without=()):
    cells = [KindCell(k.name, v, c.case, None) for k in kernels for v in k.variants for c in k.cases if (k.name, c.case) not in without]
    return Description(list(kernels), [KindInfo("latency", "latency.py", "unit", 4.0, 120.0, True, cells)])


def names(cells):
    return [f"{c.kernel} {c.case.split(',')[0]}" for c in cells]


class TestOneOfEachClass:
    def test_is_the_smallest_of_each_class_in_the_default_variant(self):
        what = described(kernel("a", case(1, 0.01), case(2, 0.5), case(3, 0.3), case(4, 3), case(5, 50), case(6, 120)))
        cells = one_of_each_class(what, DEVICE)
        assert ["a N=1", "a N=3", "a N=4", "a N=5", "a N=6"] == names(cells)
        assert {("fast", "h200")} == {(c.variant, c.device) for c in cells}

    def test_takes_another_kernel_where_there_is_one(self):
        what = described(kernel("a", case(1, 0.01), case(2, 3)), kernel("b", case(3, 4)))
        assert ["a N=1", "b N=3"] == names(one_of_each_class(what, DEVICE))

    def test_adds_the_one_with_the_most_arithmetic_a_byte(self):
        what = described(kernel("a", case(1, 3)), kernel("b", case(2, 4, flops=10**9)))
        assert ["a N=1", "b N=2"] == names(one_of_each_class(what, DEVICE))

    def test_takes_headline_cases_else_smoke_else_any(self):
        cases = (case(1, 3, ["smoke"]), case(2, 30, ["headline"]), case(3, 300, []))
        assert ["a N=2"] == names(one_of_each_class(described(kernel("a", *cases)), DEVICE))
        assert ["a N=1"] == names(one_of_each_class(described(kernel("a", cases[0], cases[2])), DEVICE))
        assert ["a N=3"] == names(one_of_each_class(described(kernel("a", cases[2])), DEVICE))

    def test_leaves_out_what_is_not_timed_and_what_is_too_large(self):
        huge = replace(case(2, 1), read_bytes=MOST_CACHES * DEVICE.last_level_cache_bytes + 1)
        what = described(kernel("a", case(1, 3), huge), without={("a", "N=1,dtype=fp32")})
        assert [] == one_of_each_class(what, DEVICE)


def test_the_largest_case_of_every_kernel_whatever_its_tags():
    what = described(kernel("a", case(1, 3), case(2, 30, [])), kernel("b", case(3, 1)))
    assert ["a N=2", "b N=3"] == names(largest_of_each_kernel(what, DEVICE))


def test_no_cell_is_none():
    assert [] == no_cell(described(kernel("a", case(1, 3))), DEVICE)


def test_a_cells_traffic():
    what = described(kernel("a", case(1, 3), case(2, 30)))
    cells = largest_of_each_kernel(what, DEVICE)
    assert Traffic(int(30 * US), 0) == traffic_of(what, cells[0])
    with pytest.raises(KeyError):
        traffic_of(what, replace(cells[0], case="N=9,dtype=fp32"))


def test_a_cell_whose_variant_does_a_part_has_the_traffic_of_that():
    part = Traffic(3, 4)
    what = described(kernel("a", replace(case(1, 3), parts={"slow": part})))
    fast = largest_of_each_kernel(what, DEVICE)[0]
    assert (part, Traffic(int(3 * US), 0)) == (traffic_of(what, replace(fast, variant="slow")), traffic_of(what, fast))
