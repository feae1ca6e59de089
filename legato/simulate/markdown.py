"""A comparison as a table of Markdown, to be kept beside what it is about."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from legato.simulate.comparison import Comparison, Row
from legato.simulate.scenario import Scenario
from legato.simulate.shown import change, common, headlines, number, policy_lines


def markdown(
    scenarios: Mapping[str, Scenario], settings: Mapping[str, Mapping[str, Any]], comparison: Comparison, command: str, day: date
) -> str:
    """The headline figures of all policies. `scenarios`, `settings`: by policy, as they were played, and what it sets. `command`: what
    made it."""
    scenario = next(iter(scenarios.values()))
    base, *others = comparison.policies
    seeds = f"seeds {comparison.seeds[0]} to {comparison.seeds[-1]}" if len(comparison.seeds) > 1 else f"seed {comparison.seeds[0]}"
    lines = [f"# {scenario.name}: {scenario.question}" if scenario.question else f"# {scenario.name}", ""]
    lines += [f"`{command}`, {day:%d %B %Y}, {seeds}.", *(f"{told}." for told in [common(scenarios)] if told)]
    if others:
        said = f"Behind a figure stands its difference to `{base}`, pair by pair, where the 95% interval leaves 0 out"
        lines.append(f"{said}. The best of a row are **bold**.")
    own = policy_lines(scenarios, settings)
    lines += ["", *(f"- `{policy}`: {told}" for policy, told in own.items())] if own else []
    lines += ["", *_table(comparison.policies, headlines(comparison))]
    return "\n".join(lines) + "\n"


def _table(policies: Sequence[str], rows: Sequence[Row]) -> list[str]:
    lines = [f"| figure | {' | '.join(map(_text, policies))} |", f"|---|{'---|' * len(policies)}"]
    for row in rows:
        best = _best(row)
        cells = []
        for policy in policies:
            estimate, difference = row.policies[policy], row.differences.get(policy)
            cell = number(estimate.mean if estimate else None, row.unit)
            cell = f"**{cell}**" if cell in best else cell
            sure = difference is not None and difference.low is not None and difference.verdict not in ("equal", "unclear")
            cells.append(f"{cell} ({change(difference, row.unit)})" if sure else cell)
        lines.append(f"| {row.figure} | {' | '.join(cells)} |")
    return lines


def _best(row: Row) -> set[str]:
    """As it is written, so that what looks equal is; nothing where all do, or no way is better."""
    means = [estimate.mean for estimate in row.policies.values() if estimate is not None]
    if not row.better or len({number(mean, row.unit) for mean in means}) < 2:
        return set()
    return {number(min(means) if row.better == "lower" else max(means), row.unit)}


def _text(name: str) -> str:
    """A name that is not taken for the end of a cell."""
    return name.replace("|", "\\|")
