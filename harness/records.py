"""The words that every stage shares: Cell, Status, Record. Data only; no I/O.

A record is one line of result in long form, so that a new metric is no schema change. A failed cell has a null
value and a status, never 0 or infinity.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

SCHEMA_VERSION = 1
OVER_BUDGET = "budget"
"""Code that opens the reason of a cell that was left out, `cancelled`, because its run's budget of time was over."""

HOST_CLOCK = "host_clock"
"""Code of times of which the device's clock and the host's said different things. In one launch the host stood still; where every launch
of an arm has it, it is what the code does."""
INCOMPLETE_BLOCK = "incomplete_block"
"""Code of a launch whose block was cut short: it is made again with the whole block, and counts no more then."""
MACHINES = frozenset({"throttled", "contended", "unit_changed", HOST_CLOCK, INCOMPLETE_BLOCK})
"""Codes of an invalid time that say nothing of the code under test, but for HOST_CLOCK in every launch. Closed. Not of them is
`not_closed`: a launch that dies at its end may do so by what the code left behind."""

HEAD, BASE = "head", "base"
"""Arms: what a run measured of its own code, by which it is judged, and of the code that it was paired against."""


class Status(StrEnum):
    """How a cell ended. Closed: a reason, where there is one, stands in the record's `reason`."""

    OK = "ok"
    WRONG = "wrong"
    INVALID = "invalid"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OOM = "oom"
    BUILD_FAILED = "build_failed"
    SKIPPED = "skipped"
    INFRA = "infra"
    NO_CAPACITY = "no_capacity"
    QUEUE_TIMEOUT = "queue_timeout"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def failed(self) -> bool:
        """The code under test is to blame: the run exits 1."""
        return self in (Status.WRONG, Status.CRASH, Status.TIMEOUT, Status.OOM, Status.BUILD_FAILED)

    @property
    def undecided(self) -> bool:
        """Nobody knows: the run exits 3."""
        return self in (Status.INVALID, Status.INFRA, Status.QUEUE_TIMEOUT, Status.REFUSED, Status.LOST)

    @property
    def speaks(self) -> bool:
        """It says something of the code under test."""
        return not self.resumable and not self.undecided

    @property
    def resumable(self) -> bool:
        """`--resume` runs the cell again."""
        return self in (Status.INFRA, Status.NO_CAPACITY, Status.QUEUE_TIMEOUT, Status.CANCELLED, Status.LOST)


def is_simulated(status: str, reason: str | None) -> bool:
    """Whether a simulated unit answered: nothing was measured, and no unit was there."""
    return status == Status.SKIPPED and (reason or "").startswith("simulated")


def is_left_out(status: str, reason: str | None) -> bool:
    """Whether a cell ended so because its run's budget of time was over before it."""
    return status == Status.CANCELLED and (reason or "").startswith(OVER_BUDGET)


@dataclass(frozen=True, order=True)
class Cell:
    """One variant of one kernel on one case and device, written `kernel/variant/M=64,N=5120,dtype=bf16@device`."""

    kernel: str
    variant: str
    case: str
    device: str

    def __str__(self) -> str:
        return f"{self.kernel}/{self.variant}/{self.case}@{self.device}"

    @property
    def dtype(self) -> str:
        """The case's dtype: the last axis of every key."""
        return self.case.rpartition("dtype=")[2]

    @classmethod
    def parse(cls, text: str) -> Cell:
        """Read a cell back.

        Raises:
            ValueError: not of the form kernel/variant/case@device.
        """
        match = re.fullmatch(r"([^/@]+)/([^/@]+)/([^/@]+)@([^/@]+)", text)
        if match is None:
            raise ValueError(f"{text!r} is no cell: write kernel/variant/case@device")
        return cls(*match.groups())


@dataclass(frozen=True)
class Expected:
    """One cell that a plan asks one kind of.

    Args:
        limit: the error tolerance of the cell under this kind, the loosest of its tensors'; None where errors are
            not measured.
    """

    cell: Cell
    kind: str
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measured value, or the reason why there is none. Columns and order are those of the Parquet files.

    `binary_hash`, `grid` and `config` hold one entry for every kernel launch of the cell, in launch order.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str = ""
    job_id: str = ""
    attempt: int = 0
    seq: int = 0
    lease_id: str | None = None
    arm: str = HEAD
    block: int | None = None
    position: int | None = None
    launch: str | None = None
    commit: str | None = None
    tree: str | None = None
    dirty: bool = False
    code_digest: str = ""
    launcher_digest: str | None = None
    kernel: str
    variant: str
    case: str
    dtype: str
    device: str
    unit: str | None = None
    node: str | None = None
    kind: str
    metric: str | None
    unit_of_measure: str | None = None
    better: str | None = None
    value: float | None
    samples: list[float] | None = None
    converged: bool | None = None
    status: str
    reason: str | None = None
    method: str | None = None
    cache: str | None = None
    launch_mode: str | None = None
    clock: str | None = None
    data: str | None = None
    data_hash: str | None = None
    binary_hash: list[str] | None = None
    grid: list[str] | None = None
    config: list[str] | None = None
    compiles_in_lease: int | None = None
    sandbox: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    started_at: str | None = None
    duration: float | None = None

    def __post_init__(self) -> None:
        Status(self.status)
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"record {self.cell} {self.metric}: value {self.value} is not finite; store a status instead")

    @property
    def simulated(self) -> bool:
        """As `is_simulated`."""
        return is_simulated(self.status, self.reason)

    @property
    def reason_code(self) -> str:
        """The code that opens the reason; empty where there is none."""
        return (self.reason or "").partition(":")[0]

    @property
    def refused_for_code(self) -> bool:
        """Whether it is invalid for what the code under test does, and not for what the machine did meanwhile."""
        return self.status == Status.INVALID and self.reason_code not in MACHINES

    @cached_property
    def cell(self) -> Cell:
        """The cell the record is about."""
        return Cell(self.kernel, self.variant, self.case, self.device)

    def to_json(self) -> dict[str, Any]:
        """The record as plain data, every column present."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def of_row(cls, values: Iterable[Any]) -> Record:
        """The record with these values of `COLUMNS`, all of them; a third of the time that the constructor takes.

        Raises:
            ValueError: an unknown status, or a value that is not finite.
        """
        record = object.__new__(cls)
        record.__dict__.update(zip(COLUMNS, values, strict=True))
        record.__post_init__()
        return record

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        """Read a record back.

        Raises:
            TypeError: a column is missing or unknown.
            ValueError: an unknown status, or a value that is not finite.
        """
        return cls(**data)


COLUMNS = tuple(f.name for f in dataclasses.fields(Record))
EVIDENCE = ("ring", "nodes", "floors", "tick", "canaries", "doubled", "telemetry")
ENVIRONMENT = (
    "id",
    "gpu_model",
    "memory_bytes",
    "partition",
    "driver",
    "runtime",
    "torch",
    "triton",
    "compiler",
    "python",
    "lock_digest",
    "harness",
)


def resume_command(run: Mapping[str, Any]) -> str:
    """The command that goes on with a run where it ran.

    Args:
        run: its run.json.
    """
    return f"harness submit --resume {run['run_id']}{dispatcher_option(run)}"


def dispatcher_option(run: Mapping[str, Any]) -> str:
    """` --dispatcher NAME --address URL`, as far as a run was given them: where its cells can be measured again."""
    options = run["options"]
    where = {f"--{name}": options.get(name) for name in ("dispatcher", "address") if options.get("dispatcher", "local") != "local"}
    return "".join(f" {name} {value}" for name, value in where.items() if value)
