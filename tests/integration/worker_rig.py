"""One worker with the simulated engine, and hand-made dispatches."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from services.worker.config import WorkerConfig
from services.worker.engines import prose
from services.worker.service import Worker
from shared.contracts import subjects
from shared.contracts.fleet import WorkerBeat
from shared.contracts.ids import CellId, ModelName, StepId, WorkerId
from shared.contracts.outcomes import Reason
from shared.contracts.output import Output
from shared.contracts.steps import AttemptEnded, Job, Prompt, Sampling, StepDispatched, StepRevoked
from shared.contracts.streams import OUT, STEPS
from shared.core.blocks import block_hashes
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus
from shared.runtime.cursor import Source
from shared.runtime.ids import new_id
from shared.runtime.lifecycle import Context, Options
from shared.runtime.telemetry import Telemetry, TelemetryConfig

LIMIT_S = 20.0
T = TypeVar("T")


class Rig:
    """One worker and hand-made dispatches."""

    def __init__(self, bus: Bus, worker: WorkerId) -> None:
        self.bus = bus
        self.worker = worker
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()

    async def prompt(self, tokens: list[int], step: StepId | None = None) -> StepId:
        step = step or StepId(new_id())
        prompt = Prompt(step=step, model=ModelName("sim-small"), tokens=tokens, block_tokens=16, blocks=block_hashes(tokens, 16))
        await (await self.bus.store(subjects.prompt(step), ENCODER.encode(prompt)))
        return step

    async def dispatch(  # what a dispatch says
        self,
        step: StepId,
        attempt: int = 1,
        max_tokens: int = 40,
        accepted_ns: int = 0,
        prompt_tokens: int = 0,
        relieves: str = "",
        **sampling: object,
    ) -> None:
        job = Job(
            model=ModelName("sim-small"),
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            sampling=msgspec.convert(sampling, Sampling),
            accepted_ns=accepted_ns,
        )
        message = StepDispatched(step=step, job=job, cell=CellId("local"), worker=self.worker, attempt=attempt, relieves=WorkerId(relieves))
        await (await self.bus.store(subjects.step_event(step, f"dispatched.{self.worker}"), ENCODER.encode(message)))

    async def revoke(self, step: StepId, reason: Reason, attempt: int = 1) -> None:
        message = StepRevoked(step=step, cell=CellId("local"), worker=self.worker, attempt=attempt, reason=reason)
        await (await self.bus.store(subjects.step_event(step, f"revoked.{self.worker}"), ENCODER.encode(message)))

    async def ended(self, step: StepId) -> AttemptEnded:
        return await first(self.bus, STEPS.name, subjects.step_event(step, "ended.local"), AttemptEnded)

    async def outputs(self, step: StepId) -> list[Output]:
        return [msgspec.json.decode(record.data, type=Output) async for record in self.bus.history(OUT.name, subjects.out(step))]


async def first(bus: Bus, stream: str, subject: str, kind: type[T]) -> T:
    cursor = await bus.read(Source(stream=stream, subjects=(subject,)))
    try:
        [record] = await asyncio.wait_for(cursor.take(1), LIMIT_S)
        return msgspec.json.decode(record.data, type=kind)
    finally:
        await cursor.close()


@asynccontextmanager
async def working(bus: Bus, *overrides: str, name: str = "") -> AsyncIterator[Rig]:
    rig = Rig(bus, WorkerId(name or f"worker-{new_id()}"))
    options = Options(service="worker", instance=rig.worker, overrides=["simulated.law=instant", "worker.beat_ms=100", *overrides], env={})
    telemetry = Telemetry("worker", rig.worker, TelemetryConfig())
    context = Context(options=options, instance=rig.worker, bus=bus, telemetry=telemetry, stop=rig.stop, ready=rig.ready)
    task = asyncio.create_task(Worker(context, options.section(WorkerConfig, "worker")).run())
    waiting = asyncio.create_task(context.ready.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT_S)
    try:
        yield rig
    finally:
        rig.stop.set()
        await asyncio.wait_for(task, LIMIT_S)


def expected(tokens: list[int], count: int) -> list[int]:
    return prose.tokens_at(prose.offset_of(None, tokens), 0, count)


async def listed(rig: Rig, step: StepId, wanted: bool) -> None:
    """Until the worker's heartbeats list the step, or no longer do."""
    async with asyncio.timeout(LIMIT_S):
        while (step in [each.step for each in (await beat_of(rig)).running]) is not wanted:
            pass


async def beat_of(rig: Rig) -> WorkerBeat:
    beat: asyncio.Future[WorkerBeat] = asyncio.get_running_loop().create_future()

    async def take(msg: object) -> None:
        if not beat.done():
            beat.set_result(msgspec.json.decode(msg.data, type=WorkerBeat))  # type: ignore[attr-defined]

    subscription = await rig.bus.subscribe(subjects.beat(rig.worker), take)
    try:
        return await asyncio.wait_for(beat, LIMIT_S)
    finally:
        await subscription.unsubscribe()
