"""How a process begins and ends."""

import asyncio

from shared.runtime.bus import BusConfig
from shared.runtime.lifecycle import _connected


async def test_who_is_told_to_stop_while_it_looks_for_nats_does_not_go_on_looking() -> None:
    stop = asyncio.Event()
    looking = asyncio.create_task(_connected(BusConfig(url="nats://127.0.0.1:1"), "x", stop))
    await asyncio.sleep(0)  # it has begun
    stop.set()
    assert await asyncio.wait_for(looking, 10.0) is None
