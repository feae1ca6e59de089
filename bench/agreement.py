"""`python -m bench.agreement`: the same load on a live fleet of simulated engines and in a simulated world, side by side.

Live: every service, worker and server a process, real NATS and Postgres, engines in real time. Simulated: the same programs, the same law,
the same limits, on the world's clock (docs/scenarios.md). What the world cannot know is how long this machine takes between services: that
is measured first, on the idle fleet, from the time to the first token of lone, short steps, and given to it as `network.hop_ms`.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import fmean, median

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from bench.fleets import running_fleet
from legato import Client
from legato.simulate.scenario import Scenario
from legato.simulate.world import run
from shared.sim.measured import Measured
from shared.sim.programs import Call, Program, Segment
from shared.sim.workloads import workload

LAW = "llama-3.1-8b@a100"
WORKERS = 2
SLOTS = 64
BLOCKS = 16_384  # of 16 tokens
TOKENS_PER_STEP = 2_048
RATES = (2.0, 4.0, 6.0)  # requests per second; the last one is near what two workers can do
PROBES = 30
LIMIT_S = 600.0


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """One request; seconds from the level's beginning."""

    asked_s: float
    first_s: float
    ended_s: float
    tokens: int


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One level of load. Times in milliseconds, throughput in output tokens per second from the first request to the last end."""

    rate_per_s: float
    requests: int
    live_ttft: float
    simulated_ttft: float
    live_ttft_p50: float
    simulated_ttft_p50: float
    live_tokens_per_s: float
    simulated_tokens_per_s: float
    live_itl: float
    simulated_itl: float

    def differences(self) -> tuple[float, float, float]:
        """Of mean TTFT, throughput and mean ITL: simulated against live, as shares."""
        return (
            self.simulated_ttft / self.live_ttft - 1,
            self.simulated_tokens_per_s / self.live_tokens_per_s - 1,
            self.simulated_itl / self.live_itl - 1,
        )


def scenario(rate_per_s: float, seconds: float, hop_ms: float) -> Scenario:
    """A level of load as a scenario."""
    return msgspec.convert(
        {
            "name": "agreement",
            "seconds": seconds,
            "block_tokens": 16,
            "pools": {
                "default": {
                    "law": LAW,
                    "count": WORKERS,
                    "blocks": BLOCKS,
                    "slots": SLOTS,
                    "queue_max": 1_024,
                    "tokens_per_step": TOKENS_PER_STEP,
                }
            },
            "workload": [{"kind": "single", "with": {"rate_per_s": rate_per_s, **SHAPE}}],
            "network": {"hop_ms": hop_ms},
        },
        Scenario,
    )


SHAPE = {
    "system_tokens": 0,
    "prompt": {"median": 2_000.0, "sigma": 0.5, "min": 200.0, "max": 6_000.0},
    "output": {"median": 150.0, "sigma": 0.5, "min": 20.0, "max": 600.0},
}


def tokens_of(segments: tuple[Segment, ...]) -> list[int]:
    """Token ids of the simulated engine's vocabulary, the same for the same contents."""
    return [byte for content, tokens in segments for byte in Random(f"{content}").randbytes(tokens)]


async def ask(client: Client, call: Call, begun_s: float) -> Heard:
    """One request, read to its end."""
    clock = time.perf_counter
    prompt = tokens_of(call.prompt)
    asked_s = clock()
    step = await client.submit(model="sim-small", prompt=prompt, max_tokens=call.output.tokens)
    first_s, tokens = 0.0, 0
    async for output in step:
        if output.tokens and not first_s:
            first_s = clock()
        tokens += len(output.tokens)
    return Heard(asked_s=asked_s - begun_s, first_s=first_s - begun_s, ended_s=clock() - begun_s, tokens=tokens)


async def live(client: Client, programs: list[Program]) -> list[Heard]:
    """Each at its time, whatever became of those before."""
    begun_s = time.perf_counter()
    tasks = []
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        for program in programs:
            await asyncio.sleep(max(0.0, begun_s + program.begins_s - time.perf_counter()))
            tasks.append(group.create_task(ask(client, program.calls[0], begun_s)))
    return [task.result() for task in tasks]


async def probed(client: Client) -> float:
    """Median milliseconds to the first token of a lone step of one block."""
    took = []
    for number in range(PROBES):
        call = Call(key="probe", prompt=(Segment(number, 16),), output=Segment(number, 1))
        heard = await ask(client, call, 0.0)
        took.append((heard.first_s - heard.asked_s) * 1e3)
    return median(took)


def hops() -> tuple[float, float]:
    """Of the same lone step in the world: milliseconds without hops, and how many hops there are."""
    lone = {"system_tokens": 0, "prompt": {"median": 16.0}, "output": {"median": 1.0}}
    found = []
    for hop_ms in (0.0, 1.0):
        wanted = scenario(0.2, 200.0, hop_ms)
        load = msgspec.structs.replace(wanted.workload[0], settings={"rate_per_s": 0.2, **lone})
        network = msgspec.structs.replace(wanted.network, jitter=0.0)
        found.append(median(ttfts(play(msgspec.structs.replace(wanted, workload=[load], network=network), 1))))
    return found[0], found[1] - found[0]


def play(wanted: Scenario, seed: int) -> Measured:
    """The world's part."""
    return run(wanted, "", seed, Path(), lambda share: None)


def ttfts(measured: Measured) -> list[float]:
    """Milliseconds."""
    calls = measured.calls
    return [(first - asked) * 1e3 for first, asked in zip(calls.first_s, calls.asked_s, strict=True)]


def compared(rate_per_s: float, heard: list[Heard], measured: Measured) -> Row:
    """Both sides of one level."""
    calls = measured.calls
    live_ttft = [(each.first_s - each.asked_s) * 1e3 for each in heard]
    took_s = max(each.ended_s for each in heard) - min(each.asked_s for each in heard)
    sim_s = max(calls.ended_s) - min(calls.asked_s)
    sim = zip(calls.ended_s, calls.first_s, calls.output_tokens, strict=True)
    return Row(
        rate_per_s=rate_per_s,
        requests=len(heard),
        live_ttft=fmean(live_ttft),
        simulated_ttft=fmean(ttfts(measured)),
        live_ttft_p50=median(live_ttft),
        simulated_ttft_p50=median(ttfts(measured)),
        live_tokens_per_s=sum(each.tokens for each in heard) / took_s,
        simulated_tokens_per_s=sum(calls.output_tokens) / sim_s,
        live_itl=fmean((each.ended_s - each.first_s) * 1e3 / max(1, each.tokens - 1) for each in heard),
        simulated_itl=fmean((ended - first) * 1e3 / max(1, tokens - 1) for ended, first, tokens in sim),
    )


async def measure(seconds: float, tell: Callable[[str], None]) -> tuple[float, list[Row]]:
    """The hop that was found, and all levels."""
    engine = (
        f"simulated.law={LAW}",
        f"simulated.blocks={BLOCKS}",
        f"simulated.slots={SLOTS}",
        f"simulated.tokens_per_step={TOKENS_PER_STEP}",
    )
    rows = []
    base_ms, number = hops()
    async with running_fleet(workers=WORKERS, settings=engine) as fleet, Client(fleet.running.nats) as client:
        hop_ms = max(0.0, (await probed(client) - base_ms) / number)
        tell(f"a hop between services takes {hop_ms:.2f} ms here ({number:.1f} of them before a first token)")
        for seed, rate_per_s in enumerate(RATES, start=1):  # another load each time: its prompts must not be in the caches
            wanted = scenario(rate_per_s, seconds, hop_ms)
            programs = list(workload("single", wanted.workload[0].settings, seconds, seed, Path()))
            tell(f"{rate_per_s:g} requests/s: {len(programs)} requests, about {seconds:.0f} s")
            heard = await live(client, programs)
            rows.append(compared(rate_per_s, heard, play(wanted, seed)))
    return hop_ms, rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.agreement", description="A live fleet and its simulation, side by side.")
    parser.add_argument("--seconds", type=float, default=90.0, help="of each level (default: 90)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    args = parser.parse_args()
    say = Console(stderr=True)
    hop_ms, rows = uvloop.run(measure(args.seconds, say.print))
    if args.json:
        print(msgspec.json.encode({"hop_ms": hop_ms, "levels": rows}).decode())
        return 0
    table = Table("requests/s", "requests", "TTFT live", "simulated", "", "tokens/s live", "simulated", "", "ITL live", "simulated", "")
    for row in rows:
        ttft, tokens, itl = (f"{difference:+.1%}" for difference in row.differences())
        table.add_row(
            *(f"{row.rate_per_s:g}", str(row.requests), f"{row.live_ttft:.0f} ms", f"{row.simulated_ttft:.0f} ms", ttft),
            *(f"{row.live_tokens_per_s:.0f}", f"{row.simulated_tokens_per_s:.0f}", tokens),
            *(f"{row.live_itl:.1f} ms", f"{row.simulated_itl:.1f} ms", itl),
        )
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
