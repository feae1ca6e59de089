"""A worker that is told to leave while streams run on it: they go on elsewhere, and their readers see no seam."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from legato import Client, Step
from legato.fleet import Fleet
from shared.contracts.outcomes import Reason, Status
from tests.acceptance.conftest import running_fleet
from tests.acceptance.test_kills import LIMIT_S

STREAMS = 6
TOKENS = 1_500  # some seconds: longer than half of what is left to a worker that leaves


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    async with running_fleet(workers=2, settings=("simulated.law=8b-h100", "worker.drain_timeout_s=10")) as fleet:
        yield fleet


async def sing(client: Client, number: int) -> Step:
    return await client.submit(model="sim-small", prompt=f"Song {number}", max_tokens=TOKENS, seed=number)


async def read(step: Step, begun: asyncio.Event) -> list[int]:
    """All tokens in the order in which they came; `begun` once there are a few."""
    tokens: list[int] = []
    async with asyncio.timeout(LIMIT_S):
        async for output in step:
            assert output.offset == len(tokens)
            tokens += output.tokens
            if len(tokens) > 20:
                begun.set()
    return tokens


async def test_streams_go_over_to_another_worker_when_theirs_is_told_to_leave(fleet: Fleet) -> None:
    async with Client(fleet.running.nats) as client:
        steps = [await sing(client, number) for number in range(STREAMS)]
        begun = [asyncio.Event() for _ in steps]
        reading = [asyncio.create_task(read(step, event)) for step, event in zip(steps, begun, strict=True)]
        async with asyncio.timeout(LIMIT_S):
            for event in begun:
                await event.wait()
        worker = (await client.record(steps[0].id)).attempts[0].worker
        os.kill(fleet.running.processes[worker], signal.SIGTERM)
        streamed = [await each for each in reading]
        again = [await sing(client, number) for number in range(STREAMS)]
        undisturbed = [(await step.result(LIMIT_S)).tokens for step in again]
        records = [await client.record(step.id) for step in steps]
    assert streamed == undisturbed
    assert [step.so_far.status for step in steps] == [Status.SUCCEEDED] * STREAMS
    moved = [record for record in records if record.attempts[0].worker == worker]
    assert moved
    for record in moved:
        first, *others = record.attempts
        assert first.problem is not None
        assert first.problem.reason is Reason.HANDED_OVER
        assert [attempt.status for attempt in others] == [Status.SUCCEEDED]
