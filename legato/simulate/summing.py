"""Many numbers to few: means, percentiles, curves, steps of time, intervals. Pure."""

import math
from collections.abc import Sequence

QUANTILES = (*(number / 100 for number in range(100)), 0.995, 0.999, 1.0)  # of a curve
# Student's t, 97.5%: half of a two-sided interval of 95%, for 1 to 30 degrees of freedom (Abramowitz and Stegun 1964, table 26.10).
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
Z_975 = 1.959964  # of the normal distribution


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Of ordered values, between its two neighbours by their distance (Hyndman and Fan 1996, definition 7). None of no values."""
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def curve(ordered: Sequence[float]) -> list[float]:
    """The values at QUANTILES of ordered ones; there must be some."""
    return [percentile(ordered, share) or 0.0 for share in QUANTILES]


def binned(at_s: Sequence[float], values: Sequence[float], step_s: float) -> list[float | None]:
    """Means over equal steps of time from 0 on."""
    bins: dict[int, list[float]] = {}
    for when_s, value in zip(at_s, values, strict=True):
        bins.setdefault(int(when_s / step_s), []).append(value)
    return [mean(bins[step]) if step in bins else None for step in range(max(bins, default=-1) + 1)]


def mean(values: Sequence[float]) -> float | None:
    """None of no values."""
    return math.fsum(values) / len(values) if values else None


def share(part: float, whole: float) -> float | None:
    """None of nothing."""
    return part / whole if whole else None


def t_975(freedom: int) -> float:
    """Student's t, 97.5%. Beyond the table by Abramowitz and Stegun 26.7.5, right to 0.0005 there."""
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    z = Z_975
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The mean of some values, and its 95% interval if there are two or more."""
    count = len(values)
    middle = math.fsum(values) / count
    if count < 2:
        return middle, None, None
    variance = math.fsum((value - middle) ** 2 for value in values) / (count - 1)
    half = t_975(count - 1) * math.sqrt(variance / count)
    return middle, middle - half, middle + half
