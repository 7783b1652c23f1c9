"""A lease whose first canary is beyond its unit's history has no time; no GPU is needed here."""

import itertools
import json
import os
import tempfile
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from harness.devices import history_file as file_module
from harness.devices.history_file import history_file, read_leases
from harness.devices.units import Unit
from harness.dispatch import history as history_module
from harness.dispatch import worker
from harness.dispatch.history import UnitHistory
from harness.dispatch.launcher import Launch
from harness.dispatch.local import LocalDispatcher
from harness.dispatch.protocol import ArmCode, CellDone, RunContext
from harness.plan.jobs import Job, Turn
from harness.records import Cell

GPU = Unit("GPU-aaaa0000", "h200", "NVIDIA H200", 150_000_000_000, {}, "570.10", "none")
FIRST, SECOND, THIRD = (Cell("scale", "double", f"N={n},dtype=fp32", "h200") for n in (8, 9, 64))
USUAL, SLOWER = (50.0, 800.0), (60.0, 800.0)
REASON = "contended: the arithmetic canary takes 60 us, +20.0% from 50 us, the median of this unit's last 3 runs: "


class Process(Launch):
    """A launch without a process: it knows when it is killed."""

    def __init__(self, name):
        super().__init__(name)
        self.killed = threading.Event()

    def kill(self):
        self.killed.set()


class Server:
    """A fork server each of whose launches says its environment and answers every cell it is given.

    Args:
        canary: what the evidence of every cell has; None for no evidence.
        status: of every cell.
        hangs: after the first answer, until the launch is killed; else it ends.
    """

    lost = killed = False
    engine_cache = Path("engine")

    def __init__(self, canary=USUAL, status="ok", hangs=False, **environment):
        self.canary, self.status, self.hangs, self.launches = canary, status, hangs, []
        self.later = None
        """Canaries of the cells after the first, which then are ok."""
        self.environment = {"torch": "2.11.0", "triton": "3.6.0"} | environment

    def launch(self, name, spec, records, log):
        launch, pipe = Process(name), os.dup(records)
        cells = json.loads(spec.read_text())["cells"]
        if cells:  # not the one that finds out about the unit
            self.launches.append((name, cells))
        threading.Thread(target=self._say, args=(launch, pipe, cells), daemon=True).start()
        return launch

    def _say(self, launch, pipe, cells):
        with os.fdopen(pipe, "wb", buffering=0) as stream:
            try:
                self._send(stream, {"type": "environment", "environment": self.environment, "node": "here"})
                for cell in cells:
                    self._send(stream, {"type": "begin", "cell": cell})
                    self._send(stream, self._end(cell))
                    if self.hangs:
                        self.killed = launch.killed.wait(5)
                        break
                self._send(stream, {"type": "closed"})
            except BrokenPipeError:
                pass  # the lease was ended
        launch.status = 0
        launch.ended.set()

    def _end(self, cell):
        columns = {"evidence": {"canaries": list(self.canary)}} if self.canary is not None else {}
        value = 1.5 if self.status == "ok" else None
        reading = {"metric": "latency_us", "value": value, "status": self.status, "reason": None, "columns": columns}
        if self.later:
            self.canary, self.status = self.later, "ok"
        return {"type": "end", "cell": cell, "started_at": "2026-01-31T12:00:00+00:00", "duration": 0.5, "readings": [reading]}

    def _send(self, stream, message):
        stream.write(json.dumps(message).encode() + b"\n")


@pytest.fixture(autouse=True)
def place(tmp_path_factory, monkeypatch):
    """The folder of the host."""
    found = tmp_path_factory.mktemp("host")
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    return found


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a run, whose launches on one unit a server answers; the records of each of its leases."""
    arms = {arm: ArmCode(None, "t", False, "c", tmp_path) for arm in ("head", "base")}
    number = itertools.count(1)

    def one(server, times=1, cells=(FIRST,), turns=None, kind="latency", unit=GPU):
        context = RunContext(f"r{next(number)}", arms, tmp_path, tmp_path, {"latency": "d", "correctness": "d"})
        names = [f"j{job}" for job in range(times)]
        jobs = [Job(name, kind, "unit", "scale", "h200", cells, turns or (Turn(0, cells),), 30.0, 1.0) for name in names]
        monkeypatch.setattr(worker.Servers, "get", lambda *_: server)
        monkeypatch.setattr(worker.UnitWorker, "_watch", lambda self: nullcontext())
        dispatcher = LocalDispatcher(1)
        dispatcher._units = [unit]
        dispatcher.submit(context, jobs)
        records = []
        for event in dispatcher.events():
            if isinstance(event, CellDone):
                records += event.records
        return [[record for record in records if record.job_id == name] for name in names]

    return one


@pytest.fixture
def three_runs(run):
    """The unit's history: three runs of one lease each."""
    return [run(Server())[0][0] for _ in range(3)]


def outcomes(records):
    return [(record.cell, record.arm, record.status) for record in records]


def test_the_first_leases_of_a_unit_are_its_history(run):
    found = [*run(Server(), times=2), *run(Server())]
    assert ["ok"] * 3 == [record.status for (record,) in found]
    assert [("r1", USUAL)] * 2 + [("r2", USUAL)] == [(lease.run, (lease.arithmetic_us, lease.copy_us)) for lease in read_leases(GPU.uuid)]
    assert {("canary/2", "570.10", "2.11.0", "3.6.0")} == {tuple(vars(lease.stack).values()) for lease in read_leases(GPU.uuid)}


@pytest.mark.usefixtures("three_runs")
class TestALeaseBeyondTheHistory:
    def test_has_no_time_and_ends_at_once(self, run):
        server = Server(SLOWER, hangs=True)
        (found,) = run(server, cells=(FIRST, SECOND, THIRD))
        assert [(FIRST, "head", "invalid"), (SECOND, "head", "invalid"), (THIRD, "head", "invalid")] == outcomes(found)
        assert [None] * 3 == [record.value for record in found]
        assert all(record.reason.startswith(REASON) for record in found)
        assert (True, 1) == (server.killed, len(server.launches))
        assert 1 == len({(record.lease_id, record.environment["id"]) for record in found})

    def test_shows_its_canaries(self, run):
        ((record,),) = run(Server(SLOWER))
        assert list(SLOWER) == record.evidence["canaries"]

    def test_has_no_time_in_either_arm_of_a_pair(self, run):
        turns = tuple(Turn(at, (FIRST, SECOND), arm=arm, block=0) for at, arm in enumerate(("head", "base", "base", "head")))
        (found,) = run(Server(SLOWER), cells=(FIRST, SECOND), turns=turns)
        expected = [(FIRST, "head"), (SECOND, "head"), (FIRST, "base"), (SECOND, "base")]
        assert [(cell, arm, "invalid") for cell, arm in expected] == outcomes(found)

    def test_enters_the_history_so_that_a_lasting_change_becomes_the_new_normal(self, run):
        found = [run(Server(SLOWER))[0][0].status for _ in range(5)]
        assert ["invalid"] * 4 + ["ok"] == found
        assert 8 == len(read_leases(GPU.uuid))

    def test_is_no_new_normal_however_many_its_run_has(self, run):
        found = [record.status for (record,) in run(Server(SLOWER), times=8)]
        assert ["invalid"] * 8 == found
        ((slower,),), ((healthy,),) = run(Server(SLOWER)), run(Server())
        assert ("invalid", "ok") == (slower.status, healthy.status)

    def test_may_be_faster_too(self, run):
        ((record,),) = run(Server((50.0, 700.0)))
        assert record.reason.startswith("contended: the copy canary takes 700 us, -12.5% from 800 us")

    @pytest.mark.parametrize("canary", [(52.4, 761.0), (47.6, 839.0)], ids=["slower and faster", "faster and slower"])
    def test_is_beyond_five_percent(self, run, canary):
        ((record,),) = run(Server(canary))
        assert "ok" == record.status

    @pytest.mark.parametrize("changed", [{"torch": "2.12.0"}, {"triton": "3.7.0"}], ids=lambda change: next(iter(change)))
    def test_is_of_the_same_stack(self, run, changed):
        ((record,),) = run(Server(SLOWER, **changed))
        assert "ok" == record.status

    def test_is_of_the_same_unit_and_driver(self, run):
        for unit in (replace(GPU, uuid="GPU-bbbb0000"), replace(GPU, driver="580.1")):
            ((record,),) = run(Server(SLOWER), unit=unit)
            assert "ok" == record.status

    def test_is_one_that_times(self, run):
        ((record,),) = run(Server(SLOWER), kind="correctness")
        assert ("ok", 3) == (record.status, len(read_leases(GPU.uuid)))

    def test_is_known_by_the_first_cell_that_shows_canaries(self, run):
        server = Server(None, "wrong")
        server.later = SLOWER
        (found,) = run(server, cells=(FIRST, SECOND, THIRD))
        assert [(FIRST, "head", "wrong"), (SECOND, "head", "invalid"), (THIRD, "head", "invalid")] == outcomes(found)


@pytest.mark.parametrize("canary", [None, (), (50.0,), (0.0, 800.0), (-1.0, 800.0)], ids=str)
def test_a_lease_that_shows_no_canary_is_neither_judged_nor_remembered(run, canary):
    ((record,),) = run(Server(canary))
    assert ("ok", False) == (record.status, history_file(GPU.uuid).exists())


def test_a_cancelled_lease_leaves_its_cells_unanswered(three_runs):
    slower = replace(three_runs[0], evidence={"canaries": list(SLOWER)})
    cancelled = threading.Event()
    cells = (FIRST, SECOND)
    job = Job("j", "latency", "unit", "scale", "h200", cells, (Turn(0, cells),), 30.0, 1.0)
    context = RunContext("r4", {}, Path(), Path(), {})
    held = UnitHistory(GPU.uuid, cancelled).hold(context, job, (CellDone(job, cell, (slower,)) for cell in cells))
    assert "invalid" == next(held).records[0].status
    cancelled.set()
    assert [] == list(held)


def test_without_a_readable_history_the_log_says_so_and_times_are_kept(run, caplog):
    history_file(GPU.uuid).mkdir()
    found = run(Server(SLOWER), times=2)
    assert ["ok", "ok"] == [record.status for (record,) in found]
    what = f"the history of unit {GPU.uuid}, {history_file(GPU.uuid)},"
    told = [text for text in caplog.messages if text.startswith(what)]
    assert 2 == len(told), "reading and writing, once each for all leases"
    assert "cannot be read, so that no canary is held against it (it is no file)" in told[0]
    assert "cannot be written, so that this lease is not part of it (Is a directory)" in told[1]
    assert all(text.endswith(": make it readable and writable for every user, or remove it") for text in told)


def test_a_history_that_one_long_line_hides_is_warned_of(run, caplog):
    run(Server())
    with history_file(GPU.uuid).open("ab") as file:
        file.write(b"x" * (1 << 20) + b"\n")
    ((record,),) = run(Server(SLOWER))
    assert "ok" == record.status
    what = "cannot be read, so that no canary is held against it (its last 1048576 bytes hold no lease): make it readable and writable"
    assert 1 == sum(what in text for text in caplog.messages)


def test_in_a_folder_that_cannot_be_written_there_is_no_history_and_the_log_says_so(run, monkeypatch, caplog):
    monkeypatch.setattr(history_module, "history_file", lambda uuid: Path("/proc/none"))
    monkeypatch.setattr(file_module, "history_file", lambda uuid: Path("/proc/none"))
    ((record,),) = run(Server(SLOWER))
    assert "ok" == record.status
    assert ["cannot be written" in text for text in caplog.messages if "/proc/none" in text] == [True]
