"""Every timed cell of runs on a GPU as Markdown: prints a row a kernel, and writes a page a kernel that the row links.

    python benchmarks/table_of_cells.py RUN... --out docs/cells [--store URI]

us, GB/s, percent of ceiling and speed-up are medians over launches, GB/s from compulsory bytes; deviation is the standard deviation
of `latency_us` between launches, in percent of its mean. `-`: not taken, or launch-bound.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.records import Cell, Record, Status
from harness.store.runs import RunStore

MAIN = "latency_us"
COLUMNS = {"warm us": "latency_warm_us", "GB/s": "gbps", "% of ceiling": "percent_of_ceiling", "speed-up": "speedup"}
Figures = dict[Cell, dict[str, list[float]]]


def figures(records: Iterable[Record]) -> Figures:
    """Values of every launch, by cell and metric, of what ended well."""
    found: Figures = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.kind == "latency" and record.status == Status.OK and record.metric and record.value is not None:
            found[record.cell][record.metric].append(record.value)
    return {cell: metrics for cell, metrics in found.items() if metrics.get(MAIN)}


def deviation(values: Sequence[float]) -> float | None:
    """Standard deviation in percent of the mean; None for a single launch."""
    return 100 * statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else None


def number(value: float) -> str:
    """Three digits at least, and all before the point."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def summary(of: Figures, folder: str) -> list[str]:
    """A row a kernel, of its cells with two launches or more; it links the kernel's page in `folder`."""
    rows = ["| kernel | cells | median deviation | <= 0.15 % | <= 0.3 % | largest |", "|---|---:|---:|---:|---:|---:|"]
    for kernel in sorted({cell.kernel for cell, metrics in of.items() if len(metrics[MAIN]) > 1}):
        found = [d for cell, metrics in of.items() if cell.kernel == kernel and (d := deviation(metrics[MAIN])) is not None]
        within = [sum(d <= limit for d in found) for limit in (0.15, 0.3)]
        shown = [f"{statistics.median(found):.3f} %", *map(str, within), f"{max(found):.2f} %"]
        rows.append(f"| [{kernel}]({folder}/{kernel}.md) | {len(found)} | {' | '.join(shown)} |")
    return rows


def page(kernel: str, of: Figures) -> list[str]:
    """A row a cell of one kernel, under a title."""
    heads = list(COLUMNS)
    devices = ", ".join(sorted({cell.device for cell in of if cell.kernel == kernel}))
    rows = [f"# Every timed cell of {kernel} on {devices}", ""]
    rows += [f"| variant | case | us | deviation | {' | '.join(heads)} |", "|---|---|---:|---:|" + "---:|" * len(heads)]
    for cell in sorted((cell for cell in of if cell.kernel == kernel), key=lambda c: (c.case, c.variant)):
        metrics = of[cell]
        spread = deviation(metrics[MAIN])
        others = [number(statistics.median(metrics[name])) if metrics.get(name) else "-" for name in COLUMNS.values()]
        shown = [number(statistics.median(metrics[MAIN])), "-" if spread is None else f"{spread:.2f} %", *others]
        rows.append(f"| {cell.variant} | `{cell.case}` | {' | '.join(shown)} |")
    return rows


def write_pages(of: Figures, out: Path) -> None:
    """Write each kernel's page into a folder, which is made."""
    out.mkdir(parents=True, exist_ok=True)
    for kernel in {cell.kernel for cell in of}:
        (out / f"{kernel}.md").write_text("\n".join([*page(kernel, of), ""]))


def main() -> None:
    """Print the summary, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--store", default=".harness/runs")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    options = parser.parse_args()
    store = RunStore(options.store)
    of = figures(record for run in options.runs for record in store.read(store.resolve(run))[1])
    print("\n".join(summary(of, options.out.name)))
    write_pages(of, options.out)


if __name__ == "__main__":
    main()
