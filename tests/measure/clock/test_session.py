import pytest
import torch
from fake_device import FakeDevice, Script
from toys import QUICK, session_on

from harness.measure.clock.program import Program
from harness.measure.clock.validity import InvalidTiming, Reason


def graph_of(session, calls, us=5.0):
    kernel = session.device.empty((1, 1, 1))
    session.device.script.launch_us = us
    return session.device.capture([kernel] * calls, session.device.new_pool())


def test_samples_contain_no_time_of_enqueueing():
    session = session_on(enqueue_us=90.0)
    batch = session.take([graph_of(session, 100)], 100, 10)
    assert batch.samples == pytest.approx([5.0 + 2.0 / 100] * 10, rel=1e-3)


def test_a_batch_knows_what_both_clocks_say():
    session = session_on()
    batch = session.take([graph_of(session, 100)], 100, 10)
    assert batch.device_us == pytest.approx(11 * 502, rel=0.01)
    assert batch.wall_us == pytest.approx(batch.device_us, rel=0.02)


def test_several_graphs_make_one_sample():
    session = session_on()
    graphs = [graph_of(session, 50), graph_of(session, 50)]
    batch = session.take(graphs, 100, 5)
    assert batch.samples == pytest.approx([5.0 + 3.0 / 100] * 5, rel=1e-3)


def test_the_device_is_warmed_up_once_and_after_idling_for_as_long_as_it_idled():
    session = session_on(warm_up_s=0.5)
    device = session.device
    graph = graph_of(session, 1)

    def warm_up_s():
        begin = device.now_ns()
        session.keep_warm()
        return (device.now_ns() - begin) * 1e-9

    first, second = warm_up_s(), warm_up_s()
    device.sleep_us(19_000)
    third = warm_up_s()
    device.sleep_us(100_000)
    fourth = warm_up_s()
    device.sleep_us(2_000_000)
    fifth = warm_up_s()
    graph.release()
    assert [0.6, 0.0, 0.0, 0.1, 0.5] == [pytest.approx(s, abs=0.01) for s in (first, second, third, fourth, fifth)]


def test_a_single_replay_finds_nothing_in_the_cache_and_replays_in_a_row_do():
    session = session_on()
    lines = torch.ones(40, 64)
    touches = [session.device.touch((1, 1, 1), line, line) for line in lines]
    graph = session.device.capture(touches, session.device.new_pool())
    marks_and_gap = 3.0 / 40
    assert session.take_cold(graph, 40, 5) == pytest.approx([0.7 + 256 / 1e3 + marks_and_gap] * 5, abs=0.1)
    assert session.take([graph], 40, 5).samples == pytest.approx([0.7 + 256 / 4e3 + marks_and_gap] * 5, abs=0.1)


def test_what_prepares_a_batch_is_in_no_sample():
    session = session_on()
    graph = graph_of(session, 100)
    batch = session.take([graph], 100, 5, lambda: session.device.run(lambda: session.device.sleep_us(5000)))
    assert max(batch.samples) < 5.1


def test_what_is_replayed_between_samples_is_in_none_and_in_what_both_clocks_are_held_by():
    session = session_on()
    call, between = graph_of(session, 100), graph_of(session, 20)
    batch = session.take([call], 100, 5, between=(between,))
    assert batch.samples == pytest.approx([5.0 + 2.0 / 100] * 5, rel=1e-3)
    assert batch.device_us == pytest.approx(6 * (502 + 102), rel=0.01)
    assert batch.wall_us == pytest.approx(batch.device_us, rel=0.02)


def paused_in_its_batch(pauses_at):
    """A session, a batch of which the host stands still after the waits that are asked for, and how often the host waited for it."""
    session = session_on()
    assert session.clock.host_us > 0, "the clock's own floors are taken before"
    graph, begun = graph_of(session, 100), session.device.waits
    session.device.script.pause_us = lambda waits: 75_000.0 if pauses_at(waits - begun) else 0.0
    return session, session.take([graph], 100, 10), session.device.waits - begun


def test_samples_over_which_the_host_stood_still_are_taken_once_more():
    session, batch, waits = paused_in_its_batch(lambda wait: wait == 0)
    assert waits == 2
    assert batch.wall_us == pytest.approx(batch.device_us, rel=0.02)
    session.check_host([batch])


def test_a_host_that_always_takes_longer_than_the_device_says_is_no_pause():
    session, batch, waits = paused_in_its_batch(lambda wait: True)
    assert waits == 2
    assert batch.wall_us > 75_000
    with pytest.raises(InvalidTiming, match="host_clock"):
        session.check_host([batch])


def test_a_device_clock_that_runs_slow_disagrees_with_the_host():
    session = session_on()
    graph = graph_of(session, 100)
    assert session.clock.tick_us > 0
    session.device.script.clock_divisor = 2.0
    with pytest.raises(InvalidTiming) as caught:
        session.measure(Program((graph,), 1, tuple(range(100))), budget_s=0.05)
    assert caught.value.reason is Reason.HOST_CLOCK


def test_a_sample_is_long_in_ticks_in_pairs_and_in_time():
    session = session_on(tick_us=1.0, mark_us=1.37)
    assert session.least_sample_us == pytest.approx(400.0)
    assert session_on(mark_us=30.0).least_sample_us == pytest.approx(600.0, rel=0.05)
    assert session_on().least_sample_us == QUICK.sample_us


def test_the_clocks_floors_are_measured_and_not_assumed():
    clock = session_on(tick_us=0.1, mark_us=2.03, launch_us=0.93).clock
    assert clock.tick_us == pytest.approx(0.1)
    assert clock.pair_us == pytest.approx(2.03, abs=0.1)
    assert clock.empty_us == pytest.approx(0.93, rel=0.02)
    assert clock.replay_us > clock.pair_us + clock.empty_us


def test_floors_are_taken_once_for_equal_grids():
    session = session_on()
    first = session.floors([(2, 1, 1), (528, 1, 1)])
    captured = len(session.device.captured)
    assert session.floors([(2, 1, 1), (528, 1, 1)]) is first
    assert len(session.device.captured) == captured
    assert first.grids == ("2,1,1", "528,1,1")


def test_a_touch_costs_more_than_nothing_and_grows_with_the_grid():
    session = session_on()
    small, large = session.floors([(1, 1, 1)]), session.floors([(8, 1, 1)])
    assert small.empty_grid_us < small.touch_us < large.touch_us


def test_ceilings_are_the_units_own():
    session = session_on(bandwidth_gbps=2.0)
    assert session.ceilings.copy_gbps == pytest.approx(2.0, rel=0.02)
    assert session.ceilings.read_gbps == pytest.approx(2.0, rel=0.02)


def test_two_sessions_on_equal_devices_agree():
    one, other = (session_on(FakeDevice(Script())) for _ in range(2))
    assert one.clock == other.clock


def slow_calls(session, count, us):
    """Calls that each take the host so long to capture."""
    kernel = session.device.empty((1, 1, 1))
    return [lambda: (session.device.sleep_us(us), kernel())] * count


@pytest.fixture
def warm():
    """A session on a device that has been warmed up, for half a second."""
    session = session_on(warm_up_s=0.5)
    session.keep_warm()
    return session


def warmed_up_ms(session, calls=(), *, capture=True):
    """For how long a device is warmed up after a capture, and how often anything was replayed during it."""
    before = session.device.replays
    if capture:
        assert session.capture(calls, session.device.new_pool()).nodes == len(calls)  # of the calls alone
    replayed, begin = session.device.replays - before, session.device.now_ns()
    session.keep_warm()
    return (session.device.now_ns() - begin) / 1e6, replayed


TAIL_MS = 50
"""Host time that the scripted device takes after a capture, in which it idles."""


def test_the_device_works_while_calls_are_captured_and_need_not_be_warmed_up_for_that_again(warm):
    idle_ms, replayed = warmed_up_ms(warm, slow_calls(warm, 200, 1000.0))
    assert idle_ms == pytest.approx(TAIL_MS, abs=10)
    assert replayed * warm._eviction_ns > 0.7 * 200e6


def test_a_capture_that_takes_no_time_is_given_no_work(warm):
    assert warmed_up_ms(warm, slow_calls(warm, 20, 0.0))[1] == 0


def test_where_the_device_cannot_work_meanwhile_it_is_warmed_up_afterwards(warm):
    warm.device.works_while_capturing = False
    idle_ms, replayed = warmed_up_ms(warm, slow_calls(warm, 200, 1000.0))
    assert (idle_ms, replayed) == (pytest.approx(200 + TAIL_MS, abs=10), 0)


def test_what_idles_the_device_all_the_same_is_warmed_up_for(warm):
    idle_ms, _ = warmed_up_ms(warm, slow_calls(warm, 1, 400_000.0))  # nothing can be given to it within a call
    assert idle_ms == pytest.approx(400 + TAIL_MS, abs=10)
    warm.device.sleep_us(300_000)
    idle_ms, before = warmed_up_ms(warm, slow_calls(warm, 1, 0.0))
    assert before * warm._eviction_ns == pytest.approx(300e6, rel=0.1)  # before the capture
    assert idle_ms == pytest.approx(TAIL_MS, abs=10)


def test_warming_up_for_less_than_its_first_capture_takes_still_works():
    session = session_on(warm_up_s=0.04)
    session.keep_warm()
    assert session._eviction_ns > 0


def test_work_counts_as_such_only_after_the_launchs_warm_up():
    session = session_on(warm_up_s=0.5)
    session.note_busy()
    assert warmed_up_ms(session, capture=False)[0] == pytest.approx(500 + 2 * TAIL_MS, abs=10)  # what it works with is captured first
    session.device.sleep_us(100_000)
    session.note_busy()
    assert warmed_up_ms(session, capture=False)[0] < 1


def test_a_unit_that_cannot_be_known_spoils_the_launch():
    session = session_on(elapsed=lambda reading, us: -1.0)
    session.know_unit()
    assert session.fault.reason is Reason.NEGATIVE_TIME
