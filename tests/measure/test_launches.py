"""What stands for a kernel launch in a record: hash, grid and configuration."""

from __future__ import annotations

from pathlib import Path

from harness.measure.binary import Resources
from harness.measure.launches import Binary, Configured, Launch


def configured(config: str, sha256: str = "a", grid: tuple[int, int, int] = (4, 1, 1)) -> Configured:
    binary = Binary("add", b"", Path("add.ptx"), Resources(26, 0, 896), sha256)
    return Configured("add", binary, grid, config, shared_bytes=0, signature={}, attributes={}, spill_bytes=0)


def test_one_configuration_is_written_as_it_is() -> None:
    launch = Launch((configured("BLOCK=256"),))
    assert ("a", "4,1,1", "BLOCK=256") == (launch.binary_hash, launch.grid, launch.config)


def test_several_are_written_side_by_side() -> None:
    launch = Launch((configured("BLOCK=256", grid=(16, 1, 1)), configured("BLOCK=1024")))
    assert ("16,1,1 | 4,1,1", "BLOCK=256 | BLOCK=1024") == (launch.grid, launch.config)


def test_the_hash_of_several_is_that_of_the_set() -> None:
    one, two = configured("BLOCK=256"), configured("BLOCK=1024", "b")
    assert Launch((one, two)).binary_hash == Launch((two, one)).binary_hash


def test_binaries_that_trade_configurations_have_another_hash() -> None:
    first = Launch((configured("BLOCK=256", "a"), configured("BLOCK=1024", "b")))
    traded = Launch((configured("BLOCK=256", "b"), configured("BLOCK=1024", "a")))
    assert first.binary_hash != traded.binary_hash


def test_another_grid_of_one_configuration_is_another_hash() -> None:
    one, two = configured("BLOCK=256"), configured("BLOCK=1024", "b")
    assert Launch((one, two)).binary_hash != Launch((one, configured("BLOCK=1024", "b", (8, 1, 1)))).binary_hash


def test_a_configuration_that_no_longer_fits_changes_the_hash() -> None:
    one = configured("BLOCK=256")
    assert Launch((one,), ("add: out of shared memory: needs 2, the target has 1",)).binary_hash != Launch((one,)).binary_hash
