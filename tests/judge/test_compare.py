"""What may be compared with what: INCOMPARABLE names the first field that differs."""

from __future__ import annotations

import pytest

from harness.judge.compare import surroundings
from harness.judge.diff import judge
from harness.judge.index import COMPILED
from harness.judge.model import Verdict
from harness.records import ENVIRONMENT

GPU = "toy/fused/M=1,dtype=bf16@h200"
CPU = "toy/fused/M=1,dtype=bf16@cpu"


def reason(record, side, cell: str, kind: str, changed: dict, both: dict | None = None) -> str | None:
    """The reason of INCOMPARABLE where head's record differs by `changed`; None where the two may meet."""
    base = record(cell, kind, 0.001, **(both or {}))
    head = record(cell, kind, 0.001, **{**(both or {}), **changed})
    (finding,) = judge(side("base", base), side("head", head)).findings
    return str(finding.reason) if finding.verdict is Verdict.INCOMPARABLE else None


ENVIRONMENTS = {
    "model": {"gpu_model": "NVIDIA B200"},
    "partition": {"partition": "1g.18gb"},
    "triton": {"triton": "3.6.0"},
    "compiler": {"compiler": "ptxas 12.8"},
    "driver": {"driver": "580.1"},
    "torch": {"torch": "2.11.0"},
}


@pytest.mark.parametrize("changed", ENVIRONMENTS)
@pytest.mark.parametrize(
    ("cell", "kind", "fields"),
    [
        pytest.param(GPU, "static", {"triton", "compiler"}, id="static needs one compiler stack, on any host"),
        pytest.param(GPU, "correctness", {"model"}, id="correctness on a GPU needs one model"),
        pytest.param(GPU, "drift", {"model"}, id="drift on a GPU needs one model"),
        pytest.param(CPU, "correctness", set(), id="correctness in the interpreter runs on any host"),
        pytest.param(CPU, "drift", set(), id="drift in the interpreter runs on any host"),
        pytest.param(GPU, "latency", {"model", "partition"}, id="time needs one model and partition"),
    ],
)
def test_environment(record, side, cell, kind, fields, changed) -> None:
    metric = {"metric": "drift_rel_error@1"} if kind == "drift" else {}
    found = reason(record, side, cell, kind, {"environment": ENVIRONMENTS[changed]}, metric)
    assert (changed if changed in fields else None) == found


@pytest.mark.parametrize("kind", ["static", "correctness", "latency"])
def test_the_engines_method_must_be_equal(record, side, kind) -> None:
    assert "method" == reason(record, side, GPU, kind, {"method": f"{kind}/2+0123456789ab"})


@pytest.mark.parametrize(("kind", "expected"), [("static", None), ("correctness", None), ("latency", "method")])
def test_another_job_file_is_another_method_for_time_alone(record, side, kind, expected) -> None:
    assert expected == reason(record, side, GPU, kind, {"method": f"{kind}/1+ffffffffffff"})


@pytest.mark.parametrize("kind", ["correctness", "latency"])
def test_data_must_be_equal(record, side, kind) -> None:
    assert "data" == reason(record, side, GPU, kind, {"data": "uniform[-1,1]/2"})


def test_errors_of_other_inputs_are_other_errors(record, side) -> None:
    assert "data_hash" == reason(record, side, CPU, "correctness", {"data_hash": "d1"})


def test_times_of_fresh_inputs_may_meet(record, side) -> None:
    assert reason(record, side, GPU, "latency", {"data_hash": "d1"}) is None


def test_values_in_other_units_do_not_meet(record, side) -> None:
    assert "unit_of_measure" == reason(record, side, GPU, "latency", {"unit_of_measure": "ms"})


@pytest.mark.parametrize(
    ("kind", "unknown", "expected"),
    [
        ("latency", {"environment": {"gpu_model": None}}, "model"),
        ("correctness", {"method": None}, "method"),
        ("static", {"environment": {"triton": None}}, "triton"),
    ],
)
def test_what_is_unknown_on_both_sides_is_not_equal(record, side, kind, unknown, expected) -> None:
    assert expected == reason(record, side, GPU, kind, {}, unknown)


def test_launches_of_one_side_must_agree(record, side) -> None:
    mixed = [record(GPU, "latency", 9.0, launch=m, method=m) for m in ("events/1", "cupti/1")]
    (finding,) = judge(side("base", *mixed), side("head", *mixed)).findings
    assert ("method", "base cupti/1 and events/1, head cupti/1 and events/1") == (finding.reason, finding.detail)


def test_both_values_are_named(record, side) -> None:
    sides = [side(ref, record(GPU, "latency", 9.0, method=m)) for ref, m in (("base", "cupti/1"), ("head", "events/1"))]
    (finding,) = judge(*sides).findings
    assert ("base cupti/1, head events/1", 3) == (finding.detail, finding.exit_code)


SOFTWARE = {"torch": "2.13.0", "triton": "3.7.1", "harness": "0.1.0"}
COMPILER = SOFTWARE | {"compiler": "ptxas 12.9"}
UNIT = COMPILER | {"lock_digest": "5e1f", "gpu_model": "NVIDIA H200", "partition": "none", "driver": "570.1", "runtime": "cuda 12.9"}
NEEDED = [("correctness", "cpu", SOFTWARE), ("static", "h200", COMPILER), ("drift", "h200", UNIT), ("latency", "h200", UNIT)]


class TestWhatAResultRestsOn:
    @staticmethod
    def of(record, kind: str, device: str, environment: dict[str, str | None], *, compiled: bool | None = None):
        one = record(f"toy/fused/M=1,dtype=bf16@{device}", kind, 1.0, environment=dict.fromkeys(ENVIRONMENT) | environment)
        return surroundings(one, compiled=kind in COMPILED if compiled is None else compiled)

    @pytest.mark.parametrize(("kind", "device", "needed"), NEEDED)
    def test_is_equal_without_what_the_kind_does_not_have(self, record, kind, device, needed) -> None:
        assert self.of(record, kind, device, needed) == self.of(record, kind, device, needed) is not None

    @pytest.mark.parametrize(("kind", "device", "needed", "field"), [(*kind, field) for kind in NEEDED for field in kind[2]])
    def test_differs_with_every_part_and_is_unknown_without_it(self, record, kind, device, needed, field) -> None:
        assert self.of(record, kind, device, needed) != self.of(record, kind, device, needed | {field: "another"})
        assert self.of(record, kind, device, needed | {field: None}) is None

    @pytest.mark.parametrize(("kind", "device", "needed"), NEEDED[:2])
    def test_is_not_all_that_is_installed_where_no_unit_runs_it(self, record, kind, device, needed) -> None:
        assert self.of(record, kind, device, UNIT) == self.of(record, kind, device, UNIT | {"lock_digest": "0f3a"})

    def test_is_of_one_device_and_equal_for_all_kinds_that_run_on_it(self, record) -> None:
        assert self.of(record, "drift", "h200", UNIT) == self.of(record, "latency", "h200", UNIT)
        assert self.of(record, "drift", "h200", UNIT) != self.of(record, "drift", "h100", UNIT)

    def test_is_known_of_what_would_be_compiled_where_something_ran_and_not_the_other_way_round(self, record) -> None:
        assert self.of(record, "static", "h200", COMPILER) == self.of(record, "latency", "h200", UNIT, compiled=True)
        assert self.of(record, "static", "h200", COMPILER, compiled=False) is None
