"""`harness baseline`: accept and list."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.commands.baseline import command
from harness.errors import StoreError, UnknownNameError

Say = Callable[..., str]
Put = Callable[..., object]
STATIC = {"kind": "static", "metric": "registers", "value": 32.0, "samples": None}


def sizes_hidden(text: str) -> list[str]:
    return re.sub(r"\d+\.\d", "N.N", text).splitlines()


def test_accept_says_what_it_wrote_and_left_out(put_run: Put, say: Say, workspace: Path) -> None:
    put_run(1, {}, STATIC, {"device": "b200", "metric": None, "value": None, "status": "no_capacity"})
    folder = workspace / "baselines"
    assert sizes_hidden(say(command, "accept", "run:last")) == [
        f"accepted: 2 records of h200, N.N KiB in {folder}/device=h200/run1.parquet",
        "left out: 1 no_capacity",
        "commit the files to keep them: baselines of 0123456789ab",
    ]
    assert sizes_hidden(say(command, "accept", "run1")) == [
        "run run1 was accepted before: nothing to do",
        f"there already: 2 records of h200, N.N KiB in {folder}/device=h200/run1.parquet",
        "left out: 1 no_capacity",
    ]


def test_accept_json(put_run: Put, say: Say, workspace: Path) -> None:
    put_run(1, {}, STATIC, STATIC | {"device": "cpu"})
    answer = json.loads(say(command, "accept", "run1", "--kind", "static", "--device", "cpu", "--format", "json"))
    (file,) = answer.pop("files")
    assert {
        "run_id": "run1",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "left_out": {"not asked for": 2},
        "already": False,
    } == answer
    path = workspace / "baselines" / "device=cpu" / "run1.parquet"
    assert {"device": "cpu", "path": str(path), "records": 1, "size_bytes": path.stat().st_size, "new": True} == file


def test_accept_refuses_a_run_that_failed(put_run: Put, say: Say) -> None:
    put_run(1, {}, exit_code=1)
    with pytest.raises(StoreError, match="it did not pass: exit code 1"):
        say(command, "accept", "run1")


def test_accept_refuses_a_device_that_the_run_lacks(put_run: Put, say: Say) -> None:
    put_run(1, {})
    with pytest.raises(UnknownNameError, match="known: h200"):
        say(command, "accept", "run1", "--device", "b200")


def test_list_is_a_table(put_run: Put, say: Say) -> None:
    for day in (1, 2):
        put_run(day, {}, STATIC)
        say(command, "accept", f"run{day}")
    assert sizes_hidden(say(command, "list")) == [
        "device  run   measured          commit        code digest   kinds           cells  records   KiB",
        "h200    run2  2026-01-02 12:00  0123456789ab  c0dec0dec0de  latency static      1        2  N.N",
        "h200    run1  2026-01-01 12:00  0123456789ab  c0dec0dec0de  latency static      1        2  N.N",
    ]


def test_list_json(put_run: Put, say: Say) -> None:
    put_run(1, {})
    say(command, "accept", "run1")
    (row,) = json.loads(say(command, "list", "--format", "json"))
    assert ("h200", "run1", ["latency"], 1, 1) == tuple(row[name] for name in ("device", "run_id", "kinds", "cells", "records"))


def test_nothing_accepted_says_what_to_do(workspace: Path, say: Say) -> None:
    assert say(command, "list").startswith(f"no baselines in {workspace}/baselines: accept a run")
    assert json.loads(say(command, "list", "--format", "json")) == []


@pytest.mark.parametrize("arguments", [["--help"], ["accept", "--help"], ["list", "--help"]], ids=" ".join)
def test_help_has_an_example(arguments: list[str]) -> None:
    assert "Example" in CliRunner().invoke(command, arguments).stdout
