"""Whatever is killed, every step ends once and every reader sees one stream."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from bench.chaos.asks import simulated
from bench.chaos.checks import settlements
from bench.chaos.readers import Reading, read_by_nats
from legato import Client
from legato.fleet import Fleet
from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Status
from shared.contracts.streams import STEPS
from shared.runtime.db import connect
from shared.runtime.ids import new_id
from tests.acceptance.conftest import running_fleet

STEPS_PER_RUN = 200
AT_A_TIME = 20
TOKENS = 48
LIMIT_S = 120.0
VICTIMS = (
    "admission-0",
    "router-0",
    "scheduler-0",
    "kv_registry-0",
    "workflow-0",
    "autoscaler-0",
    "gateway-0",
    "worker-0",
    "nats",
    "postgres",
)


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    async with running_fleet(workers=2, settings=("simulated.law=8b-h100",)) as fleet:
        yield fleet


async def one_step(client: Client, number: int) -> StepId:
    """Stream a step, and compare what comes with what the simulated engine must say."""
    reading = Reading(step=StepId(new_id()), ask=simulated(f"Movement {number}, played {number % 7} times.", TOKENS))
    await read_by_nats(client, reading)
    assert not reading.faults
    return reading.step


async def run_steps(client: Client, halfway: asyncio.Event) -> list[StepId]:
    done: list[StepId] = []
    numbers = iter(range(STEPS_PER_RUN))

    async def reader() -> None:
        for number in numbers:
            done.append(await one_step(client, number))
            if len(done) >= STEPS_PER_RUN // 4:
                halfway.set()

    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        for _ in range(AT_A_TIME):
            group.create_task(reader())
    return done


@pytest.mark.parametrize("victim", VICTIMS)
async def test_every_step_ends_once_and_streams_without_seam(fleet: Fleet, victim: str) -> None:
    async with Client(fleet.running.nats) as client:
        halfway = asyncio.Event()
        running = asyncio.create_task(run_steps(client, halfway))
        waiting = asyncio.create_task(halfway.wait())
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        killed = fleet.running.processes[victim]
        os.kill(killed, signal.SIGKILL)
        steps = await running
        async with asyncio.timeout(LIMIT_S):
            while fleet.running.processes.get(victim, killed) == killed:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # the supervisor's events are its own
        assert psutil.pid_exists(fleet.running.processes[victim])
        settled = await settlements(fleet.bus, steps, LIMIT_S)
    assert len(set(steps)) == STEPS_PER_RUN
    assert {len(each) for each in settled.values()} == {1}
    assert {each[0].status for each in settled.values()} == {Status.SUCCEEDED}
    await recorded_in_postgres(fleet, steps)


async def recorded_in_postgres(fleet: Fleet, steps: list[StepId]) -> None:
    connection = await connect(fleet.running.postgres)
    try:
        rows = await connection.fetch("SELECT status, count(*) AS number FROM steps WHERE step = ANY($1::text[]) GROUP BY status", steps)
    finally:
        await connection.close()
    assert {row["status"]: row["number"] for row in rows} == {"succeeded": STEPS_PER_RUN}


async def replayed(fleet: Fleet, service: str, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit status and report of `legato replay SERVICE --verify --json`."""
    command = [sys.executable, "-m", "legato", "replay", service, "--verify", "--json", "--nats", fleet.running.nats, *options]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    printed, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    report: dict[str, Any] = json.loads(printed)
    return process.returncode or 0, report


@pytest.mark.parametrize("service", ["admission", "router", "scheduler", "kv_registry", "autoscaler"])
async def test_replaying_all_these_runs_decides_the_same(fleet: Fleet, service: str) -> None:
    status, report = await replayed(fleet, service)
    assert (status, report["differing"], report["missing"]) == (0, 0, 0), report["differences"]
    if service == "scheduler":
        info = await fleet.bus.js.stream_info(STEPS.name, subjects_filter=subjects.SETTLED)
        assert report["outputs"] >= len(info.state.subjects or {}) >= STEPS_PER_RUN


async def test_another_constant_is_seen_where_the_decisions_part(fleet: Fleet) -> None:
    status, report = await replayed(fleet, "scheduler", "--set", "attempts_max=1")
    assert status == 1
    assert report["differing"] > 0
    assert report["differences"][0]["number"] > 0
