"""Makes the number of workers what the autoscaler asks for, by starting and draining processes of this machine."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from shared.contracts import subjects
from shared.contracts.fleet import ScaleTargetSet
from shared.contracts.ids import CellId
from shared.contracts.streams import FLEET
from shared.core.errors import LegatoError
from shared.core.reading import NoMessage, read
from shared.runtime.bus import Bus
from shared.runtime.cursor import Source

WORKERS_MAX = 256  # of one machine, whatever is asked for

_DECODER = msgspec.json.Decoder(ScaleTargetSet)


class Crew(Protocol):
    """Who has the workers."""

    @property
    def workers(self) -> list[str]:
        """Those that are to stay, oldest first."""

    async def hire(self) -> str:
        """Start one more; its name."""

    async def dismiss(self, name: str) -> None:
        """Drain one and stop it; returns when it is gone. From the call on it is not among `workers`."""


class Actuator:
    """Follows the targets of one pool. Only what was decided at or after `since_ns` counts: an earlier fleet's targets are not ours."""

    def __init__(self, bus: Bus, crew: Crew, pool: tuple[CellId, str], since_ns: int, tell: Callable[[str], None]) -> None:
        self._bus = bus
        self._crew = crew
        self._subject = subjects.target(*pool)
        self._since_ns = since_ns
        self._tell = tell

    async def run(self) -> None:
        """Follow for ever."""
        cursor = await self._bus.read(Source(stream=FLEET.name, subjects=(self._subject,), latest=True))
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    newest = (await cursor.take(64))[-1]
                    try:
                        target = read(_DECODER, newest.data)
                    except NoMessage as error:
                        self._tell(f"a target could not be read: {error}")
                        continue
                    if target.time_ns >= self._since_ns:
                        await self._reach(target, group)
        finally:
            await cursor.close()

    async def _reach(self, target: ScaleTargetSet, group: asyncio.TaskGroup) -> None:
        wanted = min(target.workers, WORKERS_MAX)
        while len(self._crew.workers) < wanted:
            try:
                name = await self._crew.hire()
            except LegatoError as error:
                self._tell(f"a worker could not be started: {error}")
                return
            self._tell(f"{name} started for a target of {target.workers}: {target.why}")
        for name in self._crew.workers[wanted:][::-1]:
            self._tell(f"{name} drains for a target of {target.workers}: {target.why}")
            group.create_task(self._dismiss(name), name=f"dismiss {name}")
        await asyncio.sleep(0)  # so that they have left `workers` before the next target is read

    async def _dismiss(self, name: str) -> None:
        try:
            await self._crew.dismiss(name)
        except LegatoError as error:
            self._tell(f"{name} could not be stopped: {error}")
