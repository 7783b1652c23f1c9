"""A run with a budget of time: what is left out is said of every cell, and is resumed; on one machine, with real launches."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from harness.authoring.workspace import find_workspace
from harness.devices.units import Unit
from harness.dispatch.local import LocalDispatcher
from harness.dispatch.protocol import ArmCode, CellDone, LeftOut, RunContext
from harness.dispatch.run import describe_run, execute, new_run_id
from harness.dispatch.stamp import Place, failure
from harness.plan.budget import Allowance, tiers
from harness.plan.describe import CaseInfo, Description, KernelInfo, KindCell, KindInfo
from harness.plan.jobs import Job, Turn
from harness.plan.matrix import Filters
from harness.plan.plan import make_plan, with_jobs
from harness.records import Cell, Status
from harness.store.runs import RunStore


class Fake:
    """A dispatcher that carries out what `does` says of a job: an event, or several."""

    name, dropped = "fake", 0

    def __init__(self, does, device="cpu"):
        self.does, self.device, self.jobs = does, device, []

    def capacity(self, devices):
        return {d: int(d == self.device) for d in devices}

    def prepare(self, scratch, devices, kinds): ...

    def submit(self, context, jobs):
        self.context, self.jobs = context, list(jobs)

    def events(self):
        for job in self.jobs:
            yield from self.does(self.context, job)

    def cancel(self): ...

    def close(self): ...


def measured(context, job, turns=None):
    """Every cell of these turns of a job is right."""
    for turn in job.turns if turns is None else turns:
        for cell in turn.cells:
            place = Place("cpu:0", "node", 1, "lease")
            yield CellDone(job, cell, (failure(context, job, turn, cell, place, Status.OK, None),))


def refused(context, job):
    yield LeftOut(job, "budget: about 5 s by the plan, 1 s of 10s left")


def first_only(case):
    """Measures the jobs of a case, leaves out those of others."""
    return lambda context, job: measured(context, job) if job.cells[0].case.startswith(case) else refused(context, job)


@pytest.fixture(autouse=True)
def _described(repository, monkeypatch):
    """Two kinds, and what `describe` says of one variant, without the seconds that importing torch takes."""
    for kind in ("latency", "correctness"):
        repository.job("pass", kind=kind)
    cases = [CaseInfo("N=8,dtype=fp32", ["cpu", "smoke"]), CaseInfo("N=9,dtype=fp32", ["cpu", "ragged"])]
    kernel = KernelInfo("scale", "kernels/scale.py", "", ["double"], "double", "double", cases, [], False, False)
    cells = [KindCell("scale", "double", case.case, None) for case in cases]
    kinds = [KindInfo(name, f"{name}.py", "unit", 1.0, 60.0, name == "latency", cells) for name in ("correctness", "latency")]
    monkeypatch.setattr("harness.plan.plan.describe", lambda workspace: Description([kernel], kinds))


@pytest.fixture
def plan(repository):
    """The repository's correctness cells, a job each, tried on `cpu`."""
    found = make_plan(find_workspace(repository.root), "worktree", "all", Filters())
    return with_jobs(found, 1, longest_s=0.5, tier=tiers(found.description, None))


@pytest.fixture
def go(repository, plan):
    """Runs the plan, and again where a run is given."""
    store = RunStore(repository.root / ".harness/runs")

    def run(dispatcher, again=None, budget_s=10.0, of=plan, **options):
        now = datetime.now(UTC)
        told = again.run if again else describe_run(of, new_run_id(now), now, {"filters": {}, "require": [], "launches": 1})
        return execute(of, dispatcher, store, told, repository.root / ".harness/runs" / told["run_id"], budget_s=budget_s, **options)

    return run


def ended(outcome):
    return {r.case.split(",")[0]: (r.status, r.reason) for r in outcome.records}


LEFT = ("cancelled", "budget: about 5 s by the plan, 1 s of 10s left")


class TestWhatIsLeftOut:
    def test_is_cancelled_with_its_reason_and_the_run_passes(self, go):
        outcome = go(Fake(first_only("N=8")))
        assert {"N=8": ("ok", None), "N=9": LEFT} == ended(outcome)
        assert (0, {"cancelled": 1, "ok": 1}) == (outcome.exit_code, outcome.run["by_status"])

    def test_is_undecided_where_its_device_is_required(self, go):
        outcome = go(Fake(first_only("N=8")), require=["cpu"])
        assert (3, ["cpu"], []) == (outcome.exit_code, outcome.run["required_left_out"], outcome.run["required_missing"])

    def test_does_not_hide_a_required_device_that_is_not_there(self, go):
        outcome = go(Fake(measured), require=["h200"])
        assert (3, [], ["h200"]) == (outcome.exit_code, outcome.run["required_left_out"], outcome.run["required_missing"])

    def test_being_everything_is_undecided(self, go):
        assert 3 == go(Fake(refused)).exit_code

    def test_hides_no_failure(self, go):
        def wrong(context, job):
            for done in measured(context, job):
                (record,) = done.records
                yield CellDone(job, done.cell, (failure(context, job, job.turns[0], record.cell, Place(), Status.WRONG, "off"),))

        assert 1 == go(Fake(lambda context, job: wrong(context, job) if "N=8" in job.cells[0].case else refused(context, job))).exit_code

    def test_is_all_that_resuming_runs(self, go):
        first = go(Fake(first_only("N=8")))
        rest = Fake(measured)
        again = go(rest, again=first, budget_s=None)
        assert [["N=9"]] == [[c.case.split(",")[0] for c in job.cells] for job in rest.jobs]
        assert ({"N=8": ("ok", None), "N=9": ("ok", None)}, 0) == (ended(again), again.exit_code)

    def test_may_be_left_out_again(self, go):
        first = go(Fake(first_only("N=8")))
        assert {"N=8": ("ok", None), "N=9": LEFT} == ended(go(Fake(refused), again=first))

    def test_is_not_said_of_a_device_that_is_not_there(self, go):
        assert {"no_capacity"} == {status for status, _ in ended(go(Fake(refused, device="none"))).values()}


def test_a_cell_with_some_launches_from_before_counts_as_left_out(repository, go):
    """Stopped after one launch of two, resumed with too little time: half of a cell is no pass, and nothing known is lost."""
    repository.write("jobs/matrix.toml", '[[all.cells]]\nkind = "latency"\ndevices = ["h200"]\n')
    found = make_plan(find_workspace(repository.root), "worktree", "all", Filters(cases=("N=8,*",)), launches=2)

    stopped = go(Fake(lambda context, job: measured(context, job, job.turns[:1]), "h200"), of=found, budget_s=None)
    outcome = go(Fake(refused, "h200"), again=stopped, of=found)
    assert [("ok", 0, 1), ("cancelled", None, 1)] == [(r.status, r.position, r.attempt) for r in outcome.records]
    assert {"cancelled": 1} == outcome.run["by_status"]
    whole = go(Fake(measured, "h200"), again=outcome, of=found, budget_s=None)
    assert [("ok", 0), ("ok", 1)] == [(r.status, r.position) for r in whole.records]


class TestOnThisMachine:
    def test_a_job_starts_only_while_there_is_time_for_it(self, go, plan):
        outcome = go(LocalDispatcher(1), budget_s=0.5)  # a cell is expected to take a second
        assert {"cancelled"} == {r.status for r in outcome.records}
        assert {"budget: about 1 s by the plan"} == {r.reason.split(",")[0] for r in outcome.records}

    def test_time_is_asked_for_again_when_a_job_is_due(self, go, monkeypatch):
        asked = []

        class Over(Allowance):
            """Has time for every job at first, and for none once one is done."""

            def refusal(self, job):
                asked.append(job)
                return "budget: over" if len(asked) > 3 else None

        monkeypatch.setattr("harness.dispatch.run.Allowance", Over)
        outcome = go(LocalDispatcher(1))
        assert {"N=8": ("ok", None), "N=9": ("cancelled", "budget: over")} == ended(outcome)

    def test_nothing_is_started_for_jobs_that_have_no_time(self, repository, monkeypatch):
        dispatcher = LocalDispatcher(1)
        monkeypatch.setattr(dispatcher._servers, "get", None)  # a fork server that is asked for is an error
        cells = (Cell("scale", "double", "N=8,dtype=fp32", "cpu"),)
        jobs = [Job(f"j{n}", "correctness", "unit", "scale", "cpu", cells, (Turn(0, cells),), 60.0, 10.0) for n in range(2)]
        arms = {"head": ArmCode(None, "t", True, "d", repository.root)}
        dispatcher.submit(RunContext("r", arms, repository.root, repository.root, {}, Allowance.starting_now(5.0)), jobs)
        assert [LeftOut, LeftOut] == [type(event) for event in dispatcher.events()]
        dispatcher.close()

    def test_what_comes_first_is_compiled_and_measured_before_the_rest_is_compiled(self, monkeypatch, repository):
        carried = []

        class Noting:
            def __init__(self, context, unit, *_):
                self.unit = unit

            def __enter__(self):
                return self

            def __exit__(self, *_): ...

            def run(self, job):
                carried.append((job.job_id, self.unit.device))
                return ()

        dispatcher = LocalDispatcher(1)
        dispatcher._units = [replace(Unit.interpreter(0), uuid="GPU-1", device="h200")]
        monkeypatch.setattr(dispatcher._servers, "get", lambda *_: None)
        monkeypatch.setattr("harness.dispatch.local.UnitWorker", Noting)
        arms = {"head": ArmCode(None, "t", True, "d", repository.root)}
        dispatcher.submit(
            RunContext("r", arms, repository.root, repository.root, {}), [_job("gpu"), _job("host"), _job("host", 2), _job("gpu", 2)]
        )
        list(dispatcher.events())
        assert [("host-0", "cpu"), ("gpu-0", "h200"), ("host-2", "cpu"), ("gpu-2", "h200")] == carried


def _job(where, tier=0):
    cells = (Cell("scale", "double", "N=8,dtype=fp32", "h200"),)
    on = "host" if where == "host" else "unit"
    return Job(f"{where}-{tier}", "latency", on, "scale", "h200", cells, (Turn(0, cells),), 60.0, 1.0, tier)
