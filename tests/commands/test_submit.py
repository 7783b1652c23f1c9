"""`harness submit --budget` and `--resume`, with a dispatcher that measures nothing: a budget takes first what a change affects, and says
what it leaves out; a run is resumed as it was planned."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness import __version__
from harness.commands.submit import command
from harness.dispatch.protocol import CellDone, JobDone, LeftOut
from harness.dispatch.stamp import Place, failure
from harness.errors import HarnessError, UnknownNameError
from harness.plan import plan
from harness.plan.describe import CaseInfo, Description, KernelInfo, KindCell, KindInfo
from harness.plan.git import Git
from harness.plan.refs import resolve
from harness.records import Record, Status
from harness.store.runs import RunStore

CASES = ("N=8,dtype=fp32", "N=9,dtype=fp32")
MATRIX = "".join(
    f'[[all.cells]]\nkind = "{kind}"\ndevices = ["{device}"]\n' for kind, device in (("correctness", "cpu"), ("static", "h200"))
)


class Dispatcher:
    """Measures, within the budget, all jobs but those of the kernels in `slow`, for which there is never time."""

    name, dropped = "local", 0

    def __init__(self, slow: tuple[str, ...] = (), units: int = 0) -> None:
        self.slow, self.units, self.jobs = slow, units, []
        self.prepared: list[tuple[Path, Any, Any]] = []
        self.closed = 0

    def capacity(self, devices: Any) -> dict[str, int]:
        return {device: 1 if device == "cpu" else self.units for device in devices}

    def prepare(self, scratch: Path, devices: Any, kinds: Any) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.prepared.append((scratch, devices, kinds))

    def submit(self, context: Any, jobs: Any) -> None:
        self.context, self.jobs = context, list(jobs)

    def events(self) -> Iterator[Any]:
        for job in self.jobs:
            if self.context.allowance is not None and job.kernel in self.slow:
                yield LeftOut(job, "budget: about 9 s by the plan, 2 s of 10s left")
                continue
            for turn in job.turns:
                for cell in turn.cells:
                    yield CellDone(job, cell, (failure(self.context, job, turn, cell, Place("u", "n", 1, "l"), Status.OK, ""),))
            yield JobDone(job)

    def cancel(self) -> None: ...

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def two_kernels(repository, monkeypatch):
    """A workspace of two kernels and two kinds, whose description takes no time; `main` is its commit."""
    cases = [CaseInfo(case, ["cpu", "headline"] if n == 0 else ["cpu"]) for n, case in enumerate(CASES)]
    kernels = [KernelInfo(n, f"kernels/{n}.py", "", ["v"], "v", "v", cases, [], False, False) for n in ("scale", "shift")]
    cells = [KindCell(kernel.name, "v", case.case, None) for kernel in kernels for case in cases]
    kinds = [KindInfo("correctness", "correctness.py", "unit", 5.0, 60.0, False, cells)]
    kinds += [KindInfo("static", "static.py", "host", 1.0, 60.0, False, cells)]
    monkeypatch.setattr("harness.plan.plan.describe", lambda workspace: Description(kernels, kinds))
    monkeypatch.chdir(repository.root)
    repository.write("kernels/shift.py", "import torch\n")
    for kind in ("static", "correctness"):
        repository.job("pass", kind=kind)
    repository.write("jobs/matrix.toml", MATRIX)
    repository.commit("two kernels")
    return repository


@pytest.fixture
def submit(two_kernels, monkeypatch, say) -> Callable[..., str]:
    """`submit("--budget", "10m", ..., dispatcher=Dispatcher())`: what the verb prints."""

    def run(*options: str, dispatcher: Dispatcher | None = None) -> str:
        monkeypatch.setattr("harness.commands._dispatchers.make_dispatcher", lambda *_: dispatcher or Dispatcher())
        return say(command, *options)

    return run


@pytest.fixture
def pr(two_kernels):
    """A branch whose `shift` differs from main's."""
    two_kernels.git("checkout", "-q", "-b", "pr")
    two_kernels.write("kernels/shift.py", "import torch  # changed\n")
    two_kernels.commit("change")
    return two_kernels


def planned(text: str) -> list[tuple[bool, str, str]]:
    """affected, kind, kernel of each job of a dry run, in its order."""
    return [(job["affected"], job["kind"], job["kernel"]) for job in json.loads(text)["jobs"]]


AFFECTED_FIRST = [(True, kind, "shift") for _ in CASES for kind in ("static", "correctness")]
AFFECTED_FIRST += [(False, kind, "scale") for _ in CASES for kind in ("static", "correctness")]


class TestADryRun:
    def test_plans_what_the_change_affects_first(self, submit, pr):
        assert AFFECTED_FIRST == planned(submit("--against", "main", "--budget", "10m", "--dry-run", "--format", "json"))

    def test_says_what_starts_when_and_what_is_probably_left_out(self, submit, pr):
        lines = submit("--against", "main", "--budget", "20s", "--dry-run").splitlines()
        assert "budget 20s; 4 of 8 cells are affected by what changed since " in lines[0]
        assert ["+0", "s", "yes", "static", "shift", "h200", "1", "2", "2"] == lines[2].split()
        assert ["left", "out", "no", "correctness", "scale", "cpu", "1", "2", "10"] == lines[-4].split()
        assert "by expected times 5 cells in 5 jobs start within the budget" == lines[-3]

    def test_counts_what_is_left_out_by_kernel_and_kind(self, submit, pr):
        budget = json.loads(submit("--against", "main", "--budget", "14s", "--dry-run", "--format", "json"))["budget"]
        assert 14.0 == budget["seconds"]
        assert {"kernel": "scale", "kind": "correctness", "cells": 2} in budget["left_out"]

    def test_without_a_base_compares_with_the_nearest_ancestor_that_has_results(self, submit, pr):
        _store(pr, "main")
        text = submit("--budget", "10m", "--dry-run", "--format", "json")
        assert AFFECTED_FIRST == planned(text)
        assert json.loads(text)["budget"]["order"].endswith(f"since {pr.git('rev-parse', 'main')[:12]}: they come first")

    def test_without_any_results_takes_headline_cases_first(self, submit, pr):
        text = submit("--budget", "10m", "--dry-run", "--format", "json")
        assert [(True, kind, kernel) for _ in CASES for kind in ("static", "correctness") for kernel in ("scale", "shift")] == planned(text)
        assert "no ancestor has results here: headline cases first" == json.loads(text)["budget"]["order"]

    def test_a_cell_whose_binaries_are_known_to_be_equal_is_not_affected(self, submit, pr):
        for ref in ("main", "pr"):
            _store(pr, ref, kernel="shift", case=CASES[0])
        found = planned(submit("--against", "main", "--budget", "10m", "--dry-run", "--format", "json", "--kind", "static"))
        assert [(True, "static", "shift"), *[(False, "static", k) for k in ("scale", "shift", "scale")]] == found

    def test_runs_nothing(self, submit, two_kernels):
        submit("--budget", "10m", "--dry-run")
        assert not (two_kernels.root / ".harness/runs").exists()


class TestARun:
    def test_lists_what_it_left_out_and_how_to_run_it(self, submit):
        text = submit("--budget", "10s", dispatcher=Dispatcher(slow=("shift",)))
        assert text.startswith("PASS (exit code 0) of 4 of 8 cells, 4 left out by the budget: 4 cancelled, 4 ok")
        assert "Left out by the budget\n  shift  4 cells: correctness 2, static 2\n" in text
        assert "run what was left out: harness submit --resume " in text
        assert "Undecided" not in text

    def test_says_so_as_json(self, submit):
        answer = json.loads(submit("--budget", "10s", "--format", "json", dispatcher=Dispatcher(slow=("shift",))))
        assert (0, {"cancelled": 4, "ok": 4}) == (answer["exit_code"], answer["cells"]["by_status"])
        assert [{"kernel": "shift", "kind": kind, "cells": 2} for kind in ("correctness", "static")] == answer["left_out"]

    def test_is_finished_by_resume(self, submit):
        submit("--budget", "10s", dispatcher=Dispatcher(slow=("shift",)))
        rest = Dispatcher(slow=("shift",))
        answer = json.loads(submit("--resume", "last", "--format", "json", dispatcher=rest))
        assert ({"ok": 8}, {"shift"}) == (answer["cells"]["by_status"], {job.kernel for job in rest.jobs})
        assert "left_out" not in answer

    def test_that_cut_a_required_device_is_undecided(self, submit):
        text = submit("--budget", "10s", "--require", "cpu", dispatcher=Dispatcher(slow=("shift",)))
        assert text.startswith("UNDECIDED (exit code 3)")
        assert "required and cut by the budget: cpu" in text

    def test_starts_jobs_in_the_order_of_the_plan(self, submit, pr):
        dispatcher = Dispatcher()
        submit("--against", "main", "--budget", "10m", dispatcher=dispatcher)
        assert ["shift"] * 4 + ["scale"] * 4 == [job.kernel for job in dispatcher.jobs]


class TestResume:
    """A run is resumed as it was planned."""

    @pytest.fixture
    def stopped(self, submit) -> None:
        """A run in which the cells of `scale` alone were measured."""
        submit("--budget", "10s", dispatcher=Dispatcher(slow=("shift",)))

    @pytest.mark.parametrize("budget", [(), ("--budget", "10m")], ids=["without a budget", "with a budget"])
    def test_a_dry_run_lists_what_is_left(self, submit, stopped, budget):
        found = json.loads(submit("--resume", "last", "--dry-run", "--format", "json", *budget))
        left = [(f"shift/v/{case}@{device}", kind) for case in CASES for kind, device in (("correctness", "cpu"), ("static", "h200"))]
        assert sorted(left) == sorted((cell["cell"], cell["kind"]) for cell in found["cells"])
        assert {"shift"} == {job["kernel"] for job in found["jobs"]}

    def test_a_dry_run_counts_what_is_left_of_a_job(self, submit, two_kernels, stopped):
        journal = next((two_kernels.root / ".harness/runs").rglob("journal.jsonl"))
        journal.write_text("".join(journal.read_text().splitlines(keepends=True)[1:]))
        found = json.loads(submit("--resume", "last", "--dry-run", "--format", "json"))
        assert [1] == [job["cells"] for job in found["jobs"] if job["kernel"] == "scale"]

    def test_a_dry_run_of_a_finished_run_lists_nothing(self, submit):
        submit()
        assert "0 cells in 0 jobs" == submit("--resume", "last", "--dry-run").splitlines()[-1]

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("--matrix", "all"),
            ("--ref", "worktree"),
            ("--kernel", "shift"),
            ("--variant", "v"),
            ("--case", "*"),
            ("--device", "cpu"),
            ("--kind", "static"),
            ("--against", "main"),
            ("--launches", "3"),
        ],
    )
    def test_what_the_run_has_decided_is_not_asked_again(self, submit, stopped, option, value):
        with pytest.raises(HarnessError) as error:
            submit("--resume", "last", option, value)
        assert f"--resume last with {option}" == error.value.asked
        assert f"leave {option} out; or leave --resume out, and start another run" == error.value.do

    def refusal(self, submit, repository, **before):
        """What is said where run.json had other values when the run was started."""
        file = next((repository.root / ".harness/runs").rglob("run.json"))
        file.write_text(json.dumps(json.loads(file.read_text()) | before))
        with pytest.raises(HarnessError) as error:
            submit("--resume", "last")
        return error.value.found

    @pytest.mark.parametrize(
        ("before", "who"), [("0.0.1", "harness 0.0.1"), (None, "a harness that is not known")], ids=["another", "not known"]
    )
    def test_by_another_engine_is_refused(self, submit, two_kernels, stopped, before, who):
        assert f"the run was started by {who}, this is {__version__}" == self.refusal(submit, two_kernels, harness=before)

    @pytest.mark.parametrize(("before", "what"), [("0" * 64, "0" * 12), (None, "one that is not known")], ids=["others", "not known"])
    def test_under_other_job_files_is_refused(self, submit, two_kernels, stopped, before, what):
        found = self.refusal(submit, two_kernels, jobs=before)
        assert found.startswith("the job files in ")
        assert found.endswith(f"the run was started under {what}")


class TestWhatIsStartedBeforeThePlan:
    """What a dispatcher may start while the run is planned, and what becomes of it."""

    def runs(self, repository: Any) -> list[Path]:
        return list((repository.root / ".harness/runs").glob("*"))

    def test_is_in_the_folder_of_the_run(self, submit, two_kernels, monkeypatch):
        dispatcher = Dispatcher()
        describe = plan.describe

        def late(workspace: Any) -> Description:
            assert 1 == len(dispatcher.prepared)
            return describe(workspace)

        monkeypatch.setattr("harness.plan.plan.describe", late)
        run_id = json.loads(submit("--format", "json", dispatcher=dispatcher))["run_id"]
        ((scratch, _, _),) = dispatcher.prepared
        assert two_kernels.root / ".harness/runs" / run_id / "scratch" == scratch == dispatcher.context.scratch

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ((), (None, None)),
            (("--kind", "static", "--device", "h200"), (["h200"], ("static",))),
            (("--device", "cpu", "--device", "fleet"), (["a10g", "b200", "h200", "mi300x", "cpu"], None)),
        ],
        ids=["anything", "one kind on one device", "a device and a group"],
    )
    def test_is_what_the_filters_leave(self, submit, options, expected):
        dispatcher = Dispatcher()
        submit(*options, dispatcher=dispatcher)
        ((_, devices, kinds),) = dispatcher.prepared
        assert expected == (devices, kinds)

    @pytest.mark.parametrize("budget", [(), ("--budget", "10m")], ids=["without a budget", "with a budget"])
    def test_is_nothing_in_a_dry_run(self, submit, two_kernels, budget):
        dispatcher = Dispatcher()
        submit("--dry-run", *budget, dispatcher=dispatcher)
        assert ([], []) == (dispatcher.prepared, self.runs(two_kernels))

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), HarnessError("a", "b", "c")], ids=["stopped", "failed"])
    @pytest.mark.parametrize("step", ["harness.plan.plan.describe", "harness.commands._budget.budgeted"], ids=["plan", "budget"])
    def test_ends_where_planning_ends(self, submit, two_kernels, monkeypatch, step, error):
        def fail(*_: Any) -> None:
            raise error

        monkeypatch.setattr(step, fail)
        dispatcher = Dispatcher()
        with suppress(HarnessError):
            submit("--budget", "10m", dispatcher=dispatcher)
        assert (1, 1, []) == (len(dispatcher.prepared), dispatcher.closed, self.runs(two_kernels))

    @pytest.mark.parametrize("options", [("--device", "h20"), ("--kernel", "scal"), ("--kind", "statik"), ("--matrix", "al")])
    def test_does_not_change_what_is_said_of_an_unknown_name(self, submit, two_kernels, options):
        with pytest.raises(UnknownNameError) as planned:
            submit("--dry-run", *options)
        with pytest.raises(UnknownNameError) as found:
            submit(*options)
        assert str(planned.value) == str(found.value)
        assert [] == self.runs(two_kernels)

    def test_is_what_is_left_of_a_run_that_is_resumed(self, submit):
        submit("--budget", "10s", dispatcher=Dispatcher(slow=("shift",)))
        dispatcher = Dispatcher()
        submit("--resume", "last", dispatcher=dispatcher)
        assert [({"cpu", "h200"}, {"correctness", "static"})] == [found[1:] for found in dispatcher.prepared]

    def test_is_nothing_for_a_run_of_which_nothing_is_left(self, submit):
        submit()
        dispatcher = Dispatcher()
        submit("--resume", "last", dispatcher=dispatcher)
        assert [(set(), set())] == [found[1:] for found in dispatcher.prepared]

    def test_ends_where_a_run_cannot_be_resumed_which_keeps_its_folder(self, submit, two_kernels, monkeypatch):
        submit()
        before = {file: file.read_bytes() for run in self.runs(two_kernels) for file in run.rglob("*") if file.is_file()}
        monkeypatch.setattr("harness.plan.plan.describe", lambda workspace: Description([], []))
        dispatcher = Dispatcher()
        with pytest.raises(HarnessError):
            submit("--resume", "last", dispatcher=dispatcher)
        assert 1 == dispatcher.closed
        assert before == {file: file.read_bytes() for file in before}


@pytest.mark.parametrize(
    ("text", "found"),
    [("10", "'10' is no duration"), ("ten", "'ten' is no duration"), ("-5m", "'-5m' is no duration"), ("0s", "no time at all")],
)
def test_a_bad_duration_is_refused_before_anything_is_done(submit, two_kernels, text, found):
    with pytest.raises(HarnessError) as error:
        submit("--budget", text)
    assert (f"--budget {text}", found, 2) == (error.value.asked, error.value.found, error.value.exit_code)
    assert not (two_kernels.root / ".harness").exists()


def test_the_help_has_an_example(say):
    assert "harness submit --ref pr --against main --budget 10m" in say(command, "--help")


def _store(repository: Any, ref: str, kernel: str = "scale", case: str = CASES[0]) -> None:
    """A finished run of a ref, in which one cell was compiled, whose launches are equal whatever the ref."""
    tree = resolve(Git(repository.root), ref)
    equal: dict[str, Any] = {"binary_hash": ["b"], "grid": ["1"], "config": ["c"], "launcher_digest": "l", "environment": {"triton": "0"}}
    whose: dict[str, Any] = {"run_id": f"run-{ref}", "commit": tree.commit, "code_digest": tree.code_digest, "kind": "static"}
    names = {"kernel": kernel, "variant": "v", "case": case, "dtype": "fp32", "device": "h200"}
    record = Record(metric="registers", unit_of_measure="1", value=8.0, status="ok", **names, **whose, **equal)
    run = {
        "run_id": f"run-{ref}",
        "created_at": time.strftime("%FT%T+00:00"),
        "finished_at": time.strftime("%FT%T+00:00"),
        "ref": ref,
        "resolved": ref,
        "commit": tree.commit,
        "tree": tree.tree,
        "dirty": False,
        "code_digest": tree.code_digest,
        "matrix": "all",
        "against": None,
        "options": {"filters": {}, "require": [], "launches": 1},
        "declared": {},
        "expected": [{"cell": str(record.cell), "kind": "static", "limit": None}],
        "by_status": {"ok": 1},
        "required_missing": [],
        "exit_code": 0,
    }
    RunStore(repository.root / ".harness/runs").write(run, [record])
