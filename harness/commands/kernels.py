"""`harness kernels`: the kernels of the workspace."""

from __future__ import annotations

import click

from harness.commands import _options


@click.command(epilog="\b\nExample:\n  harness kernels --format json")
@_options.format_text_json
def command(output: str) -> None:
    """List the kernels of the workspace, with their variants and cases."""
    from harness.authoring.workspace import find_workspace
    from harness.plan.describe import describe

    kernels = describe(find_workspace()).kernels
    if output == "json":
        import json
        from dataclasses import asdict

        fields = ("name", "file", "variants", "default", "baseline", "cases", "mutates", "cycle", "drift")
        click.echo(json.dumps([{name: asdict(kernel)[name] for name in fields} for kernel in kernels], indent=2))
        return
    from harness.commands._table import print_table

    rows = []
    for kernel in kernels:
        marks = [name + "*" * (name == kernel.default) + "^" * (name == kernel.baseline) for name in kernel.variants]
        on_cpu = sum("cpu" in case.tags for case in kernel.cases)
        first = " ".join(kernel.doc.split("\n\n")[0].split())
        drift = "yes" if kernel.drift else "no"
        rows.append([kernel.name, " ".join(marks), str(len(kernel.cases)), str(on_cpu), " ".join(kernel.mutates) or "-", drift, first])
    headers = ("kernel", "variants (* default, ^ baseline)", "cases", "on cpu", "changes", "drift", "what it is")
    print_table(headers, rows, right=("cases", "on cpu"))
