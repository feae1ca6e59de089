"""`make bench`: what the control plane adds to a request, and what it costs.

All services, two workers' worth of slots on one worker, the **simulated** engine with zero compute time, so that nothing but the control
plane is measured. Load generator and fleet share the machine's cores. `make bench BENCH="--json --quick"` passes options.
"""

import argparse
import os
import platform
import sys

import aiohttp
import msgspec
import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from bench.doors import Direct, by_http, by_nats
from bench.fleets import running_fleet
from bench.load import Door, Series, closed_loop
from legato import Client
from legato.fleet import Fleet
from services.worker.engines.simulated import SimulatedConfig

MODEL = "sim-small"
SETTINGS = (
    "simulated.law=instant",
    "simulated.slots=512",
    "simulated.blocks=65536",
    "scheduler.queue_max=10000",
)
TOKENS = 16


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Times in milliseconds; `added` is the difference to the engine alone at the same concurrency."""

    door: str
    concurrency: int
    tokens: int
    requests: int
    first_p50_ms: float
    first_p99_ms: float
    total_p50_ms: float
    total_p99_ms: float
    added_first_p50_ms: float
    added_total_p50_ms: float
    requests_per_s: float
    tokens_per_s: float


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one process used over the saturated run."""

    process: str
    cpu_s_per_1000_requests: float
    rss_mb: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, and on what machine."""

    machine: str
    python: str
    nats: str
    rows: list[Row]
    costs: list[Cost]
    engine: str = "simulated, zero compute time"


def complain(line: str) -> None:
    print(line, file=sys.stderr)


def row(door: str, concurrency: int, series: Series, alone: Series, tokens: int = TOKENS) -> Row:
    return Row(
        door=door,
        concurrency=concurrency,
        tokens=tokens,
        requests=len(series.samples),
        first_p50_ms=series.percentile(0.5, "first_s"),
        first_p99_ms=series.percentile(0.99, "first_s"),
        total_p50_ms=series.percentile(0.5, "total_s"),
        total_p99_ms=series.percentile(0.99, "total_s"),
        added_first_p50_ms=series.percentile(0.5, "first_s") - alone.percentile(0.5, "first_s"),
        added_total_p50_ms=series.percentile(0.5, "total_s") - alone.percentile(0.5, "total_s"),
        requests_per_s=series.requests_per_s,
        tokens_per_s=series.tokens_per_s,
    )


async def measure(quick: bool, say: Console) -> Result:
    scale = 1 if quick else 5
    rows: list[Row] = []
    async with running_fleet(workers=1, settings=SETTINGS, tell=complain) as fleet, Client(fleet.running.nats) as client:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            direct = Direct(SimulatedConfig(law="instant", slots=512, blocks=65536), TOKENS)
            await direct.engine.load()
            doors: dict[str, Door] = {
                "NATS": by_nats(client, MODEL, TOKENS),
                "HTTP": by_http(session, fleet.running.http, MODEL, TOKENS),
            }
            for concurrency, requests in ((1, 200 * scale), (32, 600 * scale)):
                alone = await closed_loop(direct.request, requests, concurrency)
                rows.append(row("engine alone", concurrency, alone, alone))
                for name, door in doors.items():
                    say.print(f"{name}, {concurrency} at a time: {requests} requests")
                    await closed_loop(door, 50, concurrency)
                    rows.append(row(name, concurrency, await closed_loop(door, requests, concurrency), alone))
            say.print("NATS, saturated")
            before = cpu_seconds(fleet)
            requests = 2000 * scale
            series = await closed_loop(doors["NATS"], requests, 128)
            costs = used(fleet, before, requests)
            rows.append(row("NATS", 128, series, alone))
            long = by_nats(client, MODEL, 128)
            rows.append(row("NATS", 64, await closed_loop(long, 200 * scale, 64), alone, 128))
            nats = str(client.bus.client.connected_server_version)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}"
    return Result(machine=machine, python=platform.python_version(), nats=nats, rows=rows, costs=costs)


def cpu_seconds(fleet: Fleet) -> dict[str, float]:
    """By process of the fleet, and of the load generator."""
    pids = {**fleet.running.processes, "load generator": os.getpid()}
    return {name: sum(psutil.Process(pid).cpu_times()[:2]) for name, pid in pids.items()}


def used(fleet: Fleet, before: dict[str, float], requests: int) -> list[Cost]:
    pids = {**fleet.running.processes, "load generator": os.getpid()}
    after = cpu_seconds(fleet)
    return [
        Cost(
            process=name,
            cpu_s_per_1000_requests=1000 * (after[name] - before[name]) / requests,
            rss_mb=psutil.Process(pids[name]).memory_info().rss / 2**20,
        )
        for name in sorted(after)
    ]


def show(result: Result, console: Console) -> None:
    console.print(f"\n{result.machine}; Python {result.python}; nats-server {result.nats}; engine: {result.engine}\n")
    table = Table(
        "door", "at a time", "tokens", "TTFT p50", "p99", "total p50", "p99", "added TTFT", "added total", "requests/s", "tokens/s"
    )
    for each in result.rows:
        times = (
            each.first_p50_ms,
            each.first_p99_ms,
            each.total_p50_ms,
            each.total_p99_ms,
            each.added_first_p50_ms,
            each.added_total_p50_ms,
        )
        numbers = [f"{time:.2f} ms" for time in times] + [f"{each.requests_per_s:,.0f}", f"{each.tokens_per_s:,.0f}"]
        table.add_row(each.door, str(each.concurrency), str(each.tokens), *numbers)
    console.print(table)
    costs = Table("process", "CPU s per 1,000 requests", "RSS")
    for cost in result.costs:
        costs.add_row(cost.process, f"{cost.cpu_s_per_1000_requests:.2f}", f"{cost.rss_mb:.0f} MB")
    costs.add_row(
        "all but the load generator", f"{sum(c.cpu_s_per_1000_requests for c in result.costs if c.process != 'load generator'):.2f}"
    )
    console.print(costs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument("--quick", action="store_true", help="a fifth of the requests")
    given = parser.parse_args()
    result = uvloop.run(measure(given.quick, Console(stderr=True)))
    if given.json:
        print(msgspec.json.encode(result).decode())
    else:
        show(result, Console(width=160))
    return 0


if __name__ == "__main__":
    sys.exit(main())
