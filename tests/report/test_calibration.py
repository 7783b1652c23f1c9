"""The tables and curves of a calibration, against golden outputs; and what is within its limit."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from harness import metrics
from harness.commands._table import print_section
from harness.measure.calibration.parts import Part, cell_of
from harness.records import Cell, Record
from harness.report.calibration import Figures, size, trouble, unit_sections
from harness.report.calibration_svg import Panel, panels, render_svg
from harness.report.calibration_truth import Model, Truth, off_limits, truth_sections

EXPECTED = Path(__file__).parents[1] / "expected"
CACHE, PEAK = 60 << 20, 4800.0
SMALL = Cell("norm", "fused", "M=1,N=4096,dtype=bf16", "h200")
LARGE = Cell("scan", "fused", "B=64,N=4096,dtype=fp32", "h200")
SIZES = (256 << 10, 4 << 20, 64 << 20, 1 << 30)
COPIES = (120 << 20, 240 << 20, 480 << 20)


def record(cell, metric, value, **columns):
    kind = metrics.metric(metric).kind
    where = {"kernel": cell.kernel, "variant": cell.variant, "case": cell.case, "dtype": cell.dtype, "device": cell.device}
    return Record(**{**where, "kind": kind, "metric": metric, "value": value, "status": "ok", **columns})


def of_part(part, figures):
    return [record(cell_of(part, "h200"), metric, value) for metric, value in figures.items()]


def unit_records():
    clock = {"tick_ns": 32.0, "floor_us@pair": 2.1, "floor_us@device": 0.672, "floor_us@graph1": 9.6, "floor_us@eager": 4.4}
    clock |= {"floor_us@wait": 21.3, "floor_us@enqueue": 4.2}
    clock |= {f"{name}@{n}": base + n / 4096 for name, base in (("empty_us", 0.67), ("touch_us", 1.4)) for n in (1, 16, 512)}
    graphs = {
        f"graph_{name}_us@{n}": us
        for n, replay, host, node in ((1, 9.6, 21.0, 5.1), (16, 19.0, 30.0, 0.9), (2000, 1345.0, 1360.0, 0.67))
        for name, us in (("replay", replay), ("host", host), ("node", node))
    }
    memory = {f"{name}_gbps@{n}": most * n / (n + (2 << 20)) for name, most in (("copy", 4300.0), ("read", 4550.0)) for n in SIZES}
    memory |= {f"warm_copy_gbps@{SIZES[0]}": 900.0, f"warm_read_gbps@{SIZES[0]}": 700.0, f"warm_cold_ratio@{SIZES[0]}": 1.88}
    ring = {
        f"ring_{name}_gbps@{m:g}": most if m > 1.5 else 2 * most
        for name, most in (("copy", 3900.0), ("read", 4100.0))
        for m in (0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
    }
    found = [*of_part(Part.CLOCK, clock), *of_part(Part.GRAPHS, graphs), *of_part(Part.MEMORY, memory), *of_part(Part.RING, ring)]
    for cell, us, between, within in ((SMALL, 2.25, 0.21, 0.04), (LARGE, 41.3, 0.05, 0.02)):
        found.append(record(cell, "aa_us", us, samples=[us] * 6))
        found += [record(cell, "aa_between_percent", between), record(cell, "aa_within_percent", within)]
    return [
        *found,
        record(LARGE, "percent_of_ceiling", 88.2),
        record(SMALL, "percent_of_ceiling", None, status="skipped", reason="launch_bound"),
    ]


def truth_records(counted=True):
    spins = {"timer_tick_ns": 32.0, "spin_slope_percent": 0.021, "spin_offset_us": 0.79, "clock_ratio": 0.99998}
    for us in (2, 20, 200):
        spins |= {f"spin_us@{1000 * us}": us + 0.81, f"spin_true_us@{1000 * us}": us + 0.016}
    slow = {}
    for percent in (0.5, 1.0, 2.0, 5.0):
        slow |= {f"slowdown_percent@{percent:g}": percent + 0.01, f"slowdown_true_percent@{percent:g}": percent}
        slow |= {f"slowdown_half_width_percent@{percent:g}": 0.02}
    copies = {f"copy_us@{n}": 2 * n / 4.2e6 + 2 for n in COPIES} | {"copy_marginal_gbps": 4200.0, "copy_off_percent": 0.3}
    found = [*of_part(Part.SPINS, spins), *of_part(Part.SLOWDOWNS, slow), *of_part(Part.COPIES, copies)]
    if counted:
        found += of_part(Part.SPINS, {"ncu_us@20000": 20.9})
        found += of_part(Part.COPIES, {f"ncu_us@{COPIES[0]}": 60.5, f"counted_bytes@{COPIES[0]}": 1.99 * COPIES[0]})
        found += [record(LARGE, "ncu_us", 40.1), record(LARGE, "model_bytes", 2e8), record(LARGE, "counted_bytes", 1.98e8)]
        found += [record(SMALL, "counted_bytes", 9e3), record(LARGE, "latency_us", 41.3)]
    return found


def truth(**columns):
    models = {SMALL: Model(16384, 8192), LARGE: Model(200_000_000, 100_000_000)}
    return Truth(**{"device": "h200", "cache_bytes": CACHE, "peak_gbps": PEAK, "models": models, "counters": None, **columns})


def printed(sections, capsys):
    for section in sections:
        print_section(section)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("calibration.txt", lambda: unit_sections(unit_records())),
        ("calibration_truth.txt", lambda: truth_sections(truth_records(), truth())),
        (
            "calibration_no_counters.txt",
            lambda: truth_sections(truth_records(counted=False), truth(models={}, counters="ncu is not on PATH")),
        ),
    ],
    ids=["unit", "truth", "no counters"],
)
def test_the_tables_are_as_expected(name, sections, capsys):
    assert (EXPECTED / name).read_text() == printed(sections(), capsys)


@pytest.mark.parametrize(
    ("name", "records"), [("calibration.svg", unit_records), ("calibration_truth.svg", truth_records)], ids=["unit", "truth"]
)
def test_the_curves_are_as_expected_and_well_formed(name, records):
    drawn = render_svg("Calibration of h200", panels(records()))
    ET.fromstring(drawn)
    assert (EXPECTED / name).read_text() == drawn


class TestWhatIsMissing:
    def test_a_part_without_figures_has_no_table(self):
        titles = [s.title for s in unit_sections(of_part(Part.CLOCK, {"tick_ns": 32.0, "floor_us@device": 0.7}))]
        assert ["Launch floors"] == titles
        assert [] == unit_sections([])

    def test_what_has_no_figure_is_listed_once_and_side_figures_are_not(self):
        lost = replace(record(SMALL, "aa_us", None, status="lost", reason="gone"), metric=None)
        side = record(LARGE, "eager_us", None, status="invalid", reason="host_clock")
        skipped = record(LARGE, "latency_us", None, status="skipped", reason="memory")
        time = record(LARGE, "latency_us", 3.0)
        assert [f"{SMALL} (calibration): lost: gone"] == trouble([lost, lost, side, time])
        assert [] == trouble([time, skipped])

    def test_a_figure_that_is_not_valid_is_none(self):
        bad = record(cell_of(Part.CLOCK, "h200"), "tick_ns", 3.0, status="invalid")
        assert None is Figures.of([bad]).value("tick_ns")

    def test_there_is_no_drawing_of_nothing(self):
        assert [] == panels([])
        with pytest.raises(ValueError, match="nothing to draw"):
            render_svg("t", [])


def changed(metric, value):
    return [replace(r, value=value) if r.metric == metric else r for r in truth_records()]


class TestLimits:
    def test_known_costs_that_are_read_back_are_within(self):
        assert [] == off_limits(truth_sections(truth_records(), truth()))

    @pytest.mark.parametrize(
        ("metric", "value"),
        [
            ("spin_slope_percent", -0.6),
            ("clock_ratio", 1.002),
            ("slowdown_percent@1", 1.3),
            ("slowdown_half_width_percent@0.5", 0.6),
            ("copy_marginal_gbps", PEAK + 1),
            ("copy_off_percent", 3.5),
            ("counted_bytes", 2.2e8),
            ("counted_bytes", 1.2e8),
        ],
    )
    def test_one_that_is_not_is_off(self, metric, value):
        found = off_limits(truth_sections(changed(metric, value), truth()))
        assert 1 == len(found), found

    def test_writes_that_are_still_in_the_cache_are_not_missed(self):
        assert [] == off_limits(truth_sections(changed("counted_bytes", 2e8 - CACHE), truth()))

    def test_the_counters_decide_nothing_of_a_call_that_fits_the_cache(self):
        (models,) = [s for s in truth_sections(truth_records(), truth()) if s.title.startswith("Cost models")]
        assert "cached" in models.rows[0]


@pytest.mark.parametrize(("n", "text"), [(256 << 10, "256 KiB"), (60 << 20, "60 MiB"), (1 << 30, "1 GiB"), (12, "12 B")])
def test_sizes_are_written_as_people_do(n, text):
    assert text == size(n)


def test_a_title_with_a_bracket_stays_well_formed():
    ET.fromstring(render_svg("a < b & c", [Panel("p", "x", "y", {"s": {1.0: 2.0}}, log=True)]))
