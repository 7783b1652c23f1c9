"""Where the time of a timed cell goes, stage by stage, in one process: what it costs beside its sampling.

    python benchmarks/cell_cost.py DEVICE CELL... [--profile N]

Run it twice: the second run finds in Triton's cache what the first compiled, as a launch does, and its first cell costs what a launch's
first cell costs.

CELL is KERNEL/VARIANT/CASE. The seconds of a stage leave out the stages inside it. Every cell is measured twice: the second
time nothing is compiled any more, and its ring is proved cold. What is compiled is named, with its specialisation. With --profile
the N costliest functions follow.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import pstats
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from triton import knobs

from harness.authoring.catalogue import load_kernels
from harness.authoring.workspace import find_workspace
from harness.devices.table import load_devices
from harness.measure import correctness
from harness.measure.clock import program, session, timing, torch_device, verify
from harness.measure.correctness import check_correctness
from harness.measure.subject import Subject
from harness.measure.timing import Timer

STAGES = (
    (session.ClockSession, "take", "sampling"),
    (session.ClockSession, "take_cold", "sampling"),
    (session.ClockSession, "keep_warm", "warm-up"),
    (timing, "time_eager", "eager"),
    (session.ClockSession, "floors", "floors"),
    (torch_device.TorchDevice, "capture", "capture"),
    (torch_device.TorchDevice, "release_memory", "release"),
    (timing, "make_bench", "ring"),
    (program.Bench, "reset", "reset"),
    (program.Bench, "prepare", "prepare"),
    (timing, "verify", "verify"),
    (timing, "verify_cursor", "verify"),
    (correctness, "check_correctness", "gate"),
    (verify, "_compare_slot", "compare"),
)


class Stopwatch:
    """Exclusive seconds by stage."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._inner: list[float] = [0.0]

    def timed(self, call: Callable[..., Any], stage: str) -> Callable[..., Any]:
        """The function, its time noted under a stage less that of stages inside it."""

        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            self._inner.append(0.0)
            try:
                return call(*args, **kwargs)
            finally:
                spent = time.perf_counter() - begin
                self.seconds[stage] += spent - self._inner.pop()
                self._inner[-1] += spent

        return run


def tell_compiled(*, src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
    """Name a compilation that no cache answered."""
    if not cache_hit:
        print(f"  compiled {src.name} in {times.total / 1e6:.2f} s: {src.constants} {src.attrs}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device")
    parser.add_argument("cells", nargs="+")
    parser.add_argument("--profile", type=int, default=0)
    options = parser.parse_args()
    watch = Stopwatch()
    for owner, name, stage in STAGES:
        setattr(owner, name, watch.timed(getattr(owner, name), stage))
    knobs.compilation.listener = tell_compiled
    device = load_devices()[options.device]
    kernels = load_kernels(find_workspace(Path(__file__).parents[1]))
    timer = Timer(device, 1, None)
    measure = watch.timed(timer, "rest")
    gate = watch.timed(check_correctness, "gate")
    for name in options.cells:
        kernel_name, variant, case = name.split("/")
        kernel = kernels[kernel_name].kernel
        subject = Subject(kernel, variant, kernel.case(case), device, "cuda")
        for turn in ("first", "again"):
            watch.seconds.clear()
            profiler = cProfile.Profile()
            begin = time.perf_counter()
            if options.profile:
                profiler.enable()
            gate(subject)
            found = measure(subject)
            profiler.disable()
            total = time.perf_counter() - begin
            main_reading = found.readings[0]
            stages = ", ".join(f"{stage} {s:.2f}" for stage, s in watch.seconds.most_common() if s >= 0.005)
            beside = total - watch.seconds["sampling"] - watch.seconds["eager"]
            print(f"{name} {turn}: {total:.2f} s, beside sampling {beside:.2f}: {stages}; {main_reading.value} us {main_reading.status}")
            if options.profile:
                pstats.Stats(profiler).sort_stats("tottime").print_stats(options.profile)


if __name__ == "__main__":
    main()
