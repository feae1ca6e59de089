"""What came of a storm, for people and for machines."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from bench.chaos.again import Again
from bench.chaos.checks import Attempt
from bench.chaos.pauses import AFTERMATH_NS, Loss, Pause
from bench.chaos.plan import Way
from bench.chaos.readers import Fault, HttpCounts, Wrong
from bench.chaos.strikes import Struck
from bench.ranks import rank
from shared.contracts.ids import StepId

FAULTS_SHOWN_MAX = 30
SILENCES_SHOWN_MAX = 5


Attempts = Mapping[tuple[StepId, int], Attempt]


class PauseRow(msgspec.Struct, frozen=True, kw_only=True):
    """Silences in milliseconds, of one kind of loss. `mixed`: how many more there were with another blow in them, not in the figures."""

    loss: Loss
    readers: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    mixed: int
    mixed_longest_ms: float


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """A long one: how long, and from when on, in seconds after the storm's beginning. `blows`: those in it or shortly before; `attempts` of
    the step: on which worker, from when to when, and how each ended."""

    step: str
    seconds: float
    from_s: float
    blows: list[str]
    attempts: list[str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    seed: int
    seconds: float
    engine: str
    machine: str
    steps: int
    choices: int  # of the steps: those of requests that asked for several
    workflows: int
    crashes: int  # of programs, and runs that gave up while the fleet was away
    tokens: int
    attempts: int
    again: list[Again]
    struck: dict[str, dict[str, int]]  # by victim and way
    missed: int  # blows whose victim was not running
    http: HttpCounts
    pauses: list[PauseRow]
    longest: list[Silence]
    wrong: dict[str, int]
    faults: list[Fault]

    @property
    def sound(self) -> bool:
        return not self.faults


def counted(struck: Sequence[Struck]) -> dict[str, dict[str, int]]:
    """How often each kind of victim was struck, and how."""
    found: dict[str, dict[str, int]] = {}
    for each in struck:
        if not each.missed:
            kind = "engine" if each.blow.engine else "worker" if each.blow.on_worker else each.blow.victim.removesuffix("-0")
            ways = found.setdefault(kind, dict.fromkeys((way.value for way in Way), 0))
            ways[each.blow.way.value] += 1
    return dict(sorted(found.items()))


def pause_rows(pauses: Sequence[Pause]) -> list[PauseRow]:
    rows = []
    for loss in Loss:
        clear = sorted(pause.ms for pause in pauses if pause.loss is loss and not pause.mixed)
        mixed = [pause.ms for pause in pauses if pause.loss is loss and pause.mixed]
        rows.append(
            PauseRow(
                loss=loss,
                readers=len(clear),
                p50_ms=rank(clear, 0.5),
                p99_ms=rank(clear, 0.99),
                longest_ms=max(clear, default=0.0),
                mixed=len(mixed),
                mixed_longest_ms=max(mixed, default=0.0),
            )
        )
    return rows


def longest(pauses: Sequence[Pause], struck: Sequence[Struck], attempts: Attempts, begun: tuple[int, int]) -> list[Silence]:
    """The longest silences, one per stream. `begun`: when the storm began, monotonic and Unix, ns."""
    silences: dict[str, Silence] = {}
    for pause in sorted(pauses, key=lambda pause: pause.ms, reverse=True):
        if pause.step in silences or len(silences) == SILENCES_SHOWN_MAX:
            continue
        since_ns = pause.begin_ns - AFTERMATH_NS
        within = [each.blow for each in struck if not each.missed and since_ns <= each.until_ns and each.at_ns <= pause.end_ns]
        silences[pause.step] = Silence(
            step=pause.step,
            seconds=round(pause.ms / 1e3, 2),
            from_s=round((pause.begin_ns - begun[0]) / 1e9, 1),
            blows=[f"{blow.at_s:.1f} s {blow.way} {blow.victim}{f' for {blow.pause_s:.1f} s' if blow.pause_s else ''}" for blow in within],
            attempts=[_life(each, begun[1]) for (step, _), each in attempts.items() if step == pause.step],
        )
    return list(silences.values())


def _life(attempt: Attempt, begun_ns: int) -> str:
    ended = f"{(attempt.ended_ns - begun_ns) / 1e9:.1f}" if attempt.ended_ns else "?"
    return f"{attempt.worker} {(attempt.dispatched_ns - begun_ns) / 1e9:.1f} to {ended} s {attempt.outcome}"


def wrongs(faults: Sequence[Fault]) -> dict[str, int]:
    """How many of each kind, also those of which there were none."""
    count = Counter(fault.wrong for fault in faults)
    return {wrong.value: count[wrong] for wrong in Wrong}


def again_table(rows: Sequence[Again]) -> Table:
    """Tokens that were computed again, by why the step went on."""
    table = Table(
        "it went on because it was", "attempts", "context tokens", "computed again", "share", "share p50", "p99", "did not report"
    )
    for row in rows:
        shares = [f"{share:.1%}" for share in (row.share, row.share_p50, row.share_p99)] if row.attempts else ["", "", ""]
        counts = [f"{count:,}" for count in (row.attempts, row.context_tokens, row.computed_tokens)]
        table.add_row(row.cause, *counts, *shares, str(row.unknown))
    return table


def show(report: Report, console: Console) -> None:
    """The tables, and what was wrong."""
    console.print(f"\nseed {report.seed}, {report.seconds:g} s, engine: {report.engine}; {report.machine}\n")
    struck = Table("struck", *(way.value for way in Way), title=f"blows ({report.missed} more found nobody)", title_justify="left")
    for victim, ways in report.struck.items():
        struck.add_row(victim, *(str(ways[way.value]) for way in Way))
    console.print(struck)
    load = Table(
        "steps", "of them choices", "workflows", "their restarts", "tokens", "attempts", "HTTP whole / cut / cancelled / not taken"
    )
    http = report.http
    figures = (report.steps, report.choices, report.workflows, report.crashes, report.tokens, report.attempts)
    load.add_row(*(f"{figure:,}" for figure in figures), f"{http.whole} / {http.cut} / {http.cancelled} / {http.not_taken}")
    console.print(load)
    console.print(again_table(report.again))
    silences = Table("longest silence that a reader saw when", "readers", "p50", "p99", "longest", "with another blow", "longest of them")
    for row in report.pauses:
        times = [f"{time:,.0f} ms" for time in (row.p50_ms, row.p99_ms, row.longest_ms)] if row.readers else ["", "", ""]
        silences.add_row(row.loss, str(row.readers), *times, str(row.mixed), f"{row.mixed_longest_ms:,.0f} ms" if row.mixed else "")
    console.print(silences)
    for long in report.longest:
        line = (
            f"{long.seconds:.2f} s from {long.from_s:.1f} s on, {long.step}: {'; '.join(long.blows)}; attempts: {', '.join(long.attempts)}"
        )
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    wrong = Table(*report.wrong, title="what must not happen", title_justify="left")
    wrong.add_row(*map(str, report.wrong.values()))
    console.print(wrong)
    for fault in report.faults[:FAULTS_SHOWN_MAX]:
        console.print(f"{fault.wrong}: {fault.about}: {fault.detail}", soft_wrap=True, markup=False)
    if len(report.faults) > FAULTS_SHOWN_MAX:
        console.print(f"and {len(report.faults) - FAULTS_SHOWN_MAX} more")
