"""What is known of one cell: the newest answer to each kind, from runs and baselines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from harness.errors import UnknownNameError
from harness.records import Cell, Record
from harness.store.baselines import accept
from harness.store.cells import Line, lines, newest_records
from harness.store.runs import RunStore

Make = Callable[..., Record]
Put = Callable[..., None]
CELL = Cell("norm", "fused", "M=4,dtype=bf16", "h200")


@pytest.fixture
def put(store: RunStore, make_record: Make, make_run: Callable[..., dict[str, Any]]) -> Put:
    """`put(3, {"value": 2.0}, ...)`: store the run of day 3 with these records."""

    def write(day: int, *records: dict[str, Any]) -> None:
        when = f"2026-01-{day:02}T00:00:00+00:00"
        store.write(make_run(run_id=f"r{day}", created_at=when), [make_record(run_id=f"r{day}", started_at=when, **r) for r in records])

    return write


def found(store: RunStore, tmp_path: Path) -> list[tuple[str, str, str, str]]:
    newest = newest_records(store, tmp_path / "baselines", CELL)
    return [(one.source, one.record.run_id, one.record.kind, one.record.status) for one in newest]


def test_each_kind_is_from_the_newest_run_that_has_it(store: RunStore, put: Put, tmp_path: Path) -> None:
    put(1, {"kind": "latency"}, {"kind": "static"})
    put(2, {"kind": "latency"}, {"kind": "latency", "launch": "2"})
    put(3, {"kernel": "scan"})
    assert [("run", "r2", "latency", "ok")] * 2 + [("run", "r1", "static", "ok")] == found(store, tmp_path)


def test_a_new_answer_replaces_an_old_failure_of_no_metric(store: RunStore, put: Put, tmp_path: Path) -> None:
    put(1, {"metric": None, "value": None, "status": "crash"})
    put(2, {})
    assert [("run", "r2", "latency", "ok")] == found(store, tmp_path)


def test_no_capacity_hides_no_older_value(store: RunStore, put: Put, tmp_path: Path) -> None:
    absent = {"metric": None, "value": None, "status": "no_capacity"}
    put(1, {})
    put(2, absent, absent | {"kind": "drift"})
    assert [("run", "r2", "drift", "no_capacity"), ("run", "r1", "latency", "ok")] == found(store, tmp_path)


def test_baselines_stand_in_for_runs_that_are_gone(store: RunStore, put: Put, tmp_path: Path) -> None:
    put(1, {})
    put(2, {})
    accept(store, "r1", tmp_path / "baselines")
    accept(store, "r2", tmp_path / "baselines")
    assert [("run", "r2", "latency", "ok")] == found(store, tmp_path)
    rmtree(Path(store.folder.root) / "r2")
    assert [("baseline", "r2", "latency", "ok")] == found(store, tmp_path)


def test_an_unknown_cell_names_the_nearest(store: RunStore, put: Put, tmp_path: Path) -> None:
    put(1, {"case": "M=8,dtype=bf16"})
    with pytest.raises(UnknownNameError, match=r"among 1 cells") as caught:
        found(store, tmp_path)
    assert caught.value.do == "the nearest are norm/fused/M=8,dtype=bf16@h200"


def test_launches_about_zero_have_no_spread(store: RunStore, put: Put, tmp_path: Path) -> None:
    put(1, *({"value": 0.0, "launch": str(n)} for n in range(2)))
    assert [None] == [line.spread_percent for line in lines(newest_records(store, tmp_path / "baselines", CELL))]


def test_the_nearest_have_most_parts_in_common(store: RunStore, put: Put, tmp_path: Path) -> None:
    """However like another kernel's name is: of a cell with one part mistyped the other three are right."""
    put(1, {"case": "M=400000,N=12345,dtype=bf16"}, {"kernel": "norn", "variant": "fuse"}, {"kernel": "scan", "device": "cpu"})
    with pytest.raises(UnknownNameError, match=r"among 3 cells") as caught:
        newest_records(store, tmp_path / "baselines", Cell("norm", "fused", "M=400000,N=1234,dtype=bf16", "h200"))
    assert caught.value.do == "the nearest are norm/fused/M=400000,N=12345,dtype=bf16@h200"


def test_a_line_is_the_median_over_launches(store: RunStore, put: Put, tmp_path: Path) -> None:
    how = [{"converged": True, "method": "ring/1"}, {"converged": False, "method": "ring/1x4"}, {"converged": True, "method": "ring/1"}]
    values = [{"value": value, "launch": str(value), **of} for value, of in zip((3.0, 1.5, 9.0), how, strict=True)]
    put(1, *values, {"value": 2.5, "arm": "base"}, {"value": None, "status": "invalid", "reason": "contended"})
    common = {"kind": "latency", "metric": "latency_us", "unit_of_measure": "us", "source": "run", "run_id": "r1"}
    expected = [
        Line(arm="base", value=2.5, launches=1, status="ok", reason=None, **common),
        Line(
            arm="head",
            value=3.0,
            launches=3,
            status="ok",
            reason=None,
            spread_percent=250.0,
            converged=False,
            methods=("ring/1", "ring/1x4"),
            **common,
        ),
        Line(arm="head", value=None, launches=1, status="invalid", reason="contended", **common),
    ]
    assert expected == lines(newest_records(store, tmp_path / "baselines", CELL))
