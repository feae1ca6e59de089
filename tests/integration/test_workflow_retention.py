"""What Postgres keeps no longer, and that its cost stays known."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import asyncpg  # type: ignore[import-untyped]
import msgspec
import pytest
from workflow_messages import admitted, dispatched, ended, new_step

from services.workflow import sql
from services.workflow.config import WorkflowConfig
from services.workflow.decide import decide
from services.workflow.patience import Patience
from services.workflow.retention import DAY_NS, Retention
from services.workflow.service import MIGRATIONS
from services.workflow.store import Store
from services.workflow.workflow_store import WorkflowReader
from shared.contracts.costs import Cost
from shared.contracts.envelope import Message
from shared.contracts.ids import StepId, WorkflowId
from shared.contracts.outcomes import Status
from shared.contracts.workflows import ValueRecorded, WorkflowClosed, WorkflowOpened
from shared.core.inputs import name_token
from shared.runtime.clock import now_ns
from shared.runtime.db import DatabaseConfig, close_pool, open_pool
from shared.runtime.migrations import migrate

NONE = WorkflowId("")
CONFIG = WorkflowConfig(kept_days=30)


class Book:
    """Postgres with what was written into it some days ago."""

    def __init__(self, store: Store, workflows: WorkflowReader) -> None:
        self.store = store
        self.workflows = workflows
        self._batch = 0

    async def write(self, days_ago: float, messages: Iterable[Message]) -> None:
        then_ns = now_ns() - int(days_ago * DAY_NS)
        dated = [msgspec.structs.replace(each, time_ns=then_ns) for each in messages]
        position = await self.store.take_over("test", "")
        self._batch = position.batch = position.batch + 1
        known = await self.store.known([each.step for each in dated])
        await self.store.record("test", position, decide(known, dated, then_ns, CONFIG), then_ns)

    async def step(self, days_ago: float, workflow: WorkflowId = NONE, *, open: bool = False) -> StepId:
        """A step with an attempt that failed and one that did not, or that still runs."""
        step = new_step()
        admission = msgspec.structs.replace(admitted(step), workflow=workflow)
        job = msgspec.structs.replace(admission.job, accepted_ns=now_ns() - int(days_ago * DAY_NS))
        ends = [
            msgspec.structs.replace(ended(step, attempt, status), usd=usd, gpu_s=usd / 2)
            for attempt, status, usd in ((1, Status.FAILED, 0.25), (2, Status.SUCCEEDED, 0.5))
        ]
        messages = [msgspec.structs.replace(admission, job=job), dispatched(step), ends[0], dispatched(step, 2), ends[1]]
        await self.write(days_ago, messages[:4] if open else messages)
        return step

    async def has(self, step: StepId) -> bool:
        return await self.store.get_step(step) is not None

    async def has_workflow(self, workflow: WorkflowId) -> bool:
        return await self.workflows.get(workflow) is not None

    async def costs(self) -> list[Cost]:
        return (await self.store.costs(0)).costs

    async def forget(self) -> None:
        await Retention(self.store, CONFIG).sweep(Patience(asyncio.Event()))


@pytest.fixture
async def book(database: str) -> AsyncIterator[Book]:
    pool = await open_pool(DatabaseConfig(dsn=database))
    await migrate(pool, MIGRATIONS)
    yield Book(Store(pool), WorkflowReader(pool))
    await close_pool(pool)


async def test_old_steps_go_new_and_open_ones_stay_and_the_costs_are_the_same(book: Book) -> None:
    old, recent, running = await book.step(40), await book.step(20), await book.step(40, open=True)
    before = await book.costs()
    await book.forget()
    assert [await book.has(step) for step in (old, recent, running)] == [False, True, True]
    assert await book.costs() == before
    await book.forget()
    assert await book.costs() == before
    assert before[0].steps == 3
    assert before[0].usd == 1.75


async def test_a_workflow_goes_whole_once_nothing_was_heard_of_it(book: Book) -> None:
    done, busy, alive, labelled = (WorkflowId(name) for name in ("done", "busy", "alive", "labelled"))
    for workflow in (done, busy, alive):
        await book.write(50, [WorkflowOpened(workflow=workflow, kind="report")])
    await book.write(45, [ValueRecorded(workflow=done, name="page", token=name_token("page"), value=msgspec.Raw(b"1"))])
    steps = {workflow: await book.step(45, workflow) for workflow in (done, busy, alive, labelled)}
    second = await book.step(44.9, done)
    await book.write(44, [WorkflowClosed(workflow=done, success=True)])
    running = await book.step(45, busy, open=True)
    await book.write(1, [ValueRecorded(workflow=alive, name="page", token=name_token("page"), value=msgspec.Raw(b"1"))])
    before = await book.costs()
    await book.forget()
    assert await book.costs() == before
    assert [await book.has_workflow(workflow) for workflow in (done, busy, alive)] == [False, True, True]
    assert not (await book.workflows.value(done, name_token("page"))).found
    assert [await book.has(steps[workflow]) for workflow in (done, busy, alive, labelled)] == [False, True, True, False]
    assert not await book.has(second)
    assert await book.has(running)


async def test_a_workflow_is_kept_until_its_deadline_is_long_over(book: Book) -> None:
    workflow = WorkflowId("patient")
    await book.write(400, [WorkflowOpened(workflow=workflow, deadline_ns=now_ns() - 29 * DAY_NS)])
    await book.forget()
    assert await book.has_workflow(workflow)


async def test_a_batch_takes_the_oldest_and_no_more_than_it_may(book: Book) -> None:
    steps = [await book.step(days) for days in (40, 60, 50)]
    assert await book.store.forget_steps(now_ns() - 30 * DAY_NS, 2) == 2
    assert [await book.has(step) for step in steps] == [True, False, False]


async def test_later_costs_are_added_to_the_sums_of_their_hour(book: Book) -> None:
    first, second = await book.step(40), await book.step(40)
    before = await book.costs()
    for _ in (first, second):
        assert await book.store.forget_steps(now_ns() - 30 * DAY_NS, 1) == 1
    assert await book.costs() == before
    assert before[0].tasks == 2
    assert (await book.store.costs(now_ns() - 39 * DAY_NS)).costs == []


async def test_a_workflow_stays_to_which_a_step_comes_at_that_moment(book: Book, database: str) -> None:
    """As the recorder does it: it holds the position while it writes, and the write is seen with its commit."""
    workflow = WorkflowId("late")
    await book.write(50, [WorkflowOpened(workflow=workflow, kind="report")])
    old, new = await book.step(45, workflow), await book.step(0, workflow)
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            await connection.fetch(sql.LOCK_POSITION, "workflow", "test")
            await connection.execute("UPDATE steps SET settled_ns = 0, status = 'running' WHERE step = $1", new)
            forgetting = asyncio.create_task(book.store.forget_workflows(now_ns() + DAY_NS, 20))
            while True:
                if forgetting.done() or await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                    break
                await asyncio.sleep(0.01)
        assert await forgetting == 0
    finally:
        await connection.close()
    assert [await book.has(step) for step in (old, new)] == [True, True]
    assert await book.has_workflow(workflow)
