"""Prompts that no open step can need are removed, and no others. The workflow service is a process of its own, as in test_workflow.py."""

import asyncio

import msgspec
import pytest
from workflow_messages import Start, admitted, ended, new_step

from shared.contracts import subjects
from shared.contracts.catalogue import KIND
from shared.contracts.envelope import Message
from shared.contracts.ids import ModelName, StepId
from shared.contracts.steps import Prompt, StepAdmitted
from shared.contracts.streams import PROMPTS, STEPS
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns
from shared.runtime.embedded import EmbeddedPostgres

WITHIN_S = 120.0
KEPT_S = 0.3
HOUR_NS = 3_600_000_000_000


class Fleet:
    """What admission and workers would publish, and what the stream of prompts has."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus

    async def say(self, message: Message) -> None:
        await (await self.bus.store(KIND[type(message)].subject(message), ENCODER.encode(message)))

    async def admit(self, step: StepId, accepted_ns: int = 0) -> None:
        """Its prompt, and right behind it the admission."""
        await self.say(Prompt(step=step, model=ModelName("m"), tokens=[1], block_tokens=16, blocks=[]))
        message = admitted(step)
        job = msgspec.structs.replace(message.job, accepted_ns=accepted_ns or now_ns())
        await self.say(msgspec.structs.replace(message, job=job))

    async def steps(self, number: int) -> list[StepId]:
        """So many admitted ones, each younger by more than what is kept of what nobody needs."""
        steps = [new_step() for _ in range(number)]
        for step in steps:
            await self.admit(step)
            await self.kept_for(KEPT_S)
        return steps

    async def kept_for(self, seconds: float) -> None:
        """Until that much time has passed by nats-server's clock."""
        end = (await self.bus.extent(PROMPTS.name)).at_ns + int(seconds * 1e9)
        while True:
            if (await self.bus.extent(PROMPTS.name)).at_ns > end:
                return
            await asyncio.sleep(0.02)

    async def prompts(self) -> set[StepId]:
        return {subjects.step_of(record.subject) async for record in self.bus.history(PROMPTS.name, subjects.PROMPT)}

    async def gone(self, step: StepId) -> None:
        """Wait until a prompt is removed."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                if await self.bus.last(PROMPTS.name, subjects.prompt(step)) is None:
                    return
                await asyncio.sleep(0.02)


@pytest.fixture
async def fleet(bus: Bus) -> Fleet:
    return Fleet(bus)


@pytest.fixture
def start_keeping(start: Start) -> Start:
    """A service that keeps prompts for KEPT_S and looks all the time."""
    return lambda *settings, **rest: start(f"prompts_kept_s={KEPT_S}", "prompts_sweep_ms=20", *settings, **rest)


async def test_what_is_older_than_every_open_step_goes_and_nothing_else(fleet: Fleet, start_keeping: Start) -> None:
    old, open_, younger, youngest = await fleet.steps(4)
    for step in (old, younger):
        await fleet.say(ended(step))
    await start_keeping()
    await fleet.gone(old)
    assert await fleet.prompts() == {open_, younger, youngest}
    await fleet.say(ended(open_))
    await fleet.gone(younger)
    assert await fleet.prompts() == {youngest}
    await fleet.say(ended(youngest))
    await fleet.gone(youngest)


@pytest.mark.parametrize("wrong_by_ns", [-HOUR_NS, HOUR_NS])
async def test_a_clock_that_is_wrong_costs_no_open_step_its_prompt(fleet: Fleet, start_keeping: Start, wrong_by_ns: int) -> None:
    """Admission's, against that of nats-server."""
    steps = [new_step() for _ in range(4)]
    for step in steps:
        await fleet.admit(step, now_ns() + wrong_by_ns)
        await fleet.kept_for(2 * KEPT_S)
    old, open_, younger, youngest = steps
    for step in (old, younger):
        await fleet.say(ended(step))
    await start_keeping()
    if wrong_by_ns > 0:
        await fleet.gone(old)
        assert await fleet.prompts() == {open_, younger, youngest}
    await fleet.say(ended(open_))
    await fleet.say(ended(youngest))
    for step in steps:
        await fleet.gone(step)


async def test_a_step_that_was_announced_again_late_still_has_its_prompt(fleet: Fleet, start_keeping: Start) -> None:
    old, open_ = await fleet.steps(2)
    await fleet.say(ended(old))
    await start_keeping("stall_ms=100", "sweep_ms=50")
    announced = [0]
    async with asyncio.timeout(WITHIN_S):
        while len(announced) < 3:
            announced = [each.seq async for each in fleet.bus.history(STEPS.name, subjects.step_event(open_, "admitted"))]
            await asyncio.sleep(0.05)
    await fleet.gone(old)
    assert await fleet.prompts() == {open_}
    again = await fleet.bus.last(STEPS.name, subjects.step_event(open_, "admitted"))
    assert again is not None
    assert msgspec.json.decode(again.data, type=StepAdmitted).step == open_


async def test_a_service_that_starts_late_first_reads_what_was_admitted_meanwhile(fleet: Fleet, start_keeping: Start) -> None:
    first = await start_keeping()
    [old] = await fleet.steps(1)
    await fleet.say(ended(old))
    await fleet.gone(old)
    await first.stop(10.0)
    steps = await fleet.steps(3)
    await start_keeping(instance="workflow-2")
    await fleet.say(ended(steps[0]))
    await fleet.gone(steps[0])
    assert await fleet.prompts() == set(steps[1:])


async def test_without_postgres_nothing_is_removed(fleet: Fleet, start_keeping: Start, fresh_postgres: EmbeddedPostgres) -> None:
    await start_keeping(dsn=fresh_postgres.dsn)
    [old] = await fleet.steps(1)
    await fleet.say(ended(old))
    await fleet.gone(old)
    await fresh_postgres.stop()
    done, open_ = await fleet.steps(2)
    await fleet.say(ended(done))
    await fleet.kept_for(4 * KEPT_S)
    assert await fleet.prompts() == {done, open_}
    await fresh_postgres.start()
    await fleet.gone(done)
    assert await fleet.prompts() == {open_}


async def test_prompts_can_be_kept_as_long_as_the_stream_keeps_them(fleet: Fleet, start_keeping: Start) -> None:
    process = await start_keeping("prompts_kept_s=0")
    [step] = await fleet.steps(1)
    await fleet.say(ended(step))
    async with asyncio.timeout(WITHIN_S):
        while True:
            if await fleet.bus.last(STEPS.name, subjects.step_event(step, "settled")) is not None:
                break
            await asyncio.sleep(0.02)
    await fleet.kept_for(2 * KEPT_S)
    assert await fleet.prompts() == {step}
    await process.stop(10.0)
