"""Failures of other tools that touch what is sent to GitHub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.report.github import Conclusion, concluding
from harness.report.github_place import read_place

CASES = {case["id"]: case for case in map(json.loads, (Path(__file__).parents[1] / "cases/diff.jsonl").read_text().splitlines())}


@pytest.mark.parametrize("n", CASES["d29"]["input"]["annotations"])
def test_d29_annotations_go_fifty_a_request_and_none_still_posts(n, document) -> None:
    annotations = [{"path": "k.py", "start_line": i, "end_line": i, "annotation_level": "failure", "message": "m"} for i in range(1, n + 1)]
    bodies = concluding(document, Conclusion.FAILURE, annotations)
    sent = [body["output"].get("annotations", []) for body in bodies]
    assert annotations == [one for batch in sent for one in batch]
    assert max(map(len, sent)) <= 50
    assert (max(1, -(-n // 50)), "completed") == (len(bodies), bodies[0]["status"])


def test_d30_the_check_is_of_the_pull_requests_head(tmp_path) -> None:
    event = CASES["d30"]["input"]["event"]
    file = tmp_path / "event.json"
    file.write_text(json.dumps({"pull_request": event["pull_request"]}))
    environ = {"GITHUB_EVENT_PATH": str(file), "GITHUB_SHA": event["GITHUB_SHA"], "GITHUB_REPOSITORY": "o/r", "GITHUB_TOKEN": "t"}
    assert CASES["d30"]["expected"] == f"posted to {read_place(environ).event_sha}"
