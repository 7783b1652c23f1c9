"""A cell whose launches do not add up to a time is no pass, whatever each of its records says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from harness.dispatch.doubts import doubt
from harness.dispatch.protocol import CellDone, JobDone
from harness.dispatch.run import describe_run, execute
from harness.dispatch.stamp import Place, stamped
from harness.errors import StoreError
from harness.plan.matrix import Filters
from harness.plan.plan import make_plan
from harness.records import Record
from harness.store.baselines import accept
from harness.store.runs import RunStore

RUN = "20260131T235959-1f2e3d"
OK = {"metric": "latency_us", "value": 10.0, "status": "ok", "reason": None, "samples": [10.0], "converged": True}
UNSETTLED = OK | {"converged": False}
SKIPPED = {"metric": "latency_us", "value": None, "status": "skipped", "reason": "memory: 3 GB are free"}
BESIDE = {"metric": "eager_us", "value": 12.0, "status": "ok", "reason": None, "converged": False}
NOT_WARM = {"metric": "latency_warm_us", "value": None, "status": "skipped", "reason": "warm_footprint"}
INTERPRETED = {"metric": "interpreter_us", "value": 9.0, "status": "ok", "reason": None, "converged": False}


def under(**other: Any) -> dict[str, Any]:
    """A time under a stack."""
    return OK | {"environment": {"driver": "570", "triton": "3.6.0", "lock_digest": "l1", "memory_bytes": 1, "id": "a"} | other}


def records(*launches: Any) -> list[Record]:
    """The records of a cell: of each launch one, or several in a list."""
    names = {"kernel": "scale", "variant": "double", "case": "N=8,dtype=fp32", "dtype": "fp32", "device": "h200", "kind": "latency"}
    each = [launch if isinstance(launch, list) else [launch] for launch in launches]
    return [Record(**names, **columns, position=n) for n, launch in enumerate(each) for columns in launch]


@pytest.mark.parametrize(
    ("launches", "expected"),
    [
        ((OK, OK, OK), None),
        ((OK, SKIPPED), "skipped in 1 of 3 launches: memory: 3 GB are free"),
        ((SKIPPED,), None),
        ((OK, OK), "timed in 2 of 3 launches"),
        ((OK, UNSETTLED, OK), "not converged in 1 of 3 launches"),
        ((UNSETTLED, UNSETTLED, UNSETTLED), "not converged in 3 of 3 launches"),
        (([OK, BESIDE, NOT_WARM], OK, OK), None),
        ((INTERPRETED,), None),
        ((under(), under(memory_bytes=2), under(id="b")), None),
        ((under(), under(triton="3.7.1"), under()), "timed under more than one stack: triton 3.6.0 and 3.7.1"),
        ((under(), under(), under(driver="580")), "timed under more than one stack: driver 570 and 580"),
        ((under(), under(lock_digest="l2"), under()), "timed under more than one stack: lock_digest l1 and l2"),
    ],
    ids=[
        "all timed",
        "one skipped",
        "all skipped",
        "one missing",
        "one unsettled",
        "none settled",
        "figures beside",
        "interpreter",
        "one stack",
        "two tritons",
        "two drivers",
        "other packages",
    ],
)
def test_of_a_cell(launches, expected):
    assert expected == doubt("latency", 3, records(*launches))


class Dispatcher:
    """Has an h200, each of whose launches says of every cell what the test says of its position; nothing where it says nothing."""

    name, dropped = "fake", 0

    def __init__(self, *says: dict[str, Any]) -> None:
        self.says = says

    def capacity(self, devices):
        return dict.fromkeys(devices, 1)

    def submit(self, context, jobs):
        self.context, self.jobs = context, jobs

    def events(self):
        for job in self.jobs:
            for turn, columns in zip(job.turns, self.says, strict=False):
                for cell in turn.cells:
                    record = stamped(self.context, job, turn, cell, Place("GPU-1", "n", 1, "l"), columns)
                    yield CellDone(job, cell, (record,))
            yield JobDone(job)

    def cancel(self): ...

    def close(self): ...


@pytest.fixture
def run(timed_workspace, tmp_path) -> Callable[..., Any]:
    """Runs one latency cell on an h200, three launches: the outcome, and whether `accept` takes the run."""
    workspace = timed_workspace("double")
    store = RunStore(workspace.runs_dir)

    def one(*says: dict[str, Any]) -> Any:
        plan = make_plan(workspace, "HEAD", "all", Filters(), 3)
        described = describe_run(plan, RUN, datetime.now(UTC), {"filters": {}, "require": [], "launches": 3})
        outcome = execute(plan, Dispatcher(*says), store, described, workspace.runs_dir / RUN)
        try:
            accept(store, RUN, tmp_path / "baselines")
        except StoreError as error:
            return outcome, error.found
        return outcome, None

    return one


@pytest.mark.parametrize(
    ("says", "reason"),
    [((OK, SKIPPED), "skipped in 1 of 3 launches: memory: 3 GB are free"), ((OK, OK, UNSETTLED), "not converged in 1 of 3 launches")],
    ids=["skipped", "not converged"],
)
def test_a_run_with_such_a_cell_is_undecided_and_no_baseline(run, says, reason):
    outcome, refused = run(*says)
    assert (3, {"undecided": 1}) == (outcome.exit_code, outcome.run["by_status"])
    assert [{"cell": "scale/double/N=8,dtype=fp32@h200", "kind": "latency", "reason": reason}] == outcome.run["undecided"]
    assert [10.0] == [r.value for r in outcome.records if r.value][:1], "what was measured is kept"
    assert "it did not pass: exit code 3" == refused


def test_a_run_whose_launches_all_settled_passes(run):
    outcome, refused = run(OK, OK, OK)
    assert (0, {"ok": 1}, [], None) == (outcome.exit_code, outcome.run["by_status"], outcome.run["undecided"], refused)
