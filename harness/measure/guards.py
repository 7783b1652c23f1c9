"""Poisoned allocations and guard bytes: what makes unwritten memory and out-of-bounds accesses visible.

Every guarded tensor lies inside a larger allocation of guard bytes, and so do the gaps between its rows. Guard bytes
read as NaN in fp16, bf16 and fp32, so that an out-of-bounds read spoils the result; they differ from allocation to
allocation, so that copying one guard over another does not go unseen. Those of an integer input read as INTEGER_GUARD.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.authoring.model import Inputs
from harness.measure.numerics import bits

ALIGNMENT = 256
"""Bytes to which guarded tensors are aligned: at least what the device's own allocator gives."""

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

LEAST_GUARD, MOST_GUARD = 4096, 1 << 24
"""Bytes of guard on each side: one leading row (so that row -1 is caught), within these bounds."""

FLOAT_POISON = 0xFFFA
"""Every 16 bits of a poisoned float: a quiet NaN in fp16, bf16, fp32 and fp64 that arithmetic does not produce."""

INTEGER_POISON = 0xA5C3
"""Every 16 bits of a poisoned integer: -23101 in int16, about -1.5e9 in int32."""

INTEGER_GUARD = 1
"""What an integer read past the end of an input is, from 16 bits on: a slot that may well be live, as what lies there in a model may be. A
negative one would pass for a padded row, and hide a program too many."""

_aten = torch.ops.aten
UNINITIALISED = frozenset(
    {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.empty_permuted, _aten.new_empty, _aten.new_empty_strided}
)
INITIALISED = frozenset(
    {_aten.zeros, _aten.zeros_like, _aten.new_zeros, _aten.ones, _aten.ones_like, _aten.new_ones, _aten.full, _aten.full_like}
    | {_aten.new_full, _aten.clone, _aten._to_copy}
)


@dataclass(frozen=True)
class Breach:
    """Guard bytes that something wrote.

    Args:
        label: the tensor they belong to.
        side: `before`, `after` or `between the rows of` it.
        offset: bytes from the tensor's start (`before`: back to the nearest; between rows: to the first) or end.
        count: how many bytes changed.
    """

    label: str
    side: str
    offset: int
    count: int

    def __str__(self) -> str:
        return f"{self.count} bytes written {self.side} {self.label}, nearest at {self.offset} bytes"


class _House:
    """One guarded tensor and the allocation it lives in; `tensor` is the guarded view."""

    def __init__(self, like: torch.Tensor, label: str, ordinal: int) -> None:
        self.label = label
        size = like.element_size()
        is_index = label.startswith("input ") and size > 1 and not (like.dtype.is_floating_point or like.dtype.is_complex)
        low = 0xC1 + ordinal % 57  # 0xC1..0xF9: quiet NaNs, and never the poison
        self._pattern = INTEGER_GUARD.to_bytes(size, "little") if is_index else bytes((low, 0xFF))
        span = 1 + sum((n - 1) * stride for n, stride in zip(like.shape, like.stride(), strict=True))
        row = like.stride(0) * size if like.dim() else size
        margin = -(-min(max(row, LEAST_GUARD), MOST_GUARD) // ALIGNMENT) * ALIGNMENT
        total = ALIGNMENT + 2 * margin + span * size
        width = len(self._pattern)
        self._buffer = torch.empty(total + -total % width, dtype=torch.uint8, device=like.device)
        self._begin = margin + -(self._buffer.data_ptr() + margin) % ALIGNMENT
        self._end = self._begin + span * size
        self._buffer.view(_WORDS[width]).fill_(int.from_bytes(self._pattern, "little", signed=True))
        flat = self._buffer[self._begin : self._end].view(like.dtype)
        self.tensor = flat.as_strided(like.shape, like.stride(), flat.storage_offset())
        self._gaps = self._find_gaps(like, span)

    @staticmethod
    def _find_gaps(like: torch.Tensor, span: int) -> torch.Tensor | None:
        if like.numel() == span:
            return None
        gaps = torch.ones(span, dtype=torch.bool, device=like.device)
        gaps.as_strided(like.shape, like.stride()).fill_(False)
        return gaps

    def owns(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() == self._buffer.untyped_storage().data_ptr()

    def breaches(self) -> list[Breach]:
        found = []
        before = self._changed(0, self._begin).nonzero()
        if before.numel():
            found.append(Breach(self.label, "before", self._begin - int(before[-1]), before.numel()))
        after = self._changed(self._end, self._buffer.numel()).nonzero()
        if after.numel():
            found.append(Breach(self.label, "after", int(after[0]), after.numel()))
        if self._gaps is not None:
            inside = self._changed(self._begin, self._end).view(self._gaps.numel(), -1) & self._gaps[:, None]
            between = inside.flatten().nonzero()
            if between.numel():
                found.append(Breach(self.label, "between the rows of", int(between[0]), between.numel()))
        return found

    def _changed(self, begin: int, end: int) -> torch.Tensor:
        """Which bytes of a region (bool) no longer hold the guard pattern."""
        region, width = self._buffer[begin:end], len(self._pattern)
        changed = torch.empty_like(region, dtype=torch.bool)
        for i in range(min(width, len(region))):
            torch.ne(region[i::width], self._pattern[(begin + i) % width], out=changed[i::width])
        return changed


class Guards(TorchDispatchMode):
    """Guards tensors that are handed in and, inside `with`, those that the code allocates; `check` says what was hit.

    Allocations that nothing has written come poisoned: NaN for floats, a rare number for integers. Empty tensors, bool
    contents and pinned memory are left as they are. Guarded memory is kept until the object is dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._houses: list[_House] = []
        self._placing = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Yes: a variant that torch.compile made is checked as compiled; else torch would run it eagerly under a mode."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: else torch imports its compiler (seconds) at the first operation of each launch, only to keep out of here."""
        return False

    def guarded(self, inputs: Mapping[str, Any]) -> Inputs:
        """The same arguments with every tensor moved inside guard bytes: shape, strides and content are kept.

        A tensor that stands under two names stays one tensor; other aliasing is not kept.
        """
        moved: dict[int, torch.Tensor] = {}
        placed: Inputs = {}
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor) and id(value) not in moved:
                moved[id(value)] = self._place(value, f"input {name}", fill=True)
            placed[name] = moved[id(value)] if isinstance(value, torch.Tensor) else value
        return placed

    def name(self, tensor: torch.Tensor, label: str) -> None:
        """Call the allocation that holds `tensor` by `label` in breaches; one that was handed in keeps its name."""
        for house in self._houses:
            if house.label.startswith("allocation") and house.owns(tensor):
                house.label = label

    def check(self) -> list[Breach]:
        """Every guard that was written, in the order of allocation; waits for the device."""
        return [breach for house in self._houses for breach in house.breaches()]

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Replace what an allocating operation returns."""
        result = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        fill = packet in INITIALISED
        if self._placing or not (fill or packet in UNINITIALISED) or not self._can_guard(result, kwargs or {}):
            return result
        number = sum(house.label.startswith("allocation") for house in self._houses) + 1
        return self._place(result, f"allocation {number} ({packet.__name__} {list(result.shape)} {result.dtype})", fill=fill)

    @staticmethod
    def _can_guard(tensor: Any, kwargs: dict[str, Any]) -> bool:
        plain = isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.device.type in ("cpu", "cuda")
        return plain and "out" not in kwargs and not kwargs.get("pin_memory")

    def _place(self, tensor: torch.Tensor, label: str, *, fill: bool) -> torch.Tensor:
        if tensor.numel() == 0:
            return tensor
        self._placing = True
        try:
            house = _House(tensor, label, len(self._houses))
            if fill:
                overwrite(house.tensor, tensor)
            else:
                poison(house.tensor)
        finally:
            self._placing = False
        self._houses.append(house)
        return house.tensor


def overwrite(target: torch.Tensor, content: torch.Tensor) -> None:
    """Copy content of the same shape into a tensor, which may be expanded (stride 0) along some axes."""
    target = target.detach()
    for axis, stride in enumerate(target.stride()):
        if stride == 0 and target.shape[axis] > 1:
            target, content = target.narrow(axis, 0, 1), content.narrow(axis, 0, 1)
    with torch.inference_mode(target.is_inference()):  # else what a variant made in that mode could not be written
        target.copy_(content.detach())


def _poison_value(dtype: torch.dtype, size: int) -> int:
    unit = FLOAT_POISON if dtype.is_floating_point else INTEGER_POISON
    raw = (unit.to_bytes(2, "little") * 4)[:size]
    return int.from_bytes(raw, "little", signed=True)


def poison(tensor: torch.Tensor) -> None:
    """Fill a tensor with the bit pattern of unwritten memory: a quiet NaN that arithmetic does not produce, or a rare integer."""
    if tensor.dtype == torch.bool or tensor.dtype.is_complex:
        return
    with torch.inference_mode(tensor.is_inference()):  # else what a variant made in that mode could not be written
        bits(tensor).fill_(_poison_value(tensor.dtype, tensor.element_size()))


def unwritten(tensor: torch.Tensor) -> torch.Tensor:
    """Which elements (bool, same shape) still hold the poison. Of one-byte and bool tensors none does: every value is common."""
    if tensor.dtype == torch.bool or tensor.dtype.is_complex or tensor.element_size() < 2:
        return torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    return bits(tensor) == _poison_value(tensor.dtype, tensor.element_size())
