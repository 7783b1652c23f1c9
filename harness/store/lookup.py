"""Finds the results of some code: stored runs and accepted baselines, by code digest."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.errors import Undecided
from harness.records import Cell, Record, Status
from harness.store.baselines import read_baselines
from harness.store.runs import RunStore

Key = tuple[str, Cell]
HEAD, BASE = "head", "base"


@dataclass(frozen=True)
class Pairs:
    """The launches of paired runs of two codes, by the side they measured; both have the same cells.

    Args:
        sources: ids of the runs, newest first.
    """

    base: tuple[Record, ...]
    head: tuple[Record, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """The results of one code digest.

    Args:
        records: one answer to every kind of a cell, the newest that came from a unit.
        runs: run.json of the stored runs among the sources, newest first.
        sources: ids of all runs that the records come from.
    """

    records: tuple[Record, ...]
    runs: tuple[dict[str, Any], ...]
    sources: frozenset[str]


class Results:
    """Everything known here.

    Args:
        store: the runs.
        compiled: static records that were compiled for a diff; they stand for no run.
        baselines_dir: accepted records.
    """

    def __init__(self, store: RunStore, compiled: RunStore, baselines_dir: Path) -> None:
        self.store, self.compiled, self.baselines_dir = store, compiled, baselines_dir

    @cached_property
    def _baselines(self) -> list[Record]:
        return read_baselines(self.baselines_dir)

    def run(self, name: str) -> Found:
        """The results of one run (an id, or `last`).

        Raises:
            UnknownNameError: no such run.
            Undecided: the run was stopped half way.
        """
        run, records = self.store.read(self.store.resolve(name))
        if not run.get("finished_at"):
            raise Undecided(f"the results of run {run['run_id']}", "it has not ended", f"harness submit --resume {run['run_id']}")
        return Found(tuple(_of_arm(records, HEAD)), (run,), frozenset({run["run_id"]}))

    def pairs(self, base: str, head: str, *, dirty: bool, runs: Collection[str] | None = None) -> Pairs:
        """What paired runs of `head` against `base` (code digests) timed under both arms, all such runs taken together.

        Args:
            dirty: whether runs of a dirty worktree count.
            runs: ids of the runs that count; all where None.
        """
        found = [
            (run, records)
            for run, records in self._stored(self.store, head, dirty)
            if run["against"] and run["against"]["code_digest"] == base and (runs is None or run["run_id"] in runs)
        ]
        launches = [r for _, records in found for r in records if r.block is not None]
        ours, theirs = _of_arm(launches, BASE), _of_arm(launches, HEAD)
        common = {(r.kind, r.cell) for r in ours} & {(r.kind, r.cell) for r in theirs}
        base_side, head_side = (tuple(r for r in side if (r.kind, r.cell) in common) for side in (ours, theirs))
        return Pairs(base_side, head_side, tuple(run["run_id"] for run, _ in found))

    def of(self, code_digest: str, *, dirty: bool, exclude: Collection[str] = ()) -> Found | None:
        """The results of some code, or None.

        Args:
            dirty: whether runs of a dirty worktree count: they never do for a commit.
            exclude: runs whose head does not count.
        """
        stored = [answer for answer in self._stored(self.store, code_digest, dirty) if answer[0]["run_id"] not in exclude]
        read = [(run, _of_arm(records, HEAD)) for run, records in stored]
        as_base = self._as_base(code_digest)
        known = {run["run_id"] for run, _ in read} | {run_id for run_id, _ in as_base} | set(exclude)
        baselines: dict[tuple[str, str], list[Record]] = {}
        for record in self._baselines:
            if record.code_digest == code_digest and record.run_id not in known:
                baselines.setdefault((record.run_id, record.arm), []).append(record)
        answers = [*(records for _, records in read), *(records for _, records in as_base)]
        answers += [baselines[key] for key in sorted(baselines, reverse=True)]
        if not answers:
            return None
        records = tuple(_newest(answers))
        return Found(records, tuple(run for run, _ in read), frozenset(r.run_id for r in records))

    def compiled_here(self, code_digest: str, triton: str) -> list[Record]:
        """Static records of some code that an earlier diff compiled with this version of Triton, the newest of each cell."""
        answers = [records for _, records in self._stored(self.compiled, code_digest, dirty=True)]
        return [r for r in _newest(answers) if r.environment.get("triton") == triton and not Status(r.status).resumable]

    def _as_base(self, code_digest: str) -> list[tuple[str, list[Record]]]:
        """Run id and records of the paired runs of other code that measured this one as their base, newest first."""
        infos = [i for i in self.store.list() if i.base_digest == code_digest and i.code_digest != code_digest and i.finished]
        return [(info.run_id, _of_arm(self.store.read(info.run_id)[1], BASE)) for info in infos]

    @staticmethod
    def _stored(store: RunStore, code_digest: str, dirty: bool) -> list[tuple[dict[str, Any], list[Record]]]:
        """The finished runs of some code, newest first."""
        infos = [i for i in store.list() if i.code_digest == code_digest and i.finished and (dirty or not i.dirty)]
        return [store.read(info.run_id) for info in infos]


def _of_arm(records: Iterable[Record], arm: str) -> list[Record]:
    return [r for r in records if r.arm == arm]


def _newest(answers: Iterable[list[Record]]) -> Iterable[Record]:
    """For every kind of a cell one answer: a failure wherever there is one, since a rerun until green proves nothing; else
    the first that a unit gave; else the first.
    """
    chosen: dict[Key, list[Record]] = {}
    for answer in answers:
        groups: dict[Key, list[Record]] = {}
        for record in answer:
            groups.setdefault((record.kind, record.cell), []).append(record)
        for key, group in groups.items():
            if key not in chosen or _weight(group) > _weight(chosen[key]):
                chosen[key] = group
    return (record for group in chosen.values() for record in group)


def _weight(group: list[Record]) -> int:
    """How much an answer counts against an equally recent one."""
    statuses = [Status(r.status) for r in group]
    return 2 if any(s.failed for s in statuses) else 0 if all(s.resumable for s in statuses) else 1
