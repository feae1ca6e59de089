"""Runs a machine as a service: what every deciding service's `run` calls."""

import asyncio

from shared.core.machine import ConfigT, Machine, StateT
from shared.drivers.inputs import Wiring
from shared.drivers.live import LiveDriver
from shared.runtime.lifecycle import Context


async def run_machine(context: Context, machine: Machine[StateT, ConfigT], config: ConfigT, wiring: Wiring, partition: str) -> None:
    """Drive one partition until told to stop. Other processes with the same partition stand by."""
    driver = LiveDriver(machine, config, context.bus, wiring, context.telemetry)
    context.status["partition"] = partition

    async def follow() -> None:
        await driver.ready.wait()
        context.ready.set()
        context.status["role"] = "active"

    context.status["role"] = "standing by"
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(follow())
        await driver.run(partition, context.instance, context.stop)
        waiting.cancel()
