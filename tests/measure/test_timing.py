"""What launches on one unit hand on to each other; the scripted device stands for a GPU."""

import contextlib
import json
import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "clock"))
from fake_device import FakeDevice, Script
from toys import QUICK, SCALE, subject_of

from harness.devices.table import load_devices
from harness.measure import sources
from harness.measure.clock import launches, session, set_up, torch_device
from harness.measure.timing import Timer

USUAL, SLOWER = 1.0, 1.2
"""Factors of what the unit takes."""


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Runs a launch on one unit and gives its timer, closed.

    Args of it:
        factors: how slow the unit is at its first canary and at its last.
        timed: whether a cell comes as far as the clock.
        killed: whether it ends before it can hand on anything.
    """
    script = Script()
    monkeypatch.setattr(torch_device, "TorchDevice", lambda row, cache: FakeDevice(script))
    monkeypatch.setattr(session, "ClockSession", partial(session.ClockSession, settings=QUICK))

    def run(before=USUAL, after=None, *, first=False, timed=True, killed=False):
        timer = Timer(load_devices()["h200"], 1, tmp_path / "lease.json", first=first)
        if timed:
            script.slowdown = lambda replays: before
            assert timer.session.facts.canaries
            script.slowdown = lambda replays: before if after is None else after
        if not killed:
            timer.close()
        return timer

    return run


def test_a_launch_is_held_against_the_first_of_its_lease(launch):
    assert launch(first=True).fault is None
    assert launch(SLOWER).fault.startswith("contended: the arithmetic canary moved from 50")


def test_a_launch_that_faulted_hands_on_nothing(launch, tmp_path):
    assert launch(USUAL, SLOWER, first=True).fault is not None
    assert not (tmp_path / "lease.json").exists()


@pytest.mark.parametrize(
    "ended",
    [{"after": 2 * SLOWER}, {"killed": True}, {"timed": False}, {"timed": False, "killed": True}],
    ids=["by a fault", "killed", "without a time", "killed before its first time"],
)
def test_a_lease_is_never_held_against_another_ones_canaries_however_its_first_launch_ended(launch, ended):
    launch(USUAL, first=True)
    launch(SLOWER, first=True, **ended)
    second = launch(SLOWER)
    assert (None, 2) == (second.fault, len(second.session.facts.canaries))


def test_what_holds_for_the_unit_is_handed_from_lease_to_lease(launch, tmp_path):
    found = launch(first=True, killed=True)
    clock = found.session.clock
    found.close()
    launch(first=True, timed=False)
    handed = json.loads((tmp_path / "lease.json").read_text())
    assert ([], vars(clock)) == (handed["canaries"], handed["clock"])
    assert clock == launch(first=True).session.facts.clock


@pytest.fixture
def timed(launch, monkeypatch, tmp_path):
    """Times a toy in a launch of its own, which puts off what it can: what it gave, and the timer, not closed."""
    monkeypatch.setattr(sources, "launcher_digest", lambda kernel, variant: "digest")
    monkeypatch.setattr(launches, "record_launches", lambda: contextlib.nullcontext([]))  # a toy launches no kernel of Triton's

    def run(puts_off=True, **asked):
        timer = Timer(load_devices()["h200"], 1, tmp_path / "lease.json", **asked)
        timer.puts_off = subject_of(SCALE).cell if puts_off else None
        return timer._on_device(subject_of(SCALE)), timer

    return run


def metrics(readings):
    return [r.metric for r in readings]


def test_what_only_some_launches_measure_is_put_off_and_then_gives_all_readings(timed):
    timing, timer = timed(first=True)
    cell = subject_of(SCALE).cell
    assert ((), [cell]) == (timing.readings, list(timer.put_off))
    readings = timer.put_off[cell]()
    assert timing.samples_us == tuple(readings[0].columns["samples"])
    assert {"latency_us", "eager_us", "gbps"} <= set(metrics(readings))
    assert {"digest"} == {r.columns["launcher_digest"] for r in readings}


def test_a_launch_with_nothing_to_put_off_gives_its_readings_at_once(timed):
    _, timer = timed(first=True)
    for rest in timer.put_off.values():
        rest()
    timer.close()
    timing, later = timed(first=False, beside=False)
    assert ({}, "latency_us") == (later.put_off, timing.readings[0].metric)
    assert "eager_us" not in metrics(timing.readings)
    assert timing.samples_us == timing.readings[0].columns["samples"]


def test_code_that_no_launch_has_proved_puts_its_proof_off(timed):
    timing, timer = timed(first=True, beside=False)
    (rest,) = timer.put_off.values()
    assert timing.readings == ()
    assert "eager_us" not in metrics(rest())
    assert timer.session.facts.rings


def test_a_main_figure_that_cannot_be_taken_is_told_at_once(timed, monkeypatch):
    monkeypatch.setattr(set_up, "estimate_bytes", lambda *args: 1 << 60)
    timing, timer = timed(first=True)
    assert ([("skipped", "memory")], {}) == ([(r.status, r.reason) for r in timing.readings], timer.put_off)


def test_nothing_is_put_off_unless_the_cell_in_hand_may_be(timed):
    timing, timer = timed(first=True, puts_off=False)
    assert ({}, "latency_us") == (timer.put_off, timing.readings[0].metric)
    assert "eager_us" in metrics(timing.readings)


def test_the_unit_is_known_before_the_first_cell(launch):
    facts = launch(first=True).session.facts
    assert facts.clock
    assert facts.ceilings
