from dataclasses import replace

import pytest
from toys import CYCLE, SCALE, STATE, session_on, subject_of, toy, with_cursor

from harness import Cycle, Traffic
from harness.errors import HarnessError
from harness.measure.clock.program import ADVANCE, make_bench
from harness.measure.clock.validity import InvalidTiming, Reason


def bench_of(kernel, slots=6, **script):
    bench = make_bench(subject_of(kernel), session_on(**script), slots, seed=1, contents=4, allocated=slots)
    bench.prepare()
    return bench


def test_every_call_writes_memory_of_its_own():
    bench = bench_of(SCALE)
    program = bench.capture(bench.one_pass, 2)
    assert len({output.data_ptr() for output in program.outputs.values()}) == 6


def test_no_more_outputs_are_kept_than_there_are_slots():
    bench = bench_of(SCALE)
    assert len(bench.capture(bench.one_pass, 8).outputs) == 6


def test_nodes_and_grids_of_one_call_are_counted():
    bench = bench_of(STATE)
    assert (bench.nodes, bench.grids) == (3, ((2, 1, 1),) * 3)


def test_repetitions_beyond_the_cap_are_replays():
    bench = bench_of(SCALE, max_graph_nodes=13)
    program = bench.capture(bench.one_pass, 8)
    assert (len(program.graphs), program.graphs[0].nodes, program.repeats, program.calls) == (1, 12, 4, 48)


def test_a_ring_beyond_the_cap_is_several_graphs():
    bench = bench_of(STATE, max_graph_nodes=10)
    program = bench.capture(bench.one_pass)
    assert [g.nodes for g in program.graphs] == [9, 9]
    assert program.slots == tuple(range(6))


def test_a_cycles_moves_are_captured_and_counted_but_are_no_calls():
    bench = bench_of(CYCLE)
    program = bench.capture((*bench.one_pass, ADVANCE) * 2)
    assert (program.calls, program.nodes) == (12, 2 * (6 + 2))


def test_the_cursor_of_all_slots_moves_at_once():
    bench = bench_of(CYCLE)
    bench.capture((ADVANCE,)).replay()
    assert [bench.ring.inputs(s)["cursor"].tolist() for s in range(6)] == [[1, 1]] * 6


def test_reset_gives_back_what_calls_changed():
    bench = bench_of(CYCLE)
    bench.capture((ADVANCE,)).replay()
    bench.reset()
    assert [bench.ring.inputs(s)["cursor"].tolist() for s in range(6)] == [[0, 0]] * 6


def test_calls_that_launch_less_than_the_first_are_caught():
    calls = []

    def tiring(x):
        calls.append(1)
        return x * 2 + 1 if len(calls) < 4 else x * 2

    kernel = replace(SCALE, variants={"only": replace(SCALE.variant("only"), call=tiring)})
    bench = bench_of(kernel)
    with pytest.raises(InvalidTiming) as caught:
        bench.capture(bench.one_pass)
    assert caught.value.reason is Reason.KERNEL_COUNT


def test_a_cursor_that_shares_memory_is_refused():
    def make(case, generator):
        both = generator.full((4,), 0, "fp32")
        return {**with_cursor(case, generator), "cursor": both[:2], "other": both[2:]}

    kernel = toy(lambda x, cursor, other: x * 2, make, Traffic(1024, 1024), cycle=Cycle(lambda case: 4, "cursor", lambda inputs: None))
    with pytest.raises(HarnessError, match="shares memory with other"):
        bench_of(kernel)


def test_released_programs_hold_no_graph_and_no_output():
    bench = bench_of(SCALE)
    program = bench.capture(bench.one_pass)
    bench.release()
    assert (program.graphs, program.outputs) == ((), {})
