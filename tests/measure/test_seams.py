"""Replacing an attribute of another library."""

from __future__ import annotations

import functools

import pytest

from harness.measure.seams import SeamError, replaced, require


class Base:
    inherited = 1


class Owner(Base):
    own = 2

    @functools.cached_property
    def cached(self) -> int:
        return 3


@pytest.mark.parametrize("name", ["own", "inherited"])
def test_an_attribute_is_replaced_and_restored(name: str) -> None:
    before = dict(vars(Owner))
    with replaced(Owner, name, 7):
        assert getattr(Owner, name) == 7
    assert dict(vars(Owner)) == before


def test_it_is_restored_after_an_error() -> None:
    with pytest.raises(KeyError), replaced(Owner, "own", 7):
        raise KeyError
    assert Owner.own == 2


def test_a_cached_property_that_was_not_read_is_not_read_afterwards() -> None:
    owner = Owner()
    with replaced(owner, "cached", 7):
        assert owner.cached == 7
    assert vars(owner) == {}


def test_an_attribute_that_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(SeamError, match=r"Owner\.gone"), replaced(Owner, "gone", 7):
        pytest.fail("the block ran")
    with pytest.raises(SeamError, match=r"functools\.gone"):
        require(functools, "gone")
