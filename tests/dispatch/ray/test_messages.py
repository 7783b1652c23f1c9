"""What is said survives the way; what is no message does not."""

import dataclasses
import json
from pathlib import Path

import pytest

from harness.dispatch.ray.messages import (
    MAX_CELL,
    MAX_LINE,
    BadMessage,
    cell_from_text,
    cell_to_text,
    context_from_json,
    context_to_json,
    job_from_json,
    job_to_json,
    line,
    read_line,
)
from harness.plan.jobs import Turn


def test_a_job_survives_the_way(make_job):
    job = make_job("h200", turns=(Turn(0, (), "base", 0), Turn(1, (), "head", 0)))
    assert job == job_from_json(json.loads(line(job_to_json(job))))


def test_a_cell_survives_the_way(context, make_job, says):
    job = make_job()
    done = cell_from_text(says(job, 1)["records"], context, job, 1)
    assert done == cell_from_text(cell_to_text(done), context, job, 1)


def test_a_context_names_code_by_its_digest_and_is_whole_on_the_node(context):
    said = json.loads(json.dumps(context_to_json(context, {"head": "abc"})))
    there = context_from_json(said, {"abc": Path("/node/abc")}, Path("/engine/jobs"), Path("/scratch"))
    assert Path("/node/abc") == there.arms["head"].root
    assert (Path("/node/abc/jobs"), Path("/scratch")) == (there.jobs_dir, there.scratch)
    assert dataclasses.replace(context.arms["head"], root=there.arms["head"].root) == there.arms["head"]
    assert (context.run_id, context.job_digests) == (there.run_id, there.job_digests)


def test_job_files_of_the_engine_are_the_nodes_own(context):
    said = context_to_json(dataclasses.replace(context, jobs_dir=Path("/elsewhere/jobs")), {"head": "abc"})
    there = context_from_json(said, {"abc": Path("/node/abc")}, Path("/engine/jobs"), Path("/scratch"))
    assert Path("/engine/jobs") == there.jobs_dir


@pytest.mark.parametrize(
    "data",
    [b"", b"[1]", b"no json", b'{"a": NaN}', b'{"a": Infinity}', b"\xff\xfe", b"[" * 100_000, b"x" * (MAX_LINE + 1)],
    ids=["nothing", "a list", "words", "NaN", "infinity", "no text", "too deep", "too long"],
)
def test_a_hostile_line_is_refused(data):
    with pytest.raises(BadMessage):
        read_line(data)


def test_records_that_are_too_long_are_not_even_read(context, make_job):
    with pytest.raises(BadMessage, match="limit"):
        cell_from_text("[" + " " * MAX_CELL + "]", context, make_job(), 1)
