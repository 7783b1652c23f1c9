"""Which results may meet: the fields that must be equal, by rule, and the proof by equal binaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from harness.judge.model import INTERPRETER, Judgement, Reason, Verdict
from harness.metrics import Rule
from harness.records import Record


@dataclass(frozen=True)
class Field:
    """One field that must be equal; `needed`: what is unknown on both sides is not equal."""

    reason: Reason
    of: Callable[[Record], Any]
    needed: bool = False


def engine(method: str | None) -> str | None:
    """The engine's part of a method: `correctness/1+0f3a` without the digest of the job file."""
    return method.partition("+")[0] if method is not None else None


def stack(record: Record) -> tuple[Any, Any]:
    """The compiler stack: versions of Triton and of the back-end compiler."""
    return record.environment.get("triton"), record.environment.get("compiler")


def runtime(record: Record) -> tuple[Any, Any]:
    """What runs beside the kernels' own binaries: torch, and the digest of all installed packages."""
    return record.environment.get("torch"), record.environment.get("lock_digest")


_SOFTWARE = ("torch", "triton", "harness")
_UNIT = ("lock_digest", "gpu_model", "partition", "driver", "runtime")


def surroundings(record: Record, *, compiled: bool) -> tuple[Any, ...] | None:
    """What a result rests on beside the code, in the place of the record; None where any of it is unknown.

    The interpreter's answers are those of any host, and what is compiled is the compiler's: they rest on no unit, and not on all that is
    installed, of which no two machines have the same.

    Args:
        compiled: the result is only compiled there, and not run.
    """
    interpreted = record.device == INTERPRETER
    names = (*_SOFTWARE, *(() if interpreted else ("compiler",)), *(() if interpreted or compiled else _UNIT))
    values = [record.environment.get(name) for name in names]
    return None if None in values else (record.device, *values)


_MODEL = Field(Reason.MODEL, lambda r: r.environment.get("gpu_model"), needed=True)
_PARTITION = Field(Reason.PARTITION, lambda r: r.environment.get("partition"))
_METHOD = Field(Reason.METHOD, lambda r: r.method, needed=True)
_ENGINE = Field(Reason.METHOD, lambda r: engine(r.method), needed=True)
_DATA = Field(Reason.DATA, lambda r: r.data)
_DATA_HASH = Field(Reason.DATA_HASH, lambda r: r.data_hash)
_TRITON = Field(Reason.TRITON, lambda r: r.environment.get("triton"), needed=True)
_COMPILER = Field(Reason.COMPILER, lambda r: r.environment.get("compiler"), needed=True)
_UNIT_OF_MEASURE = Field(Reason.UNIT_OF_MEASURE, lambda r: r.unit_of_measure)

# What a compiler reports needs no method of measuring; where one is named, it must be one.
_COMPILED_FIELDS = (replace(_ENGINE, needed=False), _TRITON, _COMPILER, _DATA, _UNIT_OF_MEASURE)
_FIELDS: dict[Rule, tuple[Field, ...]] = {
    Rule.TIME: (_MODEL, _PARTITION, _METHOD, _DATA, _UNIT_OF_MEASURE),
    # The inputs of correctness and drift are bit-equal everywhere; the errors of other inputs are other errors.
    Rule.ERROR: (_MODEL, _ENGINE, _DATA, _DATA_HASH, _UNIT_OF_MEASURE),
    Rule.GROWTH: _COMPILED_FIELDS,
    Rule.ANY_GROWTH: _COMPILED_FIELDS,
}


def judge_comparable(rule: Rule, base: Iterable[Record], head: Iterable[Record]) -> Judgement | None:
    """INCOMPARABLE naming the first field that differs; None where the records of one metric may be compared.

    Every launch of a side must agree too.
    """
    base, head = tuple(base), tuple(head)
    for field in _FIELDS[rule]:
        if field is _MODEL and head[0].device == INTERPRETER:
            continue
        before, after = {field.of(r) for r in base}, {field.of(r) for r in head}
        if before != after or len(after) > 1 or (field.needed and None in after):
            return Judgement(Verdict.INCOMPARABLE, field.reason, f"base {_named(before)}, head {_named(after)}")
    return None


def same_binary(base: Record, head: Record) -> bool:
    """Whether every kernel launch of the cell runs an equal binary; a cell that launches none proves nothing."""
    return bool(base.binary_hash) and base.binary_hash == head.binary_hash


def same_launches(base: Record, head: Record) -> bool:
    """Whether binaries, grids, configurations and launcher code are equal: device time cannot differ then."""
    return (
        same_binary(base, head)
        and (base.grid, base.config, base.launcher_digest) == (head.grid, head.config, head.launcher_digest)
        and None not in (base.grid, base.config, base.launcher_digest)
    )


def _named(values: set[Any]) -> str:
    return " and ".join(sorted("unknown" if v is None else str(v) for v in values))
