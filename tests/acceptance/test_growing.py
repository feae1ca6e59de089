"""An agent's conversation that grows with each turn: what it takes to store grows with the turns, not with their square, by either door."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import httpx2 as httpx
import msgspec
import psutil
import pytest
from openai import AsyncOpenAI

from legato import Client, InputChanged
from legato.fleet import Fleet
from shared.contracts import subjects
from shared.contracts.journal import JournalBatch
from shared.contracts.streams import JOURNAL, OUT, PROMPTS, STEPS, TURNS
from shared.runtime.bus import Bus
from tests.acceptance.conftest import running_fleet

LIMIT_S = 120.0
TURNS_EACH = 50  # in each half
WORDS = 1_900  # bytes of each question; with its answer and the JSON around both about 2 KiB
MODEL: dict[str, Any] = {"model": "sim-small", "max_tokens": 48, "temperature": 0}
BY_THE_CLOCK = ("tick", "worker.beat", "worker.registered", "queue.reported")  # inputs that come whether anybody asks or not
SETTINGS = (
    "simulated.context_tokens=300000",
    "simulated.blocks=40000",
    "simulated.time_scale=0.1",
    "workflow.prompts_kept_s=0.2",  # this test ends nothing within two minutes of its beginning, and kills nobody
    "workflow.prompts_sweep_ms=100",
)

Messages = list[dict[str, str]]
Answer = tuple[str, int]  # and how many tokens the prompt had
Ask = Callable[[Messages], Awaitable[Answer]]


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    async with running_fleet(workers=1, settings=SETTINGS) as fleet:
        yield fleet


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    async with Client(fleet.running.nats) as client:
        yield client


@pytest.fixture
async def openai(fleet: Fleet) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{fleet.running.http}/v1", api_key="none", max_retries=0) as openai:
        yield openai


def by_nats(client: Client, **more: Any) -> Ask:
    async def ask(messages: Messages) -> Answer:
        step = await client.submit(**MODEL, messages=messages, **more)
        result = await step.result(LIMIT_S)
        return result.text, result.usage.prompt_tokens

    return ask


def by_http(openai: AsyncOpenAI, workflow: str = "") -> Ask:
    """`workflow`: each turn is a named step of it."""

    async def ask(messages: Messages) -> Answer:
        headers = {"X-Legato-Workflow": workflow, "X-Legato-Step-Key": f"turn {len(messages)}"} if workflow else {}
        reply = await openai.chat.completions.create(**MODEL, messages=messages, extra_headers=headers)  # type: ignore[call-overload]
        return reply.choices[0].message.content, reply.usage.prompt_tokens

    return ask


async def talk(ask: Ask, messages: Messages, turns: int, name: str) -> list[Answer]:
    """So many turns more; the answers."""
    answers: list[Answer] = []
    for _ in range(turns):
        question = ("again and again " * WORDS)[:WORDS] + f" {name} {len(messages)}"
        messages.append({"role": "user", "content": question})
        answers.append(await ask(messages))
        messages.append({"role": "assistant", "content": answers[-1][0]})
    return answers


async def stored_bytes(fleet: Fleet) -> dict[str, int]:
    """What the streams and Postgres hold once everything is recorded and the prompts are removed."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            if not (await fleet.bus.extent(PROMPTS.name)).messages:
                break
            await asyncio.sleep(0.05)
    held = {name: (await fleet.bus.js.stream_info(name)).state.bytes for name in (STEPS.name, TURNS.name, PROMPTS.name, OUT.name)}
    held[JOURNAL.name] = await journalled_bytes(fleet.bus)
    connection = await asyncpg.connect(fleet.running.postgres)
    try:
        for table in ("steps", "attempts"):
            held[table] = await connection.fetchval(f"SELECT coalesce(sum(pg_column_size(t.*)), 0)::bigint FROM {table} t")
    finally:
        await connection.close()
    return held


async def journalled_bytes(bus: Bus) -> int:
    """Of all entries but those that would be there without any step."""
    total = 0
    async for record in bus.history(JOURNAL.name, "legato.journal.*.*"):
        if b'"journal.batch"' not in record.data[:100]:
            continue
        for entry in msgspec.json.decode(record.data, type=JournalBatch).entries:
            if json.loads(bytes(entry.input))["type"] not in BY_THE_CLOCK:
                total += len(entry.input) + sum(map(len, entry.outputs))
    return total


@pytest.mark.parametrize("door", ["nats", "http", "http-named"])
async def test_a_hundred_turns_take_twice_what_fifty_take(fleet: Fleet, client: Client, openai: AsyncOpenAI, door: str) -> None:
    ask, messages = by_nats(client) if door == "nats" else by_http(openai, door.removeprefix("http")), Messages()
    before = await stored_bytes(fleet)
    await talk(ask, messages, TURNS_EACH, door)
    middle = await stored_bytes(fleet)
    await talk(ask, messages, TURNS_EACH, door)
    after = await stored_bytes(fleet)

    said = sum(len(each["content"]) for each in messages)
    first = {name: middle[name] - before[name] for name in before}
    second = {name: after[name] - middle[name] for name in before}
    print(f"\n{door}: {said:,} bytes said in {2 * TURNS_EACH} turns; stored in the first half {first}, in the second {second}")  # noqa: T201
    assert said > 2 * TURNS_EACH * WORDS
    assert sum(second.values()) <= 1.3 * sum(first.values()), "more than twice: it does not grow with the turns alone"
    assert second[TURNS.name] > TURNS_EACH * WORDS, "nothing went by reference"
    assert sum(first.values()) + sum(second.values()) < 20 * said


async def test_answers_are_alike_however_the_conversation_was_sent(fleet: Fleet, client: Client, openai: AsyncOpenAI) -> None:
    """A step id of one's own makes it go whole."""
    number = iter(range(100))

    async def whole(messages: Messages) -> Answer:
        return await by_nats(client, step_id=f"whole-{id(number)}-{next(number)}")(messages)

    before = (await fleet.bus.extent(TURNS.name)).messages
    answers = await talk(whole, [], 6, "alike")
    assert (await fleet.bus.extent(TURNS.name)).messages == before
    assert await talk(by_nats(client), [], 6, "alike") == answers
    between = (await fleet.bus.extent(TURNS.name)).messages
    assert between > before
    assert await talk(by_http(openai), [], 6, "alike") == answers
    assert len({text for text, _ in answers}) > 1, "the answers do not depend on what is asked"


async def test_a_conversation_that_is_lost_is_sent_whole(fleet: Fleet, client: Client, openai: AsyncOpenAI) -> None:
    doors = (("nats", by_nats(client)), ("http", by_http(openai)), ("http, named", by_http(openai, "lost")))
    for number, (door, ask) in enumerate(doors):
        messages = Messages()
        answers = await talk(ask, messages, 5, f"lost by {door}")
        await lose_turns(fleet)
        answers += await talk(ask, messages, 4, f"lost by {door}")
        assert await talk(by_nats(client), [], 9, f"lost by {door}") == answers
        refused = [record async for record in fleet.bus.history(STEPS.name, subjects.REFUSED)]
        assert [b"history_unknown" in record.data for record in refused] == [True] * (number + 1), "once, and nothing else"


async def test_a_named_step_whose_conversation_is_lost_goes_on_as_its_next_try(fleet: Fleet, openai: AsyncOpenAI) -> None:
    workflow, messages = f"tries-{id(openai)}", Messages()
    await talk(by_http(openai, workflow), messages, 4, "tries")
    await lose_turns(fleet)
    [answer] = await talk(by_http(openai, workflow), messages, 1, "tries")
    assert await by_http(openai, workflow)(messages[:-1]) == answer, "it is found again"
    async with httpx.AsyncClient(base_url=f"{fleet.running.http}/v1", headers={"Authorization": "Bearer none"}) as http:
        tries = [(await http.get(f"/workflows/{workflow}/steps/turn {number}")).json()["tries"] for number in (7, 9)]
    assert tries == [1, 2]


async def lose_turns(fleet: Fleet) -> None:
    """The stream has dropped them, and admission, which is another process now, remembers none."""
    await fleet.bus.js.purge_stream(TURNS.name)
    pid = fleet.running.processes["admission-0"]
    psutil.Process(pid).kill()
    async with asyncio.timeout(LIMIT_S):
        while True:
            if fleet.running.processes.get("admission-0", pid) != pid:
                break
            await asyncio.sleep(0.05)


async def test_a_workflow_knows_its_steps_however_they_were_sent(fleet: Fleet, client: Client) -> None:
    """The run goes by reference, its second run sends whole; another question is told by the message that differs, while that is known."""
    name, messages = f"growing-{id(client)}", Messages()

    async def run(client: Client, messages: Messages, turns: int) -> list[Answer]:
        async with client.workflow("test", id=name) as wf:

            async def ask(messages: Messages) -> Answer:
                result = await wf.step(f"turn {len(messages)}", **MODEL, messages=messages)
                return result.text, result.usage.prompt_tokens

            return await talk(ask, messages, turns, "workflow")

    answers = await run(client, messages, 5)
    async with Client(fleet.running.nats) as again:
        assert await run(again, [], 5) == answers
    record = await fleet.bus.last(STEPS.name, subjects.SUBMIT)
    assert record is not None
    assert b'"history"' in record.data
    changed = [*messages[:2], {"role": "user", "content": "something else".ljust(WORDS)}, *messages[3:9]]
    async with client.workflow("test", id=name) as wf:
        with pytest.raises(InputChanged) as caught:
            await wf.step("turn 9", **MODEL, messages=changed)
    assert caught.value.parts == ["messages[2]"]
