"""A constant that a kernel reads from another module."""

import triton.language as tl

FACTOR = tl.constexpr(3.0)
