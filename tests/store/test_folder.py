"""A folder on disk or elsewhere: files appear whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from pyarrow import fs

from harness.errors import HarnessError, StoreError, Undecided
from harness.store.folder import Folder, open_folder


@pytest.fixture(params=["disk", "file-uri", "elsewhere"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """The same folder by path, by URI, and on a file system that is not this machine's."""
    if request.param == "disk":
        return open_folder(tmp_path / "store")
    if request.param == "file-uri":
        return open_folder((tmp_path / "store").as_uri())
    return Folder(fs._MockFileSystem(), "bucket/store")


def test_what_is_written_is_read(folder: Folder) -> None:
    folder.write("a/b/file.bin", b"\0one")
    folder.write("a/b/file.bin", b"two")
    assert (b"two", 3) == (folder.read("a/b/file.bin"), folder.size("a/b/file.bin"))
    assert b"two" == folder.at("a").read("b/file.bin")


def test_lists_folders_and_files(folder: Folder) -> None:
    for path in ("b/x.parquet", "a/deep/y.parquet", "a/notes.txt", "z.parquet"):
        folder.write(path, b"")
    assert ["a", "b"] == folder.children()
    assert ["a/deep/y.parquet", "b/x.parquet", "z.parquet"] == folder.files(".parquet")


def test_hidden_names_do_not_count(folder: Folder) -> None:
    for path in (".git/x.parquet", "a/_old/x.parquet", "a/.x.parquet"):
        folder.write(path, b"")
    assert ["a"] == folder.children()
    assert folder.files(".parquet") == []


def test_a_folder_that_does_not_exist_is_empty(folder: Folder) -> None:
    assert ([], [], None) == (folder.children(), folder.files(""), folder.size("x"))


def test_reading_what_is_not_there_names_it(folder: Folder) -> None:
    with pytest.raises(StoreError, match=r"asked: .*store/run\.json"):
        folder.read("run.json")


def test_a_folder_below_a_hidden_one_counts(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / ".harness" / "runs")
    folder.write("r1/x.parquet", b"")
    assert (["r1"], ["r1/x.parquet"]) == (folder.children(), folder.files(".parquet"))


@pytest.mark.parametrize(
    ("number", "error", "exit_code"),
    [(errno.ENOSPC, Undecided, 3), (errno.EDQUOT, Undecided, 3), (errno.EIO, StoreError, 2)],
    ids=["full-disk", "full-quota", "broken-disk"],
)
def test_a_write_that_fails_leaves_what_was_there_and_want_of_room_is_no_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[HarnessError], exit_code: int
) -> None:
    folder = open_folder(tmp_path)
    folder.write("a/x", b"old")

    def fail(_fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(error) as caught:
        folder.write("a/x", b"new")
    assert (exit_code, True) == (caught.value.exit_code, os.strerror(number) in caught.value.found)
    assert b"old" == folder.read("a/x")
    assert ["x"] == sorted(entry.name for entry in (tmp_path / "a").iterdir())


def test_relative_paths_stay_where_they_were_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = open_folder("runs")
    monkeypatch.chdir("/")
    folder.write("x", b"1")
    assert (tmp_path / "runs" / "x").read_bytes() == b"1"


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(StoreError, match="the store nowhere://x"):
        open_folder("nowhere://x")
