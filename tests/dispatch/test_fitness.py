"""What a unit's sensors saw, and what becomes of the times that were taken meanwhile."""

import json
from pathlib import Path

import pytest

from harness.devices.sensors import Throttle
from harness.devices.telemetry import Summary
from harness.dispatch.fitness import TIMED, changed, invalidated, unfit
from harness.records import Record

CASES = Path(__file__).parents[1] / "cases/measure.jsonl"


def seen(throttled=(), **more):
    return Summary(40, 1200.0, 1965.0, 345.5, 41.0, list(throttled), **more)


def record(metric, value, status="ok", **columns):
    names = {"kernel": "toy", "variant": "only", "case": "N=8,dtype=fp32", "dtype": "fp32", "device": "h200", "kind": "latency"}
    return Record(metric=metric, value=value, status=status, reason=columns.pop("reason", None), **names, **columns)


def test_only_times_depend_on_how_the_unit_fared():
    assert {"latency"} == TIMED


@pytest.mark.parametrize(
    ("throttled", "expected"),
    [
        ([], None),
        (["power_cap"], None),
        (["clock_setting", "other"], None),
        (["thermal"], "throttled: thermal while it was timed"),
        (["hardware_slowdown", "power_cap"], "throttled: hardware_slowdown while it was timed"),
        (["power_brake", "thermal"], "throttled: power_brake, thermal while it was timed"),
    ],
    ids=lambda value: "+".join(value) or "none" if isinstance(value, list) else "",
)
def test_heat_and_hardware_void_a_time_and_a_power_cap_does_not(throttled, expected):
    assert expected == unfit(seen(throttled))


def test_every_reason_to_throttle_is_either_void_or_recorded():
    void = {reason for reason in Throttle if unfit(seen([reason]))}
    assert {Throttle.THERMAL, Throttle.HARDWARE_SLOWDOWN, Throttle.POWER_BRAKE} == void


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (None, None),
        (0, None),
        (1, "contended: another process computed on the unit"),
        (3, "contended: 3 other processes computed on the unit"),
    ],
    ids=["not known", "none", "one", "three"],
)
def test_another_client_voids_a_time_where_it_is_known(others, expected):
    assert expected == unfit(seen(others=others))


def test_a_unit_that_is_another_than_it_was_voids_a_job():
    reason = "unit_changed: partition from none to mig; uncorrected memory errors from 0 to 2"
    summary = seen(changed=["partition from none to mig", "uncorrected memory errors from 0 to 2"])
    assert (reason, reason) == (unfit(summary), changed(summary))


def test_without_sensors_nothing_is_void():
    assert (None, None) == (unfit(None), changed(None))


def test_a_void_record_keeps_how_it_was_taken_and_loses_its_numbers():
    before = record("latency_us", 1.5, samples=[1.4, 1.6], converged=True, method="graph_ring/1", evidence={"ring": 3})
    (after,) = invalidated([before], "throttled: thermal")
    assert ("invalid", "throttled: thermal") == (after.status, after.reason)
    assert (None, None, None) == (after.value, after.samples, after.converged)
    assert ("graph_ring/1", {"ring": 3}) == (after.method, after.evidence)


def test_what_failed_or_was_left_out_says_what_it_said():
    told = (record("rel_l2_error", 0.5, "wrong", reason="beyond_tolerance"), record("gbps", None, "skipped", reason="launch_bound"))
    assert told == invalidated(told, "throttled: thermal")


def test_without_a_reason_every_record_stands():
    told = (record("latency_us", 1.5),)
    assert told == invalidated(told, None)


def test_m09_a_launch_that_was_throttled_throughout_stores_no_number():
    case = json.loads(next(line for line in CASES.read_text().splitlines() if '"m09"' in line))["input"]
    taken = [record("latency_us", 5.0, samples=[5.0] * case["samples"]), record("gbps", 100.0)]
    after = invalidated(taken, unfit(seen(["thermal"])))
    assert [("invalid", None, None)] * 2 == [(r.status, r.value, r.samples) for r in after]
