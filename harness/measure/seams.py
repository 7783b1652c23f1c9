"""Replaces one attribute of another library for the length of a block, and says so when the attribute is not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from harness.errors import HarnessError

_ABSENT = object()


class SeamError(HarnessError):
    """A library has no longer the part that the harness hooks into."""


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set `owner.name` to `value` inside the block; an attribute that was inherited is inherited again afterwards.

    Raises:
        SeamError: `owner` has no such attribute, so that whoever calls it would never reach `value`.
    """
    own = vars(owner).get(name, _ABSENT)  # before `require`, which makes an own attribute of a cached property
    require(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def require(owner: Any, name: str) -> Any:
    """`owner.name`.

    Raises:
        SeamError: there is none.
    """
    if not hasattr(owner, name):
        where = getattr(owner, "__qualname__", getattr(owner, "__name__", type(owner).__name__))
        raise SeamError(f"hook into {where}.{name}", "this version of the library has no such attribute", "use a tested version of it")
    return getattr(owner, name)
