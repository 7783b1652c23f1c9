"""Known-bad kernels run in Triton's interpreter, each from a freshly imported file, so that none remembers anything."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.devices.table import load_devices
from harness.measure.subject import Subject

KERNELS = Path(__file__).parent / "kernels"


@pytest.fixture
def subject() -> Callable[[str, str], Subject]:
    """`subject("nan_output", "bad")` is that variant on its file's one case."""

    def load(name: str, variant: str) -> Subject:
        spec = importlib.util.spec_from_file_location(f"known_bad_{name}", KERNELS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel = module.KERNEL.named(name)
        return Subject(kernel, variant, kernel.cases[0], load_devices()["cpu"], "cpu")

    return load
