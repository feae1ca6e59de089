"""`python -m bench.pauses`: how long a reader's stream stands still when its worker is told to leave, is killed, or stops without a word.

Simulated engines in real time, one loss after the other, on an otherwise undisturbed fleet (`make chaos` is the storm). The seam is the
time between the last output of one attempt and the first of the next, at the reader; beside it, all other gaps between outputs of the same
streams: what the machine does to them anyway.

It also says what the next worker computed again: of the context (prompt and output so far) what was not in its cache. For hand-overs
where no other worker has any of it, where one other worker has most of the prompt, as with a long system prompt, and where all have it.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from bench.chaos.again import Again, Work, again
from bench.fleets import running_fleet
from bench.ranks import rank
from legato import Client, Step
from legato.fleet import Fleet
from shared.contracts.ids import StepId
from shared.contracts.steps import StepRecord
from shared.core.errors import LegatoError

TOKENS = 1_200  # some seconds
BEGUN = 20  # tokens that all streams have when the worker is struck
WORKERS = 3
QUICK_LEASE = ("scheduler.lease_ms=1200", "worker.beat_ms=250")  # the default is made for slow machines: 3 s and 500 ms
LIMIT_S = 120.0
TOLD_S = 0.5  # until the registry has heard of what caches hold
PREFIX_TRIES_MAX = 10
SENTENCE = "A long prompt, so that there is something to prefill. "


class Case(msgspec.Struct, frozen=True):
    """One kind of loss. `holders`: how many workers hold the beginning of all prompts, with the one that is struck."""

    loss: str
    number: signal.Signals
    holders: int = 0


CASES = (
    Case("told to leave (SIGTERM)", signal.SIGTERM),
    Case("told to leave, one other has the prefix", signal.SIGTERM, WORKERS - 1),
    Case("told to leave, all have the prefix", signal.SIGTERM, WORKERS),
    Case("killed (SIGKILL)", signal.SIGKILL),
    Case("stopped (SIGSTOP), lease 1.2 s", signal.SIGSTOP),
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of loss; times in milliseconds."""

    loss: str
    streams: int
    seams: int
    p50: float
    p99: float
    longest: float
    other_p50: float
    other_p99: float
    again: list[Again]


class Gaps:
    """Seconds between outputs, and what attempts computed, of one kind of loss."""

    def __init__(self) -> None:
        self.works: dict[tuple[StepId, int], Work] = {}
        self.seams: list[float] = []
        self.others: list[float] = []

    async def read(self, step: Step, begun: asyncio.Event) -> None:
        last, attempt = 0.0, 1
        async for output in step:
            now = time.perf_counter()
            if last:
                (self.others if output.attempt == attempt else self.seams).append(now - last)
            last, attempt = now, output.attempt
            if len(step.so_far.tokens) >= BEGUN:
                begun.set()

    def row(self, loss: str, streams: int) -> Row:
        seams, others = sorted(self.seams), sorted(self.others)
        ranks = (rank(seams, 0.5), rank(seams, 0.99), rank(seams, 1.0), rank(others, 0.5), rank(others, 0.99))
        p50, p99, longest, other_p50, other_p99 = (round(each * 1e3, 1) for each in ranks)
        return Row(
            loss=loss,
            streams=streams,
            seams=len(seams),
            p50=p50,
            p99=p99,
            longest=longest,
            other_p50=other_p50,
            other_p99=other_p99,
            again=[each for each in again(self.works) if each.attempts],
        )


async def shared_prefix(client: Client, tokens: int, holders: int) -> str:
    """The beginning of prompts, which so many workers hold."""
    for _ in range(PREFIX_TRIES_MAX):
        prefix = (f"{time.time_ns()} " + SENTENCE * (tokens // len(SENTENCE) + 1))[:tokens]  # a byte is a token
        steps = [await client.submit(model="sim-small", prompt=f"{prefix}{each}", max_tokens=1) for each in range(holders)]
        for step in steps:
            await step.result(LIMIT_S)
        if len({attempt.worker for step in steps for attempt in (await settled(client, step)).attempts}) == holders:
            await asyncio.sleep(TOLD_S)
            return prefix
    raise LegatoError(f"the beginning of prompts did not come to {holders} workers in {PREFIX_TRIES_MAX} tries")


async def settled(client: Client, step: Step) -> StepRecord:
    """The record of a step that has ended."""
    async with asyncio.timeout(LIMIT_S):
        while not (record := await client.record(step.id)).settled_ns:  # noqa: ASYNC110  it can only be asked
            await asyncio.sleep(0.05)
    return record


async def strike(fleet: Fleet, client: Client, number: signal.Signals, prompts: Sequence[str], gaps: Gaps) -> None:
    """Once: streams, a blow for the worker that has the first of them, and its return."""
    steps = [await client.submit(model="sim-small", prompt=prompt, max_tokens=TOKENS) for prompt in prompts]
    begun = [asyncio.Event() for _ in steps]
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        for step, event in zip(steps, begun, strict=True):
            group.create_task(gaps.read(step, event))
        for event in begun:
            await event.wait()
        while not (attempts := (await client.record(steps[0].id)).attempts):  # noqa: ASYNC110  it can only be asked
            await asyncio.sleep(0.01)
        process = fleet.running.processes[attempts[-1].worker]
        os.kill(process, number)
    if number is signal.SIGSTOP:
        os.kill(process, signal.SIGCONT)
    async with asyncio.timeout(LIMIT_S):
        while running_workers(fleet) < WORKERS:  # noqa: ASYNC110  it can only be asked
            await asyncio.sleep(0.2)
    for step in steps:
        for attempt in (await settled(client, step)).attempts:
            gaps.works[step.id, attempt.attempt] = Work(
                context_tokens=attempt.usage.prompt_tokens + attempt.resumed_tokens,
                computed_tokens=attempt.computed_tokens if attempt.status else None,
                reason=attempt.problem.reason if attempt.problem else "",
            )


def running_workers(fleet: Fleet) -> int:
    """Processes of workers now."""
    return sum(name.startswith("worker-") for name in fleet.running.processes)


async def measure(cases: Sequence[Case], streams: int, rounds: int, prefix_tokens: int, say: Console) -> list[Row]:
    """Each case with a fleet of its own."""
    rows = []
    for case in cases:
        say.print(f"{case.loss}: {rounds} x {streams} streams")
        settings = ("simulated.law=8b-h100", "worker.drain_timeout_s=10", *(QUICK_LEASE if case.number is signal.SIGSTOP else ()))
        gaps = Gaps()
        async with running_fleet(workers=WORKERS, settings=settings) as fleet, Client(fleet.running.nats) as client:
            for _ in range(rounds):
                if case.holders:
                    prefix = await shared_prefix(client, prefix_tokens, case.holders)
                    prompts = [f"{prefix}{each} {SENTENCE * 2}" for each in range(streams)]
                else:
                    prompts = [f"{each} {time.time_ns()} {SENTENCE * 20}" for each in range(streams)]
                await strike(fleet, client, case.number, prompts, gaps)
                await asyncio.sleep(4.0)  # until the worker that was struck takes steps again, and the prober concludes again
        rows.append(gaps.row(case.loss, streams))
    return rows


def main() -> int:
    signals = dict.fromkeys(case.number for case in CASES)
    parser = argparse.ArgumentParser(prog="python -m bench.pauses", description="How long streams stand still when their worker is lost.")
    parser.add_argument("--streams", type=int, default=4, help="at a time (default: 4)")
    parser.add_argument("--rounds", type=int, default=6, help="losses of each kind (default: 6)")
    parser.add_argument("--signal", choices=[each.name for each in signals], help="only losses of this kind (default: all)")
    parser.add_argument("--prefix-tokens", type=int, default=4_000, help="what other workers have of each prompt (default: 4000)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    given = parser.parse_args()
    if not (1 <= given.streams <= 100 and 1 <= given.rounds <= 100):
        parser.error("--streams and --rounds: from 1 to 100")
    if not 100 <= given.prefix_tokens <= 20_000:
        parser.error("--prefix-tokens: from 100 to 20000")
    cases = [case for case in CASES if given.signal in (None, case.number.name)]
    rows = uvloop.run(measure(cases, given.streams, given.rounds, given.prefix_tokens, Console(stderr=True)))
    if given.json:
        print(msgspec.json.encode(rows).decode())
        return 0
    table = Table(
        "its worker was", "seams", "p50", "p99", "longest", "other gaps p50", "p99", title=f"{given.streams} streams, milliseconds"
    )
    for row in rows:
        table.add_row(row.loss, *(f"{each:g}" for each in (row.seams, row.p50, row.p99, row.longest, row.other_p50, row.other_p99)))
    console = Console(width=140)
    console.print(table, again_table(rows))
    return 0


def again_table(rows: Sequence[Row]) -> Table:
    """What was computed again behind losses of each kind."""
    table = Table("its worker was", "it was", "attempts", "context p50", "computed again p50", "p99", "share p50", "p99", title="tokens")
    for row in rows:
        for each in row.again:
            tokens = [f"{count:,}" for count in (each.attempts, each.context_p50, each.computed_p50, each.computed_p99)]
            table.add_row(row.loss, each.cause, *tokens, f"{each.share_p50:.1%}", f"{each.share_p99:.1%}")
    return table


if __name__ == "__main__":
    sys.exit(main())
