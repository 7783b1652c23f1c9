"""Which units this machine has: what becomes of the probe's answer, and of its failures."""

import json

import pytest

from harness.devices import units
from harness.devices.table import Vendor
from harness.devices.units import ProbeFailed, Unit, local_units

H200 = {
    "uuid": "GPU-aaaa0000",
    "model": "NVIDIA H200",
    "multiprocessors": None,
    "memory_bytes": 150_000_000_000,
    "driver": "570.10",
    "partition": "none",
    "environment": {"CUDA_VISIBLE_DEVICES": "GPU-aaaa0000"},
}


@pytest.fixture
def child(machine, monkeypatch):
    """Puts a child of our own in the probe's place, on a machine with a driver."""
    machine.driver(Vendor.NVIDIA)
    return lambda code: monkeypatch.setattr(units, "PROBE", ("-c", code))


def answer(child, found):
    child(f"print('a word of a library'); print({json.dumps(found)!r})")


def test_a_machine_without_a_driver_starts_nothing(machine, monkeypatch):
    monkeypatch.setattr(units, "_probe", lambda: pytest.fail("a child was started"))
    assert local_units() == []


def test_a_gpu_becomes_a_unit_of_its_device(child):
    answer(child, [H200])
    expected = Unit("GPU-aaaa0000", "h200", "NVIDIA H200", 150_000_000_000, {"CUDA_VISIBLE_DEVICES": "GPU-aaaa0000"}, "570.10", "none")
    assert [expected] == local_units()


@pytest.mark.parametrize(
    "change",
    [{"model": "NVIDIA Z9"}, {"model": "NVIDIA H200 MIG 1g.18gb", "multiprocessors": 16}, {"multiprocessors": 66}],
    ids=["unknown", "an instance", "a part"],
)
def test_a_gpu_of_no_row_is_a_unit_of_no_device(child, change):
    answer(child, [H200 | change])
    assert [None] == [unit.device for unit in local_units()]


def test_what_the_probe_found_instead_is_told(child):
    answer(child, {"found": "NVML does not start: GPU is lost", "do": "repair the driver"})
    with pytest.raises(ProbeFailed) as caught:
        local_units()
    error = caught.value
    assert ("list the GPUs of this machine", "NVML does not start: GPU is lost", "repair the driver") == (
        error.asked,
        error.found,
        error.do,
    )
    assert error.exit_code == 3


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import sys; sys.exit('no such symbol')", "exit status 1: no such symbol"),
        ("import os; os.abort()", "exit status -6: it printed nothing"),
        ("print('[{')", "an answer that is no JSON: '[{'"),
        ("pass", "an answer that is no JSON: ''"),
    ],
    ids=["error", "crash", "torn", "silent"],
)
def test_a_child_that_fails_is_an_error_with_its_words(child, code, found):
    child(code)
    with pytest.raises(ProbeFailed) as caught:
        local_units()
    assert found == caught.value.found


def test_a_child_that_hangs_is_given_up(child, monkeypatch):
    child("import time; time.sleep(60)")
    monkeypatch.setattr(units, "PROBE_TIMEOUT_S", 0.3)
    with pytest.raises(ProbeFailed, match=r"no answer within 0\.3 s"):
        local_units()


def test_the_real_child_answers(machine):
    machine.driver(Vendor.NVIDIA)
    assert isinstance(local_units(), list)
