"""Bytes of the tensors that a call is given and returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from harness.authoring.model import Inputs


def tensors_on(inputs: Inputs, device: str) -> dict[str, torch.Tensor]:
    """The inputs that are tensors on `device`."""
    kind = torch.device(device).type
    return {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor) and value.device.type == kind}


def extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first to its last element."""
    if tensor.numel() == 0:
        return 0
    return (1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))) * tensor.element_size()


def dense_bytes(inputs: Inputs, device: str, only: Sequence[str] | None = None) -> int:
    """Bytes of the tensors' elements: gaps do not count, and an expanded tensor counts what it expands."""
    found = tensors_on(inputs, device)
    return sum(min(t.numel() * t.element_size(), extent(t)) for name, t in found.items() if only is None or name in only)


def returned_bytes(returned: Iterable[Any]) -> int:
    """Bytes of the tensors among what a call returned."""
    return sum(value.numel() * value.element_size() for value in returned if isinstance(value, torch.Tensor))
