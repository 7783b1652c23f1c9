"""y = 2 x; `bad` gives y as a column.

x, y (N) fp32. Numerics: exact.
"""

import torch
import triton
import triton.language as tl

from harness import Case, Kernel, Tolerance, Traffic

BLOCK = 256


@triton.jit
def double_kernel(p_x, p_y, N, BLOCK: tl.constexpr):
    o_n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_x = tl.load(p_x + o_n, mask=o_n < N)
    tl.store(p_y + o_n, 2 * b_x, mask=o_n < N)


def good(x):
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK)
    return y


def bad(x):
    return good(x)[:, None]


KERNEL = Kernel(
    variants={"good": good, "bad": bad},
    default="good",
    baseline="good",
    axes=("N",),
    cases=[Case(N=1000, dtype="fp32", tags="smoke cpu ragged")],
    make_inputs=lambda case, generator: {"x": generator.uniform((case.N,), case.dtype)},
    reference=lambda x: {"y": 2 * x.double()},
    outputs=("y",),
    tolerance={"fp32": Tolerance(0.0, "doubling is exact")},
    traffic=lambda case: Traffic(4 * case.N, 4 * case.N),
    flops=lambda case: case.N,
)
