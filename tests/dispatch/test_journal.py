"""The journal: a line counts once it is whole on the disk, and nothing that counted is lost."""

import errno
import json
import os

import pytest

from harness.dispatch.journal import Again, Journal, read_entries
from harness.errors import HarnessError
from harness.records import Cell, Record


def record(seq: int) -> Record:
    return Record(
        seq=seq,
        kernel="norm",
        variant="fused",
        case="M=4,dtype=bf16",
        dtype="bf16",
        device="cpu",
        kind="latency",
        metric="latency_us",
        value=1.5,
        status="ok",
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run1" / "journal.jsonl"


@pytest.fixture
def journal(path):
    """A journal that holds two cells, open."""
    path.parent.mkdir()
    opened = Journal(path)
    opened.append([record(0), record(1)])
    opened.append([record(2)])
    yield opened
    opened.close()


def test_what_is_appended_is_read(journal, path):
    assert (path.stat().st_size, [[record(0), record(1)], [record(2)]]) == read_entries(path)


def test_a_journal_that_is_not_there_is_empty(path):
    assert (0, []) == read_entries(path)


def test_a_journal_torn_at_any_byte_of_its_last_line_drops_only_that_line(journal, path):
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(first, len(whole)):
        path.write_bytes(whole[:length])
        assert (first, [[record(0), record(1)]]) == read_entries(path), length


def test_a_torn_line_is_cut_off_before_the_next_is_written(path):
    path.parent.mkdir()
    torn = "".join(json.dumps([one.to_json() for one in entry]) + "\n" for entry in ([record(0), record(1)], [record(2)]))[:-5]
    path.write_text(torn)
    again = Journal(path)
    assert ([[record(0), record(1)]], 2) == (again.entries, again.seq)
    again.append([record(7)])
    again.close()
    assert [[record(0), record(1)], [record(7)]] == read_entries(path)[1]


def test_that_cells_are_measured_again_is_read(journal, path):
    cells = (("latency", record(0).cell), ("latency", Cell("scan", "fused", "N=8,dtype=fp32", "h200")))
    journal.begin_again(cells)
    journal.append([record(3)])
    assert [[record(0), record(1)], [record(2)], Again(cells), [record(3)]] == read_entries(path)[1]


def test_a_second_writer_is_refused(journal, path):
    before = path.read_bytes()
    with pytest.raises(HarnessError, match="another process is running it") as caught:
        Journal(path)
    assert caught.value.asked == "run run1"
    assert path.read_bytes() == before


@pytest.mark.parametrize("torn_at", [0, 10], ids=["at once", "half way"])
def test_a_write_that_fails_keeps_what_it_had(journal, path, monkeypatch, torn_at):
    before = path.read_bytes()
    write, room = os.write, [torn_at]

    def fill_the_disk(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = write(fd, data[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", fill_the_disk)
    with pytest.raises(HarnessError, match="No space left on device"):
        journal.append([record(3)])
    assert path.read_bytes() == before
    monkeypatch.undo()
    journal.append([record(3)])
    assert [[record(0), record(1)], [record(2)], [record(3)]] == read_entries(path)[1]


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "{}", "3", "null", '{"again": ["word"]}', '"word"', '["word"]', "[[]]", '[{"kernel": "norm"}]', "[" * 200_000],
    ids=[
        "torn",
        "empty",
        "object",
        "number",
        "null",
        "no cells",
        "text",
        "list of text",
        "list of lists",
        "a record of few columns",
        "deep",
    ],
)
class TestALineThatIsNoEntry:
    @pytest.fixture
    def broken(self, path, line):
        path.parent.mkdir()
        good = json.dumps([record(0).to_json()])
        path.write_text(f"{good}\n{line}\n{good}\n")
        return path

    def test_is_named(self, broken):
        with pytest.raises(HarnessError, match="line 2 cannot be read") as caught:
            read_entries(broken)
        assert str(broken) in caught.value.asked

    def test_does_not_keep_the_journal_locked(self, broken):
        with pytest.raises(HarnessError, match="line 2 cannot be read"):
            Journal(broken)
        broken.write_text("")
        Journal(broken).close()
