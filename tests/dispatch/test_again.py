"""`--resume` measures again what the machine spoilt, and not what the code did; nothing that was measured is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from harness.dispatch.again import Known, answer_of, disturbance
from harness.dispatch.blocks import spoils
from harness.dispatch.fitness import UNCLOSED, Unfit
from harness.dispatch.journal import JOURNAL
from harness.dispatch.protocol import CellDone, JobDone, LeftOut
from harness.dispatch.remainder import remainder
from harness.dispatch.run import _stand, describe_run, execute
from harness.dispatch.stamp import Place, stamped
from harness.errors import StoreError
from harness.measure.clock.validity import Reason
from harness.plan.jobs import Job, Turn
from harness.plan.matrix import Filters
from harness.plan.plan import make_plan
from harness.records import BASE, HEAD, MACHINES, Cell, Record
from harness.report.run import render_run
from harness.store.baselines import accept
from harness.store.runs import RunStore

RUN = "20260131T235959-1f2e3d"
CELL = "scale/double/N=8,dtype=fp32@h200"
OTHER = "scale/twice/N=8,dtype=fp32@h200"


def ok(us: float = 10.0, **columns: Any) -> dict[str, Any]:
    return {"metric": "latency_us", "value": us, "status": "ok", "reason": None, "samples": [us], "converged": True} | columns


def bad(status: str, reason: str | None, metric: str | None = "latency_us") -> dict[str, Any]:
    return {"metric": metric, "value": None, "status": status, "reason": reason}


HOST = bad("invalid", "host_clock: the device's clock says 9 us, the host's 90 us")
CONTENDED = bad("invalid", "contended: another process computed on the unit")
MEMORY = bad("skipped", "memory: 3 GB are free")
LOST = bad("infra", "worker_lost: it ended", None)


def records(*launches: dict[str, Any], kind: str = "latency", arms: tuple[str, ...] = ()) -> list[Record]:
    names = {"kernel": "scale", "variant": "double", "case": "N=8,dtype=fp32", "dtype": "fp32", "device": "h200", "kind": kind}
    each = zip(launches, arms or [HEAD] * len(launches), strict=True)
    return [Record(**names, **columns, arm=arm, position=n) for n, (columns, arm) in enumerate(each)]


def test_the_machines_reasons_are_reasons():
    assert {*Unfit, "incomplete_block"} | ({*map(str, Reason)} & MACHINES) == MACHINES
    assert UNCLOSED not in MACHINES, "a process may die at its end by what the code left behind"


class TestACell:
    @pytest.mark.parametrize("code", sorted(MACHINES))
    def test_that_the_machine_spoilt_is_worth_it(self, code):
        assert f"invalid: {code}: so it was" == disturbance("latency", records(ok(), bad("invalid", f"{code}: so it was")))

    @pytest.mark.parametrize("code", sorted(set(map(str, Reason)) - MACHINES))
    def test_that_was_refused_for_what_the_code_does_is_not(self, code):
        assert disturbance("latency", records(CONTENDED, bad("invalid", code))) is None

    @pytest.mark.parametrize("status", ["wrong", "crash", "timeout", "oom", "build_failed"])
    def test_that_failed_in_any_launch_is_not(self, status):
        assert disturbance("latency", records(CONTENDED, bad(status, "contended", None))) is None

    def test_that_did_not_converge_is(self):
        assert disturbance("latency", records(ok(), ok(converged=False))) == "not converged"

    def test_that_passed_is_not_whatever_its_figures_beside(self):
        beside = [ok(metric="eager_us", converged=False), bad("skipped", "warm_footprint", "latency_warm_us")]
        assert disturbance("latency", records(ok(), ok(), *beside)) is None

    def test_whose_figure_beside_the_machine_spoilt_is(self):
        assert disturbance("latency", records(ok(), HOST | {"metric": "eager_us"})) is not None

    def test_whose_clocks_disagreed_in_some_launches_is_and_one_whose_did_in_all_of_an_arm_is_not(self):
        assert disturbance("latency", records(HOST, ok(), HOST)) is not None
        assert disturbance("latency", records(HOST, CONTENDED)) is not None
        assert disturbance("latency", records(HOST, HOST, HOST)) is None
        assert disturbance("latency", records(HOST)) is None
        assert disturbance("latency", records(ok(), HOST, HOST, ok(), arms=(BASE, HEAD, HEAD, BASE))) is None, "head's code does it"

    def test_that_had_memory_in_some_launches_is_and_one_that_never_had_is_not(self):
        assert disturbance("latency", records(ok(), MEMORY)) == "skipped in some launches: memory: 3 GB are free"
        assert disturbance("latency", records(MEMORY)) is None
        assert disturbance("latency", records(ok(), MEMORY, arms=(BASE, HEAD))) is None, "head's code needs more"
        assert disturbance("latency", records(ok(), bad("skipped", "simulated"))) is None

    def test_that_was_timed_under_two_stacks_is_and_one_whose_arms_have_one_each_is_not(self):
        old, new = (ok(environment={"driver": driver}) for driver in ("570", "580"))
        assert "timed under more than one stack: driver 570 and 580" == disturbance("latency", records(old, new))
        assert disturbance("latency", records(old, new, new, arms=(BASE, HEAD, HEAD))) is None

    def test_that_was_not_timed_is_not(self):
        assert disturbance("correctness", records(bad("invalid", "host_clock", None), kind="correctness")) is None


class Dispatcher:
    """An h200 that says of each cell, launch after launch, what the test says; stops where it says nothing more."""

    name, dropped = "fake", 0
    numbers = itertools.count()
    """Of dispatchers: a lease is of one, and ids come back."""

    def __init__(self, units: int, says: dict[str, list[Any]]) -> None:
        self.number = next(self.numbers)
        self.units, self.says = units, {cell: list(said) for cell, said in says.items()}
        self.asked: list[tuple[str, int]] = []

    def capacity(self, devices):
        return dict.fromkeys(devices, self.units)

    def submit(self, context, jobs):
        self.context, self.jobs = context, jobs

    def events(self):
        for job in self.jobs:
            if self.says == {}:
                yield LeftOut(job, "budget: over")
                continue
            ended = set()
            for turn in job.turns:
                for cell in [cell for cell in turn.cells if cell not in ended]:
                    self.asked.append((str(cell), turn.position))
                    if not self.says[str(cell)]:
                        return
                    columns = dict(self.says[str(cell)].pop(0))
                    place = Place("GPU-1", "n", 1, f"lease of {job.job_id} by {self.number}", {"driver": columns.pop("driver", "570")})
                    told = {name: value for name, value in columns.items() if name != "repeats"}
                    record = stamped(self.context, job, turn, cell, place, told, f"launch-{turn.position}")
                    if spoils([record]):
                        ended.add(cell)
                    yield CellDone(job, cell, (record,), repeats=columns.get("repeats"))
            yield JobDone(job)

    def cancel(self): ...

    def close(self): ...


@pytest.fixture
def run(timed_workspace) -> Callable[..., Any]:
    """Runs, or goes on with, a run of two variants' times, three launches each: the outcome, and the launches that were made."""
    workspace = timed_workspace("double", "twice")
    store = RunStore(workspace.runs_dir)
    plan = make_plan(workspace, "HEAD", "all", Filters(), 3)
    options = {"filters": {}, "require": [], "launches": 3}
    described = describe_run(plan, RUN, datetime.now(UTC), options)
    described["created_at"] = datetime(2026, 1, 31, tzinfo=UTC).isoformat()

    def one(double: list[Any], twice: list[Any] = (), units: int = 1, says: dict[str, list[Any]] | None = None) -> Any:
        dispatcher = Dispatcher(units, {CELL: double, OTHER: twice} if says is None else says)
        outcome = execute(plan, dispatcher, store, one.described, workspace.runs_dir / RUN)
        one.described = outcome.run
        return outcome, dispatcher.asked

    one.described = described
    one.store, one.plan, one.folder, one.baselines = store, plan, workspace.runs_dir / RUN, workspace.baselines_dir
    return one


def shown(records):
    """Position, attempt and what was said of the cell, of its main figure."""
    found = [r for r in records if str(r.cell) == CELL and r.metric in (None, "latency_us")]
    return [(r.position, r.attempt, r.value or (r.reason or "").partition(":")[0]) for r in found]


GOOD = [ok(20.0)] * 3
OLD = [(0, 1, 10.0), (1, 1, "contended"), (2, 1, 10.0)]
ROUND = [(CELL, position) for position in range(3)]


class TestARunThatTheMachineSpoilt:
    @pytest.mark.parametrize("spoilt", [[ok(), CONTENDED, ok()], [HOST, ok(), ok()], [ok(), ok(), ok(converged=False)], [ok(), MEMORY]])
    def test_passes_when_it_is_resumed_and_keeps_what_it_had(self, run, spoilt):
        before, _ = run(spoilt, GOOD)
        assert (3, [CELL]) == (before.exit_code, [one["cell"] for one in before.run["to_measure_again"]])
        after, asked = run([ok(11.0), ok(12.0), ok(13.0)])
        assert ROUND == asked, "all launches of the cell, and none of the other"
        assert (0, {"ok": 2}, []) == (after.exit_code, after.run["by_status"], after.run["to_measure_again"])
        _, stored = run.store.read(RUN)
        assert [(0, 2, 11.0), (1, 2, 12.0), (2, 2, 13.0)] == shown(stored)
        assert len(spoilt) == len(run.store.read_earlier(RUN))
        assert {1} == {r.attempt for r in run.store.read_earlier(RUN)}
        assert accept(run.store, RUN, run.baselines).files
        assert [(CELL, 2)] == [(one["cell"], one["rounds"]) for one in after.run["measured_again"]]

    def test_has_the_speed_ups_of_one_lease_alone(self, run):
        run(GOOD, [ok(40.0), CONTENDED, ok(40.0)])
        assert [2.0] * 2 == [r.value for r in run.store.read(RUN)[1] if r.metric == "speedup"]
        run([], [ok(40.0)] * 3)
        assert [] == [r for r in run.store.read(RUN)[1] if r.metric == "speedup"], "its baseline is of another lease now"

    def test_may_be_spoilt_again(self, run):
        run([ok(), CONTENDED, ok()], GOOD)
        again, _ = run([ok(11.0), ok(11.0), HOST])
        assert (3, [CELL]) == (again.exit_code, [one["cell"] for one in again.run["to_measure_again"]])
        after, _ = run([ok(12.0)] * 3)
        assert (0, 3) == (after.exit_code, after.run["measured_again"][0]["rounds"])
        assert {(1, 3), (2, 3)} == {(a, sum(r.attempt == a for r in run.store.read_earlier(RUN))) for a in (1, 2)}

    def test_is_refused_or_wrong_in_its_last_round_and_stays_so(self, run):
        run([ok(), CONTENDED, ok()], GOOD)
        after, _ = run([ok(), bad("wrong", "y is off", None)])
        assert (1, {"ok": 1, "wrong": 1}) == (after.exit_code, after.run["by_status"])
        last, asked = run([])
        assert ([], 1) == (asked, last.exit_code)

    def test_says_so(self, run):
        before, _ = run([ok(), CONTENDED, ok()], GOOD)
        text = render_run(before.run, before.records)
        assert f"measure what the machine spoilt again, 1 cell: harness submit --resume {RUN}" in text
        after, _ = run([ok()] * 3)
        text = render_run(after.run, after.records)
        assert f"Measured again\n  {CELL}  latency  2 times; before: invalid: contended: another process computed on the unit\n" in text
        assert "--resume" not in text

    def test_lists_in_a_dry_run_what_is_measured_again(self, run):
        run([ok(), CONTENDED, ok()], GOOD)
        assert [CELL] == [str(one.cell) for one in remainder(run.plan, run.folder).expected]


def test_a_cell_that_is_finished_under_another_driver_is_undecided_until_it_is_measured_again_as_a_whole(run):
    run([ok(driver="570")], GOOD)
    mixed, asked = run([ok(driver="580")] * 2, GOOD)
    assert (ROUND[1:], 3, {"ok": 1, "undecided": 1}) == ([one for one in asked if one in ROUND], mixed.exit_code, mixed.run["by_status"])
    with pytest.raises(StoreError):
        accept(run.store, RUN, run.baselines)
    after, asked = run([ok(driver="580")] * 3)
    assert (ROUND, 0) == (asked, after.exit_code)


class TestUntilItHasBeenMeasuredAgain:
    """A cell is what it was: no half of a round stands for it, and nothing older does."""

    @pytest.fixture
    def spoilt(self, run):
        run([ok(), CONTENDED, ok()], GOOD)
        return run

    def check(self, outcome, run):
        assert {"invalid": 1, "ok": 1} == outcome.run["by_status"]
        assert OLD == shown(run.store.read(RUN)[1])
        assert [] == run.store.read_earlier(RUN)
        assert [CELL] == [one["cell"] for one in outcome.run["to_measure_again"]]

    @pytest.mark.parametrize("part", [[], [ok(11.0)], [ok(11.0), LOST, LOST]], ids=["nothing", "one launch", "and what was lost"])
    def test_it_stands_as_it_was_and_is_finished_later(self, spoilt, part):
        outcome, _ = spoilt(part)
        self.check(outcome, spoilt)
        after, asked = spoilt([ok(12.0)] * 3)
        done = sum(one["status"] == "ok" for one in part)
        assert ROUND[done:] == asked, "the round goes on"
        assert (0, 3) == (after.exit_code, len(spoilt.store.read_earlier(RUN)))
        assert [(0, 2, 11.0 if done else 12.0), (1, 2, 12.0), (2, 2, 12.0)] == shown(spoilt.store.read(RUN)[1])

    def test_it_stands_as_it_was_though_a_round_after_it_was_spoilt_as_well_and_not_whole(self, spoilt):
        self.check(spoilt([ok(11.0), ok(converged=False)])[0], spoilt)
        outcome, asked = spoilt([ok(12.0)])
        self.check(outcome, spoilt)
        assert ROUND[:2] == asked, "a third round"
        after, _ = spoilt([ok(13.0)] * 2)
        assert (0, 5) == (after.exit_code, len(spoilt.store.read_earlier(RUN)))

    def test_it_stands_as_it_was_at_first_where_no_round_is_whole(self, run):
        for part in ([ok(), CONTENDED], [ok(11.0), CONTENDED], [ok(12.0)]):
            run(part, GOOD)
        assert OLD[:2] == shown(run.store.read(RUN)[1])

    def test_it_stands_as_it_was_where_no_unit_is_there(self, spoilt):
        self.check(spoilt([], units=0)[0], spoilt)

    def test_it_stands_as_it_was_where_the_budget_is_over(self, spoilt):
        self.check(spoilt([], says={})[0], spoilt)

    def test_it_stands_as_it_was_where_the_process_is_killed(self, spoilt):
        with pytest.raises(KeyError):
            spoilt([], says={OTHER: []})  # as good as killed: nothing is written
        assert OLD == shown(spoilt.store.read(RUN)[1])
        assert '{"again": [["latency", "scale/double/N=8,dtype=fp32@h200"]]}' in (spoilt.folder / JOURNAL).read_text()
        assert 0 == spoilt([ok(12.0)] * 3)[0].exit_code


def test_a_cell_that_has_ended_for_a_reason_of_its_own_is_left_alone_by_resume(run):
    before, _ = run([ok(), bad("invalid", "over_peak: too fast")], GOOD)
    after, asked = run([])
    assert ([], before.exit_code, before.run["by_status"]) == (asked, after.exit_code, after.run["by_status"])


def test_a_launch_that_was_repeated_is_told_of_and_not_forgotten_by_a_resume(run):
    told = [{"launch": "launch-1", "reason": "killed by SIGSEGV"}]
    before, _ = run([ok(), ok(repeats="killed by SIGSEGV"), CONTENDED], GOOD)
    assert told == before.run["repeated_launches"]
    after, _ = run([ok()] * 3)
    assert (0, told) == (after.exit_code, run.store.read_run(RUN)["repeated_launches"])


def test_a_cell_whose_clocks_disagree_in_every_launch_is_not_run_until_green(run):
    before, asked = run([HOST] * 3, GOOD)
    assert (3, []) == (before.exit_code, before.run["to_measure_again"])
    assert ROUND == [one for one in asked if one[0] == CELL], "one launch alone would not tell the host from the code"
    after, asked = run([])
    assert ([], 3, before.run["by_status"]) == (asked, after.exit_code, after.run["by_status"])


@pytest.mark.parametrize(("last", "stands"), [("wrong", False), ("crash", False), ("ok", True)])
def test_a_round_in_which_something_failed_counts_though_it_was_cut_short(last, stands):
    cell = Cell.parse(CELL)
    jobs = [Job("j1", "latency", "unit", "scale", "h200", (cell,), tuple(Turn(n, (cell,)) for n in range(3)), 30.0, 1.0)]
    before = {answer_of(r): [r] for r in records(ok(), CONTENDED, ok())}
    now = {answer_of(r): [r] for r in records(ok(), ok() if last == "ok" else bad(last, None, None))}
    known = Known(dict(now), {("latency", cell): [before]})
    assert stands == bool(_stand(SimpleNamespace(jobs=jobs), known))
    assert known.done == (before if stands else now)
