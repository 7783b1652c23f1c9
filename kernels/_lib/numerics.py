"""Arithmetic that several kernels share: rounding a store, and softplus."""

import triton
import triton.language as tl

IS_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def rounded(b_x, dtype: tl.constexpr):
    """An fp32 block in `dtype`, rounded to nearest even.

    Triton's interpreter truncates to bf16 where a GPU rounds: a carried state would drift towards zero.
    """
    if IS_INTERPRETED and dtype == tl.bfloat16:
        bits = b_x.to(tl.int32, bitcast=True)
        bits = tl.where(b_x == b_x, bits + 0x7FFF + ((bits >> 16) & 1), bits)
        b_y = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        b_y = b_x.to(dtype)
    return b_y


@triton.jit
def softplus(x):
    """log(1 + exp(x)), x itself above 20; fp32.

    log1p by Kahan's quotient: log(1 + e) alone keeps about three digits of a small step.
    """
    e = tl.exp(x)
    w = 1.0 + e
    log1p = tl.where(w == 1.0, e, tl.log(w) * (e / (w - 1.0)))
    return tl.where(x > 20.0, x, log1p)
