"""Wiring of the workflow service: Postgres, the reader of the log, the look for stalled steps, queries."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from services.workflow.config import WorkflowConfig
from services.workflow.patience import Patience
from services.workflow.prompt_keeper import PromptKeeper
from services.workflow.queries import Queries
from services.workflow.recorder import Recorder
from services.workflow.redriver import Redriver
from services.workflow.retention import Retention
from services.workflow.store import Store
from services.workflow.workflow_store import WorkflowReader
from shared.core.errors import LegatoError
from shared.runtime.db import DatabaseConfig, Pool, close_pool, open_pool
from shared.runtime.lease import Lease
from shared.runtime.lifecycle import Context
from shared.runtime.migrations import migrate

MIGRATIONS = Path(__file__).parents[2] / "migrations"
PARTITION = "all"


async def run(context: Context) -> None:
    """Record until told to stop. Every process answers queries; one of them, by lease, records."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_serve(context)), group.create_task(context.stop.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


async def _serve(context: Context) -> None:
    async with _postgres(context.section(DatabaseConfig, "postgres")) as pool:
        store = Store(pool)
        subscriptions = await Queries(context.bus, store, WorkflowReader(pool)).open()
        try:
            await _stand_by(context, store)
        finally:
            for subscription in subscriptions:
                await subscription.unsubscribe()


async def _stand_by(context: Context, store: Store) -> None:
    context.status["role"] = "standing by"
    lease = await Lease.acquire(context.bus, f"workflow.{PARTITION}", context.instance, context.stop)
    if lease is None:
        return
    context.status["role"] = "active"
    try:
        await _record(context, store, lease)
    finally:
        await lease.release()


async def _record(context: Context, store: Store, lease: Lease) -> None:
    patiently = Patience(context.ready)  # ready once it has taken over: who stands by is not
    config = context.section(WorkflowConfig, "workflow")
    recorder = Recorder(context.bus, store, patiently, config, context.telemetry)
    redriver = Redriver(context.bus, store, recorder, config, context.telemetry)
    async with asyncio.TaskGroup() as group:
        group.create_task(lease.keep(), name="lease")
        group.create_task(recorder.run(), name="recorder")
        group.create_task(redriver.run(patiently), name="redriver")
        group.create_task(Retention(store, config).run(patiently), name="retention")
        group.create_task(PromptKeeper(context.bus, store, recorder, config).run(patiently), name="prompt-keeper")


@asynccontextmanager
async def _postgres(config: DatabaseConfig) -> AsyncIterator[Pool]:
    """A pool on a database with all migrations; waits for Postgres as long as it takes."""
    if not config.dsn:  # asyncpg would try the defaults of libpq
        raise LegatoError("the workflow service needs Postgres: give its dsn in the section [postgres], or as LEGATO_POSTGRES_DSN")
    patiently = Patience(asyncio.Event())
    once = msgspec.structs.replace(config, unreachable_s=0.0)
    pool = await patiently(lambda: open_pool(once))
    try:
        await patiently(lambda: migrate(pool, MIGRATIONS))
        yield pool
    finally:
        await close_pool(pool)
