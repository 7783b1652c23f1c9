"""y = 2 x; `bad` aborts its process, `segfault` writes to address 0: neither raises anything that Python could catch.

x, y (N) fp32. Numerics: exact.
"""

import ctypes
import os

from harness import Case, Kernel, Tolerance, Traffic, Variant


def bad(x):
    os.abort()


def segfault(x):
    ctypes.memset(0, 0, 1)
    return 2 * x


KERNEL = Kernel(
    variants={name: Variant(call, triton=False) for name, call in {"good": lambda x: 2 * x, "bad": bad, "segfault": segfault}.items()},
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
