"""The workflow service as a process of its own, with a real nats-server and a real Postgres, which both come and go."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence

import msgspec
import nats.errors
import pytest
from workflow_messages import CELL, LOST, TEXT, WORKER, Start, admitted, dispatched, ended, new_step, whole

from services.workflow.config import WorkflowConfig
from services.workflow.decide import decide
from services.workflow.service import MIGRATIONS
from services.workflow.store import Overtaken, Position, Store
from shared.contracts import subjects
from shared.contracts.catalogue import KIND
from shared.contracts.envelope import Message
from shared.contracts.ids import StepId
from shared.contracts.journal import DeadLetter
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status, Usage
from shared.contracts.output import End, Output
from shared.contracts.steps import (
    Reservation,
    StepAdmitted,
    StepClosed,
    StepRecord,
    StepRefused,
    StepRouted,
    StepSettled,
    StepState,
)
from shared.contracts.streams import DEAD, OUT, STEPS
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns
from shared.runtime.cursor import Record, Source
from shared.runtime.db import DatabaseConfig, Pool, close_pool, open_pool
from shared.runtime.embedded import EmbeddedNats, EmbeddedPostgres
from shared.runtime.migrations import migrate

WITHIN_S = 120.0  # for anything that must happen; hit only when it never would
QUICK = ("sweep_ms=50", "stall_ms=100", "grace_ms=100", "redrives_max=2")


class Log:
    """What the other services would publish, and what they would read."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus

    async def say(self, *messages: Message) -> None:
        futures = [await self.bus.store(KIND[type(m)].subject(m), ENCODER.encode(m), trace=m.trace) for m in messages]
        await self.bus.publisher.store_all(futures)

    async def first(self, stream: str, pattern: str, number: int = 1) -> list[Record]:
        """The first so many messages on a subject, waiting for them."""
        cursor = await self.bus.read(Source(stream=stream, subjects=(pattern,)))
        records: list[Record] = []
        try:
            async with asyncio.timeout(WITHIN_S):
                while len(records) < number:
                    records += await cursor.take(512)
        finally:
            await cursor.close()
        return records

    async def settled(self, steps: Sequence[StepId]) -> dict[StepId, StepSettled]:
        """Wait until all are settled. Fails when one of them is settled twice."""
        records = await self.first(STEPS.name, subjects.SETTLED, len(steps))
        messages = [msgspec.json.decode(record.data, type=StepSettled) for record in records]
        assert sorted(m.step for m in messages) == sorted(steps)
        return {m.step: m for m in messages}

    async def query(self, step: StepId) -> StepRecord:
        """What the service says of a step, once it is there to say it."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    msg = await self.bus.client.request(subjects.query_step(step), b"", timeout=10)
                except nats.errors.NoRespondersError:
                    await asyncio.sleep(0.05)
                else:
                    return msgspec.json.decode(msg.data, type=StepRecord)


@pytest.fixture
async def log(bus: Bus) -> Log:
    return Log(bus)


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    pool = await open_pool(DatabaseConfig(dsn=database))
    await migrate(pool, MIGRATIONS)
    yield pool
    await close_pool(pool)


async def test_a_step_settles_once_whatever_comes_twice_or_late(log: Log, start: Start) -> None:
    step = new_step()
    closed = StepClosed(step=step, status=Status.FAILED, problem=LOST)
    await log.say(admitted(step), dispatched(step), admitted(step), dispatched(step), dispatched(step, 2))
    await log.say(ended(step), ended(step), ended(step, 2), closed)
    await start()
    settled = (await log.settled([step]))[step]
    assert (settled.status, settled.attempt, settled.usage.output_tokens) == (Status.SUCCEEDED, 1, 3)
    assert (settled.tenant, settled.workflow, settled.trace) == ("acme", "report", admitted(step).trace)
    record = await log.query(step)
    assert (record.status, record.tokens, record.text, record.finish_reason) == (StepState.SUCCEEDED, [1, 2, 3], TEXT, "length")
    assert [(a.attempt, a.status, a.superseded, a.why) for a in record.attempts] == [
        (1, Status.SUCCEEDED, False, "free"),
        (2, Status.SUCCEEDED, True, "free"),
    ]
    assert [a.computed_tokens for a in record.attempts] == [3, 3]


async def test_a_failed_attempt_waits_for_the_scheduler_to_close_the_step(log: Log, start: Start) -> None:
    step = new_step()
    await start()
    await log.say(admitted(step), dispatched(step), ended(step, status=Status.FAILED))
    await log.say(StepClosed(step=step, status=Status.FAILED, problem=LOST))
    settled = (await log.settled([step]))[step]
    assert (settled.status, settled.problem) == (Status.FAILED, LOST)
    record = await log.query(step)
    assert (record.status, record.problem, record.usage.output_tokens) == (StepState.FAILED, LOST, 3)


async def test_a_query_tells_open_steps_from_unknown_ones(log: Log, start: Start) -> None:
    step, refused, later = new_step(), new_step(), new_step()
    await start()
    await log.say(StepRefused(step=refused, problem=LOST), admitted(step), dispatched(step))
    await log.say(*whole(later))
    await log.settled([later])
    record = await log.query(step)
    assert record.status is StepState.RUNNING
    assert (record.attempts[0].worker, record.attempts[0].status, record.settled_ns) == (WORKER, None, 0)
    unknown = await log.query(refused)
    assert unknown.status is StepState.UNKNOWN
    assert unknown.problem is not None


async def test_two_hundred_steps_settle_once_each_though_the_service_is_killed_again_and_again(log: Log, start: Start) -> None:
    steps = [new_step() for _ in range(200)]
    process = await start("batch_max=16")

    async def kill() -> None:
        for known in (10, 60, 110, 160):
            await log.first(STEPS.name, subjects.SETTLED, known)
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
            await process.start()

    async with asyncio.TaskGroup() as group:
        group.create_task(kill())
        for step in steps:
            await log.say(*whole(step))
    settled = await log.settled(steps)
    assert all(message.status is Status.SUCCEEDED for message in settled.values())


async def test_what_was_committed_and_not_announced_is_announced_by_the_next_process(log: Log, start: Start, pool: Pool) -> None:
    """As a kill between commit and publish leaves it."""
    step, next_step = new_step(), new_step()
    await log.say(*whole(step))
    created = str((await log.bus.js.stream_info(STEPS.name)).created)
    store = Store(pool)
    position = await store.take_over(STEPS.name, created)
    changes = decide({}, whole(step), now_ns(), WorkflowConfig())
    reached = Position(epoch=position.epoch, batch=1, seq=3, unannounced=[])
    assert await store.record(STEPS.name, reached, changes, now_ns()) == [step]
    await log.say(*whole(next_step))
    await start()
    await log.settled([step, next_step])


async def test_a_commit_whose_answer_was_lost_is_not_written_again(log: Log, pool: Pool) -> None:
    step = new_step()
    store = Store(pool)
    position = await store.take_over(STEPS.name, "today")
    reached = Position(epoch=position.epoch, batch=1, seq=3, unannounced=[])
    changes = decide({}, whole(step), now_ns(), WorkflowConfig())
    assert await store.record(STEPS.name, reached, changes, now_ns()) == [step]
    assert await store.record(STEPS.name, reached, changes, now_ns()) == [step]


async def test_a_process_that_was_overtaken_can_no_longer_write(pool: Pool) -> None:
    store = Store(pool)
    before = await store.take_over(STEPS.name, "today")
    after = await store.take_over(STEPS.name, "today")
    changes = decide({}, whole(new_step()), now_ns(), WorkflowConfig())
    with pytest.raises(Overtaken):
        await store.record(STEPS.name, Position(epoch=before.epoch, batch=1, seq=3, unannounced=[]), changes, now_ns())
    assert await store.record(STEPS.name, Position(epoch=after.epoch, batch=1, seq=3, unannounced=[]), changes, now_ns())


async def test_a_stream_that_was_made_anew_is_read_from_its_start(pool: Pool) -> None:
    store = Store(pool)
    position = await store.take_over(STEPS.name, "today")
    await store.record(STEPS.name, Position(epoch=position.epoch, batch=1, seq=30, unannounced=[]), decide({}, [], 0, WorkflowConfig()), 0)
    assert (await store.take_over(STEPS.name, "today")).seq == 30
    assert (await store.take_over(STEPS.name, "tomorrow")).seq == 0


async def test_a_standby_goes_on_when_the_active_process_is_killed(log: Log, start: Start) -> None:
    first, second = new_step(), new_step()
    active = await start(instance="workflow-a")
    await log.say(*whole(first))
    await log.settled([first])
    await start(instance="workflow-b")
    os.kill(active.pid, signal.SIGKILL)
    await log.say(*whole(second))
    await log.settled([first, second])


async def test_nothing_is_lost_while_postgres_is_away(log: Log, start: Start, fresh_postgres: EmbeddedPostgres) -> None:
    steps = [new_step() for _ in range(30)]
    await fresh_postgres.stop()
    await start(dsn=fresh_postgres.dsn)  # it waits for Postgres, and starts when it is there
    await log.say(*whole(steps[0]))
    await fresh_postgres.start()
    await log.settled(steps[:1])
    for step in steps[1:15]:
        await log.say(*whole(step))
    await fresh_postgres.stop()
    for step in steps[15:]:
        await log.say(*whole(step))
    answer = await log.query(steps[0])
    assert answer.problem is not None
    assert answer.problem.retry_after_ms > 0
    await fresh_postgres.start()
    await log.settled(steps)


async def test_nothing_is_lost_while_nats_is_away(log: Log, start: Start, fresh_nats: EmbeddedNats) -> None:
    steps = [new_step() for _ in range(30)]
    await start()
    for step in steps[:15]:
        await log.say(*whole(step))
    await fresh_nats.stop()
    await fresh_nats.start()
    for step in steps[15:]:
        await log.say(*whole(step))
    await log.settled(steps)


async def test_events_that_cannot_be_recorded_are_parked_and_hold_nobody_up(log: Log, start: Start) -> None:
    before, huge, after = new_step(), new_step(), new_step()
    too_many = msgspec.structs.replace(admitted(huge), job=msgspec.structs.replace(admitted(huge).job, prompt_tokens=2**80))
    await log.say(*whole(before))
    await log.bus.publisher.store_all([await log.bus.store(f"legato.step.{huge}.closed", b"{no json")])
    await log.say(too_many, *whole(after))
    await start()
    await log.settled([before, after])
    letters = [msgspec.json.decode(r.data, type=DeadLetter) for r in await log.first(DEAD.name, subjects.dead("workflow"), 2)]
    assert sorted(letter.source for letter in letters) == [f"{STEPS.name}:4", f"{STEPS.name}:5"]


async def test_a_step_of_which_nothing_is_heard_is_announced_again_so_often_and_no_more(log: Log, start: Start) -> None:
    step, routed = new_step(), new_step()
    await log.say(admitted(routed), StepRouted(step=routed, job=admitted(routed).job, cell=CELL), admitted(step))
    await start(*QUICK)
    records = await log.first(STEPS.name, f"legato.step.{step}.admitted", 3)
    again = [msgspec.json.decode(record.data, type=StepAdmitted) for record in records]
    assert [m.id for m in again] == [f"{step}.admitted", f"{step}.redrive.1", f"{step}.redrive.2"]
    assert (again[0].reservation, again[2].reservation) == (Reservation(tokens=16), None)
    assert again[2].job == again[0].job
    assert again[2].tenant == "acme"
    await log.say(dispatched(step), ended(step), dispatched(routed), ended(routed))
    await log.settled([step, routed])
    assert (await log.query(step)).redrives == 2
    assert (await log.query(routed)).redrives == 0


async def test_a_step_that_nobody_ends_is_expired_for_its_reader_and_in_the_record(log: Log, start: Start) -> None:
    step = new_step()
    garbled = new_step()
    await log.say(admitted(step, deadline_ns=now_ns()), dispatched(step), Output(step=step, attempt=1, tokens=[5, 6], text="so far"))
    await log.say(admitted(garbled, deadline_ns=now_ns()))
    await log.bus.publisher.store_all([await log.bus.store(subjects.outbox(garbled), b"no output")])
    await start(*QUICK)
    settled = (await log.settled([step, garbled]))[step]
    assert settled.status is Status.EXPIRED
    assert settled.problem is not None
    assert settled.problem.reason is Reason.DEADLINE_PASSED
    outputs = [msgspec.json.decode(r.data, type=Output) for r in await log.first(OUT.name, subjects.out(step), 2)]
    assert [(o.attempt, o.offset, o.end is not None) for o in outputs] == [(1, 0, False), (1, 2, True)]


async def test_a_step_whose_reader_saw_it_succeed_is_recorded_so_though_its_worker_vanished(log: Log, start: Start) -> None:
    step = new_step()
    usage = Usage(prompt_tokens=7, output_tokens=3)
    await log.say(admitted(step, deadline_ns=now_ns()), dispatched(step))
    await log.say(Output(step=step, attempt=1, tokens=[5, 6], text="so "))
    await log.say(Output(step=step, attempt=1, offset=2, tokens=[7], text="far", end=End(status=Status.SUCCEEDED, usage=usage)))
    await start(*QUICK)
    assert (await log.settled([step]))[step].status is Status.SUCCEEDED
    record = await log.query(step)
    assert (record.tokens, record.text, record.usage, record.attempts[0].worker) == ([5, 6, 7], "so far", usage, WORKER)
    assert len(await log.first(OUT.name, subjects.out(step), 2)) == 2


@pytest.mark.parametrize("attempt", [2, 0])
async def test_a_step_whose_reader_saw_it_succeed_is_recorded_so_though_somebody_closed_it(log: Log, start: Start, attempt: int) -> None:
    """The scheduler for want of its worker, or the router because its admission was announced again."""
    step = new_step()
    await log.say(admitted(step), dispatched(step))
    end = End(status=Status.SUCCEEDED, finish_reason=FinishReason.LENGTH, usage=Usage(prompt_tokens=7, output_tokens=3))
    await log.say(
        Output(step=step, attempt=1, tokens=[1], text="a"), Output(step=step, attempt=1, offset=1, tokens=[2, 3], text="b", end=end)
    )
    problem = Problem(reason=Reason.DEADLINE_PASSED, message="the worker did not answer")
    late = End(status=Status.EXPIRED, finish_reason=FinishReason.ERROR, problem=problem)
    await log.say(Output(step=step, attempt=attempt, end=late))
    await log.say(StepClosed(step=step, status=Status.EXPIRED, problem=problem, attempt=attempt))
    await start()
    settled = (await log.settled([step]))[step]
    assert (settled.status, settled.attempt, settled.usage.output_tokens) == (Status.SUCCEEDED, 1, 3)
    record = await log.query(step)
    assert (record.status, record.tokens, record.text, record.attempts[0].worker) == (StepState.SUCCEEDED, [1, 2, 3], "ab", WORKER)


async def test_the_first_end_is_what_is_recorded_of_a_step_whoever_closes_it(log: Log, start: Start) -> None:
    closed, overdue = new_step(), new_step()
    cancelled = Problem(reason=Reason.CANCELLED, message="as asked")
    late = Problem(reason=Reason.DEADLINE_PASSED, message="the worker did not answer")
    for step in (closed, overdue):
        await log.say(admitted(step, deadline_ns=now_ns() + (3_600_000_000_000 if step == closed else 0)), dispatched(step))
        await log.say(Output(step=step, attempt=1, tokens=[1], text="a"))
        await log.say(Output(step=step, attempt=1, offset=1, end=End(status=Status.CANCELLED, problem=cancelled)))
        await log.say(Output(step=step, attempt=2, end=End(status=Status.EXPIRED, problem=late)))
    await log.say(StepClosed(step=closed, status=Status.EXPIRED, problem=late, attempt=2))
    await start(*QUICK)
    settled = await log.settled([closed, overdue])
    assert {(each.status, each.problem) for each in settled.values()} == {(Status.CANCELLED, cancelled)}


async def test_the_service_stops_within_its_grace_and_says_what_it_lacks(start: Start) -> None:
    process = await start()
    await process.stop(10.0)
    lacking = await start(dsn="", instance="workflow-2")
    assert await asyncio.wait_for(lacking.wait(), WITHIN_S) == 1
    assert "LEGATO_POSTGRES_DSN" in lacking.end()
