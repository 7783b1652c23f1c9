"""What runs on a node, without Ray: who it says it is, what it takes, and how what was said is fetched."""

import json
import threading
import time
from dataclasses import replace

import pytest

import harness.dispatch.ray.station as station_module
from harness.devices.units import Unit
from harness.dispatch.ray.code import digest, pack
from harness.dispatch.ray.messages import cell_from_text, context_to_json, job_to_json
from harness.dispatch.ray.station import Station
from harness.plan.jobs import Turn


@pytest.fixture(autouse=True)
def _not_abandoned(monkeypatch):
    """Nobody asks these stations for long: a minute later they would end the process, which here is that of all tests."""
    monkeypatch.setattr(Station, "_end_when_abandoned", lambda self: None)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def prepared(context):
    """A station on a simulated unit that has taken the run's code."""
    station = Station("b200", 0, simulated=True)
    assert None is json.loads(station.hello())["problem"]
    assert {"problem": None} == prepare(station, context)
    yield station
    station.close()


def prepare(station, context, data=None):
    tar = pack(context.arms["head"].root)
    said = json.dumps(context_to_json(context, {"head": digest(tar)})).encode()
    return json.loads(station.prepare(said, "node", [digest(tar)], tar if data is None else data))


def start(station, job, attempt=1):
    station.start(json.dumps(job_to_json(job)).encode(), attempt)


def lines(station, after=0, until=1):
    """What was said from `after` on, once there are `until` lines."""
    deadline = time.monotonic() + 30
    while len(found := json.loads(station.poll(after, 0.1))["lines"]) < until:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


class TestWhoItIs:
    def said(self, station, monkeypatch, units):
        monkeypatch.setattr(station_module, "local_units", lambda: units)
        return json.loads(station.hello())

    def unit(self, device):
        return Unit("GPU-1", device, "A Model", 1, {"CUDA_VISIBLE_DEVICES": "GPU-1"})

    def test_the_one_unit_of_its_device_is_right(self, monkeypatch):
        found = self.said(Station("h200", 0), monkeypatch, [self.unit("h200")])
        assert (None, "GPU-1") == (found["problem"], found["unit"])

    @pytest.mark.parametrize(
        ("devices", "seen"),
        [
            (["b200"], "A Model (b200)"),
            ([None], "A Model (no row of devices.toml)"),
            ([], "no GPU"),
            (["h200", "h200"], "A Model (h200), A"),
        ],
        ids=["another", "unknown", "none", "two"],
    )
    def test_anything_else_behind_the_label_is_wrong_unit(self, monkeypatch, devices, seen):
        found = self.said(Station("h200", 0), monkeypatch, [self.unit(d) for d in devices])
        assert found["problem"].startswith("wrong_unit: ")
        assert seen in found["problem"]

    def test_a_core_is_a_slot_of_the_interpreter(self):
        assert "cpu:3" == json.loads(Station(None, 3).hello())["unit"]


def test_code_that_did_not_arrive_whole_is_said(context):
    station = Station(None, 0)
    station.hello()
    assert prepare(station, context, b"x" * 1024)["problem"].startswith("code_ship: ")
    station.close()


def test_a_simulated_unit_skips_every_cell_and_says_so(prepared, context, make_job):
    job = make_job("b200", cells=2, turns=(Turn(0, ()), Turn(1, ())))
    start(prepared, job, attempt=2)
    *cells, done = lines(prepared, until=3)
    records = [cell_from_text(line["records"], context, job, 2).records[0] for line in cells]
    assert {("skipped", "simulated: no b200 is here", "node", 2)} == {(r.status, r.reason, r.node, r.attempt) for r in records}
    assert list(job.cells) == [r.cell for r in records]
    assert {"type": "done", "job": job.job_id, "attempt": 2, "cancelled": False} == done


def test_a_launch_that_was_repeated_is_told_of_with_its_cell(prepared, make_job, monkeypatch):
    skipped = prepared._cells
    monkeypatch.setattr(prepared, "_cells", lambda *job: (replace(done, repeats="killed by SIGSEGV") for done in skipped(*job)))
    start(prepared, make_job("b200", cells=1))
    assert "killed by SIGSEGV" == lines(prepared)[0]["repeats"]


def test_lines_are_kept_until_they_have_arrived(prepared, make_job):
    start(prepared, make_job("b200", cells=2))
    first = lines(prepared, until=3)
    assert first == lines(prepared, until=3)
    assert first[2:] == lines(prepared, after=2)
    assert [] == json.loads(prepared.poll(3, 0.0))["lines"]


def test_never_two_jobs_at_a_time(prepared, make_job, monkeypatch):
    running, most = [], []

    def cells(job, attempt):
        running.append(job)
        most.append(len(running))
        time.sleep(0.05)
        running.pop()
        return iter(())

    monkeypatch.setattr(prepared, "_cells", cells)
    threads = [threading.Thread(target=start, args=(prepared, make_job("b200", job_id=f"job-{n}"))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 6 == len(lines(prepared, until=6))
    assert [1] * 6 == most


def test_a_defect_ends_its_job_with_the_words(prepared, make_job, monkeypatch):
    monkeypatch.setattr(prepared, "_cells", lambda job, attempt: 1 / 0)
    start(prepared, make_job("b200"))
    (done,) = lines(prepared)
    assert "a defect of the worker: ZeroDivisionError('division by zero')" == done["problem"]


def test_poll_waits_for_what_comes_and_no_longer(prepared, make_job):
    began = time.monotonic()
    threading.Timer(0.2, start, (prepared, make_job("b200", cells=1))).start()
    assert json.loads(prepared.poll(0, 30.0))["lines"]
    assert time.monotonic() - began < 10
