"""Counts the nodes of a captured graph, and reads its kernels' grids, from the driver: torch does not tell.

The structures are those of cuda.h (CUDA_KERNEL_NODE_PARAMS_v2) and hip_runtime_api.h (hipKernelNodeParams). A graph that
torch captured through the runtime is the driver's graph too: cudaGraph_t and CUgraph are one type
(https://docs.nvidia.com/cuda/cuda-driver-api/graphs-thread-safety.html).
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

from harness.errors import HarnessError
from harness.measure.clock.device import Grid

KERNEL_NODE = 0
"""CU_GRAPH_NODE_TYPE_KERNEL and hipGraphNodeTypeKernel."""


class _CudaParams(ctypes.Structure):
    _fields_ = (
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    )


class _HipParams(ctypes.Structure):
    _fields_ = (
        ("block", ctypes.c_uint * 3),
        ("extra", ctypes.c_void_p),
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("params", ctypes.c_void_p),
        ("shared", ctypes.c_uint),
    )


@dataclass(frozen=True)
class _Driver:
    """A driver's functions for graphs."""

    library: str
    get_nodes: str
    get_type: str
    get_kernel: str
    params: type[ctypes.Structure]


_DRIVERS = {
    "cuda": _Driver("libcuda.so.1", "cuGraphGetNodes", "cuGraphNodeGetType", "cuGraphKernelNodeGetParams_v2", _CudaParams),
    "hip": _Driver("libamdhip64.so", "hipGraphGetNodes", "hipGraphNodeGetType", "hipGraphKernelNodeGetParams", _HipParams),
}


@functools.cache
def _functions(backend: str) -> tuple[Any, Any, Any]:
    driver = _DRIVERS[backend]
    try:
        library = ctypes.CDLL(driver.library)
        return getattr(library, driver.get_nodes), getattr(library, driver.get_type), getattr(library, driver.get_kernel)
    except (OSError, AttributeError) as error:
        raise HarnessError("count the nodes of a graph", f"{driver.library}: {error}", "install a driver that has graphs") from error


def count_nodes(graph: int, backend: str) -> int:
    """The number of nodes of a graph.

    Args:
        graph: handle of the graph that torch captured and keeps.
        backend: `cuda` or `hip`.

    Raises:
        HarnessError: the driver lacks a function or refuses the graph.
    """
    get_nodes, _, _ = _functions(backend)
    count = ctypes.c_size_t(0)
    _check(get_nodes(ctypes.c_void_p(graph), None, ctypes.byref(count)))
    return count.value


def read_grids(graph: int, backend: str) -> tuple[Grid | None, ...]:
    """The grid of each kernel in a graph, in the order of capture; None where the driver does not give it. It takes some us a node.

    Args:
        graph: handle of the graph that torch captured and keeps.
        backend: `cuda` or `hip`.

    Raises:
        HarnessError: the driver lacks a function or refuses the graph.
    """
    get_nodes, get_type, get_kernel = _functions(backend)
    count = ctypes.c_size_t(count_nodes(graph, backend))
    nodes = (ctypes.c_void_p * count.value)()
    if count.value:
        _check(get_nodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count)))
    grids: list[Grid | None] = []
    for node in nodes:
        kind = ctypes.c_int(-1)
        _check(get_type(ctypes.c_void_p(node), ctypes.byref(kind)))
        if kind.value == KERNEL_NODE:
            params = _DRIVERS[backend].params()
            failed = get_kernel(ctypes.c_void_p(node), ctypes.byref(params))
            grids.append(None if failed else (params.grid[0], params.grid[1], params.grid[2]))
    return tuple(grids)


def _check(code: int) -> None:
    if code != 0:
        raise HarnessError("count the nodes of a captured graph", f"the driver answers with error {code}", "use a tested driver and torch")
