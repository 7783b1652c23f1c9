"""The unit's own parts of a calibration, measured in one launch."""

import pytest

from harness.measure import plugin
from harness.measure.calibration.launch import measure_parts


def test_calibration(request: pytest.FixtureRequest) -> None:
    """Measures the parts that the launch is asked for."""
    asked = plugin.launch_request
    assert asked is not None, "this file is run by `harness calibrate`"
    bad = measure_parts(asked.cells, request.config.stash[plugin.SESSION].timer, asked.emitter.send)
    assert not bad, f"{bad[0].status}: {bad[0].reason}"
