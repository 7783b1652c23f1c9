"""The interpreter's clock: host time of a call in Triton's interpreter. It proves the latency path, not a GPU's speed."""

from __future__ import annotations

import statistics
import time

from harness.measure.subject import Reading, Subject

METHOD = "interpreter/1"
SAMPLES = 5
BUDGET_S = 2.0


def time_in_interpreter(subject: Subject) -> list[Reading]:
    """Host time of one call (us), the median of up to five, as `interpreter_us`; it gates nothing."""
    inputs = subject.inputs()
    subject.call(inputs)
    samples: list[float] = []
    begin = time.perf_counter()
    while len(samples) < SAMPLES and (not samples or time.perf_counter() - begin < BUDGET_S):
        start = time.perf_counter_ns()
        subject.call(inputs)
        samples.append((time.perf_counter_ns() - start) / 1000)
    columns = {"samples": samples, "method": METHOD, "clock": "host", "launch_mode": "eager", "cache": "warm", "data": subject.kernel.data}
    return [Reading("interpreter_us", statistics.median(samples), columns=columns)]
