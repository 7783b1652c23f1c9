"""Sum of each row; `bad` stops at the last whole block.

    total[m] = sum_n x[m, n]

x (M, N) fp32, row-major; total (M) fp32.
Numerics: accumulated in fp32. Only a ragged N shows the mistake.
"""

import torch
import triton
import triton.language as tl

from harness import Case, Kernel, Tolerance, Traffic

BLOCK = 64


@triton.jit
def row_sum_kernel(p_x, p_total, N, end, BLOCK: tl.constexpr):
    i_row = tl.program_id(0)
    o_n = tl.arange(0, BLOCK)
    b_sum = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, end, BLOCK):
        b_sum += tl.load(p_x + i_row * N + start + o_n, mask=start + o_n < N, other=0.0)
    tl.store(p_total + i_row, tl.sum(b_sum, axis=0))


def launch(x, end):
    total = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    row_sum_kernel[(x.shape[0],)](x, total, x.shape[1], end, BLOCK=BLOCK)
    return total


KERNEL = Kernel(
    variants={"good": lambda x: launch(x, x.shape[1]), "bad": lambda x: launch(x, x.shape[1] // BLOCK * BLOCK)},
    default="good",
    baseline="good",
    axes=("M", "N"),
    cases=[Case(M=4, N=250, dtype="fp32", tags="smoke cpu ragged")],
    make_inputs=lambda case, generator: {"x": generator.uniform((case.M, case.N), case.dtype)},
    reference=lambda x: {"total": x.double().sum(1)},
    outputs=("total",),
    tolerance={"fp32": Tolerance(1e-5, "a few hundred roundings in fp32")},
    traffic=lambda case: Traffic(4 * case.M * case.N, 4 * case.M),
    flops=lambda case: case.M * case.N,
)
