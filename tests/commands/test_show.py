"""`harness show`: a cell's newest records, or what became of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.commands.show import command
from harness.errors import UnknownNameError
from harness.store.baselines import accept
from harness.store.runs import RunStore

Say = Callable[..., str]
Put = Callable[..., RunStore]
CELL = "norm/fused/M=4,dtype=bf16@h200"
STATIC = {"kind": "static", "metric": "registers", "unit_of_measure": "1", "value": 32.0, "samples": None, "environment": {}}


class TestCell:
    def test_text_is_a_table_and_where_it_comes_from(self, put_run: Put, say: Say) -> None:
        put_run(
            1, STATIC, {"kind": "drift", "metric": None, "value": None, "unit_of_measure": None, "status": "crash", "reason": "[x]\nboom"}
        )
        how = {"method": "graph_ring/2+0f3a", "converged": True}
        put_run(
            2,
            {"launch": "1", **how},
            {"launch": "2", "value": 12.0, **how, "method": "graph_ring/2x4+0f3a"},
            {"metric": "gbps", "unit_of_measure": "GB/s", "value": 1234.5678, "method": "graph_ring/2+0f3a"},
            {"metric": "graph1_us", "value": 123.456},
        )
        assert say(command, CELL).splitlines() == [
            CELL,
            "kind     metric       value  unit  launches  spread  method                       status           run",
            "drift    -                -  -            1       -  -                            crash: [x] boom  run1",
            "latency  gbps          1235  GB/s         1       -  graph_ring/2                 ok               run2",
            "latency  graph1_us    123.5  us           1       -  -                            ok               run2",
            "latency  latency_us  12.250  us           2  4.08 %  graph_ring/2 graph_ring/2x4  ok               run2",
            "static   registers       32  -            1       -  -                            ok               run1",
            "run1: commit 0123456789ab; NVIDIA H200, driver 570.1, torch 2.11.0, triton 3.6.0",
            "run2: commit 0123456789ab; NVIDIA H200, driver 570.1, torch 2.11.0, triton 3.6.0",
            "run1: commit 0123456789ab; environment not recorded",
        ]

    @pytest.mark.parametrize(("partition", "said"), [("none", ""), ("MIG 1g.18gb", "partition MIG 1g.18gb, ")])
    def test_a_partition_is_named_where_there_is_one(self, put_run: Put, say: Say, partition: str, said: str) -> None:
        put_run(1, {"environment": {"gpu_model": "NVIDIA H200", "partition": partition, "driver": "570.1"}})
        assert f"; NVIDIA H200, {said}driver 570.1" in say(command, CELL)

    @pytest.mark.parametrize(
        ("converged", "status"),
        [((True, True), "ok"), ((True, False), "ok; not converged"), ((False, False), "ok; not converged"), ((None, None), "ok")],
    )
    def test_a_time_that_did_not_converge_in_every_launch_is_marked(self, put_run: Put, say: Say, converged: Any, status: str) -> None:
        put_run(1, *({"launch": str(n), "converged": one} for n, one in enumerate(converged)))
        assert re.split(" {2,}", say(command, CELL).splitlines()[2])[-2:] == [status, "run1"]

    def test_a_spread_has_a_column_only_where_there_are_several_launches(self, put_run: Put, say: Say) -> None:
        put_run(1, {})
        assert "spread" not in say(command, CELL)

    def test_json_holds_every_column(self, put_run: Put, say: Say) -> None:
        store = put_run(1, {})
        answer = json.loads(say(command, CELL, "--format", "json"))
        assert answer == {"cell": CELL, "records": [{"source": "run", **store.read("run1")[1][0].to_json()}]}

    def test_baselines_and_base_arms_are_marked(self, put_run: Put, say: Say, workspace: Path) -> None:
        base = {"ref": "main", "resolved": "main", "commit": None, "tree": "7ee" * 10, "code_digest": "ba5e" * 10, "jobs": "j"}
        accept(put_run(1, {}, {"arm": "base"}, jobs="j", against=base), "run1", workspace / "baselines")
        (workspace / "none").mkdir()
        lines = say(command, CELL, "--store", str(workspace / "none")).splitlines()
        assert [["latency", "(base)"], ["latency", "latency_us"]] == [line.split()[:2] for line in lines[2:4]]
        assert all(line.endswith("run1 (baseline)") for line in lines[2:4])

    def test_an_unknown_cell_names_the_nearest(self, put_run: Put, say: Say) -> None:
        put_run(1, {})
        with pytest.raises(UnknownNameError, match=f"the nearest are {CELL}"):
            say(command, CELL.replace("M=4", "M=5"))

    @pytest.mark.parametrize("text", ["norm@h200", "norm/fused/M=4", "a/b/c/d@h200"])
    def test_half_a_cell_is_refused(self, workspace: Path, say: Say, text: str) -> None:
        with pytest.raises(UnknownNameError, match="write kernel/variant/case@device"):
            say(command, text)

    def test_half_a_cell_is_told_where_the_parts_are_listed(self, workspace: Path, say: Say) -> None:
        with pytest.raises(UnknownNameError, match="`harness kernels show NAME` lists the parts"):
            say(command, "norm@h200")

    def test_an_unknown_device_is_named_with_those_known(self, put_run: Put, say: Say) -> None:
        put_run(1, {})
        with pytest.raises(UnknownNameError, match=r"known: .*h100, h200.*\n.*use 'h200'") as caught:
            say(command, CELL.replace("@h200", "@h2000"))
        assert "device 'h2000'" == caught.value.asked

    def test_records_of_a_device_that_is_no_longer_known_are_shown(self, put_run: Put, say: Say) -> None:
        put_run(1, {"device": "h2000"})
        assert "latency_us" in say(command, CELL.replace("@h200", "@h2000"))


class TestRun:
    def test_text_is_its_summary_and_every_failure(self, put_run: Put, say: Say) -> None:
        failures = [{"kernel": f"k{i:02}", "value": None, "status": "wrong", "reason": f"error {i}"} for i in range(25)]
        put_run(1, {}, *failures, {"device": "b200", "metric": None, "value": None, "status": "no_capacity"}, exit_code=1)
        lines = say(command, "run:last").splitlines()
        assert "FAIL (exit code 1)" in lines[0]
        start = lines.index("Every cell that was tried and is not ok (25)")
        assert "k24/fused/M=4,dtype=bf16@h200  latency  wrong   error 24" == lines[-1]
        assert 25 == len(lines) - start - 2

    def test_text_of_a_run_that_passed_has_no_list_of_failures(self, put_run: Put, say: Say) -> None:
        put_run(1, {})
        assert "PASS (exit code 0)" in (text := say(command, "run1"))
        assert "not ok" not in text

    def test_json_is_its_description_and_records(self, put_run: Put, say: Say) -> None:
        run, records = put_run(1, {}, STATIC).read("run1")
        assert {"run": run, "records": [r.to_json() for r in records]} == json.loads(say(command, "run1", "--format", "json"))

    def test_an_unfinished_run_says_how_to_go_on(self, put_run: Put, say: Say) -> None:
        put_run(1, finished_at=None, exit_code=None)
        assert say(command, "run:last").splitlines() == [
            "run run1 has not finished: 0 cells of main at 0123456789ab, matrix all",
            "go on with it: harness submit --resume run1",
        ]

    def test_an_unfinished_run_of_a_store_goes_on_there(self, put_run: Put, say: Say) -> None:
        put_run(1, finished_at=None, exit_code=None)
        assert say(command, "run:last", "--store", ".harness/runs").endswith(": harness submit --resume run1 --store .harness/runs\n")

    @pytest.mark.parametrize("name", ["nope", "run:nope"])
    def test_an_unknown_run_lists_the_newest(self, put_run: Put, say: Say, name: str) -> None:
        put_run(1, {})
        with pytest.raises(UnknownNameError, match=r"no run's id begins so; the newest runs in .*: run1"):
            say(command, name)

    def test_a_name_that_is_nothing_is_told_how_a_cell_is_written(self, put_run: Put, say: Say) -> None:
        put_run(1, {})
        with pytest.raises(UnknownNameError, match="a cell is written kernel/variant/case@device") as caught:
            say(command, "nope")
        assert "see `harness runs`; `harness kernels show NAME` lists variants and cases" == caught.value.do

    def test_a_kernel_is_told_where_it_is_shown(self, workspace: Path, put_run: Put, say: Say) -> None:
        put_run(1, {})
        (workspace / "kernels").mkdir()
        (workspace / "kernels/norm.py").touch()
        with pytest.raises(UnknownNameError, match="it is a kernel, no cell and no run; a cell is written") as caught:
            say(command, "norm")
        assert "`harness kernels show norm` shows it, with its variants and cases" == caught.value.do


def test_help_has_examples() -> None:
    text = CliRunner().invoke(command, ["--help"]).stdout
    assert "harness show run:last" in text
    assert "harness show KERNEL/VARIANT/M=64,N=5120,dtype=bf16@cpu" in text
    assert "harness show KERNEL/VARIANT/M=64,N=5120,dtype=bf16@DEVICE --ncu" in text
