"""`harness calibrate`: what it measures, keeps and prints, and how it ends; launches are stood in for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.commands.calibrate import command
from harness.devices import units
from harness.devices.units import Unit
from harness.dispatch import counters, one_unit
from harness.dispatch.counters import Counts
from harness.dispatch.protocol import CellDone, JobDone
from harness.errors import Undecided
from harness.measure.calibration.ncu import CallCounts, Counted
from harness.measure.calibration.parts import JOBS_DIR
from harness.plan.describe import CaseInfo, Description, KernelInfo, KindCell, KindInfo
from harness.records import Cell, Record
from harness.store.runs import RunStore

H200 = Unit("GPU-aaaa0000", "h200", "NVIDIA H200", 150_000_000_000, {"CUDA_VISIBLE_DEVICES": "GPU-aaaa0000"}, "570.10", "none")
BYTES = 200_000_000
FIGURES: dict[str, dict[str, float]] = {
    "clock": {"tick_ns": 32.0, "floor_us@device": 0.67},
    "graphs": {"graph_replay_us@1": 9.6, "graph_host_us@1": 21.0, "graph_node_us@1": 5.0},
    "memory": {"copy_gbps@262144": 480.0, "read_gbps@262144": 500.0},
    "ring": {"ring_copy_gbps@3": 3900.0, "ring_read_gbps@3": 4100.0},
    "spins": {"spin_us@20000": 20.8, "spin_true_us@20000": 20.0, "spin_slope_percent": 0.1, "spin_offset_us": 0.8, "clock_ratio": 1.0},
    "slowdowns": {"slowdown_percent@1": 1.01, "slowdown_true_percent@1": 1.0, "slowdown_half_width_percent@1": 0.02},
    "copies": {"copy_us@251658240": 120.0, "copy_marginal_gbps": 4200.0, "copy_off_percent": 0.1},
}


class Machine:
    """A machine with one GPU that answers parts by `figures` and cells by `times`, one a launch."""

    def __init__(self) -> None:
        self.units = [H200]
        self.figures = {part: dict(found) for part, found in FIGURES.items()}
        self.times = [41.3, 41.32, 41.28, 41.3, 41.31, 41.29]
        self.status = "ok"
        self.contexts: list[Any] = []
        self.jobs: list[Any] = []
        self.tool: str | None = None
        self.counts: Counts | Undecided = Counts()
        self.counted: list[Any] = []
        self.closed = 0

    def count(self, *asked: Any, **known: Any) -> Counts:
        self.counted.append((*asked, known))
        if isinstance(self.counts, Undecided):
            raise self.counts
        return self.counts


class Dispatcher:
    name = "fake"

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def submit(self, context: Any, jobs: Any) -> None:
        self.machine.contexts.append(context)
        self.context, self.todo = context, list(jobs)
        self.machine.jobs += self.todo

    def events(self) -> Iterator[Any]:
        for job in self.todo:
            for turn in job.turns:
                for cell in turn.cells:
                    yield CellDone(job, cell, tuple(self.records(job, turn, cell)))
            yield JobDone(job)

    def records(self, job: Any, turn: Any, cell: Any) -> Iterator[Record]:
        timed = job.kind == "latency"
        figures = {"latency_us": self.machine.times[turn.position]} if timed else self.machine.figures[cell.variant]
        where = {"kernel": cell.kernel, "variant": cell.variant, "case": cell.case, "dtype": cell.dtype, "device": cell.device}
        whose = {"run_id": self.context.run_id, "code_digest": self.context.arms["head"].code_digest, "unit": H200.uuid}
        rest = {"job_id": job.job_id, "kind": job.kind, "position": turn.position, "launch": f"{job.job_id}-{turn.position}"}
        for metric, value in figures.items():
            ok = self.machine.status == "ok" or not timed
            end = {"value": value, "status": "ok"} if ok else {"value": None, "status": self.machine.status, "reason": "bad"}
            yield Record(**{**where, **whose, **rest, "metric": metric, "environment": {"torch": "2.11"}, "node": "n1", **end})

    def cancel(self) -> None: ...

    def close(self) -> None:
        self.machine.closed += 1


def counted(us: float, bytes_: float) -> CallCounts:
    """A call of one kernel launch that only reads."""
    return CallCounts((Counted("k", 1, us, bytes_, 0.0),))


def described(_workspace: Any) -> Description:
    """The repository's kernel with one headline case, without the seconds that importing torch takes."""
    case = CaseInfo("N=64,dtype=fp32", ["headline"], BYTES // 2, BYTES // 2, 1)
    kernel = KernelInfo("scale", "kernels/scale.py", "", ["double", "twice"], "double", "twice", [case], [], cycle=False, drift=False)
    cells = [KindCell("scale", variant, case.case, None) for variant in kernel.variants]
    return Description([kernel], [KindInfo("latency", "latency.py", "unit", 4.0, 120.0, True, cells)])


@pytest.fixture
def machine(repository: Any, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.chdir(repository.root)
    monkeypatch.setattr(units, "local_units", lambda: found.units)
    monkeypatch.setattr(one_unit, "OneUnitDispatcher", lambda unit: Dispatcher(found))
    monkeypatch.setattr(counters, "find_tool", lambda: found.tool)
    monkeypatch.setattr(counters, "count", found.count)
    monkeypatch.setattr("harness.plan.calibration.describe_workspace", described)
    return found


@pytest.fixture
def run(say: Callable[..., str], machine: Machine) -> Callable[..., dict[str, Any]]:
    return lambda *args: json.loads(say(command, *args, "--format", "json"))


class TestWhatIsMeasured:
    def test_the_units_parts_in_one_launch_and_a_cell_in_several(self, run: Any, machine: Machine) -> None:
        answer = run()
        assert [("calibration", 1, 4), ("latency", 6, 1)] == [(job.kind, len(job.turns), len(job.cells)) for job in machine.jobs]
        assert ["scale/double/N=64,dtype=fp32@h200"] == answer["cells"]
        assert 0 == answer["exit_code"]

    def test_parts_run_the_engines_job_file_and_cells_the_workspaces(self, run: Any, machine: Machine) -> None:
        run()
        parts, cells = machine.contexts
        assert JOBS_DIR == parts.jobs_dir
        assert "latency.py" in {f.name for f in cells.jobs_dir.iterdir()}
        assert (parts.run_id, parts.scratch, parts.arms) == (cells.run_id, cells.scratch, cells.arms)

    def test_launches_are_as_many_as_asked(self, run: Any, machine: Machine) -> None:
        run("--launches", "3")
        assert [1, 3] == [len(job.turns) for job in machine.jobs]

    def test_known_costs_need_no_cell_without_ncu(self, run: Any, machine: Machine) -> None:
        answer = run("--truth")
        assert [["spins", "slowdowns", "copies"]] == [[cell.variant for cell in job.cells] for job in machine.jobs]
        assert ([], []) == (answer["cells"], machine.counted)

    def test_with_ncu_the_largest_cases_are_timed_once_and_counted(self, run: Any, machine: Machine) -> None:
        machine.tool = "/opt/ncu"
        run("--truth")
        assert [("calibration", 1), ("latency", 1)] == [(job.kind, len(job.turns)) for job in machine.jobs]
        ((tool, _, unit, _, cells, known),) = machine.counted
        assert ("/opt/ncu", H200, ["scale/double/N=64,dtype=fp32@h200"]) == (tool, unit, list(map(str, cells)))
        assert {"spins_us": (20, 200), "copies_bytes": [251658240]} == known

    def test_every_server_is_ended(self, run: Any, machine: Machine) -> None:
        run()
        assert 1 == machine.closed

    def test_without_a_gpu_nothing_is_measured(self, run: Any, machine: Machine) -> None:
        machine.units = []
        with pytest.raises(Undecided, match="no GPU here") as caught:
            run()
        assert "run it where a GPU is" == caught.value.do


class TestWhatIsKept:
    def test_a_run_in_a_place_of_its_own(self, run: Any, repository: Any) -> None:
        answer = run()
        store = RunStore(repository.root / ".harness/calibration")
        _, records = store.read(store.resolve(answer["run_id"]))
        spread = {r.metric: r.value for r in records if r.kind == "calibration" and r.kernel == "scale"}
        assert {"aa_us": 41.3, "aa_between_percent": pytest.approx(100 * 0.0141421 / 41.3, rel=1e-3)} == spread
        assert 6 == sum(r.metric == "latency_us" for r in records)
        assert not (repository.root / ".harness/runs").exists()

    def test_the_curves_and_the_figures_beside_it_or_where_asked(self, run: Any, repository: Any, tmp_path: Path) -> None:
        answer = run()
        names = {"calibration.svg", "calibration.json"}
        assert names <= {f.name for f in (repository.root / ".harness/calibration" / answer["run_id"]).iterdir()}
        run("--out", str(tmp_path / "out"))
        assert names == {f.name for f in (tmp_path / "out").iterdir()}
        assert json.loads((tmp_path / "out/calibration.json").read_text())["unit"] == H200.uuid

    def test_old_ones_are_removed(self, run: Any, repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("harness.commands.calibrate.KEPT", 1)
        run()
        last = run()["run_id"]
        assert [last] == [f.name for f in (repository.root / ".harness/calibration").iterdir()]


class TestHowItEnds:
    def test_a_cell_without_a_time_is_undecided(self, run: Any, machine: Machine) -> None:
        machine.status = "invalid"
        answer = run()
        assert 3 == answer["exit_code"]
        assert ["scale/double/N=64,dtype=fp32@h200 (latency): invalid: bad"] == answer["without_figure"]

    def test_a_known_cost_that_is_misread_fails(self, run: Any, machine: Machine) -> None:
        machine.figures["slowdowns"]["slowdown_percent@1"] = 0.5
        answer = run("--truth")
        assert 1 == answer["exit_code"]
        assert 1 == len(answer["beyond_limits"])

    @pytest.mark.parametrize(("bytes_", "code"), [(BYTES * 0.99, 0), (BYTES * 1.2, 1)], ids=["right", "wrong"])
    def test_a_cost_model_is_held_against_the_counters(self, run: Any, machine: Machine, bytes_: float, code: int) -> None:
        machine.tool, cell = "ncu", "scale/double/N=64,dtype=fp32@h200"
        one = counted(20.9, 100.0)
        machine.counts = Counts(spins={20: one}, copies={251658240: one}, cells={Cell.parse(cell): counted(40.0, bytes_)})
        answer = run("--truth")
        figures = {(f["cell"], f["metric"]): f["value"] for f in answer["figures"]}
        assert (code, bytes_, 20.9) == (
            answer["exit_code"],
            figures[cell, "counted_bytes"],
            figures["unit/spins/dtype=any@h200", "ncu_us@20000"],
        )

    def test_a_cell_that_could_not_be_profiled_is_undecided(self, run: Any, machine: Machine) -> None:
        machine.tool, cell = "ncu", Cell.parse("scale/double/N=64,dtype=fp32@h200")
        one = counted(20.9, 100.0)
        machine.counts = Counts(spins={20: one}, copies={251658240: one}, failed={cell: "OutOfMemoryError"})
        answer = run("--truth")
        assert (3, [f"{cell} (calibration): invalid: OutOfMemoryError"]) == (answer["exit_code"], answer["without_figure"])

    def test_a_profiler_that_may_not_count_is_said_and_fails_nothing(self, say: Any, machine: Machine) -> None:
        machine.tool, machine.counts = "ncu", Undecided("count", "==ERROR== ERR_NVGPUCTRPERM", "let this user read them")
        text = say(command, "--truth")
        assert "not counted: ==ERROR== ERR_NVGPUCTRPERM; let this user read them" in text
        assert "PASS (exit code 0)" in text


def test_the_text_holds_every_table_and_says_where_it_is_kept(say: Callable[..., str], machine: Machine) -> None:
    text = say(command)
    for title in ("Launch floors", "Graphs of empty kernels", "Bandwidth by size", "Cold curve", "A/A: equal code"):
        assert title in text
    assert "Calibration of h200 (NVIDIA H200)" in text
    assert "calibration.svg" in text
    assert "PASS (exit code 0): 0 findings beyond a limit, 0 without a figure" in text
