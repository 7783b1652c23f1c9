"""What a unit's sensors showed is part of the records of the cells that were measured meanwhile; no GPU is needed here."""

import dataclasses
import json
import os
import threading
import time
from pathlib import Path

import pytest

from harness.devices.telemetry import Summary
from harness.devices.units import Unit
from harness.dispatch import worker
from harness.dispatch.launcher import Launch
from harness.dispatch.local import LocalDispatcher
from harness.dispatch.protocol import ArmCode, CellDone, RunContext
from harness.dispatch.supervisor import Supervisor
from harness.plan.jobs import Job, Turn
from harness.records import Cell
from harness.store.schema import SCHEMA
from harness.store.tables import from_table, to_table

GPU = Unit("GPU-aaaa0000", "h200", "NVIDIA H200", 150_000_000_000, {"CUDA_VISIBLE_DEVICES": "GPU-aaaa0000"}, "570.10", "none")
FIRST, SECOND = (Cell("scale", "double", f"N={n},dtype=fp32", "h200") for n in (8, 9))
SEEN = Summary(12, 1965.0, 1980.0, 345.5, 41.0, ["power_cap"], others=0)


class Reader:
    """Sensors that saw the same in every stretch of time, or `first` in the first stretches, one after another."""

    def __init__(self, seen=SEEN, first=()):
        self.seen, self.first, self.asked, self.closed = seen, list(first), [], False

    def within(self, *stretches):
        self.asked.append(stretches)
        return self.first.pop(0) if self.first else self.seen

    def close(self):
        self.closed = True


class Server:
    """A fork server whose launches say what a test has them say."""

    engine_cache = Path("engine")

    def __init__(self, *messages):
        self.messages = messages

    def launch(self, name, spec, records, log):
        launch, pipe = Launch(name), os.dup(records)

        def say():
            with os.fdopen(pipe, "wb", buffering=0) as stream:
                for message in (*self.messages, {"type": "closed"}):
                    stream.write(json.dumps(message).encode() + b"\n")
                    time.sleep(0.01)
            launch.status = 0
            launch.ended.set()

        threading.Thread(target=say, daemon=True).start()
        return launch


def begin(cell):
    return {"type": "begin", "cell": str(cell)}


def aside(cell):
    return {"type": "aside", "cell": str(cell)}


def end(cell, evidence=None):
    columns = {} if evidence is None else {"evidence": evidence}
    reading = {"metric": "latency_us", "value": 1.5, "status": "ok", "reason": None, "columns": columns}
    return {"type": "end", "cell": str(cell), "started_at": "2026-01-31T12:00:00+00:00", "duration": 0.5, "readings": [reading]}


@pytest.fixture
def context(tmp_path):
    return RunContext("r1", {"head": ArmCode(None, "t", False, "c", tmp_path)}, tmp_path, tmp_path, {"latency": "d"})


def job(*cells, on="unit", kind="latency"):
    return Job("j1", kind, on, "scale", "h200", cells, (Turn(0, cells),), 30.0, 1.0)


def records(context, reader, *messages, cells=(FIRST,), kind="latency"):
    server = Server(*messages)
    supervisor = Supervisor(context, lambda: server, GPU, threading.Event(), reader)
    return [record for done in supervisor.run(job(*cells, kind=kind)) if done.vouched for record in done.records]


def test_a_record_says_what_the_sensors_showed_beside_what_the_launch_says(context):
    (record,) = records(context, Reader(), begin(FIRST), end(FIRST, {"ring": 3}))
    assert {"ring": 3, "telemetry": dataclasses.asdict(SEEN)} == record.evidence


def test_each_cell_is_asked_about_from_its_begin_to_its_end_and_a_timed_job_as_a_whole(context):
    reader, before = Reader(), time.monotonic_ns()
    records(context, reader, begin(FIRST), end(FIRST), begin(SECOND), end(SECOND), cells=(FIRST, SECOND))
    *cells, whole = [stretch for (stretch,) in reader.asked]
    instants = [before, whole[0], *(instant for stretch in cells for instant in stretch), whole[1], time.monotonic_ns()]
    assert len(cells) == 2
    assert sorted(instants) == instants
    assert all(late - early > 5_000_000 for early, late in cells)  # the launch takes 10 ms over each


def test_a_cell_that_was_put_aside_is_asked_about_in_both_its_parts(context):
    reader = Reader()
    first = [message for cell in (FIRST, SECOND) for message in (begin(cell), aside(cell))]
    second = [message for cell in (FIRST, SECOND) for message in (begin(cell), end(cell))]
    records(context, reader, *first, *second, cells=(FIRST, SECOND))
    (main, rest), (other_main, other_rest), _ = reader.asked
    instants = [instant for stretch in (main, other_main, rest, other_rest) for instant in stretch]
    assert sorted(instants) == instants
    assert all(late - early > 5_000_000 for early, late in (main, other_main, rest, other_rest))


@pytest.mark.parametrize("reader", [None, Reader(seen=None)], ids=["no sensors", "no sample"])
def test_what_was_not_seen_is_not_told(context, reader):
    (record,) = records(context, reader, begin(FIRST), end(FIRST, {"ring": 3}))
    assert {"ring": 3} == record.evidence


def test_a_launch_cannot_speak_for_the_sensors(context):
    (record,) = records(context, None, begin(FIRST), end(FIRST, {"telemetry": {"samples": 9}}))
    assert {} == record.evidence


def test_a_cell_that_did_not_begin_has_no_stretch(context):
    reader = Reader(first=[None])
    (record,) = records(context, reader, end(FIRST))
    assert ({}, 1) == (record.evidence, len(reader.asked))  # of the job


class TestATimeThatTheUnitWasNotFitFor:
    """It is stored as invalid, with the evidence; what else the sensors saw is only recorded."""

    @pytest.mark.parametrize(
        ("seen", "reason"),
        [
            ({"throttled": ["thermal"]}, "throttled: thermal while it was timed"),
            ({"others": 1}, "contended: another process computed on the unit"),
        ],
        ids=["throttled", "contended"],
    )
    def test_has_no_value(self, context, seen, reason):
        unfit = dataclasses.replace(SEEN, **seen)
        spoilt, kept = records(context, Reader(first=[unfit]), begin(FIRST), end(FIRST), begin(SECOND), end(SECOND), cells=(FIRST, SECOND))
        assert ("invalid", None, reason) == (spoilt.status, spoilt.value, spoilt.reason)
        assert dataclasses.asdict(unfit) == spoilt.evidence["telemetry"]
        assert ("ok", 1.5, None) == (kept.status, kept.value, kept.reason)

    def test_is_kept_under_a_power_cap(self, context):
        (record,) = records(context, Reader(), begin(FIRST), end(FIRST))
        assert ("ok", ["power_cap"]) == (record.status, record.evidence["telemetry"]["throttled"])

    def test_is_a_time_and_no_error(self, context):
        unfit = dataclasses.replace(SEEN, throttled=["thermal"], others=1, changed=["partition from none to mig"])
        (record,) = records(context, Reader(unfit), begin(FIRST), end(FIRST), kind="correctness")
        assert ("ok", 1.5) == (record.status, record.value)

    def test_is_each_of_a_job_whose_unit_is_another_at_its_end(self, context):
        changed = dataclasses.replace(SEEN, changed=["partition from none to mig"])
        reader = Reader(changed, first=[SEEN, SEEN])
        found = records(context, reader, begin(FIRST), end(FIRST), begin(SECOND), end(SECOND), cells=(FIRST, SECOND))
        assert [(FIRST, "ok"), (SECOND, "ok"), (FIRST, "invalid"), (SECOND, "invalid")] == [(r.cell, r.status) for r in found]
        assert {"unit_changed: partition from none to mig"} == {r.reason for r in found[2:]}
        assert [(r.launch, r.position) for r in found[:2]] == [(r.launch, r.position) for r in found[2:]]


def test_the_store_gives_back_what_the_sensors_showed(context):
    written = records(context, Reader(), begin(FIRST), end(FIRST))
    (read,) = from_table(to_table(written, "r1"), "r1")
    assert dataclasses.asdict(SEEN) == read.evidence["telemetry"]


def test_the_schema_has_every_field_of_a_summary():
    names = SCHEMA.field("evidence").type.field("telemetry").type.names
    assert [field.name for field in dataclasses.fields(Summary)] == names


def events(context, monkeypatch, jobs, unit=GPU):
    """What the local dispatcher yields on a machine with one unit, and the readers it started: (UUID, environment, reader)."""
    started = []

    def start(uuid, env):
        started.append((uuid, env, Reader()))
        return started[-1][2]

    monkeypatch.setattr(worker, "TelemetryReader", start)
    monkeypatch.setattr(worker.Servers, "get", lambda *_: Server(begin(FIRST), end(FIRST)))
    dispatcher = LocalDispatcher(1)
    dispatcher._units = [unit]
    dispatcher.submit(context, jobs)
    return [event for event in dispatcher.events() if isinstance(event, CellDone)], started


def test_a_gpu_is_watched_while_its_jobs_run(context, monkeypatch):
    monkeypatch.setenv("CANARY_TOKEN", "secret")
    done, started = events(context, monkeypatch, [job(FIRST), job(FIRST)])
    assert [dataclasses.asdict(SEEN)] * 2 == [event.records[0].evidence["telemetry"] for event in done]
    ((uuid, environment, reader),) = started
    assert ("GPU-aaaa0000", "GPU-aaaa0000", True) == (uuid, environment["CUDA_VISIBLE_DEVICES"], reader.closed)
    assert "CANARY_TOKEN" not in environment


def test_what_runs_on_the_host_is_not_watched(context, monkeypatch):
    done, started = events(context, monkeypatch, [job(FIRST, on="host")])
    assert ([{}], []) == ([event.records[0].evidence for event in done], started)
