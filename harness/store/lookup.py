"""Finds the results of some code: stored runs and accepted baselines, by code digest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.errors import Undecided
from harness.metrics import is_judged, speaks_for_cell
from harness.plan.matrix import is_named
from harness.records import BASE, HEAD, Cell, Record, Status, resume_command
from harness.store.baselines import BaselineInfo, list_baselines, read_baselines
from harness.store.files import Only, wanted
from harness.store.runs import RunStore

Key = tuple[str, Cell]
Group = list[Record]
"""One answer to a kind of a cell: all its records from one run and arm."""


def is_refused(record: Record) -> bool:
    """Whether something that decides is invalid for what the code does; figures that are only shown decide nothing."""
    return record.refused_for_code and is_judged(record.metric)


class Weight(IntEnum):
    """How much an answer counts against an equally recent one."""

    NOTHING = 0
    """Nothing was measured: no unit came to it, or a simulated one."""
    PART = 1
    """Some of it was not: the run was stopped, its budget was over, or infrastructure failed."""
    WHOLE = 2
    REFUSED = 3
    """Something of it is invalid for what the code does: a race that a rerun does not lose is one all the same."""
    FAILURE = 4
    """A rerun until green proves nothing."""

    @classmethod
    def of(cls, group: Group) -> Weight:
        """The weight of an answer."""
        if any(Status(r.status).failed for r in group):
            return cls.FAILURE
        if any(map(is_refused, group)):
            return cls.REFUSED
        unanswered = [Status(r.status).resumable or r.simulated for r in group]
        return cls.NOTHING if all(unanswered) else cls.PART if any(unanswered) else cls.WHOLE


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
        records: one answer to every kind of a cell, the one of most weight (or, where asked, a good one), then the newest; those measured
            as the base arm of other code's runs stand only where the code's own are worth nothing (or not good).
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
        kernels: only records of kernels that one of these globs matches; of all where empty.
    """

    def __init__(self, store: RunStore, compiled: RunStore, baselines_dir: Path, kernels: Sequence[str] = ()) -> None:
        self.store, self.compiled, self.baselines_dir = store, compiled, baselines_dir
        self.kernels = tuple(kernels)

    @cached_property
    def _infos(self) -> list[BaselineInfo]:
        return list_baselines(self.baselines_dir)

    @cached_property
    def accepted(self) -> Mapping[str, frozenset[str]]:
        """Code digest -> ids of the runs that anything was accepted of under it."""
        runs: dict[str, set[str]] = {}
        for info in self._infos:
            for code_digest in info.code_digests:
                runs.setdefault(code_digest, set()).add(info.run_id)
        return {code_digest: frozenset(ids) for code_digest, ids in runs.items()}

    def _baselines(self, code_digest: str, but: Collection[str], only: Only) -> list[Record]:
        """The accepted records of some code that are wanted, but for those of some runs."""
        runs = self.accepted.get(code_digest, frozenset()) - set(but)
        if self.kernels:
            named = {name for info in self._infos for name in info.kernels if is_named(name, self.kernels)}
            only = {**only, "kernel": named & set(only.get("kernel", named))}
        return read_baselines(self.baselines_dir, {**only, "code_digest": {code_digest}, "run_id": runs}) if runs else []

    def run(self, name: str) -> Found:
        """The results of one run (an id, or `last`).

        Raises:
            UnknownNameError: no such run.
            Undecided: the run was stopped half way.
        """
        run, records = self._run(self.store, self.store.resolve(name))
        if not run.get("finished_at"):
            raise Undecided(f"the results of run {run['run_id']}", "it has not ended", resume_command(run) + self.store.option)
        return Found(tuple(_of_arm(records, HEAD)), (run,), frozenset({run["run_id"]}))

    def pairs(self, base: str, head: str, *, dirty: bool, runs: Collection[str] | None = None) -> Pairs:
        """What paired runs of `head` against `base` (code digests) timed under both arms, all such runs taken together.

        Of a cell that a run did not bring to its end (it was stopped, or its budget was over) that run has no pairs.

        Args:
            dirty: whether runs of a dirty worktree count.
            runs: ids of the runs that count; all where None.
        """
        found = [
            (run, records)
            for run, records in self._stored(self.store, head, dirty)
            if run["against"] and run["against"]["code_digest"] == base and (runs is None or run["run_id"] in runs)
        ]
        launches = [r for _, records in found for r in _whole(records) if r.block is not None]
        ours, theirs = _of_arm(launches, BASE), _of_arm(launches, HEAD)
        common = {(r.kind, r.cell) for r in ours} & {(r.kind, r.cell) for r in theirs}
        base_side, head_side = (tuple(r for r in side if (r.kind, r.cell) in common) for side in (ours, theirs))
        return Pairs(base_side, head_side, tuple(run["run_id"] for run, _ in found))

    def of(
        self,
        code_digest: str,
        *,
        dirty: bool,
        exclude: Collection[str] = (),
        judged: Collection[str] = (),
        only: Only = MappingProxyType({}),
        prefer_good: bool = False,
    ) -> Found | None:
        """The results of some code, or None.

        What a paired run measured as its base arm was measured under the job files of that run's head: it counts where the code
        has the same ones, or where that very run is judged, and only for what the code's own results lack.

        Args:
            dirty: whether runs of a dirty worktree count: they never do for a commit.
            exclude: runs whose head does not count.
            judged: the runs of the head that the code is the base of.
            only: the records wanted, by columns of a cell and its kind; all where empty.
            prefer_good: the code is the base of a comparison: one run that failed takes nothing from the good answer of another, since
                head, held against a failure, can only be better.
        """
        stored = [answer for answer in self._stored(self.store, code_digest, dirty) if answer[0]["run_id"] not in exclude]
        read = [(run, _of_arm(wanted(records, only), HEAD)) for run, records in stored]
        against = [i for i in self.store.list() if i.base_digest == code_digest and i.code_digest != code_digest and i.finished]
        counting = [i for i in against if i.run_id in judged or (i.same_jobs and (dirty or not i.dirty))]
        known = {run["run_id"] for run, _ in read} | {info.run_id for info in against} | set(exclude)
        accepted: dict[str, dict[str, list[Record]]] = {}
        for record in self._baselines(code_digest, known, only):
            accepted.setdefault(record.arm, {}).setdefault(record.run_id, []).append(record)
        own = [records for _, records in read] + _newest_first(accepted.get(HEAD, {}))
        as_base = [_of_arm(wanted(self._run(self.store, info.run_id)[1], only), BASE) for info in counting]
        as_base += _newest_first(accepted.get(BASE, {}))
        elsewhere = self.accepted.get(code_digest, frozenset()) - known or ((only or self.kernels) and counting)
        if not own and not any(as_base) and not elsewhere:  # that it has results, though none that are wanted, is no want of any
            return None
        weigh = _weight_as_base if prefer_good else Weight.of
        chosen = _choose(own, weigh)
        for key, group in _choose(as_base, weigh).items():
            if key not in chosen or _stands_for(group, chosen[key], prefer_good):
                chosen[key] = group
        records = tuple(record for group in chosen.values() for record in group)
        return Found(records, tuple(run for run, _ in read), frozenset(r.run_id for r in records))

    def compiled_here(self, code_digest: str, triton: str) -> list[Record]:
        """Static records of some code that an earlier diff compiled with this version of Triton, the newest of each cell."""
        answers = [records for _, records in self._stored(self.compiled, code_digest, dirty=True)]
        newest = [r for group in _choose(answers).values() for r in group]
        return [r for r in newest if r.environment.get("triton") == triton and not Status(r.status).resumable]

    def _run(self, store: RunStore, run_id: str) -> tuple[dict[str, Any], list[Record]]:
        run, records = store.read(run_id)
        return run, [r for r in records if is_named(r.kernel, self.kernels)] if self.kernels else records

    def _stored(self, store: RunStore, code_digest: str, dirty: bool) -> list[tuple[dict[str, Any], list[Record]]]:
        """The finished runs of some code, newest first."""
        infos = [i for i in store.list() if i.code_digest == code_digest and i.finished and (dirty or not i.dirty)]
        answers = [self._run(store, info.run_id) for info in infos]
        return [(run, records) for run, records in answers if run.get("finished_at")]  # else it is being replaced just now


def _of_arm(records: Iterable[Record], arm: str) -> list[Record]:
    return [r for r in records if r.arm == arm]


def _whole(records: Iterable[Record]) -> list[Record]:
    """The records but for those of cells of which their run says, beside any launches, that it did not measure them."""
    records = list(records)
    cut = {(r.kind, r.cell) for r in records if r.block is None and Status(r.status).resumable}
    return [r for r in records if (r.kind, r.cell) not in cut]


def _newest_first(by_run: Mapping[str, list[Record]]) -> list[list[Record]]:
    return [by_run[run_id] for run_id in sorted(by_run, reverse=True)]


def _is_good(group: Group) -> bool:
    """Whether an answer is whole, and nothing of it failed or is not to be trusted; a planned skip is an answer."""
    failed = any(Status(r.status).failed for r in group)
    of_cell = [r for r in group if speaks_for_cell(r.kind, r.metric)]
    return not failed and all(r.status in (Status.OK, Status.SKIPPED) and not r.simulated for r in of_cell)


def _weight_as_base(group: Group) -> tuple[bool, Weight]:
    """The weight of an answer to hold another code's against."""
    return (True, Weight.WHOLE) if _is_good(group) else (False, Weight.of(group))


def _stands_for(measured_as_base: Group, own: Group, prefer_good: bool) -> bool:
    """Whether what a paired run measured of its base stands in the place of the code's own answer."""
    if Weight.of(own) is Weight.NOTHING:
        return Weight.of(measured_as_base) > Weight.NOTHING
    return prefer_good and _is_good(measured_as_base) and not _is_good(own)


def _choose(answers: Iterable[list[Record]], weigh: Callable[[Group], Any] = Weight.of) -> dict[Key, Group]:
    """For every kind of a cell one answer: the first of those of most weight."""
    chosen: dict[Key, Group] = {}
    for answer in answers:
        groups: dict[Key, Group] = {}
        for record in answer:
            groups.setdefault((record.kind, record.cell), []).append(record)
        for key, group in groups.items():
            if key not in chosen or weigh(group) > weigh(chosen[key]):
                chosen[key] = group
    return chosen
