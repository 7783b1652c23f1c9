"""A call of several layers: one launch after another, each with inputs, state and outputs of its own."""

import pytest
from toys import BYTES, layered, session_on, subject_of

from harness.measure.clock import time_cell
from harness.measure.clock.program import make_bench

LAUNCHES, LAYERS = 3, 5
LAYER_US = LAUNCHES * 0.7 + 3 * BYTES / 1e3 + 2 * BYTES / 4e3
"""Its launches, its state, input and output from memory, and its state twice from the cache."""


@pytest.fixture(scope="module")
def found():
    return {layers: {r.metric: r for r in time_cell(subject_of(layered(layers)), session_on())} for layers in (1, LAYERS)}


def test_every_launch_of_a_call_is_a_node():
    bench = make_bench(subject_of(layered(LAYERS)), session_on(), 2, seed=1, contents=2, allocated=2)
    bench.prepare()
    assert LAUNCHES * LAYERS == bench.nodes


@pytest.mark.parametrize("layers", [1, LAYERS])
def test_a_calls_time_is_that_of_all_its_layers(found, layers):
    assert layers * LAYER_US == pytest.approx(found[layers]["latency_us"].value, rel=0.02)


def test_the_ring_is_smaller_by_as_much_as_a_call_touches_more(found):
    one, several = (found[layers]["latency_us"].columns["evidence"]["ring"] for layers in (1, LAYERS))
    assert (one - 1) / LAYERS == pytest.approx(several - 1, abs=1)


def test_a_chain_carries_every_layers_state_from_call_to_call(found):
    chained = found[LAYERS]["chained_us"]
    state_from_memory = LAYERS * (BYTES / 1e3 - BYTES / 4e3)
    assert "carried" == chained.columns["cache"]
    assert found[LAYERS]["latency_us"].value - state_from_memory == pytest.approx(chained.value, rel=0.02)


def test_bytes_are_those_of_all_layers(found):
    us = found[LAYERS]["latency_us"].value
    assert 4 * LAYERS * BYTES / us / 1e3 == pytest.approx(found[LAYERS]["gbps"].value)
