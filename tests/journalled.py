"""What a service has written down of its inputs: a test that kills it waits for that, or tries what is only in its memory."""

import asyncio

from shared.contracts import subjects
from shared.contracts.streams import JOURNAL
from shared.runtime.bus import Bus
from shared.runtime.cursor import Source

LIMIT_S = 30.0


async def journalled(bus: Bus, service: str, partition: str, text: str) -> None:
    """Wait until the partition's journal holds `text`, such as a step's id; raises TimeoutError."""
    cursor = await bus.read(Source(stream=JOURNAL.name, subjects=(subjects.journal(service, partition),)))
    try:
        async with asyncio.timeout(LIMIT_S):
            while text.encode() not in (await cursor.take(1))[0].data:
                pass
    finally:
        await cursor.close()
