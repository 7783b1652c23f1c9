"""y = 2 x; `bad` returns its fp32 arithmetic instead of the dtype it was given.

x, y (N) bf16. Numerics: exact in either dtype, so that no error measure can tell.
"""

import torch
import triton
import triton.language as tl

from harness import Case, Kernel, Tolerance, Traffic

BLOCK = 256


@triton.jit
def double_kernel(p_x, p_y, N, BLOCK: tl.constexpr):
    o_n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_x = tl.load(p_x + o_n, mask=o_n < N).to(tl.float32)
    tl.store(p_y + o_n, (2 * b_x).to(p_y.dtype.element_ty), mask=o_n < N)


def launch(x, dtype):
    y = torch.empty_like(x, dtype=dtype)
    double_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK)
    return y


KERNEL = Kernel(
    variants={"good": lambda x: launch(x, x.dtype), "bad": lambda x: launch(x, torch.float32)},
    default="good",
    baseline="good",
    axes=("N",),
    cases=[Case(N=1000, dtype="bf16", tags="smoke cpu ragged")],
    make_inputs=lambda case, generator: {"x": generator.uniform((case.N,), case.dtype)},
    reference=lambda x: {"y": 2 * x.double()},
    outputs=("y",),
    tolerance={"bf16": Tolerance(0.0, "doubling is exact")},
    traffic=lambda case: Traffic(2 * case.N, 2 * case.N),
    flops=lambda case: case.N,
)
