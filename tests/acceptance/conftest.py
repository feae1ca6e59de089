"""Whole fleets, as `legato up` runs them: every service, worker and server a process of its own."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from legato.fleet import Fleet
from legato.plan import Wanted
from shared.runtime.server_directory import free_port


@asynccontextmanager
async def running_fleet(
    engine: str = "simulated", workers: int = 2, settings: tuple[str, ...] = (), replicas: tuple[str, ...] = ()
) -> AsyncIterator[Fleet]:
    """Started and ready; at the end drained and gone."""
    with tempfile.TemporaryDirectory(prefix="legato-fleet-") as directory:
        wanted = Wanted(engine=engine, workers=workers, port=free_port(), settings=settings, replicas=replicas)
        async with Fleet(Path(directory), wanted, lambda line: None) as fleet:
            await fleet.start()
            yield fleet


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    """Two workers with the simulated engine in real time; shared by the tests of a module."""
    async with running_fleet() as fleet:
        yield fleet
