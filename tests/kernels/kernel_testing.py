"""What the tests of several kernels share: devices to plan for, and comparisons of tensors."""

from __future__ import annotations

from typing import Any

import torch

from harness import DeviceProperties, Drift, Kernel

GPUS = {
    "small": DeviceProperties("cuda", 20, 101_376, 32, 6 << 20),
    "large": DeviceProperties("cuda", 148, 232_448, 32, 126 << 20),
    "wave64": DeviceProperties("hip", 304, 65_536, 64, 256 << 20),
}


def drift_of(kernel: Kernel) -> Drift:
    assert kernel.drift is not None
    return kernel.drift


def rel_l2(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))


def clone(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
