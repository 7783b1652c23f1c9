"""The known-bad kernels that take their process with them: each is run in a launch, as the main job would."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.authoring.workspace import bundled_jobs, find_workspace
from harness.dispatch.local import LocalDispatcher
from harness.dispatch.run import describe_run, execute, new_run_id
from harness.plan.matrix import Filters
from harness.plan.plan import make_plan
from harness.store.runs import RunStore

pytestmark = pytest.mark.slow
BAD = Path(__file__).parent / "kernels"


@pytest.mark.parametrize(
    ("name", "status", "reason"), [("crash", "crash", "killed by SIG"), ("hang", "timeout", "no end within 8 s")], ids=["crash", "hang"]
)
def test_it_is_caught_and_its_good_twin_passes(repository, name, status, reason):
    (repository.root / "kernels/scale.py").unlink()
    shutil.copy(BAD / f"{name}.py", repository.root / "kernels")
    job = (bundled_jobs() / "correctness.py").read_text().replace("deadline_s=240.0", "deadline_s=8.0")
    assert "deadline_s=8.0" in job
    repository.write("jobs/correctness.py", job)
    repository.write("jobs/matrix.toml", '[[all.cells]]\nkind = "correctness"\ndevices = ["cpu"]\n')
    repository.commit(name)
    workspace = find_workspace(repository.root)
    plan = make_plan(workspace, "HEAD", "all", Filters())
    now = datetime.now(UTC)
    run = describe_run(plan, new_run_id(now), now, {"filters": {}, "require": [], "launches": 1})
    outcome = execute(plan, LocalDispatcher(1), RunStore(workspace.runs_dir), run, workspace.runs_dir / run["run_id"])
    found = {(r.variant, r.status) for r in outcome.records}
    bad = [r for r in outcome.records if r.variant != "good"]
    assert {s for v, s in found if v == "good"} == {"ok"}
    assert {r.status for r in bad} == {status}
    assert all(r.reason.startswith(reason) for r in bad)
    assert outcome.exit_code == 1
