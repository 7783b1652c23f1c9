"""The clock: times a cell on a device, and says with each number how it was taken.

    session = ClockSession(TorchDevice(row), seed=17)
    readings = time_cell(subject, session)

Importing this package binds the device's clock and the host's; import it before any code under test.
"""

from __future__ import annotations

from harness.measure.clock.canaries import Canary, take_canary
from harness.measure.clock.ceilings import Ceilings, measure_ceilings
from harness.measure.clock.device import Limits, TimedDevice
from harness.measure.clock.facts import LeaseFacts, RingProof
from harness.measure.clock.launches import LaunchRecord, record_launches
from harness.measure.clock.session import ClockSession
from harness.measure.clock.settings import ClockSettings
from harness.measure.clock.timing import time_cell, time_main
from harness.measure.clock.torch_device import TorchDevice
from harness.measure.clock.validity import InvalidTiming, Reason

__all__ = [
    "Canary",
    "Ceilings",
    "ClockSession",
    "ClockSettings",
    "InvalidTiming",
    "LaunchRecord",
    "LeaseFacts",
    "Limits",
    "Reason",
    "RingProof",
    "TimedDevice",
    "TorchDevice",
    "measure_ceilings",
    "record_launches",
    "take_canary",
    "time_cell",
    "time_main",
]
