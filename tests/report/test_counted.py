"""What ncu counted beside our figures, against golden outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.commands._table import print_section
from harness.measure.calibration.ncu import CallCounts, Counted
from harness.records import Cell
from harness.report.calibration_truth import Model
from harness.report.counted import CountedCell, Memory, Recorded, counted_json, counted_sections, without_counts

EXPECTED = Path(__file__).parents[1] / "expected"
MEMORY = Memory(60 << 20, 4800.0)
ONE = CallCounts((Counted("scan_kernel", 4096, 50.0, 1.01e8, 0.99e8, 2.5e8, 61.25),))
TWO = CallCounts((Counted("void first<float, 4>(int, T2)", 8, 3.0, 9000.0, 3000.0, 30000.0, 8.0), Counted("second", 8, 1.0, 3000.0, 0.0)))
RECORD = Recorded(51.0, 3921.6, 81.7, "ok", None, "run", "run2", "0123456789abcdef", dirty=False, same_code=True)
LARGE = CountedCell(Cell("scan", "fused", "N=4096,dtype=fp32", "h200"), Model(200_000_000, 100_000_000), ONE, None, RECORD, cycle=False)
CHAIN = replace(
    LARGE,
    cell=Cell("norm", "chain", "M=1,dtype=bf16", "h200"),
    model=Model(16384, 8192),
    counts=TWO,
    recorded=replace(
        RECORD, latency_us=None, gbps=None, percent_of_peak=None, status="wrong", reason="rel_l2_error\n0.5", source="baseline"
    ),
)
STEP = replace(LARGE, cell=Cell("step", "ring", "N=1,dtype=bf16", "h200"), recorded=None, cycle=True)
FAILED = replace(LARGE, cell=Cell("scan", "fused", "N=9,dtype=fp32", "h200"), counts=None, failed="OutOfMemoryError: too\nmuch")
OTHER = replace(LARGE, recorded=replace(RECORD, same_code=False, dirty=True, gbps=None))


def text(cells, capsys):
    for section in counted_sections(cells, MEMORY):
        print_section(section)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "cells"),
    [("counted.txt", [LARGE]), ("counted_several.txt", [OTHER, CHAIN, STEP, FAILED])],
    ids=["one", "several"],
)
def test_the_tables_are_as_expected(name, cells, capsys):
    assert (EXPECTED / name).read_text() == text(cells, capsys)


def test_the_document_holds_launches_sum_and_both_ratios():
    assert counted_json(LARGE, MEMORY) == {
        "cell": "scan/fused/N=4096,dtype=fp32@h200",
        "failed": None,
        "launches": [{"kernel": "scan_kernel", "grid": 4096, **(total := counted_json(LARGE, MEMORY)["sum"])}],
        "sum": total,
        "model_bytes": 200_000_000,
        "model_written_bytes": 100_000_000,
        "dram_over_model": 1.0,
        "verdict": "within",
        "recorded": {
            "latency_us": 51.0,
            "gbps": 3921.6,
            "percent_of_peak": 81.7,
            "status": "ok",
            "reason": None,
            "source": "run",
            "run_id": "run2",
            "commit": "0123456789abcdef",
            "dirty": False,
            "same_code": True,
        },
        "recorded_over_ncu": pytest.approx(1.02),
    }
    assert total == {
        "us": 50.0,
        "dram_read_bytes": 1.01e8,
        "dram_written_bytes": 0.99e8,
        "dram_gbps": pytest.approx(4000.0),
        "percent_of_peak": pytest.approx(100 * 4000 / 4800),
        "sm_percent": 61.25,
        "l1_bytes": 2.5e8,
    }


def test_what_was_not_counted_is_null_and_said():
    answer = counted_json(FAILED, MEMORY)
    assert ([], None, None, None, None) == (
        answer["launches"],
        answer["sum"],
        answer["dram_over_model"],
        answer["verdict"],
        answer["recorded_over_ncu"],
    )
    assert ["scan/fused/N=9,dtype=fp32@h200: OutOfMemoryError: too much"] == without_counts([LARGE, FAILED])


@pytest.mark.parametrize(
    ("total", "counted", "verdict"),
    [
        (200_000_000, 2.09e8, "within"),
        (200_000_000, 2.11e8, "OFF"),
        (200_000_000, 1.0e8, "OFF"),
        (200_000_000, 1.4e8, "within"),
        (60 << 20, 1.0e9, "cached"),
    ],
    ids=["above", "too many", "too few", "writes still in the cache", "fits the cache"],
)
def test_the_cost_model_is_held_against_the_counters(total, counted, verdict):
    one = replace(LARGE, model=Model(total, 100_000_000), counts=CallCounts((Counted("k", 1, 5.0, counted, 0.0),)))
    assert verdict == one.verdict(MEMORY.cache_bytes)


def test_a_call_without_a_kernel_says_so(capsys):
    shown = text([replace(LARGE, counts=CallCounts(()))], capsys)
    assert "sum of 0 launches" in shown
    assert "copies and fills that the driver does are no kernels" in shown
