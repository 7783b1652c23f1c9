"""What every launcher asks of its tensors: shape, dtype, strides, one device. A refusal says what was given and what to give."""

from __future__ import annotations

from collections.abc import Sequence

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INT32 = (torch.int32,)
ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def refuse(kernel: str, found: str, do: str) -> ValueError:
    """The error of an argument that a kernel does not take, for `raise`."""
    return ValueError(f"{kernel}: {found}: {do}")


def check(
    kernel: str,
    name: str,
    tensor: torch.Tensor,
    shape: Sequence[int],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
    *,
    contiguous: bool = False,
) -> None:
    """Refuse a tensor of another shape, dtype or device, or whose last axis (with `contiguous`: any axis) has gaps.

    Raises:
        ValueError: as said; the text names kernel and tensor, what was given, and what to give.
    """
    if tensor.shape != tuple(shape) or tensor.dtype not in dtypes:
        wanted = " or ".join(map(str, dtypes))
        raise refuse(kernel, f"{name} has shape {tuple(tensor.shape)}, {tensor.dtype}", f"give {tuple(shape)} of {wanted}")
    if contiguous and not tensor.is_contiguous():
        raise refuse(kernel, f"{name} has strides {tensor.stride()}", "it must be contiguous, call .contiguous()")
    if tensor.dim() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise refuse(kernel, f"{name} has strides {tensor.stride()}", "its last axis must have stride 1, call .contiguous()")
    if tensor.device != device:
        raise refuse(kernel, f"{name} is on {tensor.device}", f"move it to {device}, where the other tensors are")
