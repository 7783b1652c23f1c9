"""The spread of equal code by our timer and by others, side by side on the same cells, as a Markdown table.

    python benchmarks/against_others.py [CELL...] [--device NAME] [--launches 4] [--timers NAME,NAME]

CELL is KERNEL/VARIANT/CASE; by default a cell of each class of time, as `harness calibrate` takes them. Timers are `ours`,
`do_bench`, `do_bench_cudagraph` (triton.testing) and `nvbench` (its cold mode, by the package cuda-bench where that can be
imported). Each launch is a fresh process of a fork server that has imported torch and triton; the timers take turns. Given are the
median over launches and their standard deviation, in percent of it.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.devices.table import load_devices
from harness.devices.units import local_units
from harness.dispatch.lock import unit_lock
from harness.dispatch.one_unit import choose_unit
from harness.records import Cell

ROOT = Path(__file__).parents[1]
PRELOADED = ["torch", "torch._dynamo", "triton", "triton.testing", "harness.measure.clock", "harness.measure.timing"]
LAUNCH_S = 180.0
"""After so many seconds a launch is given up."""
NVBENCH_S = 1
"""Seconds that nvbench may sample a cell for."""
WARM_CALLS = 3

Times = dict[str, tuple[float | None, str]]
"""Cell -> us, or why there is none."""
Work = Callable[[Sequence[str], int, str], Times]
"""What a launch does: cells, its number and the folder that launches share -> times."""


def subject_of(text: str) -> Any:
    """A cell, ready to be called on the GPU."""
    from harness.authoring.catalogue import load_kernels
    from harness.authoring.workspace import find_workspace
    from harness.measure.subject import Subject

    cell = Cell.parse(text)
    kernel = load_kernels(find_workspace(ROOT))[cell.kernel].kernel
    return Subject(kernel, cell.variant, kernel.case(cell.case), load_devices()[cell.device], "cuda")


def by_each(cells: Sequence[str], time_one: Callable[[Any], tuple[float | None, str]]) -> Times:
    """Time the cells one by one; one that fails says why."""
    import torch

    found: Times = {}
    for text in cells:
        try:
            found[text] = time_one(subject_of(text))
        except Exception as error:
            found[text] = None, " ".join(f"{type(error).__name__}: {error}".split())[:200]
        torch.cuda.empty_cache()
    return found


def our_timer(cells: Sequence[str], number: int, folder: str) -> Any:
    """The harness's own timer, whose launches hand on what they found out about the unit."""
    from harness.measure.timing import Timer

    return Timer(load_devices()[Cell.parse(cells[0]).device], number, Path(folder) / "lease.json", first=number == 0, beside=False)


def know_unit(cells: Sequence[str], number: int, folder: str) -> Times:
    """What holds for the unit whatever is timed is found out in a launch of its own, as in a run."""
    timer = our_timer(cells, number, folder)
    timer.know_unit()
    timer.close()
    return {}


def by_ours(cells: Sequence[str], number: int, folder: str) -> Times:
    """The harness's own timer."""
    timer = our_timer(cells, number, folder)

    def time_one(subject: Any) -> tuple[float | None, str]:
        main = timer(subject).readings[0]
        return main.value, main.reason or str(main.status)

    found = by_each(cells, time_one)
    timer.close()
    return dict.fromkeys(cells, (None, timer.fault)) if timer.fault else found


def by_do_bench(cells: Sequence[str], _number: int, _folder: str) -> Times:
    """triton.testing.do_bench: eager calls, the cache flushed before each."""
    import triton.testing

    def time_one(subject: Any) -> tuple[float | None, str]:
        inputs = subject.inputs()
        return 1000 * triton.testing.do_bench(lambda: subject.call(inputs), return_mode="median"), ""

    return by_each(cells, time_one)


def by_do_bench_cudagraph(cells: Sequence[str], _number: int, _folder: str) -> Times:
    """triton.testing.do_bench_cudagraph: a graph of calls on one set of buffers."""
    import triton.testing

    def time_one(subject: Any) -> tuple[float | None, str]:
        inputs = subject.inputs()
        for _ in range(WARM_CALLS):  # it captures at once: what compiles or tunes itself must have done so
            subject.call(inputs)
        return 1000 * triton.testing.do_bench_cudagraph(lambda: subject.call(inputs), return_mode="median"), ""

    return by_each(cells, time_one)


def by_nvbench(cells: Sequence[str], number: int, folder: str) -> Times:
    """nvbench's cold mode: isolated calls on its stream, its median."""
    import cuda.bench as nvbench
    import torch
    from cuda.bench.results import BenchmarkResult

    failed: Times = {}

    def run(text: str, state: Any) -> None:
        stream = torch.cuda.ExternalStream(state.get_stream().addressof())
        try:
            subject = subject_of(text)
            inputs = subject.inputs()
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):  # memory for its outputs on this stream, before nvbench holds the stream up
                for _ in range(WARM_CALLS):
                    subject.call(inputs)
            torch.cuda.synchronize()
        except Exception as error:
            failed[text] = None, " ".join(f"{type(error).__name__}: {error}".split())[:200]
            state.skip("it cannot be called")
            return

        def launch(one: Any) -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(one.get_stream().addressof())):
                subject.call(inputs)

        state.exec(launch, batched=False)

    def register(name: str, text: str) -> None:
        def bench(state: Any) -> None:
            run(text, state)

        nvbench.register(bench).set_name(name)

    names = {text: f"cell_{i}" for i, text in enumerate(cells)}
    for text, name in names.items():
        register(name, text)
    answer = Path(folder) / f"nvbench-{number}.json"
    with silenced():
        nvbench.run_all_benchmarks(["nvbench", "--jsonbin", str(answer), "--timeout", str(NVBENCH_S)])
    result = BenchmarkResult.from_json(str(answer))
    return {text: failed.get(text) or _median_of(result, name) for text, name in names.items()}


def _median_of(result: Any, name: str) -> tuple[float | None, str]:
    if name not in result or len(result[name]) == 0:
        return None, "no state in its JSON"
    median = result[name][0].center(statistics.median)
    return (None, "no samples in its JSON") if median is None else (1e6 * float(median), "")


@contextmanager
def silenced() -> Iterator[None]:
    """What is printed inside the block goes nowhere."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


TIMERS: dict[str, Work] = {
    "ours": by_ours,
    "do_bench": by_do_bench,
    "do_bench_cudagraph": by_do_bench_cudagraph,
    "nvbench": by_nvbench,
}
PREPARED: dict[str, Work] = {"ours": know_unit}
"""What a timer has done in a launch of its own before its first."""


def in_launch(pipe: Connection, work: Work, cells: Sequence[str], number: int, folder: str) -> None:
    """What the fresh process does."""
    try:
        pipe.send(work(cells, number, folder))
    except BaseException as error:
        pipe.send(dict.fromkeys(cells, (None, " ".join(f"{type(error).__name__}: {error}".split())[:200])))
    pipe.close()
    sys.stdout.flush()
    os._exit(0)  # what libraries do when they are unloaded must not hold the next launch up


def launch(context: Any, work: Work, cells: Sequence[str], number: int, folder: str) -> Times:
    """Do the work in a fresh process."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=in_launch, args=(theirs, work, list(cells), number, folder))
    process.start()
    theirs.close()
    found: Times = dict.fromkeys(cells, (None, f"its process gave no answer within {LAUNCH_S:g} s, or died"))
    with suppress(EOFError):
        if ours.poll(LAUNCH_S):
            found = ours.recv()
    process.join(10)
    if process.is_alive():
        process.kill()
        process.join()
    return found


def table(cells: Sequence[str], timers: Sequence[str], times: dict[tuple[str, str], list[float]]) -> Iterator[str]:
    """The table's lines.

    Args:
        times: (timer, cell) -> us, one a launch.
    """
    yield "| cell |" + "".join(f" {timer} us | sd |" for timer in timers)
    yield "|---|" + "---:|---:|" * len(timers)
    for cell in cells:
        yield f"| `{cell}` |" + "".join(f" {' | '.join(summary(times[timer, cell]))} |" for timer in timers)


def summary(us: Sequence[float]) -> tuple[str, str]:
    """Median and standard deviation between launches."""
    if not us:
        return "-", "-"
    middle = statistics.median(us)
    return f"{middle:.2f}", f"{100 * statistics.stdev(us) / middle:.2f} %" if len(us) > 1 else "-"


def default_cells(device: str) -> list[str]:
    """A cell of each class of time."""
    from harness.authoring.workspace import find_workspace
    from harness.plan.calibration import one_of_each_class
    from harness.plan.describe import describe

    return list(map(str, one_of_each_class(describe(find_workspace(ROOT)), load_devices()[device])))


def main() -> None:
    """Print the table, and why anything is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="CELL")
    parser.add_argument("--device")
    parser.add_argument("--launches", type=int, default=4)
    parser.add_argument("--timers", default=",".join(TIMERS))
    options = parser.parse_args()
    unit = choose_unit(local_units(), [options.device] if options.device else None, "compare timers on the GPU of this machine")
    assert unit.device is not None
    os.environ |= unit.environment
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # the fork server's imports
    wanted = options.timers.split(",")
    if unknown := set(wanted) - set(TIMERS):
        parser.error(f"no timer {unknown.pop()!r}: there are {', '.join(TIMERS)}")
    cells = [f"{text.partition('@')[0]}@{unit.device}" for text in options.cells] or default_cells(unit.device)
    timers = [name for name in wanted if name != "nvbench" or has_nvbench()]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    missing: dict[str, None] = {}
    with tempfile.TemporaryDirectory(prefix="against-others-") as folder, unit_lock(unit.uuid, threading.Event()):
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
        for work in (PREPARED[timer] for timer in timers if timer in PREPARED):
            launch(context, work, cells, 0, folder)
        for number in range(options.launches):
            for timer in timers:
                print(f"launch {number + 1} of {options.launches}: {timer}", file=sys.stderr, flush=True)
                for cell, (us, why) in launch(context, TIMERS[timer], cells, number, folder).items():
                    if us is None:
                        missing[f"{timer}, `{cell}`: {why}"] = None
                    else:
                        times[timer, cell].append(us)
    print(f"{unit.device} ({unit.model}), {options.launches} launches; us: median over launches, sd: between them\n")
    for line in table(cells, timers, times):
        print(line)
    if "nvbench" in wanted and "nvbench" not in timers:
        print("\nnvbench: the package cuda-bench cannot be imported here")
    for line in missing:
        print(f"\nno time: {line}")


def has_nvbench() -> bool:
    """Whether nvbench's package is here."""
    with suppress(ImportError):
        return importlib.util.find_spec("cuda.bench") is not None
    return False


if __name__ == "__main__":
    main()
