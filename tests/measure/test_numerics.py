from __future__ import annotations

import math

import pytest
import torch

from harness.measure import numerics
from harness.measure.numerics import any_finite, bit_equal, compare, farthest, ulp_distance

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NAN, INF = math.nan, math.inf


def tensor(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def every(dtype: torch.dtype) -> torch.Tensor:
    """Every value of a 16-bit float, from the lowest to the highest, zeros once."""
    values = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    finite = values[values.isfinite() & ~((values == 0) & values.signbit())]
    return finite.sort().values


class TestRelativeL2:
    def test_is_the_norm_of_the_difference_over_the_norm_of_the_reference(self) -> None:
        assert compare(tensor(3.0, 4.5), tensor(3.0, 4.0, dtype=torch.float64)).rel_l2 == 0.1

    def test_of_a_zero_reference_is_the_norm_itself(self) -> None:
        assert compare(tensor(3.0, 4.0), tensor(0.0, 0.0)).rel_l2 == 5.0

    def test_is_not_computed_in_the_dtype_of_the_tensors(self) -> None:
        huge = torch.full((64,), 6e4, dtype=torch.float16)
        assert compare(huge, huge.double() * 2).rel_l2 == 0.5


class TestCosineAndNorms:
    @pytest.mark.parametrize(
        ("actual", "cosine", "ratio"),
        [((2.0, 0.0), 1.0, 2.0), ((-1.0, 0.0), -1.0, 1.0), ((0.0, 3.0), 0.0, 3.0), ((0.0, 0.0), 0.0, 0.0)],
        ids=["longer", "opposite", "orthogonal", "zero"],
    )
    def test_against_a_unit_vector(self, actual: tuple[float, float], cosine: float, ratio: float) -> None:
        errors = compare(tensor(*actual), tensor(1.0, 0.0))
        assert (cosine, ratio) == (errors.cosine, errors.norm_ratio)

    def test_of_two_zeros_are_one(self) -> None:
        errors = compare(tensor(0.0), tensor(0.0))
        assert (1.0, 1.0) == (errors.cosine, errors.norm_ratio)

    def test_of_a_zero_reference_alone(self) -> None:
        errors = compare(tensor(2.0), tensor(0.0))
        assert (0.0, INF) == (errors.cosine, errors.norm_ratio)


class TestUlp:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_counts_every_value_of_a_short_float(self, dtype: torch.dtype) -> None:
        values = every(dtype)
        assert torch.equal(ulp_distance(values[1:], values[:-1]), torch.ones(len(values) - 1, dtype=torch.float64))
        assert ulp_distance(values[-1:], values[:1]).item() == len(values) - 1

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("at", [1.0, -1.0, 1e-30, 0.0, 1024.0], ids=str)
    def test_of_the_next_value_is_one(self, dtype: torch.dtype, at: float) -> None:
        here = torch.tensor([at], dtype=dtype)
        assert ulp_distance(torch.nextafter(here, torch.tensor(INF, dtype=dtype)), here).item() == 1

    def test_between_opposite_signs_does_not_overflow(self) -> None:
        top = torch.finfo(torch.float64).max
        assert ulp_distance(tensor(top, dtype=torch.float64), tensor(-top, dtype=torch.float64)).item() == pytest.approx(2**64, rel=1e-3)

    def test_takes_both_zeros_for_one_value(self) -> None:
        assert ulp_distance(tensor(-0.0), tensor(0.0)).item() == 0

    def test_rounds_the_reference_to_the_dtype_first(self) -> None:
        exact = torch.tensor([1.001, 1.006], dtype=torch.float64)
        assert compare(tensor(1.0, 1.0, dtype=torch.bfloat16), exact).max_ulp == 1
        assert compare(exact.bfloat16(), exact).max_ulp == 0

    def test_of_integers_is_their_difference(self) -> None:
        assert compare(torch.tensor([7, -2]), torch.tensor([7, 3])).max_ulp == 5

    @pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64], ids=str)
    def test_of_equal_integers_is_zero(self, dtype: torch.dtype) -> None:
        values = torch.tensor([1, 0, 1]).to(dtype)
        errors = compare(values, values)
        assert (0.0, 0.0, 0.0) == (errors.rel_l2, errors.max_abs, errors.max_ulp)


class TestLargeIntegers:
    """fp64 has no odd number beyond 2**53, so these would be equal if they were compared through it."""

    @pytest.mark.parametrize("at", [2**53, 2**60, -(2**60), 2**63 - 2, -(2**63)], ids=str)
    def test_that_differ_by_one_are_not_equal(self, at: int) -> None:
        errors = compare(torch.tensor([5, at + 1]), torch.tensor([5, at]))
        assert (1.0, 1.0, (1,)) == (errors.max_abs, errors.max_ulp, errors.worst_index)
        assert 0 < errors.rel_l2 < 1e-15
        assert not errors.within(0.0)

    @pytest.mark.parametrize("at", [2**53, 2**63 - 1, 2**63, 2**64 - 2], ids=str)
    def test_that_differ_by_one_are_not_equal_unsigned(self, at: int) -> None:
        errors = compare(torch.tensor([at + 1], dtype=torch.uint64), torch.tensor([at], dtype=torch.uint64))
        assert (1.0, 1.0) == (errors.max_abs, errors.max_ulp)
        assert not errors.within(0.0)

    @pytest.mark.parametrize("at", [2**60 + 1, -(2**63), 2**63 - 1], ids=str)
    def test_that_are_equal_have_no_error(self, at: int) -> None:
        errors = compare(torch.tensor([at]), torch.tensor([at]))
        assert (0.0, 0.0, 0.0) == (errors.rel_l2, errors.max_abs, errors.max_ulp)

    def test_at_both_ends_differ_without_overflow(self) -> None:
        assert compare(torch.tensor([2**63 - 1]), torch.tensor([-(2**63)])).max_abs == 2.0**64

    def test_of_two_sizes_are_compared_by_value(self) -> None:
        assert compare(torch.tensor([-3], dtype=torch.int8), torch.tensor([-3])).max_abs == 0
        assert compare(torch.tensor([2**64 - 1], dtype=torch.uint64), torch.tensor([-1])).max_abs == 2.0**64

    def test_are_written_in_full(self) -> None:
        errors = compare(torch.tensor([2**60 + 1]), torch.tensor([2**60]))
        assert errors.at_worst() == "[0]: got 1152921504606846977, expected 1152921504606846976"


class TestNonFinite:
    @pytest.mark.parametrize(
        ("actual", "reference"),
        [(NAN, 1.0), (INF, 1.0), (-INF, 1.0), (1.0, NAN), (1.0, INF), (INF, -INF), (NAN, INF)],
        ids=lambda value: f"{value:g}",
    )
    def test_values_that_disagree_fail_every_limit(self, actual: float, reference: float) -> None:
        errors = compare(tensor(1.0, actual, 1.0), tensor(1.0, reference, 1.0))
        assert errors.mismatches == 1
        assert errors.worst_index == (1,)
        assert (INF, INF, INF) == (errors.rel_l2, errors.max_abs, errors.max_ulp)
        assert math.isnan(errors.cosine)
        assert not errors.within(INF)

    @pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
    def test_values_that_agree_enter_no_measure(self, value: float) -> None:
        errors = compare(tensor(value, 3.0, 4.5), tensor(value, 3.0, 4.0))
        assert (0, 0.1, 0.5, (2,)) == (errors.mismatches, errors.rel_l2, errors.max_abs, errors.worst_index)

    def test_an_overflow_of_the_dtype_disagrees_with_a_finite_reference(self) -> None:
        reference = torch.tensor([1e6], dtype=torch.float64)
        assert compare(reference.half(), reference).mismatches == 1


class TestAnyFinite:
    @pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e5m2], ids=str)
    def test_needs_one_element_that_is_neither_nan_nor_infinite(self, dtype: torch.dtype) -> None:
        assert not any_finite(tensor(NAN, INF, -INF, dtype=dtype))
        assert any_finite(tensor(NAN, INF, 0.0, dtype=dtype))

    def test_looks_at_every_piece(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(numerics, "PIECE", 2)
        assert any_finite(tensor(NAN, NAN, NAN, NAN, 1.0))

    def test_of_an_empty_tensor_is_false(self) -> None:
        assert not any_finite(torch.empty(0, 3))


class TestFarthest:
    """Of the element that is farthest off for its size."""

    @staticmethod
    def of(actual: torch.Tensor, reference: torch.Tensor) -> numerics.Farthest:
        return farthest(actual, reference, compare(actual, reference).rms)

    ROWS = torch.tensor([[3.0, 3.0, 3.0, 3.0], [-100.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    RMS = math.sqrt((36 + 10000 + 4) / 12)

    @pytest.mark.parametrize("piece", [4, 5, 8, 1 << 24])
    @pytest.mark.parametrize(
        ("at", "size"),
        [((1, 0), 100.0), ((1, 1), 50.0), ((2, 3), RMS), ((0, 0), RMS)],
        ids=["itself", "its row", "all", "all, in the first row"],
    )
    def test_size_is_the_largest_of_itself_its_row_and_all(
        self, monkeypatch: pytest.MonkeyPatch, piece: int, at: tuple[int, int], size: float
    ) -> None:
        monkeypatch.setattr(numerics, "PIECE", piece)
        actual = self.ROWS.clone()
        actual[at] += 10.0
        found = self.of(actual, self.ROWS)
        assert (at, float(actual[at]), float(self.ROWS[at])) == (found.index, found.actual, found.reference)
        assert found.share == pytest.approx(10.0 / size)

    @pytest.mark.parametrize("piece", [1, 2, 3])
    def test_of_a_row_longer_than_a_piece_is_found(self, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
        monkeypatch.setattr(numerics, "PIECE", piece)
        actual = self.ROWS.clone()
        actual[2, 3] += 10.0
        assert ((2, 3), pytest.approx(10.0 / self.RMS)) == ((found := self.of(actual, self.ROWS)).index, found.share)

    def test_leaves_out_what_is_not_finite(self) -> None:
        found = self.of(tensor(INF, NAN, 1.0, 2.0), tensor(INF, NAN, 1.0, 1.0))
        assert ((3,), 1.0) == (found.index, found.share)
        assert "[3]: got 2, expected 1" == str(found)

    def test_of_one_number_is_that(self) -> None:
        found = self.of(torch.tensor(1.5), torch.tensor(1.0))
        assert ((), 0.5) == (found.index, found.share)


class TestWithin:
    def test_keeps_a_limit_that_is_met_exactly(self) -> None:
        errors = compare(tensor(3.0, 4.5), tensor(3.0, 4.0))
        assert errors.within(0.1)
        assert not errors.within(0.0999)

    def test_asks_for_the_cosine_where_one_is_given(self) -> None:
        errors = compare(tensor(1.0, 0.1), tensor(1.0, 0.0))
        assert errors.within(0.2, cosine=0.99)
        assert not errors.within(0.2, cosine=0.999)

    def test_fails_a_limit_that_is_not_a_number(self) -> None:
        assert not compare(tensor(1.0), tensor(1.0)).within(NAN)


class TestWorst:
    def test_is_the_largest_absolute_difference(self) -> None:
        reference = torch.zeros(3, 4, 5)
        actual = reference.clone()
        actual[2, 1, 3], actual[0, 0, 0] = -7.0, 6.0
        errors = compare(actual, reference)
        assert ((2, 1, 3), -7.0, 0.0) == (errors.worst_index, errors.worst_actual, errors.worst_reference)
        assert errors.at_worst() == "[2, 1, 3]: got -7, expected 0"

    def test_prefers_a_mismatch_to_any_difference(self) -> None:
        assert compare(tensor(1e30, NAN), tensor(0.0, 0.0)).worst_index == (1,)

    def test_of_a_scalar_has_no_coordinates(self) -> None:
        assert compare(torch.tensor(2.0), torch.tensor(1.0)).worst_index == ()


class TestCompare:
    @pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)], ids=str)
    def test_of_empty_tensors_finds_no_error(self, shape: tuple[int, ...]) -> None:
        errors = compare(torch.empty(shape), torch.empty(shape))
        assert errors.within(0.0, cosine=1.0)
        assert errors.worst_index is None

    def test_refuses_another_shape(self) -> None:
        with pytest.raises(ValueError, match=r"\(2,\), the reference \(2, 1\)"):
            compare(torch.zeros(2), torch.zeros(2, 1))

    @pytest.mark.parametrize("dtypes", [(torch.complex64, torch.complex64), (torch.complex64, torch.float64)], ids=["both", "one"])
    def test_refuses_complex_tensors(self, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
        with pytest.raises(ValueError, match="complex tensors are not supported"):
            compare(torch.zeros(2, dtype=dtypes[0]), torch.zeros(2, dtype=dtypes[1]))

    def test_is_the_same_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = torch.arange(60.0).reshape(5, 12)
        reference = values.double() + torch.linspace(2, -1, 60, dtype=torch.float64).square().roll(30).reshape(5, 12)
        whole = compare(values, reference)
        monkeypatch.setattr(numerics, "PIECE", 7)
        pieces = compare(values, reference)
        assert (whole.worst_index, whole.max_abs, whole.max_ulp) == (pieces.worst_index, pieces.max_abs, pieces.max_ulp)
        assert (whole.rel_l2, whole.cosine) == pytest.approx((pieces.rel_l2, pieces.cosine), rel=1e-14)

    def test_takes_any_strides(self) -> None:
        base = torch.arange(24.0).reshape(4, 6)
        assert compare(base.t()[:, ::2], base.t()[:, ::2].contiguous()).max_abs == 0


class TestBitEqual:
    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_holds_for_nan_and_tells_the_zeros_apart(self, dtype: torch.dtype) -> None:
        values = tensor(NAN, 0.0, dtype=dtype)
        assert bit_equal(values, values.clone())
        assert not bit_equal(values, tensor(NAN, -0.0, dtype=dtype))

    def test_needs_equal_dtype_and_shape(self) -> None:
        zeros = torch.zeros(4)
        assert not bit_equal(zeros, zeros.int())
        assert not bit_equal(zeros, zeros.reshape(2, 2))

    def test_takes_strides_and_bools(self) -> None:
        flags = torch.tensor([[True, False], [False, True]])
        assert bit_equal(flags.t(), flags)
        assert not bit_equal(flags[0], flags[1])

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
    def test_takes_complex_tensors(self, dtype: torch.dtype) -> None:
        values = torch.tensor([1 + 2j, 3 - 4j], dtype=dtype)
        assert bit_equal(values, values.clone())
        assert bit_equal(values.conj(), torch.tensor([1 - 2j, 3 + 4j], dtype=dtype))
        assert not bit_equal(values, values.conj())
