"""Records to a table and back: nothing is lost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import StoreError
from harness.records import ENVIRONMENT, Record, Status
from harness.store.files import encode, file_name, read_file
from harness.store.folder import open_folder
from harness.store.schema import SCHEMA, current
from harness.store.tables import fingerprint, from_table, sort_records, to_table

Make = Callable[..., Record]

doubles = st.floats(allow_nan=False)
integers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=20)
strings = st.none() | texts
string_lists = st.none() | st.lists(texts, max_size=3)
evidence = st.fixed_dictionaries(
    {},
    optional={
        "ring": integers,
        "nodes": integers,
        "floors": st.fixed_dictionaries({}, optional={"empty_us": doubles, "touch_us": doubles}),
        "tick": doubles,
        "canaries": st.lists(doubles, max_size=3),
    },
)
environment = st.fixed_dictionaries({}, optional={name: integers if name == "memory_bytes" else texts for name in ENVIRONMENT})
instants = st.datetimes(timezones=st.just(UTC)).map(lambda instant: instant.isoformat())

STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "run_id": st.just("r1"),
    "device": st.just("h200"),
    "status": st.sampled_from([str(status) for status in Status]),
    "value": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "samples": st.none() | st.lists(doubles, max_size=5),
    "duration": st.none() | doubles,
    "converged": st.none() | st.booleans(),
    "dirty": st.booleans(),
    "evidence": evidence,
    "environment": environment,
    "started_at": st.none() | instants,
    **dict.fromkeys(("attempt", "seq"), integers),
    **dict.fromkeys(("block", "position", "compiles_in_lease"), st.none() | integers),
    **dict.fromkeys(("binary_hash", "grid", "config"), string_lists),
    **dict.fromkeys(("job_id", "arm", "code_digest", "kernel", "variant", "case", "dtype", "kind"), texts),
}
records = st.builds(Record, **{name: STRATEGIES.get(name, strings) for name in SCHEMA.names if name != "schema_version"})


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(st.lists(records, max_size=4))
def test_a_file_gives_back_every_record_exactly(written: list[Record]) -> None:
    name = file_name("h200", "r1")
    with tempfile.TemporaryDirectory() as place:
        folder = open_folder(place)
        folder.write(name, encode(written, name, 3))
        read = read_file(folder, name)
    assert sort_records(written) == read
    assert [fingerprint(record) for record in sort_records(written)] == [fingerprint(record) for record in read]  # -0.0 is not 0.0


def test_order_is_kernel_variant_case_kind_metric_arm_seq(make_record: Make) -> None:
    ordered = [
        make_record(kernel="a", variant="z"),
        make_record(kernel="b", variant="a", case="z"),
        make_record(kernel="b", variant="b", case="a", kind="z"),
        make_record(kernel="b", variant="b", case="b", kind="a", metric=None),
        make_record(kernel="b", variant="b", case="b", kind="a", metric="z", arm="base", seq=9),
        make_record(kernel="b", variant="b", case="b", kind="a", metric="z", arm="head", seq=1),
        make_record(kernel="b", variant="b", case="b", kind="a", metric="z", arm="head", seq=2),
    ]
    assert ordered == sort_records(reversed(ordered))


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"samples": ["x"]}, "column samples"),
        ({"seq": 2**63}, "column seq"),
        ({"reason": 3}, "column reason"),
        ({"reason": "\ud800"}, "column reason"),
        ({"grid": "1,2,3"}, "column grid"),
        ({"evidence": {"rings": 3}}, "column evidence: unknown key 'rings'"),
        ({"evidence": {"floors": {"touch": 1.0}}}, "column evidence: unknown key 'floors.touch'"),
        ({"environment": {"cuda": "13"}}, "column environment: unknown key 'cuda'"),
        ({"environment": {"memory_bytes": "big"}}, "column environment"),
        ({"started_at": "yesterday"}, "column started_at"),
        ({"started_at": "2026-01-31T12:00:00"}, "has no offset from UTC"),
        ({"kernel": None}, "1 of 1 rows have no kernel"),
        ({"schema_version": 2}, r"schema version \[2\]"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_a_column_cannot_hold_is_refused(make_record: Make, columns: dict[str, Any], found: str) -> None:
    with pytest.raises(StoreError, match=found):
        to_table([make_record(**columns)], "r1")


def test_normal_forms(make_record: Make) -> None:
    record = make_record(
        started_at="2026-01-31T13:00:00.5+01:00", evidence={"ring": 3, "nodes": None}, environment={"id": "e", "driver": None}
    )
    (read,) = from_table(to_table([record], "r1"), "r1")
    assert read.started_at == "2026-01-31T12:00:00.500000+00:00"
    assert ({"ring": 3}, {"id": "e"}) == (read.evidence, read.environment)


def test_no_records_are_an_empty_table() -> None:
    table = to_table([], "r1")
    assert (SCHEMA, 0) == (table.schema, table.num_rows)
    assert from_table(table, "r1") == []


def test_current_needs_a_digest(make_record: Make) -> None:
    with pytest.raises(StoreError, match=r"no harness\.digest"):
        current(to_table([make_record()], "r1"), "r1")


def test_records_of_one_environment_do_not_share_it(make_record: Make) -> None:
    same = {"id": "e", "torch": "2.11.0"}
    first, second, other = from_table(to_table([make_record(environment=e) for e in (same, same, {})], "r1"), "r1")
    first.environment["torch"] = "another"
    assert (same, {}) == (second.environment, other.environment)
