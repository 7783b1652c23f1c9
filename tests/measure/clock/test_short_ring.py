"""Rings that are too long to replay: the cache is filled between passes over a short one, and the figures are those of the long one."""

from dataclasses import replace

import pytest
import torch
from toys import BYTES, CARRIED, CYCLE, LENGTH, QUICK, SCALE, SIZE, phase_cost, session_on, subject_of, weighted, with_call

from harness import Case, Traffic
from harness.measure.clock import set_up, time_cell, time_main
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
    assert main.columns["evidence"]["ring"] == 120
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


def test_proving_a_short_ring_captures_half_of_it_once_and_nothing_else():
    session = session_on(settings=replace(SHORT, side_sample_us=50.0))
    main = time_main(subject_of(tiny(SCALE)), session)
    before = len(session.device.captured)
    (reading, *_) = time_cell(subject_of(tiny(SCALE)), session, beside=False, main=main)
    probe, once, *floors = session.device.captured[before:]
    assert (1, 60) == (probe, once)
    assert min(floors) > 120
    assert (120, 120) == (main.shape.slots, reading.columns["evidence"]["ring"])
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


def loaded(elements=16):
    """A call of which most is weights, so that it has a figure with its activations in the cache."""
    return replace(tiny(weighted(3 * elements), elements), traffic=lambda case: Traffic(4 * 4 * elements, 4 * elements))


def test_activations_are_in_the_cache_and_weights_are_not_where_it_is_filled_between_samples():
    whole, evicted = measured(loaded()), measured(loaded(), SHORT)
    serving = evicted["latency_serving_us"]
    assert ("graph_serving/2", "graph_serving/2-evicted") == (
        whole["latency_serving_us"].columns["method"],
        serving.columns["method"],
    )
    assert serving.value == pytest.approx(whole["latency_serving_us"].value, rel=0.03)
    assert evicted["latency_warm_us"].value < 0.97 * serving.value


def test_figures_beside_are_taken_with_the_cache_filled_as_often_as_the_proof_asks_for():
    evicted = measured(loaded(), SHORT, enqueue_us=0.01, cache_bytes=80 << 10, claimed_cache_bytes=16 << 10)
    honest = measured(loaded(), SHORT, enqueue_us=0.01)
    for metric, method in (("latency_serving_us", "graph_serving/2-evictedx2"), ("eager_us", "eager/3x2")):
        assert method == evicted[metric].columns["method"]
        assert evicted[metric].value == pytest.approx(honest[metric].value, rel=0.03)


def test_eager_calls_go_over_all_slots_that_there_are_and_not_over_those_of_a_sample():
    many = with_call(SCALE, lambda x: (x * 2).mul_(1.0).mul_(1.0).mul_(1.0).mul_(1.0).mul_(1.0))
    fast_host = {"enqueue_us": 0.01, "bandwidth_gbps": 0.1}
    evicted = measured(many, replace(QUICK, most_nodes=50), **fast_host)
    assert evicted["latency_us"].columns["method"] == "graph_ring/2-evicted"
    slots = evicted["latency_us"].columns["evidence"]["ring"], evicted["eager_us"].columns["evidence"]["ring"]
    assert slots[0] < slots[1] == QUICK.eager_calls
    assert evicted["eager_us"].columns["cache"] == "cold"
    assert evicted["eager_us"].value > evicted["latency_warm_us"].value + 1024 / 200  # its input comes from memory


def test_eager_cycles_that_use_their_slots_again_do_not_say_that_these_are_cold():
    cycle = measured(tiny(CYCLE), SHORT, cost_us=phase_cost)
    assert (cycle["eager_us"].columns["cache"], cycle["eager_us"].columns["evidence"]["ring"]) == ("warm", QUICK.eager_calls // LENGTH)


def test_code_that_keeps_what_it_loads_is_timed_over_a_whole_ring_or_not_at_all():
    """Filling the cache with other data does not displace that."""
    subject = subject_of(tiny(SCALE))
    reading = time_cell(subject, session_on(settings=SHORT), keeps=True)[0]
    assert ("graph_ring/2", 385) == (reading.columns["method"], reading.columns["evidence"]["ring"])
    (reading,) = time_cell(subject, session_on(settings=replace(SHORT, longest_ring=384)), keeps=True)
    assert (Status.INVALID, "not_cold") == (reading.status, reading.reason.partition(":")[0])
    assert "evict_last" in reading.reason
    evicting = session_on(settings=SHORT)
    time_cell(subject, evicting)
    (reading,) = time_cell(subject, evicting, code="other", keeps=True)  # base was timed so
    assert (Status.INVALID, "not_cold") == (reading.status, reading.reason.partition(":")[0])


def free_cursor(operation):
    """Times by bytes alone, but for the move of all cursors."""
    return 0.0 if any(t.dtype == torch.int32 and t.numel() > 100 for t in operation.tensors) else None


def test_a_cycles_phases_find_nothing_in_a_cache_that_holds_the_short_ring():
    script = {"cost_us": free_cursor, "cache_bytes": 256 << 10, "launch_us": 0.1, "memory_bytes": 64 << 20}
    evicted, whole = measured(CYCLE, replace(QUICK, most_nodes=50), **script), measured(CYCLE, **script)
    assert (evicted["latency_us"].columns["method"], whole["latency_us"].columns["method"]) == ("graph_cycle/2-evicted", "graph_cycle/2")
    for metric in ("latency_us", "append_us", "fold_us"):
        assert evicted[metric].value == pytest.approx(whole[metric].value, rel=0.05)
        assert evicted[metric].value > 0.9 * 2 * BYTES / 1e3


def test_a_cycle_has_no_figure_with_activations_in_the_cache_where_that_is_filled_between_samples():
    def make(case, generator):
        return {**CYCLE.make_inputs(case, generator), "w": generator.uniform((3 * case.N,), case.dtype)}

    def call(x, cursor, w):
        return w.view(-1, x.numel()).sum(0) + x + cursor[:1]

    traffic = Traffic(4 * 64, 64)
    kernel = replace(with_call(tiny(CYCLE), call), make_inputs=make, traffic=lambda case: traffic, activations=("x",))
    assert measured(kernel, cost_us=free_cursor)["latency_serving_us"].status == Status.OK
    reading = measured(kernel, SHORT, cost_us=free_cursor)["latency_serving_us"]
    assert (Status.SKIPPED, "serving_cycle") == (reading.status, reading.reason)


def test_a_cycle_over_a_short_ring_is_the_mean_of_its_phases_each_after_the_cache_was_filled():
    readings, cycle = measured(tiny(CYCLE), SHORT, cost_us=phase_cost), measured(CYCLE, cost_us=phase_cost)
    assert (readings["latency_us"].columns["method"], cycle["latency_us"].columns["method"]) == ("graph_cycle/2-evicted", "graph_cycle/2")
    for metric in ("latency_us", "append_us", "worst_step_us"):
        assert readings[metric].value == pytest.approx(cycle[metric].value, rel=0.03)
    assert readings["fold_us"].columns["method"] == "graph_phase/3-evicted"


def test_a_ring_that_is_longer_for_other_code_is_whole_where_the_lease_has_proved_a_whole_one():
    first, other = session_on(settings=replace(SHORT, most_nodes=385)), session_on(settings=replace(SHORT, most_nodes=384))
    measured(tiny(SCALE), session=first)
    other.facts = first.facts
    reading = time_cell(subject_of(tiny(SCALE)), other, code="other")[0]
    assert ("graph_ring/2", 385) == (reading.columns["method"], reading.columns["evidence"]["ring"])


def test_later_launches_use_as_many_slots_as_the_one_that_proved_the_ring():
    first = session_on(settings=SHORT)
    main = measured(tiny(SCALE), session=first)["latency_us"]
    later = session_on(settings=SHORT, launch_us=2.0)  # so slow that half as many would last for a sample
    later.facts = replace(first.facts, floors={}, canaries=[])
    assert main.columns["evidence"]["ring"] == measured(tiny(SCALE), session=later)["latency_us"].columns["evidence"]["ring"] == 120


def test_a_ring_that_is_evicted_for_its_nodes_is_allocated_alike_in_all_launches(monkeypatch):
    """Before the first has proved it, how many nodes a call has is not known when it is allocated."""
    allocated, make = [], set_up.make_bench
    monkeypatch.setattr(set_up, "make_bench", lambda *args, **sizes: allocated.append(sizes["allocated"]) or make(*args, **sizes))
    thrice = with_call(loaded(), lambda x, w, bias: (w.view(-1, x.numel()).sum(0) + x).mul_(1.0))
    first, later = (session_on(settings=replace(QUICK, most_nodes=400)) for _ in range(2))
    assert measured(thrice, session=first)["latency_us"].columns["method"] == "graph_ring/2-evicted"
    later.facts = first.facts
    assert measured(thrice, session=later)["latency_us"].columns["method"] == "graph_ring/2-evicted"
    assert len(set(allocated)) == 1 < len(allocated)


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
