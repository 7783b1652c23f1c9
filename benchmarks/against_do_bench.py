"""Our times beside triton.testing.do_bench on the same cells, as a Markdown table.

    python benchmarks/against_do_bench.py RUN [--processes 3]

RUN is a run with latency records of the GPU in hand (an id, or `last`). Each cell of a variant that launches Triton kernels
is timed by do_bench in fresh processes, its median each; spread is (max - min) / median over launches or processes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.authoring.workspace import find_workspace
from harness.records import Cell

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--time", nargs="+", metavar="CELL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.time:
        print(json.dumps(time_by_do_bench([Cell.parse(text) for text in options.time])))
        return
    from harness.store.runs import RunStore

    store = RunStore(find_workspace(ROOT).runs_dir)
    _, records = store.read(store.resolve(options.run))
    ours: dict[Cell, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in records:
        if r.kind == "latency" and r.value is not None and r.metric and r.device != "cpu":
            ours[r.cell][r.metric].append(r.value)
    cells = [str(cell) for cell in ours if "speedup" in ours[cell]]
    theirs: dict[str, list[float]] = defaultdict(list)
    for _ in range(options.processes):
        done = subprocess.run([sys.executable, __file__, "-", "--time", *cells], capture_output=True, text=True, check=True)
        for cell, us in json.loads(done.stdout.splitlines()[-1]).items():
            theirs[cell].append(us)
    print("| cell | us | spread | GB/s | % of ceiling | speed-up | do_bench us | spread |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for text in cells:
        found = ours[Cell.parse(text)]
        figures = [statistics.median(found[name]) if found[name] else None for name in ("gbps", "percent_of_ceiling", "speedup")]
        gbps, ceiling, speedup = ("-" if f is None else f"{f:.{digits}f}" for f, digits in zip(figures, (0, 1, 1), strict=True))
        us, other = found["latency_us"], theirs[text]
        print(
            f"| `{text}` | {statistics.median(us):.2f} | {spread(us)} | {gbps} | {ceiling} | {speedup} "
            f"| {statistics.median(other):.2f} | {spread(other)} |"
        )


def spread(values: Sequence[float]) -> str:
    """(max - min) / median in percent."""
    return f"{100 * (max(values) - min(values)) / statistics.median(values):.2f} %"


def time_by_do_bench(cells: Sequence[Cell]) -> dict[str, float]:
    """do_bench's median (us) of each cell, in this process."""
    import triton.testing

    from harness.authoring.catalogue import load_kernels
    from harness.devices.table import load_devices
    from harness.measure.subject import Subject

    kernels, devices = load_kernels(find_workspace(ROOT)), load_devices()
    found = {}
    for cell in cells:
        kernel = kernels[cell.kernel].kernel
        subject = Subject(kernel, cell.variant, kernel.case(cell.case), devices[cell.device], "cuda")
        inputs = subject.inputs(on_device=True)
        found[str(cell)] = 1000 * triton.testing.do_bench(lambda subject=subject, inputs=inputs: subject.call(inputs), return_mode="median")
    return found


if __name__ == "__main__":
    main()
