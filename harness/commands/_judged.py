"""A range, judged: the document that `harness diff` prints and `harness check` posts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from harness.commands import _options

if TYPE_CHECKING:
    from harness.judge.model import Policy

_OPTIONS = (
    click.option("--exact", is_flag=True, help="Compare with A itself, not with the merge base of A and B."),
    click.option("--metric", "metrics", multiple=True, metavar="METRIC", help="Judge only these metrics (may be repeated)."),
    click.option("--fail-on", multiple=True, metavar="VERDICT", help="Verdicts that exit 1 (default: BROKEN, DRIFTED, REGRESSED)."),
    click.option("--require", multiple=True, metavar="DEVICE|GROUP|all", help="Devices on which nothing may be missing."),
    click.option("--matrix", metavar="NAME|FILE", help="Compare what this matrix holds alone, though base has more."),
    click.option("--kernel", "kernels", multiple=True, metavar="GLOB", help="Compare these kernels alone (may be repeated)."),
    click.option("--no-compile", is_flag=True, help="Compile no static rows that a side lacks."),
    _options.store,
)


@dataclass(frozen=True)
class Judging:
    """The options of `options`, as click gives them."""

    exact: bool = False
    metrics: tuple[str, ...] = ()
    fail_on: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    matrix: str | None = None
    kernels: tuple[str, ...] = ()
    no_compile: bool = False
    store_uri: str | None = None


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of Judging."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def judge_range(range_: str, judging: Judging) -> dict[str, Any]:
    """The diff of `A..B` as `to_json` makes it, with `sources`: where head declares the kernels of findings that count.

    Raises:
        HarnessError: a name nobody declares, a ref that does not resolve, records that cannot be read.
        Undecided: no merge base, no results, or twice the same.
    """
    from dataclasses import asdict, replace
    from functools import partial

    from harness.authoring.workspace import find_workspace
    from harness.commands._jit import locate
    from harness.commands._sides import Assembler
    from harness.judge.diff import judge
    from harness.judge.model import INTERPRETER
    from harness.report.json import to_json

    policy = _policy(judging)
    workspace = find_workspace()
    store = _options.stored_runs(judging.store_uri)
    say = partial(click.echo, err=True)
    assembler = Assembler(workspace, store, say, compile_missing=not judging.no_compile, kernels=judging.kernels)
    sides = assembler.sides(range_, exact=judging.exact, matrix=judging.matrix)
    if not sides.head_was_run:  # the interpreter is always at hand: what it was not asked is no pass
        policy = replace(policy, require=policy.require | {INTERPRETER})
    diff = judge(sides.base, sides.head, policy)
    counting = {f.cell.kernel for f in diff.findings if f.exit_code}
    sources = locate(assembler.git, diff.head.commit, counting) if diff.head.commit and not diff.head.dirty else {}
    return to_json(diff, sides.notes) | {"sources": {kernel: asdict(place) for kernel, place in sources.items()}}


def _policy(judging: Judging) -> Policy:
    from harness.devices.table import load_devices, resolve_devices
    from harness.errors import UnknownNameError
    from harness.judge.model import Policy, Verdict

    for name in judging.fail_on:
        if name.upper() not in Verdict.__members__:
            raise UnknownNameError.of("verdict", name, Verdict.__members__)
    verdicts = frozenset(Verdict[name.upper()] for name in judging.fail_on)
    devices = frozenset(resolve_devices(judging.require, load_devices()) if judging.require else ())
    policy = Policy(require=devices, metrics=frozenset(judging.metrics))
    return Policy(verdicts, policy.require, policy.metrics) if verdicts else policy
