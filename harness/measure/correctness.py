"""The correctness check: one cell's variant against its reference, between guard bytes, three times over.

A cell that fails has one defect, the first in `CHECKS`, then `STAGES`. Its name opens the reason of every reading.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from harness.authoring.model import Inputs
from harness.measure.chain import check_chain, stall
from harness.measure.checks import STRUCTURAL, Defect, Finding, Trial, examine
from harness.measure.costs import cost_breach
from harness.measure.data import content_hash
from harness.measure.extents import returned_bytes
from harness.measure.guards import Guards, overwrite, poison, unwritten
from harness.measure.memory import free_bytes, needed_bytes
from harness.measure.numerics import bit_equal
from harness.measure.subject import SEED, Reading, Subject
from harness.records import Status

METHOD = "correctness/1"
METRICS = ("rel_l2_error", "max_abs_error", "max_ulp_error", "cosine")


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Keep fp32 products exact to fp32 inside the block, whatever a kernel file switched on (TF32)."""
    matmul = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)


def call_reference(subject: Subject, inputs: Inputs) -> dict[str, Any]:
    """The reference's results by name, in full precision."""
    with full_precision():
        return subject.kernel.reference(**inputs)


def reference_on_copies(subject: Subject, inputs: Inputs) -> dict[str, Any]:
    """The reference's results, computed where a reference that changes its inputs does no harm."""
    return call_reference(subject, {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()})


class ReferenceCalled(Exception):
    """A variant called the reference of its kernel."""


def _barrier(*_args: Any, **_kwargs: Any) -> None:
    raise "the exception"  # type: ignore[misc]  # noqa: B016 -- `barred` puts the class in the place of this constant


@contextlib.contextmanager
def barred(function: Any) -> Iterator[None]:
    """Inside the block a Python function raises ReferenceCalled, by whatever name it is called; others are left alone."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        yield
        return
    constants = tuple(ReferenceCalled if constant == "the exception" else constant for constant in _barrier.__code__.co_consts)
    function.__code__ = _barrier.__code__.replace(co_consts=constants, co_freevars=code.co_freevars)
    try:
        yield
    finally:
        function.__code__ = code


def _try(subject: Subject, before: Inputs, guards: Guards, placed: Inputs, reference: dict[str, Any]) -> Trial:
    with guards, barred(subject.kernel.reference):
        returned = subject.variant.call(**placed)
    outputs = returned if isinstance(returned, tuple) else () if returned is None else (returned,)
    for name, output in zip(subject.variant.outputs or (), outputs, strict=False):
        if isinstance(output, torch.Tensor):
            guards.name(output, f"output {name}")
    return Trial(subject, before, placed, outputs, reference, tuple(guards.check()))


@dataclass(frozen=True)
class Proven:
    """A first call that was right: its trial, copies of its results, and the guards that its buffers lie in."""

    trial: Trial
    results: dict[str, torch.Tensor]
    guards: Guards


def _drawn_again(subject: Subject, first: Proven) -> Finding | None:
    """One seed must give one content: else no error compares with that of another run, and a failure does not come again."""
    if content_hash(subject.inputs()) == content_hash(first.trial.before):
        return None
    return Finding(Defect.INPUTS, "make_inputs gives other inputs for the same seed: draw all that is random from its generator")


def _same_again(subject: Subject, first: Proven) -> Finding | None:
    """A second call on equal inputs, elsewhere in memory, must compute again, to equal bits where the kernel says so."""
    guards, before = Guards(), first.trial.before
    for output in first.trial.outputs.values():
        poison(output)
    second = _try(subject, before, guards, guards.guarded(before), first.trial.reference)
    for name, output in second.outputs.items():
        if output.numel() and bool(unwritten(output).all()):
            return Finding(Defect.CACHED_ANSWER, f"equal content in other buffers gives the memory of the first {name}")
    if subject.kernel.deterministic:
        for name, value in first.results.items():
            other = second.results.get(name)
            if other is None or not bit_equal(value, other):
                return Finding(Defect.NOT_DETERMINISTIC, f"{name} differs between two calls on equal inputs")
    for name, output in first.trial.outputs.items():
        overwrite(output, first.results[name])  # as it was, for the calls that follow
    return None


def _other_content(subject: Subject, first: Proven) -> Finding | None:
    """A call on the same buffers with other content must give the other answer."""
    fresh = subject.inputs(SEED + 1)
    placed = {name: first.trial.after[name] if isinstance(value, torch.Tensor) else value for name, value in fresh.items()}
    for name, value in fresh.items():
        if isinstance(value, torch.Tensor):
            overwrite(placed[name], value)
    trial = _try(subject, fresh, first.guards, placed, reference_on_copies(subject, fresh))
    finding = examine(trial)
    if finding is None or finding.defect.status is Status.INVALID:
        return finding
    stale = [name for name, value in first.results.items() if _same(trial.results, name, value) and _moved(first.trial, trial, name)]
    if stale:
        return Finding(Defect.CACHED_ANSWER, f"new content in the same buffers gives the old {', '.join(stale)} ({finding})")
    return Finding(finding.defect, f"{finding.detail} (on a second content in the same buffers)")


def _same(results: dict[str, torch.Tensor], name: str, value: torch.Tensor) -> bool:
    return name in results and bit_equal(results[name], value)


def _moved(first: Trial, second: Trial, name: str) -> bool:
    return not bit_equal(first.reference[name], second.reference[name])


def _chained(subject: Subject, first: Proven) -> Finding | None:
    """Calls that depend on each other must wait for each other; only a GPU runs them at once."""
    if subject.torch_device != "cuda":
        return None
    with barred(subject.kernel.reference):
        return check_chain(subject, first.trial.before, queue=stall, wait=torch.cuda.synchronize)


def _costs(subject: Subject, first: Proven) -> Finding | None:
    """The declared bytes must be such as the tensors allow: GB/s and the ring that makes a call cold follow from them."""
    breach = cost_breach(subject, first.trial.before, returned_bytes(first.trial.returned))
    return Finding(Defect.COST_MODEL, breach) if breach else None


STAGES: tuple[Callable[[Subject, Proven], Finding | None], ...] = (_drawn_again, _same_again, _other_content, _chained, _costs)
"""Further calls of a variant whose first was right."""


def check_correctness(subject: Subject) -> list[Reading]:
    """Prove one cell right or wrong, on inputs of the fixed seed; an exception of the variant is let through.

    Returns:
        One reading a metric: the worst over outputs and mutated tensors in the first call. All are `wrong`, or `invalid`
        where the kernel file cannot judge or contradicts itself, when there is a defect, whose name opens the reason. One
        reading, `skipped`, where the check does not fit into the device's memory.
    """
    if subject.torch_device == "cuda":
        needed, free = needed_bytes(subject), min(subject.device.usable_memory_bytes, free_bytes())
        if needed > free:
            return [Reading(None, None, Status.SKIPPED, f"memory: the check takes up to {needed:,} bytes, {free:,} are free")]
    before = subject.inputs()
    measured: dict[str, float] = {}
    try:
        guards = Guards()
        trial = _try(subject, before, guards, guards.guarded(before), reference_on_copies(subject, before))
        finding = examine(trial)
        measured = {} if finding and finding.defect in STRUCTURAL else _measure(trial)
        if finding is None:
            first = Proven(trial, {name: value.clone() for name, value in trial.results.items()}, guards)
            finding = next((found for stage in STAGES if (found := stage(subject, first))), None)
    except ReferenceCalled:
        finding = Finding(Defect.CALLS_REFERENCE, "the variant calls the reference that it is compared with")
    status, reason = (finding.defect.status, str(finding)) if finding else (Status.OK, None)
    columns = {"method": METHOD, "data": subject.kernel.data, "data_hash": content_hash(before)}
    return [Reading(metric, measured.get(metric), status, reason, columns) for metric in METRICS]


def _measure(trial: Trial) -> dict[str, float]:
    """The worst of each measure over the trial's tensors, those that are not finite left out."""
    errors = trial.errors.values()
    worst = (
        max(e.rel_l2 for e in errors),
        max(e.max_abs for e in errors),
        max(e.max_ulp for e in errors),
        math.nan if any(math.isnan(e.cosine) for e in errors) else min(e.cosine for e in errors),
    )
    return {metric: value for metric, value in zip(METRICS, worst, strict=True) if math.isfinite(value)}
