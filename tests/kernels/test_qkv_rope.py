from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from kernel_testing import GPUS, clone, rel_l2, same_bits

from harness import Case, DeviceProperties, Kernel
from harness.devices.properties import pretend
from harness.measure.data import Generator, torch_dtype

KERNEL_NAME = "qkv_rope"
LAYER_VARIANTS = ("fused", "gemv_then_rope", "torch")
ROPE_VARIANTS = ("rope", "torch")

Call = Callable[..., tuple[Any, ...]]


@pytest.fixture(params=LAYER_VARIANTS)
def layer(kernel: Kernel, request: pytest.FixtureRequest) -> Call:
    """A variant of the whole layer: what holds for one holds for the others."""
    return kernel.variant(request.param).call


@pytest.fixture(params=ROPE_VARIANTS)
def turn(kernel: Kernel, request: pytest.FixtureRequest) -> Call:
    """A variant of the rotation alone."""
    return kernel.variant(request.param).call


def case(dtype: str = "fp32", **axes: Any) -> Case:
    full = {"M": 2, "K": 24, "Hq": 2, "Hkv": 1, "Dh": 16, "rot": 8, "form": "gated", "table": "fp32", "strided": 0, **axes}
    return Case(dtype=dtype, **full)


# Right on every case


def test_result_is_within_tolerance_and_only_declared_inputs_change(kernel: Kernel, cpu_cell: tuple[str, Case]) -> None:
    variant_name, case = cpu_cell
    inputs = kernel.make_inputs(case, Generator(2))
    before = clone(inputs)
    expected = kernel.reference(**inputs)
    assert all(same_bits(before[name], value) for name, value in inputs.items() if isinstance(value, torch.Tensor))
    variant = kernel.variant(variant_name)
    results = dict(zip(variant.outputs or (), variant.call(**inputs), strict=True))
    for name, actual in results.items():
        if expected[name] is None:
            assert actual is None
        else:
            assert (expected[name].shape, torch_dtype(case.dtype)) == (actual.shape, actual.dtype)
            assert rel_l2(actual, expected[name]) <= kernel.tolerance_of(case).limit(name), name
    changed = [n for n, value in inputs.items() if isinstance(value, torch.Tensor) and not same_bits(before[n], value)]
    assert (["q", "k"] if case.K == 0 else []) == changed
    assert all(results[name] is inputs[name] for name in changed)


# The formula


def naive_turn(head: np.ndarray, position: int, inv_freq: np.ndarray) -> np.ndarray:
    """One head, turned as complex numbers whose real parts are the first half of the rotary dimensions."""
    half = len(inv_freq)
    angle = (np.float32(position) * inv_freq).astype(np.float64)
    turned = (head[:half] + 1j * head[half : 2 * half]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag, head[2 * half :]])


def naive_layer(inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Token by token and head by head, in fp64."""
    x, weight = (inputs[name].double().numpy() for name in ("x", "weight"))
    Hq, Hkv, inv_freq = inputs["Hq"], inputs["Hkv"], inputs["inv_freq"].numpy()
    norms = {name: None if inputs[f"{name}_norm"] is None else inputs[f"{name}_norm"].double().numpy() for name in ("q", "k")}
    heads = Hq * (1 if norms["q"] is None else 2) + 2 * Hkv
    names = ["q"] * Hq if norms["q"] is None else ["q", "gate"] * Hq
    found: dict[str, list[list[np.ndarray]]] = {name: [[] for _ in x] for name in ("q", "k", "v", "gate")}
    for m, token in enumerate(x):
        for name, rows in zip([*names, *["k"] * Hkv, *["v"] * Hkv], np.split(weight, heads), strict=True):
            head = rows @ token
            if name in norms:
                if norms[name] is not None:
                    head = head / np.sqrt(np.mean(head**2) + 1e-6) * (1 + norms[name])
                head = naive_turn(head, int(inputs["positions"][m]), inv_freq)
            found[name][m].append(head)
    return {name: np.array(value) for name, value in found.items() if value[0]}


@pytest.mark.parametrize("form", ["plain", "gated"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_layer_is_the_naive_formula(kernel: Kernel, layer: Call, form: str, tokens: int) -> None:
    inputs = kernel.make_inputs(case(M=tokens, form=form), Generator(3))
    expected = naive_layer(inputs)
    reference = kernel.reference(**inputs)
    for name, actual in zip(kernel.outputs, layer(**inputs), strict=True):
        if name in expected:
            assert rel_l2(reference[name], torch.from_numpy(expected[name])) <= 1e-14
            assert rel_l2(actual, torch.from_numpy(expected[name])) <= 1e-6
        else:
            assert (None, None) == (reference[name], actual)


def test_rotation_alone_is_multiplication_by_a_complex_number(kernel: Kernel, turn: Call) -> None:
    inputs = kernel.make_inputs(case(M=6, K=0, form="plain"), Generator(4))
    inv_freq = inputs["inv_freq"].numpy()
    expected = {
        name: np.array(
            [[naive_turn(head, int(p), inv_freq) for head in token] for token, p in zip(heads, inputs["positions"], strict=True)]
        )
        for name, heads in (("q", inputs["q"].double().numpy()), ("k", inputs["k"].double().numpy()))
    }
    q, k = turn(**inputs)[:2]
    assert rel_l2(q, torch.from_numpy(expected["q"])) <= 1e-7
    assert rel_l2(k, torch.from_numpy(expected["k"])) <= 1e-7


def test_norm_comes_before_the_rotation(kernel: Kernel, layer: Call) -> None:
    inputs = kernel.make_inputs(case(M=2, Hq=1, K=8), Generator(5))
    q = layer(**inputs)[0]
    still = layer(**{**inputs, "positions": torch.zeros(2, dtype=torch.int64)})[0].clone()
    weightless = {**inputs, "q_norm": torch.zeros(16), "k_norm": torch.zeros(16)}
    turned_first = layer(**weightless)[0] * (1 + inputs["q_norm"])
    kernel.variant("torch").call(q=still, k=torch.zeros(2, 1, 16), **{n: inputs[n] for n in ("positions", "inv_freq", "table")})
    assert rel_l2(q, still) <= 1e-6
    assert rel_l2(q, turned_first) > 0.01


def test_eps_is_inside_the_root_of_the_norm(kernel: Kernel, layer: Call) -> None:
    inputs = kernel.make_inputs(case(M=1, Hq=1), Generator(6))
    inputs.update(weight=torch.full_like(inputs["weight"], 1e-3), x=torch.zeros(1, 24), positions=torch.zeros(1, dtype=torch.int64))
    inputs["x"][0, 0] = 1.0
    q = layer(**inputs)[0][0, 0]
    assert torch.allclose(1e-3 / (2e-6) ** 0.5 * (1 + inputs["q_norm"]), q, rtol=1e-5)


@pytest.mark.parametrize("form", ["plain", "gated"])
def test_what_does_not_turn_is_the_product_and_depends_on_no_position(kernel: Kernel, layer: Call, form: str) -> None:
    inputs = kernel.make_inputs(case(M=2, form=form, K=16), Generator(7))
    at_zero = {**inputs, "positions": torch.zeros(2, dtype=torch.int64)}
    if form == "gated":
        at_zero.update(q_norm=torch.zeros(16), k_norm=torch.zeros(16))
    q, k, v, gate = layer(**inputs)
    q0, k0, v0, gate0 = layer(**at_zero)
    assert same_bits(v0, v)
    product = inputs["x"] @ inputs["weight"].T
    assert rel_l2(v, product[:, -16:].unflatten(1, (1, 16))) <= 1e-6
    if form == "gated":
        assert same_bits(gate0, gate)
        assert rel_l2(gate, product[:, :64].unflatten(1, (2, 2, 16))[:, :, 1]) <= 1e-6
    else:
        assert same_bits(q0[..., 8:], q[..., 8:])
        assert same_bits(k0[..., 8:], k[..., 8:])
        assert not same_bits(q0[..., :8], q[..., :8])


# The rotation


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_dimensions_beyond_rot_stay_and_position_zero_turns_nothing(kernel: Kernel, turn: Call, dtype: str) -> None:
    inputs = kernel.make_inputs(case(dtype, M=3, K=0, form="plain"), Generator(8))
    inputs["positions"][1] = 0
    before = clone(inputs)
    turn(**inputs)
    for name in ("q", "k"):
        assert same_bits(before[name][..., 8:], inputs[name][..., 8:])
        assert same_bits(before[name][1], inputs[name][1])
        assert (before[name][2, :, :8] != inputs[name][2, :, :8]).any()


def table_of(turn: Call, positions: torch.Tensor, inv_freq: torch.Tensor, table: str = "fp32") -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin (M, rot/2) as a variant computes them: what it makes of the unit vectors."""
    half = len(inv_freq)
    q = torch.zeros(len(positions), 1, 2 * half)
    q[..., :half] = 1.0
    turn(q=q, k=q[:, :, :].clone(), positions=positions, inv_freq=inv_freq, table=table)
    return q[:, 0, :half], q[:, 0, half:]


def model_frequencies() -> torch.Tensor:
    return torch.pow(1e7, -torch.arange(0, 64, 2, dtype=torch.float64) / 64).float()


ANGLES = {
    "the model's, near the last position": (torch.arange(262_144 - 32, 262_144), model_frequencies()),
    "the model's, at powers of two": (2 ** torch.arange(19), model_frequencies()),
    "many": (torch.tensor([1, 262_143, 200_001]), torch.linspace(0.001, 1, 2048)),
    "multiples of pi/2 as near as fp32 has them": (torch.ones(1, dtype=torch.int64), (torch.arange(1, 2049) * 64 * (np.pi / 2)).float()),
    "four million": (torch.tensor([4_000_000]), torch.linspace(0.5, 1, 1024)),
}


@pytest.mark.parametrize(("positions", "inv_freq"), ANGLES.values(), ids=ANGLES)
def test_cos_and_sin_are_right_to_fp32_at_any_position(turn: Call, positions: torch.Tensor, inv_freq: torch.Tensor) -> None:
    angle = (positions.float()[:, None] * inv_freq).double()
    cos, sin = table_of(turn, positions, inv_freq)
    assert (cos.double() - angle.cos()).abs().max() <= 1.7 * 2**-24
    assert (sin.double() - angle.sin()).abs().max() <= 1.7 * 2**-24


def test_bf16_table_is_the_fp32_one_rounded(turn: Call) -> None:
    positions, inv_freq = torch.arange(100_000, 100_032), model_frequencies()
    angle = (positions.float()[:, None] * inv_freq).double()
    cos, sin = table_of(turn, positions, inv_freq, "bf16")
    assert torch.equal(angle.cos().float().bfloat16().float(), cos)
    assert torch.equal(angle.sin().float().bfloat16().float(), sin)


def test_bf16_table_is_used_by_the_layer(kernel: Kernel, layer: Call) -> None:
    for tokens, form in ((1, "plain"), (2, "gated")):
        inputs = kernel.make_inputs(case(M=tokens, form=form, Hq=1, K=8, table="bf16"), Generator(9))
        assert rel_l2(layer(**inputs)[0], kernel.reference(**inputs)["q"]) <= 1e-6
        assert 1e-4 < rel_l2(layer(**{**inputs, "table": "fp32"})[0], kernel.reference(**inputs)["q"]) < 5e-3


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_rotation_is_rounded_to_nearest_once(kernel: Kernel, turn: Call, dtype: str) -> None:
    inputs = kernel.make_inputs(case(dtype, M=3, K=0, form="plain"), Generator(10))
    exact = {**clone(inputs), "q": inputs["q"].float(), "k": inputs["k"].float()}
    turn(**exact)
    turn(**inputs)
    assert same_bits(exact["q"].to(torch_dtype(dtype)), inputs["q"])
    assert same_bits(exact["k"].to(torch_dtype(dtype)), inputs["k"])


def with_positions(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {**clone(inputs), "positions": inputs["positions"].to(dtype)}


@pytest.mark.parametrize("form", ["plain", "gated"])
def test_layer_takes_positions_as_int32_or_int64(kernel: Kernel, layer: Call, form: str) -> None:
    inputs = kernel.make_inputs(case(M=2, K=8, Hq=1, form=form), Generator(11))
    assert same_bits(*(layer(**with_positions(inputs, dtype))[0] for dtype in (torch.int64, torch.int32)))


def test_rotation_takes_positions_as_int32_or_int64(kernel: Kernel, turn: Call) -> None:
    inputs = kernel.make_inputs(case(K=0, form="plain"), Generator(11))
    assert same_bits(*(turn(**with_positions(inputs, dtype))[0] for dtype in (torch.int64, torch.int32)))


SEVERAL_TILES = {"tiles that divide": (5, 6, 2), "a tile too many": (6, 4, 2), "one head a tile": (9, 3, 1)}


@pytest.mark.parametrize(("tokens", "Hq", "Hkv"), SEVERAL_TILES.values(), ids=SEVERAL_TILES)
def test_several_tiles_of_heads_a_program_are_one_each(kernel: Kernel, module: ModuleType, tokens: int, Hq: int, Hkv: int) -> None:
    busy = DeviceProperties("cuda", 1, 65_536, 32, 1 << 20)
    inputs = kernel.make_inputs(case(M=tokens, K=0, Hq=Hq, Hkv=Hkv, Dh=128, rot=128, form="plain"), Generator(12))
    one, several = clone(inputs), clone(inputs)
    module.rope(**one)
    with pretend(busy):
        assert 2 == module.plan_rope(tokens, Hq, Hkv, 64, 4, busy).tiles
        module.rope(**several)
    assert same_bits(one["q"], several["q"])
    assert same_bits(one["k"], several["k"])


# Rows and memory


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("form", ["plain", "gated"])
def test_what_is_not_finite_stays_in_its_token(kernel: Kernel, layer: Call, form: str, bad: float) -> None:
    inputs = kernel.make_inputs(case(M=3, form=form), Generator(13))
    clean = layer(**inputs)
    inputs["x"][1, 23] = bad
    for before, after in zip(clean, layer(**inputs), strict=True):
        if before is not None:
            assert not after[1].isfinite().any()
            assert torch.equal(before[::2], after[::2])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize(("form", "spoiled"), [("plain", [1, 5]), ("gated", list(range(16)))], ids=["plain", "gated"])
def test_nan_in_a_row_of_the_weight_spoils_what_is_made_of_it(
    kernel: Kernel, layer: Call, form: str, spoiled: list[int], tokens: int
) -> None:
    inputs = kernel.make_inputs(case(M=tokens, form=form), Generator(14))
    inputs["weight"][1, 3] = float("nan")
    q, k, v, gate = layer(**inputs)
    assert [spoiled] * tokens == [token.isnan().nonzero().flatten().tolist() for token in q[:, 0]]
    assert not any(part.isnan().any() for part in (q[:, 1], k, v, *([] if gate is None else [gate])))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what IEEE defines
def test_nan_spoils_its_rotary_pair_alone(kernel: Kernel, turn: Call) -> None:
    inputs = kernel.make_inputs(case(M=3, K=0, form="plain"), Generator(15))
    inputs["q"][1, 1, 2] = float("nan")
    inputs["q"][2, 0, 9] = float("nan")
    turn(**inputs)
    assert [[1, 1, 2], [1, 1, 6], [2, 0, 9]] == inputs["q"].isnan().nonzero().tolist()
    assert not inputs["k"].isnan().any()


@pytest.mark.parametrize("tokens", [1, 3])
def test_strided_rows_equal_contiguous_ones_and_the_padding_is_not_read(kernel: Kernel, layer: Call, tokens: int) -> None:
    inputs = kernel.make_inputs(case(M=tokens, Hq=1), Generator(16))
    wide = clone(inputs)
    for name in ("x", "weight"):
        rows = len(wide[name])
        wide[name] = torch.full((rows, 24 + 5), float("nan")).index_copy(1, torch.arange(24), wide[name])[:, :24]
    for expected, actual in zip(layer(**inputs), layer(**wide), strict=True):
        assert rel_l2(actual, expected) <= 1e-6


def test_heads_may_lie_apart_and_what_is_between_stays(kernel: Kernel, turn: Call) -> None:
    inputs = kernel.make_inputs(case(M=3, K=0, form="plain"), Generator(17))
    packed = torch.full((3, 5, 20), float("nan"))
    packed[:, :2, :16], packed[:, 3:4, :16] = inputs["q"], inputs["k"]
    apart = {**inputs, "q": packed[:, :2, :16], "k": packed[:, 3:4, :16]}
    turn(**inputs)
    turn(**apart)
    assert same_bits(inputs["q"], apart["q"])
    assert same_bits(inputs["k"], apart["k"])
    assert 3 * 5 * 20 - 3 * 3 * 16 == packed.isnan().sum()


def far_apart(tensor: torch.Tensor, stride: int) -> torch.Tensor:
    """The same rows, `stride` elements apart. The pages in between are never touched, so they take no memory."""
    buffer = torch.empty((len(tensor) - 1) * stride + tensor[0].numel(), dtype=tensor.dtype)
    return buffer.as_strided(tensor.shape, (stride, *tensor.stride()[1:])).copy_(tensor)


@pytest.mark.parametrize("tokens", [1, 3])
def test_layer_may_read_past_two_to_the_31_elements(kernel: Kernel, tokens: int) -> None:
    inputs = kernel.make_inputs(case("fp16", M=tokens, K=8, Hq=1, Dh=8, rot=4), Generator(18))
    far = {**inputs, "x": far_apart(inputs["x"], 2**30 + 64), "weight": far_apart(inputs["weight"], 2**27 + 64)}
    for expected, actual in zip(kernel.variant("fused").call(**inputs), kernel.variant("fused").call(**far), strict=True):
        assert same_bits(expected, actual)


def test_rotation_may_reach_past_two_to_the_31_elements(kernel: Kernel) -> None:
    inputs = kernel.make_inputs(case("fp16", M=4, K=0, form="plain"), Generator(19))
    far = {**inputs, "q": far_apart(inputs["q"], 2**30 + 64), "k": far_apart(inputs["k"], 2**30 + 64)}
    for call_inputs in (inputs, far):
        kernel.variant("rope").call(**call_inputs)
    assert same_bits(inputs["q"], far["q"])
    assert same_bits(inputs["k"], far["k"])


class Recorder:
    """A kernel that notes the strides that it is launched with."""

    def __init__(self, kernel: Any, names: tuple[str, ...]) -> None:
        self.kernel, self.names, self.found = kernel, names, list[dict[str, int]]()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **constants: Any) -> None:
            given = dict(zip(self.kernel.arg_names, arguments, strict=False))
            self.found.append({name: given[name] for name in self.names})
            self.kernel[grid](*arguments, **constants)

        return launch


def test_stride_of_a_lone_row_of_x_is_its_length(kernel: Kernel, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(module._qkv_rope, ("stride_x", "stride_w"))
    monkeypatch.setattr(module, "_qkv_rope", recorder)
    inputs = kernel.make_inputs(case(M=1, K=32, Hq=1), Generator(16))
    wide = torch.nn.functional.pad(inputs["x"], (0, 1))[:, :32]
    for expected, actual in zip(module.qkv_rope(**inputs), module.qkv_rope(**{**inputs, "x": wide}), strict=True):
        assert same_bits(expected, actual)
    assert [{"stride_x": 32, "stride_w": 32}] * 2 == recorder.found


LONE_AXES = {
    "one token, dense": ((1, 2), (32, 16), (32, 16)),
    "one token": ((1, 2), (33, 16), (32, 16)),
    "one token of a packed buffer": ((1, 2), (64, 16), (64, 16)),
    "one head": ((2, 1), (32, 17), (32, 16)),
    "one head of one token": ((1, 1), (5, 3), (16, 16)),
    "several of both": ((2, 2), (35, 17), (35, 17)),
}


@pytest.mark.parametrize(("shape", "strides", "expected"), LONE_AXES.values(), ids=LONE_AXES)
def test_strides_that_mean_nothing_hide_no_alignment(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], strides: tuple[int, int], expected: tuple[int, int]
) -> None:
    recorder = Recorder(module._rope_in_place, ("stride_q", "stride_q_head"))
    monkeypatch.setattr(module, "_rope_in_place", recorder)
    q = torch.zeros(200).as_strided((*shape, 16), (*strides, 1)).copy_(Generator(17).uniform((*shape, 16)))
    dense, k = q.clone(memory_format=torch.contiguous_format), torch.zeros(shape[0], 1, 16)
    for heads in (dense, q):
        module.rope(heads, k, torch.arange(1, shape[0] + 1), torch.ones(4))
    assert same_bits(dense, q)
    assert expected == tuple(recorder.found[1].values())


def test_arrivals_are_left_zero_and_made_where_there_are_none(kernel: Kernel) -> None:
    fused = kernel.variant("fused").call
    inputs = kernel.make_inputs(case(M=3, Hq=1, K=8), Generator(20))
    first, again = fused(**inputs), fused(**inputs)
    assert not inputs["arrivals"].any()
    for results in (again, fused(**{**inputs, "arrivals": None})):
        assert all(same_bits(a, b) for a, b in zip(first, results, strict=True))


@pytest.mark.parametrize(("form", "gate_shape"), [("plain", None), ("gated", (0, 2, 16))], ids=["plain", "gated"])
def test_no_tokens_give_no_tokens(kernel: Kernel, layer: Call, form: str, gate_shape: tuple[int, ...] | None) -> None:
    inputs = kernel.make_inputs(case(form=form), Generator(21))
    none = {name: value[:0] for name, value in inputs.items() if name in ("x", "positions", "arrivals") and value is not None}
    q, k, v, gate = layer(**{**inputs, **none})
    assert [(0, 2, 16), (0, 1, 16), (0, 1, 16)] == [tuple(part.shape) for part in (q, k, v)]
    assert gate_shape == (None if gate is None else tuple(gate.shape))


def test_no_tokens_turn_nothing(turn: Call) -> None:
    q, k = torch.zeros(0, 2, 16), torch.zeros(0, 1, 16)
    found = turn(q=q, k=k, positions=torch.zeros(0, dtype=torch.int64), inv_freq=torch.ones(4), table="fp32")
    assert ((0, 2, 16), (0, 1, 16)) == (found[0].shape, found[1].shape)


# Refusals


def gaps(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape[:-1], 2 * shape[-1])[..., ::2]


LAYER_REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "one axis of x": ({"x": torch.zeros(24)}, r"x has shape \(24,\).*give x \(M, K\)"),
    "no columns": ({"x": torch.zeros(2, 0), "weight": torch.zeros(80, 0)}, "K and N over 0"),
    "dtype of x": ({"x": torch.zeros(2, 24).double()}, r"x has .*float64"),
    "dtype of weight": ({"weight": torch.zeros(80, 24).half()}, r"weight has .*float16.*torch.float32"),
    "columns of weight": ({"weight": torch.zeros(80, 25)}, r"weight has shape \(80, 25\).*give \(80, 24\)"),
    "rows of weight": ({"weight": torch.zeros(81, 24)}, r"weight has 81 rows for Hq=2, Hkv=1.*\(2\*Hq \+ 2\*Hkv\)\*Dh"),
    "rows of weight without gates": ({"q_norm": None, "k_norm": None, "weight": torch.zeros(81, 24)}, r"give \(Hq \+ 2\*Hkv\)\*Dh"),
    "no key heads": ({"Hkv": 0}, "Hkv=0"),
    "column stride of x": ({"x": gaps(2, 24)}, r"x has strides \(48, 2\)"),
    "column stride of weight": ({"weight": gaps(96, 24)}, r"weight has strides"),
    "one norm": ({"k_norm": None}, "k_norm is None.*both"),
    "shape of q_norm": ({"q_norm": torch.zeros(8)}, r"q_norm has shape \(8,\).*give \(16,\)"),
    "dtype of k_norm": ({"k_norm": torch.zeros(16).half()}, r"k_norm has .*float16"),
    "shape of arrivals": ({"arrivals": torch.zeros(2, 6, dtype=torch.int32)}, r"arrivals has shape \(2, 6\).*give \(2, 3\)"),
    "dtype of arrivals": ({"arrivals": torch.zeros(2, 3)}, r"arrivals has .*float32.*int32"),
    "dtype of positions": ({"positions": torch.zeros(2)}, r"positions has .*float32.*int32 or torch.int64"),
    "length of positions": ({"positions": torch.zeros(3, dtype=torch.int64)}, r"positions has shape \(3,\)"),
    "too many frequencies": ({"inv_freq": torch.ones(9)}, r"inv_freq has shape \(9,\).*at most Dh/2 = 8"),
    "no frequencies": ({"inv_freq": torch.ones(0)}, "at least 1"),
    "dtype of frequencies": ({"inv_freq": torch.ones(4).half()}, r"inv_freq has .*float16"),
    "table": ({"table": "fp16"}, "table='fp16': use 'fp32' or 'bf16'"),
    "another device": ({"inv_freq": torch.ones(4, device="meta")}, "inv_freq is on meta"),
}


@pytest.mark.parametrize(("change", "message"), LAYER_REFUSALS.values(), ids=LAYER_REFUSALS)
def test_layer_refuses(layer: Call, change: dict[str, Any], message: str) -> None:
    given = {
        "x": torch.zeros(2, 24),
        "weight": torch.zeros(96, 24),
        "positions": torch.zeros(2, dtype=torch.int64),
        "inv_freq": torch.ones(4),
        "Hq": 2,
        "Hkv": 1,
        "q_norm": torch.zeros(16),
        "k_norm": torch.zeros(16),
        "arrivals": None,
        "table": "fp32",
    }
    with pytest.raises(ValueError, match=f"qkv_rope: .*{message}"):
        layer(**{**given, **change})


ROPE_REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "two axes of q": ({"q": torch.zeros(2, 16)}, r"q has shape \(2, 16\).*give q \(M, Hq, Dh\)"),
    "no heads": ({"k": torch.zeros(2, 0, 16)}, "no head or Dh of 0"),
    "width of k": ({"k": torch.zeros(2, 1, 8)}, r"k has shape \(2, 1, 8\).*give \(2, 1, 16\)"),
    "dtype of k": ({"k": torch.zeros(2, 1, 16).half()}, r"k has .*float16"),
    "tokens of k": ({"k": torch.zeros(3, 1, 16)}, r"k has shape \(3, 1, 16\)"),
    "column stride of q": ({"q": gaps(2, 2, 16)}, "q has strides"),
    "positions with gaps": ({"positions": torch.zeros(4, dtype=torch.int64)[::2]}, "positions has strides"),
    "too many frequencies": ({"inv_freq": torch.ones(9)}, r"inv_freq has shape \(9,\)"),
    "table": ({"table": 1}, "table=1"),
}


@pytest.mark.parametrize(("change", "message"), ROPE_REFUSALS.values(), ids=ROPE_REFUSALS)
def test_rotation_refuses(turn: Call, change: dict[str, Any], message: str) -> None:
    given = {
        "q": torch.zeros(2, 2, 16),
        "k": torch.zeros(2, 1, 16),
        "positions": torch.zeros(2, dtype=torch.int64),
        "inv_freq": torch.ones(4),
        "table": "fp32",
    }
    with pytest.raises(ValueError, match=f"qkv_rope: .*{message}"):
        turn(**{**given, **change})


OVERLAPS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "one head for all": ((1, 2, 4), (4, 0, 1)),
    "one token for all": ((3, 1, 4), (0, 4, 1)),
    "one value shared by heads": ((1, 2, 4), (8, 3, 1)),
    "one value shared by tokens": ((3, 2, 4), (7, 4, 1)),
    "a sliding window": ((3, 2, 4), (4, 4, 1)),
    "heads that meet far apart": ((5, 3, 4), (12, 23, 1)),
}


@pytest.mark.parametrize("name", ["q", "k"])
@pytest.mark.parametrize(("shape", "strides"), OVERLAPS.values(), ids=OVERLAPS)
def test_rotation_refuses_heads_that_overlap(turn: Call, shape: tuple[int, ...], strides: tuple[int, ...], name: str) -> None:
    heads = {"q": torch.ones(shape), "k": torch.ones(shape)}
    heads[name] = torch.ones(200).as_strided(shape, strides)
    before = heads[name].clone()
    with pytest.raises(ValueError, match=rf"qkv_rope: {name} has shape .*strides .*must not overlap, call \.contiguous\(\)"):
        turn(**heads, positions=torch.ones(shape[0], dtype=torch.int32), inv_freq=torch.ones(1), table="fp32")
    assert same_bits(before, heads[name])


Parts = tuple[torch.Tensor, torch.Tensor]
SHARED: dict[str, Callable[[torch.Tensor], Parts]] = {
    "q twice": lambda b: (b, b),
    "another view": lambda b: (b[:, :4], b[:, :4].view(3, 4, 8)),
    "a head too many": lambda b: (b[:, :5], b[:, 4:]),
    "heads of one token": lambda b: (b[:1, :4], b[:1, 3:]),
    "heads in turn, but one": lambda b: (b[:, :5:2], b[:, 1:4]),
    "half a head": lambda b: (b.flatten()[:96].view(3, 4, 8), b.flatten()[92:116].view(3, 1, 8)),
    "tokens of another stride": lambda b: (b.view(9, 2, 8)[::3], b.view(9, 2, 8)[6:, :1]),
}


@pytest.mark.parametrize("swap", [False, True], ids=["q first", "k first"])
@pytest.mark.parametrize("parts", SHARED.values(), ids=SHARED)
def test_rotation_refuses_q_and_k_that_share_memory(turn: Call, parts: Callable[[torch.Tensor], Parts], swap: bool) -> None:
    buffer = torch.ones(3, 6, 8)
    q, k = reversed(parts(buffer)) if swap else parts(buffer)
    with pytest.raises(ValueError, match=r"qkv_rope: q and k share memory: .*call \.clone\(\)"):
        turn(q=q, k=k, positions=torch.ones(len(q), dtype=torch.int32), inv_freq=torch.ones(1), table="fp32")
    assert same_bits(torch.ones(3, 6, 8), buffer)


APART: dict[str, Callable[[torch.Tensor], Parts]] = {
    "packed by token": lambda b: (b[:, :4], b[:, 4:5]),
    "packed by token, k first": lambda b: (b[:, 2:], b[:, :2]),
    "one token": lambda b: (b[:1, :4], b[:1, 4:]),
    "q and gate in turn, then k": lambda b: (b[:, :4:2], b[:, 4:5]),
    "q, k and v in turn": lambda b: (b[:, ::3], b[:, 1::3]),
    "two of q, then k": lambda b: (b.view(3, 2, 3, 8)[:, :, :2].flatten(1, 2), b[:, 2::3]),
    "heads before tokens": lambda b: (b.view(6, 3, 8)[:4].transpose(0, 1), b.view(6, 3, 8)[4:].transpose(0, 1)),
    "tokens in turn": lambda b: (b.view(9, 2, 8)[::3], b.view(9, 2, 8)[1::3]),
    "tokens of another stride": lambda b: (b.view(9, 2, 8)[::3], b.view(9, 2, 8)[1:3].view(2, 2, 8)),
    "widths in turn": lambda b: (b.view(3, 3, 16)[..., :8], b.view(3, 3, 16)[..., 8:]),
    "strides that interlock": lambda b: (b.flatten().as_strided((2, 2, 8), (30, 20, 1)), b.flatten().as_strided((2, 1, 8), (66, 8, 1), 58)),
}


@pytest.mark.parametrize("swap", [False, True], ids=["q first", "k first"])
@pytest.mark.parametrize("parts", APART.values(), ids=APART)
def test_rotation_takes_views_of_one_buffer_that_do_not_meet(turn: Call, parts: Callable[[torch.Tensor], Parts], swap: bool) -> None:
    q, k = parts(Generator(23).uniform((3, 6, 8)))
    tokens = min(len(q), len(k))
    q, k = (k[:tokens], q[:tokens]) if swap else (q[:tokens], k[:tokens])
    alone = {"q": q.clone(), "k": k.clone()}
    common = {"positions": torch.arange(1, tokens + 1), "inv_freq": torch.ones(2), "table": "fp32"}
    turn(q=q, k=k, **common)
    turn(**alone, **common)
    assert same_bits(alone["q"], q)
    assert same_bits(alone["k"], k)


def test_rotation_refuses_exactly_what_shares_an_element(module: ModuleType) -> None:
    spot, chosen = Generator(24).integers((4000, 9), 0, 1 << 20).tolist(), ((0, 2, 3, 4, 5, 8, 9, 12, 25), (2, 3, 4, 6, 10, 20))
    buffer = torch.zeros(400)
    counts = {False: 0, True: 0}
    for draw in spot:
        tokens, width = 1 + draw[0] % 4, 2 + draw[1] % 3
        parts = []
        for d in (draw[2:5], draw[5:8]):
            of_token, of_head = chosen[0][d[0] % 9], chosen[1][d[1] % 6]
            parts.append(buffer.as_strided((tokens, 1 + d[2] % 3, width), (of_token, of_head, 1), d[2] // 3 % (90 * (draw[8] % 2) + 1)))
        inner, seen = [len(set(t)) < len(t) for t in map(elements, parts)], [set(elements(t)) for t in parts]
        assert inner == [module._heads_overlap(t) for t in parts], draw
        if not any(inner):
            shared = not seen[0].isdisjoint(seen[1])
            assert shared == module._share_memory(*parts), draw
            counts[shared] += 1
    assert min(counts.values()) > 200


def elements(heads: torch.Tensor) -> list[int]:
    """Where in the storage each value of a tensor lies."""
    index = torch.arange(heads.untyped_storage().nbytes() // heads.element_size())
    found: list[int] = index.as_strided(heads.shape, heads.stride(), heads.storage_offset()).flatten().tolist()
    return found


def test_rotation_without_memory_is_compared_by_strides_alone(module: ModuleType) -> None:
    q, k = torch.zeros(2, 2, 16, device="meta"), torch.zeros(2, 1, 16, device="meta")
    module._check_heads(q, k)
    with pytest.raises(ValueError, match="k has shape"):
        module._check_heads(q, k[:1].expand(2, 1, 16))


OPTION_REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "no table": ({"table": None}, "table=None: use 'fp32' or 'bf16'"),
    "table as a flag": ({"table": True}, "table=True"),
    "query heads as text": ({"Hq": "2"}, "Hq='2', Hkv=1: give two ints, at least one head of each kind"),
    "query heads as a float": ({"Hq": 2.0}, r"Hq=2\.0"),
    "query heads as a flag": ({"Hq": True}, "Hq=True"),
    "key heads below zero": ({"Hkv": -1}, "Hkv=-1"),
    "no number of key heads": ({"Hkv": None}, "Hkv=None"),
}


@pytest.mark.parametrize(("change", "message"), OPTION_REFUSALS.values(), ids=OPTION_REFUSALS)
def test_variants_and_reference_refuse_the_same_options(kernel: Kernel, layer: Call, change: dict[str, Any], message: str) -> None:
    inputs = {**kernel.make_inputs(case(), Generator(25)), **change}
    for call in (layer, kernel.reference):
        with pytest.raises(ValueError, match=f"qkv_rope: .*{message}"):
            call(**inputs)


# Cost model


def test_traffic_is_the_sum_of_the_tensors_but_for_scratch_and_what_does_not_turn(kernel: Kernel) -> None:
    for one in kernel.cases:
        inputs = kernel.make_inputs(one, Generator(0, "meta"))
        sizes = {n: v.numel() * v.element_size() for n, v in inputs.items() if isinstance(v, torch.Tensor) and n != "arrivals"}
        if one.K == 0:
            turned = (sizes.pop("q") + sizes.pop("k")) * one.rot // one.Dh
            expected = (sum(sizes.values()) + turned, turned)
        else:
            x, weight = inputs["x"], inputs["weight"]
            expected = (sum(sizes.values()), len(x) * len(weight) * x.element_size())
        found = kernel.traffic(one)
        assert expected == (found.read_bytes, found.written_bytes), one.key


def test_flops_count_product_norm_and_rotation(kernel: Kernel) -> None:
    expected = {
        "M=16,K=5120,Hq=24,Hkv=4,Dh=256,dtype=bf16": 2 * 16 * 8192 * 5120 + 3 * 16 * 28 * 64,
        "M=1,K=5120,Hq=24,Hkv=4,Dh=256,form=gated,dtype=bf16": 2 * 14336 * 5120 + 4 * 28 * 256 + 3 * 28 * 64,
        "M=128,K=0,Hq=24,Hkv=4,Dh=256,dtype=bf16": 3 * 128 * 28 * 64,
    }
    assert expected == {key: kernel.flops(kernel.case(key)) for key in expected}


# Launch plan


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_model_products_have_no_masks_and_two_programs_share_a_multiprocessor(
    module: ModuleType, kernel: Kernel, gpu: DeviceProperties
) -> None:
    for one in kernel.cases:
        if "model" in one.tags and one.K > 0:
            item = torch_dtype(one.dtype).itemsize
            plan = module.plan_product(one.M, one.K, one.form == "gated", item, gpu)
            assert 0 == one.K % plan.BK == one.rot // 2 % plan.BH == (one.Dh - one.rot) % (2 * plan.BH), one.key
            if one.M > 1:
                shared = (plan.stages - (gpu.backend == "hip")) * (2 * plan.BH + plan.BM) * plan.BK * item
                assert 2 * shared <= gpu.shared_bytes_per_block, one.key


PRODUCTS = {
    "one token, 128 lanes": ((1, 5120, False, 2), {"small": (1, 1024, 4), "large": (1, 1024, 4), "wave64": (1, 1024, 2)}),
    "fp32 loads are half as wide": ((1, 5120, False, 4), {"small": (1, 512, 4), "large": (1, 512, 4), "wave64": (1, 512, 2)}),
    "fewer lanes where they divide K": ((1, 768, False, 2), {"small": (1, 256, 1), "large": (1, 256, 1), "wave64": (1, 512, 1)}),
    "a gated program is one wave of AMD": ((1, 5120, True, 2), {"small": (1, 1024, 4), "large": (1, 1024, 4), "wave64": (1, 512, 1)}),
    "several gated tokens too": ((8, 5120, True, 2), {"small": (16, 128, 4), "large": (16, 128, 4), "wave64": (16, 128, 1)}),
    "the least tile of tokens": ((2, 5120, False, 2), {"small": (16, 128, 4), "large": (16, 128, 4), "wave64": (16, 128, 2)}),
    "the largest tile of tokens": ((100, 5120, False, 2), {"small": (64, 128, 4), "large": (64, 128, 4), "wave64": (64, 128, 2)}),
}


@pytest.mark.parametrize(("arguments", "expected"), PRODUCTS.values(), ids=PRODUCTS)
def test_product_plan(module: ModuleType, arguments: tuple[int, int, bool, int], expected: dict[str, tuple[int, int, int]]) -> None:
    plans = {name: module.plan_product(*arguments, gpu) for name, gpu in GPUS.items()}
    assert expected == {name: (plan.BM, plan.BK, plan.warps) for name, plan in plans.items()}


ROPES = {
    "one token": ((1, 24, 4, 32, 2), {"small": (1, 4, 1), "large": (1, 4, 1), "wave64": (1, 4, 1)}),
    "a warp has as many heads as it has loads": ((128, 24, 4, 32, 2), {"small": (2, 4, 2), "large": (2, 4, 1), "wave64": (4, 4, 1)}),
    "large grids share cos and sin": ((8192, 24, 4, 32, 2), {"small": (2, 4, 7), "large": (2, 4, 7), "wave64": (4, 4, 4)}),
    "fp32 heads are twice as wide": ((128, 24, 4, 32, 4), {"small": (1, 4, 4), "large": (1, 4, 1), "wave64": (2, 4, 1)}),
    "whole heads, for their norm": ((16, 24, 4, 192, 2), {"small": (1, 1, 2), "large": (1, 1, 1), "wave64": (1, 2, 1)}),
    "head counts with no common factor": ((2, 5, 3, 32, 2), {"small": (2, 1, 1), "large": (2, 1, 1), "wave64": (2, 1, 1)}),
    "no more tiles than registers hold": ((65536, 64, 1, 32, 2), {"small": (8, 1, 8), "large": (8, 1, 8), "wave64": (16, 1, 8)}),
}


@pytest.mark.parametrize(("arguments", "expected"), ROPES.values(), ids=ROPES)
def test_rope_plan(module: ModuleType, arguments: tuple[int, ...], expected: dict[str, tuple[int, int, int]]) -> None:
    plans = {name: module.plan_rope(*arguments, gpu) for name, gpu in GPUS.items()}
    assert expected == {name: (plan.BM, plan.BH, plan.tiles) for name, plan in plans.items()}


# The cases


def test_peers_are_the_five_rotations_and_three_products(kernel: Kernel) -> None:
    peers = {(c.M, c.K, c.Hq, c.Hkv, c.Dh, c.rot, c.form, c.dtype) for c in kernel.cases if "peers" in c.tags}
    shapes = [(1, 5120), (8, 5120), (16, 5120), (1, 0), (16, 0), (128, 0), (1024, 0), (8192, 0)]
    assert {(m, k, 24, 4, 256, 64, "plain", "bf16") for m, k in shapes} == peers


def test_headline_is_three_cases_of_the_default_variant(kernel: Kernel) -> None:
    headline = [c for c in kernel.cases if "headline" in c.tags]
    assert 3 == len(headline)
    assert all(kernel.variant(kernel.default).cases(c) for c in headline)


def test_every_variant_covers_its_own_cases_and_torch_all(kernel: Kernel) -> None:
    for c in kernel.cases:
        covered = {name for name in kernel.variants if kernel.variant(name).cases(c)}
        assert ({"rope", "torch"} if c.K == 0 else {"fused", "gemv_then_rope", "torch"}) == covered


def test_cases_hold_both_forms_of_the_model_at_every_batch(kernel: Kernel) -> None:
    found = {(c.M, c.Hq, c.form) for c in kernel.cases if (c.K, c.dtype, c.table, c.strided) == (5120, "bf16", "fp32", 0)}
    assert {(m, hq, form) for m in (1, 8, 16) for hq, form in ((24, "plain"), (16, "plain"), (24, "gated"))} <= found
    assert {6144, 8192} == {kernel.traffic(c).written_bytes // 2 for c in kernel.cases if (c.M, c.K, c.form) == (1, 5120, "plain")} - {
        16384
    }


def test_cpu_cases_cover_every_option_and_are_small_enough(kernel: Kernel, module: ModuleType) -> None:
    cpu = [c for c in kernel.cases if "cpu" in c.tags]
    for rotation_alone in (False, True):
        of_kind = [c for c in cpu if (c.K == 0) == rotation_alone]
        assert {"fp32", "fp16", "bf16"} == {c.dtype for c in of_kind}
        assert {"fp32", "bf16"} == {c.table for c in of_kind}
        assert {0, 1} == {c.strided for c in of_kind}
        assert any("ragged" in c.tags for c in of_kind)
    products = {(c.form, c.M > 1, c.dtype) for c in cpu if c.K > 0}
    assert {(f, several, d) for f in ("plain", "gated") for several in (False, True) for d in ("fp32", "fp16", "bf16")} == products
    interpreter = DeviceProperties("cpu", 4, 65_536, 32, 1 << 25)
    for c in cpu:
        item = torch_dtype(c.dtype).itemsize
        if c.K == 0:
            plan = module.plan_rope(c.M, c.Hq, c.Hkv, c.rot // 2, item, interpreter)
            programs = -(-c.M // plan.BM) * (c.Hq + c.Hkv) // plan.BH
        else:
            plan = module.plan_product(c.M, c.K, c.form == "gated", item, interpreter)
            tiles = -(-c.rot // 2 // plan.BH) + -(-(c.Dh - c.rot) // (2 * plan.BH))
            programs = -(-c.M // plan.BM) * tiles * module.columns(c) // c.Dh
        assert programs <= 200, c.key


def test_last_token_of_every_case_is_at_the_last_position(kernel: Kernel) -> None:
    for c in kernel.cases:
        if "cpu" in c.tags:
            inputs = kernel.make_inputs(c, Generator(22))
            assert 262_143 == inputs["positions"][-1] == inputs["positions"].max()
            assert (torch.int32 if c.strided else torch.int64) == inputs["positions"].dtype
            assert c.rot // 2 == len(inputs["inv_freq"])


def test_meta_inputs_have_the_shapes_strides_and_dtypes_of_real_ones(kernel: Kernel) -> None:
    for one in kernel.cases:
        if "cpu" in one.tags:
            real, meta = (kernel.make_inputs(one, Generator(0, device)) for device in ("cpu", "meta"))
            assert list(real) == list(meta)
            for name, value in real.items():
                if isinstance(value, torch.Tensor):
                    found = meta[name]
                    assert (value.shape, value.stride(), value.dtype) == (found.shape, found.stride(), found.dtype), (one.key, name)
