"""When programs begin: a renewal process in a time of its own, which runs faster where the load is higher.

The gaps have a mean of one; the load decides how much of that a second is. So a burst keeps its shape at night and in a flash crowd,
which it loses if a busier process is thinned out (Gerhardt and Nelson, "Transforming renewal processes for simulation of nonstationary
arrival processes", INFORMS Journal on Computing 2009: inversion and thinning). With a CV of 1 both are the Poisson process. Gamma and
Weibull gaps with a CV above 1 are what production traffic shows (ServeGen, 2025; BurstGPT, 2024).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from shared.sim.workloads.chance import Random

Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
Family = Literal["gamma", "weibull"]
Gap = Callable[[Random], float]

PAST_GAPS = 100.0  # that lie before the beginning: as if the process had run for ever, it begins in the middle of a gap
STEPS_A_DAY = 1_440  # in which the load is constant


class Flash(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A crowd: `factor` times as many programs begin, for a while. Several at a time multiply."""

    at_s: Seconds
    seconds: Seconds
    factor: Annotated[float, Meta(ge=0, le=10_000)]


class Arrivals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cv`: the gaps' standard deviation over their mean; 1 with gamma: Poisson. `diurnal`: how far the load goes up and down around its
    mean, as a share, in one sine wave of `period_s` with its top at `peak_s`."""

    cv: Annotated[float, Meta(ge=0.05, le=20)] = 1.0
    family: Family = "gamma"
    diurnal: Annotated[float, Meta(ge=0, le=1)] = 0.0
    period_s: Annotated[float, Meta(ge=1, le=31_536_000)] = 86_400.0
    peak_s: Seconds = 50_400.0
    flashes: Annotated[tuple[Flash, ...], Meta(max_length=100)] = ()

    def load(self, at_s: float) -> float:
        """How many times the mean rate it is then."""
        wave = 1 + self.diurnal * math.cos(2 * math.pi * (at_s - self.peak_s) / self.period_s)
        return wave * math.prod(flash.factor for flash in self.flashes if flash.at_s <= at_s < flash.at_s + flash.seconds)


class Piece(NamedTuple):
    """A stretch of time up to `until_s` with one rate, and one law of gaps whose mean is 1."""

    until_s: float
    rate_per_s: float
    gap: Gap


def times(rate_per_s: float, arrivals: Arrivals, seconds: float, random: Random) -> Iterator[float]:
    """When programs begin, in order, from 0 up to `seconds`."""
    shape = gamma_shape(arrivals.cv) if arrivals.family == "gamma" else weibull_shape(arrivals.cv)
    return arrive(_pieces(rate_per_s, arrivals, seconds, gap_of(arrivals.family, shape)), random)


def arrive(pieces: Iterable[Piece], random: Random) -> Iterator[float]:
    """When programs begin, in order, from 0 to the last piece's end."""
    at_s = 0.0
    left = math.nan  # of the gap before the next one, in gaps of the mean length
    for until_s, rate_per_s, gap in pieces:
        if rate_per_s > 0:
            left = _begun(gap, random) if math.isnan(left) else left
            while at_s + left / rate_per_s < until_s:
                at_s += left / rate_per_s
                yield at_s
                left = gap(random)
            left -= (until_s - at_s) * rate_per_s
        at_s = until_s


def gap_of(family: Family, shape: float) -> Gap:
    """Draws gaps with a mean of 1."""
    if family == "gamma":
        return lambda random: random.gammavariate(shape, 1 / shape)
    scale = 1 / math.gamma(1 + 1 / shape)
    return lambda random: random.weibullvariate(scale, shape)


def gamma_shape(cv: float) -> float:
    """Of a gamma distribution with that coefficient of variation."""
    return 1 / cv**2


def weibull_shape(cv: float) -> float:
    """Of a Weibull distribution with that coefficient of variation, from 0.05 to 20, by halving an interval in which it must be."""
    low, high = 0.1, 30.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _weibull_cv(middle) > cv else (low, middle)
    return low


def _weibull_cv(shape: float) -> float:
    return math.sqrt(math.exp(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)) - 1)


def _begun(gap: Gap, random: Random) -> float:
    """What is left of the gap that the beginning falls into."""
    at = 0.0
    while at < PAST_GAPS:
        at += gap(random)
    return at - PAST_GAPS


def _pieces(rate_per_s: float, arrivals: Arrivals, seconds: float, gap: Gap) -> Iterator[Piece]:
    step_s = arrivals.period_s / STEPS_A_DAY if arrivals.diurnal else math.inf
    edges = [edge for flash in arrivals.flashes for edge in (flash.at_s, flash.at_s + flash.seconds)]
    at_s = 0.0
    while at_s < seconds:
        until_s = min(at_s + step_s, seconds, *(edge for edge in edges if edge > at_s))
        yield Piece(until_s, rate_per_s * arrivals.load((at_s + until_s) / 2), gap)
        at_s = until_s
