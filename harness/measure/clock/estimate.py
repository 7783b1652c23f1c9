"""Estimators over the samples of one launch: pure functions, no clock.

The estimate is the median of all samples; none is dropped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from harness.measure.clock.settings import HALF_WIDTHS

BATCHES = 10
STUDENT_T = 2.262
"""97.5 % point of Student's t with BATCHES - 1 degrees of freedom (any table of it)."""
MAD_TO_SD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation (Rousseeuw and Croux, 1993)."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for a normal distribution: sqrt(pi / 2)."""


def half_width(samples: Sequence[float]) -> float:
    """Half width of the median's 95 % interval, from the scatter of BATCHES consecutive batches' medians.

    Batches rather than single samples, since consecutive samples are correlated: the method of batch means
    (Law, Simulation Modeling and Analysis, 5th edition, section 9.5.3). Infinite below two samples a batch.
    """
    if len(samples) < 2 * BATCHES:
        return math.inf
    edges = [round(i * len(samples) / BATCHES) for i in range(BATCHES + 1)]
    medians = [statistics.median(samples[a:b]) for a, b in pairwise(edges)]
    return STUDENT_T * statistics.stdev(medians) / math.sqrt(BATCHES)


def tolerance_at(us: float) -> float:
    """The relative half width that is accurate enough for a call of `us`."""
    return next(width for least, width in HALF_WIDTHS if us >= least)


def is_accurate(samples: Sequence[float]) -> bool:
    """Whether the median of `samples` (us a call) is known well enough."""
    middle = statistics.median(samples)
    return half_width(samples) <= tolerance_at(middle) * middle


def is_representative(samples: Sequence[float]) -> bool:
    """Whether the median is accurate and stands for all calls: the mean lies within the tolerance of it.

    It does not where calls differ from sample to sample, a dear one among cheap ones say, of a kernel that declares no cycle: then the
    median is the time of the cheap ones alone.
    """
    middle = statistics.median(samples)
    return is_accurate(samples) and abs(statistics.fmean(samples) - middle) <= tolerance_at(middle) * middle


def windows_agree(windows: Sequence[Sequence[float]]) -> bool:
    """Whether the last three windows' medians lie within the tolerance of each other."""
    if len(windows) < 3:
        return False
    medians = [statistics.median(window) for window in windows[-3:]]
    return max(medians) - min(medians) <= tolerance_at(medians[-1]) * medians[-1]


def has_shifted(samples: Sequence[float]) -> bool:
    """Whether the last third of the samples has another level than the first: by more than the tolerance, and than noise explains."""
    third = len(samples) // 3
    if third < 5:
        return False
    first, last = samples[:third], samples[-third:]
    before, after = statistics.median(first), statistics.median(last)
    apart = abs(after - before)
    spread = MAD_TO_SD * statistics.median([abs(x - before) for x in first] + [abs(x - after) for x in last])
    noise = MEDIAN_ERROR * spread * math.sqrt(2 / third)
    return apart > tolerance_at(after) * after and apart > 4 * noise


def cycle_step(cycle_us: Sequence[float], length: int) -> float:
    """Time of one step of a cycle: the median time of whole cycles over their length. Never a median over steps."""
    return statistics.median(cycle_us) / length


def tick_of(elapsed_us: Sequence[float]) -> float:
    """The tick of a clock, from many readings: the smallest distance between two different ones.

    It is never below the true tick, so samples sized by it are long enough.

    Raises:
        ValueError: all readings are equal.
    """
    # torch gives fp32 milliseconds: a difference below a millionth of a reading, or below 0.1 ns, is rounding.
    values = sorted(elapsed_us)
    gaps = [b - a for a, b in pairwise(values) if b - a > max(1e-4, 1e-6 * abs(b))]
    if not gaps:
        raise ValueError("tick_of: every reading is the same; take readings of different lengths")
    return min(gaps)


def calls_lasting(least_us: float, us: float) -> int:
    """How many calls last for `least_us`. What a sample costs beside its calls is then the same part of every sample."""
    return max(1, math.ceil(least_us / max(us, 1e-3)))


def calls_per_sample(us: float, unit: int, least_us: float) -> int:
    """How many repetitions of `unit` calls make a sample of at least `least_us`: a power of two, so that equal code gets equal samples.

    Args:
        us: a call's time.
        unit: calls that a sample holds a multiple of: the ring, times the cycle.
    """
    repetitions = calls_lasting(least_us, max(us, 1e-3) * unit)
    return 1 << (repetitions - 1).bit_length()
