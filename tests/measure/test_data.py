from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.measure import data
from harness.measure.data import Generator, content_hash, torch_dtype

DRAWS = {
    "uniform": lambda g: g.uniform((50, 40), "fp32", -0.3, 0.9),
    "uniform bf16": lambda g: g.uniform((50, 40), "bf16"),
    "normal": lambda g: g.normal((50, 40), "fp32", 0.5, 3.0),
    "integers": lambda g: g.integers((50, 40), -3, 1000),
    "permutation": lambda g: g.permutation(1000),
}

PINNED = {
    "uniform": "a6bd6e5ca3d0846f",
    "uniform bf16": "58fe3ecd7e3c6846",
    "normal": "0b2e850f829e542c",
    "integers": "6a69434bd444c46b",
    "permutation": "825eeff8e643b669",
}
"""Content of seed 7: correctness and drift errors compare from commit to commit only while these hold."""


@pytest.mark.parametrize("name", DRAWS)
class TestEveryDraw:
    def test_is_the_same_content_on_every_host(self, name: str) -> None:
        assert PINNED[name] == content_hash({"x": DRAWS[name](Generator(7))})[:16]

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    def test_is_the_same_content_on_a_gpu(self, name: str) -> None:
        assert PINNED[name] == content_hash({"x": DRAWS[name](Generator(7, "cuda"))})[:16]

    def test_differs_from_seed_to_seed(self, name: str) -> None:
        assert not torch.equal(DRAWS[name](Generator(7)), DRAWS[name](Generator(8)))

    def test_differs_from_draw_to_draw(self, name: str) -> None:
        generator = Generator(7)
        assert not torch.equal(DRAWS[name](generator), DRAWS[name](generator))

    def test_has_the_same_shape_and_dtype_on_meta(self, name: str) -> None:
        real, meta = DRAWS[name](Generator(7)), DRAWS[name](Generator(7, "meta"))
        assert (real.shape, real.dtype, real.stride(), "meta") == (meta.shape, meta.dtype, meta.stride(), meta.device.type)


class TestUniform:
    def test_stays_within_its_bounds_and_fills_them(self) -> None:
        values = Generator(1).uniform((100_000,), "fp32", 0.9, 1.0)
        assert 0.9 <= values.min() < 0.9001
        assert 0.9999 < values.max() <= 1.0

    def test_is_centred_on_zero_by_default(self) -> None:
        values = Generator(1).uniform((100_000,)).double()
        assert values.mean().item() == pytest.approx(0.0, abs=0.01)
        assert values.var().item() == pytest.approx(1 / 3, abs=0.01)

    def test_draws_the_same_values_whatever_the_dtype_they_are_rounded_to(self) -> None:
        assert torch.equal(Generator(1).uniform((100,), "bf16"), Generator(1).uniform((100,), "fp32").bfloat16())


class TestOneDrawAndAnother:
    """2**18 values: a correlation of independent draws has a standard deviation of 2**-9."""

    @staticmethod
    def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(torch.corrcoef(torch.stack([a, b]))[0, 1])

    def test_are_independent_at_every_small_lag(self) -> None:
        generator = Generator(3)
        first, second = (generator.uniform((1 << 18,)).double() for _ in range(2))
        assert all(abs(self.correlation(first[: -lag or None], second[lag:])) < 2**-7 for lag in (0, 1, 2, 64, 1000))

    def test_neighbours_are_independent(self) -> None:
        values = Generator(3).uniform((1 << 18,)).double()
        assert all(abs(self.correlation(values[:-lag], values[lag:])) < 2**-7 for lag in (1, 2, 16, 128, 4096))

    def test_pieces_of_one_draw_differ(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(data, "PIECE", 64)
        values = Generator(3).uniform((256,))
        assert len({tuple(piece.tolist()) for piece in values.split(64)}) == 4


def test_uniform_fills_a_thousand_bins_evenly() -> None:
    counts = torch.histc(Generator(5).uniform((1 << 20,)), bins=1000, min=-1, max=1)
    chi_squared = float((counts - counts.mean()).square().sum() / counts.mean())
    assert 850 < chi_squared < 1150  # 999 degrees of freedom: mean 999, standard deviation 45


@pytest.mark.parametrize("bounds", [(3, 3), (0, (1 << 24) + 1)], ids=["none", "too many"])
def test_integers_that_cannot_be_drawn_are_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"integers from {bounds[0]} to below {bounds[1]}"):
        Generator(1).integers((2,), *bounds)


def test_normal_is_the_same_whatever_dtype_a_kernel_file_made_the_default() -> None:
    before = Generator(7).normal((1000,))
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(before, Generator(7).normal((1000,)))
    finally:
        torch.set_default_dtype(torch.float32)


def test_normal_has_the_moments_of_a_normal_distribution() -> None:
    values = Generator(1).normal((1_000_000,), mean=2.0, std=0.5).double()
    standard = (values - 2.0) / 0.5
    moments = [standard.pow(k).mean().item() for k in (1, 2, 3, 4)]
    assert moments == pytest.approx([0.0, 1.0, 0.0, 3.0 - 6 / 5 / 12], abs=0.03)  # Irwin-Hall: excess kurtosis -6/(5 n)


@pytest.mark.parametrize("piece", [1000, 50_000, 1 << 24], ids=["one", "four", "all"])
def test_normal_is_the_same_however_many_terms_are_drawn_at_once(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Generator(7).normal((1000,))
    monkeypatch.setattr(data, "PIECE", piece)
    generator = Generator(7)
    assert torch.equal(expected, generator.normal((1000,)))
    assert not torch.equal(expected, generator.normal((1000,)))


def test_integers_take_every_value_below_the_upper_bound() -> None:
    assert set(Generator(1).integers((500,), 2, 6).tolist()) == {2, 3, 4, 5}


def test_permutation_has_every_index_once() -> None:
    drawn = Generator(1).permutation(100)
    assert drawn.dtype == torch.int32
    assert torch.equal(drawn.sort().values, torch.arange(100, dtype=torch.int32))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_full_has_the_dtype_and_device_asked_for(device: str) -> None:
    values = Generator(1, device).full((2, 3), 0.5, "fp16")
    assert ((2, 3), torch.float16, device) == (tuple(values.shape), values.dtype, values.device.type)


def test_torch_dtype_knows_the_dtypes_of_cases() -> None:
    assert [torch.float32, torch.float16, torch.bfloat16, torch.int8] == [torch_dtype(d) for d in ("fp32", "fp16", "bf16", torch.int8)]


BASE = {"x": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "eps": 1e-6, "bias": None}


class TestContentHash:
    @pytest.mark.parametrize(
        "other",
        [
            {**BASE, "x": torch.tensor([[1.0, 2.0], [3.0, 5.0]])},
            {**BASE, "x": torch.tensor([[2.0, 1.0], [3.0, 4.0]])},
            {**BASE, "x": BASE["x"].reshape(4)},
            {**BASE, "x": BASE["x"].view(torch.int32)},
            {**BASE, "eps": 1e-5},
            {"y": BASE["x"], "eps": 1e-6, "bias": None},
        ],
        ids=["value", "order", "shape", "dtype", "plain argument", "name"],
    )
    def test_depends_on(self, other: dict[str, object]) -> None:
        assert content_hash(BASE) != content_hash(other)

    def test_does_not_depend_on_strides_or_order(self) -> None:
        strided = torch.full((2, 4), 9.0)
        strided[:, ::2] = BASE["x"]
        assert content_hash({"bias": None, "eps": 1e-6, "x": strided[:, ::2]}) == content_hash(BASE)

    @pytest.mark.parametrize(
        "value",
        [
            torch.tensor(1.0),
            torch.empty(0, 3),
            torch.ones(2, dtype=torch.bfloat16),
            torch.tensor([True]),
            torch.tensor([float("nan")]),
            torch.tensor([1j]),
        ],
        ids=["scalar", "empty", "bf16", "bool", "nan", "complex"],
    )
    def test_takes_any_tensor(self, value: torch.Tensor) -> None:
        assert content_hash({"x": value}) == content_hash({"x": value.clone()})


def signature(method: Callable[..., Any]) -> str:
    """`uniform(shape, dtype="fp32")`: names and defaults, as a document has them."""
    parts = []
    for name, parameter in list(inspect.signature(method).parameters.items())[1:]:
        default = parameter.default
        parts.append(name if default is parameter.empty else f"{name}={json.dumps(default) if isinstance(default, str) else default}")
    return f"{method.__name__}({', '.join(parts)})"


def test_contributing_documents_every_method_of_a_generator() -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    public = [method for name, method in vars(Generator).items() if not name.startswith("_")]
    assert [signature(method) for method in public] == re.findall(r"^\| `generator\.(.+?)` \|", text, re.MULTILINE)
