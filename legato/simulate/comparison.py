"""Policies against each other: the same seeds, so the same loads, differences pair by pair, and intervals that say what is sure. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from legato.simulate.defined import BY_NAME, FIGURES, Better
from legato.simulate.figures import Figures, Report

# Student's t, 97.5%: half of a two-sided interval of 95%, for 1 to 30 degrees of freedom (Abramowitz and Stegun 1964, table 26.10).
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
Z_975 = 1.959964  # of the normal distribution
LOSS_SHARE = 0.02  # a loss that is smaller is not worth a line
LOSS_SHARE_UNSURE = 0.1  # and where one seed cannot say what is chance
LOSSES_MAX = 12  # of one policy, the largest first

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


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Where a policy is worse than the first one: for a kind of program, a tenant, or a part of the time."""

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
    losses: list[Loss]


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


def compare(reports: Sequence[Report]) -> Comparison:
    """Reports of one scenario: each policy with the same seeds, in any order but that the first policy comes first."""
    policies = list(dict.fromkeys(each.policy for each in reports))
    runs = {policy: {each.seed: each for each in reports if each.policy == policy} for policy in policies}
    seeds = sorted(runs[policies[0]]) if policies else []
    figures = {policy: {seed: each.figures for seed, each in runs[policy].items()} for policy in policies}
    rows = [_row(figure.name, policies, figures) for figure in FIGURES]
    losses = [loss for policy in policies[1:] for loss in _losses(policy, runs[policies[0]], runs[policy])]
    return Comparison(policies=policies, seeds=seeds, rows=rows, losses=losses)


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


def _losses(policy: str, base: Mapping[int, Report], other: Mapping[int, Report]) -> list[Loss]:
    found: list[Loss] = []
    places: tuple[tuple[Literal["kind", "tenant", "part"], str], ...] = (("kind", "kinds"), ("tenant", "tenants"), ("part", "parts"))
    for by, field in places:
        groups = sorted({name for each in base.values() for name in getattr(each, field)})
        if len(groups) < 2 and by != "kind":
            continue  # it is the whole, as the kind is
        for group in groups:
            before = {seed: getattr(each, field).get(group, {}) for seed, each in base.items()}
            after = {seed: getattr(each, field).get(group, {}) for seed, each in other.items()}
            for name in dict.fromkeys(name for figures in before.values() for name in figures):
                loss = difference(name, before, after)
                first, second = estimate(name, before), estimate(name, after)
                if loss is not None and first is not None and second is not None and _counts(name, loss):
                    found.append(Loss(policy=policy, by=by, group=group, figure=name, base=first.mean, mean=second.mean, difference=loss))
    found.sort(key=lambda each: -abs(each.difference.share or 0.0))
    return found[:LOSSES_MAX]


def _counts(name: str, loss: Difference) -> bool:
    """It is sure and large enough; or, of one seed, large."""
    size = math.inf if loss.share is None else abs(loss.share)
    if loss.verdict == "worse":
        return size >= LOSS_SHARE
    better = BY_NAME[name].better
    wrong = loss.mean < 0 if better == "higher" else loss.mean > 0
    return loss.low is None and bool(better) and wrong and size >= LOSS_SHARE_UNSURE
