"""state[index[b]] += x[b], for slots in any order; `bad` writes the slot after the one that it was given.

x (B, N), state (slots, N) fp32, index (B) int32. Numerics: one fp32 addition.
"""

import triton
import triton.language as tl

from harness import Case, Kernel, Tolerance, Traffic

SLOTS = 8


@triton.jit
def add_kernel(p_x, p_state, p_index, N, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    i_b = tl.program_id(0)
    o_n = tl.arange(0, BLOCK)
    slot = tl.load(p_index + i_b)
    b_s = tl.load(p_state + slot * N + o_n, mask=o_n < N)
    b_x = tl.load(p_x + i_b * N + o_n, mask=o_n < N)
    tl.store(p_state + (slot + SHIFT) % 8 * N + o_n, b_s + b_x, mask=o_n < N)


def launch(x, state, index, shift):
    add_kernel[(x.shape[0],)](x, state, index, x.shape[1], SHIFT=shift, BLOCK=triton.next_power_of_2(x.shape[1]))


def good(x, state, index):
    launch(x, state, index, 0)


def bad(x, state, index):
    launch(x, state, index, 1)


def make_inputs(case, generator):
    return {
        "x": generator.uniform((case.B, case.N)),
        "state": generator.uniform((SLOTS, case.N)),
        "index": generator.permutation(SLOTS)[: case.B].clone(),
    }


def reference(x, state, index):
    new = state.double()
    new[index.long()] += x.double()
    return {"state": new}


KERNEL = Kernel(
    variants={"good": good, "bad": bad},
    default="good",
    baseline="good",
    axes=("B", "N"),
    cases=[Case(B=3, N=100, dtype="fp32", tags="smoke cpu ragged")],
    make_inputs=make_inputs,
    reference=reference,
    outputs=(),
    mutates=("state",),
    slots={"state": "index"},
    tolerance={"fp32": Tolerance(1e-6, "one rounding")},
    traffic=lambda case: Traffic(8 * case.B * case.N, 4 * case.B * case.N),
    flops=lambda case: case.B * case.N,
)
