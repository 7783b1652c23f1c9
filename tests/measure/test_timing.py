"""What launches on one unit hand on to each other; the scripted device stands for a GPU."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "clock"))
from fake_device import FakeDevice, Script
from toys import QUICK

from harness.devices.table import load_devices
from harness.measure.clock import session, torch_device
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
