"""Error measures between a tensor and its reference: relative L2, maximum, cosine, ULP, and where it is worst.

Everything is computed in fp64, in pieces, so that a large tensor needs little memory beside its own. Two integers differ by
exactly 0 only where they are equal, also beyond 2**53, where fp64 has gaps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

PIECE = 1 << 24
"""Elements compared at a time: bounds the temporary fp64 memory to about 1 GiB."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Errors:
    """How far a tensor is from its reference. With any mismatch the first three are infinite and `cosine` is NaN.

    Args:
        rel_l2: ||actual - reference|| / ||reference||; where the reference is all zero, ||actual||.
        max_abs: largest absolute difference.
        max_ulp: largest distance in representable values of the actual's dtype, after the reference is rounded to
            it; for integers the difference itself.
        cosine: cosine of the angle between the two; 1 where both are zero, 0 where one is.
        norm_ratio: ||actual|| / ||reference||; 1 where both are zero, infinite where only the reference is.
        rms: root mean square of the reference, elements that are not finite counting as zero.
        mismatches: elements where one is NaN or infinite and the other is not the same.
        worst_index: a mismatch, else the largest absolute difference; None for an empty tensor.
        worst_actual: the actual value there, an int for integers.
        worst_reference: the reference there.
    """

    rel_l2: float
    max_abs: float
    max_ulp: float
    cosine: float
    norm_ratio: float
    rms: float
    mismatches: int
    worst_index: tuple[int, ...] | None
    worst_actual: int | float | None
    worst_reference: int | float | None

    def within(self, rel_l2: float, cosine: float | None = None) -> bool:
        """Whether the relative L2 error and, where given, the cosine keep their limits; NaN never does."""
        near = self.rel_l2 <= rel_l2
        aligned = cosine is None or self.cosine >= cosine
        return near and aligned and self.mismatches == 0

    def at_worst(self) -> str:
        """The worst element in words: `[3, 17]: got 0.5, expected 0.25`."""
        return _at(self.worst_index or (), self.worst_actual, self.worst_reference)


@dataclass(frozen=True)
class Farthest:
    """The element that is farthest off for its size.

    Args:
        share: its absolute difference over the largest of its reference, the root mean square of the reference's row (along the last
            axis; of a row of over PIECE elements, of its piece), and that of the whole reference.
    """

    share: float
    index: tuple[int, ...]
    actual: float
    reference: float

    def __str__(self) -> str:
        return _at(self.index, self.actual, self.reference)


def _at(index: tuple[int, ...], actual: int | float | None, reference: int | float | None) -> str:
    return f"{list(index)}: got {_shown(actual)}, expected {_shown(reference)}"


def _shown(value: int | float | None) -> str:
    """Integers in full: six digits would not tell two large ones apart."""
    return f"{value:d}" if isinstance(value, int) else f"{value:.6g}"


def compare(actual: torch.Tensor, reference: torch.Tensor) -> Errors:
    """The errors of `actual` against `reference`, both of any real dtype, on one device.

    NaN and infinity in the reference are expected at the same place; such pairs are equal and enter no measure.

    Raises:
        ValueError: the shapes differ, or a tensor is complex.
    """
    if actual.is_complex() or reference.is_complex():
        raise ValueError(f"compare: complex tensors are not supported, actual is {actual.dtype}, the reference {reference.dtype}")
    if actual.shape != reference.shape:
        raise ValueError(f"compare: actual has shape {tuple(actual.shape)}, the reference {tuple(reference.shape)}")
    flat_actual, flat_reference = actual.reshape(-1), reference.reshape(-1)
    squares = [0.0, 0.0, 0.0, 0.0]
    max_ulp, mismatches, worst, worst_at = 0.0, 0, -1.0, None
    for begin in range(0, flat_actual.numel(), PIECE):
        piece = _compare_piece(flat_actual[begin : begin + PIECE], flat_reference[begin : begin + PIECE])
        squares = [total + part for total, part in zip(squares, piece[:4], strict=True)]
        ulp, wrong, largest, at = piece[4:]
        max_ulp, mismatches = max(max_ulp, ulp), mismatches + int(wrong)
        if largest > worst:
            worst, worst_at = largest, begin + int(at)
    if worst_at is None:
        return Errors(0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0, None, None, None)
    difference, own, expected = (math.sqrt(total) for total in squares[:3])
    place = tuple(int(i) for i in np.unravel_index(worst_at, actual.shape))
    infinite = mismatches > 0
    return Errors(
        rel_l2=math.inf if infinite else difference / expected if expected > 0 else difference,
        max_abs=math.inf if infinite else worst,
        max_ulp=math.inf if infinite else max_ulp,
        cosine=math.nan if infinite else _cosine(squares[3], own, expected),
        norm_ratio=math.inf if infinite else own / expected if expected > 0 else math.inf if own > 0 else 1.0,
        rms=expected / math.sqrt(actual.numel()),
        mismatches=mismatches,
        worst_index=place,
        worst_actual=flat_actual[worst_at].item(),
        worst_reference=flat_reference[worst_at].item(),
    )


def farthest(actual: torch.Tensor, reference: torch.Tensor, rms: float) -> Farthest:
    """The element that is farthest off for its size, of two tensors of one shape that are not empty.

    Pairs of which one is not finite count as equal.

    Args:
        rms: that of the whole reference, as `compare` gives it; above 0.
    """
    flat_actual, flat_reference = actual.reshape(-1), reference.reshape(-1)
    width = actual.shape[-1] if actual.dim() else 1
    step = PIECE // width * width if width <= PIECE else PIECE
    share, at = -1.0, 0
    for begin in range(0, flat_actual.numel(), step):
        a, r = flat_actual[begin : begin + step].double(), flat_reference[begin : begin + step].double()
        finite = a.isfinite() & r.isfinite()
        a, r = torch.where(finite, a, 0.0), torch.where(finite, r, 0.0)
        rows = r.view(-1, min(width, len(r)))
        size = torch.maximum(rows.abs(), rows.square().mean(dim=1, keepdim=True).sqrt()).clamp_min(rms)
        largest, place = ((a - r).abs() / size.view(-1)).max(dim=0)
        if float(largest) > share:
            share, at = float(largest), begin + int(place)
    index = tuple(int(i) for i in np.unravel_index(at, actual.shape))
    return Farthest(share, index, float(flat_actual[at]), float(flat_reference[at]))


def relative_l2(actual: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """||actual - reference|| / ||reference||, where the reference is all zero ||actual||: one number (fp64) that stays on the device.

    Both of one shape and any real dtype; NaN where either has a NaN or an infinity.
    """
    wide = reference.double()
    difference, expected = (actual.double() - wide).norm(), wide.norm()
    return torch.where(expected > 0, difference / expected, difference)


def _cosine(dot: float, own: float, expected: float) -> float:
    if own > 0 and expected > 0:
        return dot / own / expected
    return 1.0 if own == expected else 0.0


def _compare_piece(actual: torch.Tensor, reference: torch.Tensor) -> list[float]:
    """Sums of squares of difference, actual and reference, their dot product; ULP, mismatches, worst value and place."""
    a, r = actual.double(), reference.double()
    both_finite = a.isfinite() & r.isfinite()
    mismatch = ~(both_finite | (a == r) | (a.isnan() & r.isnan()))
    ulp = torch.where(both_finite, ulp_distance(actual, reference), 0.0).max()
    a, r = torch.where(both_finite, a, 0.0), torch.where(both_finite, r, 0.0)
    difference = _integer_difference(actual, reference) if _are_integers(actual, reference) else a - r
    worst, at = torch.where(mismatch, math.inf, difference.abs()).max(dim=0)
    sums = (difference.square().sum(), a.square().sum(), r.square().sum(), (a * r).sum())
    found = torch.stack([*sums, ulp, mismatch.sum().double(), worst, at.double()])
    return found.tolist()


def any_finite(tensor: torch.Tensor) -> bool:
    """Whether a real tensor has an element that is neither NaN nor infinite."""
    flat = tensor.reshape(-1)
    pieces = (flat[begin : begin + PIECE] for begin in range(0, flat.numel(), PIECE))
    return any(bool(piece.double().isfinite().any()) for piece in pieces)  # not every dtype (fp8) has an isfinite of its own


def _are_integers(*tensors: torch.Tensor) -> bool:
    return not any(tensor.dtype.is_floating_point for tensor in tensors)


def _integer_difference(actual: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Actual minus reference, both of integers or bools (fp64): rounded once, so 0 only where they are equal."""
    # 64-bit integers round in fp64 and their difference can overflow; each half of the bits does neither.
    (high, low), (other_high, other_low) = _halves(actual), _halves(reference)
    return (high - other_high) * 2.0**32 + (low - other_low)


def _halves(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The multiple of 2**32 and the rest (0 to 2**32 - 1) that make up each integer (fp64, both exact)."""
    wide = bits(values) if values.dtype == torch.uint64 else values.long()
    high = wide >> 32
    if values.dtype == torch.uint64:
        high &= 0xFFFFFFFF
    return high.double(), (wide & 0xFFFFFFFF).double()


def ulp_distance(actual: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Representable values between two tensors, element by element (fp64), in the actual's dtype.

    The reference is rounded to that dtype first; both zeros are one value. Integers give their difference.
    """
    if not actual.dtype.is_floating_point:
        exact = _are_integers(actual, reference)
        return (_integer_difference(actual, reference) if exact else actual.double() - reference.double()).abs()
    one, other = _ordinal(actual), _ordinal(reference.to(actual.dtype))
    # Of opposite signs the integer difference could overflow, so magnitudes are added in fp64.
    apart = one.abs().double() + other.abs().double()
    return torch.where((one < 0) != (other < 0), apart, (one - other).abs().double())


def _ordinal(values: torch.Tensor) -> torch.Tensor:
    """The position of each float among the representable values, zero at 0 (int64): sign and magnitude of its bits."""
    signed = bits(values)
    magnitude = signed.long() & torch.iinfo(signed.dtype).max
    return torch.where(signed < 0, -magnitude, magnitude)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the tensor's bits as signed integers of the same size: what equal results share, NaN included.

    Of a complex tensor the bits of both parts, along a new last axis.
    """
    tensor = tensor.detach()
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real.view(_INTEGERS[real.element_size()])


def bit_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bits."""
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bits(one), bits(other))
