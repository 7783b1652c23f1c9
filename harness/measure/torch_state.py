"""Keeps torch's process-wide settings, so that what a variant sets for itself does not reach the cells after it in the launch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Put torch's settings back after the block: default dtype and device, grad mode, threads, precision and deterministic algorithms."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    grad, threads, precision = torch.is_grad_enabled(), torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic, warn_only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:  # else it would be set where none was
            torch.set_default_device(None if device == torch.device("cpu") else device)
        torch.set_grad_enabled(grad)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
