"""What `make chaos` asks the records afterwards: that nothing is wrong is worth something only if what is wrong is found."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import psutil
import pytest
from workflow_messages import new_step

from bench.chaos.asks import simulated
from bench.chaos.checks import left_behind, recorded, settlements, stored, unsettled
from bench.chaos.programs import Program
from bench.chaos.readers import Reading, Wrong
from services.workflow.service import MIGRATIONS
from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Status
from shared.contracts.output import End, Output
from shared.contracts.steps import StepSettled
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.db import DatabaseConfig, close_pool, open_pool
from shared.runtime.ids import new_id
from shared.runtime.migrations import migrate

ASK = simulated("Hello", 9)
GOOD = End(status=Status.SUCCEEDED)


@pytest.fixture(scope="module")
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusConfig(url=nats_url), "test-chaos")
    await bus.ensure_streams()
    yield bus
    await bus.close()


@pytest.fixture
async def postgres(database: str) -> AsyncIterator[Any]:
    """A connection to a migrated database, and its DSN."""
    pool = await open_pool(DatabaseConfig(dsn=database))
    await migrate(pool, MIGRATIONS)
    await close_pool(pool)
    connection = await asyncpg.connect(database)
    yield connection, database
    await connection.close()


async def found_in_stream(bus: Bus, *outputs: Output) -> list[Wrong]:
    step = new_step()
    for output in outputs:
        await (await bus.store(subjects.outbox(step), msgspec.json.encode(output)))
    return [fault.wrong for fault in await stored(bus, {step: Reading(step=step, ask=ASK)})]


def said(begin: int, end: int, ending: End | None = None) -> Output:
    return Output(attempt=1, offset=begin, tokens=ASK.expected[begin:end], end=ending)


async def test_a_stored_stream_that_is_none_is_found(bus: Bus) -> None:
    assert await found_in_stream(bus, said(0, 4), said(4, 9, GOOD), said(2, 4)) == [], "what follows the end is heard by nobody"
    assert await found_in_stream(bus, said(0, 4), said(6, 9, GOOD)) == [Wrong.GAP]
    assert await found_in_stream(bus, said(0, 4), said(0, 4), said(8, 9, GOOD)) == [Wrong.REPEAT]
    assert await found_in_stream(bus, Output(attempt=1, tokens=[1, 2])) == [Wrong.DIFFERENT]


async def test_a_step_that_settles_never_or_twice_is_found(bus: Bus) -> None:
    never, once, twice = new_step(), new_step(), new_step()
    for step in (once, twice, twice):
        message = StepSettled(step=step, status=Status.SUCCEEDED)
        await (await bus.store(subjects.step_event(step, "settled"), msgspec.json.encode(message)))
    settled = await settlements(bus, [never, once, twice], 0.5)
    assert {(fault.about, fault.wrong) for fault in unsettled(settled)} == {(never, Wrong.LOST), (twice, Wrong.TWICE)}


async def put(connection: Any, step: StepId, winners: int = 1, **given: Any) -> None:
    row = {"workflow": "", "step_key": "", "status": "succeeded", "output_tokens": 9, **given}
    await connection.execute(
        "INSERT INTO steps (step, tenant, workflow, model, trace, admitted, status, prompt_tokens, output_tokens, accepted_ns, deadline_ns,"
        " check_ns, updated_ns, step_key) VALUES ($1, 'a', $2, 'm', '', '{}', $3, 5, $4, 1, 1, 1, 1, $5)",
        *(step, row["workflow"], row["status"], row["output_tokens"], row["step_key"]),
    )
    for attempt in range(1, winners + 2):  # the first is lost
        await connection.execute(
            "INSERT INTO attempts (step, attempt, cell, worker, status, prompt_tokens, resumed_tokens, computed_tokens)"
            " VALUES ($1, $2, 'local', 'worker-0', $3, 5, 4, $4)",
            *(step, attempt, "running" if attempt == 1 else "succeeded", None if attempt == 1 else 7),
        )


async def test_what_postgres_has_is_compared_with_what_was_asked(postgres: Any) -> None:
    connection, dsn = postgres
    right, failed, twice, short, absent = (new_step() for _ in range(5))
    await put(connection, right)
    await put(connection, failed, status="failed")
    await put(connection, twice, winners=2)
    await put(connection, short, output_tokens=8)
    found = await recorded(dsn, {step: Reading(step=step, ask=ASK) for step in (right, failed, twice, short, absent)}, [])
    assert {(fault.about, fault.wrong) for fault in found.faults} == {
        (failed, Wrong.LOST),
        (twice, Wrong.TWICE),
        (short, Wrong.DIFFERENT),
        (absent, Wrong.LOST),
    }
    assert found.attempts[(right, 1)].worker == "worker-0"
    assert [found.attempts[(right, attempt)].work.computed_tokens for attempt in (1, 2)] == [None, 7]
    assert found.attempts[(right, 2)].work.context_tokens == 5 + 4


async def test_a_workflow_is_to_have_each_of_its_steps_once(postgres: Any) -> None:
    connection, dsn = postgres
    programs = [Program(id=new_id(), rounds=[(ASK, ASK)], crashes=[], done=True) for _ in range(4)]
    whole, doubled, lacking, never_closed = programs
    for program in programs:
        await connection.execute(
            "INSERT INTO workflows (workflow, kind, key, deadline_ns, steps_planned, opened_ns, success)"
            " VALUES ($1, 'chaos', '', 0, 2, 1, $2)",
            *(program.id, None if program is never_closed else True),
        )
        await put(connection, new_step(), workflow=program.id, step_key="plan 0")
        if program is not lacking:
            await put(connection, new_step(), workflow=program.id, step_key="write 0")
    await put(connection, new_step(), workflow=doubled.id, step_key="plan 0")
    found = await recorded(dsn, {}, programs)
    assert sorted((fault.about, fault.wrong) for fault in found.faults) == sorted(
        [(doubled.id, Wrong.TWICE), (lacking.id, Wrong.LOST), (never_closed.id, Wrong.LOST)]
    )
    assert whole.id not in {fault.about for fault in found.faults}


async def test_a_process_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.chaos.checks.GONE_S", 0.0)
    marker = new_id()
    process = psutil.Popen(["sleep", "60"], env={"CHAOS_RUN": marker})
    try:
        assert [fault.about for fault in await left_behind(marker)] == [f"process {process.pid}"]
    finally:
        process.kill()
        process.wait()
    assert await left_behind(marker) == []
