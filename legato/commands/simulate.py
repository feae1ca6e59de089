"""`legato simulate SCENARIO`: how a fleet would do, and which policy does best on it."""

import os
import shlex
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from legato import places
from legato.addresses import DATA
from legato.commands import record
from legato.commands.options import Json, Nats, connected, finish
from legato.console import err, fail, out, print_json, say, table
from legato.simulate.comparison import Comparison, compare
from legato.simulate.figures import Report, Run
from legato.simulate.from_log import played
from legato.simulate.loading import Document, changed, read, shipped
from legato.simulate.markdown import markdown as markdown_of
from legato.simulate.page import page
from legato.simulate.registered import registered
from legato.simulate.runs import Told, run_all
from legato.simulate.scenario import Scenario
from legato.simulate.shown import common, policy_lines, print_comparison
from legato.simulate.variants import scenarios, set_by
from shared.core.errors import LegatoError

SEEDS_MAX = 1_000
JOBS_MAX = 256
FLEET = "fleet"  # in place of a file: the running one

Source = Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario file, or the name of a shipped one.", show_default=False)]
Policies = Annotated[
    list[str] | None, typer.Option("--policy", metavar="NAME", help="Only these, the first one to compare with; or SERVICE.SETTING=VALUE.")
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=SEEDS_MAX, help="Runs of each policy; from 2 on differences have intervals.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a report with plots, in one file.")]
Markdown = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="Write the table as Markdown, with its command and date.")
]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the scenario: pools.h100.count=8, ….")]
Jobs = Annotated[int, typer.Option("--jobs", min=0, max=JOBS_MAX, help="Runs at a time. Default: one for each core.")]
FromLog = Annotated[
    str,
    typer.Option(
        "--from-log", metavar="FILE", help="Play what `legato record` wrote in FILE; `fleet`: what the running fleet has been asked."
    ),
]
Traces = Annotated[Path, typer.Option("--data", metavar="DIR", help="Folder of the public traces, for scenarios that play them.")]


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
    markdown: Markdown = None,
    set_: Changes = None,
    jobs: Jobs = 0,
    data: Traces = Path("../shared/data"),
    from_log: FromLog = "",
    nats: Nats = "",
    list_: Annotated[bool, typer.Option("--list", help="Show the shipped scenarios.")] = False,
    json: Json = False,
) -> None:
    """Play a scenario: a fleet, a load and policies, in simulated time, with the real services' decisions.

    The same seed is the same load for all policies, so that differences are theirs.
    docs/scenarios.md says what the figures are.

        legato simulate --list
        legato simulate shared-prefixes --html report.html
        legato simulate shared-prefixes --policy default --policy scheduler.placement=round_robin --seeds 10
        legato simulate mine.toml --set pools.h100.count=8 --json | jq '.comparison.rows[] | select(.figure == "ttft_p99_s")'
        legato simulate --from-log fleet --set pools.default.count=4      # the running fleet's load, on that fleet with four workers
        legato simulate mine.toml --from-log day.jsonl                    # a recorded one, on another fleet
    """
    if list_:
        _print_shipped(json)
        return
    if not scenario and not from_log:
        raise LegatoError("which scenario? Name a file, or one of those that `legato simulate --list` shows")
    for option, file in (("--html", html), ("--markdown", markdown)):
        if file is not None:
            places.check_place(file, option, f"report{'.md' if file is markdown else '.html'}")
    with TemporaryDirectory(prefix="legato-") as place:
        document = _document(scenario, set_ or [], _Log(from_log, nats, Path(place)))
        variants, settings = scenarios(document, policy or []), set_by(document, policy or [])
        first = next(iter(variants.values()))
        with _progress(first, len(variants) * seeds) as told:
            reports = run_all(variants, seeds, data, jobs or os.cpu_count() or 1, told)
    comparison = compare(reports)
    if json:
        runs = [msgspec.convert(each, Run, from_attributes=True) for each in reports]
        print_json(Answer(scenario=first.name, question=first.question, comparison=comparison, runs=runs))
    else:
        _print_about(variants, settings, comparison)
        print_comparison(comparison)
    if html is not None:
        _write(html, page(variants, settings, comparison, reports))
    if markdown is not None:
        command = _command(scenario, policy or [], set_ or [], seeds, from_log)
        _write(markdown, markdown_of(variants, settings, comparison, command, date.today()))
    _end_by(reports)


class _Log(NamedTuple):
    """What `--from-log` says, where the fleet is, and where files may be until the end."""

    source: str
    nats: str
    place: Path

    def file(self) -> Path:
        """The recorded load; that of the running fleet is recorded now."""
        if self.source != FLEET:
            return _recorded(Path(self.source))
        found, file = finish(record.read(0, time.time_ns(), self.nats, _fleets_data())), self.place / "fleet.jsonl"
        record.write(file, found.rows)
        for line in (record.told(found.rows), *found.notes):
            say(line)
        return file


def _recorded(file: Path) -> Path:
    """The file that `--from-log` names. It is read for each run, which only a regular file can be. Raises LegatoError."""
    try:
        mode = file.stat().st_mode
    except FileNotFoundError as error:
        said = f"there is no such file; `legato record {file}` writes one, `fleet` needs none"
        raise LegatoError(f"--from-log {file}: {said}") from error
    except OSError as error:
        raise LegatoError(f"--from-log {file}: cannot read it: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        kind = "it is a directory" if stat.S_ISDIR(mode) else "it is a device or a pipe"
        raise LegatoError(f"--from-log {file}: {kind}; name a file that `legato record` wrote, or `fleet`")
    return file


def _document(scenario: str, changes: list[str], log: _Log) -> Document:
    """The scenario that is asked for. Raises LegatoError."""
    if not log.source:
        return changed(read(scenario), changes)
    file = log.file()
    return played(read(scenario) if scenario else finish(_registered(log.nats)), file, changes)


async def _registered(nats: str) -> Document:
    async with connected(nats, _fleets_data()) as bus:
        return await registered(bus)


def _fleets_data() -> Path:
    """Where `legato up` runs: --data is the traces' here."""
    return Path(os.environ.get("LEGATO_DATA", DATA))


def _command(scenario: str, policies: list[str], changes: list[str], seeds: int, from_log: str) -> str:
    """What makes the same again."""
    options = [*(("--policy", each) for each in policies), *(("--set", each) for each in changes)]
    options += [("--from-log", from_log)] if from_log else []
    words = ["legato", "simulate", *([scenario] if scenario else []), *(word for pair in options for word in pair), "--seeds", str(seeds)]
    return shlex.join(words)


def _write(file: Path, text: str) -> None:
    places.write(file, [text.encode()])
    say(f"The report is in {file}.")


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


def _print_about(scenarios: Mapping[str, Scenario], settings: Mapping[str, Mapping[str, Any]], comparison: Comparison) -> None:
    scenario = next(iter(scenarios.values()))
    out.print(scenario.name + (f": {scenario.question}" if scenario.question else ""), style="bold", markup=False)
    seeds = f"{len(comparison.seeds)} seed{'s' if len(comparison.seeds) > 1 else ''}"
    out.print("; ".join(filter(None, (common(scenarios), seeds))), markup=False)
    for policy, line in policy_lines(scenarios, settings).items():
        out.print(f"{policy}: {line}", markup=False, soft_wrap=True)
    out.print()


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
