"""A launch of the unit's own parts: what it sends, and what becomes of a part that fails."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from driven import drive
from known_device import known_session

from harness.measure.calibration import launch
from harness.measure.calibration.launch import measure_parts
from harness.measure.calibration.parts import JOBS_DIR, Part, cell_of
from harness.measure.clock import InvalidTiming, Reason
from harness.measure.subject import Reading
from harness.records import Cell

HERE = Path(__file__).parent


def cells(*parts):
    return [str(cell_of(part, "h200")) for part in parts]


@pytest.fixture
def timer():
    return SimpleNamespace(session=known_session())


def sent(timer, *parts):
    messages = []
    bad = measure_parts(cells(*parts), timer, messages.append)
    return messages, bad


def test_a_part_is_a_cell():
    cell = Cell.parse(cells(Part.CLOCK)[0])
    assert (cell.kernel, cell.variant, cell.device, cell.dtype) == ("unit", "clock", "h200", "any")


def test_each_part_begins_and_ends_with_plain_readings(timer):
    messages, bad = sent(timer, Part.GRAPHS)
    assert ["begin", "end"] == [m["type"] for m in messages]
    assert bad == []
    json.dumps(messages, allow_nan=False)


def test_a_part_that_is_invalid_or_crashes_costs_itself_alone(timer, monkeypatch):
    def breach(session):
        raise InvalidTiming(Reason.HOST_CLOCK, "off")

    def crash(session):
        raise RuntimeError("no such\nkernel")

    monkeypatch.setattr(launch, "calibrate_clock", breach)
    monkeypatch.setattr(launch, "calibrate_memory", crash)
    monkeypatch.setattr(launch, "calibrate_graphs", lambda session: [Reading("tick_ns", 1.0)])
    messages, bad = sent(timer, Part.CLOCK, Part.MEMORY, Part.GRAPHS)
    ends = [m["readings"][0] for m in messages if m["type"] == "end"]
    assert [("invalid", "host_clock: off"), ("crash", "RuntimeError: no such kernel"), ("ok", None)] == [
        (r["status"], r["reason"]) for r in ends
    ]
    assert len(bad) == 2


def test_a_part_without_room_is_skipped(timer, monkeypatch):
    monkeypatch.setattr(launch, "known_copies", lambda session: [])
    messages, _ = sent(timer, Part.COPIES)
    assert ("skipped", "memory") == tuple(messages[-1]["readings"][0][name] for name in ("status", "reason"))


def test_nothing_is_measured_where_the_clock_was_caught_lying(timer):
    timer.session.fault = InvalidTiming(Reason.CONTENDED, "moved")
    messages, _ = sent(timer, Part.CLOCK)
    assert [None] == [r["metric"] for r in messages[-1]["readings"]]


@pytest.mark.slow
def test_the_job_file_runs_in_a_launch_as_any_other(repository, tmp_path):
    asked = cells(*Part)
    request = {"root": str(repository.root), "jobs_dir": str(JOBS_DIR), "kind": "calibration", "cells": asked}
    messages = drive(HERE / "drive.py", tmp_path, request)
    assert [*["begin", "end"] * len(asked), "closed"] == [m["type"] for m in messages]
    assert asked == [m["cell"] for m in messages if m["type"] == "end"]
    readings = [r for m in messages if m["type"] == "end" for r in m["readings"]]
    assert {"ok"} == {r["status"] for r in readings}, readings
    assert json.loads((tmp_path / "lease.json").read_text())["canaries"]
