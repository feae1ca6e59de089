"""What a stop waits for, told when it takes long: steps that still run on workers, and processes that have not ended."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import nats.errors
from nats.aio.msg import Msg

from shared.contracts import subjects
from shared.contracts.fleet import WorkerBeat
from shared.core.reading import NoMessage, read
from shared.runtime.bus import Bus

QUIET_S = 2.0  # what stops within is not worth a line
AGAIN_S = 5.0

_BEAT = msgspec.json.Decoder(WorkerBeat)


@asynccontextmanager
async def telling(bus: Bus, left: Callable[[], list[str]], tell: Callable[[str], None]) -> AsyncIterator[None]:
    """Tell, while the body runs, which of the processes are `left`; of workers with the steps that their heartbeats count."""
    steps: dict[str, int] = {}

    async def on_beat(msg: Msg) -> None:
        with contextlib.suppress(NoMessage):
            beat = read(_BEAT, msg.data)
            steps[beat.worker] = len(beat.running)

    with contextlib.suppress(nats.errors.Error):  # without NATS there are no counts, and the names are told all the same
        await bus.subscribe(subjects.BEATS, on_beat)  # for as long as the connection lives, which is hardly longer
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_repeat(lambda: waits_for(left(), steps), tell))
        try:
            yield
        finally:
            task.cancel()


async def _repeat(text: Callable[[], str], tell: Callable[[str], None]) -> None:
    await asyncio.sleep(QUIET_S)
    said = ""
    while True:
        if (now := text()) not in ("", said):
            said = now
            tell(now)
        await asyncio.sleep(AGAIN_S)


def waits_for(left: list[str], steps: dict[str, int]) -> str:
    """One line, empty when nothing is left."""
    named = [f"{name} ({steps[name]} step{'' if steps[name] == 1 else 's'})" if steps.get(name) else name for name in left]
    return f"waiting for {', '.join(named)}" if named else ""
