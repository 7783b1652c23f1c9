"""A workspace with stored runs, for the verbs that read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from harness.records import Record
from harness.store.runs import RunStore

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty workspace, and the current folder."""
    (tmp_path / "pyproject.toml").write_text("[tool.harness]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def put_run(workspace: Path) -> Callable[..., RunStore]:
    """`put_run(3, {"value": 2.0}, ..., exit_code=1)`: store the run `run3`, of 3 January, with these records."""

    def put(day: int, *records: dict[str, Any], **fields: Any) -> RunStore:
        run_id, when = f"run{day}", f"2026-01-{day:02}T12:00:00+00:00"
        good: dict[str, Any] = {
            "run_id": run_id,
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
            "samples": [12.0, 13.0],
            "status": "ok",
            "started_at": when,
            "environment": {"gpu_model": "NVIDIA H200", "driver": "570.1", "torch": "2.11.0", "triton": "3.6.0"},
        }
        found = [Record(**(good | columns)) for columns in records]
        counts = {status: sum(r.status == status for r in found) for status in sorted({r.status for r in found})}
        run = {
            "run_id": run_id,
            "created_at": when,
            "finished_at": when,
            "exit_code": 0,
            "ref": "main",
            "resolved": "main at 0123456789ab",
            "commit": COMMIT,
            "tree": "7ee" * 10,
            "dirty": False,
            "code_digest": "c0de" * 10,
            "matrix": "all",
            "options": {"filters": {"kernels": [], "devices": [], "kinds": []}, "require": [], "launches": 3},
            "declared": {r.kernel: {"variants": [r.variant], "cases": [r.case]} for r in found},
            "expected": [{"cell": str(cell), "kind": kind, "limit": None} for cell, kind in {(r.cell, r.kind): None for r in found}],
            "by_status": counts,
            "required_missing": [],
        }
        store = RunStore(workspace / ".harness" / "runs")
        store.write({key: value for key, value in (run | fields).items() if value is not None}, found)
        return store

    return put


@pytest.fixture
def say() -> Callable[..., str]:
    """`say(command, *arguments)`: what a verb prints; an error it raises is raised here."""

    def run(command: click.Command, *arguments: str) -> str:
        return CliRunner().invoke(command, list(arguments), catch_exceptions=False).stdout

    return run
