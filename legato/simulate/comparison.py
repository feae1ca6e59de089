"""Policies against each other: the same seeds, so the same loads, differences pair by pair, and intervals that say what is sure. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from legato.simulate.defined import BY_NAME, FIGURES, Better
from legato.simulate.figures import Figures, Report
from legato.simulate.summing import interval

PLACE_SHARE = 0.02  # a loss or a gain that is smaller is not worth a line
PLACE_SHARE_UNSURE = 0.1  # and where one seed cannot say what is chance
PLACES_MAX = 8  # of one policy, the largest first

Verdict = Literal["better", "worse", "higher", "lower", "equal", "unclear"]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over seeds with its 95% interval; without one (None) where there is one seed."""

    mean: float
    low: float | None
    high: float | None
    seeds: int  # that had something to say


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A policy minus the first one, mean over seeds, with its 95% interval. `share`: of the first one's mean; None where that is 0.
    `verdict`: what the interval says; `higher` and `lower` of figures of which no way is better, `unclear` where it has 0 in it."""

    mean: float
    low: float | None
    high: float | None
    share: float | None
    seeds: int
    verdict: Verdict


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, by policy. None: there was nothing to say in any seed."""

    figure: str
    unit: str
    better: Better
    policies: dict[str, Estimate | None]
    differences: dict[str, Difference | None]  # of all but the first


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a policy is worse, or better, than the first one: for a kind of program, a tenant, or a part of the time."""

    policy: str
    by: Literal["kind", "tenant", "part"]
    group: str
    figure: str
    base: float
    mean: float
    difference: Difference


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All policies of a scenario; the first one is what the others are compared with."""

    policies: list[str]
    seeds: list[int]
    rows: list[Row]
    losses: list[Place]
    gains: list[Place]


def compare(reports: Sequence[Report]) -> Comparison:
    """Reports of one scenario: each policy with the same seeds, in any order but that the first policy comes first."""
    policies = list(dict.fromkeys(each.policy for each in reports))
    runs = {policy: {each.seed: each for each in reports if each.policy == policy} for policy in policies}
    seeds = sorted(runs[policies[0]]) if policies else []
    figures = {policy: {seed: each.figures for seed, each in runs[policy].items()} for policy in policies}
    rows = [_row(figure.name, policies, figures) for figure in FIGURES]
    places = {policy: _places(policy, runs[policies[0]], runs[policy]) for policy in policies[1:]}
    return Comparison(
        policies=policies,
        seeds=seeds,
        rows=rows,
        losses=[place for found in places.values() for place in _largest(found, "worse")],
        gains=[place for found in places.values() for place in _largest(found, "better")],
    )


def _row(name: str, policies: Sequence[str], figures: Mapping[str, Mapping[int, Figures]]) -> Row:
    base = figures[policies[0]]
    return Row(
        figure=name,
        unit=BY_NAME[name].unit,
        better=BY_NAME[name].better,
        policies={policy: estimate(name, figures[policy]) for policy in policies},
        differences={policy: difference(name, base, figures[policy]) for policy in policies[1:]},
    )


def estimate(name: str, runs: Mapping[int, Figures]) -> Estimate | None:
    """A figure over all seeds in which there is one."""
    values = [value for figures in runs.values() if (value := figures.get(name)) is not None]
    if not values:
        return None
    middle, low, high = interval(values)
    return Estimate(mean=middle, low=low, high=high, seeds=len(values))


def difference(name: str, base: Mapping[int, Figures], other: Mapping[int, Figures]) -> Difference | None:
    """Pair by pair, over all seeds in which both have the figure."""
    pairs = [
        (before, after)
        for seed in base
        if (before := base[seed].get(name)) is not None and (after := other.get(seed, {}).get(name)) is not None
    ]
    if not pairs:
        return None
    middle, low, high = interval([after - before for before, after in pairs])
    of = math.fsum(before for before, _ in pairs) / len(pairs)
    return Difference(
        mean=middle,
        low=low,
        high=high,
        share=middle / abs(of) if of else None,
        seeds=len(pairs),
        verdict=_verdict(BY_NAME[name].better, all(before == after for before, after in pairs), low, high),
    )


def _verdict(better: Better, equal: bool, low: float | None, high: float | None) -> Verdict:
    if equal:
        return "equal"
    if low is None or high is None or low <= 0 <= high:
        return "unclear"
    way: Better = "higher" if low > 0 else "lower"
    if not better:
        return "higher" if low > 0 else "lower"
    return "better" if way == better else "worse"


def _places(policy: str, base: Mapping[int, Report], other: Mapping[int, Report]) -> list[Place]:
    """Every figure of every group."""
    found: list[Place] = []
    fields: tuple[tuple[Literal["kind", "tenant", "part"], str], ...] = (("kind", "kinds"), ("tenant", "tenants"), ("part", "parts"))
    for by, field in fields:
        groups = sorted({name for each in base.values() for name in getattr(each, field)})
        if len(groups) < 2 and by != "kind":
            continue  # it is the whole, as the kind is
        for group in groups:
            before = {seed: getattr(each, field).get(group, {}) for seed, each in base.items()}
            after = {seed: getattr(each, field).get(group, {}) for seed, each in other.items()}
            for name in dict.fromkeys(name for figures in before.values() for name in figures):
                apart, first, second = difference(name, before, after), estimate(name, before), estimate(name, after)
                if apart is not None and first is not None and second is not None:
                    found.append(Place(policy=policy, by=by, group=group, figure=name, base=first.mean, mean=second.mean, difference=apart))
    return found


def _largest(places: Sequence[Place], verdict: Verdict) -> list[Place]:
    """Those of one verdict that are worth a line; of the percentiles of one time the largest."""
    by_size = sorted((each for each in places if _counts(each.figure, each.difference, verdict)), key=lambda each: -_size(each.difference))
    of_each: dict[tuple[str, str, str], Place] = {}
    for each in by_size:
        of_each.setdefault((each.by, each.group, each.figure.split("_")[0]), each)
    return list(of_each.values())[:PLACES_MAX]


def _size(apart: Difference) -> float:
    return math.inf if apart.share is None else abs(apart.share)


def _counts(name: str, apart: Difference, verdict: Verdict) -> bool:
    """It is sure and large enough; or, of one seed, large."""
    if apart.verdict == verdict:
        return _size(apart) >= PLACE_SHARE
    better = BY_NAME[name].better
    looks: Verdict = "better" if (apart.mean > 0) == (better == "higher") else "worse"
    return apart.low is None and apart.mean != 0 and bool(better) and looks == verdict and _size(apart) >= PLACE_SHARE_UNSURE
