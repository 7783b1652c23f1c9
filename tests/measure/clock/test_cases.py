"""Cases of tests/cases/measure.jsonl that concern a whole launch."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from toys import SCALE, session_on, subject_of, toy

from harness import Traffic
from harness.measure.clock import LeaseFacts, time_cell
from harness.records import Status

CASES = {case["id"]: case for case in map(json.loads, (Path(__file__).parents[2] / "cases/measure.jsonl").read_text().splitlines())}
SIDE = 64
BYTES = 4 * SIDE * SIDE


def gemm(traffic):
    def make(case, generator):
        return {"a": generator.uniform((SIDE, SIDE)), "b": generator.uniform((SIDE, SIDE))}

    return toy(lambda a, b: a @ b, make, traffic)


def latency_of(kernel, session=None):
    return time_cell(subject_of(kernel), session or session_on())[0]


SLIPS = {
    "an operand counted in elements and not in bytes": (Traffic(2 * BYTES, SIDE * SIDE), "writes 4096 bytes, and the outputs have 16384"),
    "a product for a sum": (Traffic(4 * SIDE * SIDE * 2 * SIDE, BYTES), "reads 2097152 bytes, and the inputs have 32768"),
    "the result counted with the operands": (Traffic(3 * BYTES, BYTES), "reads 49152 bytes, and the inputs have 32768"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_m18_a_cost_model_that_its_tensors_cannot_bear_is_invalid_and_names_its_cell(slip):
    assert "gemm M=N=K=64" == CASES["m18"]["input"]["kernel"]
    traffic, found = SLIPS[slip]
    reading = latency_of(gemm(traffic))
    assert (Status.INVALID, f"cost_model: traffic {found}") == (reading.status, reading.reason)


def test_m18_a_right_cost_model_is_timed():
    assert latency_of(gemm(Traffic(2 * BYTES, BYTES))).status is Status.OK


def test_m18_the_bytes_of_another_variant_are_held_against_the_defaults_tensors_alone():
    kernel = gemm(Traffic(2 * BYTES, BYTES))
    halves = replace(kernel.variant("only"), call=lambda a, b: (a @ b).bfloat16())
    kernel = replace(kernel, variants={**kernel.variants, "halves": halves})
    subject = replace(subject_of(kernel), variant_name="halves")
    assert time_cell(subject, session_on())[0].status is Status.OK


def slowed(by):
    """A session of the second launch of a lease, whose unit is slower than it was in the first by `by` percent."""
    first = session_on()
    first.note_canary()
    session = session_on(slowdown=lambda replays: 1 + by / 100)
    session.facts = LeaseFacts.from_json(json.loads(json.dumps(first.facts.to_json())))
    session.note_canary()
    return session


def test_m20_a_cell_that_is_slower_with_its_unit_is_contended_and_has_no_time():
    canary = float(CASES["m20"]["input"]["canary"].split()[0])
    assert canary == 40
    reading = latency_of(SCALE, slowed(by=canary))
    assert (Status.INVALID, None) == (reading.status, reading.value)
    assert reading.reason.startswith("contended: the arithmetic canary moved from")
    assert "+39.7%" in reading.reason


def test_m20_a_cell_that_is_slower_by_itself_is_measured():
    reading = latency_of(SCALE, slowed(by=0.0))
    assert reading.status is Status.OK
