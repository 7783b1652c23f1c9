"""Runs a plan from start to end: journal, signals, completeness, store, exit code. The run itself measures nothing."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import harness
from harness.authoring.workspace import is_writable
from harness.dispatch.again import Answers, Known, answer_of, disturbed, is_whole, remaining
from harness.dispatch.blocks import torn, why_torn
from harness.dispatch.derive import speedups
from harness.dispatch.doubts import doubt
from harness.dispatch.journal import JOURNAL, Journal, Key
from harness.dispatch.protocol import ArmCode, CellDone, Dispatcher, Event, LeftOut, RunContext
from harness.dispatch.remainder import cut_short, unfinished
from harness.errors import HarnessError
from harness.plan.budget import Allowance
from harness.plan.describe import Description
from harness.plan.plan import Plan
from harness.records import BASE, HEAD, Record, Status


class Store(Protocol):
    """Where a run's records go when it ends, and where its description is kept meanwhile."""

    def save(self, run: dict[str, Any]) -> None:
        """Write run.json, atomically."""

    def write(self, run: dict[str, Any], records: list[Record], *, replace: bool = False, earlier: Sequence[Record] = ()) -> Any:
        """Write the records and run.json, and beside them the records of rounds that count no more."""


@dataclass(frozen=True)
class Outcome:
    """A run that has ended: its description (run.json) and its records."""

    run: dict[str, Any]
    records: list[Record]

    @property
    def exit_code(self) -> int:
        """0, 1, 3 or 130."""
        return int(self.run["exit_code"])


STOPPED = 130
"""Exit code of a run that a signal ended."""


def new_run_id(now: datetime) -> str:
    """A run id that sorts by time: 20260131T235959-1f2e3d."""
    return f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def declarations(what: Description) -> dict[str, Any]:
    """Kernel -> its variants and cases: what the code has, whatever a plan asks of it."""
    return {k.name: {"variants": k.variants, "cases": [c.case for c in k.cases]} for k in what.kernels}


def describe_run(plan: Plan, run_id: str, now: datetime, options: dict[str, Any]) -> dict[str, Any]:
    """run.json of a run that starts: identity, plan, and the options that `--resume` needs."""
    tree, base = plan.tree, plan.base
    against = ("ref", "resolved", "commit", "tree", "code_digest", "dirty")
    return {
        "run_id": run_id,
        "created_at": now.isoformat(),
        "harness": harness.__version__,
        "ref": tree.ref,
        "resolved": tree.resolved,
        "commit": tree.commit,
        "tree": tree.tree,
        "dirty": tree.dirty,
        "code_digest": tree.code_digest,
        "jobs": _jobs_digest(plan.code.jobs_dir),
        "matrix": plan.matrix,
        "against": base and {name: getattr(base.tree, name) for name in against} | {"jobs": _jobs_digest(base.code.jobs_dir)},
        "options": options,
        "declared": declarations(plan.description),
        "expected": [{"cell": str(e.cell), "kind": e.kind, "limit": e.limit} for e in plan.expected],
    }


def _jobs_digest(jobs_dir: Path) -> str:
    """Digest of how cells are measured: of all files of jobs/ but the matrix, which says only what is asked."""
    files = {str(p.relative_to(jobs_dir)): p for p in jobs_dir.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    content = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items() if name != "matrix.toml"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_writable(folder: Path) -> None:
    """Refuse to measure into a folder that cannot be made or written, before anything is started.

    Raises:
        HarnessError: it is one.
    """
    if not is_writable(folder):
        do = "make it writable, or work in a clone: git clone . ELSEWHERE (--store moves the records of a run, and nothing else)"
        raise HarnessError(f"to write journal, logs and code of a run to {folder}", "it cannot be written", do)


@contextmanager
def prepared(
    dispatcher: Dispatcher, folder: Path, devices: Collection[str] | None, kinds: Collection[str] | None
) -> Iterator[Journal | None]:
    """Let the dispatcher start what it can while the block plans the run, whose folder is made for it.

    Where the block raises, what was started ends, and a folder that was not there before is gone again.

    Yields:
        The journal of a run that is resumed, for `execute`: locked before anything is started, since whoever writes the run uses the
        same folder. None where there is none yet.

    Raises:
        HarnessError: the folder cannot be written, the run is being written by another process, or a line of its journal cannot be read.
    """
    resumed = folder.exists()
    journal: Journal | None = None
    try:
        check_writable(folder)
        if (folder / JOURNAL).exists():
            journal = Journal(folder / JOURNAL)
        dispatcher.prepare(folder / "scratch", devices, kinds)
        yield journal
    except BaseException:
        dispatcher.close()
        if journal is not None:
            journal.close()
        if not resumed:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def execute(
    plan: Plan,
    dispatcher: Dispatcher,
    store: Store,
    run: dict[str, Any],
    folder: Path,
    *,
    require: Sequence[str] = (),
    observe: Callable[[Event], None] = lambda event: None,
    budget_s: float | None = None,
    journal: Journal | None = None,
) -> Outcome:
    """Run what the journal in `folder` does not hold yet, and write the result.

    Args:
        run: run.json as it stands; the returned one is complete.
        folder: the run's folder on this machine: journal, logs, launch caches.
        require: devices that must be measured for exit 0.
        observe: called with every event, for progress.
        budget_s: seconds from now in which jobs may start; what is left out ends as `cancelled`, to be resumed. None: no limit.
        journal: the one in `folder`, which is closed in the end; opened here where it is None.

    Raises:
        HarnessError: the run is being written by another process, or the disk fails; what was journaled is kept.
    """
    allowance = None if budget_s is None else Allowance.starting_now(budget_s)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        journal = journal or Journal(folder / JOURNAL)
    except BaseException:
        dispatcher.close()
        raise
    try:
        store.save(run)
        known, again = remaining(plan.jobs, journal.entries)
        if again:
            journal.begin_again(again)
        done = known.done
        capacity = dispatcher.capacity(sorted({job.device for job in plan.jobs if job.on == "unit"}))
        scratch = folder / "scratch"
        context = replace(_context(plan, run, scratch), allowance=allowance)
        left_out: dict[Key, str] = {}
        repeated = list(run.get("repeated_launches", ()))
        todo = [job for job in unfinished(plan.jobs, done) if job.on == "host" or capacity.get(job.device, 0)]
        with _signals(dispatcher) as cancelled:
            dispatcher.submit(context, todo)
            for event in dispatcher.events():
                if isinstance(event, CellDone):
                    before = known.attempts_before((event.job.kind, event.cell))
                    records = [replace(r, seq=journal.seq + i, attempt=r.attempt + before) for i, r in enumerate(event.records)]
                    journal.seq += len(records)
                    journal.append(records)
                    done[answer_of(records[0])] = records
                    if event.repeats is not None:
                        repeated.append({"launch": records[0].launch, "reason": event.repeats})
                elif isinstance(event, LeftOut):
                    left_out |= {(event.job.kind, cell): event.reason for turn in event.job.turns for cell in turn.cells}
                observe(event)
        absent = {device for device, units in capacity.items() if not units}
        standing = _stand(plan, known)
        left_out = {key: reason for key, reason in left_out.items() if key not in standing}
        partly = cut_short(plan.jobs, done)
        for answers in (done, *(one for rounds in known.rounds.values() for one in rounds)):
            _spoil_torn(plan, answers)
        records = [r for entry in done.values() for r in entry]
        records += list(speedups(records, {k.name: k.baseline for k in plan.description.kernels}))
        answered: dict[Key, int] = {}
        for entry in done.values():
            if entry[0].arm == HEAD:
                answered[_key(entry[0])] = max(answered.get(_key(entry[0]), 0), entry[0].attempt)
        records += list(_unanswered(plan, answered, partly, left_out, context, absent, cancelled.is_set()))
        if changed := plan.changed_files():
            why = f"tree_changed: {', '.join(changed[:3])} is not what was checked out"  # nobody knows what was measured
            records = [r if Status(r.status).resumable else _spoilt(r, why) for r in records]
        finished = _conclude(plan, run, records, left_out, absent, cancelled.is_set(), require) | _repeats(known, records)
        finished["repeated_launches"] = repeated
        earlier = [r for rounds in known.rounds.values() for one in rounds for entry in one.values() for r in entry]
        store.write(finished, records, replace=True, **({"earlier": earlier} if earlier else {}))
        shutil.rmtree(scratch / "launches", ignore_errors=True) if finished["exit_code"] == 0 else None
        return Outcome(finished, records)
    finally:
        dispatcher.close()
        journal.close()


def _stand(plan: Plan, known: Known) -> set[Key]:
    """Of each cell whose last round has not come to its end let the last that has count, or else its first; such cells.

    A last round in which something failed counts all the same.
    """
    failed = {answer[:2] for answer, records in known.done.items() if any(Status(r.status).failed for r in records)}
    standing = {key for key in known.rounds if key not in failed and not is_whole(plan.jobs, key, known.of(key))}
    for key in standing:
        for answer in known.of(key):
            del known.done[answer]  # the journal has it: the round goes on when the run is resumed
        rounds = known.rounds[key]
        while len(rounds) > 1 and not is_whole(plan.jobs, key, rounds[-1]):
            rounds.pop()
        known.done |= rounds.pop()
    return standing


def _spoil_torn(plan: Plan, done: Answers) -> None:
    """Make what was timed in a torn block invalid."""
    for answer, why in [(answer, why_torn(answer, done)) for answer in torn(plan.jobs, done)]:
        done[answer] = [_spoilt(r, why) if r.status == Status.OK else r for r in done[answer]]


def _repeats(known: Known, records: Sequence[Record]) -> dict[str, Any]:
    """What run.json says of cells that were measured again, and of those that `--resume` would measure again."""
    before = {key: disturbed(chain.from_iterable(rounds[-1].values())).get(key, "") for key, rounds in known.rounds.items() if rounds}
    return {
        "measured_again": [
            {"cell": str(cell), "kind": kind, "rounds": 1 + len(known.rounds[kind, cell]), "before": why}
            for (kind, cell), why in sorted(before.items())
        ],
        "to_measure_again": [{"cell": str(cell), "kind": kind, "reason": why} for (kind, cell), why in sorted(disturbed(records).items())],
    }


def _key(record: Record) -> Key:
    return record.kind, record.cell


def _context(plan: Plan, run: dict[str, Any], scratch: Path) -> RunContext:
    jobs_dir = plan.code.jobs_dir  # head's, for both arms
    conftest = (jobs_dir / "conftest.py").read_bytes() if (jobs_dir / "conftest.py").exists() else b""
    digests = {
        kind.name: hashlib.sha256((jobs_dir / kind.file).read_bytes() + b"\0" + conftest).hexdigest() for kind in plan.description.kinds
    }
    trees = {arm: (each.tree, each.code.root) for arm, each in plan.arms.items()}
    arms = {arm: ArmCode(tree.commit, tree.tree, tree.dirty, tree.code_digest, root) for arm, (tree, root) in trees.items()}
    return RunContext(run["run_id"], arms, jobs_dir, scratch, digests)


def _unanswered(
    plan: Plan,
    answered: Mapping[Key, int],
    partly: Collection[Key],
    left_out: Mapping[Key, str],
    context: RunContext,
    absent: set[str],
    cancelled: bool,
) -> Iterator[Record]:
    """A record for every planned cell that nothing came of, or not all: silence is never green, and no run has pairs of a part.

    Args:
        answered: cells of which something is known -> the last attempt at them.
        partly: those of them that were cut short.
        left_out: cells that the budget left out, and why: some of their launches may be known from before the run was resumed.
    """
    on_unit = _on_unit(plan)
    for one in plan.expected:
        key = (one.kind, one.cell)
        if reason := left_out.get(key):
            status = Status.CANCELLED
        elif key in answered and key not in partly:
            continue
        elif one.kind in on_unit and one.cell.device in absent and key not in answered:
            status, reason = Status.NO_CAPACITY, f"no unit of {one.cell.device} is reachable"
        elif cancelled:
            status, reason = Status.CANCELLED, "the run was stopped"
        else:
            how = "before all of its launches were made" if key in answered else "without a record of it"
            status, reason = Status.LOST, f"its job ended {how}"
        cell, code = one.cell, context.arms[HEAD]
        yield Record(
            run_id=context.run_id,
            attempt=answered.get(key, 0),
            commit=code.commit,
            tree=code.tree,
            dirty=code.dirty,
            code_digest=code.code_digest,
            kernel=cell.kernel,
            variant=cell.variant,
            case=cell.case,
            dtype=cell.dtype,
            device=cell.device,
            kind=one.kind,
            metric=None,
            value=None,
            status=status,
            reason=reason,
        )


def _on_unit(plan: Plan) -> set[str]:
    """The kinds that need the device itself."""
    return {kind.name for kind in plan.description.kinds if kind.on == "unit"}


def cell_status(records: Sequence[Record]) -> Status:
    """The status of a cell: the worst of its records'."""
    order = {status: place for place, status in enumerate((Status.SKIPPED, Status.OK))}
    return max((Status(r.status) for r in records), key=lambda s: order.get(s, len(order) + (1 if s.failed else 0)))


def _spoilt(record: Record, reason: str) -> Record:
    """A record that must not be used."""
    return replace(record, value=None, samples=None, status=str(Status.INVALID), reason=reason)


def _conclude(
    plan: Plan,
    run: dict[str, Any],
    records: Sequence[Record],
    left_out: Collection[Key],
    absent: set[str],
    cancelled: bool,
    require: Sequence[str],
) -> dict[str, Any]:
    by_cell: dict[Key, list[Record]] = {}
    for record in records:
        if record.arm == HEAD:
            by_cell.setdefault(_key(record), []).append(record)
    statuses = {(one.kind, one.cell): cell_status(by_cell[one.kind, one.cell]) for one in plan.expected}
    doubts = _doubts(plan, by_cell, statuses)
    on_unit = _on_unit(plan)
    reached = {
        cell.device
        for (kind, cell), status in statuses.items()
        if kind in on_unit and status is not Status.NO_CAPACITY and not all(r.simulated for r in by_cell[kind, cell])
    }
    cut = set(require) & {cell.device for _, cell in left_out}
    missing = sorted(set(require) - reached - cut)
    if cancelled:
        code = STOPPED
    elif any(status.failed for status in statuses.values()):
        code = 1
    elif (
        missing
        or cut
        or doubts
        or any(status.undecided for status in statuses.values())
        or not any(status is Status.OK for status in statuses.values())
    ):
        code = 3
    else:
        code = 0
    return {
        **run,
        "finished_at": datetime.now(UTC).isoformat(),
        "by_status": dict(sorted(Counter("undecided" if key in doubts else str(status) for key, status in statuses.items()).items())),
        "undecided": [{"cell": str(cell), "kind": kind, "reason": reason} for (kind, cell), reason in sorted(doubts.items())],
        "no_capacity": sorted(absent),
        "required_missing": missing,
        "required_left_out": sorted(cut),
        "exit_code": code,
    }


def _doubts(plan: Plan, by_cell: Mapping[Key, Sequence[Record]], statuses: Mapping[Key, Status]) -> dict[Key, str]:
    """Cells that end well by every record, and are undecided all the same, and why."""
    launches = Counter((job.kind, cell) for job in plan.jobs for turn in job.turns if turn.arm == HEAD for cell in turn.cells)
    ended = {key: doubt(key[0], launches[key], by_cell[key]) for key, status in statuses.items() if status is Status.OK}
    return {key: reason for key, reason in ended.items() if reason is not None}


@contextmanager
def _signals(dispatcher: Dispatcher) -> Iterator[threading.Event]:
    """Turn SIGINT, SIGTERM and, where it is not ignored, SIGHUP into a cancelled run, inside the block."""
    cancelled = threading.Event()

    def stop(_number: int, _frame: object) -> None:
        cancelled.set()
        dispatcher.cancel()

    if threading.current_thread() is not threading.main_thread():
        yield cancelled
        return
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, *hang_up)}
    try:
        yield cancelled
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_resumable(run: dict[str, Any], plan: Plan, folder: Path) -> None:
    """Refuse to resume a run whose code, engine, job files, plan or journal is no longer the one that was started.

    Raises:
        HarnessError: the code digest, the harness's version, the job files or the planned cells differ; or the run has ended and its
            journal is gone.
    """
    asked = f"--resume {run['run_id']}"
    if run.get("finished_at") and not (folder / JOURNAL).exists():
        raise HarnessError(asked, f"the run has ended, and its journal is not in {folder}", "resume it where it ran, or submit anew")
    digests = {HEAD: run["code_digest"]} | ({BASE: run["against"]["code_digest"]} if run["against"] else {})
    for arm, before in digests.items():
        now = plan.arms[arm].tree.code_digest
        if now != before:
            found = f"the {arm}'s code has digest {now[:12]} now, the run was started on {before[:12]}"
            raise HarnessError(asked, found, "submit anew; or bring back the code of the run")
    if run.get("harness") != harness.__version__:  # two engines do not measure alike, and one run is one answer
        started = f"harness {run['harness']}" if run.get("harness") else "a harness that is not known"
        found = f"the run was started by {started}, this is {harness.__version__}"
        raise HarnessError(asked, found, "submit anew; or bring that harness back")
    if run["jobs"] != (now := _jobs_digest(plan.code.jobs_dir)):
        before = run["jobs"][:12] if run["jobs"] else "one that is not known"
        found = f"the job files in {plan.code.jobs_dir} have digest {now[:12]} now, the run was started under {before}"
        raise HarnessError(asked, found, "submit anew; or bring back the job files of the run")
    if {(e["kind"], e["cell"]) for e in run["expected"]} != {(e.kind, str(e.cell)) for e in plan.expected}:
        raise HarnessError(asked, "the plan has other cells now (the harness or devices.toml changed)", "submit anew")
