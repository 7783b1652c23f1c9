"""Whose the processes on a GPU are."""

import os

import pytest

from harness.devices.clients import Clients

HARNESS, SERVER, LAUNCH, OTHER = 100, 110, 111, 500


@pytest.fixture
def proc(tmp_path):
    """A machine's processes: the harness, its fork server, a launch of that, and a stranger."""
    for pid, parent, name in (
        (1, 0, "init"),
        (HARNESS, 1, "harness"),
        (SERVER, HARNESS, "python"),
        (LAUNCH, SERVER, "a (b) c"),
        (OTHER, 1, "x"),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {pid} {pid} 0 -1 0")
    return tmp_path


@pytest.fixture
def clients(proc):
    return Clients(HARNESS, proc)


def test_what_descends_from_the_harness_is_its_own(clients):
    assert [[], []] == [clients.others([LAUNCH]), clients.others([LAUNCH])]


def test_a_stranger_is_one_from_its_second_look_on(clients):
    assert [[], [OTHER], []] == [clients.others(listed) for listed in ([LAUNCH, OTHER], [LAUNCH, OTHER], [LAUNCH])]


def test_a_process_of_another_namespace_is_a_stranger(clients):
    assert [[], [9999]] == [clients.others([LAUNCH, 9999]) for _ in range(2)]


def test_a_launch_that_has_ended_and_is_still_listed_stays_the_harnesss_own(clients, proc):
    clients.others([LAUNCH])
    (proc / str(LAUNCH) / "stat").unlink()
    assert [[], []] == [clients.others([LAUNCH]), clients.others([LAUNCH])]


def test_a_launch_that_ends_before_it_is_looked_at_is_no_stranger(clients):
    assert [[], [], []] == [clients.others(listed) for listed in ([LAUNCH], [LAUNCH, 9999], [LAUNCH])]


@pytest.mark.parametrize(
    "listed", [None, [], [9999], [OTHER]], ids=["not told", "nothing listed", "numbered otherwise", "a stranger alone"]
)
def test_nothing_is_known_until_one_of_the_harnesss_own_is_listed(clients, listed):
    assert [None, None] == [clients.others(listed), clients.others(listed)]


def test_this_process_descends_from_its_parent():
    assert [] == Clients(os.getppid()).others([os.getpid()])
