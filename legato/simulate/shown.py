"""Figures as people read them: numbers with their units, and what the terminal shows of a comparison."""

import json
import re
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from legato.console import Rows, out, say, table
from legato.simulate.comparison import Comparison, Difference, Place, Row, Verdict
from legato.simulate.defined import BY_NAME
from legato.simulate.scenario import Scenario

TROUBLE = (
    "program_unfinished",
    *(f"call_{end}" for end in ("refused", "shed", "expired", "cancelled", "failed")),
    "lost_attempts",
    "violations",
)
PART = re.compile(r"\d+ to \d+ s")
COLOURS: dict[Verdict, str] = {"better": "green", "worse": "red"}


def number(value: float | None, unit: str) -> str:
    """Three digits that matter, and the unit where a number alone does not say it."""
    if value is None:
        return "-"
    if unit == "share":
        return f"{value:.1%}"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{_three(value * 1e3)} ms"
    return f"{_three(value)} {_SHORT.get(unit, '')}".rstrip()


def change(difference: Difference | None, unit: str) -> str:
    """A difference, signed: of shares in points, of all else in per cent of the first policy, or as it is where that is 0."""
    if difference is None:
        return "-"
    return _signed(difference.mean, difference, unit)


def interval(difference: Difference | None, unit: str) -> str:
    """Its 95% interval, in the same terms."""
    if difference is None or difference.low is None or difference.high is None:
        return "-"
    return f"{_signed(difference.low, difference, unit)} to {_signed(difference.high, difference, unit)}"


def group_name(name: str) -> str:
    """A group's name without the zeros that put parts of the time in order."""
    return re.sub(r"\b0+(?=\d)", "", name) if PART.fullmatch(name) else name


def place_line(place: Place) -> str:
    """Where and by how much a policy is worse or better, in words."""
    unit = BY_NAME[place.figure].unit
    where = {"kind": "programs of kind", "tenant": "tenant", "part": "begun from"}[place.by]
    sure = f" (95%: {interval(place.difference, unit)})" if place.difference.low is not None else " (one seed)"
    return (
        f"{where} {group_name(place.group)}: {place.figure} {number(place.mean, unit)} instead of {number(place.base, unit)}, "
        f"{change(place.difference, unit)}{sure}"
    )


def print_comparison(comparison: Comparison) -> None:
    """The headline figures of all policies; and where each is worse and better than the first."""
    base = comparison.policies[0]
    rows = headlines(comparison)
    out.print(_means(comparison, rows))
    for policy in comparison.policies[1:]:
        out.print(f"\n{policy} against {base}, pair by pair", style="bold", markup=False)
        out.print(_differences(policy, rows))
        for told, places in (("It loses here:", comparison.losses), ("It gains here:", comparison.gains)):
            found = [place for place in places if place.policy == policy]
            for line in [told, *(f"  {place_line(place)}" for place in found)] if found else []:
                out.print(line, markup=False, soft_wrap=True)
    if len(comparison.seeds) == 1 and len(comparison.policies) > 1:
        say("\nOne seed says nothing about chance: --seeds 10 gives each difference an interval.")


def headlines(comparison: Comparison) -> list[Row]:
    """The figures to look at first, and whatever trouble there was."""
    return [row for row in comparison.rows if _shown(row)]


def about(scenario: Scenario) -> str:
    """The fleet, the load and how long it is played."""
    pools = ", ".join(f"{pool.count} x {pool.law} ({name})" for name, pool in scenario.pools.items())
    return f"{pools}; {', '.join(load.kind for load in scenario.workload)}; {scenario.seconds:,.0f} s"


def common(scenarios: Mapping[str, Scenario]) -> str:
    """What there is to say about all policies' scenarios; empty where some policy has another fleet, load or time."""
    told = {about(scenario) for scenario in scenarios.values()}
    return told.pop() if len(told) == 1 else ""


def policy_lines(scenarios: Mapping[str, Scenario], settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What each policy sets, and its fleet where not all have the same; without those of which there is nothing to say but their name."""
    alike = bool(common(scenarios))
    lines = {}
    for policy, scenario in scenarios.items():
        own = policy_sets(settings[policy])
        said = [own] if own.replace(" ", "") != policy.replace(" ", "") else []  # else it is said in place: its name is what it sets
        line = "; ".join([*filter(None, said), *([] if alike else [about(scenario)])])
        if line:
            lines[policy] = line
    return lines


def policy_sets(settings: Mapping[str, Any]) -> str:
    """Keys and values in one line; empty for a policy that sets nothing."""
    plain = {key: isinstance(value, str) and value.isprintable() for key, value in settings.items()}
    return ", ".join(f"{key} = {value if plain[key] else json.dumps(value, default=str)}" for key, value in settings.items())


def _shown(row: Row) -> bool:
    means = [estimate.mean for estimate in row.policies.values() if estimate is not None]
    return any(means) if row.figure in TROUBLE else BY_NAME[row.figure].headline and bool(means)


def _means(comparison: Comparison, rows: list[Row]) -> Rows:
    columns = tuple(comparison.policies)
    made = table("FIGURE", *columns, right=columns)
    for row in rows:
        cells: list[str | Text] = []
        for policy in comparison.policies:
            estimate, difference = row.policies[policy], row.differences.get(policy)
            text = number(estimate.mean if estimate else None, row.unit)
            cells.append(Text(text, style=COLOURS.get(difference.verdict, "") if difference else ""))
        made.add_row(row.figure, *cells)
    return made


def _differences(policy: str, rows: list[Row]) -> Rows:
    made = table("FIGURE", "DIFFERENCE", "95% INTERVAL", "", right=("DIFFERENCE", "95% INTERVAL"))
    for row in rows:
        found = row.differences[policy]
        if found is not None and found.verdict != "equal":
            verdict = Text(found.verdict, style=COLOURS.get(found.verdict, "dim"))
            made.add_row(row.figure, change(found, row.unit), interval(found, row.unit), verdict)
    return made


def _signed(value: float, difference: Difference, unit: str) -> str:
    if unit == "share":
        return f"{value * 100:+.1f} points"
    if difference.share is None or not difference.mean:
        return f"{value:+.3g} {_SHORT.get(unit, '')}".rstrip()
    return f"{value * difference.share / difference.mean:+.1%}"


_SHORT = {"s": "s", "USD": "USD", "1/s": "/s", "worker-s": "s", "tokens/s": "/s"}


def _three(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
