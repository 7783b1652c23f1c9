"""Rows that lie more than 2^31 elements into their memory: every bundled kernel's offsets must be 64 bits wide.

The inputs of each kernel's smallest strided case are laid out again, one tensor at a time, with rows so far apart that the
last one begins beyond 2^31 elements (4 to 9 GB). The answer must be bit-equal to that of the ordinary layout.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.authoring.catalogue import load_kernels
from harness.authoring.workspace import read_workspace
from harness.devices.table import load_devices
from harness.measure.numerics import bit_equal
from harness.measure.subject import Subject

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1", reason="needs a GPU"),
]
ROOT = Path(__file__).parents[2]
BEYOND = (1 << 31) + 4096


def names() -> list[str]:
    return sorted(path.stem for path in (ROOT / "kernels").glob("*.py") if path.stem != "__init__")


def far_apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, the last row beyond 2^31 elements."""
    stride = -(-BEYOND // (tensor.shape[0] - 1) // 64) * 64
    memory = torch.empty((tensor.shape[0] - 1) * stride + tensor[0].numel() * 4 + stride % 64, dtype=tensor.dtype, device="cuda")
    placed = memory.as_strided(tensor.shape, (stride, *tensor.stride()[1:]))
    return placed.copy_(tensor)


def has_gaps(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.dim() > 1 and tensor.shape[0] > 1 and tensor.stride(0) > tensor[0].numel()


def results(subject: Subject, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    found = {name: value for name, value in subject.call(inputs).items() if value is not None}
    return found | {name: inputs[name] for name in subject.variant.mutates or () if inputs.get(name) is not None}


@pytest.mark.parametrize("name", names())
def test_every_variant_finds_rows_beyond_two_to_the_thirty_one_elements(name: str) -> None:
    kernel = load_kernels(read_workspace(ROOT))[name].kernel
    device = load_devices()["h200"]
    tried = 0
    for variant in kernel.variants:
        if not kernel.variant(variant).triton:
            continue
        cases = [c for c in kernel.cases if c.strided and kernel.variant(variant).cases(c)]
        if not cases:
            continue
        subject = Subject(kernel, variant, min(cases, key=lambda c: kernel.traffic(c).total), device, "cuda")
        expected = {key: value.clone() for key, value in results(subject, subject.inputs()).items()}
        for tensor in [key for key, value in subject.inputs().items() if has_gaps(value)]:
            inputs = subject.inputs()
            inputs[tensor] = far_apart(inputs[tensor])
            found = results(subject, inputs)
            assert all(bit_equal(found[key], value) for key, value in expected.items()), f"{subject.cell}: {tensor} far apart"
            tried += 1
    assert tried, f"{name} has no strided case of more than one row"
