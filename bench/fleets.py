"""Whole fleets, as `legato up` runs them: every service, worker and server a process of its own. For tests and measurements."""

import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from legato.fleet import Fleet
from legato.plan import Launch, Wanted
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
    async with running(Wanted(engine=engine, workers=workers, settings=settings, replicas=replicas), tell=tell) as fleet:
        yield fleet


@asynccontextmanager
async def running(wanted: Wanted, besides: Sequence[Launch] = (), tell: Callable[[str], None] = _quiet) -> AsyncIterator[Fleet]:
    """`running_fleet`, on any free port. `besides`: more processes, with settings of their own."""
    with tempfile.TemporaryDirectory(prefix="legato-fleet-") as directory:
        async with Fleet(Path(directory), msgspec.structs.replace(wanted, port=free_port()), tell) as fleet:
            fleet.launches += besides
            await fleet.start()
            yield fleet
