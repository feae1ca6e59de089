"""What many of these tests begin with."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gateway_place import Place, gateway
from workflow_messages import Start

from shared.runtime.bus import Bus, BusConfig
from shared.runtime.embedded import EmbeddedNats
from shared.runtime.process import ManagedProcess, ProcessSpec


@pytest.fixture
async def bus(fresh_nats: EmbeddedNats) -> AsyncIterator[Bus]:
    """A connection to a nats-server of the test's own, with all streams."""
    bus = await Bus.connect(BusConfig(url=fresh_nats.url), "test")
    await bus.ensure_streams()
    yield bus
    await bus.close()


@pytest.fixture
async def start(fresh_nats: EmbeddedNats, database: str, server_directory: Path) -> AsyncIterator[Start]:
    """Starts a process of the workflow service; those that still run are stopped at the end."""
    processes: list[ManagedProcess] = []

    async def run(*settings: str, instance: str = "workflow-1", dsn: str = database) -> ManagedProcess:
        argv = [sys.executable, "-m", "services.workflow", "--instance", instance]
        argv += [part for setting in settings for part in ("--set", f"workflow.{setting}")]
        env = {**os.environ, "LEGATO_BUS_URL": fresh_nats.url, "LEGATO_POSTGRES_DSN": dsn, "PYTHONWARNINGS": "error"}
        process = ManagedProcess(ProcessSpec(name=instance, argv=argv, env=env, log=server_directory / f"{instance}.log"))
        await process.start()
        processes.append(process)
        return process

    yield run
    for process in processes:
        await process.stop(10.0)
    for process in processes:
        lines = (server_directory / f"{process.spec.name}.log").read_text().splitlines()
        assert not [line for line in lines if "Traceback" in line and '"level":"warning"' not in line]  # asyncpg warns with one


@pytest.fixture(scope="module")
async def shared_place(nats_url: str) -> AsyncIterator[Place]:
    """A gateway for all tests of a file."""
    async with gateway(nats_url) as place:
        yield place


@pytest.fixture
async def place(shared_place: Place) -> Place:
    """The shared gateway, with nothing left over in the fleet's queues."""
    fleet = shared_place.fleet
    fleet.submitted, fleet.cancelled = asyncio.Queue(100), asyncio.Queue(100)
    return shared_place
