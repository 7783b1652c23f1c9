"""The drift check: a recurrent kernel runs its steps beside the fp64 reference, on the same step inputs.

Both start from one state; the variant then carries its own, in its own dtype, and the reference its own, in fp64. At
each checkpoint the carried tensors are compared (how far it has drifted). Every step is held against the reference applied
to the variant's own state (whether it is still right from where it stands), at a checkpoint in full, in between by its relative
error and by what it may not change, inputs and the slots of others: the correctness tolerance holds for one step, the drift
tolerance for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch

from harness.authoring.model import DTYPES, Drift, Inputs, Tolerance
from harness.errors import KernelFileError
from harness.measure.checks import Defect, Finding, Trial, examine, limit_of, touched_rows, undeclared_changes
from harness.measure.correctness import reference_on_copies
from harness.measure.data import Generator, content_hash
from harness.measure.numerics import Errors, bit_equal, compare, relative_l2
from harness.measure.subject import SEED, Reading, Subject
from harness.records import Status

METHOD = "drift/1"
METRICS = ("drift_rel_error", "drift_cosine", "drift_norm_ratio")


@dataclass(frozen=True)
class _Step:
    """One step at a checkpoint.

    Args:
        number: how many steps have run, this one included.
        wrong: the first step since the checkpoint before that was beyond the correctness tolerance, or changed what it may not.
        trial: the step from the variant's own state, with the reference applied to that state.
        carry: input name -> name of the result that became it.
        exact: the reference's own state after the step, by input name.
        carried: errors of the variant's state against that.
    """

    number: int
    wrong: Finding | None
    trial: Trial
    carry: Mapping[str, str]
    exact: Inputs
    carried: dict[str, Errors]


class _Between:
    """The relative errors of steps from their own state, and what they changed; all stays on the device until it is judged, so that no
    step waits for it."""

    def __init__(self, tolerance: Tolerance) -> None:
        self._tolerance = tolerance
        self._errors: list[tuple[int, str, float, torch.Tensor]] = []
        self._changes: list[tuple[int, Finding, torch.Tensor]] = []

    def note(self, number: int, trial: Trial) -> None:
        """Note a step and what it changed; a result that cannot be compared, missing or of another shape than the reference's say, is as
        wrong as can be."""
        for name in (*(trial.subject.variant.outputs or ()), *trial.mutated):
            value, expected = trial.results.get(name), trial.reference.get(name)
            if isinstance(value, torch.Tensor) and isinstance(expected, torch.Tensor) and value.shape == expected.shape:
                error = relative_l2(trial.touched(name, value), trial.touched(name, expected))
                self._errors.append((number, name, limit_of(self._tolerance, name, value.dtype), error))
            elif value is not None or expected is not None:
                unlike = torch.tensor(math.nan, dtype=torch.float64, device=trial.subject.torch_device)
                self._errors.append((number, name, 0.0, unlike))
        self._changes += [(number, finding, changed) for finding, changed in undeclared_changes(trial)]

    def judge(self) -> Finding | None:
        """The first step noted since this was last asked that is beyond the correctness tolerance or changed what it may not: of one step
        the latter, which explains the former."""
        changes, self._changes = self._changes, []
        changed = torch.stack([flag for *_, flag in changes]).tolist() if changes else []
        first, what = next(((number, found) for (number, found, _), is_so in zip(changes, changed, strict=True) if is_so), (math.inf, None))
        errors = torch.stack([error for *_, error in self._errors]).tolist() if self._errors else []
        noted, self._errors = self._errors, []
        for (number, name, limit, _), error in zip(noted, errors, strict=True):
            if number >= first:
                break
            if not error <= limit:
                detail = f"step {number} from its own state: {name}: relative L2 {error:.3g} (at most {limit:.3g})"
                return Finding(Defect.TOLERANCE, detail)
        return Finding(what.defect, f"step {first} from its own state: {what.detail}") if what else None


def state_tolerance(subject: Subject, drift: Drift) -> Tolerance:
    """The drift tolerance of a case, by the dtype of its state: its `state` axis where that is a dtype, else its dtype.

    Raises:
        KernelFileError: the kernel declares none for that dtype.
    """
    state = subject.case.axes.get("state")
    key = state if state in DTYPES else subject.case.dtype
    if key not in drift.tolerance:
        raise KernelFileError(
            f"drift of {subject.cell}",
            f"Drift.tolerance has {', '.join(drift.tolerance) or 'nothing'}, and the state is {key}",
            f"give Drift.tolerance a {key!r} entry in the kernel's file",
        )
    return drift.tolerance[str(key)]


def check_drift(subject: Subject) -> list[Reading]:
    """Run the steps of one cell and say how far its state is from the reference's at each checkpoint.

    Returns:
        `drift_rel_error@n`, `drift_cosine@n` and `drift_norm_ratio@n` at each checkpoint n, the worst over the carried
        tensors: `wrong` where one is beyond the drift tolerance or the step itself is wrong.

    Raises:
        KernelFileError: the kernel declares no drift, or declares it inconsistently.
    """
    drift = subject.kernel.drift
    if drift is None:
        raise KernelFileError(f"drift of {subject.cell}", "the kernel declares no Drift", "give its Kernel a `drift`")
    tolerance = state_tolerance(subject, drift)
    generator = Generator(SEED, subject.torch_device)
    inputs = subject.drawn_from(generator)
    columns = {"method": METHOD, "data": subject.kernel.data, "data_hash": content_hash(inputs)}
    readings = []
    for step in _run(subject, drift, inputs, generator):
        finding = _judge(step, tolerance)
        status, reason = (finding.defect.status, str(finding)) if finding else (Status.OK, None)
        measured = _measure(step.carried)
        readings += [Reading(f"{metric}@{step.number}", measured.get(metric), status, reason, columns) for metric in METRICS]
    return readings


def _run(subject: Subject, drift: Drift, inputs: Inputs, generator: Generator) -> Iterator[_Step]:
    """Yield each checkpoint's step."""
    mutates = tuple(subject.variant.mutates or ())
    between = _Between(subject.kernel.tolerance_of(subject.case))
    carry = _carry(subject, drift, inputs)
    inputs = dict(inputs)
    given = _copies(inputs, without=carry)
    exact: Inputs = {name: _widen(inputs[name]) for name in carry}
    for number in range(1, drift.steps + 1):
        if number > 1:
            fresh = _step_inputs(subject, drift, carry, generator)
            inputs.update(fresh)
            given.update(_copies(fresh))
        before = {**inputs, **given, **{name: inputs[name].clone() for name in carry}}
        expected = reference_on_copies(subject, {**before, **exact})
        outputs = subject.call(inputs)
        trial = Trial(subject, before, dict(inputs), tuple(outputs.values()), reference_on_copies(subject, before), ())
        results = {**{name: inputs[name] for name in mutates}, **outputs}
        inputs.update({name: results[source] for name, source in carry.items()})
        exact = {name: _widen(expected[source]) for name, source in carry.items()}
        if number in drift.checkpoints:
            yield _Step(number, between.judge(), trial, drift.carry, exact, _compare_carried(subject, drift, inputs, exact))
        else:
            between.note(number, trial)
        if subject.kernel.cycle is not None:
            subject.kernel.cycle.advance(inputs)
            given.update(_copies({name: value for name, value in inputs.items() if name == subject.kernel.cycle.cursor}, without=carry))


def _copies(inputs: Inputs, without: Collection[str] = ()) -> Inputs:
    """Copies of the tensors, which nothing that is done to the inputs changes."""
    return {name: value.clone() for name, value in inputs.items() if isinstance(value, torch.Tensor) and name not in without}


def _carry(subject: Subject, drift: Drift, inputs: Inputs) -> dict[str, str]:
    """What becomes which input in the next step: what the kernel declares, and every mutated tensor itself."""
    variant = subject.variant
    mutated = [name for name in variant.mutates or () if isinstance(inputs.get(name), torch.Tensor)]
    for name, source in drift.carry.items():
        if not isinstance(inputs.get(name), torch.Tensor) or source not in (*(variant.outputs or ()), *mutated):
            raise KernelFileError(
                f"drift of {subject.cell}",
                f"Drift.carry says that {source!r} becomes {name!r}; the inputs are {', '.join(inputs)}, "
                f"the results {', '.join((*(variant.outputs or ()), *mutated))}",
                "name an input tensor and an output or mutated tensor of the variant",
            )
    return {**{name: name for name in mutated}, **drift.carry}


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a state in fp64; integers keep their dtype."""
    return tensor.to(torch.float64, copy=True) if tensor.dtype.is_floating_point else tensor.clone()


def _step_inputs(subject: Subject, drift: Drift, carry: Mapping[str, str], generator: Generator) -> Inputs:
    fresh = drift.step_inputs(subject.case, generator)
    if both := sorted(set(fresh) & set(carry)):
        raise KernelFileError(
            f"drift of {subject.cell}", f"step_inputs gives {both[0]!r}, which is carried", "leave it out of step_inputs or out of carry"
        )
    return fresh


def _compare_carried(subject: Subject, drift: Drift, inputs: Inputs, exact: Inputs) -> dict[str, Errors]:
    found = {}
    for name in drift.carry:
        rows = touched_rows(subject.kernel, name, inputs)
        actual, expected = (inputs[name], exact[name]) if rows is None else (inputs[name][rows], exact[name][rows])
        found[name] = compare(actual, expected)
    return found


def _judge(step: _Step, tolerance: Tolerance) -> Finding | None:
    """The first defect: in the reference, in the step from the variant's own state, then in where it has drifted."""
    for name, source in step.carry.items():
        if not step.exact[name].isfinite().all():
            return Finding(Defect.REFERENCE, f"{name} is not finite after {step.number} steps: choose inputs that do not blow up")
        if _stands_still(step.trial, name, source):
            return Finding(Defect.NOT_ADVANCED, f"{name} is left as it was by step {step.number}")
    if step.wrong:
        return step.wrong
    if finding := examine(step.trial, without=frozenset({Defect.CANARY})):
        return Finding(finding.defect, f"step {step.number} from its own state: {finding.detail}")
    for name, errors in step.carried.items():
        limit = limit_of(tolerance, name, step.trial.before[name].dtype)
        if not errors.within(limit, tolerance.cosine) or not math.isfinite(errors.norm_ratio):
            least = "" if tolerance.cosine is None else f" (at least {tolerance.cosine:.8g})"
            return Finding(
                Defect.DRIFTED,
                f"{name} after {step.number} steps: relative L2 {errors.rel_l2:.3g} (at most {limit:.3g}), "
                f"cosine {errors.cosine:.8g}{least}, norm ratio {errors.norm_ratio:.6g}; worst at {errors.at_worst()}",
            )
    return None


def _stands_still(trial: Trial, name: str, source: str) -> bool:
    """Whether a step left a carried tensor bit-equal although the reference, in the tensor's dtype, moves it."""
    before = trial.before[name]
    return bit_equal(trial.results[source], before) and not bit_equal(trial.reference[source].to(before.dtype), before)


def _measure(carried: Mapping[str, Errors]) -> dict[str, float]:
    """The worst of each measure, those that are not finite left out; the worst norm ratio is the furthest from 1."""
    errors = carried.values()
    worst = (
        max(e.rel_l2 for e in errors),
        math.nan if any(math.isnan(e.cosine) for e in errors) else min(e.cosine for e in errors),
        max((e.norm_ratio for e in errors), key=lambda ratio: abs(math.log(ratio)) if 0 < ratio < math.inf else math.inf),
    )
    return {metric: value for metric, value in zip(METRICS, worst, strict=True) if math.isfinite(value)}
