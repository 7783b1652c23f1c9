"""What `describe` says of good and broken kernel and job files."""

import sys
from pathlib import Path

import pytest

from harness.authoring.catalogue import as_known, load_kind, load_named
from harness.authoring.workspace import find_workspace
from harness.errors import KernelFileError, WorkspaceError
from harness.plan.describe import describe
from harness.plan.git import Git
from harness.plan.refs import resolve
from harness.plan.trees import checkout


def describe_repository(repository):
    return describe(find_workspace(repository.root))


def test_a_kernel_is_described(repository):
    (kernel,) = describe_repository(repository).kernels
    assert (kernel.name, kernel.file, kernel.variants, kernel.default, kernel.baseline) == (
        "scale",
        "kernels/scale.py",
        ["double", "twice"],
        "double",
        "twice",
    )
    assert kernel.doc == "y = 2 x, a kernel for tests."
    assert [(c.case, c.tags) for c in kernel.cases] == [
        ("N=8,dtype=fp32", ["cpu", "smoke"]),
        ("N=9,dtype=fp32", ["cpu", "ragged"]),
        ("N=64,dtype=fp32", []),
    ]


def test_a_copied_file_is_another_kernel(repository):
    repository.write("kernels/my_scale.py", (repository.root / "kernels/scale.py").read_text())
    assert [k.name for k in describe_repository(repository).kernels] == ["my_scale", "scale"]


def test_a_file_that_starts_with_an_underscore_is_shared_code(repository):
    repository.write("kernels/_lib/__init__.py", "FACTOR = 2\n")
    text = (repository.root / "kernels/scale.py").read_text()
    repository.write("kernels/scale.py", text.replace("import torch\n", "import torch\nfrom kernels._lib import FACTOR\n"))
    assert [k.name for k in describe_repository(repository).kernels] == ["scale"]


def test_every_kind_has_its_cells_and_their_limits(repository):
    kinds = {k.name: k for k in describe_repository(repository).kinds}
    assert set(kinds) == {"correctness", "drift", "latency", "static"}
    assert len(kinds["correctness"].cells) == 6
    assert {c.limit for c in kinds["correctness"].cells} == {1e-6}
    assert kinds["static"].cells == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (\n", r"kernels/bad\.py:1: SyntaxError"),
        ("\nimport nothing_of_that_name\n", r"kernels/bad\.py:2: ModuleNotFoundError"),
        ("def f():\n    raise OSError('disk')\nf()\n", r"kernels/bad\.py:2: OSError: disk"),
        ("import sys\n\nsys.exit()\n", r"kernels/bad\.py:3: SystemExit"),
        ("def main():\n    raise SystemExit('done')\nmain()\n", r"kernels/bad\.py:2: SystemExit: done"),
        ("x = 1\n", "no KERNEL"),
        ("KERNEL = 3\n", "KERNEL is a int"),
        ("from harness import Kernel\nKERNEL = Kernel(variants={})\n", r"kernels/bad\.py:2: TypeError.*reference"),
        ("from harness import Case\nc = Case(M=1,\n  dtype='fp8')\n", r"kernels/bad\.py:2: case dtype 'fp8'"),
    ],
    ids=["syntax", "import", "in a function", "exit", "exit in a function", "no kernel", "not a kernel", "no reference", "bad case"],
)
def test_a_broken_kernel_file_is_named_with_its_line(repository, text, message):
    repository.write("kernels/bad.py", text)
    with pytest.raises(KernelFileError, match=message):
        describe_repository(repository)


def test_a_file_of_a_checked_out_tree_is_named_as_the_user_knows_it(repository):
    repository.write("kernels/_lib/__init__.py", "")
    repository.write("kernels/bad.py", "from kernels._lib import missing\n")
    repository.commit("bad")
    workspace = find_workspace(repository.root)
    git = Git(repository.root)
    code = checkout(git, resolve(git, "HEAD"), workspace)
    with pytest.raises(KernelFileError) as error:
        describe(code)
    assert "kernel file kernels/bad.py" == error.value.asked
    wrong = "ImportError: cannot import name 'missing' from 'kernels._lib' (kernels/_lib/__init__.py)"
    assert f"kernels/bad.py:1: {wrong}" == error.value.found


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("/a/b/kernels/x.py:3: no", "kernels/x.py:3: no"),
        ("(/a/b/kernels/x.py)", "(kernels/x.py)"),
        ("the kernels of /a/b", "the kernels of the workspace"),
        ("/a/bc/x.py and /z/a/b/x.py", "/a/bc/x.py and /z/a/b/x.py"),
    ],
)
def test_paths_below_the_root_alone_are_shortened(text, known):
    assert known == as_known(text, Path("/a/b"))


@pytest.fixture
def fresh_kernels(monkeypatch):
    """Kernel files are imported anew, and forgotten after the test."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "kernels"]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "kernels"]:
        del sys.modules[name]


@pytest.mark.usefixtures("fresh_kernels")
class TestNamedKernels:
    """A launch pays for what it imports."""

    def test_no_other_file_is_read(self, repository):
        repository.write("kernels/broken.py", "raise RuntimeError\n")
        assert ["scale"] == list(load_named(find_workspace(repository.root), ["scale"]))

    def test_one_that_is_not_called_like_its_file_is_found(self, repository):
        text = (repository.root / "kernels/scale.py").read_text()
        repository.write("kernels/other.py", text.replace("Kernel(", 'Kernel(\n    name="renamed",', 1))
        found = load_named(find_workspace(repository.root), ["renamed"])
        assert ("renamed", "other.py") == (found["renamed"].kernel.name, found["renamed"].file.name)

    def test_one_that_nobody_declares_is_left_out(self, repository):
        assert ["scale"] == list(load_named(find_workspace(repository.root), ["nothing", "scale"]))


def test_an_interrupt_while_a_file_is_read_is_no_fault_of_the_file(tmp_path):
    (tmp_path / "slow.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_kind(tmp_path / "slow.py")


def test_a_job_file_that_exits_is_named_with_its_line(tmp_path):
    (tmp_path / "over.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(KernelFileError, match=r"over\.py:2: SystemExit: 3"):
        load_kind(tmp_path / "over.py")


def test_two_files_with_one_name_are_both_named(repository):
    text = (repository.root / "kernels/scale.py").read_text()
    repository.write("kernels/other.py", text.replace("KERNEL = Kernel(", 'KERNEL = Kernel(\n    name="scale",'))
    with pytest.raises(KernelFileError, match=r"kernels/other\.py and .*kernels/scale\.py"):
        describe_repository(repository)


def test_a_file_name_that_is_no_name_is_refused(repository):
    repository.write("kernels/Bad-name.py", "x = 1\n")
    with pytest.raises(KernelFileError, match="'Bad-name'"):
        describe_repository(repository)


def test_a_job_file_without_a_kind_is_named(repository):
    repository.write("jobs/odd.py", "x = 1\n")
    with pytest.raises(KernelFileError, match=r"jobs/odd\.py\nfound: no KIND"):
        describe_repository(repository)


def test_a_kernel_file_that_ends_the_process_is_reported(repository):
    repository.write("kernels/bad.py", "import os\nos._exit(7)\n")
    with pytest.raises(WorkspaceError, match="ended with status 7"):
        describe_repository(repository)


def test_no_kernels_says_what_to_add(repository):
    (repository.root / "kernels/scale.py").unlink()
    with pytest.raises(WorkspaceError, match=r"add kernels/<name>\.py"):
        describe_repository(repository)


def test_a_kernel_of_another_package_is_wrapped_by_a_short_file(repository):
    repository.write("src/team/__init__.py", "")
    repository.write("src/team/ops.py", "def shift(x, amount):\n    return x + amount\n")
    repository.write("pyproject.toml", '[tool.harness]\nsources = ["src"]\n')
    wrapper = '''"""y = x + amount, wrapped from the team's own package."""

from team.ops import shift

from harness import Case, Kernel, Tolerance, Traffic, Variant

KERNEL = Kernel(
    variants={"shift": Variant(shift, triton=False)},
    default="shift",
    baseline="shift",
    axes=("N",),
    cases=[Case(N=8, dtype="fp32", tags="smoke cpu")],
    make_inputs=lambda case, generator: {"x": generator.uniform((case.N,), case.dtype), "amount": 0.5},
    reference=lambda x, amount: {"y": x.double() + amount},
    outputs=("y",),
    tolerance={"fp32": Tolerance(1e-6, "one rounding")},
    traffic=lambda case: Traffic(4 * case.N, 4 * case.N),
    flops=lambda case: case.N,
)
'''
    repository.write("kernels/shift.py", wrapper)
    assert len(wrapper.splitlines()) < 40
    assert [k.name for k in describe_repository(repository).kernels] == ["scale", "shift"]
