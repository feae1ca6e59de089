"""A report in one HTML file: no request leaves it, and it follows the reader's light or dark."""

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import jinja2
import msgspec
from markupsafe import Markup

from legato.simulate.chart import Axis, Line, Range, line_chart, range_chart
from legato.simulate.comparison import Comparison, Place, estimate
from legato.simulate.defined import BY_NAME, FIGURES, PERCENTILES
from legato.simulate.figures import Figures, Report
from legato.simulate.scenario import Scenario
from legato.simulate.shown import about, change, common, group_name, interval, number, place_line, policy_sets
from legato.simulate.summing import QUANTILES, mean

TIMES = {
    "ttft": "Time to first token",
    "itl": "Time between tokens",
    "call": "A call from end to end",
    "program": "A program from end to end",
}
SERIES = {
    "queued": ("Steps waiting in the schedulers", "steps"),
    "running": ("Attempts in engines", "attempts"),
    "kv_used": ("KV blocks that requests hold", "share"),
    "kv_cached": ("KV blocks kept for their content", "share"),
    "workers": ("Workers ready", "workers"),
    "coming": ("Workers on their way", "workers"),
    "tokens_per_s": ("Output tokens per second", "tokens/s"),
    "hit_rate": ("Prompt tokens found in caches", "share"),
    "usd_per_hour": ("Money per hour", "USD"),
}
GROUPS = {"kinds": "By kind of program", "tenants": "By tenant", "parts": "By when they began"}
GROUP_FIGURES = ("calls", "call_success", "ttft_p50_s", "ttft_p99_s", "itl_p99_s", "program_mean_s", "program_p99_s", "program_well")


class Group(NamedTuple):
    """A table of groups: for each its name, and for each policy its figures."""

    title: str
    rows: list[tuple[str, list[tuple[str, list[str]]]]]


def page(
    scenarios: Mapping[str, Scenario], settings: Mapping[str, Mapping[str, Any]], comparison: Comparison, reports: Sequence[Report]
) -> str:
    """The whole file. `scenarios`, `settings`: by policy, as they were played, and what it sets."""
    by_policy = {policy: [each for each in reports if each.policy == policy] for policy in comparison.policies}
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(files("legato.simulate").joinpath("page.html.jinja").read_text())
    return template.render(
        scenario=next(iter(scenarios.values())),
        policies=comparison.policies,
        settings={policy: policy_sets(own) or "as the scenario says for all" for policy, own in settings.items()},
        common=common(scenarios),
        fleets={policy: about(each) for policy, each in scenarios.items()},
        seeds=comparison.seeds,
        rows=[row for row in comparison.rows if any(row.policies.values())],
        figures=BY_NAME,
        headlines=[figure.name for figure in FIGURES if figure.headline],
        losses=_lines(comparison.losses),
        gains=_lines(comparison.gains),
        percentiles=_drawn(_percentiles(name, title, by_policy) for name, title in TIMES.items()),
        distributions=_drawn(_distribution(name, title, by_policy) for name, title in TIMES.items()),
        over_time=_drawn(_over_time(name, by_policy) for name in SERIES),
        groups=[_group(field, title, by_policy) for field, title in GROUPS.items()],
        group_figures=GROUP_FIGURES,
        facts=msgspec.json.format(msgspec.json.encode(next(iter(scenarios.values()))), indent=2).decode(),
        runs=reports,
        number=number,
        change=change,
        interval=interval,
    )


def _lines(places: Sequence[Place]) -> dict[str, list[str]]:
    """By policy."""
    found: dict[str, list[str]] = {}
    for place in places:
        found.setdefault(place.policy, []).append(place_line(place))
    return found


def _drawn(charts: Iterable[str]) -> list[Markup]:
    """Those in which there is something. The charts escape what is in them."""
    return [Markup(chart) for chart in charts if chart]


def _percentiles(name: str, title: str, by_policy: Mapping[str, Sequence[Report]]) -> str:
    ranges = []
    for policy, runs in by_policy.items():
        values = [_mean(f"{name}_p{percent}_s", runs) for percent in PERCENTILES]
        ranges.append(Range(policy, [value for value in values if value is not None]))
    return range_chart(f"{title}: p50, p90, p99", ranges, Axis("", _seconds, log=True))


def _distribution(name: str, title: str, by_policy: Mapping[str, Sequence[Report]]) -> str:
    lines = []
    for policy, runs in by_policy.items():
        curves = [run.curves[name] for run in runs if name in run.curves]
        values = [math.fsum(at) / len(at) for at in zip(*curves, strict=True)]
        lines.append(Line(policy, list(zip(values, QUANTILES, strict=False))))
    return line_chart(f"{title}: share that took at most so long", lines, Axis("", _seconds, log=True), Axis("", _per_cent))


def _over_time(name: str, by_policy: Mapping[str, Sequence[Report]]) -> str:
    title, unit = SERIES[name]
    lines = []
    for policy, runs in by_policy.items():
        step_s = runs[0].step_s
        columns = [run.series[name] for run in runs]
        points = []
        for index in range(max(map(len, columns))):
            values = [value for column in columns if index < len(column) and (value := column[index]) is not None]
            points.append(((index + 0.5) * step_s, mean(values)))
        lines.append(Line(policy, points))
    if not any(up for line in lines for _, up in line.points):
        return ""
    return line_chart(title, lines, Axis("s"), Axis("" if unit == "share" else unit, _per_cent if unit == "share" else Axis("").spelled))


def _group(field: str, title: str, by_policy: Mapping[str, Sequence[Report]]) -> Group:
    names = sorted({name for runs in by_policy.values() for run in runs for name in getattr(run, field)})
    rows = []
    for name in names:
        cells = []
        for policy, runs in by_policy.items():
            figures: dict[int, Figures] = {run.seed: getattr(run, field).get(name, {}) for run in runs}
            found = [(BY_NAME[figure].unit, estimate(figure, figures)) for figure in GROUP_FIGURES]
            cells.append((policy, [number(each.mean if each else None, unit) for unit, each in found]))
        rows.append((group_name(name), cells))
    return Group(title, rows)


def _mean(figure: str, runs: Sequence[Report]) -> float | None:
    return mean([value for run in runs if (value := run.figures.get(figure)) is not None])


def _seconds(value: float) -> str:
    return number(value, "s")


def _per_cent(value: float) -> str:
    return f"{value:.0%}" if value >= 0.1 or not value else f"{value:.3g}"
