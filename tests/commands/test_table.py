"""Tables of the verbs: plain and whole when piped."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.commands._table import commit_cell, print_table


def test_a_piped_table_is_plain_and_uncut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "n"), [("a" * 300, "1"), ("[b] :smile:", "22")], right=("n",))
    assert capsys.readouterr().out.splitlines() == [
        "name".ljust(300) + "   n",
        "a" * 300 + "   1",
        "[b] :smile:".ljust(300) + "  22",
    ]


@pytest.mark.parametrize(
    ("commit", "dirty", "text"),
    [("0123456789abcdef", False, "0123456789ab"), ("0123456789abcdef", True, "0123456789ab (dirty)"), (None, False, "no commit")],
)
def test_commit(commit: str | None, dirty: bool, text: str) -> None:
    assert text == commit_cell(commit, dirty)


@pytest.mark.parametrize("verb", ["runs", "show", "baseline"])
def test_finding_a_verb_imports_only_click(verb: str) -> None:
    code = f"import sys, harness.commands.{verb}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set() == {"pyarrow", "torch", "triton", "rich", "numpy"} & set(done.stdout.split())
