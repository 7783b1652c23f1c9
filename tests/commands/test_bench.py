"""`harness bench`: what it times, what its table says, and what it must not say; launches are stood in for."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.commands.bench import command
from harness.devices import units
from harness.devices.units import Unit
from harness.dispatch import one_unit
from harness.dispatch.protocol import CellDone, JobDone
from harness.errors import Undecided, UnknownNameError
from harness.plan.describe import CaseInfo, Description, KernelInfo, KindCell, KindInfo, describe
from harness.records import Record
from harness.store.runs import RunStore

H200 = Unit("GPU-aaaa0000", "h200", "NVIDIA H200", 150_000_000_000, {"CUDA_VISIBLE_DEVICES": "GPU-aaaa0000"}, "570.10", "none")
SECOND = replace(H200, uuid="GPU-bbbb1111")
A10G = replace(H200, uuid="GPU-cccc2222", device="a10g", model="NVIDIA A10G")
STACK = {
    "gpu_model": "NVIDIA H200",
    "partition": "none",
    "driver": "570.10",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "compiler": "ptxas 12.8",
}
TIMES = {("double", 0): 10.0, ("double", 1): 10.2, ("double", 2): 10.1, ("twice", 0): 30.0, ("twice", 1): 30.6, ("twice", 2): 30.3}
"""Variant and position of a launch -> us."""


class Bench:
    """A machine whose GPUs answer by `answer(cell, position)`: a list of columns, one dict a record."""

    def __init__(self) -> None:
        self.units = [H200]
        self.ran_on: list[Unit] = []
        self.prepared: list[tuple[Path, Any, Any]] = []
        self.closed = 0
        self.jobs: list[Any] = []
        self.answer: Callable[..., list[dict[str, Any]]] = self.good

    @staticmethod
    def good(cell: Any, position: int) -> list[dict[str, Any]]:
        time = {"metric": "latency_us", "value": TIMES[cell.variant, position], "converged": True, "unit_of_measure": "us"}
        return [time, {"metric": "gbps", "value": 3500.0}, {"metric": "percent_of_ceiling", "value": 81.4}]

    def dispatcher(self, unit: Unit) -> Any:
        """Stands for OneUnitDispatcher."""
        self.ran_on.append(unit)
        return Dispatcher(self, unit)


class Dispatcher:
    name = "fake"

    def __init__(self, bench: Bench, unit: Unit) -> None:
        self.bench, self.unit = bench, unit

    def capacity(self, devices: Any) -> dict[str, int]:
        return dict.fromkeys(devices, 1)

    def prepare(self, scratch: Path, devices: Any, kinds: Any) -> None:
        scratch.mkdir(parents=True)
        self.bench.prepared.append((scratch, devices, kinds))

    def submit(self, context: Any, jobs: Any) -> None:
        self.context, self.bench.jobs = context, list(jobs)

    def events(self) -> Iterator[Any]:
        for job in self.bench.jobs:
            for turn in job.turns:
                for cell in turn.cells:
                    yield CellDone(job, cell, tuple(self.record(job, turn, cell, c) for c in self.bench.answer(cell, turn.position)))
            yield JobDone(job)

    def record(self, job: Any, turn: Any, cell: Any, columns: dict[str, Any]) -> Record:
        code = self.context.arms["head"]
        where = {"kernel": cell.kernel, "variant": cell.variant, "case": cell.case, "dtype": cell.dtype, "device": cell.device}
        how = {"method": "graph_ring/1+0f3a", "data": "uniform/1", "environment": STACK, "launch": f"{job.job_id}-{turn.position}"}
        whose = {"run_id": self.context.run_id, "commit": code.commit, "code_digest": code.code_digest, "unit": self.unit.uuid}
        common = {"kind": "latency", "attempt": 1, "position": turn.position, "metric": None, "value": None, "status": "ok"}
        return Record(**{**where, **how, **whose, **common, **columns})

    def cancel(self) -> None: ...

    def close(self) -> None:
        self.bench.closed += 1


def described(workspace: Any) -> Description:
    """What `describe` says of the repository, without the seconds that importing torch takes."""
    text = (workspace.root / "kernels/scale.py").read_text()
    declared = re.findall(r'Case\(N=(\d+), dtype="fp32"(?:, tags="([^"]*)")?\)', text)
    cases = [CaseInfo(f"N={n},dtype=fp32", sorted(tags.split())) for n, tags in declared]
    variants = ["double", "twice"]
    kernel = KernelInfo("scale", "kernels/scale.py", "y = 2 x", variants, *variants, cases, [], cycle=False, drift=False)
    cells = [KindCell("scale", variant, case.case, None) for variant in variants for case in cases]
    kinds = [KindInfo(kind, f"{kind}.py", "unit", 4.0, 120.0, kind == "latency", cells) for kind in ("correctness", "latency")]
    return Description([kernel], kinds)


@pytest.fixture
def bench(repository: Any, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The repository's kernel `scale` has variants double (default) and twice (baseline), and one case tagged smoke."""
    found = Bench()
    monkeypatch.chdir(repository.root)
    monkeypatch.setattr(units, "local_units", lambda: found.units)
    monkeypatch.setattr(one_unit, "OneUnitDispatcher", found.dispatcher)
    monkeypatch.setattr("harness.plan.bench.describe", described)
    return found


@pytest.fixture
def run(say: Callable[..., str], bench: Bench) -> Callable[..., dict[str, Any]]:
    return lambda *args: json.loads(say(command, "scale", *args, "--format", "json"))


def retag(repository: Any, tags: str) -> None:
    """Tag the case N=64, which has no tags of its own."""
    text = (repository.root / "kernels/scale.py").read_text()
    repository.write("kernels/scale.py", re.sub(r'Case\(N=64, dtype="fp32".*?\)', f'Case(N=64, dtype="fp32", tags="{tags}")', text))


def accept(repository: Any, us: float, **columns: Any) -> str:
    """Put a time of scale/double on N=8 into the baselines, under the code of HEAD; the run's id is returned."""
    from harness.plan.git import Git
    from harness.plan.refs import resolve
    from harness.store.baselines import accept as accept_run

    tree = resolve(Git(repository.root), "HEAD")
    who = {"run_id": f"run-{us:g}", "commit": tree.commit, "code_digest": tree.code_digest, "unit": H200.uuid, "attempt": 1, "launch": "l"}
    where = {"kernel": "scale", "variant": "double", "case": "N=8,dtype=fp32", "dtype": "fp32", "device": "h200", "kind": "latency"}
    how = {"method": "graph_ring/1+0f3a", "data": "uniform/1", "environment": STACK, "unit_of_measure": "us", "position": 0}
    record = Record(**{**who, **where, **how, "metric": "latency_us", "value": us, "status": "ok", "converged": True, **columns})
    run = {
        "run_id": who["run_id"],
        "created_at": "2026-01-01T00:00:00+00:00",
        "finished_at": "2026-01-01T00:00:00+00:00",
        "exit_code": 0,
        "ref": "HEAD",
        "resolved": "HEAD",
        "commit": tree.commit,
        "tree": tree.tree,
        "dirty": False,
        "code_digest": tree.code_digest,
        "matrix": "all",
        "options": {"filters": {}, "require": []},
        "declared": {},
        "by_status": {},
        "required_missing": [],
        "expected": [{"cell": str(record.cell), "kind": "latency", "limit": None}],
    }
    store = RunStore(repository.root / "elsewhere")
    store.write(run, [record])
    accept_run(store, record.run_id, repository.root / "baselines")
    return record.run_id


class TestWhatIsTimed:
    def test_cases_tagged_smoke_where_none_is_headline_in_the_default_and_the_baseline_variant(self, run: Any) -> None:
        assert ["scale/double/N=8,dtype=fp32@h200", "scale/twice/N=8,dtype=fp32@h200"] == [c["cell"] for c in run()["cells"]]

    def test_headline_cases_come_first(self, run: Any, repository: Any) -> None:
        retag(repository, "headline")
        assert {"N=64,dtype=fp32"} == {c["case"] for c in run()["cells"]}

    def test_globs_take_the_place_of_tags_and_roles(self, run: Any) -> None:
        found = run("--variant", "tw*", "--case", "N=9,*", "--case", "N=64,*")
        assert ["scale/twice/N=9,dtype=fp32@h200", "scale/twice/N=64,dtype=fp32@h200"] == [c["cell"] for c in found["cells"]]

    def test_nothing_but_latency_and_so_often(self, run: Any, bench: Bench) -> None:
        found = run("--launches", "3")
        assert [("latency", 3)] == [(job.kind, len(job.turns)) for job in bench.jobs]
        assert [10.0, 10.2, 10.1] == found["cells"][0]["launches"]

    def test_a_workspace_whose_matrix_has_no_latency_is_benched_all_the_same(self, run: Any, repository: Any) -> None:
        from harness.authoring.workspace import bundled_jobs

        for name in ("latency.py", "correctness.py", "conftest.py"):
            repository.write(f"jobs/{name}", (bundled_jobs() / name).read_text())
        repository.write("jobs/matrix.toml", "")
        assert run()["exit_code"] == 0

    @pytest.mark.slow
    def test_the_kernel_file_is_read_as_a_plan_reads_it(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        stood_in = run()["cells"]
        monkeypatch.setattr("harness.plan.bench.describe", describe)
        assert stood_in == run()["cells"]

    def test_an_unknown_kernel_is_a_usage_error(self, say: Any, bench: Bench) -> None:
        with pytest.raises(UnknownNameError, match="use 'scale'") as caught:
            say(command, "scal")
        assert caught.value.exit_code == 2


class TestWhere:
    def test_without_a_gpu_it_says_so_and_is_undecided(self, say: Any, bench: Bench) -> None:
        bench.units = []
        with pytest.raises(Undecided) as caught:
            say(command, "scale")
        error = caught.value
        assert (3, "bench scale on the GPU of this machine") == (error.exit_code, error.asked)
        assert error.found.startswith("no GPU here")
        assert "`harness submit --kernel scale --device cpu` proves the kernel" in error.do

    def test_without_a_gpu_an_unknown_kernel_is_what_is_wrong(self, say: Any, bench: Bench) -> None:
        bench.units = []
        with pytest.raises(UnknownNameError, match="use 'scale'"):
            say(command, "scal")

    def test_a_gpu_of_no_row_is_no_unit(self, say: Any, bench: Bench) -> None:
        bench.units = [replace(H200, device=None, model="Vendor Z9")]
        with pytest.raises(Undecided, match="Vendor Z9"):
            say(command, "scale")

    @pytest.mark.parametrize(
        ("options", "expected"),
        [((), H200), (("--device", "a10g"), A10G), (("--device", "h200"), H200), (("--device", "nvidia"), H200)],
        ids=["the first", "of a device", "the first of a device", "of a group"],
    )
    def test_one_unit_runs_it(self, run: Any, bench: Bench, options: tuple[str, ...], expected: Unit) -> None:
        bench.units = [H200, SECOND, A10G]
        found = run(*options)
        assert [expected] == bench.ran_on
        assert (expected.device, expected.uuid, expected.model) == (found["device"], found["unit"], found["model"])

    def test_a_device_that_is_not_here_is_undecided_and_names_what_is(self, say: Any, bench: Bench) -> None:
        with pytest.raises(Undecided, match="here is h200"):
            say(command, "scale", "--device", "a10g")

    def test_the_dispatcher_holds_to_the_unit_it_is_given(self) -> None:
        dispatcher = one_unit.OneUnitDispatcher(SECOND)
        try:
            assert [SECOND] == dispatcher.units
            assert {"h200": 1, "a10g": 0} == dispatcher.capacity(["h200", "a10g"])
        finally:
            dispatcher.close()


class TestTheAnswer:
    def test_a_row_in_full(self, run: Any) -> None:
        found = run("--launches", "3")["cells"][0]
        assert ("ok", None, 10.1, True, 3500.0, 81.4) == tuple(
            found[name] for name in ("status", "reason", "latency_us", "converged", "gbps", "percent_of_ceiling")
        )
        assert found["spread_percent"] == pytest.approx(100 * 0.2 / 10.1)
        assert found["speedup"] == pytest.approx(3.0)
        assert found["stored"] is None

    def test_the_table(self, say: Any, bench: Bench) -> None:
        lines = say(command, "scale", "--launches", "3").splitlines()
        assert ["case", "variant", "us", "spread", "GB/s", "%", "of", "ceiling", "x", "baseline"] == lines[1].split()[:10]
        assert "N=8,dtype=fp32 double* 10.100 1.98 % 3500 81.4 3.00 - ok" == " ".join(lines[2].split())
        assert "N=8,dtype=fp32 twice^ 30.300 1.98 % 3500 81.4 - - ok" == " ".join(lines[3].split())
        assert "PASS (exit code 0): 2 cells: 2 ok" == lines[-1]

    def test_one_launch_has_no_spread(self, say: Any, run: Any) -> None:
        assert "spread" not in say(command, "scale")
        assert run()["cells"][0]["spread_percent"] is None

    def test_what_did_not_converge_is_shown_and_marked(self, say: Any, run: Any, bench: Bench) -> None:
        def unsettled(cell: Any, position: int) -> list[dict[str, Any]]:
            return [c | {"converged": False} if c["metric"] == "latency_us" else c for c in Bench.good(cell, position)]

        bench.answer = unsettled
        found = run()
        assert (10.0, False) == (found["cells"][0]["latency_us"], found["cells"][0]["converged"])
        text = say(command, "scale")
        assert "ok; not converged" in text
        assert "2 of them not converged" in text

    @pytest.mark.parametrize(
        ("status", "reason", "code"),
        [("invalid", "not_cold: it moved by 9 %", 3), ("wrong", "y differs", 1)],
        ids=["invalid", "wrong"],
    )
    def test_a_cell_that_is_not_ok_has_no_number(
        self, say: Any, run: Any, bench: Bench, repository: Any, status: str, reason: str, code: int
    ) -> None:
        accept(repository, 9.0)

        def second_launch_is_bad(cell: Any, position: int) -> list[dict[str, Any]]:
            bad = cell.variant == "double" and position == 1
            metric = "latency_us" if status == "invalid" else "rel_l2_error"
            return [{"metric": metric, "status": status, "reason": reason}] if bad else Bench.good(cell, position)

        bench.answer = second_launch_is_bad
        found = run("--launches", "2")
        row = found["cells"][0]
        assert (status, None, [], None, None, None) == (
            row["status"],
            row["latency_us"],
            row["launches"],
            row["gbps"],
            row["speedup"],
            row["stored"]["ratio"],
        )
        assert reason in row["reason"]
        assert code == found["exit_code"]
        line = next(line for line in say(command, "scale", "--launches", "2").splitlines() if " double*" in line)
        assert "double* - - - - - - (was 9.000 at" in " ".join(line.split())
        assert f"{status}: " in line
        assert line.endswith(reason)

    def test_a_side_figure_that_is_invalid_is_named_beside_the_time(self, run: Any, bench: Bench) -> None:
        bad = {"metric": "chained_us", "status": "invalid", "reason": "host_clock"}
        bench.answer = lambda cell, position: [*Bench.good(cell, position), bad]
        found = run()
        row = found["cells"][0]
        assert (3, "invalid", "chained_us: host_clock", 10.0) == (found["exit_code"], row["status"], row["reason"], row["latency_us"])

    def test_bandwidth_that_was_not_taken_says_why(self, say: Any, run: Any, bench: Bench) -> None:
        skipped = [{"metric": name, "status": "skipped", "reason": "launch_bound"} for name in ("gbps", "percent_of_ceiling")]
        bench.answer = lambda cell, position: [Bench.good(cell, position)[0], *skipped]
        row = run()["cells"][0]
        assert ("ok", None, {"gbps": "launch_bound", "percent_of_ceiling": "launch_bound"}) == (
            row["status"],
            row["gbps"],
            row["not_taken"],
        )
        assert "ok; no gbps, percent_of_ceiling: launch_bound" in say(command, "scale")


class TestTheAcceptedBaseline:
    def test_stands_beside_the_cell_as_stored_and_unpaired(self, say: Any, run: Any, repository: Any) -> None:
        commit = repository.git("rev-parse", "HEAD")
        run_id = accept(repository, 8.0)
        stored, other = (row["stored"] for row in run()["cells"])
        expected = {
            "evidence": "stored, unpaired",
            "run_id": run_id,
            "commit": commit,
            "commits_back": 0,
            "changes_back": 0,
            "latency_us": 8.0,
            "converged": True,
            "ratio": 1.25,
            "incomparable": None,
        }
        assert expected == stored
        assert other is None
        text = say(command, "scale")
        assert f"+25.0 % of 8.000 at {commit[:12]}" in text
        assert f"stored: 1 cell of {commit[:12]}, the same code as HEAD, run {run_id}" in text
        assert "they inform, and judge nothing" in text

    def test_a_slower_time_than_the_accepted_one_is_no_failure(self, run: Any, repository: Any) -> None:
        accept(repository, 1.0)
        assert run()["exit_code"] == 0

    def test_the_nearest_code_that_has_the_cell_counts(self, run: Any, repository: Any) -> None:
        accept(repository, 7.0)
        retag(repository, "peers")
        repository.commit("another code")
        accept(repository, 8.0)
        repository.commit("accept, which changes no code")
        retag(repository, "peers ragged")
        repository.git("add", "-A")
        repository.commit("a third code, without results")
        stored = run()["cells"][0]["stored"]
        assert (8.0, 1, 1) == (stored["latency_us"], stored["changes_back"], stored["commits_back"])

    def test_another_method_is_not_compared_and_named(self, say: Any, run: Any, repository: Any) -> None:
        accept(repository, 8.0, method="graph_ring/0+0f3a")
        stored = run()["cells"][0]["stored"]
        assert (None, "method") == (stored["ratio"], stored["incomparable"]["reason"])
        assert "incomparable(method) with 8.000" in say(command, "scale")

    def test_one_that_did_not_converge_is_marked(self, say: Any, run: Any, repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as earlier:  # accept took it once
            earlier.setattr("harness.store.baselines.PRIMARY", {})
            accept(repository, 8.0, converged=False)
        assert run()["cells"][0]["stored"]["converged"] is False
        assert ", not converged" in say(command, "scale").splitlines()[2]

    def test_another_unit_and_other_software_are_named(self, say: Any, repository: Any, bench: Bench) -> None:
        accept(repository, 8.0, unit="GPU-else", environment=STACK | {"triton": "3.5.0"})
        assert "triton 3.5.0 there, 3.6.0 here; another unit" in say(command, "scale")

    def test_where_there_is_none_it_says_so(self, say: Any, bench: Bench) -> None:
        assert "no accepted baseline of these cells in the history of" in say(command, "scale")


class TestWhatItLeaves:
    def test_a_bench_stands_for_no_run(self, run: Any, repository: Any) -> None:
        run_id = run()["run_id"]
        assert [] == RunStore(repository.root / ".harness/runs").list()
        assert [run_id] == [info.run_id for info in RunStore(repository.root / ".harness/bench").list()]

    def test_the_newest_are_kept(self, run: Any, repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("harness.commands.bench.KEPT", 1)
        ids = [run()["run_id"] for _ in range(2)]
        kept = [path.name for path in (repository.root / ".harness/bench").iterdir()]
        assert len(kept) == 1
        assert kept[0] in ids


class TestWhatIsStartedBeforeThePlan:
    def test_is_the_units_server_in_the_folder_of_the_bench(
        self, run: Any, bench: Bench, repository: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def late(workspace: Any) -> Description:
            assert 1 == len(bench.prepared)
            return described(workspace)

        monkeypatch.setattr("harness.plan.bench.describe", late)
        folder = repository.root / ".harness/bench" / run()["run_id"]
        assert [(folder / "scratch", ["h200"], ["latency"])] == bench.prepared

    def test_ends_where_the_plan_fails_and_leaves_no_folder(self, say: Any, bench: Bench, repository: Any) -> None:
        with pytest.raises(UnknownNameError):
            say(command, "scal")
        assert (1, 1) == (len(bench.prepared), bench.closed)
        assert [] == list((repository.root / ".harness/bench").iterdir())


@pytest.mark.gpu
@pytest.mark.slow
def test_a_real_gpu_times_a_kernel(harness: Any, repository: Any) -> None:
    if not units.local_units():
        pytest.skip("no GPU here")
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        pytest.skip("a test before this one holds the GPU in this process, which makes it contended: run this one alone, or first")
    text = (repository.root / "kernels/scale.py").read_text()
    repository.write("kernels/scale.py", text.replace('Case(N=64, dtype="fp32")', 'Case(N=4194304, dtype="fp32", tags="headline")'))
    answer = harness("bench", "scale", "--launches", "2", "--format", "json")
    found = json.loads(answer.out)
    assert (0, 0) == (answer.code, found["exit_code"]), answer.out + answer.err
    assert all(len(row["launches"]) == 2 and 1 < row["latency_us"] < 1e4 for row in found["cells"])
    assert "no accepted baseline" in harness("bench", "scale").out
