"""Says of each reading of a GPU whether the GPU is fit to measure: pure, from what `health` read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.devices.health import Health
from harness.devices.sensors import DEFAULT, Throttle


class Level(StrEnum):
    """How a check ended. `warn`: measuring works, and a reader should know; `fail`: it does not, or its numbers are void."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One line of the doctor.

    Args:
        name: what was looked at; the unit stands behind it where it is one of a GPU's.
        found: what is there, with the value.
        do: the next step; empty where there is nothing to do.
    """

    name: str
    level: Level
    found: str
    do: str = ""


NEVER = frozenset({Throttle.THERMAL, Throttle.HARDWARE_SLOWDOWN, Throttle.POWER_BRAKE})
"""Reasons that void what is measured; another lowers clocks, and is labelled."""
OWNER = "ask the machine's owner"


def gpu_checks(gpus: Sequence[Health]) -> Iterator[Check]:
    """The checks of every GPU."""
    for gpu in gpus:
        label = gpu.uuid[:12]
        for check in _checks(gpu):
            yield Check(f"{check.name} {label}", check.level, check.found, check.do)


def _checks(gpu: Health) -> Iterator[Check]:
    yield _row(gpu)
    yield _partition(gpu.partition)
    if gpu.readings is None:
        found, do = gpu.unread or ("it has no sensors", "")
        yield Check("sensors", Level.FAIL, found, do)
        return
    for judge in (_clocks, _throttle, _ecc, _processes, _persistence, _temperature, _power):
        yield judge(gpu.readings)


def _row(gpu: Health) -> Check:
    driver = f"driver {gpu.driver}" if gpu.driver else "driver version not told"
    if gpu.device is None:
        found = f"{gpu.model}, {driver}: no row of devices.toml is meant"
        return Check("gpu", Level.FAIL, found, "add a row (docs/devices.md), or mask it: CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES")
    return Check("gpu", Level.OK, f"{gpu.device}: {gpu.model}, {driver}")


def _partition(partition: str | None) -> Check:
    if partition == "none":
        return Check("partition", Level.OK, "the whole card")
    if partition is None:
        return Check("partition", Level.WARN, "not told", "install nvidia-ml-py or amdsmi")
    return Check("partition", Level.FAIL, f"divided ({partition}): a lease is of a whole GPU", f"{OWNER} for a whole one")


def _clocks(r: Mapping[str, Any]) -> Check:
    pairs = (("core", "sm_clock_mhz", "sm_clock_max_mhz"), ("memory", "memory_clock_mhz", "memory_clock_max_mhz"))
    now = ", ".join(f"{name} {_number(r[current])} of {_number(r[highest])} MHz" for name, current, highest in pairs)
    setting = r["clock_setting"]
    if setting is None:
        return Check("clocks", Level.OK, f"{now}; whether they are set is not told")
    if setting == DEFAULT:
        return Check("clocks", Level.OK, f"{now}; as the driver sets them")
    return Check("clocks", Level.WARN, f"{now}; set: {setting}", f"{OWNER} whether that is meant: times compare only under equal clocks")


def _throttle(r: Mapping[str, Any]) -> Check:
    reasons = sorted(set(r["throttled"]) - {Throttle.IDLE})
    if not reasons:
        return Check("throttling", Level.OK, "none now" + (", idle" if Throttle.IDLE in r["throttled"] else ""))
    level = Level.FAIL if NEVER & set(reasons) else Level.WARN
    return Check("throttling", level, ", ".join(reasons), "see to cooling and power, and to what else runs on the GPU")


def _ecc(r: Mapping[str, Any]) -> Check:
    errors, on = r["ecc_uncorrected"], r["ecc"]
    if errors:
        return Check("ecc", Level.FAIL, f"{errors} uncorrected errors since the driver was loaded", f"{OWNER} to look at the card")
    if on is False:
        return Check("ecc", Level.WARN, "off", f"{OWNER} whether that is meant: it changes bandwidth, and errors go unseen")
    counted = "errors not told" if errors is None else "no uncorrected errors since the driver was loaded"
    if on is None and errors is None:
        return Check("ecc", Level.WARN, "not told")
    return Check("ecc", Level.OK, f"{'on' if on else 'whether it is on is not told'}, {counted}")


def _processes(r: Mapping[str, Any]) -> Check:
    ids = r["processes"]
    if ids is None:
        return Check("processes", Level.WARN, "not told", "make sure yourself that nothing else computes on it")
    if ids:
        shown = ", ".join(map(str, ids[:5])) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        return Check("processes", Level.FAIL, f"others compute on it: {shown}", "wait until they have ended, or take another GPU")
    return Check("processes", Level.OK, "none computes on it")


def _persistence(r: Mapping[str, Any]) -> Check:
    if r["persistence"] is False:
        do = f"{OWNER} to turn it on: the driver is loaded anew for every first client, and counters start again"
        return Check("persistence", Level.WARN, "off", do)
    return Check("persistence", Level.OK, "on" if r["persistence"] else "not told")


def _temperature(r: Mapping[str, Any]) -> Check:
    celsius = r["temperature_c"]
    return Check("temperature", Level.OK, "not told" if celsius is None else f"{celsius:.0f} degrees Celsius")


def _power(r: Mapping[str, Any]) -> Check:
    now, limit, default = r["power_w"], r["power_limit_w"], r["power_limit_default_w"]
    found = f"{_number(now)} of {_number(limit)} W"
    if limit is not None and default is not None and limit < default:
        return Check("power", Level.WARN, f"{found}, limited below the default of {default:.0f} W", f"{OWNER} whether that is meant")
    return Check("power", Level.OK, found)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"
