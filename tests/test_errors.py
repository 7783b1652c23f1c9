"""Errors that name what is known: all of it where it is little, the nearest where it is much."""

from __future__ import annotations

from harness.errors import FEW, NEAREST, UnknownNameError

CASES = [f"M={m},N=5120,dtype={dtype}" for m in range(200) for dtype in ("bf16", "fp32")]


def test_a_few_names_are_all_given() -> None:
    error = UnknownNameError.of("kind", "latancy", ["static", "latency"])
    assert ("kind 'latancy'", "known: latency, static", "use 'latency'") == (error.asked, error.found, error.do)


def test_no_name_at_all_is_said() -> None:
    assert "known: (none)" == UnknownNameError.of("kernel", "x", []).found


def test_of_many_names_the_nearest_are_given_the_closest_first() -> None:
    error = UnknownNameError.of("case", "M=17,N=5120", CASES, lists="`harness kernels show NAME`")
    assert error.found.startswith("the nearest of those known: M=17,N=5120,dtype=")
    assert error.found.endswith(f"; and {len(CASES) - NEAREST} more")
    assert NEAREST == error.found.count("dtype=")
    assert error.do.startswith("use 'M=17,N=5120,dtype=")
    assert error.do.endswith("; `harness kernels show NAME` lists all")
    assert 800 > len(str(error))


def test_many_names_of_which_none_is_like_it_are_cut_too() -> None:
    error = UnknownNameError.of("case", "zzz", CASES)
    assert NEAREST == error.found.count("dtype=")
    assert "choose one of those named above" == error.do


def test_as_many_as_fit_are_not_cut() -> None:
    assert FEW == UnknownNameError.of("case", "zzz", CASES[:FEW]).found.count("dtype=")


def test_names_with_commas_are_told_apart() -> None:
    assert "known: M=1,N=8; M=2,N=8" == UnknownNameError.of("case", "M=3", ["M=1,N=8", "M=2,N=8"]).found
