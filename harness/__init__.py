"""The authoring API: what a file in kernels/ or jobs/ imports.

    from harness import Kernel, Case, Tolerance, Traffic

Importing this package imports neither torch nor triton.
"""

from __future__ import annotations

from harness.authoring.model import API, Case, Cycle, DeclarationError, Drift, Inputs, Kernel, Kind, Tolerance, Traffic, Variant
from harness.devices.properties import DeviceProperties, device_properties

__version__ = "0.1.0"

__all__ = [
    "API",
    "Case",
    "Cycle",
    "DeclarationError",
    "DeviceProperties",
    "Drift",
    "Inputs",
    "Kernel",
    "Kind",
    "Tolerance",
    "Traffic",
    "Variant",
    "device_properties",
]
