"""y = 2 x; `bad` stores its last block without a mask, past the end of y.

x, y (N) fp32. Numerics: exact; y is right either way.
"""

import torch
import triton
import triton.language as tl

from harness import Case, Kernel, Tolerance, Traffic

BLOCK = 256


@triton.jit
def double_kernel(p_x, p_y, N, BLOCK: tl.constexpr, MASK_STORE: tl.constexpr):
    o_n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_y = 2 * tl.load(p_x + o_n, mask=o_n < N, other=0.0)
    if MASK_STORE:
        tl.store(p_y + o_n, b_y, mask=o_n < N)
    else:
        tl.store(p_y + o_n, b_y)


def launch(x, mask_store):
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK, MASK_STORE=mask_store)
    return y


KERNEL = Kernel(
    variants={"good": lambda x: launch(x, mask_store=True), "bad": lambda x: launch(x, mask_store=False)},
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
