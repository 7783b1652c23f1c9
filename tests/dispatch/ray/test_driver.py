"""The driver's bookkeeping, with a pool that only notes what it is told: nothing of Ray is needed."""

import socket
import time
from dataclasses import dataclass, field, replace

import pytest

import harness
from harness.dispatch.ray.code import engine_digest
from harness.dispatch.ray.driver import Driver
from harness.dispatch.ray.fleet import FleetNode
from harness.dispatch.ray.ledger import Assignment
from harness.dispatch.ray.messages import Settings, read_line
from harness.dispatch.ray.schedule import Seat
from harness.plan.budget import Allowance

GPU = FleetNode("1", "gpu", "127.0.0.2", "h200", False, True, 1, 4)
HELLO = {"node_id": "1", "harness": harness.__version__, "engine": engine_digest(), "problem": None}


@dataclass(eq=False)
class FakeHand:
    seat: Seat


@dataclass
class FakePool:
    """Notes what is asked of it."""

    hands: list[FakeHand] = field(default_factory=list)
    prepared: list[FakeHand] = field(default_factory=list)

    @property
    def seats(self):
        return [hand.seat for hand in self.hands]

    def open(self, seat, simulated):
        self.hands.append(FakeHand(seat))

    def prepare(self, hand, node):
        self.prepared.append(hand)

    def give(self, hand, one):
        hand.seat.now = one

    def fence(self, hand):
        self.hands.remove(hand)


@pytest.fixture
def driver():
    """A driver whose messages are read by `said`."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    made = Driver(theirs, Settings("127.0.0.2:1", max_queue_s=10.0))
    made.pool, made.nodes, made.reader = FakePool(), [GPU], ours
    yield made
    ours.close()
    theirs.close()


def said(driver):
    try:
        return [read_line(line) for line in driver.reader.recv(1 << 20).splitlines()]
    except BlockingIOError:
        return []


def seated(driver, job):
    """A worker that has said hello and was given the job."""
    driver.waiting.append(Assignment(job))
    driver._seat()
    (hand,) = driver.pool.hands
    driver._welcome(hand, HELLO)
    hand.seat.ready = True
    driver._seat()
    assert hand.seat.now.job == job
    return hand


def test_a_job_opens_a_worker_and_is_given_to_it_when_it_is_ready(driver, make_job):
    hand = seated(driver, make_job("h200"))
    assert ([hand], []) == (driver.pool.prepared, driver.waiting)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        ({"harness": "0.0.1"}, f"version_skew: gpu has harness 0.0.1 ({engine_digest()[:12]}), this is harness {harness.__version__}"),
        ({"engine": "e" * 64}, "version_skew: gpu has harness"),
        ({"problem": "wrong_unit: a unit of h200: no GPU"}, "wrong_unit: a unit of h200: no GPU (on gpu)"),
    ],
    ids=["another version", "another engine", "another GPU"],
)
def test_a_worker_that_is_not_what_it_should_be_gets_nothing_and_its_jobs_end(driver, make_job, hello, reason):
    job = make_job("h200")
    driver.waiting.append(Assignment(job))
    driver._seat()
    (hand,) = driver.pool.hands
    driver._welcome(hand, {**HELLO, **hello})
    assert ([], []) == (driver.pool.prepared, driver.pool.hands)
    driver._seat()
    (failed,) = said(driver)
    assert ("failed", job.job_id, "infra") == (failed["event"], failed["job"], failed["status"])
    assert failed["reason"].startswith(reason)


def test_a_job_that_the_budget_has_no_time_for_ends_and_a_shorter_one_is_given(driver, make_job):
    driver._allowance = Allowance.starting_now(9.0)
    long, short = make_job("h200", job_id="long"), replace(make_job("h200", job_id="short"), expected_s=5.0)
    driver.waiting.append(Assignment(long))
    hand = seated(driver, short)
    (failed,) = said(driver)
    assert ("failed", "long", "cancelled") == (failed["event"], failed["job"], failed["status"])
    assert failed["reason"].startswith("budget: about 10 s by the plan")
    driver._allowance = Allowance(9.0, time.monotonic() - 10.0)
    driver._seat()
    assert short == hand.seat.now.job  # what was started is never cut short


@pytest.mark.parametrize(("alive", "blame"), [(True, "worker_lost"), (False, "node_lost")])
def test_a_worker_that_died_is_blamed_after_the_next_look_at_the_nodes(driver, make_job, alive, blame):
    hand = seated(driver, make_job("h200"))
    driver._lose(hand, "the actor died")
    driver._bury()
    assert [] == said(driver)
    driver.nodes = [FleetNode(**{**vars(GPU), "alive": alive})]
    driver._looked = time.monotonic()
    driver._bury()
    (lost,) = said(driver)
    assert ("lost", 1, "gpu", f"{blame}: gpu: the actor died") == (lost["event"], lost["attempt"], lost["node"], lost["reason"])


def test_a_node_where_the_harness_is_not_installed_is_a_skew(driver, make_job):
    driver.waiting.append(Assignment(make_job("h200")))
    driver._seat()
    (hand,) = driver.pool.hands
    driver._lose(hand, "ModuleNotFoundError: No module named 'harness'")
    driver._looked = time.monotonic()
    driver._bury()
    assert hand.seat.bad.startswith("version_skew: harness cannot be imported on a node")
    assert not hand.seat.lost


class TestTheQueue:
    def test_a_device_that_others_hold_too_long_is_given_up(self, driver, make_job, monkeypatch):
        job = make_job("h200")
        driver.waiting.append(Assignment(job))
        driver._seat()
        now = time.monotonic()
        monkeypatch.setattr("harness.dispatch.ray.driver.time.monotonic", lambda: now + 11)
        driver._seat()
        (failed,) = said(driver)
        assert ("queue_timeout", "no unit of h200 came free within 10 s") == (failed["status"], failed["reason"])

    def test_waiting_for_ones_own_jobs_is_no_queue(self, driver, make_job, monkeypatch):
        seated(driver, make_job("h200", job_id="first"))
        driver.waiting.append(Assignment(make_job("h200", job_id="second")))
        driver._seat()
        now = time.monotonic()
        monkeypatch.setattr("harness.dispatch.ray.driver.time.monotonic", lambda: now + 11)
        driver._seat()
        assert [] == said(driver)

    def test_the_only_node_that_dies_while_jobs_wait_is_no_capacity(self, driver, make_job):
        driver.waiting.append(Assignment(make_job("h200")))
        driver._seat()
        driver.nodes = []
        driver._seat()
        assert "no_capacity" == said(driver)[0]["status"]


def test_a_job_that_ended_by_cancelling_is_not_told_as_done(driver, make_job):
    job = make_job("h200")
    hand = seated(driver, job)
    driver._pass_on(hand, {"type": "done", "job": job.job_id, "attempt": 1, "cancelled": True})
    assert ([], None) == (said(driver), hand.seat.now)


def test_a_worker_that_could_not_go_on_loses_its_job(driver, make_job):
    job = make_job("h200")
    hand = seated(driver, job)
    driver._pass_on(hand, {"type": "done", "job": job.job_id, "attempt": 1, "cancelled": False, "problem": "No space left on device"})
    (lost,) = said(driver)
    assert ("lost", "worker_lost: No space left on device") == (lost["event"], lost["reason"])


def test_a_cell_is_passed_on_with_what_the_worker_says_of_its_launch(driver, make_job):
    job = make_job("h200")
    driver._pass_on(seated(driver, job), {"type": "cell", "job": job.job_id, "attempt": 1, "records": "[]", "repeats": "killed by SIGSEGV"})
    assert [{"event": "cell", "job": job.job_id, "attempt": 1, "records": "[]", "repeats": "killed by SIGSEGV"}] == said(driver)
