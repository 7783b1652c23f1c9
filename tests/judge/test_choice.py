"""Which configurations launches chose, and the time of those in which both sides chose the same."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge.choice import choices
from harness.judge.diff import judge
from harness.judge.model import Reason, Verdict
from harness.plan.jobs import ABBA

CELL = "toy/fused/M=1,dtype=bf16@h200"


def launch(record, arm: str, position: int, us: float | None, config: str | None, **columns):
    """A launch of a pair whose neighbour has the other arm."""
    place = {"arm": arm, "block": position // 4, "position": position, "launch": f"l{position}", "lease_id": "lease", "run_id": "r1"}
    build = {"binary_hash": [config or "?"], "grid": ["8"], "config": None if config is None else [config], "launcher_digest": "l"}
    return record(CELL, "latency", us, **{"converged": True, **place, **build, **columns})


def sides(record, base, head, **columns):
    """Base's and head's launches of ABBA blocks, each from (us, configuration)."""
    given = {"base": iter(base), "head": iter(head)}
    found = {"base": [], "head": []}
    for position in range(len(base) + len(head)):
        arm = ABBA[position % 4]
        us, config = next(given[arm])
        found[arm].append(launch(record, arm, position, us, config, **columns))
    return found["base"], found["head"]


def rows(found) -> list[tuple[str, tuple[int, int], tuple[int, int], float | None]]:
    return [(row.config[0], row.chosen, row.compared, row.ratio) for row in found]


def test_one_configuration_in_every_launch_has_no_row(record) -> None:
    assert () == choices(*sides(record, [(100.0, "A")] * 6, [(101.0, "A")] * 6))


def test_the_time_is_of_the_pairs_in_which_both_chose_the_same(record) -> None:
    base = [(100.0, "A")] * 6
    head = [(101.0, "A"), (200.0, "B"), (101.0, "A"), (101.0, "A"), (200.0, "B"), (101.0, "A")]
    same, other = choices(*sides(record, base, head))
    assert [("A", (6, 4), (4, 4), pytest.approx(1.01)), ("B", (0, 2), (0, 0), None)] == rows([same, other])
    assert (100.0, 101.0, None) == (same.base, same.head, same.absent)
    assert (None, None, "no launch of base chose B") == (other.base, other.head, other.absent)


def test_no_number_mixes_two_configurations(record) -> None:
    base = [(100.0, "A"), (50.0, "B")] * 3
    head = [(110.0, "A"), (50.0, "B")] * 3
    found = rows(choices(*sides(record, base, head)))
    assert [("A", (3, 3), (3, 3), pytest.approx(1.1)), ("B", (3, 3), (3, 3), pytest.approx(1.0))] == found


def test_a_configuration_that_both_chose_but_in_no_pair_has_words_and_no_number(record) -> None:
    base, head = [(100.0, "A"), (50.0, "B")] * 3, [(50.0, "B"), (100.0, "A")] * 3
    found = choices(*sides(record, base, head))
    assert {"no pair of launches chose A on both sides", "no pair of launches chose B on both sides"} == {row.absent for row in found}
    assert {None} == {value for row in found for value in (row.ratio, row.base, row.head)}


def test_launches_of_no_block_are_compared_by_configuration(record) -> None:
    base, head = sides(record, [(100.0, "A")] * 4 + [(50.0, "B")] * 2, [(102.0, "A")] * 2 + [(50.0, "B")] * 4, block=None)
    found = rows(choices(base, head))
    assert [("A", (4, 2), (4, 2), pytest.approx(1.02)), ("B", (2, 4), (2, 4), pytest.approx(1.0))] == found


def test_a_launch_that_does_not_know_its_configuration_counts_for_nothing(record) -> None:
    base, head = sides(record, [(100.0, "A")] * 6, [(101.0, None)] * 6)
    assert () == choices(base, head)
    some = [launch(record, r.arm, r.position, 200.0, "B") if n < 2 else r for n, r in enumerate(head)]
    assert [("A", (6, 0)), ("B", (0, 2))] == [(row.config[0], row.chosen) for row in choices(base, some)]


def test_an_invalid_launch_counts_for_nothing(record) -> None:
    base, head = sides(record, [(100.0, "A")] * 6, [(100.0, "A")] * 6)
    head[0] = launch(record, "head", head[0].position, None, "B", status="invalid")
    assert () == choices(base, head)


def test_a_call_of_several_kernel_launches_is_equal_in_all_of_them(record) -> None:
    base = [record(CELL, "latency", 100.0, config=["A", "C"], launch="1")]
    head = [record(CELL, "latency", 100.0, config=["A", "D"], launch="1")]
    assert ["no launch of head chose A | C", "no launch of base chose A | D"] == [row.absent for row in choices(base, head)]


class TestFinding:
    def judged(self, side, base, head):
        (finding,) = (f for f in judge(side("base", *base), side("head", *head)).findings if f.metric == "latency_us")
        return finding

    def test_a_regression_of_the_choice_alone_shows_that_the_code_is_as_fast(self, record, side) -> None:
        head = [(100.0, "A"), (200.0, "B"), (200.0, "B"), (100.0, "A"), (200.0, "B"), (200.0, "B")] * 3
        finding = self.judged(side, *sides(record, [(100.0, "A")] * 18, head))
        assert Verdict.REGRESSED is finding.verdict
        expected = {"config": ["A"], "chosen": [18, 6], "compared": [6, 6], "base": 100.0, "head": 100.0, "ratio": 1.0, "absent": None}
        assert expected == finding.why["same_configuration"][0]
        assert finding.why == json.loads(json.dumps(finding.why))

    def test_a_choice_that_only_a_later_launch_makes_is_no_proof(self, record, side) -> None:
        finding = self.judged(side, *sides(record, [(100.0, "A")] * 6, [(100.0, "A")] * 5 + [(200.0, "B")]))
        assert Reason.PROVED is not finding.reason
        assert [[6, 5], [0, 1]] == [row["chosen"] for row in finding.why["same_configuration"]]

    def test_a_choice_that_changed_nothing_is_said_all_the_same(self, record, side) -> None:
        finding = self.judged(side, *sides(record, [(100.0, "A")] * 6, [(100.0, "B")] * 6))
        assert (Verdict.UNCHANGED, [["A"], ["B"]]) == (finding.verdict, finding.why["changed"]["config"])
        assert ["no launch of head chose A", "no launch of base chose B"] == [r["absent"] for r in finding.why["same_configuration"]]

    def test_one_choice_everywhere_says_nothing(self, record, side) -> None:
        finding = self.judged(side, *sides(record, [(100.0, "A")] * 6, [(120.0, "A")] * 6, binary_hash=None))
        assert Verdict.REGRESSED is finding.verdict
        assert "same_configuration" not in finding.why

    def test_what_must_not_be_compared_has_no_times_of_one_configuration(self, record, side) -> None:
        base, head = sides(record, [(100.0, "A")] * 6, [(100.0, "A")] * 3 + [(100.0, "B")] * 3)
        other = [launch(record, r.arm, r.position, r.value, r.config[0], method="latency/2") for r in head]
        finding = self.judged(side, base, other)
        assert (Verdict.INCOMPARABLE, {}) == (finding.verdict, finding.why)


LAUNCHES = st.lists(st.tuples(st.sampled_from([50.0, 100.0, None]), st.sampled_from(["A", "B", "C", None])), min_size=6, max_size=6)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(base=LAUNCHES, head=LAUNCHES, block=st.sampled_from([{}, {"block": None}]))
def test_a_row_has_either_words_or_numbers_and_no_launch_is_counted_twice(record, base, head, block) -> None:
    found = choices(*sides(record, base, head, **block))
    for row in found:
        assert (row.ratio is None) == (row.absent is not None) == (row.base is None) == (row.head is None) == (row.compared == (0, 0))
        assert row.ratio is None or (math.isfinite(row.ratio) and all(0 < n <= m for n, m in zip(row.compared, row.chosen, strict=True)))
    assert len(found) == len({row.config for row in found}) != 1
    known = [sum(us is not None and config is not None for us, config in side) for side in (base, head)]
    assert not found or known == [sum(row.chosen[n] for row in found) for n in (0, 1)]
    assert all(sum(a.compared) >= sum(b.compared) for a, b in pairwise(found))
