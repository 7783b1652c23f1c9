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


def test_the_marker_is_the_kernel_of_that_name_alone():
    assert marker_kernel.__name__ == MARKER
    calls = by_marker(parse(TEXT.replace('"spin_kernel"', '"my_marker_kernel_v2"')))
    assert ["my_marker_kernel_v2"] == [kernel.name for kernel in calls[0].launches]


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
        (TEXT.replace('"(528, 1, 1)"', '"n/a"'), "Grid Size is 'n/a'"),
    ],
    ids=["no permission", "nothing", "no column", "no number", "no such unit", "no grid"],
)
def test_what_cannot_be_read_is_an_error(text, found):
    with pytest.raises(HarnessError) as caught:
        parse(text)
    assert found == caught.value.found


@pytest.mark.parametrize(("written", "us"), [("2500", 2.5), ("2,500", 2.5), ("1,002,500.5", 1002.5005), ("0", 0.0), ("0.25", 0.00025)])
def test_numbers_are_those_of_the_c_locale(written, us):
    assert pytest.approx(us) == parse(TEXT.replace('"2,500"', f'"{written}"'))[3].us


@pytest.mark.parametrize(
    "written",
    [
        "2.500,5",
        "2500,5",
        "2,5",
        "2,50",
        "25,00",
        "2\u202f500",
        "2'500",
        "1,2345",
        "nan",
        "inf",
        "-2,500",
        "-0",
        "1e3",
        "1_0",
        "٢",
        "",
        "9" * 400,
    ],
    ids=lambda written: ascii(written[:9]),
)
def test_what_is_no_such_number_is_refused_rather_than_guessed(written):
    with pytest.raises(HarnessError, match=r"gpu__time_duration\.sum is ") as caught:
        parse(TEXT.replace('"2,500"', f'"{written}"'))
    assert len(caught.value.found) < 200


LAST = TEXT.splitlines()[-2]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TEXT.partition(LAST)[0] + LAST[:-9], "unexpected end of data: "),
        (TEXT.partition(LAST)[0] + LAST[: LAST.rindex(',"')], "14 columns and a row of 13: "),
        (TEXT.replace(',"byte","byte","ns"', ',"byte","byte"'), "14 columns and a row of 13: "),
        (TEXT.replace('"second"', '"sec\nond"'), "unexpected end of data: "),
        (TEXT.replace('"second"', f'"{"x" * 200_000}"'), "field larger than field limit (131072): "),
        (TEXT.replace('"4","4242"', '4,"4242"'), "no row of the table: "),
        (TEXT.replace('"4","4242"', 'a kernel printed this\n"4","4242"'), "no row of the table: "),
    ],
    ids=["cut", "cut between columns", "short units", "line break in a name", "huge name", "no quote", "another line"],
)
def test_a_line_that_is_no_whole_row_is_an_error(text, found):
    with pytest.raises(HarnessError) as caught:
        parse(text)
    assert caught.value.found.startswith(found)
    assert len(caught.value.found) < 200


def test_what_ncu_says_between_the_rows_is_no_row():
    lines = TEXT.splitlines()
    assert parse(TEXT) == parse("\n".join([*lines[:7], "==WARNING== slow", "", *lines[7:]]))


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
