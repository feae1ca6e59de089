"""A whole fleet with the real SGLang: one worker, a small model on the CPU, greedy in float32, so that texts can be compared."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import psutil
import pytest
from openai import AsyncOpenAI, BadRequestError

from legato import Client, Step
from legato.fleet import Fleet
from services.worker.engines.sglang_config import SglangConfig
from shared.contracts.fleet import WorkerBeat
from shared.contracts.ids import WorkerId
from shared.contracts.kv import PrefixMatched
from shared.contracts.outcomes import Status
from shared.contracts.steps import StepDispatched, StepState
from shared.contracts.streams import STEPS
from tests.acceptance.conftest import running_fleet

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(not Path(SglangConfig().python).exists(), reason="no SGLang here: run `make setup-engine`"),
]
MODEL = "smollm2-135m"
LIMIT_S = 300.0  # an engine that was killed takes up to a minute to come back
QUESTION = [
    {"role": "system", "content": "You are a patient teacher who answers in short and simple sentences."},
    {"role": "user", "content": "Name the four seasons of the year, and say one sentence about each of them."},
]
NAMES = {
    "type": "object",
    "properties": {"names": {"type": "array", "minItems": 8, "maxItems": 8, "items": {"type": "string", "minLength": 4, "maxLength": 12}}},
    "required": ["names"],
}
GREEDY: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "max_tokens": 40, "temperature": 0}


def engine_processes(fleet: Fleet) -> list[psutil.Process]:
    """SGLang under the worker, its launcher first."""
    return psutil.Process(fleet.running.processes["worker-0"]).children(recursive=True)


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    """Drained at the end, whereupon nothing of SGLang is left."""
    async with running_fleet(engine="sglang", workers=1) as fleet:
        yield fleet
        processes = engine_processes(fleet)
        assert processes
    assert not [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
async def openai(fleet: Fleet) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{fleet.running.http}/v1", api_key="none", max_retries=0, timeout=LIMIT_S) as client:
        yield client


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    async with Client(fleet.running.nats) as client:
        yield client


async def test_every_door_gives_the_same_text_and_the_second_time_from_the_cache(fleet: Fleet, openai: AsyncOpenAI, client: Client) -> None:
    matches = await fleet.bus.client.subscribe("legato.match.local")
    await fleet.bus.client.flush()
    first = await openai.chat.completions.create(**GREEDY)
    second = await openai.chat.completions.create(**GREEDY)
    text = first.choices[0].message.content
    assert text
    assert second.choices[0].message.content == text
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > 0
    stream = await openai.chat.completions.create(**GREEDY, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]) == text
    step = await client.submit(**GREEDY)
    assert "".join([piece async for piece in step.text()]) == text
    assert (await (await client.submit(**GREEDY)).result(LIMIT_S)).text == text
    found = [msgspec.json.decode((await matches.next_msg(LIMIT_S)).data, type=PrefixMatched) for _ in range(5)]
    await matches.unsubscribe()
    assert not found[0].blocks
    assert all(each.blocks[WorkerId("worker-0")] >= 1 for each in found[1:])


async def test_the_scheduler_knows_what_the_cache_holds(fleet: Fleet, client: Client) -> None:
    """With one worker it does not wait for the registry's word, so now and then it decides without."""
    dispatched: list[StepDispatched] = []
    async with asyncio.timeout(LIMIT_S):
        while not dispatched or not dispatched[-1].cached_tokens:
            step = await client.submit(**{**GREEDY, "max_tokens": 1})
            await step.result(LIMIT_S)
            record = await fleet.bus.last(STEPS.name, f"legato.step.{step.id}.dispatched.worker-0")
            assert record is not None
            dispatched.append(msgspec.json.decode(record.data, type=StepDispatched))
    assert "cached" in dispatched[-1].why


async def test_a_response_format_is_followed(openai: AsyncOpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "names", "schema": NAMES, "strict": True}}
    answer = await openai.chat.completions.create(**{**GREEDY, "max_tokens": 200}, response_format=form)
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content or ""), NAMES)


async def test_demanded_calls_follow_their_schemas_and_several_choices_differ(openai: AsyncOpenAI) -> None:
    """The model's own template knows no tools: that they are called is the grammar's doing."""
    city = {"type": "string", "minLength": 3, "maxLength": 12}
    place = {
        "type": "object",
        "properties": {"city": city, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tools: Any = [{"type": "function", "function": {"name": name, "parameters": place}} for name in ("weather", "news")]
    asked: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 200, "tools": tools, "n": 2, "seed": 3, "parallel_tool_calls": False}
    required = await openai.chat.completions.create(**asked, tool_choice="required")
    for choice in required.choices:
        (call,) = choice.message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name in ("weather", "news"), choice.finish_reason, choice.message.content) == (True, "tool_calls", None)
        jsonschema.validate(json.loads(call.function.arguments), place)
    named: Any = {"type": "function", "function": {"name": "news"}}
    names, arguments = set(), ["", ""]
    async for chunk in await openai.chat.completions.create(**asked, tool_choice=named, stream=True):
        for each in chunk.choices:
            for piece in each.delta.tool_calls or []:
                assert piece.function is not None
                names.add(piece.function.name or "news")
                arguments[each.index] += piece.function.arguments or ""
    assert names == {"news"}
    assert arguments[0] != arguments[1]
    for text in arguments:
        jsonschema.validate(json.loads(text), place)
    with pytest.raises(BadRequestError, match="tool_parser"):
        await openai.chat.completions.create(model=MODEL, messages=QUESTION, tools=tools)


async def test_a_form_that_cannot_be_compiled_is_refused_with_the_reason(openai: AsyncOpenAI) -> None:
    with pytest.raises(BadRequestError, match="Unclosed"):
        await openai.chat.completions.create(**GREEDY, extra_body={"regex": "[a"})


async def test_a_client_that_goes_stops_the_engine(fleet: Fleet, openai: AsyncOpenAI) -> None:
    beats = await fleet.bus.client.subscribe("legato.beat.worker-0")
    stream = await openai.chat.completions.create(**{**GREEDY, "max_tokens": 1_000}, stream=True, extra_body={"ignore_eos": True})
    await anext(aiter(stream))
    async with asyncio.timeout(LIMIT_S):
        while not (await next_beat(beats)).running:
            pass
        await stream.close()
        while (beat := await next_beat(beats)).running or beat.slots_used:
            pass
    await beats.unsubscribe()


async def next_beat(beats: Any) -> WorkerBeat:
    return msgspec.json.decode((await beats.next_msg(LIMIT_S)).data, type=WorkerBeat)


async def test_a_killed_engine_interrupts_no_sentence(fleet: Fleet, client: Client) -> None:
    """Two at once, one of them with all that a resumed run has to carry over."""
    samplings = ({"ignore_eos": True}, {"json_schema": NAMES, "temperature": 0.8, "seed": 1, "frequency_penalty": 0.5})
    requests = [{**GREEDY, "max_tokens": 120, **sampling} for sampling in samplings]
    undisturbed = [await (await client.submit(**request)).result(LIMIT_S) for request in requests]
    steps = [await client.submit(**request) for request in requests]
    begun = [asyncio.Event() for _ in steps]
    reading = [asyncio.create_task(read(step, event)) for step, event in zip(steps, begun, strict=True)]
    async with asyncio.timeout(LIMIT_S):
        for event in begun:
            await event.wait()
        os.kill(engine_processes(fleet)[0].pid, signal.SIGKILL)
        streamed = [await each for each in reading]
        for step, tokens, expected in zip(steps, streamed, undisturbed, strict=True):
            assert (step.so_far.status, step.so_far.text, tokens) == (Status.SUCCEEDED, expected.text, expected.tokens)
            while (record := await client.record(step.id)).status is not StepState.SUCCEEDED:  # noqa: ASYNC110  it can only be asked
                await asyncio.sleep(0.1)
            assert [attempt.status for attempt in record.attempts][-1] is Status.SUCCEEDED
            assert len(record.attempts) > 1


async def read(step: Step, begun: asyncio.Event) -> list[int]:
    """All tokens; `begun` once there are a few."""
    tokens: list[int] = []
    async for output in step:
        assert output.offset == len(tokens)
        tokens += output.tokens
        if len(tokens) >= 20:
            begun.set()
    return tokens
