"""What a launcher is told of the device it launches on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from harness import device_properties as authoring_device_properties
from harness.devices import properties
from harness.devices.properties import DeviceProperties, device_properties, pretend
from harness.devices.table import Device, identify, load_devices

BIG = load_devices()["h200"].properties
SMALL = load_devices()["mi300x"].properties


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look at the host afresh and find no GPU."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    properties._current.cache_clear()
    yield
    properties._current.cache_clear()


def test_without_a_gpu_the_interpreters_row_answers(no_gpu: None) -> None:
    assert load_devices()["cpu"].properties == device_properties()


def test_a_static_job_is_told_its_compile_target(no_gpu: None) -> None:
    with pretend(BIG):
        assert device_properties() is BIG
    assert device_properties().backend == "cpu"


def test_the_innermost_pretence_counts_and_ends_with_its_block(no_gpu: None) -> None:
    with pretend(BIG):
        with pretend(SMALL):
            assert device_properties() is SMALL
        assert device_properties() is BIG


def test_a_pretence_ends_when_the_block_raises(no_gpu: None) -> None:
    with pytest.raises(RuntimeError, match="in the block"), pretend(BIG):
        raise RuntimeError("in the block")
    assert device_properties().backend == "cpu"


def test_a_kernel_file_sees_the_same(no_gpu: None) -> None:
    with pretend(SMALL):
        assert authoring_device_properties() is SMALL


@pytest.mark.parametrize("device", load_devices().values(), ids=lambda device: device.name)
def test_a_rows_properties_have_its_vendors_backend_and_warps_and_its_cache(device: Device) -> None:
    backend, warp_size = {"nvidia": ("cuda", 32), "amd": ("hip", 64), "any": ("cpu", 32)}[device.vendor]
    found = device.properties
    assert (backend, warp_size, device.last_level_cache_bytes) == (found.backend, found.warp_size, found.last_level_cache_bytes)


@pytest.mark.gpu
def test_on_a_gpu_the_runtime_and_the_row_agree() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    row = identify(found.name, found.multi_processor_count, load_devices())
    assert row is not None, f"no row for {found.name!r} with {found.multi_processor_count} multiprocessors"
    assert row.properties == device_properties()
    assert row.usable_memory_bytes <= found.total_memory <= row.memory_bytes


def test_names_no_gpu() -> None:
    fields = {field.name for field in dataclasses.fields(DeviceProperties)}
    assert {"backend", "multiprocessors", "shared_bytes_per_block", "warp_size", "last_level_cache_bytes"} == fields
