"""The file that keeps a unit's leases: of several users and writers, and never more than its end is read."""

import os
import stat
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.devices import history_file as module
from harness.devices.history import PastLease, Stack
from harness.devices.history_file import append_lease, history_file, read_leases

UUID = "GPU-0123/odd name"


def lease(number=0):
    return PastLease(f"2026-01-31T12:00:{number:06}", "r1", Stack("canary/2", None, "2.11.0", "3.6.0"), 50.0 + number, 800.0)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The folder of the host."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_unit_without_a_file_has_no_leases():
    assert [] == read_leases(UUID)
    assert not history_file(UUID).exists()


def test_leases_are_read_as_they_were_appended(place):
    for number in range(3):
        append_lease(UUID, lease(number))
    assert [lease(0), lease(1), lease(2)] == read_leases(UUID)
    assert ["harness-unit-GPU-0123_odd_name.history.jsonl"] == [file.name for file in place.iterdir()]
    assert [] == read_leases("GPU-other")


def test_every_user_may_append_whatever_the_umask_was():
    before = os.umask(0o077)
    try:
        append_lease(UUID, lease())
    finally:
        os.umask(before)
    assert 0o666 == stat.S_IMODE(history_file(UUID).stat().st_mode)


def test_a_file_that_is_there_is_opened_without_creating_it(monkeypatch):
    append_lease(UUID, lease())
    opened, real = [], os.open
    monkeypatch.setattr(os, "open", lambda path, flags, *mode: opened.append(flags) or real(path, flags, *mode))
    append_lease(UUID, lease())
    assert [False] == [bool(flags & os.O_CREAT) for flags in opened]


def test_a_torn_line_costs_itself_alone():
    append_lease(UUID, lease(0))
    with history_file(UUID).open("ab") as file:
        file.write(lease(1).to_line()[:30])
    assert [lease(0)] == read_leases(UUID)
    append_lease(UUID, lease(2))
    assert [lease(0), lease(2)] == read_leases(UUID)


def test_lines_of_several_writers_do_not_mix():
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: append_lease(UUID, lease(number)), range(200)))
    assert {lease(number) for number in range(200)} == set(read_leases(UUID))


def test_of_a_long_file_the_end_is_read(monkeypatch):
    for number in range(10):
        append_lease(UUID, lease(number))
    monkeypatch.setattr(module, "TAIL_BYTES", 3 * len(lease().to_line()) + 10)  # and a line is cut
    assert [lease(7), lease(8), lease(9)] == read_leases(UUID)


@pytest.mark.parametrize("text", [b"x" * (2 << 20) + b"\n", b"x" * (1 << 20), b'{"when": "2026'], ids=["a long line", "open", "torn"])
def test_an_end_that_hides_every_lease_is_an_error_until_the_next_is_appended(text):
    append_lease(UUID, lease(0))
    history_file(UUID).write_bytes((history_file(UUID).read_bytes() if len(text) > 100 else b"") + text)
    with pytest.raises(OSError, match="bytes hold no lease"):
        read_leases(UUID)
    append_lease(UUID, lease(1))
    assert [lease(1)] == read_leases(UUID)


def test_an_empty_file_is_no_error():
    for text in (b"", b"\n"):
        history_file(UUID).write_bytes(text)
        assert [] == read_leases(UUID)


def folder(file):
    file.mkdir()


def link(file):
    (file.parent / "elsewhere").write_bytes(lease().to_line())
    file.symlink_to(file.parent / "elsewhere")


WHY = r"it is no file|Is a directory|symbolic links"


@pytest.mark.parametrize("make", [folder, link, os.mkfifo], ids=["folder", "link", "pipe"])
def test_what_is_no_file_is_neither_read_nor_written(make):
    make(history_file(UUID))
    with pytest.raises(OSError, match=WHY):
        read_leases(UUID)
    with pytest.raises(OSError, match=WHY):
        append_lease(UUID, lease())


def test_a_folder_that_cannot_be_written_is_an_error_of_writing_alone(place, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc")  # read-only, for root too
    assert [] == read_leases(UUID)
    with pytest.raises(OSError, match=r"No such file|Read-only|denied"):
        append_lease(UUID, lease())


def test_a_full_disk_is_an_error(monkeypatch):
    append_lease(UUID, lease(0))
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:12]))
    with pytest.raises(OSError, match="12 of"):
        append_lease(UUID, lease(1))
