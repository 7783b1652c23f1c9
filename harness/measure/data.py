"""Seeded inputs: what `make_inputs(case, generator)` draws from, and the hash of what it drew.

Content is a function of seed, draw and place alone, in integer arithmetic and exactly rounded steps: it is made on the device
that uses it and is bit-equal on every one. On `meta` tensors have shapes only.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

NORMAL_TERMS = 12
"""Uniforms summed to one normal draw: their variance is 1/12 each, so twelve have variance 1."""

PIECE = 1 << 24
"""Elements drawn or hashed at a time: bounds the temporary memory to a few 100 MB."""
DRAWN_BITS = 24
"""Random bits of an element: as many as fp32 holds."""

_STEP, _MIX = 0x9E3779B1 - (1 << 32), (0x85EBCA6B - (1 << 32), 0xC2B2AE35 - (1 << 32))
"""Odd multipliers as int32: 2**32 over the golden ratio, and those of MurmurHash3's finalizer (Appleby, public domain)."""
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
_HASH = (-7046029254386353131, -4417276706812531889)
"""Odd 64-bit multipliers of the content hash, as int64."""


def torch_dtype(name: str | torch.dtype) -> torch.dtype:
    """`bf16` -> torch.bfloat16; a torch dtype is returned as it is."""
    return name if isinstance(name, torch.dtype) else DTYPES[name]


def content_hash(inputs: Mapping[str, Any]) -> str:
    """Digest (hexadecimal) of arguments by name: names, dtypes, shapes and values, whatever the device and strides.

    Values are summed up on their device: it tells contents apart, it does not withstand malice.
    """
    digest = hashlib.sha256()
    for name in sorted(inputs):
        value = inputs[name]
        if isinstance(value, torch.Tensor):
            digest.update(f"{name}: {value.dtype} {tuple(value.shape)} {_sum(value)}\n".encode())
        else:
            digest.update(f"{name}={value!r}\n".encode())
    return digest.hexdigest()


def _sum(tensor: torch.Tensor) -> int:
    """A sum over all elements of a hash of each one's bits and place, modulo 2**64."""
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    words = flat.view(_WORDS[flat.element_size()])
    total = 0
    for begin, end in _pieces(words.numel()):
        mixed = torch.arange(begin + 1, end + 1, dtype=torch.int64, device=words.device).mul_(_HASH[0])
        mixed.bitwise_xor_(words[begin:end].long()).mul_(_HASH[1])
        mixed.bitwise_xor_(mixed >> 32).mul_(_HASH[0])
        total += int(mixed.sum())
    return total % (1 << 64)


def _pieces(n: int) -> Iterator[tuple[int, int]]:
    return ((begin, min(begin + PIECE, n)) for begin in range(0, n, PIECE))


class Generator:
    """A source of tensors on one device.

    Args:
        seed: equal seeds give equal content, on every host and device.
        device: `cpu`, `cuda` or `meta`.
    """

    def __init__(self, seed: int, device: str = "cpu") -> None:
        self.seed, self.device = seed, torch.device(device)
        self._draws = 0

    def _random(self, begin: int, end: int, draws: int = 1) -> torch.Tensor:
        """Integers of DRAWN_BITS bits (int32) for the places from `begin` to `end`, which must not cross a piece: (draws, end - begin)."""
        drawn = torch.tensor([self._keys(begin) for _ in range(draws)], dtype=torch.int32)
        keys = drawn.to(self.device, non_blocking=True)  # pageable: copied before this returns, and the host waits for no step
        x = torch.arange(end - begin, dtype=torch.int32, device=self.device).mul_(_STEP) + keys[:, :1]
        x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(_MIX[0]).bitwise_xor_(keys[:, 1:])
        x.bitwise_xor_((x >> 13).bitwise_and_(0x7FFFF)).mul_(_MIX[1])
        x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
        return (x >> (32 - DRAWN_BITS)).bitwise_and_((1 << DRAWN_BITS) - 1)

    def _keys(self, begin: int) -> tuple[int, int]:
        """The two keys of the next draw: with one that is only added, two draws could be the same sequence a few places on."""
        self._draws += 1
        return struct.unpack("<ii", hashlib.blake2b(f"{self.seed}/{self._draws}/{begin}".encode(), digest_size=8).digest())

    def _unit(self, begin: int, end: int, draws: int = 1) -> torch.Tensor:
        """Multiples of 2**-24 in [0, 1), fp32, of new draws: (draws, end - begin)."""
        return self._random(begin, end, draws).to(torch.float32).mul_(2.0**-DRAWN_BITS)

    def _fill(self, shape: Sequence[int], dtype: str | torch.dtype, draw: Callable[[int, int], torch.Tensor]) -> torch.Tensor:
        """A contiguous tensor of what `draw(begin, end)` gives for its places; on `meta`, its shape."""
        out = torch.empty(tuple(shape), dtype=torch_dtype(dtype), device=self.device)
        if self.device.type != "meta":
            flat = out.view(-1)
            for begin, end in _pieces(flat.numel()):
                flat[begin:end] = draw(begin, end)
        return out

    def uniform(self, shape: Sequence[int], dtype: str | torch.dtype = "fp32", low: float = -1.0, high: float = 1.0) -> torch.Tensor:
        """Uniform from `low` to `high`, drawn in fp32 and rounded to `dtype` (so `high` itself can occur); contiguous."""
        # Two rounded steps, each an operation of its own, so that no device fuses them and the last bit differs.
        return self._fill(shape, dtype, lambda begin, end: self._unit(begin, end)[0].mul_(high - low).add_(low))

    def normal(self, shape: Sequence[int], dtype: str | torch.dtype = "fp32", mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
        """Near normal with the given mean and standard deviation, drawn in fp32 and rounded to `dtype`; contiguous.

        The sum of twelve uniforms (Irwin-Hall), so no value lies beyond six standard deviations: unlike a logarithm
        and a cosine, sums are bit-equal on every device.
        """

        def draw(begin: int, end: int) -> torch.Tensor:
            at_once = max(1, PIECE // ((end - begin) * NORMAL_TERMS))
            total = torch.full((end - begin,), -NORMAL_TERMS / 2, dtype=torch.float32, device=self.device)
            for first in range(0, NORMAL_TERMS, at_once):
                for term in self._unit(begin, end, min(at_once, NORMAL_TERMS - first)):
                    total.add_(term)
            return total.mul_(std).add_(mean)

        return self._fill(shape, dtype, draw)

    def integers(self, shape: Sequence[int], low: int, high: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Integers from `low` to `high` - 1, uniformly; contiguous.

        Raises:
            ValueError: no integer between them, or more than 2**24.
        """
        if not 0 < high - low <= 1 << DRAWN_BITS:
            raise ValueError(f"integers from {low} to below {high}: give bounds with 1 to 2**{DRAWN_BITS} integers between them")

        def draw(begin: int, end: int) -> torch.Tensor:
            return (self._random(begin, end)[0].long() * (high - low) >> DRAWN_BITS) + low

        return self._fill(shape, dtype, draw)

    def permutation(self, n: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """A random order of 0..n-1: (n)."""
        keys = self.integers((n,), 0, 1 << DRAWN_BITS, torch.int64)
        if self.device.type == "meta":
            return keys.to(dtype)
        return torch.argsort(keys * n + torch.arange(n, device=self.device)).to(dtype)  # no two keys are equal

    def full(self, shape: Sequence[int], value: float, dtype: str | torch.dtype = "fp32") -> torch.Tensor:
        """A tensor filled with one value; contiguous."""
        return torch.full(tuple(shape), value, dtype=torch_dtype(dtype), device=self.device)
