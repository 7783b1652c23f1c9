"""The command line's side, with a driver that says what it is told to."""

import dataclasses
import subprocess
import sys
import time

import pytest

import harness.dispatch.ray.dispatcher as module
from harness.dispatch.protocol import LeftOut
from harness.dispatch.ray.child import DriverGone, DriverProcess, driver_environment
from harness.dispatch.ray.dispatcher import RayDispatcher
from harness.dispatch.ray.messages import Settings
from harness.errors import Undecided
from harness.plan.budget import Allowance

NODE = {"node_id": "1", "name": "node", "address": "", "device": "h200", "simulated": False, "alive": True, "units": 2, "cpus": 4}


class FakeDriver:
    """Answers from a script: a message, an exception, or a function of what was sent."""

    def __init__(self, script):
        self.script, self.sent, self.closed = list(script), [], False

    def send(self, message):
        self.sent.append(message)

    def receive(self, timeout_s):
        step = self.script.pop(0) if self.script else TimeoutError()
        if isinstance(step, Exception):
            raise step
        return step

    def close(self):
        self.closed = True


@pytest.fixture
def dispatcher(monkeypatch):
    """A dispatcher whose driver follows a script, after saying which nodes there are."""

    def make(*script, first=None):
        driver = FakeDriver([first or {"event": "fleet", "nodes": [NODE]}, *script])
        monkeypatch.setattr(module, "DriverProcess", lambda settings, folder: driver)
        made = RayDispatcher("127.0.0.2:6379")
        made.fake = driver
        return made

    return make


def test_ray_is_never_imported_by_the_command_line():
    code = (
        "import sys, harness.dispatch.ray.dispatcher, harness.dispatch.ray.driver; assert not {'ray', 'grpc', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_capacity_is_what_the_nodes_offer(dispatcher):
    assert {"h200": 2, "b200": 0, "cpu": 4} == dispatcher().capacity(["h200", "b200", "cpu"])


def test_nothing_is_prepared_here(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "DriverProcess", lambda *_: pytest.fail("a driver was started"))
    made = RayDispatcher("127.0.0.2:6379")
    made.prepare(tmp_path / "scratch", None, None)
    made.close()
    assert [] == list(tmp_path.iterdir())


def test_capacity_without_a_gpu_is_no_more_than_the_slots(dispatcher):
    made = dispatcher()
    made.settings = dataclasses.replace(made.settings, slots=3)
    assert {"h200": 2, "cpu": 3} == made.capacity(["h200", "cpu"])


def test_the_budget_goes_along_as_seconds_that_are_left(dispatcher, context, make_job):
    made = dispatcher()
    made.capacity(["cpu"])
    made.submit(dataclasses.replace(context, allowance=Allowance(60.0, time.monotonic() - 20.0)), [make_job()])
    sent = made.fake.sent[0]["budget"]
    assert (60.0, pytest.approx(40.0, abs=2.0)) == (sent["seconds"], sent["left_s"])


def test_a_job_that_the_budget_left_out_is_an_event(dispatcher, context, make_job):
    job = make_job(cells=1)
    made = dispatcher({"event": "failed", "job": job.job_id, "attempt": 1, "status": "cancelled", "reason": "budget: over"})
    made.capacity(["cpu"])
    made.submit(context, [job])
    assert [LeftOut(job, "budget: over")] == list(made.events())
    assert None is made.fake.sent[0]["budget"]


def test_a_cluster_that_may_not_be_used_is_said_in_three_parts(dispatcher):
    made = dispatcher(first={"event": "refused", "asked": "a", "found": "b", "do": "c"})
    with pytest.raises(Undecided) as error:
        made.capacity(["cpu"])
    assert ("a", "b", "c") == (error.value.asked, error.value.found, error.value.do)


def test_jobs_and_code_are_sent_by_digest(dispatcher, context, make_job):
    made = dispatcher()
    made.capacity(["cpu"])
    made.submit(context, [make_job()])
    run, job = made.fake.sent
    (digest,) = run["tars"]
    assert digest == run["context"]["arms"]["head"]["root"]
    assert ("job", 1, []) == (job["op"], job["attempt"], job["not_on"])


def test_events_end_with_the_last_job(dispatcher, context, make_job, says):
    job = make_job(cells=1)
    made = dispatcher({"event": "beat"}, says(job, 0), {}, {"event": "done", "job": job.job_id, "attempt": 1})
    made.capacity(["cpu"])
    made.submit(context, [job])
    assert ["CellDone", "JobDone"] == [type(e).__name__ for e in made.events()]
    assert 1 == made.dropped


def test_a_lost_job_is_sent_again(dispatcher, context, make_job, says):
    job = make_job(cells=2)
    lost = {"event": "lost", "job": job.job_id, "attempt": 1, "node": "a", "reason": "worker_lost: a: died"}
    made = dispatcher(says(job, 0), lost, says(job, 1, attempt=2), {"event": "done", "job": job.job_id, "attempt": 2})
    made.capacity(["cpu"])
    made.submit(context, [job])
    assert ["CellDone", "CellDone", "JobDone"] == [type(e).__name__ for e in made.events()]
    assert (2, ["a"], [str(job.cells[1])]) == tuple(
        made.fake.sent[-1][k] if k != "cells" else made.fake.sent[-1]["job"]["turns"][0]["cells"] for k in ("attempt", "not_on", "cells")
    )


def test_a_lost_driver_ends_what_is_left_as_head_lost(dispatcher, context, make_job, says):
    job = make_job(cells=2)
    made = dispatcher(says(job, 0), DriverGone("it printed nothing"))
    made.capacity(["cpu"])
    made.submit(context, [job])
    *_, cell, _done = made.events()
    assert ("infra", "head_lost: it printed nothing") == (cell.records[0].status, cell.records[0].reason)


def test_a_silent_driver_is_lost(dispatcher, context, make_job, monkeypatch):
    monkeypatch.setattr(module, "SILENCE_S", -1.0)
    made = dispatcher()
    made.capacity(["cpu"])
    made.submit(context, [make_job(cells=1)])
    cell, _done = made.events()
    assert "head_lost: the driver said nothing for -1 s" == cell.records[0].reason


def test_cancelling_tells_the_driver_once_and_ends_though_it_never_answers(dispatcher, context, make_job, monkeypatch):
    monkeypatch.setattr(module, "CANCEL_S", 0.0)
    made = dispatcher()
    made.capacity(["cpu"])
    made.submit(context, [make_job()])
    made.cancel()
    made.cancel()
    assert [] == list(made.events())
    assert [{"op": "cancel"}] == [m for m in made.fake.sent if m["op"] == "cancel"]


class TestTheProcess:
    @pytest.mark.parametrize(
        "line", [b"no json\n", b"[1]\n", b'{"a": NaN}\n', b"\x80\x04cos\nsystem\n.\n"], ids=["words", "list", "NaN", "pickle"]
    )
    def test_a_hostile_line_is_an_empty_message(self, tmp_path, monkeypatch, line):
        process = speaking(monkeypatch, tmp_path, line + b'{"event": "beat"}\n')
        *hostile, beat = [process.receive(20) for _ in range(line.count(b"\n") + 1)]
        assert [{}] * len(hostile) == hostile
        assert {"event": "beat"} == beat
        process.close()

    def test_one_that_dies_is_gone_with_its_last_words(self, tmp_path, monkeypatch):
        process = speaking(monkeypatch, tmp_path, b"", "raise SystemExit('no such cluster')")
        with pytest.raises(DriverGone, match="no such cluster"):
            process.receive(20)
        process.close()

    def test_its_environment_holds_no_secret_and_no_other_cluster(self):
        found = driver_environment({"GITHUB_TOKEN": "secret", "RAY_ADDRESS": "elsewhere", "RAY_AUTH_TOKEN": "t", "PATH": "/bin"})
        assert {"RAY_AUTH_TOKEN": "t", "PATH": "/bin"}.items() <= found.items()
        assert not {"GITHUB_TOKEN", "RAY_ADDRESS"} & set(found)


def speaking(monkeypatch, tmp_path, data: bytes, then: str = "") -> DriverProcess:
    """A process that writes `data` to the command line and ends."""
    script = tmp_path / "script.py"
    script.write_text(f"import socket, sys\nchannel = socket.socket(fileno=int(sys.argv[1]))\nchannel.sendall({data!r})\n{then}\n")
    start = subprocess.Popen

    def popen(command, **kwargs):
        return start([sys.executable, str(script), command[4]], **kwargs)

    monkeypatch.setattr("harness.dispatch.ray.child.subprocess.Popen", popen)
    return DriverProcess(Settings("local"), tmp_path / "driver")
