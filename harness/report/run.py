"""The summary of a submit as plain text: what came of it on each device, what was not measured, what to do next."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.judge.index import Key, Measured, index, reached
from harness.judge.model import INTERPRETER, Side
from harness.judge.why import repeat
from harness.records import Cell, Record, Status, dispatcher_option, is_left_out, is_simulated, resume_command
from harness.report import words
from harness.report.shares import unit_lines

LISTED = 20
"""Rows of one list; the rest is counted."""
CONTRADICTED = {
    "cost_model": "mend `traffic` in the kernel file of {kernel}, which its tensors contradict",
    "reference": "mend `reference` in the kernel file of {kernel}, by which nothing can be judged",
    "inputs": "mend `make_inputs` in the kernel file of {kernel}, whose inputs are not those of the seed alone",
}
"""Codes that open the reason of a cell whose kernel file contradicts itself, and what to do about it."""
WIDTH = 200
"""Characters of a record's own words."""

_DONE = {"static": "compiled", "correctness": "right", "drift": "within tolerance", "latency": "timed"}
"""What an `ok` of a kind means."""


@dataclass(frozen=True)
class _Ended:
    cell: Cell
    kind: str
    status: Status
    reason: str
    doubted: bool = False
    """It ended well by every record, and is undecided all the same: `reason` says why."""

    @property
    def well(self) -> bool:
        """Whether it is an answer, and a good one."""
        return self.status is Status.OK and not self.doubted

    @property
    def undecided(self) -> bool:
        """Whether nobody knows what it is, for another reason than that nothing was there or the time was over."""
        return self.doubted or self.status.undecided or (self.status is Status.CANCELLED and not self.left_out)

    @property
    def left_out(self) -> bool:
        """Whether the run's budget of time was over before it."""
        return is_left_out(self.status, self.reason)

    @property
    def absent(self) -> str:
        """Why nothing was there to measure it on; empty where something was."""
        return "no_capacity" if self.status is Status.NO_CAPACITY else "simulated" if is_simulated(self.status, self.reason) else ""

    def __str__(self) -> str:
        reason = self.reason if len(self.reason) <= WIDTH else self.reason[: WIDTH - 3] + "..."
        return f"{self.cell}  {self.kind}  {'undecided' if self.doubted else self.status}" + (f": {reason}" if reason else "")


def render_run(run: Mapping[str, Any], records: Sequence[Record], store: str | None = None) -> str:
    """The summary, for a reader who has never seen one.

    Args:
        run: run.json of a run that has ended: `run_id`, `resolved`, `commit`, `dirty`, `code_digest`, `matrix`, `expected`,
            `by_status`, `required_missing`, `exit_code`, `against`, `options`; of one with a budget, `required_left_out`; of one with
            cells that are undecided although no record says so, `undecided`; where cells were measured again, or would be,
            `measured_again` and `to_measure_again`; where launches were, `repeated_launches`.
        records: the run's.
        store: what `--store` was, where it was given: the commands that are named need it too.

    Raises:
        Undecided: a cell has two answers.
    """
    heads = tuple(r for r in records if r.arm == "head")
    answers = index(Side(ref=run["ref"], commit=run["commit"], code_digest=run["code_digest"], records=heads, expected=None))
    doubts = {(one["cell"], one["kind"]): words.one_line(one["reason"]) for one in run.get("undecided", ())}
    ended = [_ended(Cell.parse(e["cell"]), e["kind"], answers, doubts.get((e["cell"], e["kind"]))) for e in run["expected"]]
    failed = [e for e in ended if e.status.failed]
    undecided = [e for e in ended if e.undecided]
    option = f" --store {shlex.quote(store)}" if store else ""
    sections = (
        _top(run, ended),
        _section("Results", _results(ended)),
        _section("Failed", _list(failed, run["run_id"] + option)),
        _section("Undecided", _list(undecided, run["run_id"] + option)),
        _section("Measured again", _again(run)),
        _section("Not measured", _absent(ended)),
        _section("Left out by the budget", _left_out(ended)),
        _section("Units", [*unit_lines(records), *_repeated(run)]),
        _section("Next", _next(run, ended, option)),
        _bottom(ended, heads),
    )
    return "\n\n".join("\n".join(s) for s in sections if s)


def _ended(cell: Cell, kind: str, answers: Mapping[Key, Measured], doubt: str | None) -> _Ended:
    if doubt is not None:
        return _Ended(cell, kind, Status.OK, doubt, doubted=True)
    measured = answers.get((cell, kind))
    if measured is None:
        return _Ended(cell, kind, Status.LOST, "the run has no record of it")
    return _Ended(cell, kind, measured.status, words.one_line(measured.reason))


def _top(run: Mapping[str, Any], ended: Sequence[_Ended]) -> list[str]:
    counts = ", ".join(f"{n} {status}" for status, n in run["by_status"].items())
    return [
        f"{words.CONCLUSIONS[run['exit_code']].upper()} (exit code {run['exit_code']}){_extent(run['exit_code'], ended)}: {counts}",
        f"  run {run['run_id']}, matrix {run['matrix']}, {run['resolved']}, code {run['code_digest'][:12]}",
    ]


def _extent(code: int, ended: Sequence[_Ended]) -> str:
    """What the conclusion is of: a pass, where a budget left cells out, only of those that are `ok`."""
    cells, left_out = words.count(len(ended), "cell"), sum(one.left_out for one in ended)
    if not left_out:
        return f": {cells}"
    of = f" of {sum(one.well for one in ended)} of" if code == 0 else ":"
    return f"{of} {cells}, {left_out} left out by the budget"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines)] if lines else []


def _results(ended: Sequence[_Ended]) -> list[str]:
    """A line a device: how many cells of each kind ended well, of those that were tried."""
    tried: defaultdict[str, defaultdict[str, list[_Ended]]] = defaultdict(lambda: defaultdict(list))
    for one in ended:
        if not one.absent and not one.left_out:
            tried[one.cell.device][one.kind].append(one)
    width = max(map(len, tried), default=0)
    return [
        f"{device:<{width}}  {'; '.join(_kind(device, *kind) for kind in sorted(kinds.items()))}" for device, kinds in sorted(tried.items())
    ]


def _kind(device: str, kind: str, tried: Sequence[_Ended]) -> str:
    left = sum(one.status is Status.SKIPPED for one in tried)
    skipped = f" ({left} skipped)" if left else ""
    clock = " by the interpreter, which says nothing of a GPU" if kind == "latency" and device == INTERPRETER else ""
    return f"{kind}: {sum(one.well for one in tried)} of {len(tried)} {_DONE.get(kind, 'ok')}{clock}{skipped}"


def _list(ended: Sequence[_Ended], shown: str) -> list[str]:
    """A line for all cells of a kernel that ended alike, for one and the same reason."""
    alike: dict[tuple[object, ...], list[_Ended]] = {}
    for one in ended:
        alike.setdefault((one.cell.kernel, one.kind, one.status, one.doubted, one.reason), []).append(one)
    groups = list(alike.values())
    rows = [f"{group[0]}" + (f" (and {words.count(len(group) - 1, 'cell')} more)" if len(group) > 1 else "") for group in groups[:LISTED]]
    more = sum(map(len, groups[LISTED:]))
    return [*rows, *([f"and {more} more; `harness show {shown}` lists them all"] if more else [])]


def _again(run: Mapping[str, Any]) -> list[str]:
    """How often cells were measured in all that were measured again, and what was said of them before."""
    found = run.get("measured_again", ())
    lines = [f"{one['cell']}  {one['kind']}  {one['rounds']} times; before: {words.one_line(one['before'])}" for one in found]
    return [*lines[:LISTED], *([f"and {len(lines) - LISTED} more"] if len(lines) > LISTED else [])]


def _repeated(run: Mapping[str, Any]) -> list[str]:
    """How many launches were made again, though no cell failed in the first, and what ended that; a line a cause."""
    causes = Counter(words.one_line(one["reason"]) for one in run.get("repeated_launches", ()))
    lines = [
        f"{words.count(n, 'launch was', 'launches were')} repeated: the process died or hung after its last cell ({why:.{WIDTH}})"
        for why, n in causes.most_common()
    ]
    return [*lines[:LISTED], *([f"and {len(lines) - LISTED} causes more"] if len(lines) > LISTED else [])]


def _absent(ended: Sequence[_Ended]) -> list[str]:
    counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for one in ended:
        if one.absent:
            counts[one.cell.device, one.absent][one.kind] += 1
    width = max((len(device) for device, _ in counts), default=0)
    return [
        f"{device:<{width}}  {why}, {words.count(kinds.total(), 'cell')}: " + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items()))
        for (device, why), kinds in sorted(counts.items())
    ]


def _left_out(ended: Sequence[_Ended]) -> list[str]:
    """A line a kernel: how many cells of each kind."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for one in ended:
        if one.left_out:
            counts[one.cell.kernel][one.kind] += 1
    width = max(map(len, counts), default=0)
    return [
        f"{kernel:<{width}}  {words.count(kinds.total(), 'cell')}: " + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items()))
        for kernel, kinds in sorted(counts.items())
    ]


def _next(run: Mapping[str, Any], ended: Sequence[_Ended], store: str) -> list[str]:
    failed = [e for e in ended if e.status.failed]
    absent = sorted({e.cell.device for e in ended if e.absent})
    steps = []
    if failed:
        steps.append(f"run the first failure again: {_repeat(run, failed[0], store)}")
    again = run.get("to_measure_again", ())
    by_resume = {(one["kind"], one["cell"]) for one in again}
    left = [e for e in ended if e.status.undecided and not e.status.resumable and (e.kind, str(e.cell)) not in by_resume]
    steps += _mend(run, left, store)
    if run["required_missing"]:
        steps.append(f"required and not reached: {', '.join(run['required_missing'])}; bring a unit of each up, or leave --require out")
    if cut := run.get("required_left_out"):
        steps.append(f"required and cut by the budget: {', '.join(cut)}; resume the run, or leave --require out")
    rest = [e for e in ended if e.status.resumable and e.status is not Status.NO_CAPACITY]
    if rest and all(e.left_out for e in rest):
        steps.append(f"run what was left out: {resume_command(run)}{store}")
    elif rest:
        steps.append(f"run what was cut short: {resume_command(run)}{store}")
    if again:
        what = f"measure what the machine spoilt again, {words.count(len(again), 'cell')}"
        steps.append(f"{what}: {'the same command' if rest else resume_command(run) + store}")
    if absent:
        steps.append(f"measure {', '.join(absent)}: run the same command where one is; --require NAME makes its absence an error")
    done = [e for e in ended if e.status is Status.OK]
    if done:
        steps += [line + store for line in _use(run, done, whole=not rest)]
    return steps


def _mend(run: Mapping[str, Any], undecided: Sequence[_Ended], store: str) -> list[str]:
    """What to do about cells that nothing was learnt of: mend the kernels whose files contradict themselves, time others again."""
    codes = [(e.cell.kernel, e.reason.partition(":")[0]) for e in undecided]
    wrong = {key: e for key, e in reversed([*zip(codes, undecided, strict=True)]) if key[1] in CONTRADICTED}
    steps = [
        f"{CONTRADICTED[code].format(kernel=kernel)} ({code}): {_repeat({**run, 'dirty': True}, e, store)}"
        for (kernel, code), e in sorted(wrong.items())
    ]
    other = [e for e in undecided if e.kind == "latency" and e.cell.kernel not in {kernel for kernel, _ in wrong}]
    if other:
        steps.append(f"take the first undecided time again: {_repeat(run, other[0], store)}")
    return steps


def _repeat(run: Mapping[str, Any], one: _Ended, store: str) -> str:
    """The command that measures a cell again as the run did: by its matrix, where it ran, into its store."""
    matrix = "" if run["matrix"] == "all" else f" --matrix {shlex.quote(run['matrix'])}"
    return repeat(one.cell, one.kind, run["commit"], dirty=run["dirty"]) + matrix + dispatcher_option(run) + store


def _use(run: Mapping[str, Any], done: Sequence[_Ended], *, whole: bool) -> list[str]:
    """What a run is good for: a pair for its diff; a pass for its figures, and as a baseline or to see what a dirty tree changes.

    Args:
        whole: nothing is left for a resume.
    """
    base = run["against"]
    if base is not None:
        equal = base["code_digest"] == run["code_digest"]
        return [] if equal else [f"see what the change does: {_diff(base['ref'], run['ref'], run)}"]
    if run["exit_code"] != 0:
        return []
    timed = [e for e in done if e.kind == "latency" and e.cell.device != INTERPRETER]
    steps = [f"see the figures of a cell: harness show {(timed or done)[0].cell}"]
    if run["dirty"] and run["commit"]:
        steps.append(f"see what the changes do: {_diff(run['commit'][:12], 'run:' + run['run_id'], run)}")
    elif run["commit"] and not run["dirty"] and whole:
        steps.append(f"keep it as the baseline of {run['commit'][:12]}: harness baseline accept {run['run_id']}")
    return steps


def _diff(base: str, head: str, run: Mapping[str, Any]) -> str:
    """The command that compares, narrowed to the run's matrix and kernels where the run left some of what there is out."""
    filters = run["options"]["filters"]
    part = f" --matrix {shlex.quote(run['matrix'])}" if run["matrix"] != "all" or any(filters.values()) else ""
    return f"harness diff {base}..{head}{part}" + "".join(f" --kernel {shlex.quote(glob)}" for glob in filters.get("kernels", ()))


def _bottom(ended: Sequence[_Ended], records: Sequence[Record]) -> list[str]:
    arrived = {r.device for r in records if reached(r)}
    line = words.gpus({device: device in arrived for device in sorted({e.cell.device for e in ended} - {INTERPRETER})})
    return [line] if line else []
