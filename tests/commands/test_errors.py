"""Bad input: each error says what was asked, what was found and what to do, exits with its code, and loses nothing."""

import os
import re

import pytest


def check(answer, code, *parts):
    assert answer.code == code, answer.err
    assert answer.out == ""
    assert re.match(r"harness: asked: .+\nfound: .+\ndo next: .+", answer.err, re.DOTALL)
    for part in parts:
        assert part in answer.err


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("submit", "--kernel", "scael"), ("kernel 'scael'", "use 'scale'")),
        (("submit", "--device", "h20"), ("device 'h20'", "use 'h200'")),
        (("submit", "--require", "h20"), ("device 'h20'", "use 'h200'")),
        (("submit", "--kind", "latancy"), ("kind 'latancy'", "use 'latency'")),
        (("submit", "--matrix", "al"), ("matrix 'al'", "all")),
        (("submit", "--matrix", "absent.toml"), ("matrix 'absent.toml'", "no file absent.toml")),
        (("submit", "--ref", "mian"), ("ref 'mian'", "main")),
        (("submit", "--resume", "last"), ("run 'last'", "harness submit")),
        (("plan", "--kernel", "x*"), ("kernel 'x*'", "scale")),
        (("show", "run:20260101"), ("run",)),
        (("show", "a/b/N=1@cpu"), ("a/b/N=1",)),
        (("baseline", "accept", "last"), ("run 'last'",)),
        (("diff", "main"), ("range 'main'", "A..B")),
        (("diff", "main..nothing"), ("ref 'nothing'", "git fetch origin nothing")),
        (("diff", "main..nope.parquet"), ("the records in nope.parquet", "no such file or folder", "name a Parquet file")),
        (("diff", "main.../nope"), ("the records in ./nope", "no such file or folder")),
        (
            ("diff", "main..kernels"),
            ("the records in kernels", "neither a Parquet file nor a folder of records"),
        ),
        (
            ("diff", "main../"),
            ("the records in /", "neither a Parquet file nor a folder of records"),
        ),
        (("diff", "HEAD..run:last"), ("run 'last'",)),
        (("diff", "main..pr", "--fail-on", "WORSE"), ("verdict 'WORSE'",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_an_unknown_name_exits_2(harness, args, parts):
    check(harness(*args), 2, *parts)


def test_an_unknown_metric_exits_2(repository, harness):
    repository.job("pass")
    repository.commit("job")
    assert harness("submit").code == 0
    assert harness("submit").code == 0
    check(harness("diff", "HEAD..run:last", "--metric", "latenzy_us"), 2, "latenzy_us")


def test_a_broken_kernel_file_names_file_and_line(repository, harness):
    repository.write("kernels/bad.py", "x = (\n")
    check(harness("submit"), 2, "kernels/bad.py:1: SyntaxError")


WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
"""


@pytest.mark.parametrize("args", [("kernels",), ("plan",), ("submit",)], ids=" ".join)
def test_without_torch_the_extra_is_named_and_no_kernel_file_is_blamed(harness, tmp_path, monkeypatch, args):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(WITHOUT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    answer = harness(*args)
    check(answer, 2, "torch is not installed here, which kernels/scale.py:3 imports", "pip install -e '.[kernels]'")
    assert "mend" not in answer.err


def test_another_module_that_is_missing_is_the_files_matter(repository, harness):
    repository.write("kernels/bad.py", "import torch\nimport numpie\n")
    check(harness("kernels"), 2, "kernels/bad.py:2: ModuleNotFoundError: No module named 'numpie'", "mend the line")


def test_a_case_without_a_reference_is_refused(repository, harness):
    text = (repository.root / "kernels/scale.py").read_text()
    repository.write("kernels/bad.py", text.replace("    reference=reference,\n", ""))
    check(harness("kernels"), 2, "kernels/bad.py", "reference")


def test_duplicate_names_are_both_named(repository, harness):
    text = (repository.root / "kernels/scale.py").read_text()
    repository.write("kernels/other.py", text.replace("KERNEL = Kernel(", 'KERNEL = Kernel(\n    name="scale",'))
    check(harness("kernels"), 2, "kernels/other.py", "kernels/scale.py")


@pytest.mark.parametrize("name", ["pyproject.toml", "jobs/matrix.toml"])
def test_bad_toml_names_the_file(repository, harness, name):
    repository.job("pass")
    repository.write(name, "[broken\n")
    check(harness("plan"), 2, name.rpartition("/")[2], "bad TOML")


def test_no_workspace_says_what_to_add(harness, tmp_path):
    check(harness("kernels", cwd=tmp_path), 2, "[tool.harness]")


def test_no_git_repository_says_git_init(harness, tmp_path, repository):
    import shutil

    shutil.copytree(repository.root, tmp_path / "plain", ignore=shutil.ignore_patterns(".git"))
    check(harness("submit", cwd=tmp_path / "plain"), 2, "git init")


def test_a_dirty_tree_is_run_shown_as_dirty_and_never_accepted(repository, harness):
    repository.job("pass")
    answer = harness("submit")
    assert answer.code == 0
    assert "(dirty)" in answer.out
    check(harness("baseline", "accept", "last"), 2, "dirty")
    repository.commit("now it is committed")
    missing = harness("diff", "HEAD~1..HEAD", "--no-compile")
    assert missing.code == 3
    assert "harness submit --ref HEAD" in missing.err


def test_unreadable_and_foreign_parquet_are_named(repository, harness):
    import pandas

    repository.job("pass")
    repository.commit("job")
    assert harness("submit").code == 0
    foreign = repository.root / "baselines/device=cpu/foreign.parquet"
    foreign.parent.mkdir(parents=True)
    pandas.DataFrame({"a": [1]}).to_parquet(foreign)
    check(harness("diff", "HEAD..HEAD"), 2, "foreign.parquet")
    foreign.write_bytes(b"PAR1 torn")
    check(harness("diff", "HEAD..HEAD"), 2, "foreign.parquet")


def test_the_same_records_on_both_sides_are_no_pass(repository, harness):
    repository.job("pass")
    repository.commit("job")
    assert harness("submit").code == 0
    check(harness("diff", "HEAD..HEAD"), 3, "both are one commit (HEAD is HEAD at ")
    check(harness("diff", "run:last..run:last"), 3, "both sides are the same records")


def test_an_empty_selection_is_no_pass(repository, harness):
    check(harness("submit", "--kind", "drift"), 3, "no cell is left", "`harness plan` shows")
    check(harness("plan", "--kind", "drift", "--matrix", "smoke"), 3, "no cell is left", "`harness plan --matrix smoke` shows")


@pytest.mark.parametrize(
    "args",
    [("runs",), ("show", "run:last"), ("baseline", "accept", "last"), ("diff", "HEAD..run:last"), ("check", "HEAD..run:last", "--dry-run")],
    ids=lambda args: args[0],
)
def test_no_verb_reads_a_store_that_is_not_there(harness, args):
    check(harness(*args, "--store", "nowhere"), 2, "the runs in nowhere", "no such folder", "leave --store out")


def test_an_unknown_run_of_a_store_leads_to_the_runs_of_that_store(repository, harness):
    (repository.root / "records").mkdir()
    check(harness("show", "run:last", "--store", "records"), 2, "make one with `harness submit --store records`")


def test_a_path_that_begins_with_dots_is_read(repository, harness):
    repository.job("pass")
    repository.commit("job")
    assert harness("submit").code == 0
    (run,) = (repository.root / ".harness/runs").glob("2*")
    (file,) = run.glob("records/*/*.parquet")
    for path in (f".harness/runs/{run.name}", f"./{file.relative_to(repository.root)}", f"../{file.relative_to(repository.root.parent)}"):
        check(harness("diff", f"run:last..{path}"), 3, "both sides are the same records")
