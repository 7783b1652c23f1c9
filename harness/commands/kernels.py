"""`harness kernels`: the kernels of the workspace; `harness kernels show NAME`: one of them, whole."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from harness.commands import _options
from harness.commands._group import Group

if TYPE_CHECKING:
    from harness.authoring.model import Tolerance
    from harness.plan.describe import CaseInfo, KernelInfo

WIDTH = 100
"""Columns of what is written in sentences."""
FIELDS = ("name", "file", "variants", "default", "baseline", "cases", "mutates", "cycle", "drift")


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog="\b\nExamples:\n  harness kernels --format json\n  harness kernels show NAME",
)
@_options.format_text_json
@click.pass_context
def command(context: click.Context, output: str) -> None:
    """List the kernels of the workspace, with their variants and cases."""
    if context.invoked_subcommand is not None:
        return
    kernels = _kernels()
    if output == "json":
        import json

        click.echo(json.dumps([_brief(kernel) for kernel in kernels], indent=2))
        return
    from harness.commands._table import print_table

    rows = []
    for kernel in kernels:
        on_cpu = sum("cpu" in case.tags for case in kernel.cases)
        first = " ".join(kernel.doc.split("\n\n")[0].split())
        drift = "yes" if kernel.drift else "no"
        rows.append([kernel.name, _variants(kernel), str(len(kernel.cases)), str(on_cpu), " ".join(kernel.mutates) or "-", drift, first])
    headers = ("kernel", "variants (* default, ^ baseline)", "cases", "on cpu", "changes", "drift", "what it is")
    print_table(headers, rows, right=("cases", "on cpu"))


@command.command(epilog="\b\nExample:\n  harness kernels show NAME")
@click.argument("name")
@_options.format_text_json
def show(name: str, output: str) -> None:
    """Show all that one kernel's file declares: variants, axes, tolerances and why, drift, and cases with what a call moves and computes.

    Bytes are compulsory: each input byte read once, each output byte written once. JSON has `tolerance`, `variants` and `activations` of
    each case, `parts` (bytes of variants that do a part of the work alone), `other_bytes` (of further models) and `cycle_steps` (over
    how many steps bytes and flop are the mean); `drift_limits` and `by_variant` of the kernel. An `element` of null bounds none.
    """
    from harness.errors import UnknownNameError

    kernels = {kernel.name: kernel for kernel in _kernels()}
    if name not in kernels:
        raise UnknownNameError.of("kernel", name, kernels)
    kernel = kernels[name]
    if output == "json":
        import json
        from dataclasses import asdict

        click.echo(json.dumps(asdict(kernel, dict_factory=_finite), indent=2, allow_nan=False))
        return
    click.echo(f"{kernel.name}  {kernel.file}\n\n{kernel.doc.strip()}\n")
    _print_variants(kernel)
    _print_facts(kernel)
    tolerances = _tolerances(kernel)
    _print_limits(kernel, tolerances)
    _print_cases(kernel, tolerances)
    _print_costs(kernel)


def _kernels() -> list[KernelInfo]:
    from harness.authoring.workspace import find_workspace
    from harness.plan.describe import describe

    return describe(find_workspace()).kernels


def _variants(kernel: KernelInfo) -> str:
    return " ".join(name + "*" * (name == kernel.default) + "^" * (name == kernel.baseline) for name in kernel.variants)


def _brief(kernel: KernelInfo) -> dict[str, Any]:
    """A kernel as scripts know it: its cases by key and tags."""
    cases = [{"case": case.case, "tags": case.tags} for case in kernel.cases]
    return {name: getattr(kernel, name) for name in FIELDS} | {"cases": cases}


def _finite(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """JSON has no infinity."""
    return {name: None if value == math.inf else value for name, value in fields}


def _say(text: str, indent: str = "") -> None:
    click.echo(textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False))


def _print_variants(kernel: KernelInfo) -> None:
    from harness.commands._table import print_table

    rows = []
    for name, marked in zip(kernel.variants, _variants(kernel).split(), strict=True):
        variant, taken = kernel.by_variant[name], [case for case in kernel.cases if name in case.variants]
        activations = dict.fromkeys(" ".join(case.activations.get(name, ())) for case in taken)
        lists = (" ".join(variant.outputs) or "-", " ".join(variant.mutates) or "-", " or ".join(filter(None, activations)) or "-")
        rows.append([marked, str(len(taken)), "yes" if variant.triton else "no", *lists])
    print_table(("variant (* default, ^ baseline)", "cases", "Triton", "returns", "changes", "activations"), rows, right=("cases",))
    click.echo()


def _print_facts(kernel: KernelInfo) -> None:
    from harness.authoring.model import format_value

    axes = [f"{axis}={format_value(kernel.defaults[axis])}" if axis in kernel.defaults else axis for axis in kernel.axes]
    _say(f"axes: {', '.join(axes)}, dtype; one that has the value given here is left out of a case's name")
    _say(f"inputs: {kernel.data}")
    if kernel.drift:
        _say("activations: what the operation before has just written; where none are named, what each step of drift draws")
    _say(f"two calls on equal inputs: {'bit-equal' if kernel.deterministic else 'may differ'}")
    if kernel.slots:
        null = f"; the first {kernel.null_slots} belong to nobody" if kernel.null_slots else ""
        _say(f"slots: {', '.join(f'{name} by {index}' for name, index in kernel.slots.items())}{null}")
    if kernel.cursor:
        _say(f"cycle: the cost of a call depends on its phase, which {kernel.cursor} holds")
    click.echo()


def _tolerances(kernel: KernelInfo) -> list[Tolerance]:
    """Those of the kernel's cases, each once; a case names its own by its place here, from 1."""
    found: list[Tolerance] = []
    for case in kernel.cases:
        if case.tolerance is not None and case.tolerance not in found:
            found.append(case.tolerance)
    return found


def _print_limits(kernel: KernelInfo, tolerances: Sequence[Tolerance]) -> None:
    _say("tolerances: the relative L2 error that an output or changed tensor may have; integers are equal where they are not named")
    for number, tolerance in enumerate(tolerances, start=1):
        dtypes = dict.fromkeys(case.case.rpartition("dtype=")[2] for case in kernel.cases if case.tolerance == tolerance)
        one = "" if tolerance.loosest == 0 or tolerance.element == math.inf else f"; an element at most {tolerance.element:g} times that"
        _say(f"{number}  {' '.join(dtypes)}: {_limits(tolerance)}{one}", "  ")
        _say(tolerance.reason, "     ")
    click.echo()
    if (drift := kernel.drift_limits) is None:
        return
    carried = ", ".join(name if name == source else f"{name} (from {source})" for name, source in drift.carry.items())
    after = ", ".join(map(str, drift.checkpoints))
    _say(
        f"drift: {drift.steps} steps of the cases tagged drift, each of which keeps its tolerance above; carried are {carried}, whose "
        f"limits, by the axis state of a case, else by its dtype, are the same after {after} steps"
    )
    for dtype, tolerance in drift.tolerance.items():
        _say(f"{dtype}: {_limits(tolerance)}", "  ")
        _say(tolerance.reason, "     ")
    click.echo()


def _limits(tolerance: Tolerance) -> str:
    tensors = [f"{name} {limit:g}" for name, limit in tolerance.tensors.items()]
    cosine = [] if tolerance.cosine is None else [f"cosine at least {tolerance.cosine:.8g}"]
    return "; ".join([", ".join([f"{tolerance.rel_l2:g}", *tensors]), *cosine])


def _print_cases(kernel: KernelInfo, tolerances: Sequence[Tolerance]) -> None:
    from harness.commands._table import print_table

    rows = []
    for case in kernel.cases:
        number = "-" if case.tolerance is None else str(tolerances.index(case.tolerance) + 1)
        rows.append([case.case, number, "all" if case.variants == kernel.variants else " ".join(case.variants), " ".join(case.tags)])
    print_table(("case", "tolerance", "variants", "tags"), rows, right=("tolerance",))
    click.echo()


def _print_costs(kernel: KernelInfo) -> None:
    """A row a case; below it one a variant that does a part of the work alone."""
    from harness.commands._table import print_table

    cyclic, models = any(case.cycle_steps > 1 for case in kernel.cases), list(kernel.cases[0].other_bytes)

    def costs(case: CaseInfo) -> Iterable[list[str]]:
        moved = [f"{number:,}" for number in (case.read_bytes, case.written_bytes, case.flops)]
        others = [f"{case.other_bytes[model]:,}" for model in models]
        steps = [str(case.cycle_steps)] if cyclic else []
        yield [case.case, *moved, *others, *steps]
        for name, part in case.parts.items():
            if name in case.variants:
                yield [f"  {name}", f"{part.read_bytes:,}", f"{part.written_bytes:,}", *[""] * (1 + len(models) + len(steps))]

    headers = ("a call of", "bytes read", "bytes written", "flop", *(f"bytes, {model}" for model in models), *(["steps"] if cyclic else []))
    print_table(headers, [row for case in kernel.cases for row in costs(case)], right=headers[1:])
    if models:
        _say(f"bytes, {' and '.join(models)}: by a further model of the kernel, which gates nothing")
    if cyclic:
        _say("steps: bytes and flop are the mean over so many steps, a cycle")
    if any(case.parts for case in kernel.cases):
        _say("indented: a variant that does a part of the work alone, with bytes of its own")
