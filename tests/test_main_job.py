"""The main job as its users see it: submit, accept, diff, on the bundled kernels, through the command line."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture
def bundled(repository):
    """The test repository with the bundled rmsnorm and jobs in the place of its own kernel, committed on main."""
    (repository.root / "kernels/scale.py").unlink()
    shutil.copy(ROOT / "kernels/rmsnorm.py", repository.root / "kernels/rmsnorm.py")
    shutil.copytree(ROOT / "kernels/_lib", repository.root / "kernels/_lib", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "jobs", repository.root / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    repository.commit("bundled")
    return repository


def edit(repository, old, new):
    file = repository.root / "kernels/rmsnorm.py"
    text = file.read_text()
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in the kernel file"
    file.write_text(text.replace(old, new))


def test_a_wrong_kernel_exits_1_and_its_diff_says_broken(bundled, harness):
    assert harness("submit", "--matrix", "smoke").code == 0
    bundled.git("checkout", "-q", "-b", "pr")
    edit(bundled, "    m, n = x.shape\n    y =", "    x = x - x.mean(dim=1, keepdim=True)\n    m, n = x.shape\n    y =")
    bundled.commit("subtract the mean")
    submitted = harness("submit", "--matrix", "smoke")
    assert submitted.code == 1
    assert "rmsnorm/fused/M=1,N=5120,dtype=bf16@cpu  correctness  wrong" in submitted.out
    diff = harness("diff", "main..pr", "--format", "json")
    found = json.loads(diff.out)
    broken = {f["cell"] for f in found["findings"] if f["verdict"] == "BROKEN"}
    assert diff.code == found["exit_code"] == 1
    assert broken
    assert all(cell.startswith("rmsnorm/fused/") and cell.endswith("@cpu") for cell in broken)


def test_twice_the_registers_are_named_on_every_gpu_without_any(bundled, harness):
    bundled.git("checkout", "-q", "-b", "pr")
    edit(bundled, "        num_warps=warps,", "        num_warps=max(1, warps // 2),")
    bundled.commit("half the warps")
    diff = harness("diff", "main..pr", "--matrix", "smoke", "--format", "json")
    regressed = {(f["device"], f["metric"]) for f in json.loads(diff.out)["findings"] if f["verdict"] == "REGRESSED"}
    assert diff.code == 1
    assert {(device, "registers") for device in ("a10g", "b200", "h200", "mi300x")} <= regressed


def test_the_same_code_compares_as_proved_unchanged_and_passes(bundled, harness):
    assert harness("submit", "--matrix", "smoke").code == 0
    assert harness("baseline", "accept", "last").code == 0
    bundled.commit("accept")
    assert harness("submit", "--matrix", "smoke", "--kind", "static", "--kind", "correctness").code == 0
    diff = harness("diff", "HEAD..run:last", "--format", "json")
    found = json.loads(diff.out)
    assert diff.code == 0
    assert found["counts"]["UNCHANGED"] > 0
    assert {f["verdict"] for f in found["findings"]} == {"UNCHANGED", "MISSING"}
    assert {f["reason"] for f in found["findings"] if f["verdict"] == "MISSING"} == {"no_capacity"}
    assert found["base"]["distance"] == 0


def test_a_killed_submit_leaves_no_orphan_and_resume_runs_only_the_rest(bundled, harness):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    arguments = ["submit", "--kind", "correctness", "--device", "cpu", "--slots", "1"]
    submit = subprocess.Popen([sys.executable, "-m", "harness", *arguments], cwd=bundled.root, env=env, stderr=subprocess.DEVNULL)
    runs = bundled.root / ".harness/runs"
    try:
        journal = _wait_for(lambda: next(iter(runs.glob("*/journal.jsonl")), None))
        _wait_for(lambda: len(journal.read_bytes().splitlines()) >= 5)
    finally:
        submit.send_signal(signal.SIGKILL)
        submit.wait()
    time.sleep(5)
    _wait_for(lambda: not _processes_in(runs), 60)
    before = [json.loads(line)[0] for line in journal.read_bytes()[: journal.read_bytes().rfind(b"\n") + 1].splitlines()]
    resumed = harness("submit", "--resume", "last", "--format", "json")
    after = [json.loads(line)[0] for line in journal.read_bytes().splitlines()]
    cells = [(r["kind"], r["variant"], r["case"], r["device"]) for r in after]
    answer = json.loads(resumed.out)
    assert resumed.code == 0
    assert after[: len(before)] == before
    assert len(cells) == len(set(cells)) == answer["cells"]["expected"] == answer["cells"]["by_status"]["ok"]
    assert len(before) < len(after)


def _wait_for(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def _processes_in(folder):
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "cwd").readlink().is_relative_to(folder):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_a_kernel_copied_under_a_new_name_is_picked_up_by_every_verb(bundled, harness):
    shutil.copy(bundled.root / "kernels/rmsnorm.py", bundled.root / "kernels/my_norm.py")
    bundled.commit("copy")
    listed = json.loads(harness("kernels", "--format", "json").out)
    planned = json.loads(harness("plan", "--kernel", "my_norm", "--format", "json").out)
    submitted = harness("submit", "--kernel", "my_norm", "--matrix", "smoke")
    assert [k["name"] for k in listed] == ["my_norm", "rmsnorm"]
    assert {cell["cell"].split("/")[0] for cell in planned["cells"]} == {"my_norm"}
    assert submitted.code == 0
    shown = harness("show", "my_norm/fused/M=1,N=5120,dtype=bf16@cpu")
    assert "rel_l2_error" in shown.out


def test_json_that_scripts_rely_on(bundled, harness):
    kernels = json.loads(harness("kernels", "--format", "json").out)
    assert set(kernels[0]) == {"name", "file", "variants", "default", "baseline", "cases", "mutates", "cycle", "drift"}
    assert set(kernels[0]["cases"][0]) == {"case", "tags"}
    submitted = json.loads(harness("submit", "--matrix", "smoke", "--kind", "correctness", "--format", "json").out)
    assert set(submitted) == {"run_id", "commit", "code_digest", "cells", "exit_code"}
    assert set(submitted["cells"]) == {"expected", "by_status"}
    assert submitted["cells"]["expected"] == sum(submitted["cells"]["by_status"].values())
    bundled.write("kernels/rmsnorm.py", (bundled.root / "kernels/rmsnorm.py").read_text() + "\n# a word\n")
    bundled.commit("a word")
    diff = json.loads(harness("diff", "HEAD~1..HEAD", "--no-compile", "--matrix", "smoke", "--format", "json").out or "{}")
    assert diff == {}  # head was never run and nothing may be compiled: an error, not a pass


def test_a_job_file_runs_by_itself_under_pytest(bundled):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "pytest", "jobs/correctness.py", "--kernel", "rmsnorm", "--device", "cpu", "--tag", "smoke"]
    done = subprocess.run(command, cwd=bundled.root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"rmsnorm/fused/M=1,N=5120,dtype=bf16@cpu rel_l2_error [\d.e-]+ ok", done.stdout)


def test_a_latency_job_shows_its_samples_through_pytest_benchmark(bundled, tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    out = tmp_path / "benchmark.json"
    command = [sys.executable, "-m", "pytest", "jobs/latency.py", "--variant", "torch", "--tag", "smoke", f"--benchmark-json={out}"]
    done = subprocess.run(command, cwd=bundled.root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (first, *_) = json.loads(out.read_text())["benchmarks"]
    printed = float(re.search(r"interpreter_us ([\d.e+]+) ok", done.stdout).group(1))
    assert first["stats"]["median"] * 1e6 == pytest.approx(printed, rel=1e-4)
