"""What ncu prints is read, and what it refuses to print is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.measure.calibration.known_kernels import marker_kernel
from harness.measure.calibration.ncu import L1, MARKER, METRICS, MORE, SM, CallCounts, Counted, by_marker, options, parse

TEXT = (Path(__file__).parent / "ncu_raw.csv").read_text()


def test_a_kernel_is_a_row():
    kernels = parse(TEXT)
    assert ["marker_kernel", "spin_kernel", "marker_kernel", "void first<float, 4>(int, T2)", "second", "marker_kernel"] == [
        k.name for k in kernels
    ]
    assert (kernels[3].grid, kernels[3].us, kernels[3].read_bytes, kernels[3].written_bytes) == (528, 2.5, 1e6, 5e5)


def test_a_call_is_what_stands_between_its_marker_and_the_next():
    calls = by_marker(parse(TEXT))
    assert {0: ["spin_kernel"], 1: ["void first<float, 4>(int, T2)", "second"], 3: []} == {
        number: [k.name for k in call.launches] for number, call in calls.items()
    }
    assert [(1, 20.832, 4128.0), (2, 4.0, 2_250_000.0), (0, 0.0, 0.0)] == [
        (call.total.grid, call.total.us, call.total.bytes) for call in calls.values()
    ]


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


def with_more(l1, sm):
    """The table with a column each of L1 bytes and of the multiprocessors' throughput."""
    ends = {'"gpu__time_duration.sum"': f',"{L1}","{SM}"', '"ns"': ',"byte","%"'}
    lines = []
    for line in TEXT.splitlines():
        end = next((more for last, more in ends.items() if line.endswith(last)), f',"{l1}","{sm}"' if line[:2] > '""' else "")
        lines.append(line + end)
    return "\n".join(lines)


class TestWhatMayBeAskedBesideIt:
    def test_is_read_where_it_stands(self):
        kernel = parse(with_more("2,000", "41.5"))[3]
        assert (2000.0, 41.5) == (kernel.l1_bytes, kernel.sm_percent)

    @pytest.mark.parametrize("text", [TEXT, with_more("n/a", ""), with_more("", "n/a")], ids=["not asked", "n/a", "empty"])
    def test_is_none_where_there_is_no_such_counter(self, text):
        kernel = parse(text)[3]
        assert (None, None, 2.5) == (kernel.l1_bytes, kernel.sm_percent, kernel.us)

    def test_is_summed_over_the_launches_and_throughput_is_their_mean_by_time(self):
        launches = (Counted("a", 1, 3.0, 10.0, 5.0, 100.0, 80.0), Counted("b", 1, 1.0, 1.0, 2.0, 50.0, 40.0))
        assert Counted("sum", 2, 4.0, 11.0, 7.0, 150.0, 70.0) == CallCounts(launches).total

    def test_has_no_sum_where_one_launch_lacks_it(self):
        total = CallCounts((Counted("a", 1, 3.0, 1.0, 1.0, 100.0, 80.0), Counted("b", 1, 1.0, 1.0, 1.0))).total
        assert (None, None) == (total.l1_bytes, total.sm_percent)


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


@pytest.mark.parametrize(
    ("error", "do"),
    [("==ERROR== ERR_NVGPUCTRPERM - no", "NVreg_RestrictProfilingToAdminUsers=0"), ("==ERROR== No such device", "mend what ncu names")],
    ids=["no permission", "other"],
)
def test_an_error_says_what_helps(error, do):
    with pytest.raises(HarnessError) as caught:
        parse(error)
    assert do in caught.value.do


@pytest.mark.parametrize("metrics", [METRICS, (*METRICS, *MORE)], ids=["fewest", "more"])
def test_the_clocks_are_left_alone_and_the_caches_are_flushed(metrics):
    found = options(metrics)
    assert found[found.index("--clock-control") + 1] == "none"
    assert found[found.index("--cache-control") + 1] == "all"
    assert found[found.index("--metrics") + 1] == ",".join(metrics)
