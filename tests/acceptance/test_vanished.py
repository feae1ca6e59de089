"""A worker whose process is gone is missed at once, long before its lease is over; one that merely stops is left to its lease."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import msgspec
import pytest
from nats.aio.msg import Msg

from legato import Client
from legato.fleet import Fleet
from shared.contracts import subjects
from shared.contracts.fleet import WorkerVanished
from shared.contracts.ids import CellId
from shared.contracts.outcomes import Status
from tests.acceptance.conftest import running_fleet
from tests.acceptance.test_kills import LIMIT_S

CELL = CellId("local")


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    settings = ("simulated.law=8b-h100", "scheduler.lease_ms=60000", "scheduler.dispatch_grace_ms=60000")
    async with running_fleet(workers=2, settings=settings) as fleet:
        yield fleet


async def test_a_stream_goes_on_elsewhere_when_its_workers_process_is_killed(fleet: Fleet) -> None:
    vanished: asyncio.Queue[str] = asyncio.Queue()

    async def on_vanished(msg: Msg) -> None:
        vanished.put_nowait(msgspec.json.decode(msg.data, type=WorkerVanished).worker)

    await fleet.bus.subscribe(subjects.vanished(CELL), on_vanished)
    async with Client(fleet.running.nats) as client:
        undisturbed = await (await client.submit(model="sim-small", prompt="Once", max_tokens=200, seed=1)).result(LIMIT_S)
        step = await client.submit(model="sim-small", prompt="Once", max_tokens=200, seed=1)
        killed = ""
        async with asyncio.timeout(LIMIT_S):
            async for output in step:
                if len(step.so_far.tokens) > 20 and not killed:
                    assert output.attempt == 1
                    killed = (await client.record(step.id)).attempts[0].worker
                    os.kill(fleet.running.processes[killed], signal.SIGKILL)
        assert (step.so_far.status, step.so_far.tokens) == (Status.SUCCEEDED, undisturbed.tokens)
        assert output.attempt == 2
        assert await asyncio.wait_for(vanished.get(), LIMIT_S) == killed


async def test_nobody_vanishes_with_the_server(fleet: Fleet) -> None:
    said: list[bytes] = []

    async def on_vanished(msg: Msg) -> None:
        said.append(msg.data)

    await fleet.bus.subscribe(subjects.vanished(CELL), on_vanished)
    os.kill(fleet.running.processes["nats"], signal.SIGKILL)
    async with Client(fleet.running.nats) as client:
        for number in range(5):
            result = await (await client.submit(model="sim-small", prompt=f"After {number}", max_tokens=100)).result(LIMIT_S)
            assert result.status is Status.SUCCEEDED
    assert not said
