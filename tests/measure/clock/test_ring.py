from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import Traffic
from harness.devices.table import load_devices
from harness.measure.clock.device import Limits
from harness.measure.clock.ring import Footprint, RingPlan, estimate_bytes, fit_repetitions, footprint, is_warm, plan_ring, split

LIMITS = Limits(last_level_cache_bytes=60_000_000, max_graph_nodes=2000, usable_memory_bytes=10**11, peak_gbps=4800, warm_up_s=0.5)


def limits_of(name):
    row = load_devices()[name]
    return replace(LIMITS, last_level_cache_bytes=row.last_level_cache_bytes, max_graph_nodes=row.max_graph_nodes)


def test_a_row_of_5120_bf16_needs_5861_buffers_on_60_mb():
    touched = footprint(20_480, 20_480, 0, Traffic(20_480, 10_240)).touched
    assert plan_ring(touched, LIMITS, 3).slots == 5861


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_a_planned_ring_is_cold_and_no_larger_than_needed(touched, cache):
    plan = plan_ring(touched, replace(LIMITS, last_level_cache_bytes=cache), 3)
    assert plan.is_cold(plan.slots, plan.slots, 0, 3)
    assert not RingPlan(plan.slots - 1, touched, cache).is_cold(plan.slots - 1, plan.slots - 1, 0, 3)


def test_m01_a_graph_that_touches_part_of_the_ring_is_not_cold():
    plan = RingPlan(slots=64, touched=4_194_304, cache_bytes=52_428_800)
    assert plan.reuse_bytes(10) < 3 * plan.cache_bytes
    assert not plan.is_cold(10, 10, 0, 3)
    assert plan.is_cold(64, 128, 0, 3)


def test_a_ring_too_long_to_replay_is_cold_by_what_is_evicted_between_passes_alone():
    plan = plan_ring(6, LIMITS, 3, growth=2)
    short = plan.evicted(1000)
    assert (plan.slots > 30_000_000, short.slots, short.evictions) == (True, 1000, 2)
    assert short.is_cold(1000, 1000, 2, 3)
    assert not short.is_cold(1000, 2000, 2, 3)  # a buffer is used twice between
    assert not short.is_cold(1000, 1000, 1, 3)
    assert not short.is_cold(1000, 1000, 0, 3)
    assert not plan.is_cold(plan.slots, plan.slots, 2, 3)


def test_m01_a_ring_beyond_the_node_cap_is_split_over_graphs_and_touched_whole():
    plan = plan_ring(4_194_304, replace(LIMITS, last_level_cache_bytes=52_428_800), 3)
    parts = split([1] * plan.slots, cap=10)
    assert max(part.stop - part.start for part in parts) <= 10
    assert sum(part.stop - part.start for part in parts) == plan.slots


def test_m05_the_cache_comes_from_the_table_and_not_from_what_the_runtime_reports():
    plan = plan_ring(4 << 20, limits_of("mi300x"), 3)
    assert plan.slots * plan.touched >= 768 << 20


def test_m06_graphs_on_hip_are_capped_and_replayed_more_often():
    cap = limits_of("mi300x").max_graph_nodes
    captured, replays = fit_repetitions(1024, nodes=3, cap=cap)
    assert captured * 3 <= cap == 512
    assert captured * replays == 1024


@given(st.lists(st.integers(1, 40), min_size=1, max_size=300), st.integers(1, 500))
def test_split_keeps_order_covers_all_and_respects_the_cap(nodes, cap):
    parts = split(nodes, cap)
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(len(nodes)))
    assert all(sum(nodes[part]) <= cap or part.stop - part.start == 1 for part in parts)


@given(st.integers(1, 30_000), st.integers(1, 2000))
def test_split_of_equal_calls_is_even(count, cap):
    sizes = [part.stop - part.start for part in split([1] * count, cap)]
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-count // cap)


@given(st.integers(0, 14), st.integers(1, 30_000), st.integers(1, 2000))
def test_repetitions_are_split_without_a_rest(exponent, nodes, cap):
    captured, replays = fit_repetitions(1 << exponent, nodes, cap)
    assert captured * replays == 1 << exponent
    assert captured == 1 or captured * nodes <= cap


def test_state_in_place_is_touched_once_although_it_is_read_and_written():
    one = footprint(allocated=1_000_000, dense=1_000_000, mutated=900_000, traffic=Traffic(1_000_000, 950_000))
    assert one == Footprint(allocated=1_000_000, outputs=50_000, touched=1_050_000)


def test_slots_of_state_that_no_call_touches_do_not_count_as_touched():
    one = footprint(allocated=8_000_000, dense=8_000_000, mutated=8_000_000, traffic=Traffic(1_000_000, 1_000_000))
    assert one.touched == 1_000_000


def test_a_call_that_touches_nothing_cannot_be_made_cold():
    with pytest.raises(ValueError, match="traffic"):
        plan_ring(0, LIMITS, 3)


@pytest.mark.parametrize(("touched", "expected"), [(36_000_000, True), (36_000_001, False)])
def test_warm_is_refused_over_60_percent_of_the_cache(touched, expected):
    assert is_warm(touched, LIMITS, 0.6) is expected


def test_memory_counts_every_slot_every_programs_outputs_scratch_and_the_making_of_a_content():
    assert estimate_bytes(Footprint(100, 10, 110), slots=7, programs=3) == 7 * 100 + 5 * 100 + 21 * 10 + 10
