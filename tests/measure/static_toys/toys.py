"""Small kernels and launchers for the tests of the static kind: one variant for each thing that a launcher can do."""

import torch
import toy_constants
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from harness import Case, Kernel, Tolerance, Traffic, Variant, device_properties


@triton.jit
def add(p_x, p_y, p_o, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = o < n
    tl.store(p_o + o, tl.load(p_x + o, mask=mask) + tl.load(p_y + o, mask=mask), mask=mask)


@triton.jit
def scale(p_x, p_o, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(p_o + o, tl.load(p_x + o) * toy_constants.FACTOR)


@triton.jit
def center(p_x, p_o, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(p_x + o)
    tl.store(p_o + o, x - tl.sum(x))


@triton.jit
def transpose(p_x, p_o, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(p_x + o[:, None] * BLOCK + o[None, :])
    tl.store(p_o + o[:, None] * BLOCK + o[None, :], tl.trans(x))


@triton.jit
def copy_tiles(descriptor, p_o):
    i, j = tl.program_id(0), tl.program_id(1)
    o = tl.arange(0, 16)
    tl.store(p_o + (i * 16 + o)[:, None] * 64 + (j * 16 + o)[None, :], descriptor.load([i * 16, j * 16]))


@triton.jit
def misspelt(p_x, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(p_x + o, no_such_name)  # noqa: F821


@triton.jit
def refuse(x):
    tl.static_assert(False, "this helper refuses")
    return x


@triton.jit
def calls_refuse(p_x, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(p_x + o, refuse(tl.load(p_x + o)))


tuned_add = triton.autotune([triton.Config({"BLOCK": 256}, num_warps=2), triton.Config({"BLOCK": 1024}, num_warps=4)], key=["n"])(add)
tuned_transpose = triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 256}, num_warps=32)], key=["BLOCK"])(transpose)
heuristic_add = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"]) // 4})(add)


def plain(x, y):
    o = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 1024),)](x, y, o, x.numel(), BLOCK=1024)
    return o


def misaligned(x, y):
    o = torch.empty_like(x)
    add[(4,)](x[1:], y[1:], o, x.numel() - 16, BLOCK=1024)
    return o


def tuned(x, y):
    o = torch.empty_like(x)
    tuned_add[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, o, x.numel())
    return o


def tuned_to_fit(x, y):
    o = torch.empty_like(x)
    tuned_transpose[(1,)](x, o)
    return o


def heuristic(x, y):
    o = torch.empty_like(x)
    heuristic_add[(4, 2)](x, y, o, x.numel())
    return o


def twice(x, y):
    o = torch.empty_like(x)
    add[(4,)](x, y, o, x.numel(), BLOCK=1024)
    scale[(1,)](o, o, BLOCK=4096, num_warps=8)
    return o


def empty_grid(x, y):
    o = torch.empty_like(x)
    add[(0,)](x, y, o, 0, BLOCK=1024)
    add[(4,)](x, y, o, x.numel(), BLOCK=1024)
    return o


def spilling(x, y):
    """More values a thread than its limit of registers."""
    o = torch.empty_like(x)
    if device_properties().backend == "hip":
        center[(1,)](x, o, BLOCK=8192, num_warps=1, waves_per_eu=8)
    else:
        center[(1,)](x, o, BLOCK=4096, num_warps=1, maxnreg=64)
    return o


def greedy(x, y):
    o = torch.empty_like(x)
    transpose[(1,)](x, o, BLOCK=256, num_warps=32)
    return o


def overlapped(x, y):
    o = torch.empty_like(x)
    add[(4,)](x, y, o, x.numel(), BLOCK=1024, launch_pdl=True)
    return o


def clustered(x, y):
    o = torch.empty_like(x)
    add[(4,)](x, y, o, x.numel(), BLOCK=1024, num_ctas=2)
    return o


def described(x, y):
    o = torch.empty_like(x)
    copy_tiles[(4, 4)](TensorDescriptor.from_tensor(x.view(64, 64), [16, 16]), o)
    return o


def by_handle(x, y):
    """Sizes the grid from the registers of the kernel, compiled beforehand."""
    o = torch.empty_like(x)
    kernel = add.warmup(x, y, o, x.numel(), BLOCK=1024, grid=(1,))
    kernel._init_handles()
    kernel[(kernel.n_regs, 1, 1)](x, y, o, x.numel(), 1024)
    return o


def asks(x, y):
    """Sizes the grid from the device, asked in three ways."""
    o = torch.empty_like(x)
    driver = triton.runtime.driver.active
    through_driver = driver.utils.get_device_properties(driver.get_current_device())["multiprocessor_count"]
    through_torch = torch.cuda.get_device_properties(x.device).multi_processor_count
    with torch.cuda.device(x.device):
        add[(device_properties().multiprocessors, through_torch, through_driver)](x, y, o, x.numel(), BLOCK=1024)
    return o


def asks_capability(x, y):
    o = torch.empty_like(x)
    add[(*torch.cuda.get_device_capability(), 1 + (torch.version.hip is not None))](x, y, o, x.numel(), BLOCK=1024)
    return o


def asks_aliasing(x, y):
    """Takes one path if x and y share storage, another if not."""
    o = torch.empty_like(x)
    add[(1 + (x.data_ptr() == y.data_ptr()), 1 + (x.data_ptr() == x.view(64, 64).data_ptr()))](x, y, o, x.numel(), BLOCK=1024)
    return o


def wrong_name(x, y):
    misspelt[(1,)](x, BLOCK=16)
    return x


def wrong_helper(x, y):
    calls_refuse[(1,)](x, BLOCK=16)
    return x


def crashing(x, y):
    raise KeyError("the launcher's own mistake")


def launches_nothing(x, y):
    return x + y


LAUNCHERS = (
    plain,
    misaligned,
    tuned,
    tuned_to_fit,
    heuristic,
    twice,
    empty_grid,
    spilling,
    greedy,
    overlapped,
    clustered,
    described,
    by_handle,
    asks,
    asks_capability,
    asks_aliasing,
    wrong_name,
    wrong_helper,
    crashing,
    launches_nothing,
)


def make_inputs(case, generator):
    """Makes y with a kernel: a launch that is not the variant's."""
    x = generator.uniform((case.N,))
    y = torch.empty_like(x)
    scale[(1,)](x, y, BLOCK=4096)
    return {"x": x, "y": y}


KERNEL = Kernel(
    variants={launcher.__name__: launcher for launcher in LAUNCHERS} | {"eager": Variant(launches_nothing, triton=False)},
    default="plain",
    baseline="eager",
    axes=("N",),
    cases=[Case(N=4096, dtype="fp32", tags="smoke")],
    make_inputs=make_inputs,
    reference=lambda x, y: {"o": x + y},
    outputs=("o",),
    tolerance={"fp32": Tolerance(1e-6, "one rounding")},
    traffic=lambda case: Traffic(8 * case.N, 4 * case.N),
    flops=lambda case: case.N,
    name="toy",
)
