import ctypes

import pytest

from harness.errors import HarnessError
from harness.measure.clock import graph_nodes
from harness.measure.clock.graph_nodes import count_nodes, read_grids

KERNEL, COPY = 0, 1


class Driver:
    """A driver's graph functions over scripted nodes, called as ctypes would."""

    def __init__(self, backend, kinds, grids, error=0):
        self.kinds, self.grids, self.error = kinds, grids, error
        self.params = graph_nodes._DRIVERS[backend].params

    def get_nodes(self, graph, nodes, count):
        number = ctypes.cast(count, ctypes.POINTER(ctypes.c_size_t))
        number[0] = len(self.kinds)
        for i in range(len(self.kinds) if nodes is not None else 0):
            nodes[i] = 1000 + i
        return self.error

    def get_type(self, node, kind):
        ctypes.cast(kind, ctypes.POINTER(ctypes.c_int))[0] = self.kinds[node.value - 1000]
        return 0

    def get_kernel(self, node, params):
        grid = self.grids[node.value - 1000]
        if grid is None:
            return 1
        ctypes.cast(params, ctypes.POINTER(self.params))[0].grid[:] = grid
        return 0


@pytest.fixture(params=["cuda", "hip"])
def backend(request):
    return request.param


def install(monkeypatch, driver):
    monkeypatch.setattr(graph_nodes, "_functions", lambda backend: (driver.get_nodes, driver.get_type, driver.get_kernel))


def test_all_nodes_are_counted_and_kernels_give_their_grids(monkeypatch, backend):
    install(monkeypatch, Driver(backend, [KERNEL, COPY, KERNEL], [(5, 1, 1), None, (2, 3, 4)]))
    assert count_nodes(77, backend) == 3
    assert read_grids(77, backend) == ((5, 1, 1), (2, 3, 4))


def test_a_grid_that_the_driver_does_not_tell_is_none(monkeypatch, backend):
    install(monkeypatch, Driver(backend, [KERNEL], [None]))
    assert read_grids(77, backend) == (None,)


def test_an_empty_graph_has_no_nodes(monkeypatch, backend):
    install(monkeypatch, Driver(backend, [], []))
    assert count_nodes(77, backend) == 0
    assert read_grids(77, backend) == ()


def test_a_graph_that_the_driver_refuses_is_an_error(monkeypatch, backend):
    install(monkeypatch, Driver(backend, [KERNEL], [None], error=400))
    with pytest.raises(HarnessError, match="error 400"):
        count_nodes(77, backend)


def test_without_a_driver_the_error_names_the_library(backend):
    graph_nodes._functions.cache_clear()
    with pytest.raises(HarnessError, match=r"libcuda|libamdhip64"):
        count_nodes(77, backend)


@pytest.mark.parametrize(
    ("params", "size", "grid"),
    [(graph_nodes._CudaParams, 72, 8), (graph_nodes._HipParams, 64, 32)],
    ids=["CUDA_KERNEL_NODE_PARAMS_v2", "hipKernelNodeParams"],
)
def test_structures_are_laid_out_as_in_the_headers(params, size, grid):
    assert (ctypes.sizeof(params), params.grid.offset) == (size, grid)
