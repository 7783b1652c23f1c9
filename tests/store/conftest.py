"""Records and runs for the tests of the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.records import Record
from harness.store.runs import RunStore

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CREATED = "2026-01-31T12:00:00+00:00"
FINISHED = "2026-01-31T12:05:00+00:00"


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """`make_record(kernel="norm", ...)`: a good latency record of a clean commit, but for what is given."""

    def make(**columns: Any) -> Record:
        good: dict[str, Any] = {
            "run_id": "r1",
            "commit": COMMIT,
            "code_digest": "c0de" * 10,
            "kernel": "norm",
            "variant": "fused",
            "case": "M=4,dtype=bf16",
            "dtype": "bf16",
            "device": "h200",
            "kind": "latency",
            "metric": "latency_us",
            "unit_of_measure": "us",
            "value": 12.5,
            "samples": [12.25, 12.5, 13.0],
            "status": "ok",
            "started_at": "2026-01-31T12:01:00+00:00",
        }
        return Record(**(good | columns))

    return make


@pytest.fixture
def make_run() -> Callable[..., dict[str, Any]]:
    """`make_run(run_id="r2", ...)`: run.json of a run that passed, but for what is given; None leaves a key out where no null may stand."""

    def make(**fields: Any) -> dict[str, Any]:
        good: dict[str, Any] = {
            "run_id": "r1",
            "created_at": CREATED,
            "finished_at": FINISHED,
            "exit_code": 0,
            "ref": "main",
            "resolved": "main at 0123456789ab",
            "commit": COMMIT,
            "tree": "7ee" * 10,
            "dirty": False,
            "code_digest": "c0de" * 10,
            "jobs": "10b5" * 10,
            "matrix": "all",
            "against": None,
            "options": {"filters": {"kernels": [], "devices": [], "kinds": []}, "require": [], "launches": 3},
            "declared": {"norm": {"variants": ["fused"], "cases": ["M=4,dtype=bf16"]}},
            "expected": [{"cell": "norm/fused/M=4,dtype=bf16@h200", "kind": "latency", "limit": None}],
            "by_status": {"ok": 1},
            "required_missing": [],
        }
        return {key: value for key, value in (good | fields).items() if value is not None or key in ("commit", "against")}

    return make


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")
