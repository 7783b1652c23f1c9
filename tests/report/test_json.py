"""JSON is the source of every other format."""

from __future__ import annotations

import json

from harness.judge.model import Verdict
from harness.report.json import to_json


def test_golden(sample, golden) -> None:
    golden("diff.json", json.dumps(to_json(sample), indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def test_every_verdict_is_counted_zeros_included(clean) -> None:
    counts = to_json(clean)["counts"]
    assert list(map(str, Verdict)) == list(counts)
    assert {0, 1} == set(counts.values())


def test_both_sides_are_named_with_what_stands_for_them(sample) -> None:
    expected = {"ref": "main", "commit": "a" * 40, "code_digest": "a" * 64, "distance": 2, "dirty": False}
    assert expected == to_json(sample)["base"]


def test_every_reason_is_put_into_words(sample) -> None:
    data = to_json(sample)
    assert {f["reason"] for f in data["findings"]} == set(data["reasons"])
    assert all(data["reasons"].values())


def test_only_rules_that_judged_are_quoted(clean) -> None:
    (rule,) = to_json(clean)["rules"]
    assert rule.startswith("rel_l2_error, drift_rel_error: DRIFTED over its tolerance")
