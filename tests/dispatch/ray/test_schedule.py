"""Who gets which job, and which workers are wanted for what waits."""

from dataclasses import replace

import pytest

from harness.dispatch.ray.fleet import FleetNode
from harness.dispatch.ray.ledger import Assignment
from harness.dispatch.ray.schedule import Seat, give, hopeless, wanted


def node(name, device=None, units=0, cpus=1, *, simulated=False, alive=True):
    return FleetNode(f"id-{name}", name, "127.0.0.2", device, simulated, alive, units, cpus)


GPU = node("gpu", "h200", units=2, cpus=8)
PLAIN = node("plain", cpus=2)
SIM = node("sim", "b200", units=1, simulated=True)


@pytest.fixture
def job(make_job):
    def make(device, on="unit", **kwargs):
        return Assignment(make_job(device, on=on, job_id=f"{on}-{device}-{kwargs.pop('name', 0)}"), **kwargs)

    return make


def tiered(one, tier):
    return replace(one, job=replace(one.job, tier=tier))


def seated(seat_device, on, **kwargs):
    return Seat(seat_device, on, 0, ready=True, **kwargs)


class TestGive:
    def test_a_unit_gets_jobs_of_its_device_and_a_core_the_others(self, job):
        unit, core = seated("h200", GPU), seated(None, PLAIN)
        waiting = [job("b200"), job("h200"), job("cpu")]
        assert [(waiting[1], unit), (waiting[2], core)] == list(give(waiting, [unit, core], [GPU, PLAIN]))

    def test_one_job_a_worker_at_a_time(self, job):
        unit = seated("h200", GPU)
        assert 1 == len(list(give([job("h200", name=1), job("h200", name=2)], [unit], [GPU])))
        assert [] == list(give([job("h200")], [seated("h200", GPU, now=job("h200"))], [GPU]))

    @pytest.mark.parametrize("state", [{"ready": False}, {"bad": "wrong_unit"}], ids=["not ready", "bad"])
    def test_a_worker_that_is_not_ready_gets_none(self, job, state):
        assert [] == list(give([job("h200")], [Seat("h200", GPU, 0, **{"ready": True, **state})], [GPU]))

    def test_never_on_a_host_that_failed(self, job):
        other = node("other", "h200", units=1)
        seats = [seated("h200", GPU), seated("h200", other)]
        again = job("h200", attempt=2, not_on=("gpu",))
        assert [(again, seats[1])] == list(give([again], seats, [GPU, other]))

    def test_a_gpu_waits_until_its_host_has_compiled(self, job):
        unit, core = seated("h200", GPU), seated(None, GPU)
        compiling, timing = job("h200", "host"), job("h200")
        assert [(compiling, core)] == list(give([timing, compiling], [unit, core], [GPU]))
        core.now = compiling
        assert [] == list(give([timing], [unit, core], [GPU]))
        core.now = None
        assert [(timing, unit)] == list(give([timing], [unit, core], [GPU]))

    def test_a_host_that_measures_does_not_compile(self, job):
        unit, core = seated("h200", GPU, now=job("h200")), seated(None, GPU)
        assert [] == list(give([job("h200", "host")], [unit, core], [GPU]))

    def test_a_gpu_does_not_wait_for_what_others_compile(self, job):
        unit = seated("h200", GPU)
        timing = job("h200")
        assert [(timing, unit)] == list(give([timing, job("h200", "host")], [unit], [GPU, PLAIN]))

    def test_a_gpu_does_not_wait_for_what_is_compiled_later_and_that_waits_for_it(self, job):
        unit, core = seated("h200", GPU), seated(None, GPU)
        compiling, timing = tiered(job("h200", "host"), 2), job("h200")
        assert [(timing, unit)] == list(give([timing, compiling], [unit, core], [GPU]))
        unit.ready = False
        assert [] == list(give([timing, compiling], [unit, core], [GPU]))
        assert [(compiling, core)] == list(give([compiling], [unit, core], [GPU]))

    def test_a_host_that_measures_nothing_compiles_for_later_at_once(self, job):
        core, later = seated(None, PLAIN), tiered(job("h200", "host"), 2)
        assert [(later, core)] == list(give([job("h200"), later], [core], [GPU, PLAIN]))

    def test_a_simulated_unit_is_disturbed_by_nothing(self, job):
        unit, core = seated("b200", SIM), seated(None, SIM, now=job("b200", "host"))
        skipped = job("b200")
        assert [(skipped, unit)] == list(give([skipped], [unit, core], [SIM]))


class TestWanted:
    def test_a_worker_for_each_job_as_far_as_units_and_cores_go(self, job):
        waiting = [job("h200", name=n) for n in range(3)] + [job("cpu", name=n) for n in range(3)]
        seats = wanted(waiting, [], [GPU, PLAIN], limit=9)
        assert [("h200", None), ("h200", None), (None, "plain"), (None, "plain")] == [(s.device, s.node and s.node.name) for s in seats]
        assert len(seats) == len({(s.device, s.index) for s in seats})

    def test_no_more_than_the_limit_without_a_gpu(self, job):
        assert 1 == len(wanted([job("cpu", name=n) for n in range(3)], [], [PLAIN], limit=1))

    def test_none_where_one_is_free(self, job):
        assert [] == wanted([job("h200")], [Seat("h200", None, 0)], [GPU], limit=9)
        assert [] == wanted([job("cpu")], [seated(None, PLAIN)], [PLAIN], limit=9)

    def test_an_idle_core_elsewhere_does_not_keep_a_job_waiting_at_the_limit(self, job):
        idle = seated(None, PLAIN)
        assert ["sim"] == [s.node.name for s in wanted([job("b200", "host")], [idle], [PLAIN, SIM], limit=1)]

    def test_a_worker_that_died_is_replaced_until_its_node_is_trusted_no_more(self, job):
        dead = [Seat(None, SIM, n, bad="worker_lost", lost=True) for n in range(3)]
        assert 1 == len(wanted([job("b200", "host")], dead[:2], [SIM], limit=9))
        assert [] == wanted([job("b200", "host")], dead, [SIM], limit=9)

    def test_a_worker_that_was_refused_is_not_replaced(self, job):
        refused = [Seat("h200", GPU, n, bad="wrong_unit: x") for n in range(2)]
        assert [] == wanted([job("h200")], refused, [GPU], limit=9)

    def test_none_for_a_device_that_is_not_there(self, job):
        assert [] == wanted([job("mi300x")], [], [GPU, PLAIN], limit=9)


class TestHopeless:
    @pytest.mark.parametrize("nodes", [[], [PLAIN], [node("gone", "h200", units=1, alive=False)]], ids=["empty", "others", "dead"])
    def test_no_unit_is_no_capacity(self, job, nodes):
        assert ("no_capacity", "no unit of h200 is reachable") == hopeless(job("h200"), [], nodes)

    def test_no_core_is_no_capacity(self, job):
        assert ("no_capacity", "no node has a core") == hopeless(job("cpu"), [], [node("gpu", "h200", units=1, cpus=0)])

    def test_a_busy_unit_is_worth_waiting_for(self, job):
        assert None is hopeless(job("h200"), [seated("h200", GPU, now=job("h200"))], [GPU])

    def test_when_every_unit_was_refused_the_reason_is_theirs(self, job):
        seats = [Seat("h200", GPU, n, bad="wrong_unit: another") for n in range(2)]
        assert None is hopeless(job("h200"), seats[:1], [GPU])
        assert ("infra", "wrong_unit: another") == hopeless(job("h200"), seats, [GPU])

    def test_one_bad_host_of_two_leaves_hope(self, job):
        other = node("other", "h200", units=1)
        seats = [Seat("h200", GPU, n, bad="wrong_unit: another") for n in range(2)]
        assert None is hopeless(job("h200"), seats, [GPU, other])

    def test_a_job_that_has_failed_everywhere_has_no_other_host(self, job):
        assert ("no_capacity", "no other host has one") == hopeless(job("b200", attempt=2, not_on=("sim",)), [], [SIM])
