"""Which readings make a GPU unfit to measure, and which are only to be known."""

import pytest

from harness.devices.fitness import Check, Level, gpu_checks
from harness.devices.health import Health
from harness.devices.sensors import Throttle

GOOD = {
    "sm_clock_mhz": 345.0,
    "memory_clock_mhz": 3201.0,
    "power_w": 76.4,
    "temperature_c": 31.0,
    "throttled": ["idle"],
    "utilisation": 0.0,
    "ecc_uncorrected": 0,
    "processes": [],
    "sm_clock_max_mhz": 1980.0,
    "memory_clock_max_mhz": 3201.0,
    "clock_setting": "default",
    "power_limit_w": 700.0,
    "power_limit_default_w": 700.0,
    "ecc": True,
    "persistence": True,
    "newest_runtime": "13.0",
}
GPU = {"uuid": "GPU-aaaa0000-1111", "device": "h200", "model": "NVIDIA H200", "driver": "570.10", "partition": "none"}


def checks(readings=GOOD, **changed):
    found = gpu_checks([Health(**(GPU | {"readings": readings} | changed))])
    return {check.name.removesuffix(" GPU-aaaa0000"): check for check in found}


def judged(name, **readings):
    check = checks(GOOD | readings)[name]
    return check.level, check.found


def test_a_gpu_at_rest_is_fit_and_every_reading_is_told():
    expected = {
        "gpu": "h200: NVIDIA H200, driver 570.10",
        "partition": "the whole card",
        "clocks": "core 345 of 1980 MHz, memory 3201 of 3201 MHz; as the driver sets them",
        "throttling": "none now, idle",
        "ecc": "on, no uncorrected errors since the driver was loaded",
        "processes": "none computes on it",
        "persistence": "on",
        "temperature": "31 degrees Celsius",
        "power": "76 of 700 W",
    }
    found = checks()
    assert expected == {name: check.found for name, check in found.items()}
    assert {Level.OK} == {check.level for check in found.values()}
    assert {""} == {check.do for check in found.values()}


@pytest.mark.parametrize(
    ("name", "readings", "level"),
    [
        ("clocks", {"clock_setting": "application clock 1410 MHz, by default 1980"}, "warn"),
        ("throttling", {"throttled": ["power_cap"]}, "warn"),
        ("throttling", {"throttled": ["clock_setting"]}, "warn"),
        ("throttling", {"throttled": ["other"]}, "warn"),
        ("throttling", {"throttled": ["idle", "thermal"]}, "fail"),
        ("throttling", {"throttled": ["hardware_slowdown"]}, "fail"),
        ("throttling", {"throttled": ["power_brake", "power_cap"]}, "fail"),
        ("ecc", {"ecc_uncorrected": 2}, "fail"),
        ("ecc", {"ecc": False}, "warn"),
        ("processes", {"processes": [7, 9]}, "fail"),
        ("persistence", {"persistence": False}, "warn"),
        ("power", {"power_limit_w": 350.0}, "warn"),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value,
)
def test_what_is_amiss_has_a_level_and_a_next_step(name, readings, level):
    found = checks(GOOD | readings)
    assert (level, True) == (found[name].level, bool(found[name].do))
    assert {Level.OK} == {check.level for other, check in found.items() if other != name}


@pytest.mark.parametrize(
    ("name", "readings", "expected"),
    [
        ("clocks", {"clock_setting": None}, ("ok", "core 345 of 1980 MHz, memory 3201 of 3201 MHz; whether they are set is not told")),
        ("clocks", {"memory_clock_max_mhz": None}, ("ok", "core 345 of 1980 MHz, memory 3201 of ? MHz; as the driver sets them")),
        ("ecc", {"ecc": None, "ecc_uncorrected": None}, ("warn", "not told")),
        ("ecc", {"ecc": None}, ("ok", "whether it is on is not told, no uncorrected errors since the driver was loaded")),
        ("processes", {"processes": None}, ("warn", "not told")),
        ("persistence", {"persistence": None}, ("ok", "not told")),
        ("temperature", {"temperature_c": None}, ("ok", "not told")),
        ("power", {"power_limit_w": None, "power_limit_default_w": None}, ("ok", "76 of ? W")),
    ],
    ids=["setting", "maximum", "ecc", "ecc mode", "processes", "persistence", "temperature", "limit"],
)
def test_what_is_not_told_is_said_so(name, readings, expected):
    assert expected == judged(name, **readings)


def test_many_processes_are_counted():
    assert (Level.FAIL, "others compute on it: 1, 2, 3, 4, 5 and 2 more") == judged("processes", processes=[1, 2, 3, 4, 5, 6, 7])


def test_every_reason_of_throttling_has_a_level():
    levels = {reason: judged("throttling", throttled=[reason])[0] for reason in Throttle}
    assert {"thermal", "hardware_slowdown", "power_brake"} == {reason for reason, level in levels.items() if level is Level.FAIL}
    assert {"idle"} == {reason for reason, level in levels.items() if level is Level.OK}


@pytest.mark.parametrize(("partition", "level"), [("mig", "fail"), ("cpx", "fail"), (None, "warn")])
def test_a_part_of_a_card_is_no_lease(partition, level):
    assert level == checks(partition=partition)["partition"].level


def test_a_gpu_of_no_row_cannot_be_measured():
    check = checks(device=None, model="Vendor Z9")["gpu"]
    assert (Level.FAIL, "Vendor Z9, driver 570.10: no row of devices.toml is meant") == (check.level, check.found)
    assert "docs/devices.md" in check.do


def test_without_sensors_there_is_one_line_that_says_why():
    found = checks(readings=None, unread=("pynvml not installed", "install nvidia-ml-py"))
    assert ["gpu", "partition", "sensors"] == list(found)
    assert Check("sensors GPU-aaaa0000", Level.FAIL, "pynvml not installed", "install nvidia-ml-py") == found["sensors"]


def test_each_gpu_is_judged_and_named():
    names = [check.name for check in gpu_checks([Health(**GPU, readings=GOOD), Health(**(GPU | {"uuid": "GPU-bbbb1111"}), readings=GOOD)])]
    assert (9, 9) == (sum(n.endswith("GPU-aaaa0000") for n in names), sum(n.endswith("GPU-bbbb1111") for n in names))
