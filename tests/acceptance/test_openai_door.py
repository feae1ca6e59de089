"""The HTTP door with the real OpenAI client against a whole fleet."""

import asyncio
from collections.abc import AsyncIterator

import httpx2 as httpx
import openai
import psutil
import pytest
from openai import AsyncOpenAI

from legato.fleet import Fleet
from shared.contracts import subjects
from shared.contracts.streams import STEPS

LIMIT_S = 30.0
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{fleet.running.http}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_models_are_listed(client: AsyncOpenAI) -> None:
    assert [model.id for model in (await client.models.list()).data] == ["sim-small"]


async def test_chat_whole_and_streamed_say_the_same(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="sim-small", messages=HELLO, max_tokens=30, seed=7)  # type: ignore[arg-type]
    stream = await client.chat.completions.create(
        model="sim-small",
        messages=HELLO,  # type: ignore[arg-type]
        max_tokens=30,
        seed=7,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert whole.choices[0].message.content == streamed != ""
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (chunks[-1].usage.prompt_tokens, 30)


async def test_completions_with_stop_and_logprobs(client: AsyncOpenAI) -> None:
    plain = await client.completions.create(model="sim-small", prompt="Hello", max_tokens=60, seed=3)
    stop = plain.choices[0].text[20:24]
    reply = await client.completions.create(model="sim-small", prompt="Hello", max_tokens=60, seed=3, stop=stop, logprobs=2)
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].text == plain.choices[0].text.split(stop)[0]
    assert reply.choices[0].logprobs is not None
    assert reply.choices[0].logprobs.token_logprobs


async def test_errors_have_the_classes_that_the_client_knows(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        await client.chat.completions.create(model="nobody", messages=HELLO)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await client.chat.completions.create(model="sim-small", messages=HELLO, temperature=5)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError, match="tool_parser"):
        await client.chat.completions.create(model="sim-small", messages=HELLO, tools=[{"type": "function", "function": {"name": "f"}}])  # type: ignore[call-overload]
    with pytest.raises(openai.BadRequestError, match="32768") as too_long:
        await client.completions.create(model="sim-small", prompt="x" * 40_000)
    assert too_long.value.code == "context_length_exceeded"


async def test_a_reader_that_leaves_cancels_its_step(fleet: Fleet, client: AsyncOpenAI) -> None:
    stream = await client.completions.create(model="sim-small", prompt="Play for ever", max_tokens=10_000, stream=True)
    first = await anext(aiter(stream))
    step = first.id.removeprefix("cmpl-")
    await stream.close()
    assert await ended(fleet, step) == "cancelled"


async def test_a_reader_of_a_whole_reply_that_leaves_cancels_its_step(fleet: Fleet) -> None:
    before = (await fleet.bus.js.stream_info(STEPS.name)).state.last_seq
    body = {"model": "sim-small", "prompt": "Play for ever", "max_tokens": 10_000}
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(f"{fleet.running.http}/v1/completions", json=body, timeout=0.5)
    [submitted] = [record async for record in fleet.bus.history(STEPS.name, subjects.SUBMIT, before)]
    assert await ended(fleet, subjects.step_of(submitted.subject)) == "cancelled"


async def ended(fleet: Fleet, step: str) -> str:
    """The status of the step's attempt."""
    import json

    async with asyncio.timeout(LIMIT_S):
        while True:
            record = await fleet.bus.last(STEPS.name, f"legato.step.{step}.ended.local")
            if record is not None:
                return str(json.loads(record.data)["status"])
            await asyncio.sleep(0.05)


async def test_every_socket_of_the_fleet_is_on_loopback(fleet: Fleet) -> None:
    listening = {
        (name, connection.laddr.ip)
        for name, pid in fleet.running.processes.items()
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening
    assert {ip for _, ip in listening} == {"127.0.0.1"}
