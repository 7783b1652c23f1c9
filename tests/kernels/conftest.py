"""Kernel files under test run in Triton's interpreter, with the `cpu` row's properties, on any host.

A test module that sets `KERNEL_NAME` may write tests that take `cpu_cell`: they run once for every variant and case
tagged `cpu` of that kernel.
"""

from __future__ import annotations

import os
import sys

TRITON_CAME_FIRST = "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1"

import importlib.util  # noqa: E402 -- triton reads TRITON_INTERPRET when it is imported
from collections.abc import Callable, Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from types import ModuleType  # noqa: E402

import pytest  # noqa: E402

from harness import Kernel  # noqa: E402
from harness.devices.properties import pretend  # noqa: E402
from harness.devices.table import load_devices  # noqa: E402

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))  # for kernel_testing


def load_module(name: str) -> ModuleType:
    """Import kernels/<name>.py by path, once."""
    module_name = f"kernels_under_test_{name}"
    if module_name not in sys.modules:
        if str(ROOT) not in sys.path:
            sys.path.append(str(ROOT))  # for what a kernel file imports from kernels._lib
        spec = importlib.util.spec_from_file_location(module_name, ROOT / "kernels" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    return sys.modules[module_name]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cpu_cell" in metafunc.fixturenames:
        kernel: Kernel = load_module(metafunc.module.KERNEL_NAME).KERNEL
        cells = [(v, c) for v in kernel.variants for c in kernel.cases if "cpu" in c.tags and kernel.variant(v).cases(c)]
        metafunc.parametrize("cpu_cell", cells, ids=[f"{v}/{c.key}" for v, c in cells])


@pytest.fixture(scope="session")
def load_kernel() -> Callable[[str], Kernel]:
    """`load_kernel("name")` is the KERNEL of kernels/name.py, under that name."""
    return lambda name: load_module(name).KERNEL.named(name)


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """The KERNEL of the file that the test module names."""
    found: Kernel = load_module(request.module.KERNEL_NAME).KERNEL
    return found.named(request.module.KERNEL_NAME)


@pytest.fixture
def module(request: pytest.FixtureRequest) -> ModuleType:
    """The kernel file that the test module names, for its launchers."""
    return load_module(request.module.KERNEL_NAME)


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    """Launchers see the `cpu` row, so that grids do not depend on the host."""
    if TRITON_CAME_FIRST:
        pytest.fail("triton was imported without TRITON_INTERPRET=1 before tests/kernels: set it, or run tests/kernels alone")
    with pretend(load_devices()["cpu"].properties):
        yield
