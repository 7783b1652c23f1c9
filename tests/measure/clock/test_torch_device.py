import pytest
import torch

from harness.devices.table import load_devices
from harness.measure.clock import torch_device
from harness.measure.clock.torch_device import TorchDevice


@pytest.fixture
def device(monkeypatch):
    """The device as it is without a GPU under it: only what tells the time."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10**9, 150 * 10**9))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: type("Properties", (), {"multi_processor_count": 132}))
    return TorchDevice(load_devices()["h200"])


def test_limits_come_from_the_device_table(device):
    row = load_devices()["h200"]
    assert device.limits.last_level_cache_bytes == row.last_level_cache_bytes
    assert device.limits.max_graph_nodes == row.max_graph_nodes
    assert device.limits.usable_memory_bytes == min(row.usable_memory_bytes, 150 * 10**9)
    assert device.limits.warm_up_s == 0.5


def test_m23_a_clock_patched_by_code_under_test_is_not_the_one_in_use(device, monkeypatch):
    bound = torch_device._elapsed_time
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda self, end: 1e-9)
    monkeypatch.setattr("time.perf_counter_ns", lambda: 0)
    assert torch_device._elapsed_time is bound
    assert device.now_ns() > 0


def test_milliseconds_become_microseconds(device, monkeypatch):
    monkeypatch.setattr(torch_device, "_elapsed_time", lambda begin, end: 1.5)
    assert device.elapsed_us(None, None) == 1500.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_graph_is_counted_and_replayed():
    device = TorchDevice(load_devices()["h200"])
    x = torch.ones(1024, device="cuda")
    kept = []
    graph = device.capture([lambda: kept.append(x * 2)] * 3, device.new_pool())
    graph.replay()
    device.synchronize()
    assert graph.nodes == 3
    assert all(grid is not None for grid in graph.grids)
    assert len({y.data_ptr() for y in kept}) == 3
    assert all(bool((y == 2).all()) for y in kept)
