"""What is seen of a GPU while it works: samples of the side process, and their summary in the parent."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.devices import telemetry, units
from harness.devices.clients import Clients
from harness.devices.probe import CannotList
from harness.devices.sensors import Throttle, open_sensors
from harness.devices.telemetry import Sample, Summary, TelemetryReader

ENGINE = Path(telemetry.__file__).parents[2]
FAKES = Path(__file__).parent / "fakes"
NVIDIA, AMD = "GPU-aaaa0000", "4bff74a1-0000"
ELSEWHERE = (1 << 22) + 1
"""An id that no process here can have."""


def said(uuid, count):
    """The first lines of the side process, run in this one."""
    return [json.loads(line) for line in itertools.islice(telemetry.lines(uuid, 0.025, sleep=lambda seconds: None), count)]


def sample(at=0, clock=1980.0, power=300.0, temperature=40.0, throttled=()):
    return Sample(at, clock, 3201.0, power, temperature, list(throttled), 99.0, 0, "none", [], None)


class TestNvml:
    def test_a_sample_in_full(self, machine):
        machine.nvidia()
        before = time.monotonic_ns()
        (found,) = said(NVIDIA, 1)
        assert before <= found.pop("monotonic_ns") <= time.monotonic_ns()
        expected = {
            "sm_clock_mhz": 1980,
            "memory_clock_mhz": 3201,
            "power_w": 345.678,
            "temperature_c": 41,
            "throttled": [],
            "utilisation": 87,
            "ecc_uncorrected": 0,
            "partition": "none",
            "processes": [7, 9],
            "others": None,
        }
        assert expected == found

    @pytest.mark.parametrize(
        ("bits", "expected"),
        [
            (0x000, []),
            (0x001, ["idle"]),
            (0x004, ["power_cap"]),
            (0x048, ["hardware_slowdown", "thermal"]),
            (0x020, ["thermal"]),
            (0x080, ["power_brake"]),
            (0x102, ["clock_setting"]),
            (0x810, ["other"]),
        ],
        ids=lambda value: hex(value) if isinstance(value, int) else "",
    )
    def test_reasons_have_names(self, machine, bits, expected):
        machine.nvidia().reasons[0] = bits
        assert expected == said(NVIDIA, 1)[0]["throttled"]

    def test_drivers_before_535_know_the_reasons_by_their_old_name(self, machine):
        nvml = machine.nvidia()
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x4
        del nvml.nvmlDeviceGetCurrentClocksEventReasons
        assert said(NVIDIA, 1)[0]["throttled"] == ["power_cap"]

    def test_what_costs_most_is_asked_every_twentieth_time(self, machine):
        nvml = machine.nvidia()
        found = said(NVIDIA, 41)
        assert nvml.asked.count("nvmlDeviceGetComputeRunningProcesses") == 3
        assert nvml.asked.count("nvmlDeviceGetPowerUsage") == 41
        assert {tuple(one["processes"]) for one in found} == {(7, 9)}

    def test_what_is_not_told_is_null(self, machine):
        nvml = machine.nvidia()
        nvml.failing |= {"nvmlDeviceGetTotalEccErrors": 3, "nvmlDeviceGetComputeRunningProcesses": 4, "nvmlDeviceGetPowerUsage": 3}
        (found,) = said(NVIDIA, 1)
        assert (None, None, None) == (found["ecc_uncorrected"], found["processes"], found["power_w"])
        assert found["sm_clock_mhz"] == 1980

    def test_a_gpu_that_is_lost_ends_the_lines_with_why(self, machine):
        nvml = machine.nvidia()
        lines = telemetry.lines(NVIDIA, 0.025, sleep=lambda seconds: None)
        next(lines)
        nvml.failing["nvmlDeviceGetClockInfo"] = nvml.NVML_ERROR_GPU_IS_LOST
        assert ['{"unavailable": "NVML: GPU is lost"}'] == list(lines)

    def test_an_instance_has_the_sensors_of_its_gpu(self, machine):
        machine.nvidia().divide(1, i0="MIG-1")
        (found,) = said("MIG-1", 1)
        assert (1980, "mig") == (found["sm_clock_mhz"], found["partition"])

    def test_a_gpu_that_cannot_be_divided_tells_of_no_partition(self, machine):
        machine.nvidia().failing["nvmlDeviceGetMigMode"] = 3
        assert said(NVIDIA, 1)[0]["partition"] is None

    def test_processes_that_are_not_the_harnesss_are_told_apart(self, machine):
        nvml = machine.nvidia()
        nvml.computing[:] = [os.getpid(), ELSEWHERE]
        found = said(NVIDIA, 41)
        assert ([], [ELSEWHERE], [ELSEWHERE]) == (found[0]["others"], found[20]["others"], found[40]["others"])


class TestAmdsmi:
    def test_a_sample_in_full(self, machine):
        machine.amd()
        (found,) = said(AMD, 1)
        del found["monotonic_ns"]
        expected = {
            "sm_clock_mhz": 2095,
            "memory_clock_mhz": 900,
            "power_w": 612,
            "temperature_c": 63,
            "throttled": [],
            "utilisation": 99,
            "ecc_uncorrected": 1,
            "partition": "none",
            "processes": [3, 12],
            "others": None,
        }
        assert expected == found

    @pytest.mark.parametrize(
        ("counter", "reason"),
        [
            ("ppt_residency_acc", "power_cap"),
            ("socket_thm_residency_acc", "thermal"),
            ("hbm_thm_residency_acc", "thermal"),
            ("vr_thm_residency_acc", "thermal"),
            ("prochot_residency_acc", "hardware_slowdown"),
        ],
    )
    def test_a_counter_that_grows_names_its_reason(self, machine, counter, reason):
        smi = machine.amd()
        sensors = open_sensors(AMD)
        seen = []
        for growth in (0, 3, 0):
            smi.metrics[counter] += growth
            seen.append(sensors.fast()["throttled"])
        assert [[], [reason], []] == seen

    def test_an_older_table_says_that_it_throttles_and_not_why(self, machine):
        smi = machine.amd()
        old = {"current_gfxclk": 1700, "average_socket_power": 220, "temperature_edge": 55, "throttle_status": True}
        smi.metrics.update(dict.fromkeys(smi.metrics, "N/A") | old)
        (found,) = said(AMD, 1)
        figures = (found["sm_clock_mhz"], found["power_w"], found["temperature_c"], found["throttled"], found["utilisation"])
        assert (1700, 220, 55, ["other"], None) == figures

    def test_what_is_not_told_is_null(self, machine):
        machine.amd().failing |= {"amdsmi_get_gpu_total_ecc_count": 2, "amdsmi_get_gpu_process_list": 10}
        (found,) = said(AMD, 1)
        assert (None, None) == (found["ecc_uncorrected"], found["processes"])

    def test_a_card_that_is_several_devices_says_how(self, machine):
        machine.amd().gpus[0].partition = "CPX"
        assert said(AMD, 1)[0]["partition"] == "cpx"

    def test_processes_that_are_not_the_harnesss_are_told_apart(self, machine):
        machine.amd().computing[:] = [os.getpid(), ELSEWHERE]
        assert [ELSEWHERE] == said(AMD, 41)[40]["others"]

    def test_a_failure_ends_the_lines_with_why(self, machine):
        machine.amd().failing["amdsmi_get_gpu_metrics_info"] = 7
        assert [{"unavailable": "amdsmi: Error code: 7 | AMDSMI_STATUS_SOME"}] == said(AMD, 2)


class TestWithoutSensors:
    def test_a_machine_without_drivers_says_so(self, machine):
        assert [{"unavailable": f"no sensors of {NVIDIA}: no driver's library knows the unit"}] == said(NVIDIA, 2)

    def test_a_library_that_is_not_installed_is_named(self, machine):
        machine.nvidia()
        machine.library("pynvml", None)
        with pytest.raises(CannotList, match="pynvml not installed"):
            open_sensors(NVIDIA)

    def test_a_unit_that_is_not_here_is_not_watched(self, machine):
        machine.nvidia()
        machine.amd()
        assert "unavailable" in said("GPU-cccc", 1)[0]
        assert "unavailable" not in said(AMD, 1)[0]  # the second library is asked, too


class TestSummary:
    def test_is_of_extremes_and_the_median(self):
        found = Summary.of([sample(clock=1980.0, power=300.0), sample(clock=1200.0, power=310.0, temperature=45.0), sample(clock=1965.0)])
        assert Summary(3, 1200.0, 1965.0, 310.0, 45.0, []) == found

    def test_names_each_reason_once_but_idleness(self):
        seen = [sample(throttled=["power_cap"]), sample(throttled=["idle"]), sample(throttled=["power_cap", "thermal"])]
        assert Summary.of(seen).throttled == ["power_cap", "thermal"]

    def test_leaves_out_what_was_not_told(self):
        found = Summary.of([sample(clock=None, power=None, temperature=None), sample(clock=100.0, power=None, temperature=None)])
        assert Summary(2, 100.0, 100.0, None, None, []) == found

    def test_names_what_is_no_longer_as_it_was(self):
        seen = [
            replace(sample(), ecc_uncorrected=errors, partition=partition) for errors, partition in ((0, "none"), (None, None), (2, "mig"))
        ]
        assert Summary.of(seen).changed == ["partition from none to mig", "uncorrected memory errors from 0 to 2"]

    @pytest.mark.parametrize(
        ("looks", "expected"), [([None, None], None), ([None, []], 0), ([[], [5, 6], [5]], 2)], ids=["never told", "none", "most"]
    )
    def test_counts_the_others_at_a_time(self, looks, expected):
        assert Summary.of([replace(sample(), others=others) for others in looks]).others == expected

    def test_of_nothing_is_none(self):
        assert Summary.of([]) is None

    def test_reasons_are_a_closed_set(self):
        closed = {"thermal", "hardware_slowdown", "power_cap", "power_brake", "clock_setting", "idle", "other"}
        assert closed == set(Throttle)


@pytest.fixture
def environment(tmp_path):
    """An environment in which a child finds the fake libraries and believes in both drivers."""
    (tmp_path / "sitecustomize.py").write_text(
        "from pathlib import Path\nfrom harness.devices.probe import DRIVERS\nDRIVERS.update(dict.fromkeys(DRIVERS, Path('/dev/null')))\n"
    )
    return {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, FAKES, ENGINE)))}


@pytest.fixture
def reader(environment):
    """Starts readers of the fake GPU, and closes them."""
    started = []

    def start(uuid=NVIDIA, **options):
        started.append(TelemetryReader(uuid, environment, interval_ms=5, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


def until(condition, seconds=20.0):
    """Wait for a condition; a process takes its time to start."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
    return found


def summary_of(reader, samples):
    def enough():
        found = reader.within((0, time.monotonic_ns()))
        return found if found and found.samples >= samples else None

    return until(enough)


class TestReader:
    def test_sums_up_what_lies_between_two_instants(self, reader):
        watch = reader()
        summary_of(watch, 3)
        begin = time.monotonic_ns()
        until(lambda: (found := watch.within((begin, time.monotonic_ns()))) and found.samples >= 3)
        end = time.monotonic_ns()
        found = watch.within((begin, end))
        assert (1980, 1980, 345.678, 41, [], None, []) == tuple(vars(found).values())[1:]
        assert found.samples < watch.within((0, time.monotonic_ns())).samples
        assert watch.within((end + 10**12, end + 10**13)) is None

    def test_watches_amd_alike(self, reader):
        assert summary_of(reader(AMD), 2).sm_clock_mhz_min == 2095

    def test_keeps_the_latest_alone(self, reader):
        watch = reader(window=4)
        summary_of(watch, 4)
        begin = time.monotonic_ns()
        until(lambda: watch.within((0, begin)) is None)
        assert watch.within((0, time.monotonic_ns())).samples == 4

    def test_says_why_there_is_nothing(self, reader):
        watch = reader("GPU-cccc")
        assert until(lambda: watch.unavailable) == "no sensors of GPU-cccc: no driver's library knows the unit"
        assert watch.within((0, time.monotonic_ns())) is None

    def test_outlives_its_side_process(self, reader):
        watch = reader()
        seen = summary_of(watch, 2).samples
        os.kill(watch._process.pid, signal.SIGKILL)
        assert until(lambda: watch.unavailable) == "the side process ended"
        assert watch.within((0, time.monotonic_ns())).samples >= seen

    def test_closes_twice_and_leaves_no_process(self, reader):
        watch = reader()
        summary_of(watch, 1)
        watch.close()
        watch.close()
        assert not Path(f"/proc/{watch._process.pid}").exists()
        assert not watch._thread.is_alive()

    def test_the_side_process_dies_with_its_parent(self, environment):
        code = f"""
import os, time
from harness.devices.telemetry import TelemetryReader
watch = TelemetryReader({NVIDIA!r}, dict(os.environ), interval_ms=600_000)
while not watch.within((0, time.monotonic_ns())): time.sleep(0.01)
print(watch._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
        done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL
        until(lambda: not _runs(int(done.stdout)))

    def test_sees_nothing_of_the_callers_environment(self, environment, monkeypatch):
        monkeypatch.setenv("CANARY_TOKEN", "secret")
        watch = TelemetryReader(NVIDIA, environment)
        try:
            summary_of(watch, 1)
            assert b"CANARY_TOKEN" not in Path(f"/proc/{watch._process.pid}/environ").read_bytes()
        finally:
            watch.close()


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def real_gpu():
    found = units.local_units()
    if not found:
        pytest.skip("no GPU here")
    return found[0]


@pytest.mark.gpu
def test_a_real_gpu_is_listed_and_sampled_in_under_a_millisecond(real_gpu):
    assert real_gpu.device is not None
    assert real_gpu.memory_bytes > 0
    looks = telemetry.samples(open_sensors(real_gpu.uuid), Clients(os.getpid()))
    one = next(looks)
    assert 100 < one.sm_clock_mhz < 5000
    assert 10 < one.power_w < 2000
    assert 10 < one.temperature_c < 110
    before = time.process_time()
    for _ in range(200):
        next(looks)
    assert (time.process_time() - before) / 200 < 1e-3


@pytest.mark.gpu
def test_a_real_gpu_is_watched_without_a_context(real_gpu):
    path = os.pathsep.join(filter(None, [str(ENGINE), os.environ.get("PYTHONPATH", "")]))
    watch = TelemetryReader(real_gpu.uuid, {**os.environ, "PYTHONPATH": path})
    try:
        assert summary_of(watch, 10).sm_clock_mhz_median > 100
        assert watch._process.pid not in open_sensors(real_gpu.uuid).slow()["processes"]
    finally:
        watch.close()
