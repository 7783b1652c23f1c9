"""A cell of which only a part was measured is no answer: its run says so, has no pairs of it, and measures the rest when it is resumed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from harness.dispatch import run as run_module
from harness.dispatch.blocks import spoils
from harness.dispatch.protocol import CellDone, JobDone
from harness.dispatch.run import describe_run, execute
from harness.dispatch.stamp import Place, stamped
from harness.plan.matrix import Filters
from harness.plan.plan import make_plan
from harness.store.lookup import Results
from harness.store.runs import RunStore

OK = {"metric": "latency_us", "value": 10.0, "status": "ok", "reason": None, "samples": [10.0], "converged": True}
CRASH = {"metric": None, "value": None, "status": "crash", "reason": "killed by SIGSEGV"}
CONTENDED = {"metric": None, "value": None, "status": "invalid", "reason": "contended: the copy canary takes 900 us"}
STOPPED = ("cancelled", "the run was stopped")
ENDED = ("lost", "its job ended before all of its launches were made")
BLOCK = 4


class Dispatcher:
    """An h200 that makes so many launches and no more, each of which says of its cell what the test says of its position, else OK."""

    name, dropped = "fake", 0
    numbers = itertools.count()
    """Of dispatchers: a lease is of one, and ids come back."""

    def __init__(self, launches: int, says: dict[int, Any], units: int = 1) -> None:
        self.number = next(self.numbers)
        self.launches, self.says, self.units, self.made = launches, says, units, []

    def capacity(self, devices):
        return dict.fromkeys(devices, self.units)

    def submit(self, context, jobs):
        self.context, self.jobs = context, jobs

    def events(self):
        for job in self.jobs:
            spoilt = set()
            for turn in job.turns[: self.launches]:
                if turn.arm in spoilt:
                    continue
                self.made.append(turn.position)
                place = Place("GPU-1", "n", 1, f"lease {self.number}")
                record = stamped(self.context, job, turn, job.cells[0], place, self.says.get(turn.position, OK))
                spoilt |= {turn.arm} if spoils([record]) else set()
                yield CellDone(job, job.cells[0], (record,))
            yield JobDone(job)

    def cancel(self): ...

    def close(self): ...


@pytest.fixture
def run(repository, timed_workspace, monkeypatch) -> Callable[..., Any]:
    """Runs, or goes on with, a run of one variant's times: the outcome, and the launches that were made."""
    workspace = timed_workspace("double")
    repository.git("checkout", "-q", "-b", "pr")
    repository.write("kernels/scale.py", (repository.root / "kernels/scale.py").read_text() + "# changed\n")
    repository.commit()
    store = RunStore(workspace.runs_dir)
    known: dict[str, Any] = {}

    def one(launches: int = 99, says: dict[int, Any] | None = None, *, stop: bool = False, against: str = "main", units: int = 1) -> Any:
        @contextmanager
        def signals(_):
            event = threading.Event()
            event.set() if stop else None
            yield event

        monkeypatch.setattr(run_module, "_signals", signals)
        plan = known.setdefault("plan", make_plan(workspace, "pr", "all", Filters(), None, against or None))
        options = {"filters": {}, "require": [], "launches": 6}
        run = known.setdefault("run", describe_run(plan, "20260131T235959-1f2e3d", datetime.now(UTC), options))
        dispatcher = Dispatcher(launches, says or {}, units)
        return execute(plan, dispatcher, store, run, workspace.runs_dir / run["run_id"]), dispatcher.made

    def pairs() -> int:
        found = Results(store, RunStore(workspace.runs_dir / "none"), workspace.baselines_dir)
        digests = known["plan"].base.tree.code_digest, known["plan"].tree.code_digest
        return len(found.pairs(*digests, dirty=False).head)

    one.pairs = pairs
    return one


def told(outcome) -> list[tuple[str, str | None]]:
    """What the run says of the cell beside its launches."""
    return [(r.status, r.reason) for r in outcome.records if r.position is None]


class TestAPairedCellThatWasStopped:
    @pytest.mark.parametrize("launches", [2 * BLOCK, 3 * BLOCK - 1, 2], ids=["between two blocks", "within the last", "within the first"])
    def test_has_no_pairs_and_its_run_says_so(self, run, launches):
        outcome, _ = run(launches, stop=True)
        assert (130, [STOPPED], 0) == (outcome.exit_code, told(outcome), run.pairs())

    @pytest.mark.parametrize("launches", [2 * BLOCK, 2 * BLOCK + 1])
    def test_has_all_its_pairs_when_it_is_resumed(self, run, launches):
        run(launches, stop=True)
        outcome, made = run()
        assert (list(range(2 * BLOCK, 3 * BLOCK)), 0, []) == (made, outcome.exit_code, told(outcome))
        assert 6 == run.pairs()

    def test_is_undecided_where_no_unit_is_there_when_it_is_resumed(self, run):
        run(2 * BLOCK, stop=True)
        outcome, _ = run(units=0)
        assert (3, [ENDED], 0) == (outcome.exit_code, told(outcome), run.pairs())


def test_a_cell_whose_job_ended_before_all_of_its_launches_is_undecided(run):
    outcome, _ = run(2 * BLOCK)
    assert (3, {"lost": 1}, [ENDED]) == (outcome.exit_code, outcome.run["by_status"], told(outcome))
    assert 0 == run.pairs()


def test_a_cell_that_is_not_paired_is_cut_short_as_well(run):
    outcome, _ = run(2, stop=True, against="")
    assert (130, {"cancelled": 1}, [STOPPED]) == (outcome.exit_code, outcome.run["by_status"], told(outcome))
    after, made = run()
    assert ([2], 0, []) == (made, after.exit_code, told(after))


@pytest.mark.parametrize(
    ("says", "status"),
    [({1: CRASH}, "crash"), ({0: CONTENDED, 1: CONTENDED}, "invalid"), ({0: CRASH}, "ok")],
    ids=["head crashed", "the unit was refused", "base crashed"],
)
def test_nothing_is_missing_of_a_cell_of_which_records_say_why_there_are_no_more(run, says, status):
    launches = 2 if status == "invalid" else 99
    outcome, _ = run(launches, says)
    assert ({status: 1}, []) == (outcome.run["by_status"], told(outcome))
