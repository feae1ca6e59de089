"""Many numbers to few: means, percentiles, curves, steps of time. Pure."""

import math
from collections.abc import Sequence

QUANTILES = (*(number / 100 for number in range(100)), 0.995, 0.999, 1.0)  # of a curve


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
