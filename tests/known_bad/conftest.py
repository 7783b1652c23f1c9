"""Known-bad kernels run in Triton's interpreter, each from a freshly imported file, so that none remembers anything."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.devices.table import load_devices
from harness.measure.subject import Subject

KERNELS = Path(__file__).parent / "kernels"


@pytest.fixture
def subject() -> Callable[..., Subject]:
    """`subject("nan_output", "bad", 0)` is that variant on its file's first case."""

    def load(name: str, variant: str, case: int = 0) -> Subject:
        spec = importlib.util.spec_from_file_location(f"known_bad_{name}", KERNELS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel = module.KERNEL.named(name)
        return Subject(kernel, variant, kernel.cases[case], load_devices()["cpu"], "cpu")

    return load
