"""What a launch timed counts when the launch has closed, and not before; launches are scripted here, and no GPU is needed."""

import json
import os
import tempfile
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.devices.sensors import Throttle
from harness.devices.telemetry import Summary
from harness.devices.units import Unit
from harness.dispatch import supervisor, worker
from harness.dispatch.launcher import Launch
from harness.dispatch.local import LocalDispatcher
from harness.dispatch.protocol import ArmCode, CellDone, RunContext
from harness.dispatch.supervisor import Supervisor, lease_file
from harness.plan.jobs import Job, Turn
from harness.records import Cell

GPU = Unit("GPU-aaaa0000", "h200", "NVIDIA H200", 150_000_000_000, {}, "570.10", "none")
FIRST, SECOND, THIRD = (Cell("scale", "double", f"N={n},dtype=fp32", "h200") for n in (8, 9, 64))
CLOSED = {"type": "closed"}
LIED = {"type": "retract", "reason": "negative_time: a sample took -3 us"}
DIES, HANGS, LOSES = "dies", "hangs", "loses its server"


class Process(Launch):
    """A launch without a process: it knows when it is killed."""

    def __init__(self, name):
        super().__init__(name)
        self.killed = threading.Event()

    def kill(self):
        self.killed.set()


class Server:
    """A fork server whose launches do, one after another, what `script` has them do of the cells that they are given: a function of
    the cells that yields messages, and how it ends where it does not end well. One without cells does what `of_the_unit` says.
    """

    lost = False
    engine_cache = Path("engine")

    def __init__(self, *script, of_the_unit=lambda cells: []):
        self.script, self.asked, self.of_the_unit = list(script), [], of_the_unit

    def launch(self, name, spec, records, log):
        launch, pipe = Process(name), os.dup(records)
        cells = [Cell.parse(text) for text in json.loads(spec.read_text())["cells"]]
        says = self.of_the_unit
        if cells:
            self.asked.append(cells)
            says = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        threading.Thread(target=self._say, args=(launch, pipe, says(cells)), daemon=True).start()
        return launch

    def _say(self, launch, pipe, messages):
        status = 0
        with os.fdopen(pipe, "wb", buffering=0) as stream:
            for message in messages:
                if message == HANGS:
                    launch.killed.wait(10)
                elif message in (DIES, LOSES):
                    status = 9 << 8 if message == DIES else None
                else:
                    stream.write(json.dumps(message).encode() + b"\n")
            launch.status = status
            launch.ended.set()


class Sensors:
    """They see something at first, and then nothing any more."""

    def __init__(self, seen):
        self.seen = [seen]

    def within(self, *stretches):
        return self.seen.pop() if self.seen else None


def begin(cell):
    return {"type": "begin", "cell": str(cell)}


def end(cell, status="ok"):
    value = 1.5 if status == "ok" else None
    reading = {"metric": "latency_us", "value": value, "status": status, "reason": None, "columns": {}}
    return {"type": "end", "cell": str(cell), "started_at": "2026-01-31T12:00:00+00:00", "duration": 0.5, "readings": [reading]}


def whole(cells):
    return [message for cell in cells for message in (begin(cell), end(cell))]


def well(cells):
    return [*whole(cells), CLOSED]


def then(*last):
    """A launch that ends every cell, and then this."""
    return lambda cells: [*whole(cells), *last]


def first_wrong(*last):
    """A launch whose first cell is wrong, and that ends all others, and then this."""
    return lambda cells: [begin(cells[0]), end(cells[0], "wrong"), *whole(cells[1:]), *last]


def dies_in(one):
    """A launch that dies in one of its cells, where it is given that."""

    def says(cells):
        if one not in cells:
            return well(cells)
        return [*whole(cells[: cells.index(one)]), begin(one), DIES]

    return says


@pytest.fixture
def context(tmp_path):
    return RunContext("r1", {"head": ArmCode(None, "t", False, "c", tmp_path)}, tmp_path, tmp_path, {"latency": "d", "correctness": "d"})


@pytest.fixture
def run(context):
    """Runs a job: what is vouched for of each cell, in order, and the server."""

    def one(
        *script, cells=(FIRST, SECOND, THIRD), kind="latency", device="h200", cancelled=None, deadline=30.0, telemetry=None, turns=1, **more
    ):
        server = Server(*script, **more)
        job = Job("j1", kind, "unit", "scale", device, cells, tuple(Turn(n, cells) for n in range(turns)), deadline, 1.0)
        runs = Supervisor(context, lambda: server, GPU, cancelled or threading.Event(), telemetry).run(job)
        done = [d for d in runs if d.vouched]
        one.repeats = [(d.records[0].launch, d.repeats) for d in done if d.repeats is not None]
        return [(d.cell, d.records[0]) for d in done], server

    return one


def outcomes(found):
    return [(cell, record.status) for cell, record in found]


ALL_OK = [(cell, "ok") for cell in (FIRST, SECOND, THIRD)]


class TestALaunchThatDoesNotClose:
    @pytest.mark.parametrize("last", [(DIES,), (HANGS,), ("no message",), ()], ids=["dies", "hangs", "sends nonsense", "ends"])
    def test_is_made_again(self, run, last):
        found, server = run(then(*last), well, deadline=0.3)
        assert ALL_OK == outcomes(found)
        assert [[FIRST, SECOND, THIRD]] * 2 == server.asked
        assert {"j1-0-2"} == {record.launch for _, record in found}
        assert ["j1-0-2"] == [launch for launch, _ in run.repeats], "told once"

    @pytest.mark.parametrize("first", [then(DIES), first_wrong(DIES)], ids=["of all cells", "of some"])
    def test_is_told_of_with_what_ended_it_when_it_is_made_again(self, run, first):
        run(first, well)
        assert [("j1-0-2", "exit status 9: it printed nothing")] == run.repeats

    def test_is_told_of_once_though_the_unit_changed_and_every_cell_ends_again(self, context):
        job = Job("j1", "latency", "unit", "scale", "h200", (FIRST,), (Turn(0, (FIRST,)),), 30.0, 1.0)
        server = Server(then(DIES), well)
        seen = iter([None, None, None, Summary(9, None, None, None, None, [], changed=["partition from none to mig"])])
        telemetry = SimpleNamespace(within=lambda *_: next(seen))
        done = list(Supervisor(context, lambda: server, GPU, threading.Event(), telemetry).run(job))
        assert "invalid" == done[-1].records[0].status
        assert ["exit status 9: it printed nothing"] == [one.repeats for one in done if one.repeats is not None]

    @pytest.mark.parametrize("script", [(well,), (dies_in(THIRD),)], ids=["it closed", "a record tells"])
    def test_is_not_told_of_where_there_is_nothing_to_tell(self, run, script):
        run(*script)
        assert [] == run.repeats

    def test_once_more_leaves_no_time_and_says_why(self, run):
        found, server = run(then(DIES))
        assert [(cell, "invalid") for cell in (FIRST, SECOND, THIRD)] == outcomes(found)
        words = "not_closed: its launch did not come to its last canary: exit status 9: it printed nothing"
        assert {(None, words)} == {(record.value, record.reason) for _, record in found}
        assert 2 == len(server.asked)

    def test_costs_what_had_failed_in_it_nothing(self, run):
        found, server = run(first_wrong(DIES), well)
        assert [(FIRST, "wrong"), (SECOND, "ok"), (THIRD, "ok")] == outcomes(found)
        assert [[FIRST, SECOND, THIRD], [SECOND, THIRD]] == server.asked

    def test_because_a_cell_killed_it_has_the_cells_before_that_timed_again(self, run):
        found, server = run(dies_in(THIRD))
        assert [(THIRD, "crash"), (FIRST, "ok"), (SECOND, "ok")] == outcomes(found)
        assert [[FIRST, SECOND, THIRD], [FIRST, SECOND]] == server.asked

    def test_because_its_fork_server_ended_has_the_cells_before_the_last_timed_again(self, run):
        found, server = run(lambda cells: [*whole(cells[:2]), LOSES], well)
        assert [(SECOND, "invalid"), (FIRST, "ok"), (THIRD, "ok")] == outcomes(found)
        assert [[FIRST, SECOND, THIRD], [FIRST, THIRD]] == server.asked

    def test_because_the_run_was_stopped_answers_nothing(self, run):
        cancelled = threading.Event()

        def stopped(cells):
            yield from whole(cells[:2])
            cancelled.set()
            yield HANGS

        found, _ = run(stopped, cancelled=cancelled)
        assert [] == found

    def test_is_no_matter_where_nothing_is_timed(self, run):
        found, server = run(then(DIES), kind="correctness")
        assert (ALL_OK, 1) == (outcomes(found), len(server.asked))


class TestALaunchWhoseClockLied:
    @pytest.mark.parametrize("last", [(LIED, CLOSED), (LIED, DIES), (CLOSED, LIED)], ids=["and closed", "and died", "and says so late"])
    def test_leaves_no_time(self, run, last):
        found, server = run(then(*last))
        assert {("invalid", None, LIED["reason"])} == {(r.status, r.value, r.reason) for r in dict(found).values()}
        assert ([FIRST, SECOND, THIRD], 1) == ([cell for cell, _ in found][-3:], len(server.asked))

    def test_is_no_excuse_for_what_failed(self, run):
        found, _ = run(first_wrong(LIED, CLOSED))
        assert [(FIRST, "wrong"), (SECOND, "invalid"), (THIRD, "invalid")] == outcomes(found)


class TestTheLaunchThatFindsOutAboutTheUnit:
    """So that the first to time cells has the same history as those after it."""

    @pytest.fixture
    def asked(self, context):
        """What launches without cells were asked."""
        return lambda: [json.loads((path / "spec.json").read_text()) for path in sorted((context.scratch / "launches").glob("*-unit"))]

    def test_comes_before_all_others(self, run, asked):
        order = []
        found, _ = run(lambda cells: order.append("cells") or well(cells), of_the_unit=lambda cells: order.append("unit") or [])
        assert (ALL_OK, ["unit", "cells"]) == (outcomes(found), order)
        (one,) = asked()
        assert ([], "h200", True) == (one["cells"], one["device"], one["first"])

    @pytest.mark.parametrize(("kind", "device"), [("correctness", "h200"), ("latency", "cpu")])
    def test_is_not_made_where_no_unit_is_timed(self, run, asked, kind, device):
        cells = (Cell("scale", "double", "N=8,dtype=fp32", device),)
        run(well, kind=kind, device=device, cells=cells)
        assert [] == asked()

    def test_is_not_made_where_a_launch_has_handed_that_on(self, run, asked, context):
        lease_file(context, GPU).write_text("{}")
        run(well)
        assert [] == asked()

    @pytest.mark.parametrize("last", [DIES, LOSES, HANGS, "no message"])
    def test_costs_no_cell_where_it_fails(self, run, last, monkeypatch):
        monkeypatch.setattr(supervisor, "FIRST_CELL_S", 0.3)
        found, _ = run(well, of_the_unit=lambda cells: [last])
        assert ALL_OK == outcomes(found)

    @pytest.mark.parametrize(("last", "times"), [(DIES, 2), (LOSES, 2), (HANGS, 1)])
    def test_is_tried_again_before_the_next_job_unless_it_took_too_long(self, run, last, times, monkeypatch):
        monkeypatch.setattr(supervisor, "FIRST_CELL_S", 0.3)
        made = []
        for _ in range(2):
            run(well, of_the_unit=lambda cells: made.append(1) or [last])
        assert times == len(made)

    def test_is_not_made_in_a_run_that_was_stopped(self, run, asked):
        cancelled = threading.Event()
        cancelled.set()
        assert ([], []) == (run(well, cancelled=cancelled)[0], asked())

    def test_ends_with_the_run_and_no_cell_is_begun(self, run):
        cancelled = threading.Event()

        def stopped(cells):
            cancelled.set()
            yield HANGS

        found, server = run(well, of_the_unit=stopped, cancelled=cancelled)
        assert ([], []) == (found, server.asked)


class TestWhatIsKnownOfTheUnit:
    """Is found out anew by the next launch where the unit was disturbed when it was found out."""

    @pytest.fixture
    def file(self, context):
        return lease_file(context, GPU)

    @pytest.fixture
    def finds_out(self, file):
        """A launch without cells that hands on what it found out."""

        def says(_cells):
            file.write_text('{"ceilings": 1}')
            return []

        return says

    @pytest.fixture
    def known(self, file):
        """A launch that times its cells, and whether something was handed on to each such launch."""

        def says(cells):
            says.to.append(file.exists())
            return well(cells)

        says.to = []
        return says

    def test_is_handed_on(self, run, finds_out, known):
        run(known, of_the_unit=finds_out)
        assert [True] == known.to

    @pytest.mark.parametrize(
        "seen",
        [Summary(9, 1.0, 1.0, 1.0, 1.0, [], others=1), Summary(9, 1.0, 1.0, 1.0, 1.0, [str(Throttle.THERMAL)])],
        ids=["contended", "throttled"],
    )
    def test_is_forgotten_where_the_sensors_saw_why(self, run, finds_out, known, seen):
        found, _ = run(known, of_the_unit=finds_out, telemetry=Sensors(seen))
        assert ([False], ALL_OK) == (known.to, outcomes(found))

    def test_is_forgotten_where_the_first_launch_is_taken_back(self, run, finds_out, file):
        run(then(LIED, CLOSED), of_the_unit=finds_out)
        assert not file.exists()

    def test_is_kept_where_a_later_launch_is_taken_back(self, run, finds_out, file):
        run(well, then(LIED, CLOSED), of_the_unit=finds_out, turns=2)
        assert file.exists()

    def test_is_forgotten_where_the_lease_is_refused(self, context, finds_out, file):
        job = Job("j1", "latency", "unit", "scale", "h200", (FIRST,), (Turn(0, (FIRST,)),), 30.0, 1.0)
        server = Server(then(HANGS), of_the_unit=finds_out)
        lease = Supervisor(context, lambda: server, GPU, threading.Event()).run(job)
        assert FIRST == next(lease).cell
        assert file.exists()
        lease.close()
        assert not file.exists()


def test_a_cell_that_a_launch_ends_twice_is_what_it_was_last(run):
    found, _ = run(lambda cells: [*whole(cells), begin(FIRST), end(FIRST, "wrong"), CLOSED])
    assert {FIRST: "wrong", SECOND: "ok", THIRD: "ok"} == dict(outcomes(found))


def test_a_cell_that_is_not_vouched_for_is_told_of_at_once(context):
    """So that a lease beyond its unit's history ends with its first cell."""
    job = Job("j1", "latency", "unit", "scale", "h200", (FIRST,), (Turn(0, (FIRST,)),), 30.0, 1.0)
    server = Server(well)
    done = list(Supervisor(context, lambda: server, GPU, threading.Event()).run(job))
    assert [(FIRST, False), (FIRST, True)] == [(one.cell, one.vouched) for one in done]
    assert done[0].records == done[1].records


def test_what_a_run_knew_of_a_unit_is_forgotten_when_it_takes_the_unit_again(context, tmp_path, monkeypatch):
    """Within one stretch of holding it, all jobs share it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lease = lease_file(context, GPU)
    lease.write_text('{"of another engine": true}')
    known = []

    def says(cells):
        known.append(lease.exists())
        lease.write_text("{}")
        return well(cells)

    server = Server(says)
    monkeypatch.setattr(worker.Servers, "get", lambda *_: server)
    monkeypatch.setattr(worker.UnitWorker, "_watch", lambda self: nullcontext())
    jobs = [Job(name, "latency", "unit", "scale", "h200", (FIRST,), (Turn(0, (FIRST,)),), 30.0, 1.0) for name in ("j1", "j2")]
    dispatcher = LocalDispatcher(1)
    dispatcher._units = [GPU]
    dispatcher.submit(context, jobs)
    assert 2 == sum(isinstance(event, CellDone) for event in dispatcher.events())
    assert [False, True] == known


def test_good_cells_are_timed_no_more_than_once_for_each_that_crashes_after_them(run):
    cells = tuple(Cell("scale", "double", f"N={n},dtype=fp32", "h200") for n in range(1, 16))
    crash, timed = set(cells[10:]), []

    def says(asked):
        messages = []
        for cell in asked:
            messages.append(begin(cell))
            if cell in crash:
                return [*messages, DIES]
            timed.append(cell)
            messages.append(end(cell))
        return [*messages, CLOSED]

    found, _ = run(says, cells=cells)
    assert {c: "crash" if c in crash else "ok" for c in cells} == dict(outcomes(found))
    assert 20 == len(timed)
