"""Planted bugs and what showed them, as a page of Markdown."""

import re
from collections.abc import Sequence
from datetime import date
from typing import NamedTuple

SAID_MAX = 110  # characters of what a checker said
_INVARIANT = re.compile(r"invariant (\d+): ")


class Caught(NamedTuple):
    """One planted bug. `seed`: of the first world that showed it, None if none did; `said`: what the checker said there."""

    name: str
    what: str
    seed: int | None
    said: str


def mutation_table(rows: Sequence[Caught], seeds: int, summary: str, day: date) -> str:
    """The page, with the first seed that shows each bug."""
    lines = [
        "# Planted bugs, and what shows them",
        "",
        f"Written by `python -m bench.sim --mutations --seeds {seeds} --table docs/mutations.md` on {day:%d %B %Y}.",
        f"Seeds from 1 on, until a world breaks, {seeds} at most.",
        "`python -m bench.sim --seed SEED --mutation NAME` shows it again. The invariants are listed in [simulation.md](simulation.md).",
        "",
        f"{summary}.",
        "",
        "| planted | the bug | seed | invariant | what was said |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        found = _INVARIANT.match(row.said)
        said = row.said[found.end() :] if found else row.said
        said = said if len(said) <= SAID_MAX else said[: SAID_MAX - 1] + "…"
        seed = "not caught" if row.seed is None else str(row.seed)
        lines.append(f"| {row.name} | {row.what} | {seed} | {found[1] if found else '-'} | {_cell(said)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text that a table shows as it is."""
    return "`" + text.replace("`", "'").replace("|", "/") + "`" if text else "-"
