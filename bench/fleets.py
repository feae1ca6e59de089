"""Whole fleets, as `legato up` runs them: every service, worker and server a process of its own. For tests and measurements."""

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from legato.fleet import Fleet
from legato.plan import Wanted
from shared.runtime.server_directory import free_port


def _quiet(line: str) -> None:
    """For those who do not want to be told."""


@asynccontextmanager
async def running_fleet(
    engine: str = "simulated",
    workers: int = 2,
    settings: tuple[str, ...] = (),
    replicas: tuple[str, ...] = (),
    tell: Callable[[str], None] = _quiet,
) -> AsyncIterator[Fleet]:
    """Started and ready, in a directory of its own; at the end drained and gone."""
    with tempfile.TemporaryDirectory(prefix="legato-fleet-") as directory:
        wanted = Wanted(engine=engine, workers=workers, port=free_port(), settings=settings, replicas=replicas)
        async with Fleet(Path(directory), wanted, tell) as fleet:
            await fleet.start()
            yield fleet
