"""The words of a diff: Verdict, Reason, Side, Policy, Finding, Diff. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from harness.records import Cell, Expected, Record

INTERPRETER = "cpu"
"""The device that is no GPU: its answers are the same on any host, its times say nothing."""


class Verdict(StrEnum):
    """What a diff says of one cell and metric. Closed."""

    BROKEN = "BROKEN"
    DRIFTED = "DRIFTED"
    REGRESSED = "REGRESSED"
    IMPROVED = "IMPROVED"
    UNCHANGED = "UNCHANGED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NEW = "NEW"
    REMOVED = "REMOVED"
    MISSING = "MISSING"
    INCOMPARABLE = "INCOMPARABLE"


class Reason(StrEnum):
    """Why a verdict is what it is. Closed: a code, and `text`, the sentence that a report prints beside it."""

    text: str

    def __new__(cls, code: str, text: str = "") -> Reason:
        """A member is its code; the sentence rides along (and is not needed to look a code up)."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.text = text
        return member

    # The codes of a status are the status itself.
    WRONG = "wrong", "head's answer is not the reference's"
    CRASH = "crash", "head's code died"
    TIMEOUT = "timeout", "head's code did not end within its deadline"
    OOM = "oom", "head's code ran out of memory"
    BUILD_FAILED = "build_failed", "head's code does not compile"
    ALSO_BROKEN_AT_BASE = "also_broken_at_base", "it fails, and failed in the same way at base: being wrong twice is not being right"

    BEYOND_TOLERANCE = "beyond_tolerance", "head's error is over its tolerance"
    TOLERANCE_LOOSENED = "tolerance_loosened", "head's error is over base's tolerance, and head's is looser"
    ERROR_GREW = "error_grew", "head's error is over twice base's, and by more than 1 % of the tolerance"
    TRADE = "trade", "head is faster, and its error grew: a trade"

    SLOWER = "slower", "paired launches: slower by more than the floor, and the interval leaves out no change"
    FASTER = "faster", "paired launches: faster by more than the floor, and the interval leaves out no change"
    NOISY = "noisy", "paired launches: the interval is too wide to say that it changed or that it did not"
    TOO_FEW_PAIRS = "too_few_pairs", "too few pairs of valid launches"
    NOT_CONVERGED = "not_converged", "a launch's samples never settled: its median is not known well enough"

    GREW = "grew", "it grew by more than its rule allows"
    ATTRIBUTION = "attribution", "it grew or shrank, and the cell's latency verdict decides: this explains it"

    FIXED = "fixed", "it failed at base and is right at head"
    SHRANK = "shrank", "it shrank by more than its rule asks for"
    ERROR_FELL = "error_fell", "head's error is under half of base's, and by more than 1 % of the tolerance"

    PROVED = "proved", "equal binaries, grids, configurations and launcher code: it cannot have changed"
    SAME_BINARY = "same_binary", "equal binaries"
    SAME_CODE = "same_code", "nothing that its result depends on differs between the sides, and head did not run it"
    BITWISE_EQUAL = "bitwise_equal", "equal inputs, and an error equal to the last bit"
    WITHIN_LIMITS = "within_limits", "the change is within its rule"

    SKIPPED = "skipped", "the plan leaves it out (it does not fit into memory, or does not apply)"
    INVALID = "invalid", "a measurement was taken and is not to be trusted"
    INFRA = "infra", "infrastructure failed"
    LOST = "lost", "its job ended without a word of it"
    QUEUE_TIMEOUT = "queue_timeout", "no unit became free in time"
    REFUSED = "refused", "the worker refused it"
    CANCELLED = "cancelled", "the run was stopped, or its budget was over"
    PASSED_ELSEWHERE = "passed_elsewhere", "it failed on one unit and passed on another: the unit is suspect first"
    UNPAIRED = "unpaired", "stored times of separate leases: not judged; `harness submit --against` measures both sides in one"
    PREDICTED = "predicted", "equal binaries on another compiler stack than the unit's: no change is expected, none is proved"
    INTERPRETER_ONLY = "interpreter_only", "the interpreter's time says nothing of a GPU"
    NO_TOLERANCE = "no_tolerance", "head's plan names no tolerance, so growth of the error has no measure"
    BASE_TOLERANCE = "base_tolerance", "the error grew, and base's tolerance is not known here, so head may have loosened it"

    NEW_CELL = "new_cell", "base's plan does not have the cell"
    NEW_METRIC = "new_metric", "base has no value under this metric"
    SKIPPED_AT_BASE = "skipped_at_base", "base's plan left it out"
    NOT_IN_PLAN = "not_in_plan", "head's plan no longer has the cell"

    NO_RECORD = "no_record", "head has no record of it"
    NO_CAPACITY = "no_capacity", "no unit of the device was reachable"
    NOT_PLANNED = "not_planned", "head's plan asks nothing of this kind of the device"
    NO_BASELINE = "no_baseline", "base has no valid result of it"
    NO_VALUE = "no_value", "head has no value under this metric, base has"

    API = "api", "one side needs another authoring API"
    MODEL = "model", "the sides ran on other GPU models"
    PARTITION = "partition", "the sides ran on other partitions of the GPU"
    METHOD = "method", "the sides were measured by other methods"
    DATA = "data", "the sides were given other input distributions"
    DATA_HASH = "data_hash", "the sides were given other inputs under one name of the distribution"
    TRITON = "triton", "the sides were compiled by other versions of Triton"
    COMPILER = "compiler", "the sides were compiled by other back-end compilers"
    UNIT_OF_MEASURE = "unit_of_measure", "the sides' values are in other units"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a diff: a ref, and the records that stand for it.

    Args:
        ref: as the user wrote it.
        commit: what the ref stands for.
        code_digest: of the code that the records ran, `distance` changes behind that commit.
        dirty: the code is not that of the commit.
        records: of one arm.
        expected: what the plan of the records asked for; None where no plan was kept.
        same_code: cells and kinds that head did not run, of which nothing differs from base's code: base's results of them are
            results of head's code.
        removed: cells and kinds that base has, whose variant or case head's code has no more.
        changed: kernels whose own code differs from base's; None where that was not looked at.
        equal: nothing that any result depends on differs from base's code.
        only_added: nothing does but kernels that base does not have.
    """

    ref: str
    commit: str | None
    code_digest: str
    distance: int = 0
    dirty: bool = False
    records: tuple[Record, ...]
    expected: tuple[Expected, ...] | None
    same_code: frozenset[tuple[Cell, str]] = frozenset()
    removed: frozenset[tuple[Cell, str]] = frozenset()
    changed: frozenset[str] | None = None
    equal: bool = False
    only_added: bool = False


@dataclass(frozen=True)
class Policy:
    """What the user makes of verdicts.

    Args:
        fail_on: verdicts that exit 1.
        require: devices on which nothing may be missing.
        metrics: judge these alone (`drift_rel_error` means every step's); all where empty. Time that is named here and
            was not measured in pairs is undecided; where it is not named, it only informs.
    """

    fail_on: frozenset[Verdict] = frozenset({Verdict.BROKEN, Verdict.DRIFTED, Verdict.REGRESSED})
    require: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Judgement:
    """A verdict and its reason; `detail` is what a record says in words.

    Args:
        ratio: head over base, where statistics estimated it.
        interval: its confidence interval.
    """

    verdict: Verdict
    reason: Reason
    detail: str | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a diff says of one cell and metric. A cell without values has one, under its kind's primary metric.

    Args:
        detail: what a record says of the reason, in words.
        base: base's value, in `unit`; the median over launches.
        head: head's value likewise.
        ratio: head over base; None where base is 0 or a value is absent.
        interval: the ratio's confidence interval, where statistics judged it.
        exit_code: what this finding alone makes of the diff: 0, 1 or 3.
        why: `metrics` (name -> [base, head]), `changed` (what differs in what ran), `reproduce` (a command), and
            `same_configuration` (a row for every configuration) where launches chose more than one.
    """

    cell: Cell
    kind: str
    metric: str
    unit: str
    rule: str
    verdict: Verdict
    reason: Reason
    detail: str | None = None
    base: float | None = None
    head: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    exit_code: int = 0
    why: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """The cell's device."""
        return self.cell.device


@dataclass(frozen=True)
class Mean:
    """Geometric mean of head over base for one metric on one device, over the `n` cells of `of` that are valid on both sides."""

    metric: str
    device: str
    rule: str
    n: int
    of: int
    ratio: float


@dataclass(frozen=True)
class Noise:
    """Times of cells whose binaries are equal: what moved there is the measurement. Ratios are head over base."""

    n: int
    mean: float
    lowest: float
    highest: float


class Suspicion(StrEnum):
    """What makes a run suspect as a whole. Closed."""

    ONE_SIDED = "one_sided"
    UNTOUCHED_MOVED = "untouched_moved"


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A run that is suspect on one device: no verdict of a cell, and no part of the exit code.

    Args:
        slower: cells whose time grew.
        faster: cells whose time fell.
        of: cells that were looked at: those that were called, or those that cannot have changed.
        kernels: of how many kernels the cells that moved are.
        detail: what was seen, in words.
        do: what to do next.
        reproduce: the command for it.
    """

    suspicion: Suspicion
    device: str
    slower: int
    faster: int
    of: int
    kernels: int
    detail: str
    do: str
    reproduce: str


@dataclass(frozen=True)
class Coverage:
    """How much of one kind on one device was compared.

    Args:
        compared: cells with a value, or a failure, on both sides.
        others: reason -> number of the other cells.
    """

    device: str
    kind: str
    cells: int
    compared: int
    others: Mapping[str, int]


@dataclass(frozen=True)
class Diff:
    """Every finding of a diff, the worst first, and what they add up to.

    Args:
        counts: findings of every verdict, zeros included.
        marks: what makes the run suspect; the exit code knows nothing of them.
        gpus: every GPU that either plan asks for -> whether head's run reached it.
        conclusion: why the exit code is what it is, a line each.
    """

    base: Side
    head: Side
    findings: tuple[Finding, ...]
    counts: Mapping[Verdict, int]
    coverage: tuple[Coverage, ...]
    means: tuple[Mean, ...]
    noise: Noise | None
    marks: tuple[Mark, ...]
    gpus: Mapping[str, bool]
    exit_code: int
    conclusion: tuple[str, ...]
