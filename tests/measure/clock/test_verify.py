import pytest
import torch
from toys import CYCLE, SCALE, STATE, session_on, subject_of

from harness.measure.clock.program import ADVANCE, make_bench
from harness.measure.clock.validity import InvalidTiming, Reason
from harness.measure.clock.verify import sampled_slots, verify, verify_cursor
from harness.measure.data import content_hash


def bench_of(kernel, slots=5):
    bench = make_bench(subject_of(kernel), session_on(), slots, seed=1, contents=3, allocated=slots)
    bench.prepare()
    return bench


def reason_of(check, *args):
    with pytest.raises(InvalidTiming) as caught:
        check(*args)
    return caught.value.reason


@pytest.mark.parametrize("kernel", [SCALE, STATE], ids=["functional", "in place"])
@pytest.mark.parametrize("repetitions", [1, 4])
def test_what_replays_compute_is_what_eager_calls_do(kernel, repetitions):
    bench = bench_of(kernel)
    verify(bench, bench.capture(bench.one_pass, repetitions), seed=100)


def test_a_whole_cycle_is_verified_step_by_step():
    bench = bench_of(CYCLE)
    verify(bench, bench.capture((*bench.one_pass, ADVANCE) * bench.cycle_length), seed=100)


def test_an_output_that_is_right_already_but_not_written_is_found():
    bench = bench_of(SCALE)
    program = bench.capture(bench.one_pass)
    program.replay()
    bench.device.script.replay_computes = lambda replays: False
    assert reason_of(verify, bench, program, 100) is Reason.UNWRITTEN


def test_an_output_from_other_content_is_found():
    bench = bench_of(SCALE)
    program = bench.capture(bench.one_pass)
    first = program.outputs[0]
    program.graphs = tuple(Stale(graph, first) for graph in program.graphs)
    assert reason_of(verify, bench, program, 100) is Reason.REPLAY_DIFFERS


class Stale:
    """A graph that writes a remembered answer."""

    def __init__(self, graph, output):
        self.graph, self.output, self.nodes = graph, output, graph.nodes

    def replay(self):
        self.graph.replay()
        self.output.fill_(0.25)


def test_state_that_one_visit_fails_to_advance_is_found():
    bench = bench_of(STATE)
    program = bench.capture(bench.one_pass, 2)
    program.steps = program.steps * 2
    assert reason_of(verify, bench, program, 100) in (Reason.STATE_DIFFERS, Reason.REPLAY_DIFFERS)


@pytest.mark.parametrize("slots", [2, 5], ids=["fewer than contents", "more"])
@pytest.mark.parametrize("kernel", [SCALE, STATE], ids=["functional", "in place"])
def test_verification_leaves_every_slot_the_content_it_had(kernel, slots):
    bench = bench_of(kernel, slots)
    before = [content_hash(bench.ring.inputs(slot)) for slot in range(slots)]
    verify(bench, bench.capture(bench.one_pass), seed=100)
    assert before == [content_hash(bench.ring.inputs(slot)) for slot in range(slots)]
    assert bench.data_hash == before[0]


def test_verification_leaves_state_as_the_ring_began():
    bench = bench_of(STATE)
    before = [bench.ring.inputs(s)["state"].clone() for s in range(5)]
    verify(bench, bench.capture(bench.one_pass), seed=100)
    after = [bench.ring.inputs(s)["state"] for s in range(5)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_cursor_moves_in_every_slot():
    bench = bench_of(CYCLE)
    verify_cursor(bench, bench.capture((ADVANCE,)))


def test_a_cursor_whose_replay_does_nothing_is_found():
    bench = bench_of(CYCLE)
    advance = bench.capture((ADVANCE,))
    bench.device.script.replay_computes = lambda replays: False
    assert reason_of(verify_cursor, bench, advance) is Reason.CURSOR


@pytest.mark.parametrize(("slots", "expected"), [((4,), (4,)), ((1, 2), (1, 2)), (tuple(range(9)), (0, 4, 8))])
def test_first_last_and_middle_slots_are_verified(slots, expected):
    assert sampled_slots(slots) == expected
