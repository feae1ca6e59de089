"""`legato simulate SCENARIO`: how a fleet would do, and which policy does best on it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from legato.commands.options import Json
from legato.console import err, fail, out, print_json, say, table
from legato.simulate.comparison import Comparison, compare
from legato.simulate.figures import Figures, Report
from legato.simulate.loading import changed, read, shipped
from legato.simulate.page import page
from legato.simulate.runs import Told, run_all
from legato.simulate.scenario import Scenario
from legato.simulate.shown import print_comparison
from legato.simulate.variants import scenarios
from shared.core.errors import LegatoError

SEEDS_MAX = 1_000
JOBS_MAX = 256

Source = Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario file, or the name of a shipped one.", show_default=False)]
Policies = Annotated[
    list[str] | None, typer.Option("--policy", metavar="NAME", help="Only these, the first one to compare with; or SERVICE.SETTING=VALUE.")
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=SEEDS_MAX, help="Runs of each policy; from 2 on differences have intervals.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a report with plots, in one file.")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the scenario: pools.h100.count=8, ….")]
Jobs = Annotated[int, typer.Option("--jobs", min=0, max=JOBS_MAX, help="Runs at a time. Default: one for each core.")]
Traces = Annotated[Path, typer.Option("--data", metavar="DIR", help="Folder of the public traces, for scenarios that play them.")]


class Run(msgspec.Struct, kw_only=True):
    """One run without its series and curves, as in figures.Report."""

    policy: str
    seed: int
    hash: str
    seconds: float
    figures: Figures
    kinds: dict[str, Figures]
    tenants: dict[str, Figures]
    parts: dict[str, Figures]
    violations: list[str]


class Answer(msgspec.Struct, kw_only=True):
    """What `--json` prints (docs/scenarios.md). `runs` are in the order of seeds, then of policies."""

    scenario: str
    question: str
    comparison: Comparison
    runs: list[Run]


def simulate(  # noqa: PLR0913  # options
    scenario: Source = "",
    policy: Policies = None,
    seeds: Seeds = 1,
    html: Html = None,
    set_: Changes = None,
    jobs: Jobs = 0,
    data: Traces = Path("../shared/data"),
    list_: Annotated[bool, typer.Option("--list", help="Show the shipped scenarios.")] = False,
    json: Json = False,
) -> None:
    """Play a scenario: a fleet, a load and policies, in simulated time, with the real services' decisions.

    The same seed is the same load for all policies, so that differences are theirs. docs/scenarios.md says what the figures are.

        legato simulate --list
        legato simulate shared-prefixes --html report.html
        legato simulate shared-prefixes --policy default --policy scheduler.placement=round_robin --seeds 10
        legato simulate mine.toml --set pools.h100.count=8 --json | jq '.comparison.rows[] | select(.figure == "ttft_p99_s")'
    """
    if list_:
        _print_shipped(json)
        return
    if not scenario:
        raise LegatoError("which scenario? Name a file, or one of those that `legato simulate --list` shows")
    if html is not None and not html.absolute().parent.is_dir():
        raise LegatoError(f"--html {html}: there is no directory {html.absolute().parent}")
    document = changed(read(scenario), set_ or [])
    variants = scenarios(document, policy or [])
    first = next(iter(variants.values()))
    with _progress(first, len(variants) * seeds) as told:
        reports = run_all(variants, seeds, data, jobs or os.cpu_count() or 1, told)
    comparison = compare(reports)
    if json:
        runs = [msgspec.convert(each, Run, from_attributes=True) for each in reports]
        print_json(Answer(scenario=first.name, question=first.question, comparison=comparison, runs=runs))
    else:
        _print_about(first, comparison)
        print_comparison(comparison)
    if html is not None:
        _write(html, page(variants, comparison, reports))
    _end_by(reports)


def _write(html: Path, text: str) -> None:
    try:
        html.write_text(text)
    except OSError as error:
        raise LegatoError(f"cannot write {html}: {error.strerror}") from error
    say(f"The report is in {html}.")


def _end_by(reports: list[Report]) -> None:
    """With status 1 if anything happened that never may."""
    broken = [each for each in reports if each.violations]
    for each in broken:
        fail(f"policy {each.policy}, seed {each.seed}: {'; '.join(each.violations[:5])}")
    if broken:
        fail("this must never happen (docs/simulation.md): please report it with the scenario")
        raise typer.Exit(1)


def _print_shipped(json: bool) -> None:
    found = shipped()
    if json:
        for each in found:
            print_json(each)
        return
    rows = table("SCENARIO", "QUESTION", "POLICIES")
    for each in found:
        rows.add_row(each.name, each.question, ", ".join(each.policies))
    out.print(rows)


def _print_about(scenario: Scenario, comparison: Comparison) -> None:
    out.print(scenario.name + (f": {scenario.question}" if scenario.question else ""), style="bold", markup=False)
    pools = ", ".join(f"{pool.count} x {pool.law}" for pool in scenario.pools.values())
    loads = ", ".join(load.kind for load in scenario.workload)
    seeds = f"{len(comparison.seeds)} seed{'s' if len(comparison.seeds) > 1 else ''}"
    out.print(f"{pools}; {loads}; {scenario.seconds:,.0f} s; {seeds}\n", markup=False)


@contextmanager
def _progress(scenario: Scenario, runs: int) -> Iterator[Told]:
    """Bars: all runs, and each that is under way. At terminals only; elsewhere a line for each run that is over."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        whole = progress.add_task(f"{scenario.name}: {runs} run{'s' if runs > 1 else ''}", total=float(runs))
        shares: dict[tuple[str, int], float] = {}
        done: set[tuple[str, int]] = set()

        def told(policy: str, seed: int, share: float) -> None:
            shares[policy, seed] = share
            progress.update(whole, completed=sum(shares.values()))
            if share >= 1 and (policy, seed) not in done and not err.is_terminal:
                done.add((policy, seed))
                say(f"{policy}, seed {seed}: done")

        yield told
