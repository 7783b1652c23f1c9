"""The rules of the timing protocol, shown on a scripted device by cells that keep or break them."""

import functools
import json
import random
import statistics
from dataclasses import replace

import pytest
import torch
from fake_device import FakeDevice, FakeGraph, Script
from torch.utils._python_dispatch import _get_current_dispatch_mode
from toys import (
    BYTES,
    CARRIED,
    CYCLE,
    LENGTH,
    QUICK,
    SCALE,
    STATE,
    double,
    phase_cost,
    session_on,
    subject_of,
    toy,
    weighted,
    with_call,
    with_variant,
)

from harness import Case, Traffic
from harness.measure.clock import ClockSession, LeaseFacts, time_cell, time_main
from harness.measure.clock.beside import Beside
from harness.measure.clock.figures import Figures
from harness.measure.clock.program import Bench
from harness.measure.clock.set_up import footprint_of
from harness.records import EVIDENCE, Status


@functools.cache
def known():
    """What is known of the default script, found out once."""
    session = session_on()
    time_cell(subject_of(SCALE), session)
    return session.facts.to_json()


def measured(kernel, settings=QUICK, fresh=False, **script):
    """The readings of a cell by metric, and the session that took them.

    Args:
        fresh: the launch is the first of its lease: floors and ceilings are not known yet.
    """
    session = session_on(settings=settings, **script)
    if not fresh:
        session.facts = replace(LeaseFacts.from_json(known()), rings={})
    readings = time_cell(subject_of(kernel), session)
    return {r.metric: r for r in readings}, session


def reason_of(readings):
    assert list(readings) == ["latency_us"]
    reading = readings["latency_us"]
    assert (reading.status, reading.value) == (Status.INVALID, None)
    return reading.reason.partition(":")[0]


@pytest.fixture(scope="module")
def scale():
    return measured(SCALE)


@pytest.fixture(scope="module")
def cycle():
    return measured(CYCLE, cost_us=phase_cost)


COLD_US = 0.7 + 2 * BYTES / 1e3


def test_a_cold_time_is_launch_and_bytes_over_the_memorys_bandwidth(scale):
    readings, _ = scale
    assert readings["latency_us"].value == pytest.approx(COLD_US, rel=0.02)


def test_every_figure_says_how_it_was_taken(scale):
    readings, _ = scale
    how = {m: (r.columns["cache"], r.columns["launch_mode"], r.columns["clock"], r.columns["method"]) for m, r in readings.items()}
    assert how == {
        "latency_us": ("cold", "device", "device_event", "graph_ring/2"),
        "gbps": ("cold", "device", "device_event", "graph_ring/2"),
        "percent_of_ceiling": ("cold", "device", "device_event", "graph_ring/2"),
        "percent_of_peak": ("cold", "device", "device_event", "graph_ring/2"),
        "latency_warm_us": ("warm", "device", "device_event", "graph_warm/2"),
        "graph1_us": ("cold", "graph1", "device_event", "graph_single/1"),
        "eager_us": ("cold", "eager", "host", "eager/3"),
        "enqueue_us": ("cold", "eager", "host", "eager/3"),
    }
    assert {r.columns["data"] for r in readings.values()} == {SCALE.data}
    assert len({r.columns["data_hash"] for r in readings.values()}) == 1


def test_evidence_names_ring_nodes_floors_and_tick(scale):
    readings, _ = scale
    evidence = readings["latency_us"].columns["evidence"]
    assert evidence["ring"] == -(-3 * (16 << 10) // (2 * BYTES)) + 1
    assert evidence["nodes"] % evidence["ring"] == 0
    assert evidence["tick"] == pytest.approx(32.0)
    assert evidence["floors"]["empty_us"] == pytest.approx(0.7, rel=0.02)
    assert evidence["floors"]["touch_us"] > evidence["floors"]["empty_us"]
    assert set(evidence) <= set(EVIDENCE)


def test_readings_are_plain_data(scale):
    readings, _ = scale
    json.dumps([{**vars(r), "columns": dict(r.columns)} for r in readings.values()], allow_nan=False)


def test_bandwidth_is_compulsory_bytes_over_time(scale):
    readings, session = scale
    us = readings["latency_us"].value
    assert readings["gbps"].value == pytest.approx(2 * BYTES / us / 1e3)
    assert readings["percent_of_ceiling"].value == pytest.approx(100 * readings["gbps"].value / session.ceilings.copy_gbps)
    assert readings["percent_of_peak"].value == pytest.approx(100 * readings["gbps"].value / session.device.limits.peak_gbps)


def test_another_byte_model_is_reported_beside_and_gates_nothing():
    readings, _ = measured(replace(SCALE, other_traffic={"published": lambda case: 50 * BYTES}))
    assert readings["gbps@published"].value == pytest.approx(25 * readings["gbps"].value)


def test_a_variant_that_does_a_part_has_its_own_bytes_in_ring_floor_and_bandwidth():
    kernel = replace(SCALE, traffic=lambda case: Traffic(20 * BYTES, 20 * BYTES))
    assert reason_of(measured(with_variant(kernel))[0]) == "over_peak"
    part = with_variant(kernel, traffic=lambda case: Traffic(BYTES, BYTES))
    readings, _ = measured(part)
    assert readings["gbps"].value == pytest.approx(2 * BYTES / readings["latency_us"].value / 1e3)
    assert footprint_of(subject_of(SCALE)) == footprint_of(subject_of(part))


def test_the_bytes_of_a_part_are_held_against_its_tensors():
    part = with_variant(SCALE, traffic=lambda case: Traffic(2 * BYTES, BYTES))
    assert reason_of(measured(part)[0]) == "cost_model"


def test_a_warm_call_is_faster_than_a_cold_one(scale):
    readings, _ = scale
    assert readings["latency_warm_us"].value < readings["latency_us"].value


def test_warm_is_refused_where_a_call_fills_the_cache():
    readings, _ = measured(SCALE, cache_bytes=3000)
    assert (readings["latency_warm_us"].status, readings["latency_warm_us"].reason) == (Status.SKIPPED, "warm_footprint")


def test_doubling_the_ring_is_tried_once_a_lease(scale):
    _, first = scale
    proof = first.facts.proof(str(subject_of(SCALE).cell), "")
    assert abs(proof.change) < 0.02
    again = session_on()
    again.facts = LeaseFacts.from_json(json.loads(json.dumps(first.facts.to_json())))
    time_cell(subject_of(SCALE), again)
    assert len(again.device.captured) == len(first.device.captured) - 1
    assert again.facts.proof(str(subject_of(SCALE).cell), "") == proof


@pytest.mark.parametrize(
    "script", [{"cache_bytes": 80 << 10, "claimed_cache_bytes": 16 << 10}, {"keeps_oldest": True}], ids=["too small a cache", "evict first"]
)
def test_a_ring_of_which_a_part_outlives_a_pass_is_enlarged_until_it_is_cold(script):
    readings, session = measured(SCALE, **script)
    proof = session.facts.proof(str(subject_of(SCALE).cell), "")
    assert proof.growth > 1
    assert readings["latency_us"].value == pytest.approx(COLD_US, rel=0.03)
    assert readings["latency_us"].columns["method"] == f"graph_ring/2x{proof.growth}"
    assert readings["latency_warm_us"].columns["method"] == "graph_warm/2"


def test_a_figure_that_moves_again_after_it_was_taken_again_is_not_converged():
    known()  # by a unit that stands still
    steps = iter([1.0, 1.1, 1.2])
    level = {"now": next(steps)}
    measure = ClockSession.measure

    def then_slower(session, *args, **kwargs):
        found = measure(session, *args, **kwargs)
        level["now"] = next(steps, level["now"])
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClockSession, "measure", then_slower)
        readings, _ = measured(SCALE, slowdown=lambda replays: level["now"])
    assert (Status.OK, False) == (readings["latency_us"].status, readings["latency_us"].columns["converged"])


@pytest.mark.parametrize(("dear_us", "converged"), [(5.0, True), (5.5, True), (40.0, False)], ids=["alike", "by under 1 %", "one in 16"])
def test_a_figure_of_calls_that_differ_from_sample_to_sample_has_not_converged(dear_us, converged):
    """As of a cycle that its kernel does not declare: the median is the time of the cheap calls alone."""

    def count(x, fill):
        fill.add_(1).remainder_(16)
        return x + fill[:1]

    def with_fill(case, generator):
        return {"x": generator.uniform((case.N,), case.dtype), "fill": generator.full((2,), 0, torch.int32)}

    def cost(operation):
        fills = [tensor for tensor in operation.tensors if tensor.dtype is torch.int32]
        if not fills:
            return None
        adds = any(tensor.dtype is torch.float32 for tensor in operation.tensors)
        return (dear_us if int(fills[0].flatten()[0]) == 15 else 5.0) if adds else 0.01

    readings, _ = measured(toy(count, with_fill, Traffic(BYTES, BYTES), mutates=("fill",)), cost_us=cost)
    assert converged == readings["latency_us"].columns["converged"]


@pytest.mark.parametrize("kernel", [SCALE, CYCLE], ids=["calls", "cycle"])
def test_the_main_figure_comes_before_all_that_only_a_first_launch_does(kernel, monkeypatch):
    _, known_by = measured(kernel, cost_us=phase_cost)
    captured = {}
    measure = ClockSession.measure

    def noting(session, *args, **kwargs):
        captured.setdefault(id(session), list(session.device.captured))
        return measure(session, *args, **kwargs)

    monkeypatch.setattr(ClockSession, "measure", noting)
    first, later = (session_on(cost_us=phase_cost) for _ in range(2))
    for session in (first, later):
        session.facts = LeaseFacts.from_json(json.loads(json.dumps(known_by.facts.to_json())))
    first.facts.rings.clear()
    time_cell(subject_of(kernel), first)
    time_cell(subject_of(kernel), later, beside=False)
    assert captured[id(first)] == captured[id(later)]
    assert len(first.device.captured) > len(later.device.captured) >= len(captured[id(later)])


def launched(kernels, *, first, known_by):
    """What a launch of several cells does: with `first`, the main figures of all before the rest of any.

    Returns:
        The readings of each cell, and what had been captured since the unit was known when each main figure was measured.
    """
    session = session_on(cost_us=phase_cost)
    if not first:
        session.facts = LeaseFacts.from_json(json.loads(json.dumps(known_by.facts.to_json())))
    assert session.eviction, "captured for the warm-up before a launch's canary"
    session.know_unit()
    before = len(session.device.captured)
    captured, measure = [], session.measure
    session.measure = lambda *args, **kwargs: captured.append(session.device.captured[before:]) or measure(*args, **kwargs)
    subjects = list(map(subject_of, kernels))
    if not first:
        return [time_cell(subject, session, beside=False) for subject in subjects], captured
    mains = [time_main(subject, session) for subject in subjects]
    at_mains = list(captured)
    return [time_cell(subject, session, main=main) for subject, main in zip(subjects, mains, strict=True)], at_mains


@pytest.mark.parametrize("kernels", [(SCALE, STATE), (CYCLE, SCALE)], ids=["calls", "cycle"])
def test_main_figures_of_all_cells_are_taken_after_the_same_history_in_every_launch(kernels):
    known_by = session_on(cost_us=phase_cost)
    kernels = [replace(kernel, name=f"toy{i}") for i, kernel in enumerate(kernels)]
    for kernel in kernels:
        time_cell(subject_of(kernel), known_by)
    _, first = launched(kernels, first=True, known_by=known_by)
    _, later = launched(kernels, first=False, known_by=known_by)
    assert first == later
    assert len(first) == len(kernels)


@pytest.mark.parametrize("kernel", [SCALE, CYCLE], ids=["calls", "cycle"])
def test_a_main_figure_that_was_taken_before_is_the_cells_and_nothing_else_is_missing(kernel, monkeypatch):
    session = session_on(cost_us=phase_cost, jitter=0.001)
    main = time_main(subject_of(kernel), session)
    monkeypatch.setattr(Figures, "_first_look", None)  # programs are sized as those were that took the main figure
    readings = {r.metric: r for r in time_cell(subject_of(kernel), session, main=main)}
    assert tuple(readings["latency_us"].columns["samples"]) == main.figure.samples
    monkeypatch.undo()
    whole, _ = measured(kernel, cost_us=phase_cost)
    assert list(readings) == list(whole)
    assert session.facts.proof(str(subject_of(kernel).cell), "").change is not None


def test_a_main_figure_of_a_ring_that_is_not_cold_is_taken_again_with_a_larger_one():
    session = session_on(keeps_oldest=True)
    main = time_main(subject_of(SCALE), session)
    reading = time_cell(subject_of(SCALE), session, main=main)[0]
    growth = session.facts.ring(str(subject_of(SCALE).cell)).growth
    assert (Status.OK, f"graph_ring/2x{growth}") == (reading.status, reading.columns["method"])
    assert growth > 1
    assert main.figure.us < reading.value


@pytest.mark.parametrize("kernel", [SCALE, CYCLE], ids=["calls", "cycle"])
def test_a_main_figure_stays_what_every_launch_takes_although_the_ring_has_another_time_when_it_is_proved(kernel):
    session = session_on(cost_us=phase_cost)
    main = time_main(subject_of(kernel), session)
    session.device.script.slowdown = lambda replays: 1.2
    reading = time_cell(subject_of(kernel), session, main=main)[0]
    assert reading.value == (main.figure.us if kernel is SCALE else main.figure.step.us)
    assert (True, main.shape.nodes) == (reading.columns["converged"], reading.columns["evidence"]["nodes"])
    assert abs(reading.columns["evidence"]["doubled"]) < 0.02
    assert session.facts.proof(str(subject_of(kernel).cell), "").us == pytest.approx(1.2 * main.pass_us, rel=0.03)


@pytest.mark.parametrize("kernel", [SCALE, CYCLE], ids=["calls", "cycle"])
def test_a_figure_of_one_set_up_that_holds_no_longer_when_the_ring_is_proved_is_taken_again(kernel, monkeypatch):
    quick, _ = measured(kernel, cost_us=phase_cost)
    session = session_on(cost_us=phase_cost)
    verified = []

    def then_slower(bench, program, seed):
        verified.append(seed)
        if len(verified) == 2:  # after the main figure
            session.device.script.slowdown = lambda replays: 1.2

    monkeypatch.setattr("harness.measure.clock.figures.verify", then_slower)
    reading = time_cell(subject_of(kernel), session)[0]
    assert reading.columns["converged"]
    assert reading.value / quick["latency_us"].value == pytest.approx(1.2, rel=0.03)


def test_a_main_figure_is_verified_when_it_is_taken():
    session = session_on(replay_computes=lambda replays: False)
    (reading,) = time_main(subject_of(SCALE), session)
    assert (Status.INVALID, "unwritten_output") == (reading.status, reading.reason.partition(":")[0])


def test_a_main_figure_of_a_ring_without_room_says_so():
    (reading,) = time_main(subject_of(SCALE), session_on(memory_bytes=1000))
    assert (Status.SKIPPED, "memory") == (reading.status, reading.reason)


def test_later_launches_of_a_lease_use_the_ring_that_was_proved():
    _, first = measured(SCALE, keeps_oldest=True)
    again = session_on(keeps_oldest=True)
    again.facts = LeaseFacts.from_json(json.loads(json.dumps(first.facts.to_json())))
    readings = {r.metric: r for r in time_cell(subject_of(SCALE), again)}
    growth = first.facts.ring(str(subject_of(SCALE).cell)).growth
    assert readings["latency_us"].columns["method"] == f"graph_ring/2x{growth}"
    assert again.facts == replace(first.facts, canaries=again.facts.canaries)


def test_a_ring_that_is_not_cold_and_cannot_be_enlarged_gives_no_number():
    readings, _ = measured(SCALE, keeps_oldest=True, memory_bytes=400_000)
    assert reason_of(readings) == "not_cold"
    assert "no room to prove a ring" in readings["latency_us"].reason


def test_other_code_in_a_lease_has_its_own_proof_with_the_same_ring():
    _, first = measured(SCALE)
    other = session_on(keeps_oldest=True)
    other.facts = first.facts
    (reading,) = time_cell(subject_of(SCALE), other, code="other")
    assert reading.reason.startswith("not_cold: doubling the ring moves the time")
    assert reading.reason.endswith("with this ring other code of the cell was cold: time each in a run of its own")


def test_a_unit_that_slows_down_meanwhile_does_not_look_like_a_ring_that_is_not_cold():
    readings, session = measured(SCALE, slowdown=lambda replays: 1.1 if replays > 120 else 1.0)
    proof = session.facts.proof(str(subject_of(SCALE).cell), "")
    assert readings["latency_us"].value == pytest.approx(1.1 * COLD_US, rel=0.02)
    assert abs(proof.change) < 0.02


def test_m01_a_program_that_leaves_out_part_of_the_ring_is_refused(monkeypatch):
    monkeypatch.setattr(Bench, "one_pass", property(lambda bench: tuple(range(bench.slots - 1))))
    readings, _ = measured(SCALE)
    assert reason_of(readings) == "not_cold"


@pytest.mark.parametrize("kernel", [SCALE, CYCLE], ids=["calls", "cycle"])
@pytest.mark.parametrize(
    "computes",
    [lambda replays: False, lambda replays: replays < 200, lambda replays: replays > 200],
    ids=["never", "before timing alone", "after timing alone"],
)
def test_m02_a_replay_that_does_nothing_is_invalid(kernel, computes):
    readings, _ = measured(kernel, cost_us=phase_cost, replay_computes=computes)
    assert reason_of(readings) in ("unwritten_output", "cursor", "phases")


def test_m08_a_negative_time_spoils_the_whole_launch():
    first, session = measured(SCALE, elapsed=lambda reading, us: -1780.0 if reading == 60 else us)
    later = {r.metric: r for r in time_cell(subject_of(STATE), session)}
    assert (reason_of(first), reason_of(later)) == ("negative_time", "negative_time")


def test_m09_a_clock_that_gives_no_number_stores_none():
    readings, _ = measured(SCALE, elapsed=lambda reading, us: float("nan"))
    assert reason_of(readings) == "no_valid_samples"


def test_m12_the_answer_is_the_time_after_throttling_ends():
    readings, _ = measured(SCALE, slowdown=lambda replays: 1.27 if replays < 70 else 1.0)
    assert readings["latency_us"].value == pytest.approx(COLD_US, rel=0.02)
    assert readings["latency_us"].columns["converged"]


def test_m12_a_slow_time_that_outlasts_the_sampling_is_found_by_the_proof_that_the_ring_is_cold():
    readings, _ = measured(SCALE, slowdown=lambda replays: 1.27 if replays < 120 else 1.0)
    assert readings["latency_us"].value == pytest.approx(COLD_US, rel=0.02)
    assert readings["latency_us"].columns["converged"]


def test_m23_a_clock_patched_to_a_hundredth_is_below_the_roofline_floor():
    readings, session = measured(SCALE, clock_divisor=100.0)
    assert reason_of(readings) == "host_clock"
    assert max(session.device.captured) <= 500, "no sample was made a hundred times as long"


def test_m23_a_clock_that_a_call_patches_while_it_is_timed_is_below_the_roofline_floor():
    readings, _ = measured(SCALE, elapsed=lambda reading, us: us / 2 if reading > 30 else us)
    assert reason_of(readings) in ("over_peak", "host_clock")


def test_a_host_that_stands_still_now_and_then_spoils_no_cell():
    chance, pauses = random.Random(3), []

    def pause_us(waits):
        if chance.random() > 0.2:
            return 0.0
        pauses.append(waits)
        return 5000.0

    readings, _ = measured(SCALE, pause_us=pause_us)
    assert readings["latency_us"].value == pytest.approx(COLD_US, rel=0.02)
    assert len(pauses) > 3


def test_a_zero_time_is_no_time():
    readings, _ = measured(SCALE, elapsed=lambda reading, us: 0.0)
    assert reason_of(readings) == "host_clock"


def test_a_call_that_cannot_be_captured_has_no_device_time_and_says_why():
    readings, _ = measured(with_call(SCALE, lambda x: x * float(x[0])))
    assert reason_of(readings) == "not_capturable"


def test_m23_a_clock_patched_before_the_ceilings_were_taken_disagrees_with_the_host():
    readings, _ = measured(SCALE, fresh=True, clock_divisor=100.0)
    assert reason_of(readings) == "host_clock"


def remembering(key):
    answers = {}

    def call(x):
        if key(x) not in answers:
            answers[key(x)] = double(x)
        return answers[key(x)]

    return call


def test_m24_an_answer_remembered_by_pointer_is_caught():
    readings, _ = measured(with_call(SCALE, remembering(lambda x: x.data_ptr())))
    assert reason_of(readings) == "kernel_count"


def test_m24_an_answer_remembered_by_content_is_caught():
    readings, _ = measured(with_call(SCALE, remembering(lambda x: x.numpy().tobytes())))
    assert reason_of(readings) == "kernel_count"


def test_m17_a_time_above_the_memorys_bandwidth_is_invalid():
    readings, _ = measured(SCALE, cost_us=lambda operation: 1.0)
    assert reason_of(readings) == "over_peak"


def test_a_ring_that_does_not_fit_is_skipped_before_anything_is_allocated():
    readings, session = measured(SCALE, memory_bytes=60_000)
    assert (readings["latency_us"].status, readings["latency_us"].reason) == (Status.SKIPPED, "memory")
    assert session.device.captured == []


def test_without_room_for_twice_the_ring_the_time_stands_without_that_proof():
    subject = subject_of(SCALE)
    readings, session = measured(SCALE, memory_bytes=150_000)
    assert readings["latency_us"].status is Status.OK
    assert session.facts.proof(str(subject.cell), "").doubled_us is None


def test_a_launch_bound_time_has_no_bandwidth():
    readings, _ = measured(SCALE, bandwidth_gbps=20.0, fresh=True)
    assert {(r.status, r.reason) for m, r in readings.items() if "gbps" in m or "percent" in m} == {(Status.SKIPPED, "launch_bound")}


@pytest.mark.parametrize(("floors", "bound"), [(1.9, True), (2.1, False)], ids=["below two floors", "above"])
def test_a_time_below_two_launch_floors_is_judged_in_absolute_time_alone(floors, bound):
    floor = known()["floors"]
    (empty_us,) = {found["empty_grid_us"] for found in floor.values()}
    scripted = floors * empty_us
    kernel = replace(SCALE, traffic=lambda case: Traffic(BYTES, BYTES), other_traffic={"published": lambda case: BYTES})
    readings, _ = measured(kernel, cost_us=lambda operation: scripted, settings=replace(QUICK, ceiling_margin=10.0))
    latency = readings["latency_us"]
    assert (Status.OK, pytest.approx(scripted, rel=0.02)) == (latency.status, latency.value)
    verdicts = {metric: (r.status, r.reason) for metric, r in readings.items() if metric.startswith(("gbps", "percent"))}
    expected = (Status.SKIPPED, "launch_bound") if bound else (Status.OK, None)
    models = () if bound else ("gbps@published",)
    assert dict.fromkeys(("gbps", "percent_of_ceiling", "percent_of_peak", *models), expected) == verdicts


def test_graphs_respect_the_node_cap_and_still_touch_the_whole_ring():
    readings, session = measured(SCALE, max_graph_nodes=10)
    assert max(session.device.captured) <= 10
    assert readings["latency_us"].columns["evidence"]["ring"] == 25
    assert readings["latency_us"].value == pytest.approx(COLD_US, rel=0.2)


def test_a_kernel_of_several_launches_counts_each_of_them():
    readings, _ = measured(STATE)
    evidence = readings["latency_us"].columns["evidence"]
    assert evidence["nodes"] % (3 * evidence["ring"]) == 0


def test_state_in_place_is_timed_and_verified():
    readings, _ = measured(STATE)
    assert readings["latency_us"].status is Status.OK


def test_state_that_a_replay_advances_otherwise_than_an_eager_call_is_caught():
    def cheats(x, state):
        mode = _get_current_dispatch_mode()
        capturing = mode is not None and not mode.eager
        state.mul_(0.25 if capturing else 0.5)
        state.add_(x)
        return x * 2

    readings, _ = measured(with_call(STATE, cheats))
    assert reason_of(readings) == "state_differs"


@pytest.mark.parametrize("kernel", [STATE, CARRIED], ids=["mutates", "drift carries"])
def test_a_kernel_with_state_is_also_timed_as_a_chain(kernel):
    readings, _ = measured(kernel)
    chained = readings["chained_us"]
    assert (chained.columns["cache"], chained.columns["method"]) == ("carried", "graph_chain/2")
    assert chained.value < readings["latency_us"].value


def test_a_kernel_without_state_has_no_chain(scale):
    readings, _ = scale
    assert "chained_us" not in readings


def test_m33_a_cycle_is_amortised_and_its_worst_step_is_a_figure_of_its_own(cycle):
    readings, _ = cycle
    expected = (5.0 * (LENGTH - 1) + 40.0) / LENGTH
    assert readings["latency_us"].value == pytest.approx(expected, rel=0.01)
    assert readings["worst_step_us"].value == pytest.approx(40.0, rel=0.01)
    assert readings["fold_us"].value == readings["worst_step_us"].value
    assert readings["append_us"].value == pytest.approx(5.0, rel=0.02)


def test_a_cycles_sample_is_whole_cycles_over_the_whole_ring(cycle):
    readings, session = cycle
    evidence = readings["latency_us"].columns["evidence"]
    moves = 2
    assert readings["latency_us"].columns["method"] == "graph_cycle/2"
    assert evidence["nodes"] % (LENGTH * (evidence["ring"] + moves)) == 0
    assert session.fault is None


def test_a_cursor_that_stands_still_is_caught():
    still = replace(CYCLE, cycle=replace(CYCLE.cycle, advance=lambda inputs: inputs["cursor"].add_(0)))
    readings, _ = measured(still, cost_us=phase_cost)
    assert reason_of(readings) == "cursor"


def test_a_cursor_that_only_moves_its_first_slot_is_caught():
    first = replace(CYCLE, cycle=replace(CYCLE.cycle, advance=lambda inputs: inputs["cursor"][:2].add_(1).remainder_(LENGTH)))
    readings, _ = measured(first, cost_us=phase_cost)
    assert reason_of(readings) == "cursor"


def test_phases_that_do_not_add_up_to_the_cycle_are_caught():
    moves_cost = lambda operation: 100.0 if phase_cost(operation) == 0.1 else phase_cost(operation)  # noqa: E731
    readings, _ = measured(CYCLE, cost_us=moves_cost)
    assert reason_of(readings) == "phases"


def test_a_unit_that_slows_down_meanwhile_leaves_the_phases_what_they_are():
    """As at the power cap: the cycle is timed at full speed, its phases and the cycle after them are not."""
    readings, session = measured(CYCLE, cost_us=phase_cost)
    after = session.device.replays // 4
    readings, _ = measured(CYCLE, cost_us=phase_cost, slowdown=lambda replays: 1.1 if replays > after else 1.0)
    assert readings["latency_us"].status is Status.OK
    assert readings["worst_step_us"].value == pytest.approx(44.0, rel=0.02)


def test_noise_that_never_converges_is_kept_and_said():
    readings, _ = measured(SCALE, settings=replace(QUICK, looks=(30,), doubling_limit=1.0), jitter=0.1)
    assert readings["latency_us"].status is Status.OK
    assert not readings["latency_us"].columns["converged"]


def test_layout_alone_gives_the_footprint_of_a_call():
    one = footprint_of(subject_of(STATE))
    assert (one.allocated, one.outputs, one.touched) == (2 * BYTES, BYTES, 3 * BYTES)


def test_a_launch_may_take_the_judged_figures_alone():
    session = session_on(settings=QUICK)
    session.facts = LeaseFacts.from_json(known())
    readings = {r.metric: r for r in time_cell(subject_of(SCALE), session, beside=False)}
    assert {"latency_us", "gbps", "percent_of_ceiling", "percent_of_peak"} == set(readings)


def test_an_input_that_may_change_and_that_the_case_does_not_have_is_no_hindrance():
    variants = {name: replace(variant, mutates=("absent",)) for name, variant in SCALE.variants.items()}
    readings, _ = measured(replace(SCALE, variants=variants))
    assert readings["latency_us"].value == pytest.approx(COLD_US, rel=0.02)


def by_content(operation):
    """A call takes 70 us, and up to a tenth more or less by what is in it."""
    inputs = [t for t in operation.tensors if t.dtype == torch.float32 and t.numel() == LARGE]
    return 70.0 * (1 + 0.1 * float(inputs[0][0])) if inputs else None


LARGE = 8192


def test_both_sides_of_a_pair_are_timed_on_the_content_that_the_record_names():
    large = replace(SCALE, cases=[Case(N=LARGE, dtype="fp32", tags="smoke")], traffic=lambda case: Traffic(4 * LARGE, 4 * LARGE))
    base, head = (session_on(cost_us=by_content, memory_bytes=64 << 20, graph_gap_us=0.0, mark_us=0.0) for _ in range(2))
    (first, *_) = time_cell(subject_of(large), base, beside=False, main=time_main(subject_of(large), base))
    head.facts = base.facts
    (later, *_) = time_cell(subject_of(large), head, beside=False)
    contents = [subject_of(large).inputs(base.seed + slot)["x"] for slot in range(first.columns["evidence"]["ring"])]
    named = statistics.fmean(70.0 * (1 + 0.1 * float(x[0])) for x in contents)
    assert [named, named] == [pytest.approx(reading.value, rel=1e-3) for reading in (first, later)]
    assert ("graph_ring/2", True) == (first.columns["method"], first.columns["converged"])
    assert first.columns["data_hash"] == later.columns["data_hash"]


class WithoutGrids(FakeDevice):
    """A device whose driver does not tell the grids of a graph's kernels."""

    def capture(self, calls, pool):
        graph = super().capture(calls, pool)
        graph.__class__ = GridlessGraph
        return graph


class GridlessGraph(FakeGraph):
    @property
    def grids(self):
        return (None,) * self.nodes


@pytest.mark.parametrize("device", [FakeDevice, WithoutGrids], ids=["grids known", "unknown"])
def test_every_kernel_of_a_call_counts_for_the_floor(device):
    five = with_call(SCALE, lambda x: (x * 2).mul_(1.0).mul_(1.0).mul_(1.0).mul_(1.0))
    session = session_on(device(Script(bandwidth_gbps=20.0, cache_gbps=200.0)))
    found = {r.metric: r for r in time_cell(subject_of(five), session, beside=False)}
    assert found["latency_us"].columns["evidence"]["floors"]["empty_us"] == pytest.approx(5 * 0.7, rel=0.02)
    assert (Status.SKIPPED, "launch_bound") == (found["gbps"].status, found["gbps"].reason)


def test_a_unit_without_memory_to_measure_its_bandwidth_is_no_fault_of_the_code():
    readings, _ = measured(SCALE, fresh=True, memory_bytes=200 << 10)
    assert reason_of(readings) == "memory"
    assert "free the unit's memory" in readings["latency_us"].reason


class Failing:
    """The call of STATE, which fails where it is captured for the second time in a row with the same state: in a warm or chained
    figure."""

    def __init__(self, error):
        self.error, self.captured = error, None

    def __call__(self, x, state):
        mode = _get_current_dispatch_mode()
        if mode is not None and not mode.eager:
            if self.captured == state.data_ptr():
                raise self.error
            self.captured = state.data_ptr()
        state.mul_(0.5)
        state.add_(x)
        return state * 2


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (RuntimeError("no such layout"), Status.INVALID, "not_capturable: the calls of this figure cannot be captured: no such layout"),
        (torch.OutOfMemoryError("1 GiB"), Status.SKIPPED, "memory"),
    ],
    ids=["refused", "memory"],
)
def test_a_call_that_fails_for_a_figure_beside_spoils_that_figure_alone(error, status, reason):
    readings, _ = measured(with_call(STATE, Failing(error)))
    alone, _ = measured(STATE)
    assert readings["latency_us"].value == pytest.approx(alone["latency_us"].value, rel=0.01)
    assert (status, reason) == (readings["latency_warm_us"].status, readings["latency_warm_us"].reason)
    assert readings["eager_us"].status is Status.OK


def test_replays_that_do_nothing_for_a_figure_beside_are_found(monkeypatch):
    session, dead = session_on(), []
    session.device.script.replay_computes = lambda replays: not dead
    take = Beside.readings

    def readings(self):
        dead.append(True)
        try:
            return take(self)
        finally:
            dead.clear()

    monkeypatch.setattr(Beside, "readings", readings)
    found = {r.metric: r for r in time_cell(subject_of(SCALE), session)}
    assert found["latency_us"].status is Status.OK
    assert ["unwritten_output"] * 2 == [found[metric].reason.partition(":")[0] for metric in ("latency_warm_us", "graph1_us")]


def test_of_code_that_keeps_what_it_loads_no_figure_is_called_cold_by_filling_the_cache():
    session = session_on()
    found = {r.metric: r for r in time_cell(subject_of(SCALE), session, keeps=True)}
    assert (Status.OK, "cold") == (found["latency_us"].status, found["latency_us"].columns["cache"])
    left_out = [found[metric] for metric in ("graph1_us", "eager_us", "enqueue_us")]
    assert [(Status.SKIPPED, "not_cold")] * 3 == [(r.status, r.reason) for r in left_out]


def test_a_single_replay_and_the_serving_ring_are_enlarged_with_the_ring():
    options = {"memory_bytes": 64 << 20, "enqueue_us": 0.01, "cache_gbps": 1.2}
    honest, _ = measured(weighted(), fresh=True, **options)
    found, _ = measured(weighted(), fresh=True, cache_bytes=80 << 10, claimed_cache_bytes=16 << 10, **options)
    growth = found["latency_us"].columns["method"].removeprefix("graph_ring/2")
    assert growth in ("x2", "x4", "x8")
    for metric, method in (("graph1_us", "graph_single/1"), ("latency_serving_us", "graph_serving/2")):
        assert found[metric].columns["method"] == method + growth
        assert found[metric].value == pytest.approx(honest[metric].value, rel=0.03)


def test_only_what_the_proof_is_about_shows_it():
    readings, _ = measured(weighted(), memory_bytes=64 << 20)
    shown = {metric for metric, r in readings.items() if (r.columns.get("evidence") or {}).get("doubled") is not None}
    assert {"latency_us", "gbps", "percent_of_ceiling", "percent_of_peak"} == shown
