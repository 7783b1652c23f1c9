"""Machines with GPUs that are not there: the vendors' libraries are replaced by the modules in fakes/."""

import importlib.util
import sys
from pathlib import Path

import pytest

from harness.devices import probe
from harness.devices.table import Vendor

FAKES = Path(__file__).parent / "fakes"
NOWHERE = Path("/nonexistent")


class Machine:
    """Gives this process drivers and libraries; what it is not given is not there."""

    def __init__(self, patch):
        self.patch = patch
        for vendor in probe.DRIVERS:
            patch.setitem(probe.DRIVERS, vendor, NOWHERE)
        for name in ("pynvml", "amdsmi", "torch"):
            patch.setitem(sys.modules, name, None)
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
            patch.delenv(name, raising=False)

    def driver(self, vendor):
        self.patch.setitem(probe.DRIVERS, vendor, Path("/dev/null"))

    def library(self, name, module):
        self.patch.setitem(sys.modules, name, module)

    def nvidia(self):
        """An NVIDIA driver and a fresh fake of pynvml."""
        return self._vendor(Vendor.NVIDIA, "pynvml")

    def amd(self):
        """An AMD driver and a fresh fake of amdsmi."""
        return self._vendor(Vendor.AMD, "amdsmi")

    def _vendor(self, vendor, name):
        spec = importlib.util.spec_from_file_location(name, FAKES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.driver(vendor)
        self.library(name, module)
        return module


@pytest.fixture
def machine(monkeypatch):
    """A machine without GPUs, to be given some."""
    return Machine(monkeypatch)
