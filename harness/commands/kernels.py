"""`harness kernels`: the kernels of the workspace; `harness kernels show NAME`: one of them, whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harness.commands import _options
from harness.commands._group import Group

if TYPE_CHECKING:
    from harness.plan.describe import KernelInfo

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
    """Show one kernel: what its file says of it, its variants, and its cases with what a call must move and compute.

    Bytes are compulsory: each input byte read once, each output byte written once. Variants that do a part of the work have bytes of
    their own, which JSON gives as `parts`.
    """
    from harness.errors import UnknownNameError

    kernels = {kernel.name: kernel for kernel in _kernels()}
    if name not in kernels:
        raise UnknownNameError.of("kernel", name, kernels)
    kernel = kernels[name]
    if output == "json":
        import json
        from dataclasses import asdict

        click.echo(json.dumps(asdict(kernel), indent=2))
        return
    from harness.commands._table import print_table

    click.echo(f"{kernel.name}  {kernel.file}\n\n{kernel.doc.strip()}\n\nvariants (* default, ^ baseline): {_variants(kernel)}\n")
    rows = [[c.case, f"{c.read_bytes:,}", f"{c.written_bytes:,}", f"{c.flops:,}", " ".join(c.tags)] for c in kernel.cases]
    headers = ("case", "bytes read", "bytes written", "flop", "tags")
    print_table(headers, rows, right=headers[1:4])


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
