"""What a change touches: which kernels and kinds of head may answer otherwise than base."""

import shutil
from dataclasses import replace

import pytest

from harness.authoring.catalogue import kernel_files
from harness.authoring.workspace import find_workspace, read_workspace
from harness.plan.affected import Change, change
from harness.plan.describe import CaseInfo, Description, KernelInfo, KindInfo
from harness.records import Cell, Expected

CASES = [CaseInfo("N=1,dtype=fp32", [])]
FILES = {
    "pyproject.toml": '[tool.harness]\nsources = ["src", "team"]\n',
    "kernels/add.py": "from kernels._lib.rows import rows\nimport torch\n",
    "kernels/mul.py": "def late():\n    import ops.fast\n",
    "kernels/pow.py": "import team\n",
    "kernels/_lib/__init__.py": "",
    "kernels/_lib/rows.py": "from . import bits\n",
    "kernels/_lib/bits.py": "",
    "src/ops/__init__.py": "",
    "src/ops/fast.py": "",
    "team/__init__.py": "from .deep import x\n",
    "team/deep.py": "",
    "jobs/latency.py": "",
    "jobs/static.py": "",
    "jobs/conftest.py": "",
    "jobs/matrix.toml": "",
}


def description(names=("add", "mul", "pow")):
    kernels = [KernelInfo(n, f"kernels/{n}.py", "", ["fast"], "fast", "fast", CASES, [], False, False) for n in names]
    return Description(kernels, [KindInfo(n, f"{n}.py", "unit", 1.0, 60.0, False, []) for n in ("latency", "static")])


@pytest.fixture
def changed(tmp_path):
    """Names of the kernels and kinds that are touched where these files have other content at base, or are not there."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def of(*paths, proved=(), config=None, same_requirements=True, removed=()):
        head = dict.fromkeys(FILES, "1")
        base = {path: "0" if path in paths else "1" for path in {*FILES, *paths}}
        code = read_workspace(tmp_path)
        before = code.config if config is None else config
        return change(description(), code, base, head, proved, base_config=before, same_requirements=same_requirements, removed=removed)

    return of


@pytest.mark.parametrize(
    ("path", "kernels"),
    [
        ("kernels/add.py", {"add"}),
        ("kernels/_lib/rows.py", {"add"}),
        ("kernels/_lib/bits.py", {"add"}),
        ("kernels/_lib/__init__.py", {"add"}),
        ("src/ops/fast.py", {"mul"}),
        ("src/ops/__init__.py", {"mul"}),
        ("team/deep.py", {"pow"}),
        ("kernels/_lib/by_name.py", {"add", "mul", "pow"}),
        ("kernels/gone.py", {"add", "mul", "pow"}),
        ("kernels/_lib/table.json", {"add", "mul", "pow"}),
        ("pyproject.toml", set()),
    ],
    ids=[
        "itself",
        "import",
        "import's import",
        "package",
        "source",
        "source's package",
        "package source",
        "no import",
        "other kernel",
        "data",
        "settings",
    ],
)
def test_a_kernel_is_touched_by_its_file_and_what_that_imports(changed, path, kernels):
    assert (kernels, frozenset()) == (changed(path).kernels, changed(path).kinds)


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("jobs/latency.py", {"latency"}),
        ("jobs/conftest.py", {"latency", "static"}),
        ("jobs/_shared.py", {"latency", "static"}),
        ("jobs/matrix.toml", set()),
    ],
    ids=["its file", "conftest", "shared", "the matrix"],
)
def test_a_kind_is_touched_by_its_job_file_and_what_jobs_share(changed, path, kinds):
    assert (frozenset(), kinds) == (changed(path).kernels, changed(path).kinds)


def test_a_file_that_head_no_longer_has_touches_who_imports_it(changed, tmp_path):
    (tmp_path / "kernels/mul.py").write_text("import kernels._lib.gone\n")
    assert {"mul"} == changed("kernels/_lib/gone.py").kernels


@pytest.mark.parametrize("path", ["src/shared/real.py", "src/shared/gone.py", "kernels/_linked", "kernels/_lib/hop.py"])
def test_what_a_link_leads_to_touches_who_imports_it(changed, tmp_path, path):
    (tmp_path / "src/shared").mkdir()
    (tmp_path / "src/shared/real.py").write_text("import ops.fast\n")
    (tmp_path / "kernels/_linked").symlink_to("../src/shared")
    (tmp_path / "kernels/_lib/hop.py").symlink_to("../../src/shared/real.py")
    (tmp_path / "kernels/_lib/bits.py").unlink()
    (tmp_path / "kernels/_lib/bits.py").symlink_to("hop.py")
    (tmp_path / "kernels/pow.py").write_text("import kernels._linked.real, kernels._linked.gone\n")
    touched = {"src/shared/real.py": {"add", "pow"}, "src/shared/gone.py": {"pow"}}.get(path, {"add", "mul", "pow"})
    assert touched == changed(path).kernels
    assert {"add", "mul", "pow"} == changed("src/ops/fast.py").kernels, "imports of what is linked"


def test_a_link_that_leads_in_a_circle_touches_who_imports_it(changed, tmp_path):
    (tmp_path / "kernels/mul.py").write_text("import kernels._lib.circle\n")
    (tmp_path / "kernels/_lib/circle.py").symlink_to("circle.py")
    assert {"mul"} == changed("kernels/_lib/circle.py").kernels


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nrows = importlib.import_module('kernels._lib.' + 'rows')",
        "def late(name):\n    return __import__(name)",
        "from pathlib import Path\nexec(Path('rows.py').read_text())",
        "import runpy",
        "TABLE = open(__file__.replace('mul', '_lib/rows')).read()",
        "import kernels._lib\nFOLDER = kernels._lib.__path__",
        "from kernels._lib import *",
        "from .._lib import *",
        "import torch as t\nTABLE = t.load('rows.py')",
        "from torch.utils import cpp_extension",
        "from harness.authoring.catalogue import load_kernel",
        "import somebodys",
        "import io",
        "def broken(:",
    ],
    ids=[
        "importlib",
        "__import__",
        "exec",
        "runpy",
        "open",
        "package's folder",
        "star",
        "relative star",
        "torch.load",
        "from torch",
        "the catalogue",
        "unknown package",
        "standard library, though a source has the name",
        "no Python",
    ],
)
def test_a_kernel_that_may_read_what_it_does_not_import_is_touched_by_any_file(changed, tmp_path, text):
    (tmp_path / "team/io.py").write_text("")
    (tmp_path / "src/ops/fast.py").write_text(text)
    assert {"add", "mul"} == changed("kernels/_lib/rows.py").kernels, "beside the one that imports it"
    assert {"mul"} == changed("jobs/latency.py").kernels
    assert set() == changed("jobs/matrix.toml", "pyproject.toml").kernels, "what is no code"


@pytest.mark.parametrize(
    "text",
    [
        "import triton\nimport triton.language as tl\n@triton.jit\ndef k(p, desc):\n    return tl.load(p) + desc.load([0])",
        "import torch\nfast = torch.compile(torch.nn.Linear(1, 1).eval())",
        "import math, re\nfrom functools import lru_cache\nfrom harness import Case\nWORD = re.compile('w')",
        "import kernels._lib.rows as r\nfrom . import other",
    ],
    ids=["Triton's load", "torch", "standard library", "its own"],
)
def test_a_kernel_that_reads_no_more_than_it_imports_is_not_touched_by_other_files(changed, tmp_path, text):
    (tmp_path / "src/ops/fast.py").write_text(text)
    assert {"add"} == changed("kernels/add.py").kernels


def test_a_job_file_that_a_kernel_imports_touches_it(changed, tmp_path):
    (tmp_path / "kernels/mul.py").write_text("from jobs import static\n")
    assert ({"mul"}, {"static"}) == (changed("jobs/static.py").kernels, changed("jobs/static.py").kinds)


class TestAKernelThatWasRemoved:
    FILE = "kernels/old.py"

    def test_touches_no_other(self, changed):
        assert Change(frozenset(), frozenset()) == changed(self.FILE, removed=[self.FILE])

    def test_touches_those_that_import_it(self, changed, tmp_path):
        (tmp_path / "kernels/mul.py").write_text("from kernels import old\n")
        assert {"mul"} == changed(self.FILE, removed=[self.FILE]).kernels

    def test_touches_those_that_may_read_any_file(self, changed, tmp_path):
        (tmp_path / "kernels/mul.py").write_text("import pathlib\nTEXT = next(pathlib.Path(__file__).parent.glob('o*')).read_text()\n")
        assert {"mul"} == changed(self.FILE, removed=[self.FILE]).kernels

    def test_is_told_from_any_other_file_that_is_gone(self, changed):
        assert {"add", "mul", "pow"} == changed("kernels/helper.py").kernels


def test_of_the_bundled_kernels_each_is_touched_by_its_own_file_alone(tmp_path):
    shutil.copytree(find_workspace().kernels_dir, tmp_path / "kernels")
    (tmp_path / "pyproject.toml").write_text("[tool.harness]\n")
    code = read_workspace(tmp_path)
    names = [file.stem for file in kernel_files(code)]
    files = {f"kernels/{name}.py": "1" for name in names}
    for name in names:
        base = {**files, f"kernels/{name}.py": "0"}
        assert {name} == change(description(names), code, base, files, base_config=code.config, same_requirements=True).kernels


@pytest.mark.parametrize("other", [{"config": {"sources": ["src"]}}, {"same_requirements": False}], ids=["harness table", "requirements"])
def test_other_settings_touch_everything_whatever_is_proved(changed, other):
    cell = Cell("add", "fast", CASES[0].case, "h200")
    found = changed("pyproject.toml", proved={cell}, **other)
    assert ({"add", "mul", "pow"}, {"latency", "static"}) == (found.kernels, found.kinds)
    assert found.affects(Expected(cell, "latency"))


def test_equal_code_touches_nothing(changed):
    assert (frozenset(), frozenset()) == (changed().kernels, changed().kinds)


def test_a_cell_with_equal_binaries_is_not_affected_but_by_its_job_file(changed):
    cell = Cell("add", "fast", CASES[0].case, "h200")
    one = Expected(cell, "latency")
    assert changed("kernels/add.py").affects(one)
    assert not changed("kernels/add.py", proved={cell}).affects(one)
    assert changed("kernels/add.py", proved={cell}).affects(replace(one, cell=replace(cell, device="a10g")))
    assert changed("kernels/add.py", "jobs/latency.py", proved={cell}).affects(one)
    assert not changed("jobs/latency.py").affects(replace(one, kind="static"))
