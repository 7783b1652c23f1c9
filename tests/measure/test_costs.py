import pytest

from harness import Traffic
from harness.measure.costs import breach_of


@pytest.mark.parametrize(
    ("read", "written", "expected"),
    [
        pytest.param(100, 40, None, id="all"),
        pytest.param(30, 40, None, id="some slots"),
        pytest.param(105, 42, None, id="rounded"),
        pytest.param(106, 40, "traffic reads 106 bytes, and the inputs have 100", id="an input twice"),
        pytest.param(100, 37, "traffic writes 37 bytes, and the outputs have 40", id="part of an output"),
        pytest.param(100, 90, None, id="all state"),
        pytest.param(100, 95, "traffic writes 95 bytes, and outputs and mutated inputs have 90", id="more than there is"),
    ],
)
def test_compulsory_bytes_are_held_against_the_tensors(read, written, expected):
    assert breach_of(Traffic(read, written), inputs=100, outputs=40, mutated=50) == expected
