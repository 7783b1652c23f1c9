"""Layer norm of each row; the variance of `bad` counts what the mask of the load left out, as zeros.

    y[m, n] = (x[m, n] - mean_n x[m]) / sqrt(var_n x[m] + 1e-5)

x, y (M, N), row-major.
Numerics: computed in fp32. Only inputs whose mean is not zero show the mistake within the tolerance of bf16.
"""

import torch
import triton
import triton.language as tl

from harness import Case, Kernel, Tolerance, Traffic

BYTES = {"fp32": 4, "bf16": 2}


@triton.jit
def layer_norm_kernel(p_x, p_y, N, IS_MASKED: tl.constexpr, BLOCK: tl.constexpr):
    o_n = tl.arange(0, BLOCK)
    at = tl.program_id(0) * N + o_n
    b_x = tl.load(p_x + at, mask=o_n < N, other=0.0).to(tl.float32)
    b_x -= tl.sum(b_x, axis=0) / N
    b_square = b_x * b_x
    if IS_MASKED:
        b_square = tl.where(o_n < N, b_square, 0.0)
    tl.store(p_y + at, b_x / tl.sqrt(tl.sum(b_square, axis=0) / N + 1e-5), mask=o_n < N)


def launch(x, is_masked):
    y = torch.empty_like(x)
    layer_norm_kernel[(x.shape[0],)](x, y, x.shape[1], is_masked, BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


def reference(x):
    x = x.double()
    return {"y": (x - x.mean(1, keepdim=True)) / torch.sqrt(x.var(1, unbiased=False, keepdim=True) + 1e-5)}


KERNEL = Kernel(
    variants={"good": lambda x: launch(x, is_masked=True), "bad": lambda x: launch(x, is_masked=False)},
    default="good",
    baseline="good",
    axes=("M", "N"),
    cases=Case.grid(M=4, N=600, dtype=("fp32", "bf16"), tags="smoke cpu ragged"),
    make_inputs=lambda case, generator: {"x": generator.normal((case.M, case.N), case.dtype, mean=1.0)},
    reference=reference,
    outputs=("y",),
    tolerance={"fp32": Tolerance(1e-6, "a few roundings to fp32"), "bf16": Tolerance(8e-3, "one rounding to bf16")},
    traffic=lambda case: Traffic(case.M * case.N * BYTES[case.dtype], case.M * case.N * BYTES[case.dtype]),
    flops=lambda case: 6 * case.M * case.N,
)
