"""The unit's own parts on a scripted device: what is read is what the script says."""

from __future__ import annotations

import pytest
from known_device import CACHE, known_session

from harness import metrics
from harness.measure.calibration import unit
from harness.measure.calibration.unit import calibrate_clock, calibrate_graphs, calibrate_memory, calibrate_ring

SMALL = (256 << 10, 1 << 20, 4 << 20)


def values(readings):
    return {r.metric: r.value for r in readings}


def test_the_clock_part_gives_tick_and_the_floor_of_every_mode():
    session = known_session(tick_us=0.1, launch_us=0.9, enqueue_us=4.0)
    found = values(calibrate_clock(session))
    assert found["tick_ns"] == pytest.approx(100.0)
    assert found["floor_us@device"] == pytest.approx(0.9, rel=0.02)
    assert found["floor_us@enqueue"] == pytest.approx(4.0, rel=0.05)
    assert found["floor_us@eager"] >= found["floor_us@enqueue"]
    assert found["floor_us@graph1"] > found["floor_us@pair"] + found["floor_us@device"]
    assert {f"{name}@{n}" for name in ("empty_us", "touch_us") for n in unit.GRIDS} <= set(found)
    assert found["touch_us@4096"] > found["touch_us@1"] > found["empty_us@1"]


def test_a_graph_costs_its_gap_and_its_nodes():
    session = known_session(launch_us=0.5, graph_gap_us=2.0, max_graph_nodes=500)
    found = values(calibrate_graphs(session))
    assert ["graph_replay_us@1", "graph_replay_us@16", "graph_replay_us@256", "graph_replay_us@500"] == [m for m in found if "replay" in m]
    assert found["graph_node_us@500"] == pytest.approx(0.5 + 2.0 / 500, rel=0.02)
    assert found["graph_node_us@16"] == pytest.approx(0.5 + 2.0 / 16, rel=0.05)
    assert found["graph_replay_us@256"] == pytest.approx(5.0 + 2.0 + 128, rel=0.01)  # on an idle device the host's enqueueing counts too


def test_bandwidth_is_the_memorys_cold_and_the_caches_warm(monkeypatch):
    monkeypatch.setattr(unit, "SIZES", SMALL)
    found = values(calibrate_memory(known_session(launch_us=0.01)))
    assert found[f"copy_gbps@{4 << 20}"] == pytest.approx(100, rel=0.03)
    assert found[f"read_gbps@{4 << 20}"] == pytest.approx(100, rel=0.03)
    assert found[f"warm_copy_gbps@{1 << 20}"] == pytest.approx(400, rel=0.06)
    assert found[f"warm_cold_ratio@{1 << 20}"] == pytest.approx(4, rel=0.05)
    assert f"warm_copy_gbps@{4 << 20}" not in found  # a pair of such buffers is no longer in the cache


def test_buffers_that_do_not_fit_are_left_out(monkeypatch):
    monkeypatch.setattr(unit, "SIZES", (256 << 10, 16 << 20))
    session = known_session(memory_bytes=66 << 20)
    assert [m for m in values(calibrate_memory(session)) if m.startswith("copy")] == [f"copy_gbps@{256 << 10}"]


def test_the_cold_curve_falls_when_the_ring_outgrows_the_cache():
    found = values(calibrate_ring(known_session(launch_us=0.01)))
    assert {f"ring_{name}_gbps@{m:g}" for name in ("copy", "read") for m in unit.MULTIPLES} == set(found)
    assert found["ring_copy_gbps@0.5"] == pytest.approx(400, rel=0.1)
    assert found["ring_copy_gbps@3"] == pytest.approx(100, rel=0.05)
    assert found["ring_read_gbps@5"] == pytest.approx(found["ring_read_gbps@3"], rel=0.02)


def test_every_figure_is_a_metric_of_the_table_and_says_how_it_was_taken(monkeypatch):
    monkeypatch.setattr(unit, "SIZES", SMALL[:1])
    session = known_session()
    readings = [*calibrate_clock(session), *calibrate_graphs(session), *calibrate_memory(session), *calibrate_ring(session)]
    assert {metrics.metric(r.metric).kind for r in readings} == {"calibration"}
    assert {r.columns["method"] for r in readings} == {"calibration/1"}
    assert {r.columns["clock"] for r in readings if r.metric.startswith(("floor_us@e", "graph_host"))} == {"host"}
    assert session.device.limits.last_level_cache_bytes == CACHE
