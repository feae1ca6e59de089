"""`python -m bench.pauses`: how long a reader's stream stands still when its worker is told to leave, is killed, or stops without a word.

Simulated engines in real time, one loss after the other, on an otherwise undisturbed fleet (`make chaos` is the storm). The seam is the
time between the last output of one attempt and the first of the next, at the reader; beside it, all other gaps between outputs of the same
streams: what the machine does to them anyway.
"""

import argparse
import asyncio
import os
import signal
import sys
import time

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from bench.fleets import running_fleet
from legato import Client, Step
from legato.fleet import Fleet

TOKENS = 1_200  # some seconds
BEGUN = 20  # tokens that all streams have when the worker is struck
WORKERS = 3
QUICK_LEASE = ("scheduler.lease_ms=1200", "worker.beat_ms=250")  # the default is made for slow machines: 3 s and 500 ms
LIMIT_S = 120.0
LOSSES = {"told to leave (SIGTERM)": signal.SIGTERM, "killed (SIGKILL)": signal.SIGKILL, "stopped (SIGSTOP), lease 1.2 s": signal.SIGSTOP}


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


class Gaps:
    """Seconds between outputs, of one kind of loss."""

    def __init__(self) -> None:
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
        )


def rank(ordered: list[float], share: float) -> float:
    """The value below which `share` of them lie; 0 where there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


async def strike(fleet: Fleet, client: Client, number: signal.Signals, streams: int, gaps: Gaps) -> None:
    """Once: streams, a blow for the worker that has the first of them, and its return."""
    prompt = "A long prompt, so that there is something to prefill. " * 20
    steps = [
        await client.submit(model="sim-small", prompt=f"{prompt}{each} {time.time_ns()}", max_tokens=TOKENS) for each in range(streams)
    ]
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


def running_workers(fleet: Fleet) -> int:
    """Processes of workers now."""
    return sum(name.startswith("worker-") for name in fleet.running.processes)


async def measure(streams: int, rounds: int, say: Console) -> list[Row]:
    """All kinds of loss, one fleet for each."""
    rows = []
    for loss, number in LOSSES.items():
        say.print(f"{loss}: {rounds} x {streams} streams")
        settings = ("simulated.law=8b-h100", "worker.drain_timeout_s=10", *(QUICK_LEASE if number is signal.SIGSTOP else ()))
        gaps = Gaps()
        async with running_fleet(workers=WORKERS, settings=settings) as fleet, Client(fleet.running.nats) as client:
            for _ in range(rounds):
                await strike(fleet, client, number, streams, gaps)
                await asyncio.sleep(4.0)  # until the worker that was struck takes steps again, and the prober concludes again
        rows.append(gaps.row(loss, streams))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pauses", description="How long streams stand still when their worker is lost.")
    parser.add_argument("--streams", type=int, default=4, help="at a time (default: 4)")
    parser.add_argument("--rounds", type=int, default=6, help="losses of each kind (default: 6)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    given = parser.parse_args()
    if not (1 <= given.streams <= 100 and 1 <= given.rounds <= 100):
        parser.error("--streams and --rounds: from 1 to 100")
    rows = uvloop.run(measure(given.streams, given.rounds, Console(stderr=True)))
    if given.json:
        print(msgspec.json.encode(rows).decode())
        return 0
    table = Table(
        "its worker was", "seams", "p50", "p99", "longest", "other gaps p50", "p99", title=f"{given.streams} streams, milliseconds"
    )
    for row in rows:
        table.add_row(row.loss, *(f"{each:g}" for each in (row.seams, row.p50, row.p99, row.longest, row.other_p50, row.other_p99)))
    Console(width=140).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
