"""The serving figure: activations warm, state and weights cold."""

from dataclasses import replace

import pytest
from fake_device import Operation
from toys import BYTES, QUICK, SCALE, SIZE, session_on, subject_of, weighted

from harness import Traffic
from harness.errors import KernelFileError
from harness.measure.clock import time_cell
from harness.measure.clock.program import make_bench
from harness.measure.clock.serving import capture_serving, plan_serving
from harness.measure.clock.timing import footprint_of
from harness.measure.data import Generator
from harness.records import Status

WEIGHTS = 8 * SIZE
MIB = 1 << 20


def readings_of(kernel, **options):
    session = session_on(memory_bytes=options.pop("memory_bytes", 8 * MIB))
    return {r.metric: r for r in time_cell(subject_of(kernel), session, **options)}


def planned(kernel, room=MIB):
    subject, limits = subject_of(kernel), session_on().device.limits
    layout = kernel.make_inputs(subject.case, Generator(0, "meta"))
    return plan_serving(kernel, footprint_of(subject), layout, limits, QUICK, room)


def test_its_time_lies_between_the_warm_and_the_cold_one():
    found = readings_of(weighted(3 * SIZE))
    warm, serving, cold = (found[f"latency{name}_us"].value for name in ("_warm", "_serving", ""))
    assert warm < serving < cold


def test_what_it_saves_is_the_activations_way_from_memory():
    found = readings_of(weighted())
    saved = found["latency_us"].value - found["latency_serving_us"].value
    from_memory, from_cache = BYTES / 1e3, BYTES / 4e3
    assert from_memory - from_cache == pytest.approx(saved, rel=0.1)


def test_it_says_how_it_was_taken():
    columns = readings_of(weighted())["latency_serving_us"].columns
    assert ("serving", "device", "graph_serving/1") == (columns["cache"], columns["launch_mode"], columns["method"])
    assert columns["evidence"]["ring"] == planned(weighted()).slots


@pytest.mark.parametrize(
    ("kernel", "options"), [(SCALE, {}), (weighted(), {"beside": False})], ids=["no activations", "judged figures alone"]
)
def test_it_is_not_taken_where_nobody_asks_for_it(kernel, options):
    assert "latency_serving_us" not in readings_of(kernel, **options)


def test_it_is_left_out_where_a_call_touches_little_but_activations():
    reading = readings_of(weighted(SIZE))["latency_serving_us"]
    assert (Status.SKIPPED, "serving_footprint") == (reading.status, reading.reason)


def test_the_ring_is_sized_by_what_comes_from_memory_and_is_at_most_twice_the_cold_one():
    limits = session_on().device.limits
    for weights in (2 * SIZE, 3 * SIZE, WEIGHTS):
        plan, one = planned(weighted(weights)), footprint_of(subject_of(weighted(weights)))
        assert plan.cold == Traffic(4 * weights, 0)
        assert (plan.slots - 1) * plan.cold.total >= 3 * limits.last_level_cache_bytes
        assert plan.slots <= 2 * (-(-3 * limits.last_level_cache_bytes // one.touched) + 1)


def test_without_memory_for_its_ring_it_is_left_out_for_that_reason():
    plan = planned(weighted(), room=1000)
    assert (0, "memory") == (plan.slots, plan.why_not)


def test_an_activation_that_is_no_input_is_refused():
    with pytest.raises(KernelFileError, match="'hidden' is no input"):
        planned(replace(weighted(), activations=("hidden",)))


def test_all_calls_are_given_the_first_slots_activations_and_their_own_weights():
    session, given = session_on(), []
    kernel = weighted()
    call = kernel.variant("only").call

    def spy(**inputs):
        given.append(inputs)
        return call(**inputs)

    kernel = replace(kernel, variants={"only": replace(kernel.variant("only"), call=spy)})
    bench = make_bench(subject_of(kernel), session.device, 3, seed=1, contents=2, allocated=3)
    bench.prepare()
    given.clear()
    program = capture_serving(bench, 3, 2)
    assert (1, 3) == tuple(len({inputs[name].data_ptr() for inputs in given}) for name in ("x", "w"))
    assert (6, (0, 1, 2), {}) == (program.calls, program.slots, program.outputs)


def test_a_time_in_which_the_weights_cannot_have_come_from_memory_is_invalid():
    last, same = [0], [False]

    def weights_cost_nothing_while_calls_share_x(operation: Operation) -> float | None:
        sizes = [t.numel() for t in operation.tensors]
        if WEIGHTS in sizes:
            return 0.5 if same[0] else None
        if len(sizes) == 3:
            x = operation.tensors[1].data_ptr()
            last[0], same[0] = x, x == last[0]
        return None

    session = session_on(cost_us=weights_cost_nothing_while_calls_share_x)
    found = {r.metric: r for r in time_cell(subject_of(weighted()), session)}
    assert (Status.OK, Status.INVALID) == (found["latency_us"].status, found["latency_serving_us"].status)
    assert found["latency_serving_us"].reason.startswith("over_peak")
