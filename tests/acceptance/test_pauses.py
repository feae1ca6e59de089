"""Processes that stop for a while and go on as if nothing had happened: nobody is lost, and nobody who was replaced meddles."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Sequence

import pytest

from bench.chaos.checks import settlements
from legato import Client
from legato.fleet import Fleet
from legato.processes import ask
from shared.contracts.outcomes import Status
from tests.acceptance.conftest import running_fleet
from tests.acceptance.test_kills import LIMIT_S, STEPS_PER_RUN, recorded_in_postgres, replayed, run_steps

MACHINES = ("admission", "router", "scheduler")
PAUSE_S = 7.5  # longer than a lease
MACHINE_PAUSE_S = 60.0  # how long a stopped process waits at most for its stand-by to drive


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    replicas = tuple(f"{service}=2" for service in MACHINES)
    async with running_fleet(workers=2, settings=("simulated.law=8b-h100",), replicas=replicas) as fleet:
        yield fleet


async def active(fleet: Fleet) -> list[str]:
    """The processes that drive a partition now (of those that are not stopped)."""
    return [each.instance for each in await ask(fleet.bus) if each.service in MACHINES and each.details.get("role") == "active"]


async def all_replaced(fleet: Fleet) -> None:
    """Wait for as many active processes as there are partitions: the stand-bys of stopped ones."""
    async with asyncio.timeout(MACHINE_PAUSE_S):
        while len(await active(fleet)) != len(MACHINES):  # noqa: ASYNC110  it can only be asked
            await asyncio.sleep(0.1)


async def paused(fleet: Fleet, names: Sequence[str], until: Awaitable[None]) -> None:
    """Stop them, and let them go on when `until` has come."""
    processes = [fleet.running.processes[name] for name in names]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        await until
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


async def all_succeed_while_paused(fleet: Fleet, names: Sequence[str], until: Awaitable[None]) -> None:
    async with Client(fleet.running.nats) as client:
        begun = asyncio.Event()
        running = asyncio.create_task(run_steps(client, begun))
        await asyncio.wait_for(begun.wait(), LIMIT_S)
        await paused(fleet, names, until)
        steps = await running
        settled = await settlements(fleet.bus, steps, LIMIT_S)
    assert len(set(steps)) == STEPS_PER_RUN
    assert {len(each) for each in settled.values()} == {1}
    assert {each[0].status for each in settled.values()} == {Status.SUCCEEDED}
    await recorded_in_postgres(fleet, steps)


async def test_a_stand_by_goes_on_where_the_active_one_was_stopped_and_the_old_one_leaves(fleet: Fleet) -> None:
    before = {name: fleet.running.processes[name] for name in await active(fleet)}
    assert len(before) == len(MACHINES)
    await all_succeed_while_paused(fleet, list(before), all_replaced(fleet))
    async with asyncio.timeout(LIMIT_S):
        while any(fleet.running.processes.get(name) in (pid, None) for name, pid in before.items()):  # noqa: ASYNC110  each ends by itself
            await asyncio.sleep(0.1)
    await all_replaced(fleet)


async def test_a_server_that_stops_for_longer_than_a_lease_costs_time_only(fleet: Fleet) -> None:
    await all_succeed_while_paused(fleet, ["nats"], asyncio.sleep(PAUSE_S))


@pytest.mark.parametrize("service", MACHINES)
async def test_what_was_decided_is_decided_again(fleet: Fleet, service: str) -> None:
    status, report = await replayed(fleet, service)
    assert (status, report["differing"], report["missing"]) == (0, 0, 0), report["differences"]
