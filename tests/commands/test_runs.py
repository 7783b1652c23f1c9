"""`harness runs`: what a person and a program read of the stored runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.commands.runs import command
from harness.errors import StoreError

Say = Callable[..., str]
Put = Callable[..., object]


def test_text_is_a_table_newest_first(put_run: Put, say: Say) -> None:
    put_run(1, {}, {"kernel": "scan", "value": None, "status": "wrong", "device": "cpu"}, exit_code=1)
    put_run(2, {}, dirty=True, exit_code=None, finished_at=None, by_status=None)
    assert say(command).splitlines() == [
        "run   started           commit                matrix  devices   cells          result",
        "run2  2026-01-02 12:00  0123456789ab (dirty)  all     h200      -              unfinished",
        "run1  2026-01-01 12:00  0123456789ab          all     cpu h200  1 ok, 1 wrong  fail (exit 1)",
    ]


def test_json_is_one_object_a_run(put_run: Put, say: Say) -> None:
    put_run(1, {})
    put_run(2, {})
    rows = json.loads(say(command, "--format", "json"))
    assert ["run2", "run1"] == [row["run_id"] for row in rows]
    assert rows[1] == {
        "run_id": "run1",
        "ref": "main",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "tree": "7ee" * 10,
        "dirty": False,
        "code_digest": "c0de" * 10,
        "base_digest": None,
        "same_jobs": False,
        "matrix": "all",
        "started_at": "2026-01-01T12:00:00+00:00",
        "finished": True,
        "exit_code": 0,
        "devices": ["h200"],
        "by_status": {"ok": 1},
    }


def test_limit_says_what_it_left_out(put_run: Put, say: Say) -> None:
    for day in (1, 2, 3):
        put_run(day, {})
    lines = say(command, "--limit", "1").splitlines()
    assert (3, "and 2 older runs") == (len(lines), lines[-1])
    assert ["run3"] == [row["run_id"] for row in json.loads(say(command, "--limit", "1", "--format", "json"))]


def test_no_runs_say_what_to_do(workspace: Path, say: Say) -> None:
    assert say(command) == f"no runs in {workspace}/.harness/runs: make one with `harness submit`\n"
    assert json.loads(say(command, "--format", "json")) == []


def test_another_store(put_run: Put, say: Say, workspace: Path) -> None:
    put_run(1, {})
    (workspace / ".harness" / "runs").rename(workspace / "elsewhere")
    assert "run1" in say(command, "--store", (workspace / "elsewhere").as_uri())


@pytest.mark.parametrize("name", ["nowhere", "a file"])
def test_a_store_that_is_no_folder_is_an_error_and_not_an_empty_one(workspace: Path, say: Say, name: str) -> None:
    (workspace / "a file").touch()
    with pytest.raises(StoreError, match=f"the runs in {name}\nfound: no such folder\ndo next: name the folder"):
        say(command, "--store", name)


def test_a_store_without_runs_is_named_in_the_command_that_makes_one(workspace: Path, say: Say) -> None:
    (workspace / "a b").mkdir()
    assert say(command, "--store", "a b") == f"no runs in {workspace}/a b: make one with `harness submit --store 'a b'`\n"


def test_a_run_that_cannot_be_read_is_named_and_hides_no_other(put_run: Put, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_run(1, {})
    put_run(2, {})
    (workspace / ".harness" / "runs" / "run1" / "run.json").write_text("{")
    monkeypatch.chdir(workspace)
    done = CliRunner().invoke(command, [])
    assert ["run2"] == [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert done.stderr.startswith(f"unreadable: the run in {workspace}/.harness/runs/run1/run.json: it cannot be read: ")
    assert "or move the run's folder away\n" in done.stderr


def test_help_has_an_example() -> None:
    assert "harness runs --limit 5 --format json" in CliRunner().invoke(command, ["--help"]).stdout
