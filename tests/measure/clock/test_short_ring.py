"""Rings that are too long to replay: the cache is filled between passes over a short one, and the figures are those of the long one."""

from dataclasses import replace

import pytest
from toys import CARRIED, CYCLE, QUICK, SCALE, SIZE, phase_cost, session_on, subject_of, with_call

from harness import Case, Traffic
from harness.measure.clock import time_cell, time_main
from harness.measure.clock.program import Bench
from harness.records import Status

SHORT = replace(QUICK, most_nodes=256)
"""A pass over the ring of a call that touches next to nothing has more nodes."""


def measured(kernel, settings=QUICK, session=None, **script):
    """The readings of a cell by metric."""
    return {r.metric: r for r in time_cell(subject_of(kernel), session or session_on(settings=settings, **script))}


def tiny(kernel, elements=16):
    """The kernel with a case of so few fp32 elements."""
    traffic = kernel.traffic(kernel.cases[0])
    less = Traffic(traffic.read_bytes * elements // SIZE, traffic.written_bytes * elements // SIZE)
    return replace(kernel, cases=[Case(N=elements, dtype="fp32", tags="smoke")], traffic=lambda case: less)


def whole(kernel):
    return measured(tiny(kernel))


def short(kernel):
    return measured(tiny(kernel), SHORT)


def test_a_ring_too_long_for_a_pass_is_as_cold_with_the_cache_filled_between_samples():
    evicted = short(SCALE)
    main, other = evicted["latency_us"], whole(SCALE)["latency_us"]
    assert main.value == pytest.approx(other.value, rel=0.03)
    assert evicted["latency_warm_us"].value < 0.95 * other.value
    assert ("graph_ring/2-evicted", "cold") == (main.columns["method"], main.columns["cache"])
    assert ("graph_ring/2", 385) == (other.columns["method"], other.columns["evidence"]["ring"])
    assert main.columns["evidence"]["ring"] == 128
    assert abs(main.columns["evidence"]["doubled"]) < 0.02


def test_a_pass_may_have_so_many_nodes_and_no_more():
    for most, method in ((385, "graph_ring/2"), (384, "graph_ring/2-evicted")):
        readings = measured(tiny(SCALE), replace(QUICK, most_nodes=most))
        assert readings["latency_us"].columns["method"] == method


def test_a_call_that_touches_some_bytes_does_not_take_a_ring_of_millions():
    session = session_on(cache_bytes=16 << 20, memory_bytes=1 << 30)  # 6,291,457 buffers
    readings = measured(tiny(SCALE, 1), session=session)
    assert readings["latency_us"].columns["method"] == "graph_ring/2-evicted"
    assert max(session.device.captured) <= session.device.limits.max_graph_nodes
    assert sum(session.device.captured) < 4 * session.settings.most_nodes


def test_figures_of_a_short_ring_say_that_the_cache_was_filled_and_those_of_one_buffer_do_not():
    methods = {metric: reading.columns.get("method") for metric, reading in short(CARRIED).items()}
    assert (methods["latency_us"], methods["chained_us"]) == ("graph_ring/2-evicted", "graph_chain/2-evicted")
    assert (methods["latency_warm_us"], methods["graph1_us"]) == ("graph_warm/2", "graph_single/1")


def test_a_chain_over_a_short_ring_is_as_slow_as_over_a_whole_one():
    assert short(CARRIED)["chained_us"].value == pytest.approx(whole(CARRIED)["chained_us"].value, rel=0.03)


def test_proving_a_short_ring_captures_half_of_it_once_and_twice_the_evictions():
    session = session_on(settings=replace(SHORT, side_sample_us=50.0))
    main = time_main(subject_of(tiny(SCALE)), session)
    before = len(session.device.captured)
    (reading, *_) = time_cell(subject_of(tiny(SCALE)), session, beside=False, main=main)
    probe, once, eviction, *floors = session.device.captured[before:]
    assert (1, 64, 1) == (probe, once, eviction)
    assert min(floors) > 128
    assert (128, 128) == (main.shape.slots, reading.columns["evidence"]["ring"])
    assert abs(reading.columns["evidence"]["doubled"]) < 0.02


def test_a_short_ring_between_whose_passes_nothing_is_evicted_is_refused(monkeypatch):
    capture = Bench.capture
    monkeypatch.setattr(Bench, "capture", lambda bench, steps, times=1, shared=None, evictions=0: capture(bench, steps, times, shared))
    readings = measured(tiny(SCALE), SHORT)
    assert (Status.INVALID, "not_cold") == (readings["latency_us"].status, readings["latency_us"].reason.partition(":")[0])


def test_a_cache_that_is_not_emptied_by_one_filling_is_filled_more_often():
    readings = measured(tiny(SCALE), SHORT, cache_bytes=80 << 10, claimed_cache_bytes=16 << 10)
    main = readings["latency_us"]
    assert (Status.OK, "graph_ring/2-evictedx2") == (main.status, main.columns["method"])
    assert main.value == pytest.approx(whole(SCALE)["latency_us"].value, rel=0.03)


def test_a_cycle_over_a_short_ring_is_the_mean_of_its_phases_each_after_the_cache_was_filled():
    readings, cycle = measured(tiny(CYCLE), SHORT, cost_us=phase_cost), measured(CYCLE, cost_us=phase_cost)
    assert (readings["latency_us"].columns["method"], cycle["latency_us"].columns["method"]) == ("graph_cycle/2-evicted", "graph_cycle/2")
    for metric in ("latency_us", "append_us", "worst_step_us"):
        assert readings[metric].value == pytest.approx(cycle[metric].value, rel=0.03)
    assert readings["fold_us"].columns["method"] == "graph_phase/3-evicted"


def test_code_of_more_launches_keeps_the_kind_of_ring_that_the_lease_has_proved():
    most = replace(QUICK, most_nodes=400)  # 385 buffers: a pass of one launch a call, and none of three
    first, other = session_on(settings=most), session_on(settings=most)
    measured(tiny(SCALE), session=first)
    other.facts = first.facts
    thrice = with_call(tiny(SCALE), lambda x: (x * 2).mul_(1.0).mul_(1.0))
    reading = time_cell(subject_of(thrice), other, code="other")[0]
    assert (Status.OK, "graph_ring/2") == (reading.status, reading.columns["method"])
    alone = measured(thrice, most)
    assert alone["latency_us"].columns["method"] == "graph_ring/2-evicted"
