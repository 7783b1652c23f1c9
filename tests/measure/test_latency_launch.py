"""Launches of the latency job from their request to their last message, on a scripted device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "clock"))
from driven import drive

from harness.authoring.workspace import bundled_jobs

HERE = Path(__file__).parent
CELLS = [f"scale/double/N={n},dtype=fp32@h200" for n in (256, 320)]
SPEC = {"jobs_dir": str(bundled_jobs()), "kind": "latency", "cells": CELLS}


@pytest.fixture
def launched(repository, tmp_path):
    """Runs a launch of two cells in the lease of the test: the messages that it sends."""
    text = (repository.root / "kernels/scale.py").read_text()
    repository.write("kernels/scale.py", text.replace("N=8,", "N=256,").replace("N=9,", "N=320,"))

    def run(**asked):
        return drive(HERE / "latency_drive.py", tmp_path, SPEC | {"root": str(repository.root)} | asked)

    return run


def of(messages):
    """What a launch says of its cells, before it says that it has closed."""
    *cells, last = messages
    assert last == {"type": "closed"}
    return [(message["type"], CELLS.index(message["cell"])) for message in cells]


def readings(messages):
    """The readings of each cell by metric."""
    return [{r["metric"]: r for r in message["readings"]} for message in messages if message["type"] == "end"]


def test_the_first_launch_takes_the_main_figure_of_every_cell_before_the_rest_of_any_and_later_ones_have_no_rest(launched):
    first = launched(first=True, beside=True)
    assert of(first) == [
        *[("begin", 0), ("aside", 0), ("begin", 1), ("aside", 1)],
        *[("begin", 0), ("end", 0), ("begin", 1), ("end", 1)],
    ]
    later = launched(first=False, beside=False)
    assert of(later) == [("begin", 0), ("end", 0), ("begin", 1), ("end", 1)]
    for one, other in zip(readings(first), readings(later), strict=True):
        assert {"ok"} == {r["status"] for r in [*one.values(), *other.values()] if r["metric"] != "latency_warm_us"}
        assert one["latency_us"]["value"] == pytest.approx(other["latency_us"]["value"], rel=0.01)
        assert one["latency_us"]["columns"]["evidence"]["doubled"] == other["latency_us"]["columns"]["evidence"]["doubled"]
        assert one["latency_us"]["columns"]["samples"]
        assert {"eager_us", "enqueue_us", "graph1_us"} == set(one) - set(other) - {"latency_warm_us"}


def test_a_launch_without_cells_finds_out_about_the_unit_for_those_after_it(launched, tmp_path):
    assert [] == launched(first=True, beside=True, cells=[])
    unit = json.loads((tmp_path / "lease.json").read_text())
    assert all(unit[name] for name in ("clock", "ceilings", "filling", "canaries"))
    assert not unit["rings"]
    cells = readings(launched(first=True, beside=True))
    after = json.loads((tmp_path / "lease.json").read_text())
    assert [unit[name] for name in ("clock", "ceilings", "filling")] == [after[name] for name in ("clock", "ceilings", "filling")]
    assert 2 == len(after["canaries"])
    assert {"ok"} == {found["latency_us"]["status"] for found in cells}


def test_a_job_file_of_the_users_own_is_given_its_readings_at_once(launched, tmp_path):
    own = tmp_path / "jobs/latency.py"
    own.parent.mkdir()
    own.write_text((bundled_jobs() / "latency.py").read_text() + "\n# ours\n")
    assert of(launched(first=True, beside=True, jobs_dir=str(own.parent))) == [("begin", 0), ("end", 0), ("begin", 1), ("end", 1)]
