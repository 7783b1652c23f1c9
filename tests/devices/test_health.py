"""What is read of every GPU at rest, through a child that may hang, and what its owner has set."""

import os
import sys
import time
from pathlib import Path

import pytest

from harness.devices import child, health
from harness.devices.health import Health, has_driver, read_health, read_here
from harness.devices.probe import CannotList
from harness.devices.sensors import open_sensors
from harness.devices.table import Vendor
from harness.devices.units import local_units

FAKES = Path(__file__).parent / "fakes"
NVIDIA, AMD = "GPU-aaaa0000", "4bff74a1-0000"
BELIEVE = "from pathlib import Path\nfrom harness.devices.probe import DRIVERS\nDRIVERS.update(dict.fromkeys(DRIVERS, Path('/dev/null')))\n"


class TestSettings:
    def test_of_nvidia_in_full(self, machine):
        machine.nvidia()
        expected = {
            "sm_clock_max_mhz": 1980,
            "memory_clock_max_mhz": 3201,
            "clock_setting": "default",
            "power_limit_w": 700,
            "power_limit_default_w": 700,
            "ecc": True,
            "persistence": True,
            "newest_runtime": "13.0",
        }
        assert expected == open_sensors(NVIDIA).settings()

    def test_of_amd_in_full(self, machine):
        machine.amd()
        expected = {
            "sm_clock_max_mhz": 2100,
            "memory_clock_max_mhz": 1300,
            "clock_setting": "default",
            "power_limit_w": 750,
            "power_limit_default_w": 750,
            "ecc": True,
            "persistence": None,
            "newest_runtime": None,
        }
        assert expected == open_sensors(AMD).settings()

    def test_clocks_that_somebody_set_are_told_in_words(self, machine):
        machine.nvidia().application_clock["set"] = 1410
        machine.amd().perf_level[0] = "AMDSMI_DEV_PERF_LEVEL_MANUAL"
        assert "application clock 1410 MHz, by default 1980" == open_sensors(NVIDIA).settings()["clock_setting"]
        assert "performance level MANUAL, by default AUTO" == open_sensors(AMD).settings()["clock_setting"]

    @pytest.mark.parametrize("code", [3, 4, 13, 26], ids=["not supported", "no permission", "no such function", "deprecated"])
    def test_what_nvml_does_not_tell_is_null(self, machine, code):
        nvml = machine.nvidia()
        for name in ("ApplicationsClock", "EccMode", "PersistenceMode", "PowerManagementLimit", "MaxClockInfo"):
            nvml.failing[f"nvmlDeviceGet{name}"] = code
        found = open_sensors(NVIDIA).settings()
        assert {"power_limit_default_w": 700, "newest_runtime": "13.0"} == {
            name: value for name, value in found.items() if value is not None
        }

    def test_what_amdsmi_does_not_tell_is_null(self, machine):
        smi = machine.amd()
        for name in ("clock_info", "power_cap_info", "gpu_perf_level", "gpu_ecc_enabled"):
            smi.failing[f"amdsmi_get_{name}"] = 2
        assert {None} == set(open_sensors(AMD).settings().values())

    def test_a_driver_before_applications_clocks_were_deprecated_is_no_error(self, machine):
        del machine.nvidia().NVML_ERROR_DEPRECATED
        assert open_sensors(NVIDIA).settings()["ecc"] is True


class TestReading:
    def test_every_gpu_with_all_its_readings(self, machine):
        machine.nvidia()
        first, second = read_here({})
        assert [NVIDIA, "GPU-bbbb1111"] == [one["found"]["uuid"] for one in (first, second)]
        shown = {name: first["readings"][name] for name in ("sm_clock_mhz", "processes", "ecc", "throttled")}
        assert {"sm_clock_mhz": 1980, "processes": [7, 9], "ecc": True, "throttled": []} == shown

    def test_a_mask_is_followed(self, machine):
        machine.nvidia()
        assert ["GPU-bbbb1111"] == [one["found"]["uuid"] for one in read_here({"CUDA_VISIBLE_DEVICES": "1"})]

    def test_a_counter_that_grows_between_two_looks_is_throttling(self, machine, monkeypatch):
        smi = machine.amd()
        ask = smi.amdsmi_get_gpu_metrics_info

        def growing(handle):
            smi.metrics["ppt_residency_acc"] += 1
            return ask(handle)

        monkeypatch.setattr(smi, "amdsmi_get_gpu_metrics_info", growing)
        assert ["power_cap"] == read_here({})[0]["readings"]["throttled"]

    def test_a_gpu_that_cannot_be_read_says_why_and_hides_no_other(self, machine):
        nvml = machine.nvidia()
        ask = nvml.nvmlDeviceGetClockInfo

        def lost(handle, kind):
            if handle.uuid == NVIDIA:
                raise nvml.NVMLError(nvml.NVML_ERROR_GPU_IS_LOST)
            return ask(handle, kind)

        nvml.nvmlDeviceGetClockInfo = lost
        first, second = read_here({})
        assert (None, "NVML: GPU is lost") == (first["readings"], first["unread"]["found"])
        assert second["unread"] is None


@pytest.fixture
def drivers(machine, tmp_path, monkeypatch):
    """A driver here, and a child that finds the fake libraries, with a module of ours before them where `put` gives one."""
    machine.driver(Vendor.NVIDIA)
    (tmp_path / "sitecustomize.py").write_text(BELIEVE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(FAKES)]))
    return lambda name, code: (tmp_path / f"{name}.py").write_text(code)


class TestThroughTheChild:
    def test_a_machine_without_a_driver_starts_none(self, machine, monkeypatch):
        monkeypatch.setattr(health, "ask", lambda *_, **__: pytest.fail("a child was started"))
        assert [] == read_health()
        assert not has_driver()

    def test_gpus_of_both_vendors_and_their_rows(self, drivers):
        assert has_driver()
        found = read_health()
        assert ["h200", "h200", "mi300x", "mi300x"] == [gpu.device for gpu in found]
        assert ("570.10", "none", None) == (found[0].driver, found[0].partition, found[0].unread)
        assert found[0].readings["newest_runtime"] == "13.0"

    def test_a_gpu_of_no_row_is_of_no_device(self, drivers):
        drivers("pynvml", (FAKES / "pynvml.py").read_text() + "\n\ndef nvmlDeviceGetName(handle):\n    return 'Vendor Z9'\n")
        assert (None, "Vendor Z9") == (read_health()[0].device, read_health()[0].model)

    def test_a_driver_that_hangs_is_an_answer(self, drivers):
        drivers("pynvml", "import time\ntime.sleep(600)\n")
        began = time.monotonic()
        with pytest.raises(CannotList, match=r"no answer within 1\.5 s"):
            read_health(timeout_s=1.5)
        assert time.monotonic() - began < 10

    def test_a_driver_that_does_not_start_says_so(self, drivers):
        drivers("pynvml", (FAKES / "pynvml.py").read_text() + "\n\nfailing['nvmlInit'] = 15\n")
        with pytest.raises(CannotList, match="NVML does not start: GPU is lost"):
            read_health()


class TestAsk:
    @pytest.fixture
    def module(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return lambda code: (tmp_path / "spoken.py").write_text(code)

    def test_the_last_line_is_the_answer(self, module):
        module("print('a word of a library')\nprint('[1, 2]')")
        assert [1, 2] == child.ask("spoken")

    @pytest.mark.parametrize(
        ("code", "found"),
        [
            ("import sys; sys.exit('no such symbol')", "exit status 1: no such symbol"),
            ("import os; os.abort()", "exit status -6: it printed nothing"),
            ("print('[{')", "an answer that is no JSON: '[{'"),
            ("pass", "an answer that is no JSON: ''"),
            ('print(\'{"found": "no driver", "do": "install it"}\')', "no driver"),
        ],
        ids=["error", "crash", "torn", "silent", "refusal"],
    )
    def test_what_went_wrong_is_told(self, module, code, found):
        module(code)
        with pytest.raises(CannotList) as caught:
            child.ask("spoken")
        assert found == caught.value.found

    def test_a_child_that_hangs_is_ended_with_what_it_started(self, module, tmp_path):
        note = tmp_path / "pid"
        module(
            "import pathlib, subprocess, time\n"
            f"pathlib.Path({str(note)!r}).write_text(str(subprocess.Popen(['sleep', '600']).pid))\ntime.sleep(600)"
        )
        with pytest.raises(CannotList, match="no answer within 8 s"):
            child.ask("spoken", timeout_s=8)
        deadline = time.monotonic() + 20
        while is_running(note.read_text()):
            assert time.monotonic() < deadline, "its child still runs"
            time.sleep(0.02)


def is_running(pid):
    """Whether a process does anything still; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class TestStack:
    def test_a_library_is_its_version(self, tmp_path, monkeypatch):
        (tmp_path / "well.py").write_text("print('hello')\n__version__ = '1.2'")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        assert {"version": "1.2"} == child.ask("harness.devices.stack", "well")

    def test_one_that_is_missing_is_to_be_installed(self):
        with pytest.raises(CannotList, match="it is not installed") as caught:
            child.ask("harness.devices.stack", "no_such_library")
        assert f"install no_such_library into the environment of {sys.executable}" == caught.value.do

    def test_one_that_breaks_says_how(self, tmp_path, monkeypatch):
        (tmp_path / "broken.py").write_text("raise OSError('libcuda.so.1: cannot open')")
        (tmp_path / "needy.py").write_text("import no_such_library")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(CannotList, match=r"cannot be imported: OSError\('libcuda\.so\.1: cannot open'\)"):
            child.ask("harness.devices.stack", "broken")
        with pytest.raises(CannotList, match="no module 'no_such_library'"):
            child.ask("harness.devices.stack", "needy")

    def test_torch_says_what_it_was_built_for(self, tmp_path, monkeypatch):
        (tmp_path / "torch.py").write_text(
            "from types import SimpleNamespace\n__version__ = '9.1'\nversion = SimpleNamespace(cuda='13.0', hip=None)\n"
            "cuda = SimpleNamespace(device_count=lambda: 2)\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        assert {"version": "9.1", "cuda": "13.0", "hip": None, "gpus": 2} == child.ask("harness.devices.stack", "torch")


@pytest.mark.gpu
def test_a_real_gpu_is_read_within_its_box_and_left_as_it_is():
    units = local_units()
    if not units:
        pytest.skip("no GPU here")
    before, after = read_health(), read_health()
    assert [unit.uuid for unit in units] == [gpu.uuid for gpu in before]
    assert all(isinstance(gpu, Health) and gpu.readings is not None for gpu in before)
    kept = ("clock_setting", "power_limit_w", "ecc", "persistence", "sm_clock_max_mhz")
    assert [[gpu.readings[name] for name in kept] for gpu in before] == [[gpu.readings[name] for name in kept] for gpu in after]
    assert before[0].readings["sm_clock_max_mhz"] > 500
