"""What a fork server has imported, its launches need not."""

import subprocess
import sys

import pytest

COMPILE = """
import sys
from pathlib import Path

from harness.measure import server

server._preload({kind!r})
from harness.authoring.catalogue import load_kernels
from harness.authoring.workspace import find_workspace
from harness.devices.table import load_devices
from harness.measure.static import compile_static
from harness.measure.subject import Subject

kernel = load_kernels(find_workspace(Path({root!r})))["rmsnorm"].kernel
before = set(sys.modules)
assert compile_static(Subject(kernel, "fused", kernel.cases[0], load_devices()["h200"], "meta"))[0].status == "ok"
print(*sorted(name for name in set(sys.modules) - before if "gluon" in name))
"""


@pytest.mark.parametrize("kind", ["static", "gpu"])
def test_a_launch_imports_nothing_of_what_triton_imports_late(kind, tmp_path, pytestconfig, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    script = COMPILE.format(kind=kind, root=str(pytestconfig.rootpath))
    done = subprocess.run([sys.executable, "-c", script], cwd=pytestconfig.rootpath, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
