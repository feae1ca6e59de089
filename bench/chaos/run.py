"""A fleet, a load, a storm, and the questions afterwards."""

import asyncio
import os
import platform
import shutil
import time
from collections.abc import Callable

import msgspec

from bench.chaos import checks
from bench.chaos.again import again
from bench.chaos.asks import Ask, Asks
from bench.chaos.load import Crowd, Load
from bench.chaos.pauses import pauses
from bench.chaos.plan import Victims, plan
from bench.chaos.readers import Fault, Reading, Wrong
from bench.chaos.report import Report, counted, longest, pause_rows, wrongs
from bench.chaos.strikes import Struck, storm
from bench.fleets import running
from legato import DEMANDED, Client, call_form, parse
from legato.fleet import Fleet
from legato.plan import MACHINES, Launch, Wanted
from shared.contracts.ids import StepId
from shared.core.errors import LegatoError
from shared.runtime.clock import now_ns
from shared.runtime.ids import new_id

MARKER = "CHAOS_RUN"  # in the environment of every process of the fleet
ENDS_S = {"simulated": 120.0, "sglang": 600.0, "mixed": 600.0}  # after the storm, for all that runs to end
SETTLED_S = 60.0
SETTINGS = (
    "simulated.law=8b-h100",
    "simulated.time_scale=8",  # 50 ms a token: steps last for seconds, and a blow finds them under way
    "scheduler.attempts_max=50",  # one that loses its worker again and again is to go on here; usually it is given up
)
WITH_SGLANG = ("router.patience_ms=600000",)  # all workers of its model may load at once, for minutes on a busy machine; usually 30 s
OF_SGLANG = "worker.drain_timeout_s=2"  # its answers are short: with the usual 30 s its workers would finish them and hand none over
STREAMS_OF_SGLANG = 4
SGLANGS = 2  # workers with SGLang in a mixed fleet
SGLANG_MODEL = "smollm2-135m"
SGLANG_PROMPTS = ("Name the four seasons of the year.", "Once upon a time there was a river that", "Explain how a violin makes its sound.")
SGLANG_TOKENS = 48
TOOL = {
    "type": "function",
    "function": {
        "name": "play",
        "parameters": {
            "type": "object",
            "properties": {"notes": {"type": "array", "minItems": 8, "maxItems": 8, "items": {"enum": ["do", "re", "mi", "fa", "sol"]}}},
            "required": ["notes"],
        },
    },
}
TOOL_TOKENS = 96


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """What is run. `engine`: simulated, sglang, or mixed: then `workers` and `streams` are those of the simulated engine, and there are
    SGLANGS more, with readers of their own. `streams`, `http`, `programs`: how many of each at a time."""

    seed: int
    seconds: float = 60.0
    engine: str = "simulated"
    workers: int = 4
    streams: int = 100
    http: int = 8
    programs: int = 12
    logs: str = ""  # where the logs of all processes are to be copied to

    @property
    def settings(self) -> tuple[str, ...]:
        """Of all processes."""
        return SETTINGS if self.engine == "simulated" else (*SETTINGS, *WITH_SGLANG)

    @property
    def with_sglang(self) -> list[str]:
        """The workers whose engine is a process of its own."""
        count = {"simulated": 0, "sglang": self.workers, "mixed": SGLANGS}[self.engine]
        return [f"worker-{index}" for index in range(count)]

    @property
    def simulated(self) -> list[str]:
        """The other workers."""
        others = 0 if self.engine == "sglang" else self.workers
        return [f"worker-{len(self.with_sglang) + index}" for index in range(others)]

    @property
    def fleet(self) -> Wanted:
        """All but what a mixed one has besides."""
        engine, workers = ("sglang", SGLANGS) if self.engine == "mixed" else (self.engine, self.workers)
        settings = (*self.settings, *((OF_SGLANG,) if engine == "sglang" else ()))
        return Wanted(engine=engine, workers=workers, settings=settings)

    @property
    def besides(self) -> list[Launch]:
        """Workers that a mixed fleet has beside those with SGLang."""
        if self.engine != "mixed":
            return []
        settings = ["worker.engine=simulated", *self.settings]
        return [Launch(name=name, service="worker", settings=settings) for name in self.simulated]


async def chaos(wanted: Storm, tell: Callable[[str], None]) -> Report:
    """Run a storm. Raises LegatoError where the fleet cannot be started at all."""
    marker = os.environ[MARKER] = new_id()
    try:
        async with running(wanted.fleet, wanted.besides) as fleet:
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
    load = Load(fleet, wanted.seed, await _crowds(fleet, wanted))
    others = [*(f"{service}-0" for service in (*MACHINES, "gateway")), "nats", "postgres"]
    victims = Victims(workers=[*wanted.with_sglang, *wanted.simulated], others=others, engines=wanted.with_sglang)
    blows = plan(wanted.seed, wanted.seconds, victims)
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


async def _crowds(fleet: Fleet, wanted: Storm) -> list[Crowd]:
    """For each engine its own: of SGLang a few, because a small machine computes all of it."""
    crowds = []
    if wanted.simulated:
        asks = Asks(wanted.seed)
        crowds.append(Crowd(asks=asks, streams=wanted.streams, http=wanted.http, programs=wanted.programs))
    if wanted.with_sglang:
        streams = wanted.streams if wanted.engine == "sglang" else STREAMS_OF_SGLANG
        crowds.append(Crowd(asks=Asks(wanted.seed, await _known(fleet)), streams=streams, http=1, programs=1))
    return crowds


async def _known(fleet: Fleet) -> list[Ask]:
    """What SGLang says when nothing disturbs it: greedy, so that it must say the same again. The last one is a call of a tool."""
    asks = [Ask(model=SGLANG_MODEL, prompt=prompt, max_tokens=SGLANG_TOKENS, expected=[], text="") for prompt in SGLANG_PROMPTS]
    form = call_form([TOOL], several=False)
    asks.append(Ask(model=SGLANG_MODEL, prompt="Play a song.", max_tokens=TOOL_TOKENS, expected=[], text="", form=form))
    answered = []
    async with Client(fleet.running.nats) as client:
        for ask in asks:
            result = await (await client.submit(**ask.request)).result(ENDS_S["sglang"])
            answered.append(msgspec.structs.replace(ask, expected=result.tokens, text=result.text))
    if not parse(answered[-1].text, tool_parser=DEMANDED).calls:
        raise LegatoError(f"SGLang was to call a tool, and said {answered[-1].text!r}")
    return answered


async def _report(fleet: Fleet, wanted: Storm, load: Load, storm: tuple[list[Struck], tuple[int, int]]) -> Report:
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
        choices=sum(each.choice for each in accepted.values()),
        steps=len(accepted) + sum(each.steps for each in load.programs),
        workflows=len(load.programs),
        crashes=sum(each.runs - 1 for each in load.programs),
        tokens=sum(len(each.tokens) for each in accepted.values()),
        again=again({key: each.work for key, each in found.attempts.items()}),
        attempts=len(found.attempts),
        struck=counted(struck),
        missed=sum(each.missed for each in struck),
        http=load.http,
        pauses=pause_rows(seen),
        longest=longest(seen, struck, found.attempts, begun),
        wrong=wrongs(faults),
        faults=faults,
    )
