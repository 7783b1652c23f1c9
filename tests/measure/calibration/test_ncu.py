"""What ncu prints is read, and what it refuses to print is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.measure.calibration.known_kernels import marker_kernel
from harness.measure.calibration.ncu import MARKER, METRICS, OPTIONS, Totals, by_marker, parse

TEXT = (Path(__file__).parent / "ncu_raw.csv").read_text()


def test_a_kernel_is_a_row():
    kernels = parse(TEXT)
    assert ["marker_kernel", "spin_kernel", "marker_kernel", "void first<float, 4>(int, T2)", "second", "marker_kernel"] == [
        k.name for k in kernels
    ]
    assert (kernels[3].grid, kernels[3].us, kernels[3].read_bytes, kernels[3].written_bytes) == (528, 2.5, 1e6, 5e5)


def test_a_call_is_what_stands_between_its_marker_and_the_next():
    assert {0: Totals(1, 20.832, 4128.0), 1: Totals(2, 4.0, 2_250_000.0), 3: Totals(0, 0.0, 0.0)} == by_marker(parse(TEXT))


def test_what_comes_before_the_first_marker_belongs_to_no_call():
    kernels = parse(TEXT)
    assert by_marker(kernels[3:5]) == {}


def test_the_marker_is_the_kernel_of_that_name():
    assert marker_kernel.__name__ == MARKER


@pytest.mark.parametrize(
    ("units", "us", "read"),
    [('"byte","byte","nsecond"', 2.5, 1e6), ('"Mbyte","Kbyte","usecond"', 2500.0, 1e12), ('"Kbyte","byte","ms"', 2.5e6, 1e9)],
    ids=["older", "scaled", "newer"],
)
def test_units_of_every_version(units, us, read):
    kernel = parse(TEXT.replace('"byte","byte","ns"', units))[3]
    assert (us, read) == (pytest.approx(kernel.us), pytest.approx(kernel.read_bytes))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission\n", "==ERROR== ERR_NVGPUCTRPERM - no permission"),
        ("", "no table in its output"),
        (TEXT.replace("dram__bytes_read.sum", "other"), "no column 'dram__bytes_read.sum'"),
        (TEXT.replace('"1,000,000"', '"n/a"'), "dram__bytes_read.sum is 'n/a' 'byte'"),
        (TEXT.replace('"byte","byte","ns"', '"byte","byte","weeks"'), "gpu__time_duration.sum is '1,312' 'weeks'"),
    ],
    ids=["no permission", "nothing", "no column", "no number", "no such unit"],
)
def test_what_cannot_be_read_is_an_error(text, found):
    with pytest.raises(HarnessError) as caught:
        parse(text)
    assert found == caught.value.found


def test_the_clocks_are_left_alone_and_the_caches_are_flushed():
    options = list(OPTIONS)
    assert options[options.index("--clock-control") + 1] == "none"
    assert options[options.index("--cache-control") + 1] == "all"
    assert options[options.index("--metrics") + 1] == ",".join(METRICS)
