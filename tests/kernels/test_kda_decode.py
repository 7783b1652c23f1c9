from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from kernel_testing import GPUS, drift_of

from harness import Case, DeviceProperties, Kernel
from harness.devices.properties import pretend
from harness.devices.table import load_devices
from harness.measure.clock.serving import activations_of
from harness.measure.data import Generator, torch_dtype
from harness.measure.numerics import bit_equal, compare
from harness.measure.subject import Subject

KERNEL_NAME = "kda_decode"
ROOT = Path(__file__).parents[2]
WHOLE_STEPS = ("fused", "chain", "chain_eager_norm")
LAYOUTS = ("channel", "time")

Call = Callable[..., torch.Tensor]


@pytest.fixture(params=("fused", "chain"))
def call(kernel: Kernel, request: pytest.FixtureRequest) -> Call:
    """A variant that makes the whole step: what holds for one holds for the other."""
    return kernel.variant(request.param).call


def case(dtype: str = "fp32", **axes: Any) -> Case:
    return Case(dtype=dtype, **{"T": 2, "heads": 1, "layout": "channel", "layers": 1, "pad": 0, "strided": 0, **axes})


def rel_l2(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return compare(actual, expected).rel_l2


def clone(inputs: dict[str, Any]) -> dict[str, Any]:
    """Copies with the strides of the originals, gaps filled with NaN."""
    return {name: restride(value, value.stride()) for name, value in inputs.items()}


def restride(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """A copy with these strides, of which whatever lies between the elements is NaN (or a large integer)."""
    size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, stride, strict=True)) if tensor.numel() else 0
    fill = float("nan") if tensor.dtype.is_floating_point else 2**30
    return torch.full((size,), fill, dtype=tensor.dtype).as_strided(tensor.shape, stride).copy_(tensor)


# Right on every case


def test_cell_is_right_and_changes_live_slots_alone(kernel: Kernel, cpu_cell: tuple[str, Case]) -> None:
    variant_name, one = cpu_cell
    variant, tolerance = kernel.variant(variant_name), kernel.tolerance_of(one)
    inputs = kernel.make_inputs(one, Generator(2))
    before = clone(inputs)
    expected = kernel.reference(**inputs)
    assert all(bit_equal(before[name], value) for name, value in inputs.items())

    output = variant.call(**inputs)
    (name,) = variant.outputs or ()
    assert (expected[name].shape, torch_dtype(one.dtype)) == (output.shape, output.dtype)
    assert compare(output, expected[name]).within(tolerance.limit(name), tolerance.cosine)
    padded = inputs["state_indices"] <= 0
    assert one.pad == int(padded.sum())
    assert bit_equal(torch.zeros_like(output)[..., padded, :, :], output[..., padded, :, :])
    live = sorted(inputs["state_indices"][~padded].tolist())
    for name in inputs:
        if name in (variant.mutates or ()):
            assert compare(inputs[name], expected[name]).within(tolerance.limit(name), tolerance.cosine)
            changed = (inputs[name] != before[name]).flatten(1).any(dim=1)
            assert live == changed.nonzero().flatten().tolist()
        else:
            assert bit_equal(before[name], inputs[name])


# The formula


def naive(tokens: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Every token of time, row and head in turn, in fp64, from the published formulas: out (steps, T, heads, 128) and state by row."""
    first = {name: value.double().numpy() for name, value in tokens[0].items() if name != "state_indices"}
    rows = tokens[0]["state_indices"].tolist()
    heads = first["A_log"].shape[0]
    dim, S = heads * 128, first["state"][rows]
    history = [first["conv_state"][rows][:, :, t] for t in range(3)]
    out = np.zeros((len(tokens), len(rows), heads, 128))
    for step, token in enumerate(tokens):
        x, g, beta, g2 = (token[name].double().numpy() for name in ("mixed_qkv", "raw_g", "raw_beta", "g2"))
        history.append(x)
        for row in range(len(rows)):
            y = sum(first["conv_weight"][:, t] * history[step + t][row] for t in range(4))
            y = y / (1 + np.exp(-y))
            for h in range(heads):
                q, k, v = (y[part * dim + h * 128 : part * dim + (h + 1) * 128] for part in range(3))
                q, k = q / np.sqrt(q @ q + 1e-6) / np.sqrt(128), k / np.sqrt(k @ k + 1e-6)
                gate = np.exp(first["A_log"][h]) * (g[0, row, h] + first["dt_bias"][h * 128 : (h + 1) * 128])
                alpha = np.exp(-5 / (1 + np.exp(-gate)))
                b = 1 / (1 + np.exp(-beta[0, row, h]))
                S[row, h] = S[row, h] @ np.diag(alpha) @ (np.eye(128) - b * np.outer(k, k)) + b * np.outer(v, k)
                o = S[row, h] @ q
                normed = o / np.sqrt(np.mean(o * o) + 1e-5) * first["norm_weight"]
                out[step, row, h] = normed / (1 + np.exp(-g2[row, h]))
    return out, S


def tokens_of(kernel: Kernel, one: Case, steps: int) -> list[dict[str, Any]]:
    generator = Generator(4)
    inputs = kernel.make_inputs(one, generator)
    return [inputs, *({**inputs, **drift_of(kernel).step_inputs(one, generator)} for _ in range(steps - 1))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_equal_the_naive_formulas_over_all_tokens(kernel: Kernel, call: Call, layout: str) -> None:
    tokens = tokens_of(kernel, case(layout=layout, T=1), steps=5)
    expected_out, expected_state = naive(tokens)
    out = torch.stack([call(**token) for token in tokens])
    assert rel_l2(out, torch.from_numpy(expected_out)) <= 1e-6
    assert rel_l2(tokens[0]["state"][tokens[0]["state_indices"]], torch.from_numpy(expected_state)) <= 1e-6


def test_reference_is_the_naive_formulas_and_takes_its_own_states(kernel: Kernel) -> None:
    tokens = tokens_of(kernel, case("bf16", heads=2), steps=5)
    expected_out, expected_state = naive(tokens)
    states: dict[str, torch.Tensor] = {}
    for token, expected in zip(tokens, expected_out, strict=True):
        given = {name: value.clone() for name, value in states.items()}
        found = kernel.reference(**{**token, **given})
        assert all(bit_equal(value, given[name]) for name, value in states.items())
        states = {name: found[name] for name in ("state", "conv_state")}
        assert {torch.float64} == {value.dtype for value in found.values()}
        assert rel_l2(found["out"], torch.from_numpy(expected)) <= 1e-13
    assert rel_l2(states["state"][tokens[0]["state_indices"]], torch.from_numpy(expected_state)) <= 1e-13


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_fused_equals_its_chain(kernel: Kernel, dtype: str) -> None:
    inputs = kernel.make_inputs(case(dtype, heads=2, T=1), Generator(6))
    fused, chain = clone(inputs), clone(inputs)
    limit = {"fp32": 1e-6, "bf16": kernel.tolerance_of(case(dtype)).rel_l2}[dtype]
    assert rel_l2(kernel.variant("fused").call(**fused), kernel.variant("chain").call(**chain).double()) <= limit
    assert rel_l2(fused["state"], chain["state"].double()) <= limit
    assert bit_equal(fused["conv_state"], chain["conv_state"])


def test_fused_rounds_no_intermediate(kernel: Kernel) -> None:
    inputs = kernel.make_inputs(case("bf16"), Generator(7))
    expected = kernel.reference(**inputs)
    out = kernel.variant("fused").call(**inputs)
    assert rel_l2(inputs["state"], expected["state"]) <= 2e-6
    assert rel_l2(out, expected["out"].to(torch.bfloat16).double()) <= 2e-4  # a value near the middle may round the other way


def test_layouts_of_the_convolution_state_give_equal_bits(kernel: Kernel, call: Call) -> None:
    channel = kernel.make_inputs(case("bf16", heads=2, T=1), Generator(8))
    time = clone(channel)
    time["conv_state"] = time["conv_state"].mT.contiguous().mT
    assert channel["conv_state"].stride()[1:] == (3, 1)
    assert time["conv_state"].stride()[1:] == (1, 768)
    assert bit_equal(call(**channel), call(**time))
    assert all(bit_equal(channel[name], time[name]) for name in ("state", "conv_state"))


def test_layout_axis_is_the_layout_in_memory(kernel: Kernel, module: ModuleType) -> None:
    for strided in (0, 1):
        of = {layout: kernel.make_inputs(case(layout=layout, strided=strided), Generator(0, "meta"))["conv_state"] for layout in LAYOUTS}
        assert {"channel": False, "time": True} == {layout: module.is_time_major(conv_state) for layout, conv_state in of.items()}


# The steps of the chain


def test_recurrent_is_the_middle_of_the_chain(kernel: Kernel, module: ModuleType) -> None:
    inputs = kernel.make_inputs(case("bf16"), Generator(9))
    middle, chain = clone(inputs), clone(inputs)
    o = kernel.variant("recurrent").call(**middle)
    out = kernel.variant("chain").call(**chain)
    assert bit_equal(middle["state"], chain["state"])
    assert bit_equal(out, module.kda_gated_norm(o, inputs["g2"], inputs["norm_weight"], inputs["state_indices"]))


@pytest.mark.parametrize("heads", [1, 4], ids=["a block a program", "four blocks a program"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_conv_update_convolves_shifts_and_inserts(kernel: Kernel, module: ModuleType, layout: str, heads: int) -> None:
    inputs = kernel.make_inputs(case(layout=layout, heads=heads, T=3), Generator(10))
    x, state, weight, indices = (inputs[name] for name in ("mixed_qkv", "conv_state", "conv_weight", "state_indices"))
    older, untouched = state[indices].clone(), state[0].clone()
    assert {1: 1, 4: 4}[heads] == module.conv_blocks(3, heads)
    y = module.kda_conv_update(x, state, weight, indices)
    assert bit_equal(torch.cat([older[:, :, 1:], x[:, :, None]], dim=2), state[indices].contiguous())
    assert bit_equal(untouched, state[0])
    exact = torch.cat([older, x[:, :, None]], dim=2).double().mul(weight.double()).sum(2)
    assert rel_l2(y, exact * exact.sigmoid()) <= 1e-6


def test_convolution_state_may_be_stored_narrower(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(), Generator(11))
    inputs["conv_state"] = inputs["conv_state"].bfloat16()
    expected = kernel.reference(**inputs)
    assert rel_l2(call(**inputs), expected["out"]) <= 1e-6
    assert bit_equal(expected["conv_state"].float().bfloat16(), inputs["conv_state"])


@pytest.mark.parametrize("norm", ["kda_gated_norm", "kda_gated_norm_eager"])
def test_norm_comes_before_the_gate(module: ModuleType, norm: str) -> None:
    o = torch.full((2, 1, 128), 3.0)
    g2 = torch.linspace(-4, 4, 256).view(2, 1, 128)
    weight = torch.linspace(0.5, 1.5, 128)
    out = getattr(module, norm)(o, g2, weight, torch.tensor([4, 0], dtype=torch.int32))
    expected = 3 / (9 + 1e-5) ** 0.5 * weight.double() * g2[0, 0].double().sigmoid()
    assert rel_l2(out[0, 0], expected) <= 1e-6
    assert bit_equal(torch.zeros(1, 128), out[1])


@pytest.mark.parametrize("scale", [0.0, 1e-3], ids=["zero", "small"])
@pytest.mark.parametrize("part", [0, 1], ids=["query", "key"])
def test_norm_of_a_query_or_key_of_almost_nothing_is_bounded(kernel: Kernel, call: Call, part: int, scale: float) -> None:
    inputs = kernel.make_inputs(case(), Generator(3))
    channels = slice(part * 128, (part + 1) * 128)
    inputs["mixed_qkv"][..., channels] *= scale
    inputs["conv_state"][:, channels] *= scale
    expected = kernel.reference(**clone(inputs))
    output = call(**inputs)
    assert torch.isfinite(output).all()
    assert rel_l2(output, expected["out"]) < 1e-5
    assert rel_l2(inputs["state"], expected["state"]) < 1e-5


# Gates at their ends


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
@pytest.mark.parametrize(("raw_g", "decay"), [(1e4, float(np.exp(-5.0))), (-1e4, 1.0)], ids=["lower bound", "no decay"])
def test_decay_lies_between_its_bound_and_one(kernel: Kernel, call: Call, raw_g: float, decay: float) -> None:
    inputs = kernel.make_inputs(case(T=1), Generator(12))
    inputs["raw_g"].fill_(raw_g)
    inputs["raw_beta"].fill_(-200.0)  # beta 0: nothing is added
    slot = int(inputs["state_indices"][0])
    before = inputs["state"][slot].clone()
    call(**inputs)
    assert rel_l2(inputs["state"][slot], decay * before.double()) <= (2e-7 if decay < 1 else 0)


@pytest.mark.parametrize(("variant", "value"), [("fused", float("nan")), ("fused", float("inf")), ("chain", float("nan"))])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
def test_what_is_not_finite_stays_in_its_token_and_head(kernel: Kernel, variant: str, value: float) -> None:
    call = kernel.variant(variant).call
    inputs = kernel.make_inputs(case(heads=2), Generator(13))
    clean = clone(inputs)
    expected = call(**clean)
    inputs["mixed_qkv"][1, 3 * 128 + 5] = value  # a key of the second head
    out = call(**inputs)
    slot = int(inputs["state_indices"][1])
    assert out[1, 1].isnan().all()
    assert inputs["state"][slot, 1].isnan().any()
    out[1, 1], inputs["state"][slot, 1], inputs["conv_state"][slot, 3 * 128 + 5, 2] = (
        expected[1, 1],
        clean["state"][slot, 1],
        clean["conv_state"][slot, 3 * 128 + 5, 2],
    )
    assert bit_equal(expected, out)
    assert all(bit_equal(clean[name], inputs[name]) for name in ("state", "conv_state"))


SPOILED = {
    "infinity in the state": ("state", (1, 0, 3, 5), float("inf")),
    "minus infinity in the state": ("state", (1, 0, 3, 5), float("-inf")),
    "NaN in the state": ("state", (1, 0, 3, 5), float("nan")),
    "infinity in the older inputs": ("conv_state", (1, 2 * 256 + 1, 2), float("inf")),
    "infinity in a value": ("mixed_qkv", (0, 2 * 256 + 1), float("inf")),
    "minus infinity in a query": ("mixed_qkv", (0, 1), float("-inf")),
}


@pytest.mark.parametrize(("name", "where", "value"), SPOILED.values(), ids=SPOILED)
@pytest.mark.parametrize("variant", WHOLE_STEPS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
def test_head_with_an_infinity_shows_no_zeros(kernel: Kernel, variant: str, name: str, where: tuple[int, ...], value: float) -> None:
    inputs = kernel.make_inputs(case(heads=2), Generator(22))
    inputs["state_indices"].copy_(torch.tensor([1, 3]))
    inputs["conv_weight"].abs_()  # an infinity stays one: silu(-inf) is NaN
    clean = clone(inputs)
    finite = kernel.variant(variant).call(**clean)
    inputs[name][where] = value
    expected = kernel.reference(**inputs)
    out = kernel.variant(variant).call(**inputs)
    assert expected["out"][0, 0].isnan().all()
    assert bit_equal(expected["out"].isnan(), out.isnan())
    out[0, 0] = finite[0, 0]
    assert bit_equal(finite, out)
    assert bit_equal(expected["state"].isfinite(), inputs["state"].isfinite())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
def test_recurrent_spoils_the_outputs_that_the_formula_spoils(kernel: Kernel) -> None:
    inputs = kernel.make_inputs(case(heads=2), Generator(22))
    inputs["state"][int(inputs["state_indices"][0]), 0, 3, 5] = float("inf")
    expected = kernel.reference(**inputs)["o"].isfinite()
    assert 1 == int((~expected).sum())
    assert bit_equal(expected, kernel.variant("recurrent").call(**inputs).isfinite())


@pytest.mark.parametrize("norm", ["kda_gated_norm", "kda_gated_norm_eager"])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1e20])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
def test_norm_of_what_is_not_finite_is_nan_in_its_head_alone(module: ModuleType, norm: str, value: float) -> None:
    o = torch.ones(2, 2, 128)
    g2, weight, slots = torch.zeros(2, 2, 128), torch.ones(128), torch.tensor([1, 2], dtype=torch.int32)
    expected = getattr(module, norm)(o, g2, weight, slots)
    expected[1, 0] = float("nan")
    o[1, 0, 7] = value
    found = getattr(module, norm)(o, g2, weight, slots)
    assert bit_equal(expected.isnan(), found.isnan())
    assert bit_equal(expected.nan_to_num(), found.nan_to_num())


def test_norm_is_right_up_to_where_its_squares_overflow(module: ModuleType) -> None:
    o = torch.full((1, 1, 128), 1.6e18)
    slots = torch.tensor([1], dtype=torch.int32)
    for norm in (module.kda_gated_norm, module.kda_gated_norm_eager):
        assert rel_l2(norm(o, torch.zeros(1, 1, 128), torch.ones(128), slots), torch.full((1, 1, 128), 0.5).double()) <= 1e-6


# Tokens, slots, strides, layers


def test_padded_tokens_may_hold_anything_and_the_null_slot_too(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case("bf16", T=3, pad=2), Generator(14))
    padded = inputs["state_indices"] <= 0
    assert [0] == inputs["state_indices"][inputs["state_indices"] == 0].tolist()
    assert (inputs["state_indices"] < 0).any()
    clean = clone(inputs)
    expected = call(**clean)
    for name in ("mixed_qkv", "g2"):
        inputs[name][padded] = float("nan")
    for name in ("raw_g", "raw_beta"):
        inputs[name][:, padded] = float("nan")
    for name in ("state", "conv_state"):
        inputs[name][0] = float("nan")
    before = clone(inputs)
    assert bit_equal(expected, call(**inputs))
    for name in ("state", "conv_state"):
        assert bit_equal(before[name][0], inputs[name][0])
        assert bit_equal(clean[name][1:].contiguous(), inputs[name][1:].contiguous())


def test_token_does_not_depend_on_the_tokens_beside_it(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(), Generator(15))
    together, alone = clone(inputs), clone(inputs)
    out = call(**together)
    one = {name: alone[name][1:2] for name in ("mixed_qkv", "g2", "state_indices")}
    one |= {name: alone[name][:, 1:2] for name in ("raw_g", "raw_beta")}
    assert bit_equal(out[1:2], call(**{**alone, **one}))
    slot = int(inputs["state_indices"][1])
    assert all(bit_equal(alone[name][slot], together[name][slot]) for name in ("state", "conv_state"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strided_inputs_equal_contiguous_ones_and_gaps_are_left_alone(kernel: Kernel, call: Call, layout: str) -> None:
    inputs = kernel.make_inputs(case("bf16", layout=layout), Generator(16))
    apart = clone(inputs)
    axis_of = {"mixed_qkv": 0, "g2": 0, "raw_g": 1, "raw_beta": 1, "state": 0, "conv_state": 0}
    for name, axis in axis_of.items():
        stride = list(apart[name].stride())
        stride[axis] += 24
        apart[name] = restride(apart[name], tuple(stride))
    assert bit_equal(call(**inputs), call(**apart))
    for name in ("state", "conv_state"):
        assert bit_equal(inputs[name], apart[name])
        gaps = torch.tensor(apart[name].untyped_storage().nbytes() // apart[name].element_size() - apart[name].numel())
        whole = apart[name].as_strided((apart[name].numel() + int(gaps),), (1,))
        assert int(gaps) == int(whole.isnan().sum())


def test_slot_and_token_may_start_past_two_to_the_31_elements(kernel: Kernel, call: Call) -> None:
    # The pages in between are never touched, so they take no memory. A 32-bit product of index and stride would fault.
    inputs = kernel.make_inputs(case("bf16"), Generator(17))
    far = clone(inputs)
    far["state_indices"].copy_(torch.tensor([1, 3]))
    inputs["state_indices"].copy_(torch.tensor([1, 3]))
    for name, axis, stride in (
        ("state", 0, 2**30),
        ("conv_state", 0, 2**30),
        ("mixed_qkv", 0, 2**31),
        ("g2", 0, 2**31),
        ("raw_g", 1, 2**31),
    ):
        strides = list(far[name].stride())
        strides[axis] = stride
        size = 1 + sum((n - 1) * s for n, s in zip(far[name].shape, strides, strict=True))
        far[name] = torch.empty(size, dtype=far[name].dtype).as_strided(far[name].shape, strides).copy_(far[name])
    assert bit_equal(call(**inputs), call(**far))
    assert all(bit_equal(inputs[name], far[name]) for name in ("state", "conv_state"))


@pytest.mark.parametrize("variant", [*WHOLE_STEPS, "recurrent"])
def test_no_tokens_give_no_tokens(kernel: Kernel, variant: str) -> None:
    inputs = kernel.make_inputs(case(heads=2), Generator(18))
    none = {name: inputs[name][:0] for name in ("mixed_qkv", "convolved", "g2", "state_indices")}
    none |= {name: inputs[name][:, :0] for name in ("raw_g", "raw_beta")}
    before = clone(inputs)
    assert (0, 2, 128) == kernel.variant(variant).call(**{**inputs, **none}).shape
    assert all(bit_equal(before[name], inputs[name]) for name in ("state", "conv_state"))


@pytest.mark.parametrize("variant", ["fused", "recurrent", "chain_eager_norm"])
def test_layers_are_independent_steps_with_the_same_slots(kernel: Kernel, variant: str) -> None:
    inputs = kernel.make_inputs(case("bf16", layers=2, T=1), Generator(19))
    whole, call = clone(inputs), kernel.variant(variant).call
    out = call(**whole)
    assert (2, 1, 1, 128) == out.shape
    for layer in range(2):
        one = {name: value if name == "state_indices" else value[layer] for name, value in clone(inputs).items()}
        one |= {name: inputs[name][:, layer] for name in ("state", "conv_state")}
        assert bit_equal(out[layer], call(**one))
        assert all(bit_equal(whole[name][:, layer].contiguous(), one[name].contiguous()) for name in ("state", "conv_state"))


# Launches

PROBE = """
import json, sys
from harness.authoring.model import Case
from harness.devices.table import load_devices
from harness.measure.static import compile_static
from harness.measure.subject import Subject
from kernels.kda_decode import KERNEL
kernel, found = KERNEL.named("kda_decode"), {}
for variant in kernel.variants:
    for key in sys.argv[1:]:
        readings = compile_static(Subject(kernel, variant, kernel.case(key), load_devices()["h200"], "meta"))
        found[f"{variant} {key}"] = {r.metric: r.value for r in readings}
print(json.dumps(found))
"""


@pytest.mark.slow
def test_fused_is_one_launch_a_layer_and_the_chain_three_and_none_spills(tmp_path: Path) -> None:
    one, two = "T=2,heads=2,dtype=bf16", "T=1,heads=1,layers=2,dtype=bf16"
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROBE, one, two], env=env, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    launches = {"fused": 1, "recurrent": 1, "chain": 3, "chain_eager_norm": 2}
    expected = {f"{variant} {key}": n * count for variant, count in launches.items() for key, n in ((one, 1), (two, 2))}
    assert expected == {cell: values["kernel_launches"] for cell, values in found.items()}
    assert {0} == {values["spill_bytes"] for values in found.values()}


# Drift


def rounding_error(kernel: Kernel, module: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, steps: int) -> float:
    """The worst relative L2 error of the reference's state where the convolved q, k and v are rounded at every step."""
    exact = module.convolve
    generator, one = Generator(20), case("bf16", heads=2, T=1)
    inputs = kernel.make_inputs(one, generator)
    index = inputs["state_indices"]
    right = rounded = inputs["state"].double()
    worst = 0.0
    for step in range(steps):
        if step:
            inputs.update(drift_of(kernel).step_inputs(one, generator))
        monkeypatch.setattr(module, "convolve", lambda *given: exact(*given).to(dtype).double())
        rounded = kernel.reference(**{**inputs, "state": rounded})["state"]
        monkeypatch.setattr(module, "convolve", exact)
        found = kernel.reference(**{**inputs, "state": right})
        right, inputs["conv_state"] = found["state"], found["conv_state"].bfloat16()
        worst = max(worst, rel_l2(rounded[index], right[index]))
    return worst


def test_drift_allows_three_times_what_rounding_the_chain_gives(
    kernel: Kernel, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = rounding_error(kernel, module, monkeypatch, torch.bfloat16, steps=60)
    assert 2.5 * error <= drift_of(kernel).tolerance["bf16"].rel_l2 <= 4 * error


# Refusals


def given() -> dict[str, torch.Tensor]:
    """Arguments of two tokens of three heads that every step takes."""
    return {
        "mixed_qkv": torch.zeros(2, 1152),
        "conv_state": torch.zeros(4, 1152, 3),
        "conv_weight": torch.zeros(1152, 4),
        "raw_g": torch.zeros(1, 2, 3, 128),
        "raw_beta": torch.zeros(1, 2, 3),
        "A_log": torch.zeros(3),
        "dt_bias": torch.zeros(384),
        "state": torch.zeros(4, 3, 128, 128),
        "state_indices": torch.tensor([-1, 0], dtype=torch.int32),
        "g2": torch.zeros(2, 3, 128),
        "norm_weight": torch.zeros(128),
    }


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "width of no heads": ({"mixed_qkv": torch.zeros(2, 1151)}, r"mixed_qkv has shape \(2, 1151\).*3\*heads\*128"),
    "no columns": ({"mixed_qkv": torch.zeros(2, 0)}, r"mixed_qkv has shape \(2, 0\)"),
    "one axis of mixed_qkv": ({"mixed_qkv": torch.zeros(1152)}, r"mixed_qkv has shape \(1152,\)"),
    "dtype of mixed_qkv": ({"mixed_qkv": torch.zeros(2, 1152).double()}, "the dtype is torch.float64"),
    "columns of mixed_qkv that lie apart": ({"mixed_qkv": torch.zeros(2, 2304)[:, ::2]}, "mixed_qkv has strides"),
    "dtype of raw_g": ({"raw_g": torch.zeros(1, 2, 3, 128).half()}, "raw_g has .*float16.*give .* of torch.float32"),
    "shape of raw_g": ({"raw_g": torch.zeros(2, 3, 128)}, r"raw_g has shape \(2, 3, 128\).*give \(1, 2, 3, 128\)"),
    "heads of raw_g that lie apart": ({"raw_g": torch.zeros(1, 2, 3, 192)[..., :128]}, "raw_g has strides.*only tokens may lie apart"),
    "heads of g2 that lie apart": ({"g2": torch.zeros(2, 3, 192)[..., :128]}, "g2 has strides.*only tokens may lie apart"),
    "shape of raw_beta": ({"raw_beta": torch.zeros(1, 2, 4)}, r"raw_beta has shape \(1, 2, 4\).*give \(1, 2, 3\)"),
    "dtype of A_log": ({"A_log": torch.zeros(3).bfloat16()}, "A_log has .*bfloat16"),
    "length of dt_bias": ({"dt_bias": torch.zeros(3)}, r"dt_bias has shape \(3,\).*give \(384,\)"),
    "gaps in conv_weight": ({"conv_weight": torch.zeros(1152, 8)[:, :4]}, "conv_weight has strides.*contiguous"),
    "width of the convolution": ({"conv_weight": torch.zeros(1152, 3)}, r"conv_weight has shape \(1152, 3\)"),
    "dtype of state": ({"state": torch.zeros(4, 3, 128, 128).half()}, "state has .*float16"),
    "axes of state": ({"state": torch.zeros(4, 3, 128)}, r"state has shape \(4, 3, 128\).*slots, 3, 128, 128"),
    "state transposed": ({"state": torch.zeros(4, 3, 128, 128).mT}, "state has strides"),
    "heads of state that lie apart": ({"state": torch.zeros(4, 6, 128, 128)[:, ::2]}, "state has strides.*each slot must be dense"),
    "slots that overlap": ({"state": torch.zeros(1, 3, 128, 128).expand(4, 3, 128, 128)}, "state has strides.*each slot must be dense"),
    "axes of conv_state": ({"conv_state": torch.zeros(1152, 3)}, r"conv_state has shape \(1152, 3\).*slots, 1152, 3"),
    "older inputs that lie apart": ({"conv_state": torch.zeros(4, 1152, 4)[..., 1:]}, "conv_state has strides.*each slot must be dense"),
    "times that lie apart": ({"conv_state": torch.zeros(4, 3, 1200)[..., :1152].mT}, "conv_state has strides.*each slot must be dense"),
    "width of conv_state": ({"conv_state": torch.zeros(4, 1152, 4)}, r"conv_state has shape \(4, 1152, 4\)"),
    "dtype of state_indices": ({"state_indices": torch.tensor([1, 2])}, "state_indices has .*int64.*int32"),
    "length of state_indices": ({"state_indices": torch.zeros(3, dtype=torch.int32)}, r"state_indices has shape \(3,\)"),
    "length of norm_weight": ({"norm_weight": torch.zeros(384)}, r"norm_weight has shape \(384,\).*give \(128,\)"),
    "another device": ({"norm_weight": torch.zeros(128, device="meta")}, "norm_weight is on meta"),
    "gaps in out": ({"out": torch.zeros(2, 3, 192)[..., :128]}, "out has strides.*contiguous"),
}


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refuses(module: ModuleType, change: dict[str, Any], message: str) -> None:
    for launch in (module.kda_decode, module.kda_decode_chain):
        with pytest.raises(ValueError, match=f"kda_decode: .*{message}"):
            launch(**{**given(), **change})


@pytest.mark.parametrize("variant", WHOLE_STEPS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("name", "slots"), [("conv_state", 2), ("state", 2), ("conv_state", 5)])
def test_states_of_different_slots_are_refused_and_left_alone(kernel: Kernel, variant: str, layers: int, name: str, slots: int) -> None:
    inputs = kernel.make_inputs(case(layers=layers), Generator(23))
    inputs[name] = torch.zeros(slots, *inputs[name].shape[1:])
    before = clone(inputs)
    found = {other: len(inputs[other]) for other in ("conv_state", "state")}
    with pytest.raises(ValueError, match=f"kda_decode: conv_state has {found['conv_state']} slots, state {found['state']}: give"):
        kernel.variant(variant).call(**inputs)
    assert all(bit_equal(before[other], inputs[other]) for other in found)


def test_arguments_of_which_one_is_refused_are_right_otherwise(module: ModuleType) -> None:
    assert bit_equal(torch.zeros(2, 3, 128), module.kda_decode(**given()))
    assert bit_equal(torch.zeros(2, 3, 128), module.kda_decode_chain(**given()))


def test_norm_refuses_what_is_no_head(module: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"kda_decode: o has shape \(2, 384\)"):
        module.kda_gated_norm(torch.zeros(2, 384), torch.zeros(2, 3, 128), torch.zeros(128), torch.zeros(2, dtype=torch.int32))


# Cost model


def test_traffic_is_the_sum_of_what_live_tokens_touch(kernel: Kernel) -> None:
    for one in kernel.cases:
        inputs = kernel.make_inputs(one, Generator(0, "meta"))
        size = {name: value.numel() * value.element_size() for name, value in inputs.items()}
        live = one.T - one.pad
        states = (size["state"] + size["conv_state"]) // (one.T + 2) * live
        tokens = sum(size[name] for name in ("mixed_qkv", "raw_g", "raw_beta", "g2")) // one.T * live
        weights = sum(size[name] for name in ("conv_weight", "A_log", "dt_bias", "norm_weight", "state_indices"))
        found = kernel.traffic(one)
        assert (tokens + states + weights, states + size["g2"]) == (found.read_bytes, found.written_bytes), one.key


def test_traffic_of_the_recurrent_step_leaves_out_what_it_does_not_touch(kernel: Kernel) -> None:
    for one in filter(kernel.variant("recurrent").cases, kernel.cases):
        inputs = kernel.make_inputs(one, Generator(0, "meta"))
        size = {name: value.numel() * value.element_size() for name, value in inputs.items()}
        live = one.T - one.pad
        states = size["state"] // (one.T + 2) * live
        tokens = sum(size[name] for name in ("convolved", "raw_g", "raw_beta")) // one.T * live
        weights = sum(size[name] for name in ("A_log", "dt_bias", "state_indices"))
        found = kernel.traffic_of("recurrent", one)
        assert (tokens + states + weights, states + size["g2"]) == (found.read_bytes, found.written_bytes), one.key
    whole = kernel.case("T=1,heads=12,dtype=bf16")
    assert 1.083 == pytest.approx(kernel.traffic(whole).total / kernel.traffic_of("recurrent", whole).total, abs=1e-3)
    assert {kernel.traffic(whole)} == {kernel.traffic_of(variant, whole) for variant in WHOLE_STEPS}


def test_activations_are_what_the_variant_reads(kernel: Kernel) -> None:
    one = kernel.case("T=1,heads=12,dtype=bf16")
    layout = kernel.make_inputs(one, Generator(0, "meta"))
    found = {v: set(activations_of(Subject(kernel, v, one, load_devices()["h200"], "cuda"), layout)) for v in kernel.variants}
    whole = {"mixed_qkv", "raw_g", "raw_beta", "g2"}
    assert {**dict.fromkeys(WHOLE_STEPS, whole), "recurrent": {"convolved", "raw_g", "raw_beta"}} == found


def test_state_bytes_and_flops_count_live_tokens_and_layers(kernel: Kernel) -> None:
    values = {
        "T=128,heads=12,dtype=bf16": 128 * 12 * 128 * 128,
        "T=32,heads=12,pad=5,dtype=bf16": 27 * 12 * 128 * 128,
        "T=1,heads=12,layers=69,dtype=bf16": 69 * 12 * 128 * 128,
    }
    for key, count in values.items():
        assert (4 * 2 * count, 7 * count) == (kernel.other_traffic["state"](kernel.case(key)), kernel.flops(kernel.case(key)))


# Launch plan

PLANS = {
    "one token of 12 heads": (1, 12, {"small": (1, 16, 1, 2), "large": (1, 4, 1, 2), "wave64": (1, 8, 1, 4)}),
    "32 tokens of 12 heads": (32, 12, {"small": (2, 16, 4, 4), "large": (2, 16, 1, 2), "wave64": (1, 32, 1, 4)}),
    "128 tokens of 96 heads": (128, 96, {"small": (2, 16, 4, 8), "large": (2, 16, 4, 8), "wave64": (2, 32, 4, 8)}),
    "heads that four blocks do not divide": (128, 5, {"small": (2, 16, 1, 8), "large": (2, 16, 1, 2), "wave64": (2, 32, 1, 4)}),
}


@pytest.mark.parametrize(("tokens", "heads", "expected"), PLANS.values(), ids=PLANS)
def test_plan(module: ModuleType, tokens: int, heads: int, expected: dict[str, tuple[int, ...]]) -> None:
    found = {}
    for name, gpu in GPUS.items():
        with pretend(gpu):
            rows = tokens * heads
            found[name] = (module.state_halves(rows), module.value_tile(rows), module.conv_blocks(tokens, heads), module.norm_rows(rows))
    assert expected == found


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_program_of_a_whole_head_has_a_lane_a_channel(module: ModuleType, gpu: DeviceProperties) -> None:
    with pretend(gpu):
        assert 128 == module.whole_head_warps() * gpu.warp_size


# The cases


def test_peers_are_both_widths_at_all_batches(kernel: Kernel) -> None:
    peers = [(c.heads, c.T, c.layout, c.dtype) for c in kernel.cases if "peers" in c.tags]
    assert [(heads, T, "channel", "bf16") for heads in (12, 96) for T in (1, 8, 32, 64, 128)] == peers


def test_three_cases_are_headline(kernel: Kernel) -> None:
    assert [(12, 1), (12, 32), (96, 128)] == [(c.heads, c.T) for c in kernel.cases if "headline" in c.tags]


def test_production_steps_have_69_layers(kernel: Kernel) -> None:
    found = sorted((c.heads, c.T) for c in kernel.cases if c.layers == 69)
    assert [(12, 1), (12, 32), (12, 128), (96, 1), (96, 8), (96, 128)] == found
    largest = kernel.make_inputs(kernel.case("T=128,heads=12,layers=69,dtype=bf16"), Generator(0, "meta"))["state"]
    assert 0.102e9 < largest.numel() * 4 / 69 < 0.11e9


def test_cpu_cases_cover_every_option_and_are_small_enough(kernel: Kernel, module: ModuleType) -> None:
    cpu = [c for c in kernel.cases if "cpu" in c.tags]
    assert {"fp32", "fp16", "bf16"} == {c.dtype for c in cpu}
    for axis, values in {"layout": set(LAYOUTS), "layers": {1, 2}, "strided": {0, 1}}.items():
        assert values == {c.axes[axis] for c in cpu}
    assert any(0 < c.pad < c.T for c in cpu)
    assert any(c.pad == c.T for c in cpu)
    assert any("ragged" in c.tags for c in cpu)
    for c in cpu:
        rows = c.layers * c.T * c.heads
        chain = 3 * rows + rows * 128 // module.value_tile(c.T * c.heads) + rows
        assert (rows if "drift" in c.tags else chain) <= (4 if "drift" in c.tags else 200), c.key


def test_drift_cases_are_whole_steps_on_cpu_and_at_model_size(kernel: Kernel) -> None:
    drift = [c for c in kernel.cases if "drift" in c.tags]
    assert [("bf16", False), ("bf16", True), ("fp32", False), ("fp32", True)] == sorted((c.dtype, "model" in c.tags) for c in drift)
    for c in drift:
        covering = [name for name in kernel.variants if kernel.variant(name).cases(c)]
        assert (["fused"] if "cpu" in c.tags else list(WHOLE_STEPS)) == covering


def test_decay_of_the_inputs_is_that_of_trained_layers(kernel: Kernel) -> None:
    inputs = kernel.make_inputs(kernel.case("T=32,heads=12,pad=5,dtype=bf16"), Generator(21))
    gate = inputs["A_log"].double().exp()[:, None] * (inputs["raw_g"][0].double() + inputs["dt_bias"].double().unflatten(0, (12, 128)))
    decay = torch.exp(-5 * gate.sigmoid())
    low, middle, high = np.quantile(decay.numpy(), [0.01, 0.5, 0.99])
    assert 0.05 < low < 0.3
    assert 0.88 < middle < 0.94
    assert 0.999 < high < 1


def test_meta_inputs_have_the_shapes_strides_and_dtypes_of_real_ones(kernel: Kernel) -> None:
    for one in kernel.cases:
        if "cpu" in one.tags:
            real, meta = (kernel.make_inputs(one, Generator(0, device)) for device in ("cpu", "meta"))
            assert list(real) == list(meta)
            for name, value in real.items():
                found = meta[name]
                assert (value.shape, value.stride(), value.dtype) == (found.shape, found.stride(), found.dtype), (one.key, name)
