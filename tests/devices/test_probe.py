"""Which GPUs a machine lists, whom they belong to, and what is said when they cannot be listed."""

import json
from types import SimpleNamespace

import pytest

from harness.devices import probe
from harness.devices.probe import CannotList
from harness.devices.table import Vendor


def uuids(**environ):
    return [found["uuid"] for found in probe.probe(environ)]


def refusal(**environ):
    with pytest.raises(CannotList) as caught:
        probe.probe(environ)
    return caught.value


class TestNvml:
    def test_a_whole_gpu_is_told_in_full(self, machine):
        machine.nvidia()
        expected = {
            "uuid": "GPU-aaaa0000",
            "model": "NVIDIA H200",
            "multiprocessors": None,
            "memory_bytes": 150_000_000_000,
            "driver": "570.10",
            "partition": "none",
            "environment": {"CUDA_VISIBLE_DEVICES": "GPU-aaaa0000"},
        }
        assert expected == probe.probe({})[0]

    @pytest.mark.parametrize(
        ("mask", "expected"),
        [
            ("1", ["GPU-bbbb1111"]),
            ("1, 0", ["GPU-bbbb1111", "GPU-aaaa0000"]),
            ("GPU-aaaa0000", ["GPU-aaaa0000"]),
            ("gpu-bbbb", ["GPU-bbbb1111"]),
            ("", []),
            ("-1", []),
            ("0,-1,1", ["GPU-aaaa0000"]),
            ("NoDevFiles", []),
        ],
    )
    def test_a_masked_gpu_is_not_ours(self, machine, mask, expected):
        machine.nvidia()
        assert expected == uuids(CUDA_VISIBLE_DEVICES=mask)

    @pytest.mark.parametrize("mask", ["2", "GPU-cccc", "GPU-", "0,0"], ids=["out of range", "unknown", "ambiguous", "twice"])
    def test_a_mask_that_names_no_single_gpu_is_refused(self, machine, mask):
        machine.nvidia()
        error = refusal(CUDA_VISIBLE_DEVICES=mask)
        assert f"CUDA_VISIBLE_DEVICES={mask}" in error.found
        assert "0: GPU-aaaa0000, 1: GPU-bbbb1111" in error.found

    def test_numbers_of_a_mixed_machine_need_the_bus_order(self, machine):
        machine.nvidia().gpus[1].name = "NVIDIA L4"
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in refusal(CUDA_VISIBLE_DEVICES="1").do
        assert uuids(CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["GPU-bbbb1111"]
        assert uuids(CUDA_VISIBLE_DEVICES="GPU-bbbb") == ["GPU-bbbb1111"]

    def test_of_a_divided_gpu_its_instances_are_listed(self, machine):
        machine.nvidia().divide(0, i0="MIG-1", i3="MIG-2")
        found = probe.probe({})
        assert ["MIG-1", "MIG-2", "GPU-bbbb1111"] == [one["uuid"] for one in found]
        first = found[0]
        assert ("mig", 16, 18_000_000_000) == (first["partition"], first["multiprocessors"], first["memory_bytes"])
        assert {"CUDA_VISIBLE_DEVICES": "MIG-1"} == first["environment"]

    def test_an_instance_is_chosen_by_uuid_and_its_gpu_by_nothing(self, machine):
        machine.nvidia().divide(0, i0="MIG-1", i1="MIG-2")
        assert uuids(CUDA_VISIBLE_DEVICES="MIG-2") == ["MIG-2"]
        assert "names 2 GPUs or instances" in refusal(CUDA_VISIBLE_DEVICES="0").found
        assert "names 0 GPUs or instances" in refusal(CUDA_VISIBLE_DEVICES="GPU-aaaa0000").found

    def test_a_gpu_that_cannot_be_divided_is_whole(self, machine):
        nvml = machine.nvidia()
        nvml.failing["nvmlDeviceGetMigMode"] = nvml.NVML_ERROR_NOT_SUPPORTED
        assert {one["partition"] for one in probe.probe({})} == {"none"}

    def test_no_driver_is_no_gpu(self, machine):
        nvml = machine.nvidia()
        nvml.failing["nvmlInit"] = nvml.NVML_ERROR_DRIVER_NOT_LOADED
        assert probe.probe({}) == []

    @pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMigMode"])
    def test_a_failure_is_an_error_and_torch_is_not_asked(self, machine, function):
        nvml = machine.nvidia()
        nvml.failing[function] = nvml.NVML_ERROR_GPU_IS_LOST
        machine.library("torch", torch_build())
        assert "GPU is lost" in refusal().found

    def test_what_another_vendors_mask_says_is_nothing_to_nvidia(self, machine):
        machine.nvidia()
        assert len(uuids(HIP_VISIBLE_DEVICES="", ROCR_VISIBLE_DEVICES="0")) == 2


class TestAmdsmi:
    def test_a_gpu_is_selected_by_hips_number(self, machine):
        machine.amd()
        expected = {
            "uuid": "4bff74a1-0000",
            "model": "AMD Instinct MI300X",
            "multiprocessors": 304,
            "memory_bytes": 206_000_000_000,
            "driver": "6.14.0",
            "partition": "none",
            "environment": {"HIP_VISIBLE_DEVICES": "1"},
        }
        assert expected == probe.probe({})[0]

    @pytest.mark.parametrize(
        ("environ", "expected"),
        [
            ({"HIP_VISIBLE_DEVICES": "1"}, ["4bff74a1-0000"]),
            ({"HIP_VISIBLE_DEVICES": "GPU-5cff"}, ["5cff74a1-0000"]),
            ({"HIP_VISIBLE_DEVICES": ""}, []),
            ({"CUDA_VISIBLE_DEVICES": "0"}, ["5cff74a1-0000"]),
            ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, ["4bff74a1-0000"]),
        ],
        ids=["number", "uuid", "empty", "cuda's", "hip's before cuda's"],
    )
    def test_a_masked_gpu_is_not_ours(self, machine, environ, expected):
        machine.amd()
        assert expected == uuids(**environ)

    @pytest.mark.parametrize("name", ["ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"])
    def test_a_mask_of_a_lower_layer_is_refused(self, machine, name):
        machine.amd()
        error = refusal(**{name: "0"})
        assert (f"{name}=0, which renumbers the GPUs", f"unset {name} and set HIP_VISIBLE_DEVICES instead") == (error.found, error.do)

    def test_a_partition_has_its_name(self, machine):
        machine.amd().gpus[0].partition = "CPX"
        assert ["cpx", "none"] == [one["partition"] for one in probe.probe({})]

    def test_a_gpu_that_cannot_be_divided_is_whole(self, machine):
        machine.amd().failing["amdsmi_get_gpu_compute_partition"] = 2
        assert {one["partition"] for one in probe.probe({})} == {"none"}

    def test_without_hips_numbers_several_gpus_cannot_be_told_apart(self, machine):
        smi = machine.amd()
        del smi.amdsmi_get_gpu_enumeration_info
        assert "ROCm 6.4" in refusal().do
        del smi.gpus[1]
        assert [one["environment"] for one in probe.probe({})] == [{"HIP_VISIBLE_DEVICES": "0"}]

    def test_no_driver_is_no_gpu(self, machine):
        machine.amd().failing["amdsmi_init"] = 34
        assert probe.probe({}) == []

    @pytest.mark.parametrize("function", ["amdsmi_init", "amdsmi_get_gpu_compute_partition"])
    def test_a_failure_is_an_error_and_torch_is_not_asked(self, machine, function):
        machine.amd().failing[function] = 7
        machine.library("torch", torch_build(hip="6.4"))
        assert refusal().found == "amdsmi does not list the GPUs: Error code: 7 | AMDSMI_STATUS_SOME"


def torch_build(hip=None, cuda="13.0", name="NVIDIA H200", count=1):
    """torch as the probe sees it; it counts what the mask leaves."""
    properties = SimpleNamespace(name=name, uuid="aaaa0000", multi_processor_count=132, total_memory=150_000_000_000)
    cuda_module = SimpleNamespace(device_count=lambda: count, get_device_properties=lambda index: properties)
    return SimpleNamespace(version=SimpleNamespace(hip=hip, cuda=None if hip else cuda), cuda=cuda_module)


class TestTorch:
    def test_is_asked_where_the_vendors_library_is_not_installed(self, machine):
        machine.driver(Vendor.NVIDIA)
        machine.library("torch", torch_build())
        (found,) = probe.probe({})
        assert ("GPU-aaaa0000", 132, None, None) == (found["uuid"], found["multiprocessors"], found["driver"], found["partition"])
        assert {"CUDA_VISIBLE_DEVICES": "GPU-aaaa0000"} == found["environment"]

    def test_is_asked_where_the_shared_library_is_not_in_the_container(self, machine):
        nvml = machine.nvidia()
        nvml.failing["nvmlInit"] = nvml.NVML_ERROR_LIBRARY_NOT_FOUND
        machine.library("torch", torch_build())
        assert uuids() == ["GPU-aaaa0000"]

    def test_numbers_what_the_mask_leaves_as_the_mask_does(self, machine):
        machine.driver(Vendor.AMD)
        machine.library("torch", torch_build(hip="6.4", count=1))
        assert [{"HIP_VISIBLE_DEVICES": "3"}] == [one["environment"] for one in probe.probe({"HIP_VISIBLE_DEVICES": "3"})]

    def test_lists_nothing_of_a_vendor_it_is_not_built_for(self, machine):
        machine.driver(Vendor.AMD)
        machine.library("torch", torch_build())
        assert probe.probe({}) == []

    def test_cannot_name_an_instance(self, machine):
        machine.driver(Vendor.NVIDIA)
        machine.library("torch", torch_build(name="NVIDIA H200 MIG 1g.18gb"))
        assert refusal().do == "install nvidia-ml-py"


def test_a_driver_and_no_library_at_all_is_an_error(machine):
    machine.driver(Vendor.NVIDIA)
    assert refusal().found == "a driver of nvidia, but neither nvidia-ml-py nor torch"


def test_a_library_that_cannot_be_imported_is_an_error(machine, monkeypatch, tmp_path):
    machine.driver(Vendor.AMD)
    (tmp_path / "amdsmi.py").write_text("raise KeyError('libamd_smi.so')")
    monkeypatch.delitem(__import__("sys").modules, "amdsmi")
    monkeypatch.syspath_prepend(tmp_path)
    assert "libamd_smi.so" in refusal().found


def test_a_library_is_left_alone_where_its_driver_is_not(machine):
    machine.library("amdsmi", object())
    assert probe.probe({}) == []


def test_both_vendors_of_one_machine_are_listed(machine):
    machine.nvidia()
    machine.amd()
    assert [*["GPU-aaaa0000", "GPU-bbbb1111"], "4bff74a1-0000", "5cff74a1-0000"] == uuids()


def test_the_process_prints_the_list_or_why_there_is_none(machine, capsys):
    nvml = machine.nvidia()
    probe.main()
    assert len(json.loads(capsys.readouterr().out)) == 2
    nvml.failing["nvmlInit"] = nvml.NVML_ERROR_GPU_IS_LOST
    probe.main()
    assert json.loads(capsys.readouterr().out)["found"] == "NVML does not start: GPU is lost"
