"""Several choices of one request on a whole fleet: every choice is a step that outlives its worker."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI, BadRequestError

from legato.fleet import Fleet
from services.worker.engines import prose
from shared.contracts.steps import StepDispatched
from shared.contracts.streams import STEPS
from shared.core.several import choice_seed
from shared.runtime.cursor import Source
from tests.acceptance.conftest import running_fleet

LIMIT_S = 60.0
HELLO: Any = [{"role": "user", "content": "Play for us."}]
TOOL: Any = {"type": "function", "function": {"name": "play"}}
TOKENS = 400


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    async with running_fleet(workers=2, settings=("simulated.tool_parser=hermes",)) as fleet:
        yield fleet


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{fleet.running.http}/v1", api_key="none", max_retries=0, timeout=LIMIT_S) as client:
        yield client


def expected(index: int, seed: int) -> str:
    return bytes(prose.tokens_at(prose.offset_of(choice_seed(seed, index), []), 0, TOKENS)).decode(errors="replace")


async def dispatches(fleet: Fleet, steps: list[str]) -> list[StepDispatched]:
    """The newest of each."""
    found = []
    for step in steps:
        record = await fleet.bus.last(STEPS.name, f"legato.step.{step}.dispatched.*")
        assert record is not None
        found.append(msgspec.json.decode(record.data, type=StepDispatched))
    return found


async def test_a_killed_worker_loses_nothing_of_a_request_with_two_choices(fleet: Fleet, client: AsyncOpenAI) -> None:
    asked: Any = {"model": "sim-small", "messages": HELLO, "n": 2, "seed": 11, "max_tokens": TOKENS, "stream": True}
    async with client.chat.completions.with_streaming_response.create(**asked) as raw:
        steps = raw.headers["X-Legato-Step"].split(", ")
        assert len(steps) == 2
        texts, reasons = ["", ""], ["", ""]
        killed = ""
        async for line in raw.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in msgspec.json.decode(line.removeprefix("data: "))["choices"]:
                texts[choice["index"]] += choice["delta"].get("content", "")
                reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
            if not killed and all(texts):
                killed = (await dispatches(fleet, steps))[0].worker
                os.kill(fleet.running.processes[killed], signal.SIGKILL)
    assert killed
    assert texts == [expected(index, 11) for index in range(2)]
    assert reasons == ["length", "length"]
    assert (await dispatches(fleet, steps))[0].attempt > 1


async def test_tools_are_shown_to_the_model_and_a_demanded_call_is_refused_by_an_engine_without_grammars(client: AsyncOpenAI) -> None:
    plain = await client.chat.completions.create(model="sim-small", messages=HELLO, max_tokens=4)
    with_tools = await client.chat.completions.create(model="sim-small", messages=HELLO, max_tokens=4, tools=[TOOL])
    assert plain.usage is not None
    assert with_tools.usage is not None
    assert with_tools.usage.prompt_tokens > plain.usage.prompt_tokens
    with pytest.raises(BadRequestError, match="cannot take tool_choice") as caught:
        await client.chat.completions.create(model="sim-small", messages=HELLO, tools=[TOOL], tool_choice="required")
    assert caught.value.param == "tool_choice"
    with pytest.raises(BadRequestError, match="does not know enable_thinking"):
        await client.chat.completions.create(
            model="sim-small", messages=HELLO, extra_body={"chat_template_kwargs": {"enable_thinking": True}}
        )


async def test_a_reader_of_several_choices_that_leaves_cancels_them_all(fleet: Fleet, client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="sim-small", messages=HELLO, n=2, max_tokens=10_000, stream=True)
    steps = [stream.response.headers["X-Legato-Step"].split(", ")[index] for index in range(2)]
    await anext(aiter(stream))
    await stream.close()
    async with asyncio.timeout(LIMIT_S):
        for step in steps:
            cursor = await fleet.bus.read(Source(stream=STEPS.name, subjects=(f"legato.step.{step}.ended.local",)))
            [record] = await cursor.take(1)
            await cursor.close()
            assert msgspec.json.decode(record.data)["status"] == "cancelled"
