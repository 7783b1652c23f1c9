"""The two sides of a diff: which results stand for which ref, and static rows compiled on the spot where one side has
none, so that both sides are compiled by one stack.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness.authoring.workspace import Workspace
from harness.commands._progress import Progress
from harness.dispatch.local import LocalDispatcher
from harness.dispatch.run import STOPPED, declarations, describe_run, execute, new_run_id
from harness.errors import RefError, Undecided
from harness.judge.model import Side
from harness.plan.budget import duration_text
from harness.plan.describe import describe
from harness.plan.git import Git
from harness.plan.jobs import make_jobs
from harness.plan.matrix import Filters
from harness.plan.plan import Plan, plan_tree
from harness.plan.refs import ancestors, merge_base, resolve, split_range
from harness.plan.trees import Tree, checkout, tree_of_commit
from harness.records import HEAD, Cell, Expected, Record, Status
from harness.store.files import read_parquet
from harness.store.lookup import Found, Pairs, Results
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
    """

    def __init__(self, workspace: Workspace, store: RunStore, say: Callable[[str], None], *, compile_missing: bool) -> None:
        self.workspace, self.say = workspace, say
        self.results = Results(store, RunStore(workspace.compiled_dir), workspace.baselines_dir)
        self.git = Git(workspace.root)
        self.compile = compile_missing and importlib.util.find_spec("triton") is not None
        self.notes: list[str] = []

    def sides(self, text: str, *, exact: bool, matrix: str | None) -> Sides:
        """The sides of a range.

        Raises:
            RefError: a ref does not resolve.
            Undecided: no merge base; or both sides are the same records.
        """
        base_ref, head_ref = split_range(text)
        head = self._named(head_ref)
        base, distance = self._base(base_ref, head, exact=exact)
        if base.found and head.found and base.found.sources == head.found.sources and base.code_digest == head.code_digest:
            raise Undecided(
                f"to compare {text}",
                f"both sides are the same records ({', '.join(sorted(base.found.sources))}): the code is equal",
                "submit head for records of its own, or compare other refs",
            )
        planned = self._expected(head, matrix or "all")
        head_records = list(head.found.records) if head.found else []
        if matrix is not None and planned is not None:
            planned, head_records = self._narrowed(head, planned, head_records, matrix)
        if planned is None:
            base_records = list(base.found.records) if base.found else []
            base_expected = head_expected = None
        else:
            base_records, base_expected, head_expected = self._in_scope(base, head, planned, narrow=matrix is not None)
            base_records, head_records = self._with_pairs(self._pairs(base, head), base_records, head_records, planned)
            base_records, head_records = self._compile_static(base, head, base_records, head_records, planned, matrix or "all")
        return Sides(
            Side(
                ref=base_ref,
                commit=base.commit,
                code_digest=base.code_digest,
                distance=distance,
                dirty=base.dirty,
                records=tuple(base_records),
                expected=None if base_expected is None else tuple(base_expected),
            ),
            Side(
                ref=head_ref,
                commit=head.commit,
                code_digest=head.code_digest,
                dirty=head.dirty,
                records=tuple(head_records),
                expected=None if head_expected is None else tuple(head_expected),
            ),
            tuple(self.notes),
            head_was_run=head.tree is None or bool(head.found and head.found.runs),
        )

    def _named(self, ref: str) -> Named:
        if ref.startswith("run:"):
            found = self.results.run(ref.removeprefix("run:"))
            run = found.runs[0]
            tree = Tree(ref, f"run {run['run_id']} of {run['resolved']}", run["commit"], run["tree"], run["code_digest"], run["dirty"])
            return self._of_tree(ref, tree, found)
        if (path := Path(ref)).exists() and (path.suffix == ".parquet" or any(path.rglob("device=*"))):
            records = tuple(read_parquet(path))
            digests = {(r.commit, r.code_digest, r.dirty) for r in records}
            if len(digests) != 1:
                raise RefError(f"the records of {ref}", f"they are of {len(digests)} commits", "name a file or folder of one run")
            ((commit, digest, dirty),) = digests
            return Named(ref, f"{path}", commit, None, digest, dirty, Found(records, (), frozenset(r.run_id for r in records)))
        tree = resolve(self.git, ref)
        return self._of_tree(ref, tree, self.results.of(tree.code_digest, dirty=tree.dirty))

    def _of_tree(self, ref: str, tree: Tree, found: Found | None) -> Named:
        return Named(ref, tree.resolved, tree.commit, tree, tree.code_digest, tree.dirty, found)

    def _base(self, ref: str, head: Named, *, exact: bool) -> tuple[Named, int]:
        named = self._named(ref)
        if ref.startswith("run:") or named.tree is None:
            return named, 0
        if named.commit is None or head.commit is None:
            raise RefError(
                f"the merge base of {ref} and {head.ref}", "one of them has no commit", "compare runs or files directly: run:ID..run:ID"
            )
        if named.tree.dirty:  # no commit has this code: it is compared as it is
            return named, 0
        if named.commit == head.commit and head.found is None and not head.dirty:
            raise Undecided(
                f"to compare {ref}..{head.ref}",
                f"both are one commit ({ref} is {named.resolved}, {head.ref} is {head.resolved}), of which there are no results",
                f"commit the change on a branch and name that, or give this commit results of its own: harness submit --ref {head.ref}",
            )
        commit = named.commit if exact else merge_base(self.git, named.commit, head.commit)
        # a run is never its own baseline
        exclude = head.found.sources if head.found and head.ref.startswith("run:") else frozenset()
        judged = {run["run_id"] for run in head.found.runs} if head.found else set()
        tree = tree_of_commit(self.git, commit, ref, f"{ref} at {commit[:12]}")
        for ancestor in ancestors(self.git, commit):
            if found := self.results.of(ancestor.code_digest, dirty=False, exclude=exclude, judged=judged):
                if ancestor.distance:
                    self.notes.append(
                        f"base {commit[:12]} has no results: what was measured of {ancestor.commit[:12]} stands in, "
                        f"{ancestor.commits} commits and {ancestor.distance} changes of code before it"
                    )
                    # what needs no unit is compiled from the base itself
                    found = Found(tuple(r for r in found.records if r.kind != STATIC), (), found.sources)
                return self._of_tree(ref, tree, found), ancestor.distance
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
        """The records with paired launches in the place of stored ones, but for cells that failed in any of head's runs."""
        failed = {(r.kind, r.cell) for r in head_records if Status(r.status).failed}
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
            what = "what is known of it otherwise, and what can be compiled here, is" if head.found else "only what can be compiled here is"
            self.notes.append(f"head {head.resolved} was never run: {what} compared (harness submit --ref {head.ref})")
            same = [i for i in self.results.store.list() if i.code_digest == head.code_digest and i.dirty and not head.dirty]
            self.notes += [f"run {i.run_id} had this code in a dirty worktree, and stands for no commit" for i in same]
            return list(plan_tree(self.workspace, self.git, head.tree, matrix, Filters()).expected)
        if head.found is None or all(r.arm != HEAD for r in head.found.records):
            why = "none are stored" if head.found is None else "it was measured as the base of other code alone"
            raise Undecided(f"the results of {head.ref}", why, f"harness submit --ref {head.ref}")
        return None

    def _narrowed(self, head: Named, planned: list[Expected], records: list[Record], matrix: str) -> tuple[list[Expected], list[Record]]:
        """What the matrix asks of what head's runs planned, and their records of it; runs of other matrices may hold more."""
        runs = head.found.runs if head.found else ()
        if head.tree is None or all(run["matrix"] == matrix for run in runs):
            return planned, records
        if importlib.util.find_spec("triton") is None:
            self.notes.append(f"not narrowed to the matrix {matrix}: that takes the extra `kernels`, to know the cases' tags")
            return planned, records
        asked = {(e.kind, e.cell) for e in plan_tree(self.workspace, self.git, head.tree, matrix, Filters()).expected}
        kept = [e for e in planned if (e.kind, e.cell) in asked]
        if outside := len(planned) - len(kept):
            self.notes.append(f"{outside} cells of head's runs are outside of the matrix {matrix} and not compared")
        return kept, [r for r in records if (r.kind, r.cell) in asked]

    def _in_scope(
        self, base: Named, head: Named, expected: Sequence[Expected], *, narrow: bool
    ) -> tuple[list[Record], list[Expected], list[Expected]]:
        """Base's records that are compared, what base's code has of it, and what is expected of head.

        A cell that base has and head's code declares is expected of head too, on every device that head reached, though its
        plan left it out: changed code that was not run is no pass.

        Args:
            narrow: the user named the matrix to compare: what head's plan leaves out is only counted.
        """
        records = base.found.records if base.found else ()
        asked = {(e.kind, e.cell) for e in expected}
        in_base, in_head = self._declares(base), self._declares(head)
        wide = list(expected)
        if not narrow and base.code_digest != head.code_digest:
            answers = head.found.records if head.found else ()
            reached = {(r.kind, r.device) for r in answers if r.status != Status.NO_CAPACITY and not r.simulated}
            left_out = {(r.kind, r.cell) for r in records if in_head(r.cell) and (r.kind, r.device) in reached} - asked
            wide += [Expected(cell, kind) for kind, cell in sorted(left_out)]
            if left_out and head.found and head.found.runs:
                ran = ", ".join(sorted({f"--matrix {run['matrix']}" for run in head.found.runs}))
                self.notes.append(
                    f"{len(left_out)} cells of base were left out of head's runs ({ran}) and are missing, whether head changes their "
                    "kernels or not: diff with one of these matrices compares it alone"
                )
            asked |= left_out
        kept = [r for r in records if (r.kind, r.cell) in asked or not in_head(r.cell)]
        if outside := len({(r.kind, r.cell) for r in records}) - len({(r.kind, r.cell) for r in kept}):
            self.notes.append(f"{outside} cells of base are outside of head's plan and not compared")
        gone = {(r.kind, r.cell) for r in kept} - asked
        return kept, [e for e in wide if in_base(e.cell)] + [Expected(cell, kind) for kind, cell in sorted(gone)], wide

    def _declares(self, side: Named) -> Callable[[Cell], bool]:
        """Whether a side's code has a cell: by the plan of its runs, else by its code, else by its records."""
        if side.found and side.found.runs:
            declared = side.found.runs[0]["declared"]
        elif side.tree is not None and self.compile:
            declared = declarations(describe(checkout(self.git, side.tree, self.workspace)))
        else:
            known = {(r.kernel, r.variant, r.case) for r in (side.found.records if side.found else ())}
            return lambda cell: (cell.kernel, cell.variant, cell.case) in known

        def has(cell: Cell) -> bool:
            kernel = declared.get(cell.kernel, {"variants": (), "cases": ()})
            return cell.variant in kernel["variants"] and cell.case in kernel["cases"]

        return has

    def _compile_static(
        self, base: Named, head: Named, base_records: list[Record], head_records: list[Record], expected: Sequence[Expected], matrix: str
    ) -> tuple[list[Record], list[Record]]:
        asked = {e.cell for e in expected if e.kind == STATIC}
        lacking = asked - set(_stacks(head_records))
        if lacking:
            head_records = self._with_static(head, head_records, lacking, matrix)
        ours, theirs = _stacks(head_records), _stacks(base_records)
        differing = {cell for cell in asked if theirs.get(cell) != ours.get(cell)}
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
            f"compiling {len(plan.expected)} cells of {plan.tree.resolved} without a GPU, about {about} on {dispatcher.slots} cores"
            " (--no-compile leaves them out, --matrix NAME compares fewer; what is compiled is kept)"
        )
        now = datetime.now(UTC)
        run = describe_run(plan, new_run_id(now), now, {"filters": {}, "require": [], "launches": 1})
        place = self.workspace.compiled_dir
        with Progress(quiet=False) as progress:
            outcome = execute(plan, dispatcher, RunStore(place), run, place / run["run_id"], observe=progress.observe)
        if outcome.exit_code == STOPPED:
            kept = len({r.cell for r in outcome.records if not Status(r.status).resumable})
            self.say(f"stopped: {kept} of {len(plan.expected)} cells are compiled, and kept for the next diff")
            raise KeyboardInterrupt
        return [r for r in outcome.records if r.status != Status.NO_CAPACITY]


def _stacks(records: Sequence[Record]) -> dict[Cell, tuple[Any, Any]]:
    """Cell -> compiler stack of its static rows, of cells that were compiled or failed to."""
    return {
        r.cell: (r.environment.get("triton"), r.environment.get("compiler"))
        for r in records
        if r.kind == STATIC and not Status(r.status).resumable and not Status(r.status).undecided
    }
