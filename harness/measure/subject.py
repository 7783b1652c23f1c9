"""The cell in hand inside a launch, and what measuring it gives: Subject and Reading."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.authoring.model import Case, Inputs, Kernel, Traffic, Variant
from harness.devices.table import Device
from harness.errors import KernelFileError
from harness.measure.data import Generator
from harness.records import Cell, Status

SEED = 20_240_229
"""Seed of correctness and drift inputs: fixed, so that errors compare from commit to commit."""


@dataclass(frozen=True)
class Subject:
    """One variant of one kernel on one case, on the device it runs on or is compiled for.

    Args:
        torch_device: where tensors live: `cpu` (interpreter), `cuda` (NVIDIA and AMD alike) or `meta` (static).
    """

    kernel: Kernel
    variant_name: str
    case: Case
    device: Device
    torch_device: str

    @property
    def cell(self) -> Cell:
        """The cell's name."""
        return Cell(self.kernel.name, self.variant_name, self.case.key, self.device.name)

    @property
    def variant(self) -> Variant:
        """The variant under test."""
        return self.kernel.variant(self.variant_name)

    @property
    def traffic(self) -> Traffic:
        """Compulsory bytes of one call."""
        return self.kernel.traffic_of(self.variant_name, self.case)

    def inputs(self, seed: int = SEED) -> Inputs:
        """Fresh inputs on `torch_device`, the same content on every host and device for the same seed."""
        return self.drawn_from(Generator(seed, self.torch_device))

    def drawn_from(self, generator: Generator) -> Inputs:
        """Inputs of the next draws of a generator.

        Raises:
            KernelFileError: they are no dict, are not what the reference and the variant take, or hold tensors that the harness would
                not see.
        """
        inputs = self.kernel.make_inputs(self.case, generator)
        asked = f"the inputs of {self.cell}"
        if not isinstance(inputs, dict):
            raise KernelFileError(asked, f"make_inputs gives a {type(inputs).__name__}", "return a dict of the arguments of a call by name")
        for name, value in inputs.items():
            if isinstance(value, list | tuple | set | dict) and _holds_tensor(value):
                found = f"{name} is a {type(value).__name__} of tensors, which would be neither copied, guarded nor compared"
                raise KernelFileError(asked, found, "give each tensor an argument of its own")
        for what, function in (("reference", self.kernel.reference), (f"variant {self.variant_name}", self.variant.call)):
            if why := _not_taken(function, inputs):
                found = f"make_inputs gives {', '.join(inputs)}; {what}{_where(function)} takes others: {why}"
                raise KernelFileError(asked, found, "name the inputs alike in both")
        return inputs

    def call(self, inputs: Inputs) -> dict[str, Any]:
        """Call the variant and name what it returns.

        Raises:
            TypeError: it returns another number of outputs than declared.
        """
        returned = self.variant.call(**inputs)
        outputs = returned if isinstance(returned, tuple) else () if returned is None else (returned,)
        names = tuple(self.variant.outputs or ())
        if len(outputs) != len(names):
            raise TypeError(f"{self.cell}: declares outputs {names}, returned {len(outputs)} values")
        return dict(zip(names, outputs, strict=True))


def _not_taken(function: Callable[..., Any], inputs: Inputs) -> str | None:
    """Why a function cannot be called with these inputs by name; None where it can, or where nothing says what it takes."""
    try:
        inspect.signature(function).bind(**inputs)
    except TypeError as error:
        return str(error)
    except ValueError:  # of code in C, say
        return None
    return None


def _where(function: Callable[..., Any]) -> str:
    """` (kernels/axpy.py:35)`, with the path in full; empty where it is not known."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f" ({code.co_filename}:{code.co_firstlineno})" if code else ""


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, list | tuple | set | dict):
        return any(_holds_tensor(item) for item in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, torch.Tensor)


@dataclass(frozen=True)
class Reading:
    """One value measured in a launch, or why there is none; it becomes a Record.

    Args:
        columns: further columns of the record (`data`, `binary_hash`, `evidence`, ...).
    """

    metric: str | None
    value: float | None
    status: Status = Status.OK
    reason: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
