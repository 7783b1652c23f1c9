"""The summary of a submit: what came of it, what was not measured, what to do next."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from harness.records import Cell, Record
from harness.report.run import CONTRADICTED, LISTED, render_run

FLEET = ("a10g", "b200", "h200", "mi300x")


def record(cell: str, kind: str, status: str = "ok", reason: str | None = None, **columns: Any) -> Record:
    where = Cell.parse(cell)
    names = {"kernel": where.kernel, "variant": where.variant, "case": where.case, "dtype": where.dtype, "device": where.device}
    return Record(**names, kind=kind, metric=None, value=None, status=status, reason=reason, **columns)


def run_of(records: list[Record], exit_code: int, **changed: Any) -> dict[str, Any]:
    """run.json of a run that planned what the records answer."""
    run = {
        "run_id": "20260131T235959-1f2e3d",
        "ref": "worktree",
        "resolved": f"worktree on {'a' * 12}",
        "commit": "a" * 40,
        "dirty": False,
        "code_digest": "d" * 64,
        "matrix": "all",
        "expected": [{"cell": str(r.cell), "kind": r.kind, "limit": None} for r in records],
        "by_status": dict(sorted(Counter(r.status for r in records).items())),
        "required_missing": [],
        "against": None,
        "options": {"filters": {}, "require": [], "launches": 3},
        "exit_code": exit_code,
    }
    return run | changed


def cells(device: str, n: int) -> list[str]:
    return [f"norm/fused/M={m},dtype=bf16@{device}" for m in range(n)]


@pytest.fixture
def no_gpu() -> list[Record]:
    """What a laptop gives: everything compiled, everything right in the interpreter, no GPU there."""
    records = [record(cell, kind) for kind in ("correctness", "drift", "latency") for cell in cells("cpu", 3)]
    for device in FLEET:
        records += [record(cell, "static") for cell in cells(device, 6)]
        records += [
            record(cell, kind, "no_capacity", f"no unit of {device} is reachable")
            for kind in ("correctness", "latency")
            for cell in cells(device, 6)
        ]
    return records


@pytest.fixture
def troubled(no_gpu) -> list[Record]:
    """The same with failures, an invalid cell, one that was lost and one that does not fit."""
    reasons = {0: ("wrong", "not_close: y is off by 0.2"), 1: ("crash", "killed by SIGSEGV"), 2: ("invalid", "reference: not finite")}
    fresh = [record(cell, "correctness", *reasons[n]) for n, cell in enumerate(cells("cpu", 3))]
    rest = [r for r in no_gpu if (r.device, r.kind) != ("cpu", "correctness")]
    more = [record("norm/fused/M=9,dtype=bf16@cpu", "drift", "lost"), record("norm/fused/M=8,dtype=bf16@cpu", "drift", "skipped", "memory")]
    return [*fresh, *rest, *more]


def test_golden_of_a_machine_without_a_gpu(no_gpu, golden) -> None:
    golden("run_no_gpu.txt", render_run(run_of(no_gpu, 0), no_gpu) + "\n")


def test_golden_of_a_run_with_failures(troubled, golden) -> None:
    golden("run_failed.txt", render_run(run_of(troubled, 1, required_missing=["h200"]), troubled) + "\n")


def test_golden_of_a_run_that_passed_on_its_gpu(golden) -> None:
    records = [record(cell, kind) for kind in ("static", "correctness", "latency") for cell in cells("h200", 2)]
    golden("run_gpu.txt", render_run(run_of(records, 0), records) + "\n")


def test_the_commit_is_said_once(no_gpu) -> None:
    assert 1 == render_run(run_of(no_gpu, 0), no_gpu).partition("Next")[0].count("a" * 12)


BASE = {"ref": "main", "resolved": "merge base with main", "commit": "b" * 40, "tree": "7ee", "code_digest": "e" * 64}


def next_steps(records: list[Record], exit_code: int, store: str | None = None, **changed: Any) -> list[str]:
    text = render_run(run_of(records, exit_code, **changed), records, store)
    return [line.strip() for line in text.partition("\nNext\n")[2].partition("\n\n")[0].splitlines()]


def test_launches_that_were_repeated_are_counted_by_what_ended_the_first(no_gpu) -> None:
    ends = ["killed by SIGSEGV", "exit status 9: it printed nothing", "killed by SIGSEGV"]
    repeated = [{"launch": f"j-{n}-2", "reason": why} for n, why in enumerate(ends)]
    text = render_run(run_of(no_gpu, 0, repeated_launches=repeated), no_gpu)
    assert (
        "Units\n"
        "  2 launches were repeated: the process died or hung after its last cell (killed by SIGSEGV)\n"
        "  1 launch was repeated: the process died or hung after its last cell (exit status 9: it printed nothing)\n"
    ) in text


class TestNext:
    ID = "20260131T235959-1f2e3d"
    SHOWN = "see the figures of a cell: harness show norm/fused/M=0,dtype=bf16@h200"

    @pytest.fixture
    def good(self) -> list[Record]:
        return [record(cell, kind) for kind in ("correctness", "latency") for cell in (*cells("cpu", 1), *cells("h200", 1))]

    def test_a_pass_of_a_commit_may_be_accepted(self, good) -> None:
        assert [self.SHOWN, f"keep it as the baseline of {'a' * 12}: harness baseline accept {self.ID}"] == next_steps(good, 0)

    def test_a_pass_of_a_dirty_tree_is_compared_with_its_commit(self, good) -> None:
        compared = f"see what the changes do: harness diff {'a' * 12}..run:{self.ID}"
        assert [self.SHOWN, compared] == next_steps(good, 0, dirty=True)

    @pytest.mark.parametrize(
        ("changed", "narrowed"),
        [
            ({}, ""),
            ({"matrix": "smoke"}, " --matrix smoke"),
            ({"options": {"filters": {"kernels": ["norm"]}, "require": [], "launches": 6}}, " --matrix all --kernel norm"),
            (
                {"options": {"filters": {"kernels": ["n*", "add"]}, "require": []}, "matrix": "a.toml"},
                " --matrix a.toml --kernel 'n*' --kernel add",
            ),
            ({"options": {"filters": {"kernels": [], "kinds": ["latency"]}, "require": []}}, " --matrix all"),
        ],
        ids=["all", "another matrix", "a kernel", "kernels of another matrix", "a kind"],
    )
    @pytest.mark.parametrize("exit_code", [0, 1])
    def test_a_pair_is_compared_by_the_refs_it_was_asked_for(self, good, changed, narrowed, exit_code) -> None:
        steps = next_steps(good, exit_code, ref="pr", against=BASE, **changed)
        assert [f"see what the change does: harness diff main..pr{narrowed}"] == steps

    def test_a_pair_of_equal_code_is_not_compared(self, good) -> None:
        assert [] == next_steps(good, 0, ref="pr", against=BASE | {"code_digest": "d" * 64})

    def test_a_part_of_a_run_is_resumed_and_not_accepted(self, good) -> None:
        over = record(cells("h200", 2)[1], "latency", "cancelled", "budget: over")
        assert [f"run what was left out: harness submit --resume {self.ID}", self.SHOWN] == next_steps([*good, over], 0)

    def test_commands_name_the_store_that_was_given(self, good) -> None:
        over = record(cells("h200", 2)[1], "latency", "cancelled", "budget: over")
        assert all(step.endswith(" --store s3://b/runs") for step in next_steps([*good, over], 0, "s3://b/runs"))
        assert 2 == len(next_steps([*good, over], 0, "s3://b/runs"))

    def test_a_cell_is_measured_again_as_the_run_measured_it(self, good) -> None:
        bad = record(cells("cpu", 2)[1], "correctness", "wrong", "not_close: y is off by 0.2")
        ran = {"filters": {}, "require": [], "dispatcher": "ray", "address": "head:6379"}
        (step,) = next_steps([*good, bad], 1, "my runs", matrix="smoke", options=ran)
        assert step.startswith("run the first failure again: harness submit ")
        assert step.endswith(" --kind correctness --matrix smoke --dispatcher ray --address head:6379 --store 'my runs'")

    def test_the_list_of_all_failures_is_of_the_store_that_was_given(self) -> None:
        bad = [record(cell, "correctness", "wrong", f"not_close: y[{n}]") for n, cell in enumerate(cells("cpu", LISTED + 1))]
        assert f"and 1 more; `harness show {self.ID} --store runs` lists them all" in render_run(run_of(bad, 1), bad, "runs")

    def test_a_wrong_cost_model_is_mended_in_the_kernel_file(self, good) -> None:
        bad = [record(cell, "correctness", "invalid", "cost_model: 8 bytes are read, 4 said") for cell in cells("cpu", 3)[1:]]
        (step,) = next_steps([*good, *bad], 3)
        assert "mend `traffic` in the kernel file of norm, which its tensors contradict (cost_model): harness submit --ref worktree" in step
        assert "--case M=1,dtype=bf16 --device cpu --kind correctness" in step

    def test_a_cost_model_goes_by_the_name_that_records_have(self) -> None:
        from harness.measure.checks import Defect
        from harness.measure.clock.validity import Reason

        assert Defect.COST_MODEL == Reason.COST_MODEL
        assert set(CONTRADICTED) == {Defect.COST_MODEL, Defect.REFERENCE, Defect.INPUTS}

    def test_another_undecided_time_is_taken_again(self, good) -> None:
        bad = record(cells("h200", 2)[1], "latency", "invalid", "contended: another process")
        (step,) = next_steps([*good, bad], 3)
        assert f"take the first undecided time again: harness submit --ref {'a' * 40} --kernel norm" in step


def test_the_last_line_says_it_plainly(no_gpu) -> None:
    assert "0 of 4 GPUs measured" == render_run(run_of(no_gpu, 0), no_gpu).splitlines()[-1]


def test_compiling_for_a_gpu_is_not_measuring_it() -> None:
    records = [record(cell, "static") for cell in cells("h200", 2)]
    assert "0 of 1 GPU measured" == render_run(run_of(records, 0), records).splitlines()[-1]


def test_what_a_simulated_unit_skipped_was_not_measured() -> None:
    records = [record(cell, "static") for cell in cells("a10g", 2)]
    records += [record(cell, "correctness", "skipped", "simulated: no GPU is there") for cell in cells("a10g", 2)]
    text = render_run(run_of(records, 0), records)
    assert "a10g  static: 2 of 2 compiled\n" in text
    assert "a10g  simulated, 2 cells: correctness 2" in text
    assert "measure a10g: run the same command where one is" in text


def test_a_run_without_gpus_in_its_plan_says_nothing_of_them() -> None:
    records = [record(cell, "correctness") for cell in cells("cpu", 2)]
    assert "GPU" not in render_run(run_of(records, 0), records)


def test_a_planned_cell_without_a_record_is_lost(no_gpu) -> None:
    (gone, *rest) = no_gpu
    assert f"{gone.cell}  correctness  lost: the run has no record of it" in render_run(run_of(no_gpu, 3), rest)


def test_a_cell_that_is_undecided_by_no_record_of_its_own_is_listed_and_not_counted_as_good() -> None:
    records = [record(cell, "latency") for cell in cells("h200", 2)]
    doubted = [{"cell": str(records[0].cell), "kind": "latency", "reason": "not converged in 1 of 3 launches"}]
    text = render_run(run_of(records, 3, undecided=doubted), records)
    assert f"Undecided\n  {records[0].cell}  latency  undecided: not converged in 1 of 3 launches\n" in text
    assert "h200  latency: 1 of 2 timed" in text


def test_a_long_list_is_cut_and_counted() -> None:
    records = [record(cell, "correctness", "wrong", f"off by {n}") for n, cell in enumerate(cells("cpu", LISTED + 5))]
    text = render_run(run_of(records, 1), records)
    assert LISTED == text.count("  correctness  wrong")
    assert "and 5 more; `harness show 20260131T235959-1f2e3d` lists them all" in text


def test_cells_of_a_kernel_that_ended_alike_share_a_line() -> None:
    alike, other = cells("cpu", 4), cells("h200", 1)
    records = [record(cell, "correctness", "invalid", "reference: y is torch.bfloat16") for cell in [*alike, *other]]
    records.append(record(alike[0], "drift", "invalid", "reference: y is torch.bfloat16"))
    text = render_run(run_of(records, 3), records)
    assert f"  {alike[0]}  correctness  invalid: reference: y is torch.bfloat16 (and 4 cells more)\n" in text
    assert f"  {alike[0]}  drift  invalid: reference: y is torch.bfloat16\n" in text
    (step,) = [line for line in text.splitlines() if "mend" in line]
    assert "mend `reference` in the kernel file of norm, by which nothing can be judged (reference): harness submit --ref worktree" in step


def test_a_long_reason_is_cut_and_stays_on_one_line() -> None:
    records = [record(cells("cpu", 1)[0], "correctness", "crash", "Traceback\n" + "x" * 1000)]
    (line,) = [line for line in render_run(run_of(records, 1), records).splitlines() if "Traceback" in line]
    assert line.endswith("x...")


def test_a_stopped_run_says_how_to_go_on() -> None:
    records = [record(cells("cpu", 1)[0], "correctness", "cancelled", "the run was stopped")]
    text = render_run(run_of(records, 130), records)
    assert text.startswith("STOPPED (exit code 130)")
    assert "harness submit --resume 20260131T235959-1f2e3d" in text


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({}, ""),
        ({"dispatcher": "local", "address": None}, ""),
        ({"dispatcher": "ray", "address": None}, " --dispatcher ray"),
        ({"dispatcher": "ray", "address": "head:6379"}, " --dispatcher ray --address head:6379"),
    ],
    ids=["before it was kept", "local", "ray", "ray at an address"],
)
def test_a_stopped_run_goes_on_where_it_ran(options, where) -> None:
    records = [record(cells("cpu", 1)[0], "correctness", "cancelled", "the run was stopped")]
    text = render_run(run_of(records, 130, options=options), records)
    assert f"harness submit --resume 20260131T235959-1f2e3d{where}" in [line.rpartition(": ")[2] for line in text.splitlines()]


def test_what_a_budget_left_out_is_counted_by_kernel_and_kind_and_is_not_undecided() -> None:
    over = [record(cell, kind, "cancelled", "budget: over") for kind in ("correctness", "latency") for cell in cells("h200", 2)]
    over.append(record("add/fused/N=1,dtype=bf16@h200", "latency", "cancelled", "budget: over"))
    done = [record(cell, "correctness") for cell in cells("cpu", 1)]
    text = render_run(run_of([*done, *over], 0), [*done, *over])
    assert "Left out by the budget\n  add   1 cell: latency 1\n  norm  4 cells: correctness 2, latency 2\n" in text
    assert "run what was left out: harness submit --resume 20260131T235959-1f2e3d" in text
    assert "Undecided" not in text


def test_a_pass_of_a_run_that_a_budget_cut_is_a_pass_of_what_was_done() -> None:
    (good, over, absent) = cells("cpu", 1)[0], cells("cpu", 2)[1], cells("h200", 1)[0]
    records = [
        record(good, "correctness"),
        record(over, "correctness", "cancelled", "budget: over"),
        record(absent, "latency", "no_capacity"),
    ]
    lines = render_run(run_of(records, 0), records).splitlines()
    assert "PASS (exit code 0) of 1 of 3 cells, 1 left out by the budget: 1 cancelled, 1 no_capacity, 1 ok" == lines[0]
    assert ["Results", "  cpu  correctness: 1 of 1 right"] == lines[3:5]


def test_a_failure_of_a_run_that_a_budget_cut_says_what_was_left_out() -> None:
    (bad, over) = cells("cpu", 2)
    records = [record(bad, "correctness", "wrong"), record(over, "correctness", "cancelled", "budget: over")]
    assert render_run(run_of(records, 1), records).startswith(
        "FAIL (exit code 1): 2 cells, 1 left out by the budget: 1 cancelled, 1 wrong\n"
    )


def test_a_run_that_was_stopped_under_a_budget_names_what_was_stopped() -> None:
    (cell, over) = cells("cpu", 2)
    records = [record(cell, "correctness", "cancelled", "the run was stopped"), record(over, "correctness", "cancelled", "budget: over")]
    text = render_run(run_of(records, 130), records)
    assert f"Undecided\n  {cell}  correctness  cancelled: the run was stopped\n" in text
    assert "run what was cut short: harness submit --resume" in text


def test_a_required_device_that_the_budget_cut_is_named() -> None:
    records = [record(cell, "latency", "cancelled", "budget: over") for cell in cells("h200", 1)]
    assert "required and cut by the budget: h200;" in render_run(run_of(records, 3, required_left_out=["h200"]), records)


def test_the_base_arm_of_a_paired_run_is_not_heads() -> None:
    (cell,) = cells("cpu", 1)
    head, base = record(cell, "correctness"), record(cell, "correctness", "wrong", arm="base")
    assert "wrong" not in render_run(run_of([head], 0), [head, base])
