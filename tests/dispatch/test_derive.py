import pytest

from harness.dispatch.derive import speedups
from harness.records import Record


def time(variant, value, position=0, status="ok", lease="one", **more):
    return Record(
        kernel="k", variant=variant, case="N=1,dtype=fp32", dtype="fp32", device="h200", kind="latency", metric="latency_us",
        value=value, status=status, position=position, lease_id=lease, samples=[1.0], converged=True, **more,
    )  # fmt: skip


def found(records):
    return [(r.variant, r.position, r.metric, r.value, r.unit_of_measure, r.samples) for r in speedups(records, {"k": "plain"})]


def test_a_variant_is_held_against_the_baseline_of_its_own_turn():
    records = [time("plain", 6.0), time("fast", 2.0), time("plain", 8.0, 1), time("fast", 2.0, 1)]
    assert found(records) == [("fast", 0, "speedup", 3.0, "x", None), ("fast", 1, "speedup", 4.0, "x", None)]


def test_nothing_follows_from_a_time_that_is_missing():
    assert found([time("plain", None, status="invalid"), time("fast", 2.0)]) == []


def test_times_of_two_leases_are_not_divided():
    assert found([time("plain", 6.0), time("fast", 2.0, lease="another")]) == []
    records = [time("plain", 6.0), time("plain", 8.0, lease="another"), time("fast", 2.0)]
    assert found(records) == [("fast", 0, "speedup", 3.0, "x", None)]


@pytest.mark.parametrize(("name", "one", "other"), [("cache", "cold", "warm"), ("clock", "device_event", "host")])
def test_times_of_two_caches_or_clocks_are_not_divided(name, one, other):
    assert found([time("plain", 6.0, **{name: one}), time("fast", 2.0, **{name: other})]) == []


def test_a_speedup_between_two_methods_names_both():
    (mixed,) = speedups([time("plain", 6.0, method="graph_ring/2-evicted"), time("fast", 2.0, method="graph_ring/2")], {"k": "plain"})
    assert (3.0, "graph_ring/2-evicted over graph_ring/2") == (mixed.value, mixed.method)
    (alike,) = speedups([time("plain", 6.0, method="graph_ring/2"), time("fast", 2.0, method="graph_ring/2")], {"k": "plain"})
    assert "graph_ring/2" == alike.method
