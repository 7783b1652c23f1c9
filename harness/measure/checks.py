"""What one call of a variant is asked: the table `CHECKS`, each check with the defect it finds.

The dtype that an output must have follows from what the kernel declares, never from what any variant happens to give,
so that the baseline is checked like the rest: an output named like an input, or that `Drift` carries into one, has that
input's dtype (a functional variant's new state), an integer or bool one the reference's, every other one the case's. Its
shape is the reference's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import torch

from harness.authoring.catalogue import as_known, loaded_workspace
from harness.authoring.model import Inputs, Kernel, Tolerance
from harness.measure.data import torch_dtype
from harness.measure.guards import Breach, unwritten
from harness.measure.numerics import Errors, any_finite, bit_equal, bits, compare, farthest
from harness.measure.subject import Subject
from harness.records import Status

COMPLEX = "complex tensors are not supported; give the real and the imaginary part as two tensors"


class Defect(StrEnum):
    """What is wrong with a cell, or (`inputs`, `reference`, `canary`, `cost_model`) with what the kernel file says of it."""

    INPUTS = "inputs"
    REFERENCE = "reference"
    OUTPUTS = "outputs"
    DTYPE = "dtype"
    SHAPE = "shape"
    UNWRITTEN = "unwritten_output"
    NON_FINITE = "non_finite"
    OUT_OF_BOUNDS = "out_of_bounds_write"
    MUTATED_INPUT = "mutated_input"
    UNTOUCHED_SLOT = "untouched_slot"
    TOLERANCE = "beyond_tolerance"
    CANARY = "canary"
    COST_MODEL = "cost_model"
    NOT_DETERMINISTIC = "not_deterministic"
    CACHED_ANSWER = "cached_answer"
    CHAIN_DIFFERS = "chain_differs"
    CALLS_REFERENCE = "calls_reference"
    NOT_ADVANCED = "not_advanced"
    DRIFTED = "drifted"

    @property
    def status(self) -> Status:
        """`invalid` where the kernel file cannot judge or contradicts itself, else `wrong`."""
        return Status.INVALID if self in (Defect.INPUTS, Defect.REFERENCE, Defect.CANARY, Defect.COST_MODEL) else Status.WRONG


@dataclass(frozen=True)
class Finding:
    """A defect and its particulars."""

    defect: Defect
    detail: str

    def __str__(self) -> str:
        return f"{self.defect}: {self.detail}"


@dataclass(frozen=True)
class Trial:
    """One call of the variant and what it should have given.

    Args:
        before: the inputs as they were.
        after: the tensors the variant was given, as it left them.
        returned: what it returned, in order.
        reference: what every output and mutated tensor should be, by name.
        breaches: guard bytes that were written.
    """

    subject: Subject
    before: Inputs
    after: Inputs
    returned: tuple[Any, ...]
    reference: dict[str, Any]
    breaches: tuple[Breach, ...]

    @cached_property
    def outputs(self) -> dict[str, Any]:
        """What was returned, by name, absent options (None) left out."""
        names = self.subject.variant.outputs or ()
        return {name: value for name, value in zip(names, self.returned, strict=False) if value is not None}

    @cached_property
    def mutated(self) -> dict[str, torch.Tensor]:
        """The inputs the variant may change, absent ones left out."""
        names = self.subject.variant.mutates or ()
        return {name: self.after[name] for name in names if isinstance(self.after.get(name), torch.Tensor)}

    @cached_property
    def results(self) -> dict[str, torch.Tensor]:
        """Outputs and mutated tensors by name."""
        return {**self.outputs, **self.mutated}

    @cached_property
    def errors(self) -> dict[str, Errors]:
        """The errors of every result; of a tensor with slots, over the rows that the call may touch."""
        return {name: compare(self.touched(name, value), self.touched(name, self.reference[name])) for name, value in self.results.items()}

    @cached_property
    def touched_rows(self) -> dict[str, torch.Tensor | None]:
        """`touched_rows` of every mutated tensor, looked up once: a GPU's host waits for each."""
        kernel, rows = self.subject.kernel, dict[str, torch.Tensor | None]()
        for name in self.mutated:
            if (index := kernel.slots.get(name, "")) not in rows:
                rows[index] = touched_rows(kernel, name, self.before)
        return {name: rows[kernel.slots.get(name, "")] for name in self.mutated}

    def touched(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of a mutated tensor that the call may change: all, unless the kernel declares slots for it."""
        rows = self.touched_rows.get(name)
        return tensor if rows is None else tensor[rows]


def touched_rows(kernel: Kernel, name: str, inputs: Inputs) -> torch.Tensor | None:
    """The leading rows of a mutated tensor that a call with these inputs may change (int64); None: all of them."""
    index = inputs.get(kernel.slots.get(name, ""))
    return index[index >= kernel.null_slots].long() if isinstance(index, torch.Tensor) else None


def _reference_is_unfit(trial: Trial) -> str | None:
    variant = trial.subject.variant
    if not isinstance(trial.reference, Mapping):
        return f"it gives a {type(trial.reference).__name__}: {_must_return(trial.subject)}"
    for name in (*(variant.outputs or ()), *trial.mutated):
        if name not in trial.reference:
            return f"it gives {', '.join(map(str, trial.reference)) or 'nothing'}, no {name!r}: {_must_return(trial.subject)}"
        value = trial.reference[name]
        if value is not None and not isinstance(value, torch.Tensor):
            return f"{name} is of type {type(value).__name__}, not a tensor"
        if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
            return f"{name} is {value.dtype}; compute it in fp32 or fp64"
        if isinstance(value, torch.Tensor) and value.is_complex():
            return f"{name} is {value.dtype}: {COMPLEX}"
    for name, tensor in trial.mutated.items():
        value = trial.reference[name]
        if tensor.is_complex():
            return f"the input {name} that it replaces is {tensor.dtype}: {COMPLEX}"
        if not isinstance(value, torch.Tensor) or value.shape != tensor.shape:
            return f"{name} is {_shape_of(value)} and the input it replaces {tuple(tensor.shape)}"
    if not trial.mutated and all(trial.reference[name] is None for name in variant.outputs or ()):
        return "it gives nothing to compare"
    return _has_nothing_finite(trial)


def _must_return(subject: Subject) -> str:
    """Where the reference is, and what it has to give."""
    function = subject.kernel.reference
    while isinstance(function, functools.partial):
        function = function.func
    code, workspace = getattr(function, "__code__", None), loaded_workspace()
    place = f"{code.co_filename}:{code.co_firstlineno}" if code else f"that of kernel {subject.kernel.name}"
    shown = as_known(place, workspace.root) if workspace else place
    return f"mend {shown}, which must return a dict with every name of `outputs` and `mutates`"


def _has_nothing_finite(trial: Trial) -> str | None:
    """NaN equals NaN, so such a reference would pass a variant that gives nothing but NaN."""
    for name in (*(trial.subject.variant.outputs or ()), *trial.mutated):
        value = trial.reference[name]
        if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
            continue
        compared = trial.touched(name, value)
        if compared.numel() and not any_finite(compared):
            return f"{name} has no finite element among the {compared.numel()} compared: choose inputs that do not blow up"
    return None


def _shape_of(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, torch.Tensor) else repr(value)


def _wrong_outputs(trial: Trial) -> str | None:
    names = tuple(trial.subject.variant.outputs or ())
    if len(trial.returned) != len(names):
        if len(trial.returned) == 1 and isinstance(trial.returned[0], list | dict):
            return f"{len(names)} declared ({', '.join(names) or 'none'}), a {type(trial.returned[0]).__name__} returned: return a tuple"
        return f"{len(names)} declared ({', '.join(names) or 'none'}), {len(trial.returned)} returned"
    for name, value in zip(names, trial.returned, strict=True):
        if value is None and trial.reference[name] is not None:
            return f"{name} is missing"
        if value is not None and trial.reference[name] is None:
            return f"{name} is returned where the reference has none"
        if value is not None and not isinstance(value, torch.Tensor):
            return f"{name} is of type {type(value).__name__}, not a tensor"
        if value is not None and value.is_complex():
            return f"{name} is {value.dtype}: {COMPLEX}"
    return None


def _wrong_dtype(trial: Trial) -> str | None:
    for name, output in trial.outputs.items():
        expected = _expected_dtype(trial, name)
        if output.dtype != expected:
            return f"{name} is {output.dtype}, it must be {expected}"
    return None


def _expected_dtype(trial: Trial, name: str) -> torch.dtype:
    drift = trial.subject.kernel.drift
    becomes = next((given for given, source in drift.carry.items() if source == name), name) if drift else name
    if isinstance(trial.before.get(becomes), torch.Tensor):
        return trial.before[becomes].dtype
    given = trial.reference[name].dtype
    return torch_dtype(trial.subject.case.dtype) if given.is_floating_point else given


def _wrong_shape(trial: Trial) -> str | None:
    for name, output in trial.outputs.items():
        if output.shape != trial.reference[name].shape:
            return f"{name} is {tuple(output.shape)}, it must be {tuple(trial.reference[name].shape)}"
    return None


def _unwritten(trial: Trial) -> str | None:
    for name, output in trial.outputs.items():
        left = unwritten(output).nonzero()
        if len(left):
            return f"{len(left)} of {output.numel()} elements of {name}, first at {left[0].tolist()}"
    return None


def _non_finite(trial: Trial) -> str | None:
    for name, errors in trial.errors.items():
        if errors.mismatches:
            return f"{errors.mismatches} elements of {name}, first at {errors.at_worst()}"
    return None


def _out_of_bounds(trial: Trial) -> str | None:
    return "; ".join(str(breach) for breach in trial.breaches) or None


def _mutated_input(trial: Trial) -> str | None:
    for name, value in trial.before.items():
        if isinstance(value, torch.Tensor) and name not in trial.mutated and not bit_equal(value, trial.after[name]):
            return f"{name} changed and is not declared as mutated"
    return None


def _untouched_slots(trial: Trial) -> str | None:
    for name, tensor in trial.mutated.items():
        rows = trial.touched_rows[name]
        if rows is None or tensor.numel() == 0:
            continue
        changed = (bits(tensor) != bits(trial.before[name])).reshape(len(tensor), -1).any(dim=1)
        changed[rows] = False
        if changed.any():
            found = changed.nonzero().flatten().tolist()
            return f"rows {found[:8]} of {name} changed; {trial.subject.kernel.slots[name]} does not name them"
    return None


def undeclared_changes(trial: Trial) -> Iterator[tuple[Finding, torch.Tensor]]:
    """What a call may not change, each with whether it did: one bool that stays on the device. The same is asked of a trial by `examine`,
    which waits for the answers."""
    for name, value in trial.before.items():
        if isinstance(value, torch.Tensor) and name not in trial.mutated:
            found = Finding(Defect.MUTATED_INPUT, f"{name} changed and is not declared as mutated")
            yield found, (bits(value) != bits(trial.after[name])).any()
    for name, tensor in trial.mutated.items():
        rows = trial.touched_rows[name]
        if rows is not None and tensor.numel():
            changed = (bits(tensor) != bits(trial.before[name])).reshape(len(tensor), -1).any(dim=1)
            changed[rows] = False
            found = Finding(Defect.UNTOUCHED_SLOT, f"rows of {name} changed; {trial.subject.kernel.slots[name]} does not name them")
            yield found, changed.any()


def limit_of(tolerance: Tolerance, name: str, dtype: torch.dtype) -> float:
    """The relative L2 limit of a tensor; an integer or bool one must be equal unless the tolerance names it."""
    return tolerance.limit(name) if dtype.is_floating_point else tolerance.tensors.get(name, 0.0)


def _beyond_tolerance(trial: Trial) -> str | None:
    tolerance = trial.subject.kernel.tolerance_of(trial.subject.case)
    for name, errors in trial.errors.items():
        limit = limit_of(tolerance, name, trial.results[name].dtype)
        if not errors.within(limit, tolerance.cosine):
            cosine = "" if tolerance.cosine is None else f", cosine {errors.cosine:.8g} (at least {tolerance.cosine:.8g})"
            return f"{name}: relative L2 {errors.rel_l2:.3g} (at most {limit:.3g}){cosine}; worst at {errors.at_worst()}"
        if found := _one_element_off(trial, name, errors, limit):
            return found
    return None


def _one_element_off(trial: Trial, name: str, errors: Errors, limit: float) -> str | None:
    """Whether a single element is wrong among so many right ones that their norm hides it: a column not written, a sign."""
    value = trial.results[name]
    if not value.dtype.is_floating_point or limit == 0 or errors.rms == 0:
        return None
    most = trial.subject.kernel.tolerance_of(trial.subject.case).element * limit
    if errors.max_abs <= most * errors.rms:
        return None
    found = farthest(trial.touched(name, value), trial.touched(name, trial.reference[name]), errors.rms)
    if found.share <= most:
        return None
    return (
        f"{name}: one element is off by {found.share:.3g} of its size, the largest of itself, its row's RMS and that of all "
        f"(at most {most:.3g}): {found}; relative L2 {errors.rel_l2:.3g} (at most {limit:.3g})"
    )


def _accepts_nothing_done(trial: Trial) -> str | None:
    """Whether a variant that leaves zeros, or a state as it was, would pass: then the case proves nothing."""
    tolerance = trial.subject.kernel.tolerance_of(trial.subject.case)
    for name, tensor in trial.results.items():
        expected = trial.touched(name, trial.reference[name])
        lazy = {"all zeros": torch.zeros_like(expected)}
        if name in trial.mutated:
            lazy["an unchanged tensor"] = trial.touched(name, trial.before[name])
        for what, values in lazy.items():
            errors = compare(values, expected.to(tensor.dtype))
            if errors.max_abs != 0 and errors.within(limit_of(tolerance, name, tensor.dtype), tolerance.cosine):
                return f"the tolerance of {name} would accept {what}"
    return None


CHECKS: tuple[tuple[Defect, Callable[[Trial], str | None]], ...] = (
    (Defect.REFERENCE, _reference_is_unfit),
    (Defect.OUTPUTS, _wrong_outputs),
    (Defect.DTYPE, _wrong_dtype),
    (Defect.SHAPE, _wrong_shape),
    (Defect.UNWRITTEN, _unwritten),
    (Defect.NON_FINITE, _non_finite),
    (Defect.OUT_OF_BOUNDS, _out_of_bounds),
    (Defect.MUTATED_INPUT, _mutated_input),
    (Defect.UNTOUCHED_SLOT, _untouched_slots),
    (Defect.TOLERANCE, _beyond_tolerance),
    (Defect.CANARY, _accepts_nothing_done),
)
"""What each trial is asked, in order; later questions rely on the earlier ones."""

STRUCTURAL = frozenset({Defect.REFERENCE, Defect.OUTPUTS, Defect.SHAPE})
"""Defects with which nothing can be measured."""


def examine(trial: Trial, without: frozenset[Defect] = frozenset()) -> Finding | None:
    """The first defect of a trial; those in `without` are not looked for."""
    for defect, check in CHECKS:
        if defect not in without and (detail := check(trial)):
            return Finding(defect, detail)
    return None
