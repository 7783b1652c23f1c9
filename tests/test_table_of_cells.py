"""benchmarks/table_of_cells.py: what it makes of the records of runs."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from table_of_cells import figures, page, summary, write_pages

from harness.records import Record


def record(variant, metric, value, position=0, status="ok", kernel="k", kind="latency"):
    return Record(
        kernel=kernel, variant=variant, case="N=8,dtype=fp32", dtype="fp32", device="h200",
        kind=kind, metric=metric, value=value, status=status, position=position,
    )  # fmt: skip


RECORDS = [
    *(record("fused", "latency_us", us, i) for i, us in enumerate([9.9, 10.1, 10.0])),
    record("fused", "gbps", 1234.5),
    record("fused", "latency_warm_us", None, status="skipped"),
    *(record("plain", "latency_us", us, i) for i, us in enumerate([100.0, 100.2, 100.1])),
    record("plain", "speedup", 0.1),
    record("fused", "rel_l2_error", 0.5, kind="correctness"),
    record("fused", "latency_us", None, status="invalid", kernel="voided"),
]


def test_a_kernel_is_summed_up_by_the_deviation_of_its_cells():
    assert summary(figures(RECORDS), "cells")[2:] == ["| [k](cells/k.md) | 2 | 0.550 % | 1 | 1 | 1.00 % |"]


def test_a_cell_has_the_medians_of_its_launches():
    assert page("k", figures(RECORDS)) == [
        "# Every timed cell of k on h200",
        "",
        "| variant | case | us | deviation | warm us | GB/s | % of ceiling | speed-up |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
        "| fused | `N=8,dtype=fp32` | 10.00 | 1.00 % | - | 1234 | - | - |",
        "| plain | `N=8,dtype=fp32` | 100.1 | 0.10 % | - | - | - | 0.10 |",
    ]


def test_of_a_single_launch_there_is_no_deviation():
    (*_, row) = page("k", figures([record("fused", "latency_us", 5.0)]))
    assert row == "| fused | `N=8,dtype=fp32` | 5.00 | - | - | - | - | - |"


def test_each_kernel_has_a_page_that_its_row_links(tmp_path):
    of = figures(record("fused", "latency_us", us, i, kernel=kernel) for kernel in ("k", "m") for i, us in enumerate([9.9, 10.1]))
    write_pages(of, tmp_path / "cells")
    linked = re.findall(r"\((.+?)\)", "\n".join(summary(of, "cells")))
    assert [tmp_path / link for link in linked] == sorted((tmp_path / "cells").iterdir())
    assert (tmp_path / "cells/m.md").read_text() == "\n".join(page("m", of)) + "\n"
