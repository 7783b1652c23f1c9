"""Tensors of a call grouped by the memory that they share, and how such memory is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.authoring.model import Inputs
from harness.measure.clock.ring import ALIGNMENT
from harness.measure.extents import extent, tensors_on

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


@dataclass(frozen=True)
class Placed:
    """Where one input lies in its group.

    Args:
        begin: bytes from the start of the group's first byte.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    begin: int


@dataclass(frozen=True)
class Group:
    """Inputs that share memory, and the bytes of it that they span.

    Args:
        span: bytes from the first to the last one used.
        lead: bytes by which the first one misses alignment, which a copy keeps.
    """

    placed: tuple[Placed, ...]
    span: int
    lead: int

    @property
    def names(self) -> frozenset[str]:
        """The inputs."""
        return frozenset(p.name for p in self.placed)

    @property
    def pitch(self) -> int:
        """Bytes that one copy takes: a multiple of ALIGNMENT, and not 0."""
        return max(1, -(-(self.lead + self.span) // ALIGNMENT)) * ALIGNMENT

    @property
    def word(self) -> int:
        """The widest word, in bytes, in which the span can be copied."""
        return next(size for size in (8, 4, 2, 1) if self.lead % size == 0 and self.span % size == 0)


def offset(tensor: torch.Tensor) -> int:
    """Bytes from the start of a tensor's storage to its first element."""
    return int(tensor.storage_offset()) * tensor.element_size()


def group(inputs: Inputs, device: str) -> tuple[Group, ...]:
    """Group the tensors of `inputs` by storage, in the order of their first use. Works on `meta` too."""
    shared: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in tensors_on(inputs, device).items():
        shared.setdefault(tensor.untyped_storage()._cdata, []).append((name, tensor))
    return tuple(_group(members) for members in shared.values())


def _group(members: Sequence[tuple[str, torch.Tensor]]) -> Group:
    begin = min(offset(t) for _, t in members)
    end = max(offset(t) + extent(t) for _, t in members)
    placed = tuple(Placed(name, t.dtype, tuple(t.shape), tuple(t.stride()), offset(t) - begin) for name, t in members)
    return Group(placed, end - begin, begin % ALIGNMENT)  # allocators align storages


def words(inputs: Inputs, of: Group) -> torch.Tensor:
    """All bytes that a group spans in `inputs`, as a flat tensor of its widest words."""
    first = next(inputs[p.name] for p in of.placed if p.begin == 0)
    assert isinstance(first, torch.Tensor)
    whole = torch.empty(0, dtype=_WORDS[of.word], device=first.device)
    return whole.set_(first.untyped_storage(), offset(first) // of.word, (of.span // of.word,), (1,))
