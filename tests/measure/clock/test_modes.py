from dataclasses import replace

import pytest
import torch
from toys import CARRIED, CYCLE, SCALE, STATE, session_on, subject_of, toy, with_state

from harness import Drift, Tolerance, Traffic
from harness.measure.clock.modes import capture_chain, eager_steps, feed_of, time_single
from harness.measure.clock.modes import time_eager as time_steps
from harness.measure.clock.program import ADVANCE, make_bench
from harness.measure.clock.settings import ClockSettings


def bench_of(kernel, session=None, slots=5):
    bench = make_bench(subject_of(kernel), session or session_on(), slots, seed=1, contents=3, allocated=slots)
    bench.prepare()
    return bench


def time_eager(bench, us):
    return time_steps(bench, bench.session, eager_steps(bench, us, bench.session.settings), 1)


def functional(x, state):
    return state * 0.5 + x


def handing_on(source):
    drift = Drift(step_inputs=lambda case, g: {}, carry={"state": source}, tolerance={"fp32": Tolerance(1e-6, "rounding")})
    return toy(functional, with_state, Traffic(2048, 1024), outputs=("new_state",), drift=drift)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (SCALE, {}),
        (STATE, {"state": "state"}),
        (CARRIED, {"state": "state"}),
        (handing_on("new_state"), {"state": "new_state"}),
        (handing_on("nothing"), {}),
        (CYCLE, {}),
    ],
    ids=["no state", "mutates", "drift, in place", "drift, functional", "carries what no call gives", "cycle"],
)
def test_a_chain_carries_declared_state(kernel, expected):
    assert feed_of(bench_of(kernel)) == expected


def test_an_output_of_another_layout_is_not_carried():
    kernel = handing_on("new_state")
    kernel = replace(kernel, variants={"only": replace(kernel.variant("only"), call=lambda x, state: functional(x, state)[:5])})
    assert feed_of(bench_of(kernel)) == {}


def test_each_call_of_a_functional_chain_takes_the_output_of_the_one_before():
    bench = bench_of(handing_on("new_state"), slots=3)
    kept = []
    call = bench.subject.variant.call
    bench.subject = replace(
        bench.subject, kernel=replace(bench.subject.kernel, variants={"only": replace(bench.subject.variant, call=keep(call, kept))})
    )
    program = capture_chain(bench, 1, evictions=0)
    kept_in_chain = kept[-3:]
    program.replay()
    expected = bench.ring.inputs(0)["state"]
    for slot, output in enumerate(kept_in_chain):
        expected = functional(bench.ring.inputs(slot)["x"], expected)
        assert torch.equal(output, expected)


def keep(call, kept):
    def keeping(**inputs):
        kept.append(call(**inputs))
        return kept[-1]

    return keeping


def test_a_chain_in_place_works_on_one_state():
    bench = bench_of(STATE, slots=3)
    others = [bench.ring.inputs(s)["state"].clone() for s in (1, 2)]
    expected = bench.ring.inputs(0)["state"].clone()
    for slot in range(3):
        expected = expected * 0.5 + bench.ring.inputs(slot)["x"]
    capture_chain(bench, 1, evictions=0).replay()
    assert torch.allclose(bench.ring.inputs(0)["state"], expected)
    assert all(torch.equal(bench.ring.inputs(s)["state"], before) for s, before in zip((1, 2), others, strict=True))


@pytest.mark.parametrize(("us", "expected"), [(1.0, 50), (1250.0, 40), (1e6, 20)])
def test_an_eager_sample_is_bounded_in_calls_and_in_time(us, expected):
    assert len(eager_steps(bench_of(SCALE), us, ClockSettings())) == expected


def test_an_eager_sample_of_a_cycle_is_whole_cycles():
    bench = bench_of(CYCLE)
    steps = eager_steps(bench, 1000.0, ClockSettings())
    assert steps.count(ADVANCE) == bench.cycle_length
    assert len(steps) % bench.cycle_length == 0


def test_eager_time_is_the_hosts_where_the_host_is_slower_and_the_devices_where_it_is_not():
    slow_host, slow_device = session_on(enqueue_us=50.0), session_on(launch_us=80.0)
    eager, enqueue = time_eager(bench_of(SCALE, slow_host), 3.0)
    assert eager.us == pytest.approx(50.0, rel=0.1)
    assert enqueue.us == pytest.approx(50.0, rel=0.01)
    eager, enqueue = time_eager(bench_of(SCALE, slow_device), 82.0)
    assert eager.us == pytest.approx(82.0, rel=0.05)
    assert enqueue.us == pytest.approx(5.0, rel=0.01)


def test_eager_calls_find_nothing_in_the_cache_that_holds_all_their_buffers():
    session = session_on(cache_bytes=256 << 10, bandwidth_gbps=0.05, memory_bytes=64 << 20)  # 20 us for 1 KB, and the host takes 5
    eager, _ = time_eager(bench_of(SCALE, session, slots=20), 40.0)
    assert 0.7 + 1024 / 50 < eager.us < 1.1 * (0.7 + 2 * 1024 / 50)  # what a call returns may lie where another had it


def test_one_replay_a_call_shows_what_a_replay_costs():
    session = session_on(graph_gap_us=9.0)
    bench = bench_of(SCALE, session)
    assert time_single(session, bench.capture((0,)), 1).us > 9.0 + 2.7
