"""What a kernel file declares: Kernel, Variant, Case, Tolerance, Traffic, Drift, Cycle; and Kind, for a job file.

Nothing here imports torch: a declaration is data and functions. Errors are `DeclarationError`, which the
catalogue turns into an error that names the file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

API = 1
"""Number of the authoring API. It only grows; a workspace that asks for a newer one is INCOMPARABLE(api)."""

DTYPES = ("fp32", "fp16", "bf16")
TAGS = ("smoke", "cpu", "ragged", "model", "headline", "peers", "drift")
NAME = re.compile(r"[a-z][a-z0-9_]*")
_AXIS_TEXT = re.compile(r"[^\s/@,=]+")
"""A value that can stand in a cell's name, `kernel/variant/M=64,mode=fast,dtype=bf16@device`, and be read back."""

AxisValue = int | float | str
Inputs = dict[str, Any]
"""Arguments of one call by name: tensors, None for an absent option, and plain numbers or strings."""


class DeclarationError(ValueError):
    """A kernel or job file declares something inconsistent."""


def format_value(value: AxisValue) -> str:
    """Write an axis value as case keys do: `1e-6`, not `1e-06`."""
    return re.sub(r"e-0+", "e-", repr(value)) if isinstance(value, float) else str(value)


def parse_value(text: str) -> AxisValue:
    """Read back what `format_value` wrote."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True, init=False)
class Case:
    """Named axes of one input, its dtype and its tags.

    `Case(M=64, N=5120, dtype="bf16", tags="smoke cpu")`. Axes are read as attributes (`case.M`); once a Kernel
    holds the case, axes left out have the kernel's defaults and `key` is the canonical name.

    Raises:
        DeclarationError: unknown dtype or tag, or a value that is not an int, float or string, or that a cell's name cannot hold.
    """

    axes: Mapping[str, AxisValue]
    dtype: str
    tags: frozenset[str]
    key: str

    def __init__(self, *, dtype: str, tags: str | Iterable[str] = (), key: str = "", **axes: AxisValue) -> None:
        found = frozenset(tags.split() if isinstance(tags, str) else tags)
        if dtype not in DTYPES:
            raise DeclarationError(f"case dtype {dtype!r}: the dtypes are {', '.join(DTYPES)}")
        if unknown := sorted(found - set(TAGS)):
            raise DeclarationError(f"case tag {unknown[0]!r}: the tags are {', '.join(TAGS)}")
        for axis, value in axes.items():
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise DeclarationError(f"case axis {axis}={value!r}: use an int, a float or a string (0/1 for flags)")
            if isinstance(value, str) and not (_AXIS_TEXT.fullmatch(value) and value.isprintable()):
                raise DeclarationError(f"case axis {axis}={value!r}: it is part of a cell's name, so leave out spaces and any of / @ , =")
        for name, content in (("axes", MappingProxyType(dict(axes))), ("dtype", dtype), ("tags", found), ("key", key)):
            object.__setattr__(self, name, content)

    def __getattr__(self, axis: str) -> Any:
        if axis.startswith("__") or axis == "axes":
            raise AttributeError(axis)
        try:
            return self.axes[axis]
        except KeyError:
            raise AttributeError(f"case {self.key or dict(self.axes)} has no axis {axis!r}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_case, (dict(self.axes), self.dtype, self.tags, self.key)

    @staticmethod
    def grid(*, tags: str | Iterable[str] = (), **axes: AxisValue | Sequence[AxisValue]) -> list[Case]:
        """Every combination of the given axis values, all with the same tags; `dtype` may be a list too."""
        lists = [[v] if isinstance(v, int | float | str) else list(v) for v in axes.values()]
        combos: Iterable[dict[str, Any]] = (dict(zip(axes, combo, strict=True)) for combo in itertools.product(*lists))
        return [Case(dtype=str(combo.pop("dtype")), tags=tags, **combo) for combo in combos]


def _rebuild_case(axes: dict[str, AxisValue], dtype: str, tags: frozenset[str], key: str) -> Case:
    return Case(dtype=dtype, tags=tags, key=key, **axes)


@dataclass(frozen=True)
class Tolerance:
    """How far a right result may be from the reference, and why. It never loosens by environment.

    Args:
        rel_l2: largest relative L2 error of each output and mutated tensor, against an fp32 or fp64 reference.
        reason: where the figure comes from.
        tensors: other limits by tensor name (`{"state": 1e-5}`), for tensors stored in another dtype.
        cosine: smallest cosine similarity, where it gates too.
        element: how many times its tensor's limit one element may be off, over the largest of itself, the root mean square of its row
            and that of all. Rounding keeps every element of a right result within a few limits; a value of another place, row or sign
            is off by about 1. `math.inf` where single elements may be wrong.
    """

    rel_l2: float
    reason: str
    tensors: Mapping[str, float] = field(default_factory=dict)
    cosine: float | None = None
    element: float = 32.0

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise DeclarationError("Tolerance: give the reason of the figure")
        if not self.rel_l2 >= 0:
            raise DeclarationError(f"Tolerance: rel_l2 is {self.rel_l2}, it must be 0 or more")
        if not self.element >= 1:
            raise DeclarationError(f"Tolerance: element is {self.element}, it must be 1 or more")

    def limit(self, tensor: str) -> float:
        """The relative L2 limit of one tensor."""
        return self.tensors.get(tensor, self.rel_l2)

    @property
    def loosest(self) -> float:
        """The largest limit of any tensor."""
        return max(self.rel_l2, *self.tensors.values()) if self.tensors else self.rel_l2


@dataclass(frozen=True)
class Traffic:
    """Compulsory bytes of one call: each input byte read once, each output byte written once."""

    read_bytes: int
    written_bytes: int

    @property
    def total(self) -> int:
        """Bytes read plus bytes written."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class Drift:
    """How a recurrent kernel runs many steps beside its fp64 reference.

    Args:
        step_inputs: `step_inputs(case, generator)` gives the inputs of one step that change from step to step;
            `make_inputs` gives everything at step 0.
        carry: input name -> name of the output or mutated tensor that becomes it in the next step.
        tolerance: by state dtype (the case's `state` axis, else its dtype): limit of the carried tensors.
        steps: how many steps; the error is recorded at 1, 10, 100, 1000.
    """

    step_inputs: Callable[[Case, Any], Inputs]
    carry: Mapping[str, str]
    tolerance: Mapping[str, Tolerance]
    steps: int = 1000

    def tolerance_of(self, case: Case) -> Tolerance:
        """The tolerance of one case's carried tensors, by the dtype its state is stored in."""
        stored = case.axes.get("state", case.dtype)
        return self.tolerance[stored if stored in DTYPES else case.dtype]

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """The steps at which the error is recorded."""
        return tuple(n for n in (1, 10, 100, 1000) if n <= self.steps)


@dataclass(frozen=True)
class Cycle:
    """A kernel whose cost depends on a phase: `length` cheap steps and one that is not, advanced by a cursor.

    Args:
        length: `length(case)` is the number of steps in a whole cycle.
        cursor: name of the int32 tensor that holds the phase.
        advance: `advance(inputs)` moves the cursor by one step, on the device.
    """

    length: Callable[[Case], int]
    cursor: str
    advance: Callable[[Inputs], None]


Activations = Sequence[str] | Callable[[Case], Sequence[str]]
"""Names of inputs that the operation before has just written, or a function of the case that gives them."""


@dataclass(frozen=True)
class Variant:
    """One implementation. `call(**inputs)` returns the outputs in declared order and mutates only what is declared.

    Args:
        call: the launcher.
        triton: whether it launches Triton kernels: those are compiled by the static kind.
        cases: `cases(case)` says whether the variant covers a case; all by default.
        outputs: what this variant returns, where it differs from the kernel's (a functional variant returns the
            new state under the name that an in-place one mutates).
        mutates: what it changes in place, where it differs from the kernel's.
        traffic: `traffic(case)`: compulsory bytes of a variant that does a part of the work alone; the kernel's by default.
            The default variant has none: it does the whole work.
        activations: those of a variant that reads other inputs than the kernel's; the kernel's by default.
    """

    call: Callable[..., Any]
    triton: bool = True
    cases: Callable[[Case], bool] = lambda case: True
    outputs: Sequence[str] | None = None
    mutates: Sequence[str] | None = None
    traffic: Callable[[Case], Traffic] | None = None
    activations: Activations | None = None


@dataclass(frozen=True)
class Kernel:
    """One operation: reference, variants, cases, cost model. One per file in kernels/, bound to `KERNEL`.

    Args:
        variants: name -> Variant, or a plain function that launches Triton kernels.
        default: the variant that users get.
        baseline: the variant it must beat.
        axes: axis names in key order, without dtype; `strided` is added, with default 0.
        defaults: values that are left out of a case's key.
        cases: the cases; at least one tagged `smoke`.
        make_inputs: `make_inputs(case, generator)` gives the arguments of a call by name.
        reference: `reference(**inputs)` gives every output and mutated tensor by name, in fp32 or fp64, and
            changes nothing it was given.
        outputs: names of what a variant returns, in order.
        mutates: names of the inputs a variant changes in place.
        slots: mutated name -> name of the int32 index tensor that says which leading rows a call may touch
            (a negative index is a padded row).
        null_slots: how many of the first rows of a tensor with slots belong to nobody: an index of one is a padded row, too.
        tolerance: by case dtype, or a function of the case.
        traffic: `traffic(case)`: compulsory bytes, of every variant that gives none of its own (`traffic_of`).
        flops: `flops(case)`: floating-point operations.
        other_traffic: further byte models by name, reported beside compulsory bytes and never gated.
        drift: for kernels with state.
        cycle: for kernels whose cost depends on a phase.
        deterministic: whether two calls on equal inputs are bit-equal.
        activations: inputs that the operation before has just written when a model calls this one, or a function of the case that
            names them; the others, states and weights, come from memory then (`latency_serving_us`). Where none are named, a
            kernel with drift has those that its `step_inputs` draws for each step.
        data: name and version of the input distribution.
        name: defaults to the file's name.
    """

    variants: Mapping[str, Variant | Callable[..., Any]]
    default: str
    baseline: str
    axes: Sequence[str]
    cases: Sequence[Case]
    make_inputs: Callable[[Case, Any], Inputs]
    reference: Callable[..., dict[str, Any]]
    outputs: Sequence[str]
    tolerance: Mapping[str, Tolerance] | Callable[[Case], Tolerance]
    traffic: Callable[[Case], Traffic]
    flops: Callable[[Case], int]
    defaults: Mapping[str, AxisValue] = field(default_factory=dict)
    mutates: Sequence[str] = ()
    slots: Mapping[str, str] = field(default_factory=dict)
    null_slots: int = 0
    other_traffic: Mapping[str, Callable[[Case], int]] = field(default_factory=dict)
    drift: Drift | None = None
    cycle: Cycle | None = None
    deterministic: bool = True
    activations: Activations = ()
    data: str = "uniform[-1,1]/1"
    name: str = ""

    def __post_init__(self) -> None:
        variants = {
            name: replace(v, outputs=self._or(v.outputs, self.outputs), mutates=self._or(v.mutates, self.mutates))
            for name, given in self.variants.items()
            for v in [given if isinstance(given, Variant) else Variant(given)]
        }
        set_ = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 -- a frozen dataclass fills itself
        set_("variants", variants)
        set_("axes", (*self.axes, *(() if "strided" in self.axes else ("strided",))))
        set_("defaults", {"strided": 0, **self.defaults})
        set_("cases", tuple(self._bind(case) for case in self.cases))
        self._check()

    @staticmethod
    def _or(own: Sequence[str] | None, kernels: Sequence[str]) -> tuple[str, ...]:
        return tuple(kernels if own is None else own)

    def _bind(self, case: Case) -> Case:
        if unknown := sorted(set(case.axes) - set(self.axes)):
            raise DeclarationError(f"case axis {unknown[0]!r}: the axes are {', '.join(self.axes)}")
        full: dict[str, AxisValue] = {}
        for axis in self.axes:
            value = case.axes.get(axis, self.defaults.get(axis))
            if value is None:
                raise DeclarationError(f"case {dict(case.axes)}: axis {axis!r} has no value and no default")
            full[axis] = value
        shown = [f"{a}={format_value(v)}" for a, v in full.items() if a not in self.defaults or v != self.defaults[a]]
        return Case(dtype=case.dtype, tags=case.tags, key=",".join([*shown, f"dtype={case.dtype}"]), **full)

    def _check(self) -> None:
        for role, name in (("default", self.default), ("baseline", self.baseline)):
            if name not in self.variants:
                raise DeclarationError(f"{role} variant {name!r}: the variants are {', '.join(self.variants)}")
        for name in self.variants:
            if not NAME.fullmatch(name):
                raise DeclarationError(f"variant name {name!r}: use lower-case letters, digits and underscores")
        if self.variant(self.default).traffic is not None:
            raise DeclarationError(f"default variant {self.default!r} has a traffic of its own: give it as the kernel's")
        if not callable(self.reference):
            raise DeclarationError("reference: a kernel without a reference cannot be proved right; give a function")
        if not self.cases:
            raise DeclarationError("cases: the kernel has none")
        if not self.outputs and not self.mutates:
            raise DeclarationError("outputs: the kernel neither returns nor mutates anything")
        seen: set[str] = set()
        for case in self.cases:
            if case.key in seen:
                raise DeclarationError(f"case {case.key} is declared twice: merge the tags")
            seen.add(case.key)
            if not callable(self.tolerance) and case.dtype not in self.tolerance:
                raise DeclarationError(f"case {case.key}: no tolerance for {case.dtype}")
        if not any("smoke" in case.tags for case in self.cases):
            raise DeclarationError("cases: tag at least one `smoke`")
        for tensor in self.slots:
            if tensor not in self.mutates:
                raise DeclarationError(f"slots: {tensor!r} is not in mutates")

    def case(self, key: str) -> Case:
        """The case with this key.

        Raises:
            KeyError: no such case.
        """
        for case in self.cases:
            if case.key == key:
                return case
        raise KeyError(key)

    def variant(self, name: str) -> Variant:
        """The variant with this name (KeyError where there is none)."""
        found = self.variants[name]
        assert isinstance(found, Variant)
        return found

    def traffic_of(self, variant_name: str, case: Case) -> Traffic:
        """Compulsory bytes of one call of a variant (KeyError where there is none of this name)."""
        return (self.variant(variant_name).traffic or self.traffic)(case)

    def activations_of(self, variant_name: str, case: Case) -> tuple[str, ...]:
        """The activations that are declared for a variant in a case: its own, else the kernel's."""
        own = self.variant(variant_name).activations
        declared = self.activations if own is None else own
        return tuple(declared(case) if callable(declared) else declared)

    def tolerance_of(self, case: Case) -> Tolerance:
        """The tolerance of one case."""
        return self.tolerance(case) if callable(self.tolerance) else self.tolerance[case.dtype]

    def named(self, name: str) -> Kernel:
        """This kernel under the name of its file, unless it has its own."""
        return self if self.name else replace(self, name=name)


@dataclass(frozen=True)
class Kind:
    """What a job file measures: bound to `KIND` in jobs/<name>.py.

    Args:
        on: `unit` (the job needs the device itself; `cpu` is Triton's interpreter) or `host` (any host will do:
            the device is only a compile target).
        applies: `applies(kernel, variant_name, case)` says which cells the kind asks of a kernel.
        cell_seconds: expected seconds a cell, by which jobs are split.
        deadline_s: seconds after which a cell that has not ended is killed.
        replicates: on a GPU the job is launched several times, and its launches are compared.
    """

    on: str
    applies: Callable[[Kernel, str, Case], bool]
    cell_seconds: float
    deadline_s: float
    replicates: bool = False

    def __post_init__(self) -> None:
        if self.on not in ("unit", "host"):
            raise DeclarationError(f"Kind: on={self.on!r}: use 'unit' or 'host'")
