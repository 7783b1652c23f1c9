"""What makes a launch's numbers invalid, and the checks that need no device. A breach has a reason code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from harness.authoring.model import Traffic
from harness.measure.clock.ring import RingPlan

if TYPE_CHECKING:
    from harness.measure.clock.ceilings import Ceilings


class Reason(StrEnum):
    """Why a figure is invalid, or was not taken. Closed."""

    NEGATIVE_TIME = "negative_time"
    NO_VALID_SAMPLES = "no_valid_samples"
    OVER_PEAK = "over_peak"
    COST_MODEL = "cost_model"
    HOST_CLOCK = "host_clock"
    NOT_COLD = "not_cold"
    NOT_CAPTURABLE = "not_capturable"
    KERNEL_COUNT = "kernel_count"
    UNWRITTEN = "unwritten_output"
    REPLAY_DIFFERS = "replay_differs"
    STATE_DIFFERS = "state_differs"
    CURSOR = "cursor"
    PHASES = "phases"
    MEMORY = "memory"
    WARM_FOOTPRINT = "warm_footprint"
    SERVING_FOOTPRINT = "serving_footprint"
    SERVING_CYCLE = "serving_cycle"
    LAUNCH_BOUND = "launch_bound"
    CONTENDED = "contended"


class InvalidTiming(Exception):
    """A number that must not leave the launch.

    Args:
        reason: the code, by which the cell is reported.
        detail: what was found.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}")


class RingTooSmall(InvalidTiming):
    """A call finds in the cache what an earlier use of its buffers left there: a larger ring may still be cold."""

    def __init__(self, detail: str) -> None:
        super().__init__(Reason.NOT_COLD, detail)


def check_elapsed(elapsed_us: Sequence[float]) -> None:
    """Refuse negative times, which mean that the clock itself is wrong; nothing is clamped or dropped.

    Raises:
        InvalidTiming: negative_time, or no_valid_samples where a time is not finite.
    """
    if negative := [us for us in elapsed_us if us < 0]:
        raise InvalidTiming(Reason.NEGATIVE_TIME, f"{len(negative)} of {len(elapsed_us)} times are negative, the first {negative[0]} us")
    if unknown := sum(not math.isfinite(us) for us in elapsed_us):
        raise InvalidTiming(Reason.NO_VALID_SAMPLES, f"{unknown} of {len(elapsed_us)} times are not finite")


def check_samples(samples: Sequence[float]) -> None:
    """Refuse an empty set of samples.

    Raises:
        InvalidTiming: no_valid_samples.
    """
    if not samples:
        raise InvalidTiming(Reason.NO_VALID_SAMPLES, "no sample was taken")


def check_peak(us: float, traffic: Traffic, ceilings: Ceilings, margin: float) -> None:
    """Refuse a cold time below the roofline floor: compulsory bytes at `margin` times the unit's own best bandwidth.

    Raises:
        InvalidTiming: over_peak.
    """
    floor_us = traffic.total / (margin * ceilings.best_gbps * 1e3)
    if not us >= floor_us:
        found = f"{traffic.total} bytes in {us:.4g} us, below the floor of {floor_us:.4g} us at {margin} x {ceilings.best_gbps:.0f} GB/s"
        raise InvalidTiming(Reason.OVER_PEAK, found)


def check_host_clock(wall_us: float, device_us: float, allowed_us: float, tolerance: float) -> None:
    """Compare what host and device say that the timed replays took.

    Args:
        allowed_us: what enqueueing and waiting may cost beside.

    Raises:
        InvalidTiming: host_clock, where they differ by more than `tolerance` of the host's figure and by more than `allowed_us`.
    """
    if not abs(wall_us - device_us) <= max(tolerance * wall_us, allowed_us):
        raise InvalidTiming(Reason.HOST_CLOCK, f"the device's clock says {device_us:.6g} us, the host's {wall_us:.6g} us")


def check_ring(plan: RingPlan, longest: int, *, keeps: bool) -> None:
    """Refuse a ring that cannot be cold: code that keeps what it loads needs other calls of its own kind between two uses of a buffer.

    Args:
        keeps: whether the code asks the cache to keep what it loads.

    Raises:
        InvalidTiming: not_cold.
    """
    if keeps and (plan.evictions or plan.slots > longest):
        evicted = "other code of the cell was timed with the cache filled between samples, which does not displace that"
        what = (
            f"{evicted}: time each in a run of its own"
            if plan.evictions
            else f"a ring of {plan.slots} buffers is too long, {longest} at most"
        )
        raise InvalidTiming(Reason.NOT_COLD, f"the code asks the cache to keep what it loads (evict_last), and {what}")


def check_doubling(us: float, doubled_us: float, limit: float) -> float:
    """The relative change of a cold time when the ring is doubled.

    Raises:
        RingTooSmall: it is `limit` or more.
    """
    change = doubled_us / us - 1
    if not abs(change) < limit:
        raise RingTooSmall(f"doubling the ring moves the time from {us:.4g} to {doubled_us:.4g} us ({change:+.1%})")
    return change


def check_phases(steps_us: Sequence[float], phase_us: Sequence[float], tolerance: float) -> None:
    """Reconcile the phases of a cycle, timed alone, with the step of the whole cycle.

    Args:
        steps_us: the step before the phases were timed, and after them where that was asked.

    Raises:
        InvalidTiming: phases, where their mean is more than `tolerance` away from all of these and from what lies between.
    """
    mean = sum(phase_us) / len(phase_us)
    if not min(steps_us) * (1 - tolerance) <= mean <= max(steps_us) * (1 + tolerance):
        steps = " and then ".join(f"{us:.4g}" for us in steps_us)
        raise InvalidTiming(Reason.PHASES, f"a step of the cycle takes {steps} us, the mean of its phases is {mean:.4g} us")
