"""A client that has one step under way at a time never meets a limit of one, however fast it is."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

import legato
from legato.fleet import Fleet
from tests.acceptance.conftest import running_fleet

STEPS = 40
# The wait is long, so that a machine that is busy with other things does not matter.
SETTINGS = ("admission.anyone.concurrent_max=1", "admission.concurrent_wait_ms=10000", "simulated.time_scale=0.02")


@pytest.fixture(scope="module")
async def narrow() -> AsyncIterator[Fleet]:
    async with running_fleet(workers=1, settings=SETTINGS) as fleet:
        yield fleet


async def test_by_nats(narrow: Fleet) -> None:
    async with legato.Client(narrow.running.nats) as client:
        for _ in range(STEPS):
            step = await client.submit(model="sim-small", prompt="Hi", max_tokens=3)
            assert (await step.result(30)).status is legato.Status.SUCCEEDED


async def test_by_http(narrow: Fleet) -> None:
    body = {"model": "sim-small", "prompt": "Hi", "max_tokens": 3}
    async with aiohttp.ClientSession() as session:
        for _ in range(STEPS):
            async with session.post(f"{narrow.running.http}/v1/completions", json=body) as reply:
                assert reply.status == 200, await reply.text()
