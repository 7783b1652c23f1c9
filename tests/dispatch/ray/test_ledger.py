"""Attempts, fences and retries: what counts of what a driver says."""

import pytest

from harness.dispatch.protocol import CellDone, JobDone, LeftOut
from harness.dispatch.ray.ledger import Assignment, Ledger
from harness.plan.jobs import Turn
from harness.records import Status


def told(events):
    """Statuses and numbers of the cells, and names of other events."""
    return [
        (int(e.cell.case[2]), e.records[0].position, str(e.records[0].status)) if isinstance(e, CellDone) else type(e).__name__
        for e in events
    ]


def done(job, attempt=1):
    return {"event": "done", "job": job.job_id, "attempt": attempt}


def lost(job, attempt=1, node="a", reason="worker_lost: a: died"):
    return {"event": "lost", "job": job.job_id, "attempt": attempt, "node": node, "reason": reason}


def test_cells_and_jobs_end_as_they_are_told(context, make_job, says):
    job = make_job(cells=2)
    ledger = Ledger(context, [job])
    events = [event for message in (says(job, 0), says(job, 1), done(job)) for event in ledger.take(message)]
    assert [(0, 0, "ok"), (1, 0, "ok"), "JobDone"] == told(events)
    assert [] == ledger.assignments


@pytest.mark.parametrize(
    ("repeats", "why"), [(None, None), ("killed by SIGSEGV", "killed by SIGSEGV"), ([0], "[0]"), ("x" * 999, "x" * 500)]
)
def test_a_launch_that_was_repeated_is_told_of(context, make_job, says, repeats, why):
    job = make_job(cells=1)
    (cell,) = Ledger(context, [job]).take(says(job, 0) | {"repeats": repeats})
    assert why == cell.repeats


def test_a_lost_job_is_tried_again_elsewhere_with_the_cells_that_are_left(context, make_job, says):
    job = make_job(cells=3)
    ledger = Ledger(context, [job])
    list(ledger.take(says(job, 0)))
    (again,) = ledger.take(lost(job))
    assert isinstance(again, Assignment)
    assert (2, ("a",), job.cells[1:]) == (again.attempt, again.not_on, again.job.turns[0].cells)


def refused(job, attempt=1):
    return {"event": "failed", "job": job.job_id, "attempt": attempt, "status": "cancelled", "reason": "budget: over"}


def test_a_job_that_the_budget_refused_is_left_out(context, make_job):
    job = make_job(cells=2)
    ledger = Ledger(context, [job])
    assert [LeftOut(job, "budget: over")] == list(ledger.take(refused(job)))
    assert [] == ledger.assignments


def test_one_that_was_lost_before_the_budget_refused_it_is_infrastructures_fault(context, make_job, says):
    job = make_job(cells=2)
    ledger = Ledger(context, [job])
    list(ledger.take(says(job, 0)))
    list(ledger.take(lost(job)))
    cell, _done = ledger.take(refused(job, attempt=2))
    assert ("infra", "worker_lost: a: died; tried again: budget: over") == (cell.records[0].status, cell.records[0].reason)


def test_what_is_left_of_a_job_is_expected_to_take_less(context, make_job, says):
    job = make_job(cells=4)
    ledger = Ledger(context, [job])
    list(ledger.take(says(job, 0)))
    (again,) = ledger.take(lost(job))
    assert (10.0, 7.5) == (job.expected_s, again.job.expected_s)


def test_what_a_fenced_attempt_still_sends_is_dropped_and_counted(context, make_job, says):
    job = make_job(cells=2)
    ledger = Ledger(context, [job])
    list(ledger.take(lost(job)))
    assert [] == list(ledger.take(says(job, 0, attempt=1)))
    assert [] == list(ledger.take(done(job, attempt=1)))
    assert 2 == ledger.dropped
    assert [(0, 0, "ok")] == told(ledger.take(says(job, 0, attempt=2)))


def test_a_job_is_lost_three_times_at_most(context, make_job, says):
    job = make_job(cells=2)
    ledger = Ledger(context, [job])
    list(ledger.take(says(job, 1)))
    events = [event for attempt, node in enumerate("abc", 1) for event in ledger.take(lost(job, attempt, node))]
    assert [Assignment, Assignment, CellDone, JobDone] == [type(e) for e in events]
    assert ("a", "b") == events[1].not_on
    (record,) = events[2].records
    assert ("infra", "worker_lost: a: died", 3, "N=0,dtype=fp32") == (record.status, record.reason, record.attempt, record.case)


def test_a_job_that_was_lost_after_its_last_cell_is_done(context, make_job, says):
    job = make_job(cells=1)
    ledger = Ledger(context, [job])
    list(ledger.take(says(job, 0)))
    assert ["JobDone"] == told(ledger.take(lost(job)))


def test_where_no_other_host_is_the_loss_is_the_reason(context, make_job, says):
    job = make_job(cells=1)
    ledger = Ledger(context, [job])
    list(ledger.take(lost(job)))
    failed = {"event": "failed", "job": job.job_id, "attempt": 2, "status": "no_capacity", "reason": "no other host has one"}
    event = next(ledger.take(failed))
    assert ("infra", "worker_lost: a: died; tried again: no other host has one") == (event.records[0].status, event.records[0].reason)


@pytest.mark.parametrize(
    ("told_status", "status"), [("no_capacity", "no_capacity"), ("queue_timeout", "queue_timeout"), ("infra", "infra"), ("ok", "infra")]
)
def test_a_job_that_nobody_took_says_why(context, make_job, told_status, status):
    job = make_job(cells=2)
    ledger = Ledger(context, [job])
    events = list(ledger.take({"event": "failed", "job": job.job_id, "attempt": 1, "status": told_status, "reason": "why"}))
    assert [(0, 0, status), (1, 0, status), "JobDone"] == told(events)


def test_a_cell_that_failed_is_not_measured_again_by_the_next_attempt(context, make_job, says):
    turns = (Turn(0, ()), Turn(1, ()))
    job = make_job("h200", cells=2, turns=turns, kind="correctness")
    ledger = Ledger(context, [job])
    list(ledger.take(says(job, 0, status=Status.CRASH)))
    (again,) = ledger.take(lost(job))
    assert [(0, job.cells[1:]), (1, job.cells[1:])] == [(t.position, t.cells) for t in again.job.turns]


def test_a_torn_block_is_measured_whole_again(context, make_job, says):
    context.arms["base"] = context.arms["head"]
    turns = tuple(Turn(i, (), arm, block) for i, (arm, block) in enumerate([("base", 0), ("head", 0), ("base", 1), ("head", 1)]))
    job = make_job("h200", cells=1, turns=turns)
    ledger = Ledger(context, [job])
    for turn in (0, 1, 2):
        list(ledger.take(says(job, 0, turn=turn)))
    (again,) = ledger.take(lost(job))
    assert [2, 3] == [turn.position for turn in again.job.turns]


def test_a_lost_head_ends_all_that_is_left(context, make_job, says):
    ended, begun, waiting = make_job(cells=1), make_job("a10g", cells=2), make_job("b200", cells=1)
    ledger = Ledger(context, [ended, begun, waiting])
    for message in (says(ended, 0), done(ended), says(begun, 0)):
        list(ledger.take(message))
    events = list(ledger.give_up("head_lost: gone"))
    assert [(1, 0, "infra"), "JobDone", (0, 0, "infra"), "JobDone"] == told(events)
    assert {"head_lost: gone"} == {e.records[0].reason for e in events if isinstance(e, CellDone)}


HOSTILE = {
    "a pickle": "\x80\x04cposix\nsystem\n",
    "not JSON": "{",
    "no list": "{}",
    "nothing": "[]",
    "NaN": '[{"value": NaN}]',
    "too deep": "[" * 100_000,
    "another shape": '[{"value": 1}]',
    "no text": 5,
}


@pytest.mark.parametrize("records", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_record_costs_its_own_job(context, make_job, says, records):
    job, other = make_job(cells=1), make_job("a10g", cells=1)
    ledger = Ledger(context, [job, other])
    assert [] == list(ledger.take({"event": "cell", "job": job.job_id, "attempt": 1, "records": records}))
    events = [*ledger.take(done(job)), *ledger.take(says(other, 0)), *ledger.take(done(other))]
    assert [(0, 0, "invalid"), "JobDone", (0, 0, "ok"), "JobDone"] == told(events)
    assert events[0].records[0].reason.startswith("bad_message: ")
    assert 1 == ledger.refused


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": "run-2"},
        {"job_id": "other"},
        {"kind": "latency"},
        {"attempt": 7},
        {"case": "N=7,dtype=fp32"},
        {"device": "b200"},
        {"arm": "base"},
        {"position": 5},
        {"block": 1},
        {"code_digest": "e" * 64},
        {"commit": None},
        {"value": 1e308, "grid": 5},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_record_of_something_else_is_refused(context, make_job, says, changes):
    job = make_job(cells=1)
    ledger = Ledger(context, [job])
    message = {**says(job, 0, **changes), "attempt": 1}
    assert [] == list(ledger.take(message))
    assert 1 == ledger.refused


@pytest.mark.parametrize("message", [{}, {"event": "cell"}, {"event": "done", "job": "none"}, {"event": "x", "job": "correctness-cpu"}])
def test_a_message_that_is_none_is_counted(context, make_job, message):
    ledger = Ledger(context, [make_job()])
    assert [] == list(ledger.take(message))
    assert 1 == ledger.refused
