"""The line of a kernel that an annotation stands on: found in a commit, without importing anything."""

from __future__ import annotations

import pytest

from harness.commands._jit import Line, locate
from harness.plan.git import Git

PLAIN = '''"""Doc."""
import triton

@triton.jit
def _helper(x):
    return x

@triton.autotune(configs=[], key=[])
@triton.jit(do_not_specialize=["M"])
def rows(p_x, M):
    pass

KERNEL = Kernel()
'''


@pytest.fixture
def line(repository):
    """The line that is found of a kernel `toy`, in a file with this text."""

    def find(text, file="toy.py", kernel="toy"):
        repository.write(f"kernels/{file}", text)
        return locate(Git(repository.root), repository.commit(), {kernel}).get(kernel)

    return find


def test_is_the_jit_line_of_the_first_public_function(line) -> None:
    assert Line("kernels/toy.py", 9) == line(PLAIN)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("@jit\ndef f(): ...\nKERNEL = Kernel()\n", 1),
        ("\n@triton.jit\ndef _only(): ...\nKERNEL = Kernel()\n", 2),
        ("from mine import op\n\nKERNEL = Kernel(op)\n", 3),
        ("from mine import op\n\nKERNEL: Kernel = Kernel(op)\n", 3),
        ("from mine import *\n", 1),
    ],
    ids=["bare-jit", "private", "none-in-the-file", "annotated", "not-even-KERNEL"],
)
def test_is_the_best_that_the_file_has(line, text, number) -> None:
    assert Line("kernels/toy.py", number) == line(text)


def test_a_kernel_may_have_another_name_than_its_file(line) -> None:
    assert Line("kernels/file.py", 1) == line("KERNEL = Kernel(name='toy')\n", file="file.py")


@pytest.mark.parametrize("text", ["def (:\n", "\0", "(" * 5000], ids=["syntax", "null", "deep"])
def test_a_file_that_cannot_be_parsed_has_none(line, text) -> None:
    assert line(text) is None


def test_nothing_is_imported(line, tmp_path) -> None:
    line(f"open({str(tmp_path / 'ran')!r}, 'w')\n" + PLAIN)
    assert not (tmp_path / "ran").exists()


def test_is_that_of_the_commit_not_of_the_worktree(repository) -> None:
    repository.write("kernels/toy.py", PLAIN)
    commit = repository.commit()
    repository.write("kernels/toy.py", "\n" * 50 + PLAIN)
    assert {"toy": Line("kernels/toy.py", 9)} == locate(Git(repository.root), commit, {"toy"})


def test_a_workspace_below_the_root_is_named_from_the_root(repository) -> None:
    repository.write("team/pyproject.toml", "[tool.harness]\n")
    repository.write("team/kernels/toy.py", PLAIN)
    commit = repository.commit()
    assert {"toy": Line("team/kernels/toy.py", 9)} == locate(Git(repository.root / "team"), commit, {"toy"})


def test_a_commit_that_is_not_here_has_none(repository) -> None:
    assert {} == locate(Git(repository.root), "0" * 40, {"scale"})
