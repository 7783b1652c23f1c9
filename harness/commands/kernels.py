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
    from rich.console import Console
    from rich.table import Table

    table = Table("kernel", "variants (* default, ^ baseline)", "cases", "on cpu", "changes in place", "drift", "what it is")
    for kernel in kernels:
        marks = [name + "*" * (name == kernel.default) + "^" * (name == kernel.baseline) for name in kernel.variants]
        on_cpu = sum("cpu" in case.tags for case in kernel.cases)
        first = kernel.doc.strip().splitlines()[0] if kernel.doc.strip() else ""
        table.add_row(
            kernel.name,
            " ".join(marks),
            str(len(kernel.cases)),
            str(on_cpu),
            " ".join(kernel.mutates),
            "yes" if kernel.drift else "",
            first,
        )
    Console().print(table)
