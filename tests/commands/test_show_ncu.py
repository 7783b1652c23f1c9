"""`harness show --ncu`: one call of each cell under ncu, for which a script on PATH stands in; the GPU is stood in for too."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.commands.show import command
from harness.devices import units
from harness.devices.units import Unit
from harness.errors import HarnessError, Undecided
from harness.measure.calibration.ncu import L1, METRICS, MORE, SM
from harness.plan.describe import CaseInfo, Description, KernelInfo, KindCell, KindInfo

H200 = Unit("GPU-show-test", "h200", "NVIDIA H200", 150_000_000_000, {"CUDA_VISIBLE_DEVICES": "GPU-show-test"}, "570.10", "none")
BYTES = 200_000_000
CELL, SMALL = (f"scale/double/N={n},dtype=fp32@h200" for n in (64, 8))
NCU = f"""#!{sys.executable}
import json, sys
from pathlib import Path
spec = json.loads(Path(sys.argv[-1]).read_text())
metrics = sys.argv[sys.argv.index("--metrics") + 1].split(",")
given = {{"gpu__time_duration.sum": "50,000", "dram__bytes_read.sum": "101,000,000", "dram__bytes_write.sum": "98,000,000",
         "{L1}": "250,000,000", "{SM}": "61.25"}}
units = {{"gpu__time_duration.sum": "ns", "{SM}": "%"}}
quoted = lambda *cells: ",".join(f'"{{c}}"' for c in cells)
lines = ["==PROF== Connected", quoted("ID", "Kernel Name", "Grid Size", *metrics)]
lines.append(quoted("", "", "", *(units.get(m, "byte") for m in metrics)))
became = []
for i, cell in enumerate(spec["cells"]):
    became.append("OutOfMemoryError" if "N=8," in cell else None)
    lines.append(quoted(0, "marker_kernel", f"({{i + 1}}, 1, 1)", *(given[m] for m in metrics)))
    if became[-1] is None:
        lines += [quoted(0, name, "(528, 1, 1)", *(given[m] for m in metrics)) for name in {{kernels}}]
Path(sys.argv[sys.argv.index("--log-file") + 1]).write_text(chr(10).join(lines))
Path(spec["done"]).write_text(json.dumps(became))
with Path(spec["root"], "asked.jsonl").open("a") as asked:
    print(json.dumps([spec["cells"], sys.argv]), file=asked)
"""


class Machine:
    """A machine with one GPU, and ncu, which counts the kernels named."""

    def __init__(self, root: Path, tools: Path) -> None:
        self.root, self.tool, self.units = root, tools / "ncu", [H200]
        tools.mkdir()
        self.ncu(NCU.replace("{kernels}", "['double_kernel']"))

    def ncu(self, script: str) -> None:
        self.tool.write_text(script)
        self.tool.chmod(0o755)

    @property
    def asked(self) -> list[Any]:
        """Cells and command line of every run of ncu."""
        (file,) = (self.root / ".harness/trees").glob("*/asked.jsonl")
        return list(map(json.loads, file.read_text().splitlines()))


def described(_workspace: Any) -> Description:
    cases = [CaseInfo(f"N={n},dtype=fp32", [], BYTES // 2, BYTES // 2, 1) for n in (64, 8)]
    kernel = KernelInfo("scale", "kernels/scale.py", "", ["double", "twice"], "double", "twice", cases, [], cycle=False, drift=False)
    covered = [KindCell("scale", "double", case.case, None) for case in cases] + [KindCell("scale", "twice", cases[0].case, None)]
    return Description([kernel], [KindInfo("latency", "latency.py", "unit", 4.0, 120.0, True, covered)])


@pytest.fixture
def machine(put_run: Callable[..., Any], repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(repository.root, tmp_path / "tools")
    monkeypatch.chdir(repository.root)
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:/usr/bin:/bin")
    monkeypatch.setattr(units, "local_units", lambda: found.units)
    monkeypatch.setattr("harness.plan.describe.describe", described)
    return found


@pytest.fixture
def show(say: Callable[..., str], machine: Machine, tmp_path: Path) -> Callable[..., str]:
    """`show(CELL, ...)`: what it prints, with the runs of `put_run`."""
    runs = tmp_path / ".harness/runs"
    runs.mkdir(parents=True, exist_ok=True)
    return lambda *args: say(command, *args, "--ncu", "--store", str(runs))


@pytest.fixture
def document(show: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    return lambda *args: json.loads(show(*args, "--format", "json"))


def timed(**columns: Any) -> dict[str, Any]:
    return {"kernel": "scale", "variant": "double", "case": "N=64,dtype=fp32", "dtype": "fp32", **columns}


class TestWhatIsCounted:
    def test_the_counters_stand_beside_the_cost_model(self, document: Any) -> None:
        answer = document(CELL)
        (cell,) = answer["cells"]
        assert ("h200", H200.uuid, 0) == (answer["device"], answer["unit"], answer["exit_code"])
        assert ("double_kernel", 528) == (cell["launches"][0]["kernel"], cell["launches"][0]["grid"])
        assert cell["sum"] == {
            "us": 50.0,
            "dram_read_bytes": 1.01e8,
            "dram_written_bytes": 0.98e8,
            "dram_gbps": pytest.approx(3980.0),
            "percent_of_peak": pytest.approx(100 * 3980 / answer["peak_gbps"]),
            "sm_percent": 61.25,
            "l1_bytes": 2.5e8,
        }
        assert (BYTES, pytest.approx(0.995), "within") == (cell["model_bytes"], cell["dram_over_model"], cell["verdict"])

    def test_every_launch_is_given_and_their_sum(self, document: Any, machine: Machine) -> None:
        machine.ncu(NCU.replace("{kernels}", "['first', 'second']"))
        (cell,) = document(CELL)["cells"]
        assert (["first", "second"], 100.0, 1.99) == ([k["kernel"] for k in cell["launches"]], cell["sum"]["us"], cell["dram_over_model"])
        assert "OFF" == cell["verdict"]

    def test_ncu_runs_once_for_all_cells_and_leaves_the_clocks_alone(self, document: Any, machine: Machine) -> None:
        other = CELL.replace("double", "twice")
        answer = document(CELL, other, CELL)
        assert [CELL, other] == [cell["cell"] for cell in answer["cells"]]
        ((cells, argv),) = machine.asked
        assert [CELL, other] == cells
        options = {name: argv[argv.index(name) + 1] for name in ("--clock-control", "--cache-control", "--metrics")}
        assert {"--clock-control": "none", "--cache-control": "all", "--metrics": ",".join((*METRICS, *MORE))} == options

    def test_nothing_of_it_is_kept(self, document: Any, machine: Machine) -> None:
        document(CELL)
        assert [".gitignore", "trees"] == sorted(f.name for f in (machine.root / ".harness").iterdir())

    def test_a_cell_that_could_not_be_called_ends_with_3(self, document: Any, show: Any) -> None:
        answer = document(CELL, SMALL)
        assert (3, [None, "OutOfMemoryError"]) == (answer["exit_code"], [cell["failed"] for cell in answer["cells"]])
        assert [f"  {SMALL}: OutOfMemoryError"] == show(CELL, SMALL).partition("Not counted (1)\n")[2].splitlines()

    def test_the_exit_code_is_what_the_document_says(self, machine: Machine) -> None:
        answers = {cell: command.main([cell, "--ncu"], standalone_mode=False) for cell in (CELL, SMALL)}
        assert {CELL: 0, SMALL: 3} == answers


class TestWhatIsRecorded:
    def recorded(self, document: Any) -> Any:
        return document(CELL)["cells"][0]["recorded"]

    def test_the_newest_time_and_whose_it_is(self, put_run: Any, document: Any) -> None:
        put_run(1, timed(value=90.0))
        put_run(2, timed(value=50.0, launch="1"), timed(value=52.0, launch="2"), timed(metric="gbps", value=3900.0))
        found = self.recorded(document)
        assert (51.0, 3900.0, None, "run2", "run") == tuple(found[n] for n in ("latency_us", "gbps", "percent_of_peak", "run_id", "source"))
        assert (False, False) == (found["dirty"], found["same_code"])

    def test_is_of_the_same_code_where_its_digest_is_the_worktrees(self, put_run: Any, document: Any) -> None:
        put_run(1, timed(code_digest=document(CELL)["code_digest"]))
        assert self.recorded(document)["same_code"]

    @pytest.mark.parametrize(
        "records",
        [[], [timed(kind="static", metric="registers")], [timed(metric=None, value=None, status="no_capacity")]],
        ids=["no record", "of another kind", "no such GPU then"],
    )
    def test_a_cell_that_was_never_timed_has_none(self, put_run: Any, document: Any, show: Any, records: list[dict[str, Any]]) -> None:
        put_run(1, *records)
        assert None is self.recorded(document)
        assert "not measured here" in show(CELL)

    def test_a_time_that_failed_says_why(self, put_run: Any, show: Any) -> None:
        put_run(1, timed(value=None, status="invalid", reason="throttled"))
        assert "run1, commit 0123456789ab (other code): invalid: throttled" in show(CELL)

    def test_a_paired_runs_head_is_meant(self, put_run: Any, document: Any) -> None:
        put_run(1, timed(arm="base", value=9.0), timed(arm="head", value=8.0))
        assert 8.0 == self.recorded(document)["latency_us"]


class TestWhatCannotBeCounted:
    @pytest.mark.parametrize(
        ("cells", "found"),
        [
            (("run:last",), "write kernel/variant/case@device"),
            (("scael/double/N=64,dtype=fp32@h200",), "known: scale"),
            (("scale/dubble/N=64,dtype=fp32@h200",), "known: double, twice"),
            (("scale/double/N=65,dtype=fp32@h200",), "known: N=64,dtype=fp32; N=8,dtype=fp32"),
            (("scale/twice/N=8,dtype=fp32@h200",), "known: N=64,dtype=fp32"),
            (("scale/double/N=64,dtype=fp32@h20",), "use 'h200'"),
            (("scale/double/N=64,dtype=fp32@mi300x",), "a device of vendor amd"),
            (("scale/double/N=64,dtype=fp32@cpu",), "a device of vendor any"),
            ((CELL, CELL.replace("h200", "b200")), "2 devices"),
        ],
        ids=["a run", "kernel", "variant", "case", "not covered", "device", "AMD", "interpreter", "two devices"],
    )
    def test_a_name_that_is_none_is_bad_input(self, show: Any, cells: tuple[str, ...], found: str) -> None:
        with pytest.raises(HarnessError, match=found) as caught:
            show(*cells)
        assert 2 == caught.value.exit_code

    def test_without_ncu(self, show: Any, machine: Machine) -> None:
        machine.tool.unlink()
        with pytest.raises(Undecided, match="ncu is not on PATH\ndo next: install NVIDIA Nsight Compute"):
            show(CELL)

    @pytest.mark.parametrize(
        ("here", "found"),
        [([], "no GPU here"), ([Unit("GPU-b", "b200", "NVIDIA B200", 0)], r"here is b200 \(NVIDIA B200, GPU-b\)")],
        ids=["no GPU", "another device"],
    )
    def test_without_such_a_gpu(self, show: Any, machine: Machine, here: list[Unit], found: str) -> None:
        machine.units = here
        with pytest.raises(Undecided, match=found):
            show(CELL)

    def test_without_permission(self, show: Any, machine: Machine) -> None:
        machine.ncu("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'\nexit 1\n")
        with pytest.raises(Undecided, match=r"found: ==ERROR== ERR_NVGPUCTRPERM.*\ndo next: let this user read the GPU's counters"):
            show(CELL)


def test_several_cells_without_ncu_are_refused(machine: Machine, say: Callable[..., str]) -> None:
    with pytest.raises(HarnessError, match="2 names\ndo next: show one at a time; --ncu takes several cells"):
        say(command, CELL, SMALL)
