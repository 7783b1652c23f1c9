"""Columns scaled; `bad` scales the last one by its neighbour's factor, one value in a million.

    y[m, n] = x[m, n] * scale[n]

x (M, N), scale (N), y (M, N), all fp16 and row-major.
Numerics: one rounding, so the error of a row of right values hides that of a wrong one.
"""

import torch
import triton
import triton.language as tl

from harness import Case, Kernel, Tolerance, Traffic

BLOCK = 1 << 16


@triton.jit
def scale_columns_kernel(p_x, p_scale, p_y, N, last, BLOCK: tl.constexpr):
    i_row = tl.program_id(0)
    o_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    b_x = tl.load(p_x + i_row * N + o_n, mask=o_n < N, other=0.0)
    b_scale = tl.load(p_scale + tl.minimum(o_n, last), mask=o_n < N, other=0.0)
    tl.store(p_y + i_row * N + o_n, b_x * b_scale, mask=o_n < N)


def launch(x, scale, last):
    y = torch.empty_like(x)
    rows, columns = x.shape
    scale_columns_kernel[(rows, triton.cdiv(columns, BLOCK))](x, scale, y, columns, last, BLOCK=BLOCK)
    return y


KERNEL = Kernel(
    variants={
        "good": lambda x, scale: launch(x, scale, x.shape[1] - 1),
        "bad": lambda x, scale: launch(x, scale, x.shape[1] - 2),
    },
    default="good",
    baseline="good",
    axes=("M", "N"),
    cases=[Case(M=2, N=1_000_000, dtype="fp16", tags="smoke cpu ragged")],
    make_inputs=lambda case, generator: {
        "x": generator.uniform((case.M, case.N), case.dtype),
        "scale": generator.uniform((case.N,), case.dtype),
    },
    reference=lambda x, scale: {"y": x.double() * scale.double()},
    outputs=("y",),
    tolerance={"fp16": Tolerance(8e-3, "one rounding to fp16 is 2^-11 of a value")},
    traffic=lambda case: Traffic(2 * case.M * case.N + 2 * case.N, 2 * case.M * case.N),
    flops=lambda case: case.M * case.N,
)
