"""What proving a cell right takes of the device's memory, so that one that does not fit is skipped and not failed."""

from __future__ import annotations

import torch

from harness.measure.data import Generator
from harness.measure.subject import Subject

COPIES = 4
"""Of the inputs: as drawn, between guards for two calls, and for the reference."""
REFERENCE_BYTES = 8
"""A reference computes in fp64, and may hold every input so."""


def needed_bytes(subject: Subject) -> int:
    """An upper estimate of the memory of one correctness check, from the layout of the inputs alone: nothing is allocated."""
    inputs = subject.kernel.make_inputs(subject.case, Generator(0, "meta"))
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    held = sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors.values()}.values())
    values = sum(t.numel() for t in tensors.values())
    mutated = [tensors[name] for name in subject.variant.mutates or () if name in tensors]
    returned = max(0, subject.traffic.written_bytes - sum(t.numel() * t.element_size() for t in mutated))
    results = sum(t.numel() for t in mutated) + returned  # what is returned has at least a byte an element
    return COPIES * held + REFERENCE_BYTES * (values + 2 * results)


def free_bytes() -> int:
    """Memory of the current GPU that can still be allocated: what it has free, and what torch holds and nothing uses."""
    free, _ = torch.cuda.mem_get_info()
    return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
