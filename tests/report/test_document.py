"""A diff that is read back: nothing in it is trusted but its shape."""

from __future__ import annotations

import copy
import json

import pytest

from harness.report import document as module
from harness.report.document import DocumentError, read_document
from harness.report.json import to_json


@pytest.fixture
def write(tmp_path):
    def put(data):
        file = tmp_path / "diff.json"
        file.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
        return file

    return put


def changed(document, path, value):
    """A copy with one value changed: `findings.0.cell`; `...` takes the key away."""
    data = copy.deepcopy(document)
    *way, last = [int(p) if p.isdecimal() else p for p in path.split(".")]
    place = data
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return data


def test_reads_what_a_diff_prints(write, sample, clean, nothing, marked) -> None:
    for diff in (sample, clean, nothing, marked):
        expected = json.loads(json.dumps(to_json(diff, ["a note"])))
        assert expected == read_document(write(expected))


def test_keys_it_does_not_know_are_no_fault(write, document) -> None:
    assert {"a": 1} == read_document(write({**document, "later": {"a": 1}}))["later"]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"),
        (b"FAIL (exit code 1)\n", "no JSON"),
        (b"\xff\xfe\x00", "no JSON"),
        (b'{"format": NaN}', "no JSON: NaN is no number of JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "the document: [] is not an object"),
        (b"{}", "the document: no 'format'"),
        (b'{"format": "1"}', "format: '1' is not one of 1"),
    ],
    ids=["empty", "text", "bytes", "nan", "deep", "list", "no-keys", "format-as-text"],
)
def test_what_is_no_diff_is_refused(write, data, found) -> None:
    with pytest.raises(DocumentError) as error:
        read_document(write(data))
    assert error.value.exit_code == 2
    assert error.value.found.startswith(found)
    assert "diff.json" in error.value.asked
    assert error.value.do


def test_a_newer_format_is_named_with_what_reads_it(write, document) -> None:
    with pytest.raises(DocumentError) as error:
        read_document(write({**document, "format": 2, "findings": "of another form"}))
    assert "format 2; this harness reads format 1" == error.value.found
    assert error.value.do.startswith("install a newer harness")


def test_an_absent_file_is_named(tmp_path) -> None:
    with pytest.raises(DocumentError, match="No such file") as error:
        read_document(tmp_path / "absent.json")
    assert "absent.json" in error.value.asked


def test_a_file_that_is_too_large_is_not_read(write, document, monkeypatch) -> None:
    monkeypatch.setattr(module, "SIZE_LIMIT", 1 << 10)
    with pytest.raises(DocumentError, match="more than 0 MiB"):
        read_document(write(document))


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("findings", ..., "no 'findings'"),
        ("findings", {}, "findings: {} is not a list"),
        ("findings.0.cell", "@octocat", "findings.0.cell: "),
        ("findings.0.verdict", "PASSED", "findings.0.verdict: 'PASSED' is not one of BROKEN"),
        ("findings.0.metric", "x | @octocat", "findings.0.metric: "),
        ("findings.0.reason", "[x](y)", "findings.0.reason: "),
        ("findings.0.base", True, "findings.0.base: True is not a finite number"),
        ("findings.0.base", 10**400, "findings.0.base: "),
        ("findings.0.detail", "x" * 20_001, "findings.0.detail: a text of 20001 characters"),
        ("findings.0.detail", "\ud800", "findings.0.detail: "),
        ("findings.0.exit_code", 2, "findings.0.exit_code: 2 is not one of 0, 1, 3"),
        ("findings.0.why.metrics", {"registers": [1]}, "findings.0.why.metrics.registers: [1] is not a list of 2"),
        ("findings.0.why.changed", {"config": [1, 2]}, "findings.0.why.changed.config: 1 is not a text"),
        ("head.commit", "main", "head.commit: 'main' is not of the form"),
        ("head.dirty", "no", "head.dirty: 'no' is not true or false"),
        ("gpus", {"@octocat": True}, "gpus: '@octocat' is not of the form"),
        ("counts.BROKEN", -1, "counts.BROKEN: -1 is not a count"),
        ("exit_code", 0, "the document: exit_code 0, though a finding makes it 1"),
        ("counts.BROKEN", 0, "the document: counts are not those of the findings"),
        ("reasons.crash", ..., "the document: reasons do not explain 'crash'"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "value",
)
def test_another_shape_is_refused_and_its_place_named(write, document, path, value, where) -> None:
    with pytest.raises(DocumentError) as error:
        read_document(write(changed(document, path, value)))
    assert where in error.value.found


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("marks", {}, "marks: {} is not a list"),
        ("marks.0.suspicion", "@octocat", "marks.0.suspicion: '@octocat' is not one of one_sided, untouched_moved"),
        ("marks.0.device", "h200 | x", "marks.0.device: "),
        ("marks.0.slower", -1, "marks.0.slower: -1 is not a count"),
        ("marks.0.reproduce", ..., "marks.0: no 'reproduce'"),
        ("why", [], "why.same_configuration: "),
        ("why", [{"config": ["A"]}], "why.same_configuration.0: no 'chosen'"),
    ],
    ids=["list", "suspicion", "device", "count", "command", "no-rows", "row"],
)
def test_marks_and_choices_of_another_shape_are_refused(write, marked, path, value, where) -> None:
    data = json.loads(json.dumps(to_json(marked)))
    if path == "why":
        tuned = next(n for n, f in enumerate(data["findings"]) if "same_configuration" in f["why"])
        path, value = f"findings.{tuned}.why.same_configuration", value or {}
    with pytest.raises(DocumentError) as error:
        read_document(write(changed(data, path, value)))
    assert where in error.value.found


def test_a_document_from_before_there_were_marks_is_read(write, document) -> None:
    older = changed(document, "marks", ...)
    assert older == read_document(write(older))


@pytest.mark.parametrize(
    "reason", [None, "no_record", "skipped", "same_code"], ids=["no finding", "missing", "skipped on both sides", "equal code alone"]
)
def test_a_pass_without_a_comparison_is_refused(write, clean, reason) -> None:
    data = json.loads(json.dumps(to_json(clean)))
    verdict = {"no_record": "MISSING", "skipped": "UNCHANGED", "same_code": "UNCHANGED"}.get(reason)
    findings = [{**data["findings"][0], "verdict": verdict, "reason": reason, "exit_code": 0}] if reason else []
    counts = dict.fromkeys(data["counts"], 0) | ({verdict: 1} if reason else {})
    passing = {**data, "exit_code": 0, "findings": findings, "counts": counts, "reasons": {str(reason): "why"}, "coverage": []}
    with pytest.raises(DocumentError) as error:
        read_document(write(passing))
    assert "the document: exit_code 0, though no finding compares anything" == error.value.found


def test_a_pass_of_new_results_beside_equal_code_is_read(write, clean) -> None:
    data = json.loads(json.dumps(to_json(clean)))
    good = {**data["findings"][0], "kind": "correctness", "metric": "rel_l2_error", "exit_code": 0}
    findings = [{**good, "verdict": "UNCHANGED", "reason": "same_code"}, {**good, "verdict": "NEW", "reason": "new_cell"}]
    counts = dict.fromkeys(data["counts"], 0) | {"UNCHANGED": 1, "NEW": 1}
    reasons = {"same_code": "why", "new_cell": "why"}
    passing = {**data, "exit_code": 0, "findings": findings, "counts": counts, "reasons": reasons, "coverage": []}
    assert passing == read_document(write(passing))
    assert 3 == read_document(write({**passing, "exit_code": 3}))["exit_code"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../up.py", "kernels/../../up.py", "..", "a\nb.py", ""])
def test_a_source_outside_of_the_repository_is_refused(write, document, path) -> None:
    with pytest.raises(DocumentError, match=r"sources\.norm\.path"):
        read_document(write({**document, "sources": {"norm": {"path": path, "line": 1}}}))
