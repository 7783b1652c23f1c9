"""The serving figure: activations warm, state and weights cold."""

from dataclasses import replace

import pytest
from fake_device import Operation
from toys import BYTES, CARRIED, CYCLE, QUICK, SCALE, SIZE, STATE, phase_cost, session_on, subject_of, weighted, with_call, with_variant

from harness import Traffic
from harness.errors import KernelFileError
from harness.measure.clock import time_cell
from harness.measure.clock.program import make_bench
from harness.measure.clock.serving import ServingPlan, activations_of, capture_serving, plan_serving
from harness.measure.clock.set_up import footprint_of
from harness.measure.data import Generator
from harness.records import Status

WEIGHTS = 8 * SIZE
MIB = 1 << 20


def readings_of(kernel, **options):
    session = session_on(memory_bytes=options.pop("memory_bytes", 8 * MIB))
    return {r.metric: r for r in time_cell(subject_of(kernel), session, **options)}


def planned(kernel, room=MIB, most=None, growth=1):
    subject, limits = subject_of(kernel), session_on().device.limits
    layout = kernel.make_inputs(subject.case, Generator(0, "meta"))
    return plan_serving(subject, footprint_of(subject), layout, limits, QUICK, room, most, growth)


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
    assert ("serving", "device", "graph_serving/2") == (columns["cache"], columns["launch_mode"], columns["method"])
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


def test_where_the_cache_is_filled_between_samples_it_has_no_more_slots_than_the_cold_ring():
    assert planned(weighted(2 * SIZE)).slots > 5
    assert planned(weighted(2 * SIZE), most=5).slots == 5


def test_without_memory_for_its_ring_it_is_left_out_for_that_reason():
    plan = planned(weighted(), room=1000)
    assert (0, "memory") == (plan.slots, plan.why_not)


def test_an_activation_that_is_no_input_is_refused():
    with pytest.raises(KernelFileError, match="'hidden' is no input"):
        planned(replace(weighted(), activations=("hidden",)))


@pytest.mark.parametrize("named", [(), lambda case: ()], ids=["nothing", "nothing of this case"])
def test_a_kernel_that_names_none_has_those_that_its_steps_draw(named):
    kernel = replace(CARRIED, activations=named)
    assert ("x",) == activations_of(subject_of(kernel), {"x": None, "state": None})
    assert () == activations_of(subject_of(replace(STATE, activations=named)), {"x": None, "state": None})


def test_what_is_named_may_depend_on_the_case():
    kernel = replace(CARRIED, activations=lambda case: ("state",) if case.N == SIZE else ())
    assert ("state",) == activations_of(subject_of(kernel), {"x": None, "state": None})


@pytest.mark.parametrize(("own", "expected"), [(("state",), ("state",)), (lambda case: ("state",), ("state",)), ((), ()), (None, ("x",))])
def test_a_variant_may_have_its_own(own, expected):
    kernel = with_variant(CARRIED, activations=own)
    assert expected == activations_of(subject_of(kernel), {"x": None, "state": None})


def test_of_a_cycle_it_is_the_amortised_step():
    """Each call adds a weight from memory to its phase: hot, x costs less."""

    def make(case, generator):
        return {**CYCLE.make_inputs(case, generator), "w": generator.uniform((WEIGHTS,), case.dtype)}

    def call(x, cursor, w):
        return w.view(-1, x.numel()).sum(0) + x + cursor[:1]

    traffic = Traffic(BYTES + 4 * WEIGHTS, BYTES)
    kernel = replace(with_call(CYCLE, call), make_inputs=make, traffic=lambda case: traffic, activations=("x",))
    session = session_on(memory_bytes=8 * MIB, cost_us=lambda operation: 0.1 if phase_cost(operation) == 0.1 else None)
    found = {r.metric: r for r in time_cell(subject_of(kernel), session)}
    assert (Status.OK, Status.OK) == (found["latency_us"].status, found["latency_serving_us"].status)
    saved = found["latency_us"].value - found["latency_serving_us"].value
    assert BYTES / 1e3 - BYTES / 4e3 == pytest.approx(saved, rel=0.15)


def test_all_calls_are_given_the_first_slots_activations_and_their_own_weights():
    session, given = session_on(), []
    kernel = weighted()
    call = kernel.variant("only").call

    def spy(**inputs):
        given.append(inputs)
        return call(**inputs)

    kernel = replace(kernel, variants={"only": replace(kernel.variant("only"), call=spy)})
    bench = make_bench(subject_of(kernel), session, 3, seed=1, contents=2, allocated=3)
    bench.prepare()
    given.clear()
    plan = ServingPlan(3, Traffic(0, 0), ("x", "bias"))
    program = capture_serving(bench, plan, us=10.0, least_us=60.0, evictions=0)
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
