"""The ring of inputs: one allocation a group of tensors, filled from a few distinct contents, a view a slot."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from harness.authoring.model import Inputs
from harness.measure.clock.content import Group, group, words
from harness.measure.clock.ring import ALIGNMENT
from harness.measure.data import content_hash
from harness.measure.subject import Subject


@dataclass(frozen=True)
class _Held:
    """The memory of one group: uint8 (slots, pitch), its first byte aligned."""

    group: Group
    memory: torch.Tensor

    def rows(self, word: torch.dtype) -> torch.Tensor:
        """The spans of all slots as (slots, words)."""
        lead = self.group.lead // word.itemsize
        return self.memory.view(word)[:, lead : lead + self.group.span // word.itemsize]

    def tensor(self, name: str, slot: int) -> torch.Tensor:
        """One input of one slot."""
        placed = next(p for p in self.group.placed if p.name == name)
        flat = self.memory.view(-1).view(placed.dtype)
        begin = self.memory.storage_offset() + slot * self.group.pitch + self.group.lead + placed.begin
        return flat.as_strided(placed.shape, placed.stride, begin // placed.dtype.itemsize)


class SlotRing:
    """Distinct inputs for every slot: tensors keep shape, strides and alignment, and what shares memory still does.

    Args:
        template: inputs of one call, whose layout every slot has; what is no tensor on the device is shared by all slots.
        slots: how many.
    """

    def __init__(self, template: Inputs, slots: int, torch_device: str) -> None:
        self.slots = slots
        self.torch_device = torch_device
        self._held = tuple(_allocate(of, slots, torch_device) for of in group(template, torch_device))
        self._by_name = {name: held for held in self._held for name in held.group.names}
        self._shared = {name: None if name in self._by_name else value for name, value in template.items()}
        self._views: dict[int, Inputs] = {}
        self._keeps: frozenset[str] = frozenset()
        self._kept: dict[int, list[tuple[_Held, torch.Tensor]]] = {}

    def keep(self, names: Collection[str], contents: int, spare_bytes: int) -> None:
        """Keep these inputs of every content that is filled in from now on, where `contents` of them fit into the memory."""
        held = [h for h in self._held if not h.group.names.isdisjoint(names)]
        if contents * sum(h.group.span for h in held) <= spare_bytes:
            self._keeps = frozenset(names)

    def inputs(self, slot: int) -> Inputs:
        """The arguments of a call on one slot."""
        if slot not in self._views:
            self._views[slot] = {
                name: self._by_name[name].tensor(name, slot) if name in self._by_name else value for name, value in self._shared.items()
            }
        return self._views[slot]

    def fill(self, contents: Sequence[int], subject: Subject, only: Collection[str] | None = None) -> str:
        """Fill the slots in turn with the contents of these seeds; one content is in memory at a time.

        Args:
            only: inputs whose memory is filled; all by default.

        Returns:
            The hash of the first content.
        """
        first = ""
        for i, seed in enumerate(contents):
            where = slice(i, None, len(contents))
            if only is not None and seed in self._kept and self._keeps.issuperset(only):
                for held, flat in self._kept[seed]:
                    if not held.group.names.isdisjoint(only):
                        held.rows(flat.dtype)[where] = flat
                continue
            content = subject.inputs(seed)
            self._write(content, where, only)
            if only is None:
                kept = [h for h in self._held if not h.group.names.isdisjoint(self._keeps)]
                self._kept[seed] = [(h, words(content, h.group).clone()) for h in kept]
                first = first or content_hash(content)
            del content
        return first

    def load(self, slot: int, content: Inputs) -> None:
        """Copy a content into one slot."""
        self._write(content, slice(slot, slot + 1), None)

    def _write(self, content: Inputs, where: slice, only: Collection[str] | None) -> None:
        for held in self._held:
            if only is None or not held.group.names.isdisjoint(only):
                flat = words(content, held.group)
                held.rows(flat.dtype)[where] = flat

    def everywhere(self, name: str) -> torch.Tensor:
        """All memory of one input's group, every slot's, as one flat contiguous tensor of its dtype; zero between the slots.

        An element-wise operation on it acts on all slots at once.
        """
        held = self._by_name[name]
        return held.memory.view(-1).view(self.inputs(0)[name].dtype)


def _allocate(of: Group, slots: int, torch_device: str) -> _Held:
    raw = torch.zeros(slots * of.pitch + ALIGNMENT, dtype=torch.uint8, device=torch_device)
    skip = -raw.data_ptr() % ALIGNMENT
    return _Held(of, raw[skip : skip + slots * of.pitch].view(slots, of.pitch))
