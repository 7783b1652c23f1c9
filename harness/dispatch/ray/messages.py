"""What the command line, the driver and the workers say to each other: JSON, one object a line. Data only; nothing is unpickled.

To the driver      {"op": "run", context, tars, budget}, {"op": "job", job, attempt, not_on}, {"op": "cancel"}
From the driver    {"event": "fleet" | "refused" | "cell" | "done" | "lost" | "failed" | "ended" | "beat", ...}
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.dispatch.protocol import ArmCode, CellDone, RunContext
from harness.plan.jobs import Job, Turn
from harness.records import Cell, Record
from harness.store.tables import to_table

MAX_CELL = 16 << 20
"""Bytes of one cell's records."""
MAX_LINE = 2 * MAX_CELL + (1 << 16)
"""Bytes of one line: a cell's records are quoted in it."""


@dataclass(frozen=True)
class Settings:
    """How a driver is started.

    Args:
        address: HOST:PORT of a head, or `local`.
        slots: jobs at a time that need no GPU.
        max_queue_s: how long a job waits while its device does nothing for this run; None: for ever.
        head_timeout_s: silence of the head after which it is lost.
    """

    address: str
    slots: int | None = None
    max_queue_s: float | None = None
    head_timeout_s: float = 20.0


class BadMessage(ValueError):
    """A message that is none of ours."""


def line(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps(message, allow_nan=False).encode() + b"\n"


def read_line(data: bytes) -> dict[str, Any]:
    """A message that was sent.

    Raises:
        BadMessage: too long, not JSON, or no object; NaN and infinity are no JSON.
    """
    if len(data) > MAX_LINE:
        raise BadMessage(f"a line of {len(data)} bytes, over {MAX_LINE}")
    found = _json(data)
    if not isinstance(found, dict):
        raise BadMessage("not an object")
    return found


def job_to_json(job: Job) -> dict[str, Any]:
    """A job as plain data."""
    turns = [{**dataclasses.asdict(turn), "cells": [str(c) for c in turn.cells]} for turn in job.turns]
    return {**dataclasses.asdict(job), "cells": [str(c) for c in job.cells], "turns": turns}


def job_from_json(data: Mapping[str, Any]) -> Job:
    """Read a job back.

    Raises:
        TypeError, ValueError, KeyError: it is none.
    """
    turns = tuple(Turn(**{**turn, "cells": _cells(turn["cells"])}) for turn in data["turns"])
    return Job(**{**data, "cells": _cells(data["cells"]), "turns": turns})


def context_to_json(context: RunContext, tars: Mapping[str, str]) -> dict[str, Any]:
    """A context for a node: the arms' code by the digest of its tar in place of a folder.

    Args:
        tars: arm -> digest of its tar.
    """
    jobs = None
    for arm, code in context.arms.items():
        if context.jobs_dir.is_relative_to(code.root):
            jobs = {"arm": arm, "path": context.jobs_dir.relative_to(code.root).as_posix()}
            break
    arms = {arm: {**dataclasses.asdict(code), "root": tars[arm]} for arm, code in context.arms.items()}
    return {"run_id": context.run_id, "arms": arms, "jobs": jobs, "job_digests": dict(context.job_digests)}


def context_from_json(data: Mapping[str, Any], roots: Mapping[str, Path], engine_jobs: Path, scratch: Path) -> RunContext:
    """Read a context back on a node.

    Args:
        roots: digest of a tar -> where its files lie here.
        engine_jobs: the engine's own job files, for a workspace that has none.
    """
    arms = {arm: ArmCode(**{**code, "root": roots[code["root"]]}) for arm, code in data["arms"].items()}
    jobs = data["jobs"]
    jobs_dir = arms[jobs["arm"]].root / jobs["path"] if jobs else engine_jobs
    return RunContext(data["run_id"], arms, jobs_dir, scratch, data["job_digests"])


def cell_to_text(done: CellDone) -> str:
    """The records of a cell, as a worker sends them.

    Raises:
        BadMessage: they are too long to be sent.
    """
    text = json.dumps([record.to_json() for record in done.records], allow_nan=False)
    if len(text) > MAX_CELL:
        raise BadMessage(f"records of {len(text)} bytes, over {MAX_CELL}")
    return text


def cell_from_text(text: object, context: RunContext, job: Job, attempt: int) -> CellDone:
    """The records of a cell as the command line takes them: of this attempt of this job, and fit to be stored.

    Raises:
        BadMessage: whatever of it is not so.
    """
    if not isinstance(text, str) or len(text) > MAX_CELL:
        raise BadMessage("no text, or over the limit of a cell's records")
    rows = _json(text)
    if not isinstance(rows, list) or not rows:
        raise BadMessage("no list of records")
    try:
        records = tuple(Record.from_json(row) for row in rows)
        to_table(records, "what a worker sent")
    except Exception as error:  # whatever a worker sends, only its own job may suffer from it
        raise BadMessage(f"no records: {' '.join(str(error).split()):.300}") from error
    first = records[0]
    turns = {(turn.position, turn.arm, turn.block): turn for turn in job.turns}
    for record in records:
        turn = turns.get((record.position, record.arm, record.block))  # type: ignore[arg-type]  # a None is no turn's
        code = context.arms.get(record.arm)
        if (record.run_id, record.job_id, record.attempt, record.kind) != (context.run_id, job.job_id, attempt, job.kind):
            raise BadMessage("records of another run, job, attempt or kind")
        if turn is None or code is None or record.cell not in turn.cells or (record.cell, record.position) != (first.cell, first.position):
            raise BadMessage(f"records of another cell or turn: {record.cell}")
        if (record.code_digest, record.commit, record.tree, record.dirty) != (code.code_digest, code.commit, code.tree, code.dirty):
            raise BadMessage("records of other code")
    return CellDone(job, first.cell, records)


def _cells(names: list[str]) -> tuple[Cell, ...]:
    return tuple(Cell.parse(name) for name in names)


def _json(data: bytes | str) -> Any:
    def refuse(constant: str) -> float:
        raise BadMessage(f"{constant} is no value")

    try:
        return json.loads(data, parse_constant=refuse)
    except BadMessage:
        raise
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not JSON: {error}") from error
