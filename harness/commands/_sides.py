"""The two sides of a diff: which results stand for which ref, and static rows compiled on the spot where one side has
none, so that both sides are compiled by one stack.
"""

from __future__ import annotations

import importlib.util
import math
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness.authoring.workspace import Workspace
from harness.commands._progress import Progress
from harness.dispatch.local import LocalDispatcher
from harness.dispatch.run import STOPPED, declarations, describe_run, execute, new_run_id
from harness.errors import HarnessError, RefError, Undecided, UnknownNameError, WorkspaceError
from harness.judge.compare import surroundings
from harness.judge.conclude import PROVING
from harness.judge.index import COMPILED, reached
from harness.judge.model import Side
from harness.plan.affected import Change, change_between
from harness.plan.budget import duration_text
from harness.plan.describe import Description, describe
from harness.plan.git import Git, GitFailed
from harness.plan.jobs import make_jobs
from harness.plan.matrix import Filters, is_named
from harness.plan.plan import Plan, limits_of, plan_tree, selection
from harness.plan.refs import ancestors, is_path, is_ref, merge_base, resolve, split_range
from harness.plan.requirements import same_requirements
from harness.plan.trees import Tree, checkout, tree_of_commit
from harness.records import HEAD, Cell, Expected, Record, Status
from harness.report.words import count
from harness.store.files import holds_records, read_parquet
from harness.store.lookup import Found, Key, Pairs, Results, is_refused
from harness.store.runs import RunStore

STATIC = "static"


@dataclass(frozen=True)
class Named:
    """A ref of the command line, and what it stands for."""

    ref: str
    resolved: str
    commit: str | None
    tree: Tree | None
    code_digest: str
    dirty: bool
    found: Found | None
    measured: Tree | None = None
    """The code of the results, where that is an ancestor's."""

    @property
    def is_code(self) -> bool:
        """Whether it is a ref of git, whose results are all those of its code, and no run or file."""
        return self.tree is not None and not self.ref.startswith("run:")

    @property
    def was_run(self) -> bool:
        """Whether a stored run is of it, and not only baselines or another's base arm."""
        return bool(self.found and self.found.runs)

    @property
    def measured_digest(self) -> str:
        """Digest of the code that the results ran."""
        return self.measured.code_digest if self.measured else self.code_digest


@dataclass(frozen=True)
class Scope:
    """What is compared, of either side's results, and what is expected of each; the last five as in `Side`."""

    base_records: list[Record]
    head_records: list[Record]
    base_expected: list[Expected]
    head_expected: list[Expected]
    same_code: frozenset[tuple[Cell, str]]
    removed: frozenset[tuple[Cell, str]]
    changed: frozenset[str] | None
    equal: bool
    only_added: bool


@dataclass(frozen=True)
class Sides:
    """What a diff judges, and what a reader should know of how it was put together.

    Args:
        head_was_run: a run of head's own is here (or head is a file): its plan says what is expected.
    """

    base: Side
    head: Side
    notes: tuple[str, ...]
    head_was_run: bool


class Assembler:
    """Builds the sides of `A..B`.

    Args:
        say: prints a line of progress.
        compile_missing: compile static rows that a side lacks.
        kernels: compare kernels alone that one of these globs matches; all where empty.
    """

    def __init__(
        self,
        workspace: Workspace,
        store: RunStore,
        say: Callable[[str], None],
        *,
        compile_missing: bool,
        kernels: Sequence[str] = (),
    ) -> None:
        self.workspace, self.say, self.kernels = workspace, say, tuple(kernels)
        self.results = Results(store, RunStore(workspace.compiled_dir), workspace.baselines_dir, self.kernels)
        self.git = Git(workspace.root)
        self.compile = compile_missing and importlib.util.find_spec("triton") is not None
        self.notes: list[str] = []
        self._narrow = ""
        self._descriptions: dict[str, Description] = {}

    def sides(self, text: str, *, exact: bool, matrix: str | None) -> Sides:
        """The sides of a range.

        Raises:
            RefError: a ref does not resolve.
            UnknownNameError: neither side has a kernel that a glob matches.
            Undecided: no merge base; both sides are one commit, or the same records.
        """
        only = selection(matrix or "all", Filters(kernels=self.kernels))
        self._narrow = (f" {only}" if matrix or self.kernels else "") + self.results.store.option
        base_ref, head_ref = split_range(text, self._is_known)
        named = self._named(base_ref, find=False)
        head = self._named(head_ref)
        base, distance = self._base(named, head, exact=exact)
        if base.is_code and head.is_code and base.code_digest == head.code_digest:
            return self._of_one_code(text, base, head, matrix)
        if base.found and head.found and base.found.sources == head.found.sources and base.code_digest == head.code_digest:
            raise Undecided(
                f"to compare {text}",
                f"both sides are the same records ({', '.join(sorted(base.found.sources))}): the code is equal",
                "submit head for records of its own, or compare other refs",
            )
        planned = self._expected(head, matrix or "all")
        if self.kernels:
            planned = self._of_kernels(base, head, planned)
        base_records, head_records = (list(side.found.records) if side.found else [] for side in (base, head))
        scope = None
        if planned is not None:
            if matrix is not None:
                planned, head_records = self._narrowed(head, planned, head_records, matrix)
            scope = self._in_scope(text, base, head, planned, head_records, matrix=matrix)
            base_records, head_records = self._with_pairs(self._pairs(base, head), scope.base_records, scope.head_records, planned)
            base_records, head_records = self._compile_static(base, head, base_records, head_records, scope, matrix or "all")
        return Sides(
            Side(
                ref=base_ref,
                commit=base.commit,
                code_digest=base.measured_digest,
                distance=distance,
                dirty=base.dirty,
                records=tuple(base_records),
                expected=None if scope is None else tuple(scope.base_expected),
            ),
            Side(
                ref=head_ref,
                commit=head.commit,
                code_digest=head.code_digest,
                dirty=head.dirty,
                records=tuple(head_records),
                expected=None if scope is None else tuple(scope.head_expected),
                same_code=frozenset() if scope is None else scope.same_code,
                removed=frozenset() if scope is None else scope.removed,
                changed=None if scope is None else scope.changed,
                equal=scope is not None and scope.equal,
                only_added=scope is not None and scope.only_added,
            ),
            tuple(self.notes),
            head_was_run=head.tree is None or head.was_run,
        )

    def _submit(self, head: Named) -> str:
        """The command that runs head, as far as it is compared."""
        return f"harness submit --ref {shlex.quote(head.ref)}{self._narrow}"

    def _of_one_code(self, text: str, base: Named, head: Named, matrix: str | None) -> Sides:
        """The sides of two commits of equal code: what is known of it is known of both, and there is nothing to compare.

        Raises:
            Undecided: they are one commit, or declare other requirements.
        """
        assert base.tree is not None
        assert head.tree is not None
        if base.commit == head.commit and base.tree.tree == head.tree.tree:
            raise Undecided(
                f"to compare {text}",
                f"both are one commit ({base.ref} is {base.resolved}, {head.ref} is {head.resolved})",
                "commit the change on a branch and name that, or compare two runs of this commit: run:ID..run:ID",
            )
        if not same_requirements(self.git, base.tree.tree, head.tree.tree):
            raise Undecided(
                f"to compare {text}",
                "the code is equal, and the declared requirements are not: results are looked up by code, so both sides have the same",
                f"{self._submit(head)} with what it declares, and compare that run: harness diff {base.ref}..run:last{self._narrow}",
            )
        records = [r for r in (head.found.records if head.found else ()) if Status(r.status).speaks and not r.simulated]
        if matrix is not None:
            asked = self._asked_by(head.tree, matrix)
            records = [r for r in records if asked is None or (r.kind, r.cell) in asked]
        of_base = Side(ref=base.ref, commit=base.commit, code_digest=base.code_digest, records=tuple(records), expected=())
        same = frozenset((r.cell, r.kind) for r in records)
        of_head = replace(of_base, ref=head.ref, commit=head.commit, records=(), same_code=same, changed=frozenset(), equal=True)
        return Sides(of_base, of_head, tuple(self.notes), head_was_run=True)

    def _named(self, ref: str, *, find: bool = True) -> Named:
        """What a ref stands for; where `find` is false, without the results of a ref of git, which take long to put together."""
        if ref.startswith("run:"):
            found = self.results.run(ref.removeprefix("run:"))
            run = found.runs[0]
            tree = Tree(ref, f"run {run['run_id']} of {run['resolved']}", run["commit"], run["tree"], run["code_digest"], run["dirty"])
            return self._of_tree(ref, tree, found)
        if holds_records(path := Path(ref)):
            records = tuple(r for r in read_parquet(path) if is_named(r.kernel, self.kernels))
            digests = {(r.commit, r.code_digest, r.dirty) for r in records}
            if len(digests) != 1:
                raise RefError(f"the records of {ref}", f"they are of {len(digests)} commits", "name a file or folder of one run")
            ((commit, digest, dirty),) = digests
            return Named(ref, f"{path}", commit, None, digest, dirty, Found(records, (), frozenset(r.run_id for r in records)))
        try:
            tree = resolve(self.git, ref)
        except RefError as error:
            if path.exists():
                why = "neither a Parquet file nor a folder of records: device=NAME/ is not in it or its records/"
            elif is_path(ref):
                why = "no such file or folder"
            else:
                raise
            do = "name a Parquet file, the folder of one run (.harness/runs/ID), baselines/, or a ref of git"
            raise RefError(f"the records in {ref}", why, do) from error
        return self._of_tree(ref, tree, self.results.of(tree.code_digest, dirty=tree.dirty) if find else None)

    def _is_known(self, ref: str) -> bool:
        """Whether a ref may be one of `_named`: that a run is there is not looked up."""
        return ref.startswith("run:") or Path(ref).exists() or is_ref(self.git, ref)

    def _of_tree(self, ref: str, tree: Tree, found: Found | None) -> Named:
        return Named(ref, tree.resolved, tree.commit, tree, tree.code_digest, tree.dirty, found)

    def _base(self, named: Named, head: Named, *, exact: bool) -> tuple[Named, int]:
        ref = named.ref
        if ref.startswith("run:") or named.tree is None:
            return named, 0
        if named.commit is None or head.commit is None:
            raise RefError(
                f"the merge base of {ref} and {head.ref}", "one of them has no commit", "compare runs or files directly: run:ID..run:ID"
            )
        if named.tree.dirty:  # no commit has this code: it is compared as it is
            return self._of_tree(ref, named.tree, self.results.of(named.code_digest, dirty=True, prefer_good=True)), 0
        commit = named.commit if exact else merge_base(self.git, named.commit, head.commit)
        # a run is never its own baseline
        exclude = head.found.sources if head.found and head.ref.startswith("run:") else frozenset()
        judged = {run["run_id"] for run in head.found.runs} if head.found else set()
        tree = tree_of_commit(self.git, commit, ref, f"{ref} at {commit[:12]}")
        for ancestor in ancestors(self.git, commit):
            if found := self.results.of(ancestor.code_digest, dirty=False, exclude=exclude, judged=judged, prefer_good=True):
                if ancestor.distance:
                    self.notes.append(
                        f"base {commit[:12]} has no results: what was measured of {ancestor.commit[:12]} stands in, "
                        f"{ancestor.commits} commits and {ancestor.distance} changes of code before it"
                    )
                    # what needs no unit is compiled from the base itself
                    found = Found(tuple(r for r in found.records if r.kind != STATIC), (), found.sources)
                measured = tree_of_commit(self.git, ancestor.commit, ref, ancestor.commit[:12]) if ancestor.distance else None
                return replace(self._of_tree(ref, tree, found), measured=measured), ancestor.distance
        if commit == head.commit and not head.dirty and head.found:
            raise Undecided(
                f"to compare {ref} with {head.ref}",
                f"both are of commit {commit[:12]}, of which there are no other results, and a run is never its own baseline",
                "submit it again and compare the two runs, run:ID..run:ID, or commit a change and run that",
            )
        return self._of_tree(ref, tree, None), 0

    def _pairs(self, base: Named, head: Named) -> Pairs:
        """What paired runs of head against base timed; of the one run, where head is one."""
        if base.tree is None or head.tree is None or head.found is None:
            return Pairs((), (), ())
        runs = head.found.sources if head.ref.startswith("run:") else None
        return self.results.pairs(base.code_digest, head.code_digest, dirty=head.dirty, runs=runs)

    def _with_pairs(
        self, pairs: Pairs, base_records: list[Record], head_records: list[Record], planned: Sequence[Expected]
    ) -> tuple[list[Record], list[Record]]:
        """The records with paired launches in the place of stored ones, but for cells that failed in any of head's runs, or that were
        refused there for what the code does.
        """
        failed = {(r.kind, r.cell) for r in head_records if Status(r.status).failed or is_refused(r)}
        cells = {(e.kind, e.cell) for e in planned} & {(r.kind, r.cell) for r in pairs.head} - failed
        if not cells:
            return base_records, head_records
        self.notes.append(f"{len(cells)} cells were timed in pairs by {', '.join(pairs.sources)}")

        def put(records: list[Record], launches: Sequence[Record]) -> list[Record]:
            kept = [r for r in records if (r.kind, r.cell) not in cells]
            return kept + [r for r in launches if (r.kind, r.cell) in cells]

        return put(base_records, pairs.base), put(head_records, pairs.head)

    def _expected(self, head: Named, matrix: str) -> list[Expected] | None:
        """What head's plan asks for: that of its runs; of the matrix where it has none, though it was the base of another's or
        has baselines; None where neither is to be had: for a file, and for baselines where nothing is compiled.
        """
        if runs := head.found.runs if head.found else ():
            merged = {(e["kind"], e["cell"]): e["limit"] for run in reversed(runs) for e in run["expected"]}
            return [Expected(Cell.parse(cell), kind, limit) for (kind, cell), limit in sorted(merged.items())]
        if head.tree is not None and self.compile:
            what = "what is known of it otherwise, and what can be compiled here, is" if head.found else "what can be compiled here is"
            self.notes.append(f"head {head.resolved} was never run: {what} compared ({self._submit(head)})")
            same = [i for i in self.results.store.list() if i.code_digest == head.code_digest and i.dirty and not head.dirty]
            self.notes += [f"run {i.run_id} had this code in a dirty worktree, and stands for no commit" for i in same]
            return list(plan_tree(self.workspace, self.git, head.tree, matrix, Filters()).expected)
        if head.found is None or all(r.arm != HEAD for r in head.found.records):
            why = "none are stored" if head.found is None else "it was measured as the base of other code alone"
            raise Undecided(f"the results of {head.ref}", why, self._submit(head))
        return None

    def _narrowed(self, head: Named, planned: list[Expected], records: list[Record], matrix: str) -> tuple[list[Expected], list[Record]]:
        """What the matrix asks of what head's runs planned, and their records of it; runs of other matrices may hold more."""
        if head.tree is None:
            return planned, records
        runs = head.found.runs if head.found else ()
        asked = {(e.kind, e.cell) for e in planned}
        if not all(run["matrix"] == matrix for run in runs):
            of_matrix = self._asked_by(head.tree, matrix)
            if of_matrix is None:
                return planned, records
            asked &= of_matrix
        if outside := len(planned) - len(asked):
            self.notes.append(f"{outside} cells of head's runs are outside of the matrix {matrix} and not compared")
        return [e for e in planned if (e.kind, e.cell) in asked], [r for r in records if (r.kind, r.cell) in asked]

    def _asked_by(self, tree: Tree, matrix: str) -> set[Key] | None:
        """What a matrix asks of some code; None, and a note, where no plan can be made here."""
        if importlib.util.find_spec("triton") is None:
            self.notes.append(f"not narrowed to the matrix {matrix}: that takes the extra `kernels`, to know the cases' tags")
            return None
        return {(e.kind, e.cell) for e in plan_tree(self.workspace, self.git, tree, matrix, Filters()).expected}

    def _of_kernels(self, base: Named, head: Named, planned: list[Expected] | None) -> list[Expected] | None:
        """What is planned of the kernels that are compared, those that head removed among them.

        Raises:
            UnknownNameError: a glob matches no kernel of either side.
        """
        known = {e.cell.kernel for e in planned or ()}
        for found in (base.found, head.found):
            known |= {kernel for run in (found.runs if found else ()) for kernel in run["declared"]}
            known |= {r.kernel for r in (found.records if found else ())}
        for pattern in self.kernels:
            if not any(is_named(name, (pattern,)) for name in known):
                raise UnknownNameError.of("kernel", pattern, known)
        self.notes.append(f"compared alone: {' '.join(f'--kernel {pattern}' for pattern in self.kernels)}")
        return None if planned is None else [e for e in planned if is_named(e.cell.kernel, self.kernels)]

    def _in_scope(
        self, text: str, base: Named, head: Named, expected: Sequence[Expected], answers: Sequence[Record], *, matrix: str | None
    ) -> Scope:
        """What is compared of either side's records, and expected of it.

        A cell that base has and head's code declares is expected of head too, under every kind on a device that head reached, though its
        plan left it out: changed code that was not run is no pass. Where nothing changed that the cell's result depends on,
        base's result stands for both, and for all that a head that was never run lacks likewise.

        Args:
            text: the range.
            expected: what head's plan asks for.
            answers: head's records.
            matrix: the one that the user named to be compared alone: what head's plan leaves out is only counted.
        """
        records = base.found.records if base.found else ()
        planned = {(e.kind, e.cell) for e in expected}
        known = {(r.kind, r.cell) for r in records if Status(r.status).speaks and not r.simulated}
        in_head = self._declares(head)
        left_out: set[Key] = set()
        if matrix is None and base.measured_digest != head.code_digest:
            left_out = {(r.kind, r.cell) for r in _within_reach(records, answers) if in_head(r.cell)} - planned
        open_yet = set() if head.was_run else planned & known - {(r.kind, r.cell) for r in answers}
        asked = planned | left_out
        gone = {(r.kind, r.cell) for r in records if not in_head(r.cell)} - asked
        if gone and matrix is not None and base.tree is not None:
            of_matrix = self._asked_by(base.measured or base.tree, matrix)
            gone = gone if of_matrix is None else gone & of_matrix
        kept = [r for r in records if (r.kind, r.cell) in asked | gone]
        with ThreadPoolExecutor(1) as beside:  # either takes seconds, in a process of its own
            declared = beside.submit(self._declares, base)
            changes = self._change(base, head) if left_out or open_yet or gone or not planned & known else None
            in_base = declared.result()
        equal = {(kind, cell) for kind, cell in left_out | open_yet if changes and not changes.affects(Expected(cell, kind))}
        compiled = {key for key in known if key[0] == STATIC}  # of either side they would be compiled by one stack here
        same = equal & (_of_one_stack(records, answers) | compiled if head.was_run else known)
        wide = [*expected, *(Expected(cell, kind) for kind, cell in sorted(left_out))]
        wide = [e for e in wide if (e.kind, e.cell) not in same]
        if head.found and head.found.runs and left_out:
            why = "since what they depend on changed" if changes else "whether head changes them or not"
            self._note_left_out(text, head.found.runs, same, equal - same, left_out - equal, why)
        elif same:
            self.notes.append(f"{_counted(same)} of base stand for head too: nothing that they depend on changed")
        self._note_outside("base", records, kept, "are outside of head's plan")
        ours = [r for r in answers if (r.kind, r.cell) in asked or not in_base(r.cell)]
        self._note_outside("head", answers, ours, "are outside of its runs' plan, of which base has no results,")
        in_both = {e.cell.kernel for e in wide if in_base(e.cell)}
        added = {e.cell.kernel for e in wide} - in_both
        changed = {name for name in changes.kernels if is_named(name, self.kernels)} if changes and not changes.kinds else None
        of_base = [Expected(e.cell, e.kind) for e in wide if in_base(e.cell)] + [Expected(cell, kind) for kind, cell in sorted(gone)]
        return Scope(
            kept,
            ours,
            self._with_limits(base, of_base),
            wide,
            same_code=frozenset((cell, kind) for kind, cell in same),
            removed=frozenset((cell, kind) for kind, cell in gone),
            changed=changes.kernels if changes else None,
            equal=changed is not None and not changed,
            only_added=changed is not None and changed <= added,
        )

    def _note_outside(self, side: str, records: Iterable[Record], kept: Iterable[Record], why: str) -> None:
        if outside := {(r.kind, r.cell) for r in records} - {(r.kind, r.cell) for r in kept}:
            self.notes.append(f"{_counted(outside)} of {side} {why} and not compared")

    def _change(self, base: Named, head: Named) -> Change | None:
        """What differs between the code of base's results and head's; None where that cannot be told here."""
        before = base.measured or base.tree
        if before is None or head.tree is None or importlib.util.find_spec("triton") is None:
            return None
        try:
            return change_between(self.workspace, self.git, before, head.tree)
        except (GitFailed, WorkspaceError):  # a worktree of long ago: git has dropped its tree
            return None

    def _note_left_out(
        self,
        text: str,
        runs: Sequence[dict[str, Any]],
        same: Collection[Key],
        elsewhere: Collection[Key],
        changed: Collection[Key],
        why: str,
    ) -> None:
        """Say what head's runs left out of what base has, and which command compares what they ran alone.

        Args:
            same: what stands for head too.
            elsewhere: what has head's code, and was not measured with software and GPU model of any result of head.
            changed: the rest, which is missing, and `why`.
        """
        ran = {selection(run["matrix"], Filters(**run["options"]["filters"])): run for run in runs}
        of_base = f"of base were left out of head's runs ({', '.join(sorted(ran))})"
        if same:
            self.notes.append(f"{_counted(same)} {of_base}, and stand for head too: nothing that they depend on changed")
        run = next(iter(ran.values()))
        narrow = selection(run["matrix"], Filters(kernels=tuple(run["options"]["filters"].get("kernels", ()))))
        alone = f"what it ran is compared alone by: harness diff {text} {narrow}"
        for cells, because in ((elsewhere, "since nothing of head was measured with the same software and GPU model"), (changed, why)):
            if cells:
                self.notes.append(f"{_counted(cells)} {of_base} and are missing, {because}; {alone}")

    def _declares(self, side: Named) -> Callable[[Cell], bool]:
        """Whether a side's code has a cell: by the plan of its runs, else by its code, else by its records."""
        if side.found and side.found.runs:
            declared = side.found.runs[0]["declared"]
        elif side.tree is not None and importlib.util.find_spec("triton") is not None:
            declared = declarations(self._describe(side.tree))
        else:
            known = {(r.kernel, r.variant, r.case) for r in (side.found.records if side.found else ())}
            return lambda cell: (cell.kernel, cell.variant, cell.case) in known

        def has(cell: Cell) -> bool:
            kernel = declared.get(cell.kernel, {"variants": (), "cases": ()})
            return cell.variant in kernel["variants"] and cell.case in kernel["cases"]

        return has

    def _describe(self, tree: Tree) -> Description:
        """What the code of a tree declares, which takes seconds to read.

        Raises:
            HarnessError: it cannot be checked out or read.
            GitFailed: git does not have the tree any more.
        """
        if tree.code_digest not in self._descriptions:
            self._descriptions[tree.code_digest] = describe(checkout(self.git, tree, self.workspace))
        return self._descriptions[tree.code_digest]

    def _with_limits(self, base: Named, asked: Sequence[Expected]) -> list[Expected]:
        """What is expected of base, with base's own tolerances: by the plans of its runs, else by its code; None where neither is known
        here. Head's say nothing of base: a change that loosens its tolerance is measured by the one it found.
        """
        runs = base.found.runs if base.found else ()
        limits = {(e["kind"], Cell.parse(e["cell"])): e["limit"] for run in runs for e in run["expected"]}
        if any(e.kind in PROVING and limits.get((e.kind, e.cell)) is None for e in asked):
            limits |= self._declared_limits(base, asked)
        return [replace(e, limit=limits.get((e.kind, e.cell))) for e in asked]

    def _declared_limits(self, side: Named, asked: Sequence[Expected]) -> dict[Key, float | None]:
        """The tolerances that the measured code names; none where it cannot be read here."""
        tree = side.measured or side.tree
        if tree is None or importlib.util.find_spec("triton") is None:
            return {}
        try:
            known = limits_of(self._describe(tree))
        except (GitFailed, HarnessError):  # a worktree of long ago, or code that nothing here can read any more
            return {}
        keys = {(e.kind, e.cell): (e.kind, e.cell.kernel, e.cell.variant, e.cell.case) for e in asked}
        return {one: known[key] for one, key in keys.items() if key in known}

    def _compile_static(
        self, base: Named, head: Named, base_records: list[Record], head_records: list[Record], scope: Scope, matrix: str
    ) -> tuple[list[Record], list[Record]]:
        asked = {e.cell for e in scope.head_expected if e.kind == STATIC}
        of_base = asked & {e.cell for e in scope.base_expected if e.kind == STATIC}
        lacking = asked - set(_stacks(head_records))
        if lacking:
            head_records = self._with_static(head, head_records, lacking, matrix)
        ours, theirs = _stacks(head_records), _stacks(base_records)
        differing = {cell for cell in of_base if theirs.get(cell) != ours.get(cell)}
        if differing:
            base_records = self._with_static(base, base_records, differing, matrix)
        ours, theirs = _stacks(head_records), _stacks(base_records)
        still = {cell for cell, stack in theirs.items() if cell in asked and ours.get(cell) not in (None, stack)}
        if still:
            head_records = self._with_static(head, head_records, still, matrix)
        return base_records, head_records

    def _with_static(self, side: Named, records: list[Record], cells: Collection[Cell], matrix: str) -> list[Record]:
        """The records with static rows of `cells` compiled here in the place of those they had."""
        if side.tree is None or not self.compile:
            why = "the code of a file is not known" if side.tree is None else "compiling is off, or the extra `kernels` is not installed"
            self.notes.append(f"{len(cells)} static cells of {side.ref} are missing and not compiled here: {why}")
            return records
        devices = tuple(sorted({c.device for c in cells}))
        plan = plan_tree(self.workspace, self.git, side.tree, matrix, Filters(devices=devices, kinds=(STATIC,)))
        wanted = {e.cell: e for e in plan.expected if e.cell in cells}
        fresh = [r for r in self.results.compiled_here(side.code_digest, version("triton")) if r.cell in wanted]
        if left := tuple(wanted[cell] for cell in sorted(set(wanted) - {r.cell for r in fresh})):
            fresh += self._run(replace(plan, expected=left, jobs=tuple(make_jobs(left, plan.description.kinds, side.code_digest))))
        return [r for r in records if r.kind != STATIC or r.cell not in wanted] + fresh

    def _run(self, plan: Plan) -> list[Record]:
        """Compile what a plan asks for, and keep it for later diffs.

        Raises:
            KeyboardInterrupt: it was stopped; what was compiled until then is kept.
        """
        dispatcher = LocalDispatcher()
        seconds = math.ceil(sum(job.expected_s for job in plan.jobs) / dispatcher.slots)
        about = duration_text(seconds if seconds < 60 else 60 * math.ceil(seconds / 60))
        self.say(
            f"compiling {count(len(plan.expected), 'cell')} of {plan.tree.resolved} without a GPU, "
            f"about {about} on {count(dispatcher.slots, 'core')} "
            "(--no-compile leaves them out, --matrix NAME compares fewer; what is compiled is kept)"
        )
        now = datetime.now(UTC)
        run = describe_run(plan, new_run_id(now), now, {"filters": {}, "require": [], "launches": 1})
        place = self.workspace.compiled_dir
        with Progress(quiet=False, jobs=plan.jobs) as progress:
            outcome = execute(plan, dispatcher, RunStore(place), run, place / run["run_id"], observe=progress.observe)
        if outcome.exit_code == STOPPED:
            kept = len({r.cell for r in outcome.records if not Status(r.status).resumable})
            self.say(f"stopped: {kept} of {len(plan.expected)} cells are compiled, and kept for the next diff")
            raise KeyboardInterrupt
        return [r for r in outcome.records if r.status != Status.NO_CAPACITY]


def _within_reach(records: Iterable[Record], answers: Iterable[Record]) -> list[Record]:
    """The records that are of a device that these answers show was reached, or of a kind that was asked for their device."""
    answers = [r for r in answers if r.status != Status.NO_CAPACITY and not r.simulated]
    devices, asked = {r.device for r in answers if reached(r)}, {(r.kind, r.device) for r in answers}
    return [r for r in records if r.device in devices or (r.kind, r.device) in asked]


def _counted(cells: Collection[Key]) -> str:
    """`15 cells (12 correctness, 3 drift)`."""
    kinds = Counter(kind for kind, _ in cells)
    return f"{len(cells)} cells ({', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))})"


def _stacks(records: Sequence[Record]) -> dict[Cell, tuple[Any, Any]]:
    """Cell -> compiler stack of its static rows, of cells that were compiled or failed to."""
    return {
        r.cell: (r.environment.get("triton"), r.environment.get("compiler"))
        for r in records
        if r.kind == STATIC and Status(r.status).speaks
    }


def _of_one_stack(base: Sequence[Record], head: Sequence[Record]) -> set[Key]:
    """Kinds and cells of which all that base measured rests on the software and the kind of unit that head has results of, too: equal
    code under another compiler is not the same. What was only simulated was not measured.
    """
    known = {surroundings(r, compiled=compiled) for r in head if not r.simulated for compiled in (True, False)} - {None}
    cells: dict[Key, list[Record]] = {}
    for record in base:
        if not Status(record.status).resumable:
            cells.setdefault((record.kind, record.cell), []).append(record)
    alike = {
        key: [not r.simulated and surroundings(r, compiled=r.kind in COMPILED) in known for r in found] for key, found in cells.items()
    }
    return {key for key, each in alike.items() if all(each)}
