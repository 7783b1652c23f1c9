"""What the wheel holds, and that it works without the source tree."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)], check=True, capture_output=True)
    (found,) = out.glob("*.whl")
    return found


@pytest.mark.slow
def test_only_the_package_is_installed(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"harness", "kernel_harness"}


@pytest.mark.slow
def test_the_engines_jobs_and_data_are_inside_the_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    jobs = {f"harness/jobs/{f.name}" for f in (ROOT / "jobs").iterdir() if f.is_file()}
    assert jobs | {"harness/devices/devices.toml", "harness/measure/pytest.ini"} <= names


@pytest.mark.slow
def test_a_workspace_without_jobs_is_planned_by_the_wheel_alone(wheel, tmp_path, repository):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    done = subprocess.run(
        [sys.executable, "-m", "harness", "plan", "--matrix", "smoke"],
        cwd=repository.root,
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "cells in" in done.stdout
    used = subprocess.run(
        [sys.executable, "-c", "import harness; print(harness.__file__)"],
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert used.startswith(str(site))


def test_the_core_does_not_pull_what_runs_kernels():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {d.split(">")[0].lower() for d in project["dependencies"]}
    assert core == {"click", "rich", "numpy", "scipy", "pyarrow", "jinja2", "pygithub"}
    assert set(project["optional-dependencies"]) == {"kernels", "fleet", "all", "dev"}
