"""A diff with something of everything, and the goldens it must print.

`UPDATE_GOLDENS=1 pytest tests/report` writes tests/expected/ anew; read the change before you commit it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import metrics
from harness.judge.diff import judge
from harness.judge.model import Diff, Policy, Side
from harness.plan.jobs import ABBA
from harness.records import Cell, Expected, Record

EXPECTED = Path(__file__).parent.parent / "expected"
STACK = {"torch": "2.13.0", "lock_digest": "5e1f", "triton": "3.7.1", "compiler": "ptxas 12.9"}
WARPS_4, WARPS_8 = "num_warps=4", "num_warps=8"
FLEET = ("a10g", "b200", "h200", "mi300x")


@pytest.fixture(scope="session")
def golden() -> Callable[[str, str], None]:
    """Compares a text with a file of tests/expected/."""

    def compare(name: str, text: str) -> None:
        file = EXPECTED / name
        if os.environ.get("UPDATE_GOLDENS"):
            file.write_text(text, encoding="utf-8")
        assert file.read_text(encoding="utf-8") == text

    return compare


def make_record(cell: str, kind: str, value: float | None, metric: str | None, **columns: Any) -> Record:
    where = Cell.parse(cell)
    names = {"kernel": where.kernel, "variant": where.variant, "case": where.case, "dtype": where.dtype, "device": where.device}
    common: dict[str, Any] = {
        "status": "ok",
        "method": f"{kind}/1+0123456789ab",
        "environment": STACK,
        "unit_of_measure": metrics.metric(metric).unit if metric else None,
    }
    return Record(**{**common, **columns}, **names, kind=kind, metric=metric, value=value)


def statics(kernel: str, case: str, device: str, registers: float, spills: float, build: str) -> list[Record]:
    columns = {
        "binary_hash": [build],
        "grid": ["64"],
        "config": [f"{{'num_warps': {4 if build == 'old' else 8}}}"],
        "launcher_digest": build,
    }
    values = {"registers": registers, "spill_bytes": spills, "shared_bytes": 2048.0}
    return [make_record(f"{kernel}/fused/{case}@{device}", "static", value, name, **columns) for name, value in values.items()]


def errors(cell: str, error: float, data_hash: str = "d0") -> list[Record]:
    return [make_record(cell, "correctness", error, "rel_l2_error", data="uniform[-1,1]/1", data_hash=data_hash, unit="cpu:0")]


def make_side(ref: str, commit: str, records: list[Record], extra: tuple[tuple[str, str], ...] = (), **columns: Any) -> Side:
    keys = dict.fromkeys([*((r.cell, r.kind) for r in records), *((Cell.parse(cell), kind) for cell, kind in extra)])
    expected = tuple(Expected(cell, kind, 0.01 if kind in ("correctness", "drift") else None) for cell, kind in keys)
    return Side(ref=ref, commit=commit * 40, code_digest=commit * 64, records=tuple(records), expected=expected, **columns)


def sample_sides() -> tuple[Side, Side]:
    """Every GPU of the fleet compiled for and none reached, beside the interpreter."""
    before: list[Record] = []
    after: list[Record] = []
    for device in FLEET:
        for m in (1, 64):
            case = f"M={m},N=512,dtype=bf16"
            before += statics("norm", case, device, 32.0, 0.0, "old")
            after += statics("norm", case, device, 64.0 if m == 1 else 32.0, 0.0, "new" if m == 1 else "old")
        before += statics("step", "B=1,dtype=fp32", device, 128.0, 0.0, "old")
        after += statics("step", "B=1,dtype=fp32", device, 96.0, 8.0, "new") if device == "h200" else before[-3:]
        absent = f"norm/fused/M=64,N=512,dtype=bf16@{device}"
        before += errors(absent, 0.002) if device == "h200" else []
        after += [make_record(absent, kind, None, None, status="no_capacity", reason="no unit") for kind in ("correctness", "latency")]
    cpu = {m: f"norm/fused/M={m},N=512,dtype=bf16@cpu" for m in (1, 3, 5, 7, 64)}
    before += errors(cpu[1], 0.001) + errors(cpu[3], 0.001) + errors(cpu[5], 0.001) + errors(cpu[64], 0.003)
    after += errors(cpu[1], 0.0032) + errors(cpu[5], 0.001, "d1") + errors(cpu[7], 0.001) + errors(cpu[64], 0.001)
    after += [make_record(cpu[3], "correctness", None, None, status="crash", reason="killed by SIGSEGV\nin | `norm`", unit="cpu:0")]
    before += [make_record(cpu[1], "latency", 900.0, "interpreter_us")]
    after += [make_record(cpu[1], "latency", 950.0, "interpreter_us")]
    gone = "norm/chain/M=1,N=512,dtype=bf16@cpu"
    before += errors(gone, 0.001)
    silent = ("norm/chain/M=3,N=512,dtype=bf16@cpu", "correctness")
    return make_side("main", "a", before, (silent,), distance=2), make_side("pr", "b", after, (silent,), dirty=True)


@pytest.fixture(scope="session")
def sample() -> Diff:
    return judge(*sample_sides())


@pytest.fixture(scope="session")
def clean() -> Diff:
    """Nothing changed, and no device but the interpreter was asked for."""
    records = errors("norm/fused/M=1,N=512,dtype=bf16@cpu", 0.001)
    return judge(make_side("main", "a", records), make_side("pr", "b", records))


@pytest.fixture(scope="session")
def nothing() -> Diff:
    return judge(make_side("main", "a", []), make_side("pr", "b", []), Policy(require=frozenset({"h200"})))


def paired(cell: str, ratio: float, base: tuple[str, ...], head: tuple[str, ...], *, rebuilt: bool) -> tuple[list[Record], list[Record]]:
    """Base's and head's times of ABBA blocks in one lease, from the configuration that each of their six launches chose."""
    sides: dict[str, list[Record]] = {"base": [], "head": []}
    for position in range(12):
        arm = ABBA[position % 4]
        chosen = (base if arm == "base" else head)[position // 2]
        us = (20.0 if chosen == WARPS_4 else 30.0) * (ratio if arm == "head" else 1.0)
        place = {"arm": arm, "block": position // 4, "position": position, "launch": f"l{position}", "lease_id": "lease", "run_id": "r1"}
        binary = f"{chosen} of {arm if rebuilt else 'both'}"
        build = {"binary_hash": [binary], "grid": ["64"], "config": [chosen], "launcher_digest": "l"}
        known = {"environment": STACK | {"gpu_model": "NVIDIA H200"}, "unit": "GPU-1", "data": "uniform[-1,1]/1", "converged": True}
        sides[arm].append(make_record(cell, "latency", us, "latency_us", **known, **place, **build))
    return sides["base"], sides["head"]


@pytest.fixture(scope="session")
def marked() -> Diff:
    """A paired run on which all that was called is slower, cells that cannot have changed are too, and choices differ."""
    usual, other = (WARPS_4,) * 6, (WARPS_8,) * 6
    cells = [paired(f"k{n}/fused/M=1,dtype=bf16@h200", 1.02, usual, usual, rebuilt=True) for n in range(8)]
    cells += [paired(f"still/fused/M={m},dtype=bf16@h200", 1.02, usual, usual, rebuilt=False) for m in (1, 2, 3)]
    cells += [paired("tuned/fused/M=1,dtype=bf16@h200", 1.0, usual, other, rebuilt=False)]
    cells += [paired("torn/fused/M=1,dtype=bf16@h200", 1.0, usual, (*usual[:4], *other[:2]), rebuilt=False)]
    base, head = ([r for one in cells for r in one[n]] for n in (0, 1))
    return judge(make_side("main", "a", base), make_side("pr", "b", head))


@pytest.fixture(scope="session")
def document() -> dict[str, Any]:
    """The sample's JSON as it lies on disk: what text and Markdown are rendered from."""
    return json.loads((EXPECTED / "diff.json").read_text(encoding="utf-8"))
