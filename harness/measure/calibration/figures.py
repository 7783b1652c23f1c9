"""One figure of a calibration as a reading, with how it was taken."""

from __future__ import annotations

from collections.abc import Sequence

from harness.measure.calibration.parts import METHOD
from harness.measure.clock.readings import Cache, Clock, LaunchMode
from harness.measure.subject import Reading


def figure(
    metric: str,
    value: float,
    samples: Sequence[float] = (),
    *,
    cache: Cache | None = None,
    mode: LaunchMode = LaunchMode.DEVICE,
    clock: Clock = Clock.DEVICE_EVENT,
) -> Reading:
    """The reading of one figure.

    Args:
        samples: in the metric's unit; none where the figure is derived from others.
        cache: what it finds in the cache; None where that is not the question, or is what is being measured.
    """
    columns = {
        "method": METHOD,
        "cache": cache and str(cache),
        "launch_mode": str(mode),
        "clock": str(clock),
        "samples": list(samples) or None,
    }
    return Reading(metric, value, columns=columns)
