"""Seeded inputs: what `make_inputs(case, generator)` draws from, and the hash of what it drew.

Content is made by a CPU generator and moved, so that it is bit-equal on every host; on `meta` tensors have
shapes only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

NORMAL_TERMS = 12
"""Uniforms summed to one normal draw: their variance is 1/12 each, so twelve have variance 1."""


def torch_dtype(name: str | torch.dtype) -> torch.dtype:
    """`bf16` -> torch.bfloat16; a torch dtype is returned as it is."""
    return name if isinstance(name, torch.dtype) else DTYPES[name]


def content_hash(inputs: Mapping[str, Any]) -> str:
    """SHA-256 (hexadecimal) of arguments by name: names, dtypes, shapes and values, whatever the device and strides."""
    digest = hashlib.sha256()
    for name in sorted(inputs):
        value = inputs[name]
        if not isinstance(value, torch.Tensor):
            digest.update(f"{name}={value!r}\n".encode())
            continue
        digest.update(f"{name}: {value.dtype} {tuple(value.shape)}\n".encode())
        if value.numel():
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Generator:
    """A source of tensors on one device.

    Args:
        seed: equal seeds give equal content, on every host and device.
        device: `cpu`, `cuda` or `meta`.
        on_device: draw on the device itself: fast, but then content differs between kinds of device.
    """

    def __init__(self, seed: int, device: str = "cpu", *, on_device: bool = False) -> None:
        self.device = torch.device(device)
        self._source = torch.device("cpu") if not on_device or device == "meta" else self.device
        self._random = torch.Generator(self._source).manual_seed(seed)

    def _place(self, tensor: torch.Tensor, dtype: str | torch.dtype) -> torch.Tensor:
        return tensor.to(device=self.device, dtype=torch_dtype(dtype))

    def _empty(self, shape: Sequence[int], dtype: str | torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=torch_dtype(dtype), device="meta")

    def _unit(self, shape: Sequence[int]) -> torch.Tensor:
        """Multiples of 2**-24 in [0, 1), fp32, at the source."""
        return torch.empty(tuple(shape), dtype=torch.float32, device=self._source).uniform_(generator=self._random)

    def uniform(self, shape: Sequence[int], dtype: str | torch.dtype = "fp32", low: float = -1.0, high: float = 1.0) -> torch.Tensor:
        """Uniform from `low` to `high`, drawn in fp32 and rounded to `dtype` (so `high` itself can occur); contiguous."""
        if self.device.type == "meta":
            return self._empty(shape, dtype)
        # Scaled by two rounded steps of our own: in uniform_(low, high) a host may fuse them, and the last bit differ.
        return self._place(self._unit(shape).mul_(high - low).add_(low), dtype)

    def normal(self, shape: Sequence[int], dtype: str | torch.dtype = "fp32", mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
        """Near normal with the given mean and standard deviation, drawn in fp32 and rounded to `dtype`; contiguous.

        The sum of twelve uniforms (Irwin-Hall), so no value lies beyond six standard deviations: unlike a logarithm
        and a cosine, sums are bit-equal on every host.
        """
        if self.device.type == "meta":
            return self._empty(shape, dtype)
        total = self._unit(shape).sub_(NORMAL_TERMS / 2)
        for _ in range(NORMAL_TERMS - 1):
            total.add_(self._unit(shape))
        return self._place(total.mul_(std).add_(mean), dtype)

    def integers(self, shape: Sequence[int], low: int, high: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Integers from `low` to `high` - 1, uniformly; contiguous."""
        if self.device.type == "meta":
            return self._empty(shape, dtype)
        return self._place(torch.randint(low, high, tuple(shape), generator=self._random, device=self._source), dtype)

    def permutation(self, n: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """A random order of 0..n-1: (n)."""
        if self.device.type == "meta":
            return self._empty((n,), dtype)
        return self._place(torch.randperm(n, generator=self._random, device=self._source), dtype)

    def full(self, shape: Sequence[int], value: float, dtype: str | torch.dtype = "fp32") -> torch.Tensor:
        """A tensor filled with one value; contiguous."""
        return torch.full(tuple(shape), value, dtype=torch_dtype(dtype), device=self.device)
