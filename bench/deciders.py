"""`python -m bench.deciders`: what the deciders themselves cost, by the kind of input and per step, at several sizes of the fleet.

The real machines (admission, router, scheduler, KV registry, autoscaler) take the inputs of a fleet that serves agents, one after another,
in one process: no bus, no journal, no engines. The stream is made by bench/deciders_world.py. Times are CPU times of the one thread. Other
work on the machine still slows its core: the yardstick tells how fast that was at the time. A step's share holds all that comes with it:
heartbeats, registrations, reports, ticks. `decided` names all that was decided: two versions of the code with the same one have decided
the same.
"""

import argparse
import gc
import hashlib
import platform
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime
from statistics import fmean, quantiles
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.deciders_world import CELL, RATE_PER_WORKER, Scenario, World
from services.admission.config import AdmissionConfig
from services.admission.decide import MACHINE as ADMISSION
from services.autoscaler.config import AutoscalerConfig, PoolConfig
from services.autoscaler.decide import MACHINE as AUTOSCALER
from services.kv_registry.config import KvRegistryConfig
from services.kv_registry.decide import MACHINE as REGISTRY
from services.router.config import RouterConfig
from services.router.decide import MACHINE as ROUTER
from services.scheduler.config import SchedulerConfig
from services.scheduler.decide import MACHINE as SCHEDULER
from shared.contracts.envelope import Message, Tick
from shared.core.machine import ENCODER, Machine, step
from shared.runtime.lifecycle import GARBAGE_AFTER

SIZES = (16, 100, 1_000)
SCENARIOS = (
    Scenario(name="40% of all slots in use", running=0.4),
    Scenario(name="all slots in use, 2 steps per worker wait", running=1.0, waiting=2.0, urgent=0.05),
    Scenario(name="all KV blocks in use, 2 steps per worker wait", running=0.5, waiting=2.0, blocks=2_048),
)
POOL = PoolConfig(min=1, max=10_000)
CONFIGS: dict[str, tuple[Machine[Any, Any], Any]] = {
    "admission": (ADMISSION, AdmissionConfig(in_flight_max=1_000_000)),
    "router": (ROUTER, RouterConfig()),
    "kv_registry": (REGISTRY, KvRegistryConfig(cell=CELL)),
    "scheduler": (SCHEDULER, SchedulerConfig(cell=CELL, queue_max=10_000, lease_ms=10_000)),
    "autoscaler": (AUTOSCALER, AutoscalerConfig(cell=CELL, pools={"default": POOL})),
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of input, at one size and load. Times in microseconds."""

    decider: str
    input: str
    per_step: float  # inputs
    p50_us: float
    p99_us: float
    us_per_step: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One size and load."""

    workers: int
    scenario: str
    steps: int
    us_per_step: float
    yardstick_ns: float  # of one look into a small dict, beside it: some 25 on a core that nobody shares
    decided: str  # SHA-256 of all decisions, its first 16 digits
    rows: list[Row]


class Timed:
    """One decider. Notes what each input costs, the question when it must be woken included; a time in ns by kind of input."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.machine, self.config = CONFIGS[name]
        self.state = self.machine.start(self.config)
        self.wake_ns: int | None = None
        self.costs: defaultdict[str, list[int]] = defaultdict(list)
        self.decided = hashlib.sha256()

    def fold(self, event: Message, now_ns: int) -> None:
        """As a recovery does: nothing is decided."""
        self.machine.apply(self.state, event, now_ns)

    def take(self, event: Message, now_ns: int) -> list[Message]:
        began = time.thread_time_ns()
        outputs = step(self.machine, self.state, event, now_ns, self.config)
        self.wake_ns = self.machine.wake_ns(self.state, self.config)
        self.costs[type(event).__name__].append(time.thread_time_ns() - began)
        for output in outputs:
            self.decided.update(ENCODER.encode(output))
        return outputs

    def tick(self, now_ns: int) -> list[Message]:
        return self.take(Tick(), now_ns)


def measure(workers: int, scenario: Scenario, steps: int) -> Result:
    """Run `steps` steps through a fleet that is under way already."""
    deciders = {name: Timed(name) for name in CONFIGS}
    world = World(workers, scenario, deciders)
    world.fill()
    world.run(min(steps, 200))  # what is built at first use is not what is measured
    for decider in deciders.values():
        decider.costs.clear()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_AFTER, 20, 20)  # as the services do
    before_ns = yardstick_ns()
    world.run(steps)
    beside_ns = (before_ns + yardstick_ns()) / 2
    gc.unfreeze()
    rows = [
        _row(decider.name, kind, costs, steps) for decider in deciders.values() for kind, costs in sorted(decider.costs.items()) if costs
    ]
    decided = hashlib.sha256(b"".join(decider.decided.digest() for decider in deciders.values())).hexdigest()[:16]
    us_per_step = sum(row.us_per_step for row in rows)
    return Result(
        workers=workers,
        scenario=scenario.name,
        steps=steps,
        us_per_step=us_per_step,
        yardstick_ns=beside_ns,
        decided=decided,
        rows=rows,
    )


def yardstick_ns() -> float:
    """CPU time of one look into a small dict, now."""
    numbers = dict.fromkeys(range(1_000))
    began = time.thread_time_ns()
    for _ in range(500):
        for number in numbers:
            numbers[number]
    return (time.thread_time_ns() - began) / 500_000


def _row(decider: str, kind: str, costs: list[int], steps: int) -> Row:
    cuts = quantiles(costs, n=100, method="inclusive") if len(costs) > 1 else [float(costs[0])] * 99
    return Row(
        decider=decider,
        input=kind,
        per_step=len(costs) / steps,
        p50_us=cuts[49] / 1e3,
        p99_us=cuts[98] / 1e3,
        us_per_step=fmean(costs) * len(costs) / steps / 1e3,
    )


def _table(result: Result) -> Table:
    per_s = result.workers * RATE_PER_WORKER
    title = f"{result.workers:,} workers, {per_s:g} steps/s, {result.scenario}: {result.us_per_step:,.0f} µs per step"
    notes = f"yardstick {result.yardstick_ns:.0f} ns; decided {result.decided}"
    table = Table(title=title, title_justify="left", caption=notes, caption_justify="left")
    for column in ("decider", "input", "per step", "p50 µs", "p99 µs", "µs per step"):
        table.add_column(column, justify="left" if column in ("decider", "input") else "right")
    for row in result.rows:
        cells = (f"{row.per_step:.2f}", f"{row.p50_us:,.1f}", f"{row.p99_us:,.1f}", f"{row.us_per_step:,.1f}")
        table.add_row(row.decider, row.input, *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.deciders", description="what the deciders themselves cost")
    parser.add_argument("--workers", type=int, action="append", metavar="N", help=f"default: {', '.join(map(str, SIZES))}")
    parser.add_argument("--steps", type=int, default=2_000, metavar="N", help="measured per size and load (2000)")
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args()
    sizes = options.workers or SIZES
    if min(sizes) < 1 or options.steps < 1:
        parser.error("--workers and --steps are at least 1")
    results = []
    for workers in sizes:
        for scenario in SCENARIOS:
            print(f"{workers} workers, {scenario.name}", file=sys.stderr)
            results.append(measure(workers, scenario, options.steps))
    if options.json:
        print(msgspec.json.encode(results).decode())
        return
    print(f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {platform.machine()}, one core")
    for result in results:
        Console(width=140).print(_table(result))


if __name__ == "__main__":
    main()
