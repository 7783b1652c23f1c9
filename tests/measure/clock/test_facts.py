import json

import pytest

from harness.measure.clock.ceilings import Ceilings
from harness.measure.clock.facts import LeaseFacts, RingProof
from harness.measure.clock.filling import Filling
from harness.measure.clock.floors import CellFloors, ClockFloors

FULL = LeaseFacts(
    clock=ClockFloors(0.032, 1.8, 0.67, 9.6, 21.0),
    ceilings=Ceilings(4300.0, 4550.0),
    filling=Filling(5.3, 5.4, 4.5),
    floors={"1,1,1": CellFloors(("1,1,1",), 0.67, 1.1)},
    rings={
        "k/v/N=8,dtype=fp32@h200": {"0f": RingProof(4, 0, 1.79, 1.80, 0.0056), "1e": RingProof(4, 0, 1.70, 1.70, 0.0)},
        "k/v/N=9,dtype=fp32@h200": {"0f": RingProof(1, 1024, 900.0, None, None)},
    },
)


@pytest.mark.parametrize("facts", [LeaseFacts(), FULL], ids=["nothing known", "all known"])
def test_one_launch_hands_facts_to_the_next_as_plain_data(facts):
    assert LeaseFacts.from_json(json.loads(json.dumps(facts.to_json(), allow_nan=False))) == facts


def test_facts_of_another_shape_are_refused():
    with pytest.raises(TypeError):
        LeaseFacts.from_json({**FULL.to_json(), "ceilings": {"copy_gbps": 1.0, "speed": 2.0}})
