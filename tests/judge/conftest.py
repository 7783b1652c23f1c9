"""Short ways to write a record and a side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness import metrics
from harness.judge.model import Side
from harness.records import Cell, Expected, Record

GPU = {"gpu_model": "NVIDIA H200", "partition": None, "triton": "3.7.1", "compiler": "ptxas 12.9", "torch": "2.13.0", "lock_digest": "5e1f"}


def make_record(cell: str, kind: str, value: float | None = None, *, metric: str | None = "primary", **columns: Any) -> Record:
    """A record of the kind's primary metric on one H200 and one compiler stack; `columns` change what they name."""
    where = Cell.parse(cell)
    name = metrics.PRIMARY[kind] if metric == "primary" else metric
    common: dict[str, Any] = {
        "status": "ok",
        "method": f"{kind}/1+0123456789ab",
        "data": None if kind == "static" else "uniform[-1,1]/1",
        "data_hash": None if kind in ("static", "latency") else "d0",
        "unit": "GPU-1",
        "unit_of_measure": metrics.metric(name).unit if name else None,
    }
    environment = GPU | columns.pop("environment", {})
    names = {"kernel": where.kernel, "variant": where.variant, "case": where.case, "dtype": where.dtype, "device": where.device}
    return Record(**{**common, **columns}, **names, kind=kind, metric=name, value=value, environment=environment)


def make_side(ref: str, *records: Record, expect: tuple[tuple[str, str], ...] | None = (), limit: float | None = 0.01) -> Side:
    """A side whose plan asks for its records' cells and for those of `expect`; without a plan where that is None."""
    planned = None
    if expect is not None:
        keys = dict.fromkeys([*((r.cell, r.kind) for r in records), *((Cell.parse(cell), kind) for cell, kind in expect)])
        planned = tuple(Expected(cell, kind, limit) for cell, kind in keys)
    return Side(ref=ref, commit="c" * 40, code_digest=f"digest of {ref}", records=records, expected=planned)


@pytest.fixture(scope="session")
def record() -> Callable[..., Record]:
    return make_record


@pytest.fixture(scope="session")
def side() -> Callable[..., Side]:
    return make_side
