"""A fleet, a load, a storm, and the questions afterwards."""

import asyncio
import os
import platform
import random
import shutil
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from traceback import extract_tb
from typing import Any

import aiohttp
import msgspec

from bench.chaos import checks
from bench.chaos.again import again
from bench.chaos.asks import TOKENS_OF_WORKFLOWS, Ask, Asks
from bench.chaos.pauses import pauses
from bench.chaos.plan import Victims, plan
from bench.chaos.programs import Program, program, run_program
from bench.chaos.readers import Fault, HttpCounts, Reading, Wrong, check_by_http, read_by_nats
from bench.chaos.report import Report, counted, longest, pause_rows, wrongs
from bench.chaos.strikes import Struck, storm
from bench.fleets import running_fleet
from legato import Client
from legato.fleet import Fleet
from legato.plan import MACHINES
from shared.contracts.ids import StepId
from shared.core.errors import LegatoError
from shared.runtime.clock import now_ns
from shared.runtime.ids import new_id

MARKER = "CHAOS_RUN"  # in the environment of every process of the fleet
ENDS_S = {"simulated": 120.0, "sglang": 600.0}  # after the storm, for all that runs to end
SETTLED_S = 60.0
SETTINGS = (
    "simulated.law=8b-h100",
    "simulated.time_scale=8",  # 50 ms a token: steps last for seconds, and a blow finds them under way
    "scheduler.attempts_max=50",  # one that loses its worker again and again is to go on here; usually it is given up
)
SGLANG_MODEL = "smollm2-135m"
SGLANG_PROMPTS = ("Name the four seasons of the year.", "Once upon a time there was a river that", "Explain how a violin makes its sound.")
SGLANG_TOKENS = 48


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """What is run. `streams`, `http`, `programs`: how many of each at a time."""

    seed: int
    seconds: float = 60.0
    engine: str = "simulated"
    workers: int = 4
    streams: int = 100
    http: int = 8
    programs: int = 12
    logs: str = ""  # where the logs of all processes are to be copied to


class _Load:
    """Streams and workflows, so many at a time, until told to stop; then those that run go on to their end."""

    def __init__(self, fleet: Fleet, storm: Storm, asks: Asks) -> None:
        self.readings: list[Reading] = []
        self.programs: list[Program] = []
        self.http = HttpCounts()
        self._fleet = fleet
        self._storm = storm
        self._asks = asks
        self._draw = random.Random(storm.seed + 1)
        self._stopping = False

    def stop(self) -> None:
        """Begin nothing new."""
        self._stopping = True

    async def run(self) -> None:
        url = self._fleet.running.nats
        async with (
            Client(url) as client,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self._storm.streams):
                group.create_task(self._streams(client))
            for _ in range(self._storm.http):
                group.create_task(self._by_http(client, session))
            for _ in range(self._storm.programs):
                group.create_task(self._workflows(url))

    def _next(self) -> Reading:
        step, ask = self._asks.next()
        reading = Reading(step=step, ask=ask)
        self.readings.append(reading)
        return reading

    async def _streams(self, client: Client) -> None:
        while not self._stopping:
            reading = self._next()
            await _told(read_by_nats(client, reading), reading)

    async def _by_http(self, client: Client, session: aiohttp.ClientSession) -> None:
        while not self._stopping:
            reading = self._next()
            await _told(check_by_http(session, lambda: self._fleet.running.http, client, reading, self.http), reading)

    async def _workflows(self, url: str) -> None:
        while not self._stopping:
            asked = [self._asks.next(TOKENS_OF_WORKFLOWS)[1] for _ in range(4)]
            rounds = [(asked[0], asked[1]), (asked[2], asked[3])]
            one = program(self._draw, f"chaos-{self._storm.seed}-w{len(self.programs)}", rounds)
            self.programs.append(one)
            await _told(run_program(url, one), one)


async def _told(work: Coroutine[Any, Any, None], who: Reading | Program) -> None:
    """Whatever ends a reader or a program is a finding, and the others go on."""
    try:
        await work
    except Exception as error:
        where = " < ".join(
            f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in reversed(extract_tb(error.__traceback__))
        )
        who.wrong(Wrong.LOST, f"gave up: {error!r} in {where}")


async def chaos(wanted: Storm, tell: Callable[[str], None]) -> Report:
    """Run a storm. Raises LegatoError where the fleet cannot be started at all."""
    marker = os.environ[MARKER] = new_id()
    try:
        async with running_fleet(wanted.engine, wanted.workers, SETTINGS) as fleet:
            try:
                report = await _storm(fleet, wanted, tell)
            finally:
                if wanted.logs:
                    shutil.copytree(fleet.data / "logs", wanted.logs, dirs_exist_ok=True)
    finally:
        del os.environ[MARKER]
    faults = [*report.faults, *await checks.left_behind(marker)]
    return msgspec.structs.replace(report, faults=faults, wrong=wrongs(faults))


async def _storm(fleet: Fleet, wanted: Storm, tell: Callable[[str], None]) -> Report:
    load = _Load(fleet, wanted, Asks(wanted.seed, await _known(fleet) if wanted.engine == "sglang" else None))
    workers = [f"worker-{index}" for index in range(wanted.workers)]
    others = [*(f"{service}-0" for service in (*MACHINES, "gateway")), "nats", "postgres"]
    blows = plan(wanted.seed, wanted.seconds, Victims(workers=workers, others=others, engines=wanted.engine == "sglang"))
    running = asyncio.create_task(load.run())
    begun = (time.monotonic_ns(), now_ns())
    try:
        struck = await storm(fleet, blows, tell)
        load.stop()
        tell("the storm is over; what runs goes on to its end")
        await asyncio.wait([running], timeout=ENDS_S[wanted.engine])
    finally:
        running.cancel()
        await asyncio.wait([running])
    if not running.cancelled() and running.exception() is not None:
        raise running.exception() or AssertionError
    return await _report(fleet, wanted, load, (struck, begun))


async def _known(fleet: Fleet) -> list[Ask]:
    """What SGLang says when nothing disturbs it: greedy, so that it must say the same again."""
    asks = []
    async with Client(fleet.running.nats) as client:
        for prompt in SGLANG_PROMPTS:
            step = await client.submit(model=SGLANG_MODEL, prompt=prompt, max_tokens=SGLANG_TOKENS, temperature=0)
            result = await step.result(ENDS_S["sglang"])
            asks.append(Ask(model=SGLANG_MODEL, prompt=prompt, max_tokens=SGLANG_TOKENS, expected=result.tokens, text=result.text))
    return asks


async def _report(fleet: Fleet, wanted: Storm, load: _Load, storm: tuple[list[Struck], tuple[int, int]]) -> Report:
    struck, begun = storm
    accepted: dict[StepId, Reading] = {each.step: each for each in load.readings if each.accepted}
    faults = [fault for each in load.readings for fault in each.faults]
    faults += [Fault(Wrong.LOST, each.step, "its reader waits still") for each in load.readings if not each.ended and not each.faults]
    try:
        await fleet.until_ready([each.name for each in fleet.launches])
    except LegatoError as error:
        faults.append(Fault(Wrong.LOST, "fleet", str(error)))
    settled = await checks.settlements(fleet.bus, accepted, SETTLED_S)
    faults += checks.unsettled(settled)
    faults += await checks.stored(fleet.bus, accepted)
    found = await checks.recorded(fleet.running.postgres, accepted, load.programs)
    faults += found.faults
    seen = pauses({step: each.heard for step, each in accepted.items()}, {key: each.worker for key, each in found.attempts.items()}, struck)
    return Report(
        seed=wanted.seed,
        seconds=wanted.seconds,
        engine=wanted.engine,
        machine=f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}",
        steps=len(accepted) + sum(each.steps for each in load.programs),
        workflows=len(load.programs),
        crashes=sum(each.runs - 1 for each in load.programs),
        tokens=sum(len(each.tokens) for each in accepted.values()),
        attempts=len(found.attempts),
        again=again({key: each.work for key, each in found.attempts.items()}),
        struck=counted(struck),
        missed=sum(each.missed for each in struck),
        http=load.http,
        pauses=pause_rows(seen),
        longest=longest(seen, struck, found.attempts, begun),
        wrong=wrongs(faults),
        faults=faults,
    )
