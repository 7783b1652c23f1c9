from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from kernel_testing import GPUS, clone, drift_of, rel_l2, same_bits
from torch.nn import functional

from harness import Case, DeviceProperties, Kernel
from harness.devices.properties import pretend
from harness.measure.data import Generator, torch_dtype

KERNEL_NAME = "causal_conv1d_update"
VARIANTS = ("fused", "torch")
LONE = DeviceProperties("cpu", 1, 65_536, 32, 32 << 20)
"""A device with one multiprocessor, on which a small batch already shares programs."""

WORDS, ODD = 12, 13
"""Channels that fill words, for the packed kernel, and channels that do not."""

Call = Callable[..., torch.Tensor]


@pytest.fixture(params=VARIANTS)
def call(kernel: Kernel, request: pytest.FixtureRequest) -> Call:
    """A variant's launcher: what holds for one holds for the other."""
    return kernel.variant(request.param).call


@pytest.fixture(params=[WORDS, ODD], ids=["packed", "plain"])
def C(request: pytest.FixtureRequest) -> int:
    """Channels: what holds for one of the two Triton kernels holds for the other."""
    return request.param


def case(dtype: str = "fp32", **axes: Any) -> Case:
    return Case(dtype=dtype, **{"B": 2, "C": WORDS, "W": 4, "bias": 1, "silu": 1, "state": "io", "pad": 0, "strided": 0, **axes})


# Right on every case


def test_result_is_within_tolerance_of_the_reference(kernel: Kernel, cpu_cell: tuple[str, Case]) -> None:
    variant_name, case = cpu_cell
    inputs = kernel.make_inputs(case, Generator(2))
    before = clone(inputs)
    expected = kernel.reference(**inputs)
    assert all(same_bits(before[name], value) for name, value in inputs.items() if isinstance(value, torch.Tensor))

    y = kernel.variant(variant_name).call(**inputs)
    tolerance = kernel.tolerance_of(case)
    assert (case.B, case.C) == y.shape
    assert torch_dtype(case.dtype) == y.dtype
    if case.pad < case.B:
        assert rel_l2(y, expected["y"]) <= tolerance.limit("y")
    assert rel_l2(inputs["state"], expected["state"]) <= tolerance.limit("state")

    indices = inputs["state_indices"]
    live = sorted(indices[indices >= 0].tolist())
    assert case.B - case.pad == len(live) == len(set(live))
    assert all(same_bits(before[name], value) for name, value in inputs.items() if isinstance(value, torch.Tensor) and name != "state")
    changed = [slot for slot in range(case.B + 1) if not same_bits(before["state"][slot], inputs["state"][slot])]
    assert live == changed
    assert same_bits(torch.zeros_like(y)[indices < 0], y[indices < 0])


# What a step means


@pytest.mark.parametrize("W", [2, 3, 4])
@pytest.mark.parametrize("options", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=["plain", "silu", "bias", "bias and silu"])
def test_tokens_one_by_one_equal_the_causal_convolution_of_all(
    kernel: Kernel, call: Call, C: int, W: int, options: tuple[int, int]
) -> None:
    generator, one = Generator(3), case(C=C, W=W, bias=options[0], silu=options[1])
    inputs = kernel.make_inputs(one, generator)
    rows = inputs["state_indices"].long()
    past = inputs["state"][rows]
    tokens = [inputs["x"], *(drift_of(kernel).step_inputs(one, generator)["x"] for _ in range(5))]
    found = torch.stack([call(**{**inputs, "x": x}) for x in tokens], dim=2)

    sequence = torch.cat([past, torch.stack(tokens, dim=2)], dim=2).double()
    bias = None if inputs["bias"] is None else inputs["bias"].double()
    expected = functional.conv1d(sequence, inputs["weight"].double()[:, None, :], bias, groups=C)
    assert rel_l2(found, functional.silu(expected) if options[1] else expected) <= 1e-6
    assert same_bits(sequence[:, :, -(W - 1) :].float(), inputs["state"][rows])


def test_state_is_the_last_columns_of_a_rolling_window(kernel: Kernel, call: Call, C: int) -> None:
    """Libraries that keep all W columns hold x in the last: this state is what remains without the oldest."""
    generator, one = Generator(4), case("bf16", B=1, C=C)
    inputs = kernel.make_inputs(one, generator)
    slot = inputs["state_indices"].long()
    window = torch.cat([torch.zeros(1, C, 1, dtype=torch.bfloat16), inputs["state"][slot]], dim=2)
    for _ in range(3):
        window = torch.cat([window[:, :, 1:], inputs["x"][:, :, None]], dim=2)
        call(**inputs)
        assert same_bits(window[:, :, 1:], inputs["state"][slot])
        inputs.update(drift_of(kernel).step_inputs(one, generator))


@pytest.mark.parametrize("W", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_each_channel_keeps_its_own_values_in_order(kernel: Kernel, call: Call, C: int, dtype: str, W: int) -> None:
    inputs = kernel.make_inputs(case(dtype, B=1, C=C, W=W), Generator(5))
    every = torch.arange(C * W, dtype=torch.float32).reshape(C, W).to(torch_dtype(dtype))
    slot = int(inputs["state_indices"])
    inputs["state"][slot] = every[:, :-1]
    inputs["x"][0] = every[:, -1]
    call(**inputs)
    assert torch.equal(every[:, 1:], inputs["state"][slot])


@pytest.mark.parametrize("W", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_packed_and_plain_agree(kernel: Kernel, module: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: str, W: int) -> None:
    packed = kernel.make_inputs(case(dtype, B=3, W=W, pad=1), Generator(6))
    plain = clone(packed)
    call = kernel.variant("fused").call
    y = call(**packed)
    monkeypatch.setattr(module, "takes_words", lambda *tensors: False)
    assert rel_l2(call(**plain), y) <= (1e-7 if dtype == "fp32" else 1e-3)
    assert same_bits(plain["state"], packed["state"])


@pytest.mark.parametrize("batch", [32, 33], ids=["whole", "ragged"])
def test_rows_that_share_a_program_equal_rows_alone(kernel: Kernel, module: ModuleType, batch: int) -> None:
    inputs = kernel.make_inputs(case(B=batch, pad=3), Generator(7))
    alone = clone(inputs)
    y = kernel.variant("torch").call(**alone)
    with pretend(LONE):
        assert 2 == module.plan_packed(batch, WORDS // 2, LONE).rows
        assert rel_l2(kernel.variant("fused").call(**inputs), y) <= 1e-6
    assert same_bits(alone["state"], inputs["state"])


@pytest.mark.parametrize(("channels", "barriers"), [(ODD, 2), (33, 0)], ids=["fewer than lanes", "as many as lanes"])
def test_channels_that_several_lanes_read_are_overwritten_behind_a_barrier(
    kernel: Kernel, module: ModuleType, monkeypatch: pytest.MonkeyPatch, channels: int, barriers: int
) -> None:
    met = []
    monkeypatch.setattr(module.tl, "debug_barrier", lambda: met.append(1))
    inputs = kernel.make_inputs(case("bf16", C=channels), Generator(7))
    kernel.variant("fused").call(**inputs)
    assert barriers == len(met)


# Padding


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
def test_padded_rows_may_hold_anything_and_give_zero(kernel: Kernel, call: Call, C: int) -> None:
    inputs = kernel.make_inputs(case("bf16", B=4, C=C, pad=2), Generator(8))
    padded = inputs["state_indices"] < 0
    clean = clone(inputs)
    expected = call(**clean)
    inputs["x"][padded] = float("nan")
    y = call(**inputs)
    assert same_bits(expected, y)
    assert same_bits(torch.zeros_like(y)[padded], y[padded])
    assert same_bits(clean["state"], inputs["state"])


def test_nothing_but_padding_changes_nothing(kernel: Kernel, call: Call, C: int) -> None:
    inputs = kernel.make_inputs(case(B=3, C=C, pad=3), Generator(9))
    before = inputs["state"].clone()
    assert same_bits(torch.zeros(3, C), call(**inputs))
    assert same_bits(before, inputs["state"])


def test_rows_without_slots_are_padded_ones(kernel: Kernel, call: Call, C: int) -> None:
    inputs = kernel.make_inputs(case(C=C, pad=2), Generator(9))
    assert same_bits(torch.zeros(2, C), call(**{**inputs, "state": inputs["state"][:0]}))


# NaN, infinity, storage


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=["nan", "inf", "-inf"])
def test_x_that_is_not_finite_stays_in_its_row_and_channel_for_as_long_as_the_window(
    kernel: Kernel, call: Call, C: int, value: float
) -> None:
    generator, one = Generator(10), case(C=C, silu=0)
    inputs = kernel.make_inputs(one, generator)
    inputs["x"][1, 5] = value
    hit = torch.zeros(2, C, dtype=torch.bool)
    hit[1, 5] = True
    for token in range(6):
        y = call(**inputs)
        assert torch.equal(hit & (token < 4), ~y.isfinite())
        assert torch.equal(hit & (token < 3), ~inputs["state"][inputs["state_indices"]].isfinite().all(-1))
        inputs.update(drift_of(kernel).step_inputs(one, generator))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_silu_gives_inf_zero_and_nan_as_ieee_does(kernel: Kernel, call: Call, C: int) -> None:
    inputs = kernel.make_inputs(case(C=C, bias=0), Generator(11))
    inputs["weight"].fill_(1.0)
    inputs["state"].zero_()
    inputs["x"][0, :4] = torch.tensor([float("inf"), float("-inf"), -90.0, 90.0])
    y = call(**inputs)[0, :4]
    assert float("inf") == y[0]
    assert y[1].isnan()
    assert 0 >= y[2] > -1e-30
    assert 90 == y[3]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_payload_of_a_nan_in_the_state_moves_bit_for_bit(kernel: Kernel) -> None:
    inputs = kernel.make_inputs(case("bf16"), Generator(12))
    slot = int(inputs["state_indices"][0])
    inputs["state"].view(torch.int16)[slot, 3, 1] = 0x7FA5
    kernel.variant("fused").call(**inputs)
    assert 0x7FA5 == int(inputs["state"].view(torch.int16)[slot, 3, 0])


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_x_is_rounded_once_to_a_state_of_fewer_digits(kernel: Kernel, call: Call, dtype: str) -> None:
    inputs = kernel.make_inputs(case(state=dtype), Generator(13))
    rows = inputs["state_indices"].long()
    old = inputs["state"][rows].clone()
    call(**inputs)
    expected = torch.cat([old[:, :, 1:], inputs["x"][:, :, None].to(torch_dtype(dtype))], dim=2)
    assert same_bits(expected, inputs["state"][rows])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fp16_state_holds_infinity_for_what_is_too_large(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(state="fp16"), Generator(14))
    inputs["x"].fill_(1e6)
    y = call(**inputs)
    assert y.isfinite().all()
    assert inputs["state"][inputs["state_indices"], :, -1].isinf().all()


def test_thousand_steps_change_no_bit(kernel: Kernel) -> None:
    assert {0.0} == {tolerance.rel_l2 for tolerance in drift_of(kernel).tolerance.values()}
    assert 1000 == drift_of(kernel).steps


# Strides, sizes


def test_strided_inputs_equal_contiguous_ones_and_the_gaps_are_not_touched(kernel: Kernel, module: ModuleType, call: Call, C: int) -> None:
    inputs = kernel.make_inputs(case(C=C), Generator(15))
    wide, values = clone(inputs), C * 3
    gap = 4 if C == WORDS else 3
    wide["x"] = torch.full((2, C + gap), float("nan"))[:, :C].copy_(wide["x"])
    apart = torch.full((3, values + gap), float("nan"))
    wide["state"] = apart[:, :values].unflatten(1, (C, 3)).copy_(wide["state"])
    assert (C == WORDS) is module.takes_words(wide["x"], wide["weight"], wide["bias"], wide["state"])
    assert same_bits(call(**inputs), call(**wide))
    assert same_bits(inputs["state"], wide["state"])
    assert apart[:, values:].isnan().all()


def off_by_one(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that starts one value past a word."""
    return torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("name", ["x", "weight", "bias", "state"])
def test_tensor_that_starts_between_words_is_taken_by_the_plain_kernel(kernel: Kernel, module: ModuleType, name: str) -> None:
    inputs = kernel.make_inputs(case("bf16"), Generator(16))
    tensors = ("x", "weight", "bias", "state")
    assert module.takes_words(*(inputs[t] for t in tensors))
    moved = {**clone(inputs), name: off_by_one(inputs[name])}
    assert not module.takes_words(*(moved[t] for t in tensors))
    call = kernel.variant("fused").call
    assert rel_l2(call(**moved), call(**inputs)) <= 1e-3
    assert same_bits(inputs["state"], moved["state"])


def test_rows_whose_stride_is_no_word_are_taken_by_the_plain_kernel(kernel: Kernel, module: ModuleType) -> None:
    inputs = kernel.make_inputs(case("bf16"), Generator(17))
    x = torch.zeros(2, WORDS + 1, dtype=torch.bfloat16)[:, :WORDS]
    assert not module.takes_words(x, inputs["weight"], inputs["bias"], inputs["state"])


@pytest.mark.parametrize("channels", [WORDS, ODD], ids=["packed", "plain"])
def test_slot_and_row_may_start_past_two_to_the_31_elements(kernel: Kernel, channels: int) -> None:
    # The pages in between are never touched, so they take no memory. A 32-bit product of index and stride would fault.
    inputs = kernel.make_inputs(case("fp16", B=4, C=channels), Generator(18))
    far, stride = clone(inputs), 2**30 + 64
    for name in ("x", "state"):
        tensor = far[name]
        buffer = torch.empty((len(tensor) - 1) * stride + tensor[0].numel(), dtype=torch.float16)
        far[name] = buffer.as_strided(tensor.shape, (stride, *tensor.stride()[1:])).copy_(tensor)
    call = kernel.variant("fused").call
    assert same_bits(call(**inputs), call(**far))
    assert same_bits(inputs["state"], far["state"])


def test_nothing_is_launched_for_no_rows(kernel: Kernel, module: ModuleType, call: Call, C: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_conv1d_update_packed", "_conv1d_update_plain"):
        monkeypatch.setattr(module, name, None)
    inputs = kernel.make_inputs(case(C=C), Generator(19))
    before = inputs["state"].clone()
    y = call(**{**inputs, "x": inputs["x"][:0], "state_indices": inputs["state_indices"][:0]})
    assert (0, C) == y.shape
    assert same_bits(before, inputs["state"])


# Refusals

REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "one axis of x": ({"x": torch.zeros(8)}, r"x has shape \(8,\)"),
    "two axes of state": ({"state": torch.zeros(3, 8)}, r"state \(3, 8\)"),
    "three axes of weight": ({"weight": torch.zeros(8, 1, 4)}, r"weight \(8, 1, 4\)"),
    "width 1": ({"weight": torch.zeros(8, 1), "state": torch.zeros(3, 8, 0)}, "weight has width 1: the widths are 2, 3, 4"),
    "width 5": ({"weight": torch.zeros(8, 5), "state": torch.zeros(3, 8, 4)}, "weight has width 5"),
    "no channels": ({"x": torch.zeros(2, 0), "weight": torch.zeros(0, 4), "state": torch.zeros(3, 0, 3)}, "one channel or more"),
    "dtype of x": ({"x": torch.zeros(2, 8).double()}, "x has .*float64"),
    "dtype of weight": ({"weight": torch.zeros(8, 4).half()}, "weight has .*float16.*float32"),
    "channels of weight": ({"weight": torch.zeros(7, 4)}, r"weight has shape \(7, 4\).*give \(8, 4\)"),
    "weight transposed": ({"weight": torch.zeros(4, 8).T}, "weight has strides.*contiguous"),
    "dtype of bias": ({"bias": torch.zeros(8).bfloat16()}, "bias has .*bfloat16"),
    "length of bias": ({"bias": torch.zeros(4)}, r"bias has shape \(4,\)"),
    "all W columns in the state": ({"state": torch.zeros(3, 8, 4)}, r"state has shape \(3, 8, 4\).*give \(3, 8, 3\)"),
    "dtype of state": ({"state": torch.zeros(3, 8, 3).double()}, "state has .*float64"),
    "state with time first": ({"state": torch.zeros(3, 3, 8).mT}, "state has strides"),
    "channels of a slot that lie apart": ({"state": torch.zeros(3, 8, 4)[:, :, :3]}, "each slot must be contiguous"),
    "slots that overlap": ({"state": torch.zeros(1, 8, 3).expand(3, 8, 3)}, "each slot must be contiguous"),
    "dtype of state_indices": ({"state_indices": torch.tensor([0, 1])}, "state_indices has .*int64.*int32"),
    "length of state_indices": ({"state_indices": torch.tensor([0], dtype=torch.int32)}, r"state_indices has shape \(1,\)"),
    "column stride of x": ({"x": torch.zeros(2, 16)[:, ::2]}, "x has strides"),
    "another device": ({"weight": torch.zeros(8, 4, device="meta")}, "weight is on meta"),
}


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refuses(call: Call, change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "x": torch.zeros(2, 8),
        "weight": torch.zeros(8, 4),
        "bias": torch.zeros(8),
        "state": torch.zeros(3, 8, 3),
        "state_indices": torch.tensor([0, 1], dtype=torch.int32),
    }
    call(**given)
    with pytest.raises(ValueError, match=f"causal_conv1d_update: .*{message}"):
        call(**{**given, **change})


# Cost model


def test_traffic_is_the_sum_of_what_live_rows_touch(kernel: Kernel) -> None:
    for one in kernel.cases:
        inputs = kernel.make_inputs(one, Generator(0, "meta"))
        size = {name: value.numel() * value.element_size() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        live = one.B - one.pad
        state = size["state"] // (one.B + 1) * live
        read = size["x"] // one.B * live + state + size["weight"] + size.get("bias", 0) + size["state_indices"]
        found = kernel.traffic(one)  # y is as large as x
        assert (read, state + size["x"]) == (found.read_bytes, found.written_bytes), one.key


def test_flops_count_live_rows(kernel: Kernel) -> None:
    expected = {"B=16,C=8192,W=4,dtype=bf16": 16 * 8192 * 8, "B=16,C=8192,W=4,pad=5,dtype=bf16": 11 * 8192 * 8}
    assert expected == {key: kernel.flops(kernel.case(key)) for key in expected}


# Launch plans

PACKED = {
    "a lone row": ((1, 2048), {"small": (1, 32), "large": (1, 32), "wave64": (1, 64)}),
    "a large batch shares the weights": ((256, 2048), {"small": (4, 32), "large": (4, 32), "wave64": (1, 64)}),
    "a huge one no further": ((4096, 2048), {"small": (4, 32), "large": (4, 32), "wave64": (4, 64)}),
    "no more groups than there are": ((4, 3), {"small": (1, 4), "large": (1, 4), "wave64": (1, 4)}),
}


@pytest.mark.parametrize(("shape", "expected"), PACKED.values(), ids=PACKED)
def test_packed_plan(module: ModuleType, shape: tuple[int, int], expected: dict[str, tuple[int, int]]) -> None:
    found = {name: module.plan_packed(*shape, gpu) for name, gpu in GPUS.items()}
    assert expected == {name: (plan.rows, plan.groups) for name, plan in found.items()}


PLAIN = {
    "a lone row": ((1, 8190), {"small": 32, "large": 32, "wave64": 64}),
    "a large batch": ((256, 8190), {"small": 256, "large": 256, "wave64": 256}),
    "few channels": ((4096, 5), {"small": 8, "large": 8, "wave64": 8}),
}


@pytest.mark.parametrize(("shape", "expected"), PLAIN.values(), ids=PLAIN)
def test_plain_channels(module: ModuleType, shape: tuple[int, int], expected: dict[str, int]) -> None:
    assert expected == {name: module.plain_channels(*shape, gpu) for name, gpu in GPUS.items()}


@pytest.mark.parametrize(
    ("axes", "packed"),
    [
        ({"C": 8192}, True),
        ({"C": 8190}, False),
        ({"C": 8190, "dtype": "fp32"}, True),
        ({"C": 8192, "state": "fp32"}, False),
        ({"C": 8192, "strided": 1}, True),
    ],
    ids=["whole words", "ragged", "two values a word", "another dtype", "strided"],
)
def test_model_shapes_take_the_packed_kernel_wherever_words_fit(
    kernel: Kernel, module: ModuleType, axes: dict[str, Any], packed: bool
) -> None:
    inputs = kernel.make_inputs(case(**{"dtype": "bf16", **axes}), Generator(0, "meta"))
    assert packed is module.takes_words(*(inputs[name] for name in ("x", "weight", "bias", "state")))


# The cases


def test_peers_are_five_batches_of_8192_channels(kernel: Kernel) -> None:
    peers = [c.key for c in kernel.cases if "peers" in c.tags]
    assert [f"B={b},C=8192,W=4,dtype=bf16" for b in (1, 4, 16, 64, 256)] == peers


def test_one_smoke_and_three_headlines(kernel: Kernel) -> None:
    assert ["B=1,C=1536,W=4,bias=1,dtype=bf16"] == [c.key for c in kernel.cases if "smoke" in c.tags]
    assert [1, 16, 256] == [c.B for c in kernel.cases if "headline" in c.tags]


def test_cases_hold_every_batch_of_every_number_of_channels(kernel: Kernel) -> None:
    shapes = {(c.B, c.C, c.bias) for c in kernel.cases if (c.W, c.dtype) == (4, "bf16")}
    channels = [(8192, 0), (10240, 0), (1536, 1), (4608, 0), (36864, 0), (8190, 0)]
    assert {(b, *c) for b in (1, 4, 16, 64, 256) for c in channels} <= shapes


def test_cpu_cases_cover_every_option_and_are_small_enough(kernel: Kernel, module: ModuleType) -> None:
    cpu = [c for c in kernel.cases if "cpu" in c.tags]
    assert 12 == len({(c.W, c.bias, c.silu) for c in cpu if c.dtype == "bf16"})
    assert {"io", "fp32", "fp16", "bf16"} == {c.state for c in cpu}
    for dtype in ("fp32", "fp16", "bf16"):
        of_dtype = [c for c in cpu if c.dtype == dtype]
        assert {2, 3, 4} == {c.W for c in of_dtype}
        assert {0, 1} == {c.strided for c in of_dtype}
        assert any("ragged" in c.tags for c in of_dtype)
    assert any(0 < c.pad < c.B for c in cpu)
    assert any(c.pad == c.B for c in cpu)
    device = DeviceProperties("cpu", 4, 65_536, 32, 32 << 20)
    for c in cpu:
        programs = c.B * -(-c.C // module.plain_channels(c.B, c.C, device))
        assert programs <= (4 if "drift" in c.tags else 200), c.key


def test_meta_inputs_have_the_shapes_strides_and_dtypes_of_real_ones(kernel: Kernel) -> None:
    for one in kernel.cases:
        if "cpu" in one.tags:
            real, meta = (kernel.make_inputs(one, Generator(0, device)) for device in ("cpu", "meta"))
            assert list(real) == list(meta)
            for name, value in real.items():
                if isinstance(value, torch.Tensor):
                    found = meta[name]
                    assert (value.shape, value.stride(), value.dtype) == (found.shape, found.stride(), found.dtype), (one.key, name)
