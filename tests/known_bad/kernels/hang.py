"""y = 2 x; `bad` never returns, and ignores the signals that ask it to end.

x, y (N) fp32. Numerics: exact. It hangs on the host, so that no device is left with a kernel that does not end.
"""

import signal
import time

from harness import Case, Kernel, Tolerance, Traffic, Variant


def bad(x):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(1)


KERNEL = Kernel(
    variants={"good": Variant(lambda x: 2 * x, triton=False), "bad": Variant(bad, triton=False)},
    default="good",
    baseline="good",
    axes=("N",),
    cases=[Case(N=1000, dtype="fp32", tags="smoke cpu")],
    make_inputs=lambda case, generator: {"x": generator.uniform((case.N,), case.dtype)},
    reference=lambda x: {"y": 2 * x.double()},
    outputs=("y",),
    tolerance={"fp32": Tolerance(0.0, "doubling is exact")},
    traffic=lambda case: Traffic(4 * case.N, 4 * case.N),
    flops=lambda case: case.N,
)
