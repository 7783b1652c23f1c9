"""Each row over its L2 norm; `bad` leaves out the epsilon, so that a row of zeros gives 0/0.

    y[m] = x[m] / sqrt(sum_n x[m, n]^2 + 1e-6)

x, y (M, N) fp32, row-major, N a power of two; row 2 is a padded one, all zero.
Numerics: accumulated in fp32.
"""

import torch
import triton
import triton.language as tl

from harness import Case, Kernel, Tolerance, Traffic

EPS = 1e-6
PADDED = 2


@triton.jit
def normalise_kernel(p_x, p_y, eps, N: tl.constexpr):
    o_n = tl.program_id(0) * N + tl.arange(0, N)
    b_x = tl.load(p_x + o_n)
    tl.store(p_y + o_n, b_x / tl.sqrt(tl.sum(b_x * b_x, axis=0) + eps))


def launch(x, eps):
    y = torch.empty_like(x)
    normalise_kernel[(x.shape[0],)](x, y, eps, N=x.shape[1])
    return y


def make_inputs(case, generator):
    x = generator.uniform((case.M, case.N), case.dtype)
    x[PADDED] = 0
    return {"x": x}


KERNEL = Kernel(
    variants={"good": lambda x: launch(x, EPS), "bad": lambda x: launch(x, 0.0)},
    default="good",
    baseline="good",
    axes=("M", "N"),
    cases=[Case(M=4, N=64, dtype="fp32", tags="smoke cpu")],
    make_inputs=make_inputs,
    reference=lambda x: {"y": x.double() / (x.double().square().sum(1, keepdim=True) + EPS).sqrt()},
    outputs=("y",),
    tolerance={"fp32": Tolerance(1e-6, "a short sum, a root and a quotient in fp32")},
    traffic=lambda case: Traffic(4 * case.M * case.N, 4 * case.M * case.N),
    flops=lambda case: 3 * case.M * case.N,
)
