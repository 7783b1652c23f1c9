"""The conclusion is total: any mix of statuses, values and plans gives each expected cell and metric one verdict, and an exit code."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from harness import metrics
from harness.judge.diff import judge
from harness.judge.model import Policy, Verdict
from harness.metrics import Rule
from harness.records import Cell, Status

CELLS = [f"toy/fused/M=1,dtype=bf16@{device}" for device in ("cpu", "h200")]
METRICS = {
    "static": ["registers", "spill_bytes", "shared_bytes"],
    "correctness": ["rel_l2_error", "cosine"],
    "drift": ["drift_rel_error@1", "drift_rel_error@10", "drift_cosine@1"],
    "latency": ["latency_us", "worst_step_us", "gbps", "interpreter_us"],
}
VALUES = st.sampled_from([0.0, 5e-324, 0.001, 0.0021, 9.0, 10.0, 12.0, 1e300, None])
COLUMNS = st.fixed_dictionaries(
    {},
    optional={
        "data": st.sampled_from(["a/1", "b/1"]),
        "data_hash": st.sampled_from(["d0", "d1"]),
        "method": st.sampled_from(["x/1", "x/2+aa", None]),
        "reason": st.sampled_from(["api", "words"]),
        "binary_hash": st.sampled_from([["b"], [], ["b", "c"]]),
        "environment": st.sampled_from([{}, {"triton": "3.6"}, {"gpu_model": None}]),
        "unit": st.sampled_from(["GPU-1", "GPU-2", None]),
    },
)


@st.composite
def sides(draw, record, side, ref):
    records = []
    for cell in CELLS:
        for kind, names in METRICS.items():
            for attempt in range(draw(st.sampled_from([1, 1, 0, 2]))):
                for name in draw(st.lists(st.sampled_from([*names, None]), unique=True)):
                    status = draw(st.sampled_from(Status))
                    columns = {"attempt": attempt, "status": str(status), **draw(COLUMNS)}
                    records.append(record(cell, kind, draw(VALUES) if name else None, metric=name, **columns))
    planned = st.lists(st.tuples(st.sampled_from(CELLS), st.sampled_from(sorted(METRICS))), unique=True).map(tuple) | st.none()
    return side(ref, *records, expect=draw(planned), limit=draw(st.sampled_from([None, 0.0, 0.01])))


POLICIES = st.builds(
    Policy,
    fail_on=st.frozensets(st.sampled_from(Verdict)),
    require=st.frozensets(st.sampled_from(["cpu", "h200", "b200"])),
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data(), policy=POLICIES)
def test_every_expected_cell_has_one_verdict_a_metric_and_the_exit_code_follows(record, side, data, policy) -> None:
    base, head = data.draw(sides(record, side, "base")), data.draw(sides(record, side, "head"))
    diff = judge(base, head, policy)

    expected = {(e.cell, e.kind) for s in (base, head) for e in s.expected or ()} | {
        (r.cell, r.kind) for s in (base, head) for r in s.records
    }
    assert expected == {(f.cell, f.kind) for f in diff.findings}

    times = Counter((f.cell, f.kind, f.metric) for f in diff.findings)
    assert {1} >= set(times.values())

    whole = {(f.cell, f.kind) for f in diff.findings if metrics.metric(f.metric).rule is Rule.CONTEXT}
    assert set() == whole

    codes = {f.exit_code for f in diff.findings}
    assert {0, 1, 3} >= codes
    assert diff.exit_code in (0, 1, 3)
    assert (1 in codes) == (diff.exit_code == 1)
    assert 3 not in codes or diff.exit_code != 0

    assert len(diff.findings) == sum(diff.counts.values())
    assert set(Verdict) == set(diff.counts)
    assert all(f.ratio is None or math.isfinite(f.ratio) for f in diff.findings)
    for row in diff.coverage:
        assert row.cells == row.compared + sum(row.others.values())


@settings(max_examples=40, deadline=None, derandomize=True)
@given(status=st.sampled_from(Status), kind=st.sampled_from(sorted(METRICS)))
def test_what_is_not_ok_at_head_never_passes_as_compared(record, side, status, kind) -> None:
    cell = CELLS[0]
    name = METRICS[kind][0]
    base = side("base", record(cell, kind, 1.0, metric=name))
    head = side("head", record(cell, kind, 1.0 if status is Status.OK else None, metric=name, status=str(status)), limit=2.0)
    diff = judge(base, head)
    assert (status is Status.OK and kind != "latency") == (diff.exit_code == 0)
    assert Cell.parse(cell) in {f.cell for f in diff.findings}
