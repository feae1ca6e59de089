"""Several choices, tools and thought over real HTTP with OpenAI's own client, and a responder on the bus that plays the fleet."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import openai
import pytest
from gateway_place import HELLO, LIMIT_S, WORDS, Place, gateway

from shared.contracts import subjects
from shared.contracts.fleet import Capacity, ModelCard, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, StepId, WorkerId
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.output import Output
from shared.runtime.clock import now_ns
from shared.runtime.ids import new_id

TEXT = "".join(WORDS)
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SCRIPT = f"<think>\nWhere?\n</think>\n\nI look.\n{CALL}\n{CALL}"


async def register(place: Place, model: str, **card: Any) -> None:
    """A worker's card, and wait until the gateway has it."""
    message = WorkerRegistered(
        time_ns=now_ns(),
        worker=WorkerId(f"worker-{new_id()}"),
        cell=CellId("local"),
        pool="default",
        epoch=1,
        state=WorkerState.READY,
        card=ModelCard(name=ModelName(model), tokenizer="t", vocab_size=9, context_tokens=9, block_tokens=4, **card),
        capacity=Capacity(blocks=1, slots=1),
    )
    await (await place.fleet.bus.store(subjects.worker(message.worker), msgspec.json.encode(message)))
    async with asyncio.timeout(LIMIT_S):
        while model not in [each.id async for each in place.client.models.list()]:
            pass


@pytest.fixture(scope="module")
async def shared_place(nats_url: str) -> AsyncIterator[Place]:
    async with gateway(nats_url) as place:
        await register(place, "scripted", tool_parser="hermes", reasoning_parser="qwen3")
        yield place


async def submitted(place: Place, count: int) -> list[StepId]:
    return [await place.submitted() for _ in range(count)]


# --- choices -----------------------------------------------------------------------------------------------------------------


async def test_three_choices_come_back_as_one_reply_of_three_steps(place: Place) -> None:
    reply = await place.client.chat.completions.create(model="words", messages=HELLO, n=3, seed=5)
    steps = await submitted(place, 3)
    assert [(choice.index, choice.message.content, choice.finish_reason) for choice in reply.choices] == [
        (index, TEXT, "stop") for index in range(3)
    ]
    assert steps == [steps[0], f"{steps[0]}-1", f"{steps[0]}-2"]
    assert reply.id == f"chatcmpl-{steps[0]}"
    seeds = [place.fleet.submissions[step].sampling.seed for step in steps]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (7, 15, 22)


async def test_three_choices_stream_side_by_side(place: Place) -> None:
    stream = await place.client.chat.completions.create(
        model="words", messages=HELLO, n=3, logprobs=True, stream=True, stream_options={"include_usage": True}
    )
    texts, finished, tokens = [""] * 3, [0] * 3, [0] * 3
    usage = None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            finished[choice.index] += choice.finish_reason == "stop"
            tokens[choice.index] += len(choice.logprobs.content or []) if choice.logprobs else 0
    assert (texts, finished, tokens) == ([TEXT] * 3, [1] * 3, [len(WORDS)] * 3)
    assert usage is not None
    assert usage.completion_tokens == 15


async def test_completions_have_choices_too(place: Place) -> None:
    reply = await place.client.completions.create(model="words", prompt="Once", n=2, logprobs=1)
    assert [(choice.index, choice.text) for choice in reply.choices] == [(0, TEXT), (1, TEXT)]
    stream = await place.client.completions.create(model="words", prompt="Once", n=2, stream=True)
    texts = ["", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [TEXT, TEXT]


async def test_a_reply_names_all_its_steps(place: Place) -> None:
    _, headers, _ = await place.post({"model": "words", "messages": HELLO, "n": 2})
    assert headers["X-Legato-Step"] == ", ".join(await submitted(place, 2))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_cancels_all_choices(place: Place, stream: bool) -> None:
    waiting = asyncio.create_task(place.client.chat.completions.create(model="silent", messages=HELLO, n=3, stream=stream))
    steps = await submitted(place, 3)
    waiting.cancel()
    assert sorted([(await place.cancelled()).step for _ in steps]) == sorted(steps)


async def test_a_client_that_leaves_in_mid_stream_cancels_all_choices(place: Place) -> None:
    stream = await place.client.chat.completions.create(model="one-word", messages=HELLO, n=2, stream=True)
    async for _ in stream:
        break
    await stream.close()
    steps = await submitted(place, 2)
    assert sorted([(await place.cancelled()).step for _ in steps]) == sorted(steps)


async def test_a_choice_that_fails_fails_the_request_and_cancels_the_others(place: Place) -> None:
    asked = asyncio.create_task(place.client.chat.completions.create(model="silent", messages=HELLO, n=3))
    steps = await submitted(place, 3)
    await place.fleet.end(steps[1], Status.REFUSED, Problem(reason=Reason.QUEUE_FULL, message="full"))
    with pytest.raises(openai.RateLimitError, match="full"):
        await asked
    assert sorted([(await place.cancelled()).step for _ in range(2)]) == sorted([steps[0], steps[2]])


async def test_a_choice_that_fails_in_mid_stream_ends_the_stream_with_its_error(place: Place) -> None:
    stream = await place.client.chat.completions.create(model="one-word", messages=HELLO, n=2, stream=True)
    steps = await submitted(place, 2)
    chunks = aiter(stream)
    assert {(await anext(chunks)).choices[0].index for _ in steps} == {0, 1}
    await place.fleet.end(steps[0], Status.FAILED, Problem(reason=Reason.ATTEMPTS_EXHAUSTED, message="three workers died"), 1)
    with pytest.raises(openai.APIError, match="three workers died"):
        await anext(chunks)
    assert (await place.cancelled()).step == steps[1]


async def test_more_choices_than_are_allowed_are_refused(nats_url: str) -> None:
    async with gateway(nats_url, "choices_max=2") as place:
        await place.client.chat.completions.create(model="words", messages=HELLO, n=2)
        with pytest.raises(openai.BadRequestError, match="at most 2") as caught:
            await place.client.chat.completions.create(model="words", messages=HELLO, n=3)
        assert caught.value.param == "n"


async def test_choices_of_a_workflows_step_are_recorded_each_and_answered_again(place: Place) -> None:
    headers = {"X-Legato-Workflow": f"wf-{new_id()}", "X-Legato-Step-Key": "plan"}

    async def ask(n: int, **more: Any) -> Any:
        return await place.client.chat.completions.create(model="words", messages=HELLO, n=n, seed=3, extra_headers=headers, **more)

    first = await ask(2)
    steps = await submitted(place, 2)
    assert [place.fleet.submissions[step].step_key for step in steps] == ["plan", "plan#1"]
    again, one = await ask(2), await ask(1)
    assert (again.id, one.id) == (first.id, first.id)
    assert [choice.message.content for choice in again.choices] == [TEXT, TEXT]
    assert place.fleet.submitted.empty()
    more = await ask(3)
    assert (await place.submitted(), len(more.choices)) not in steps
    assert place.fleet.submitted.empty()


# --- tools and thought -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_calls_and_thought_come_back_however_the_text_was_cut(place: Place, size: int) -> None:
    place.fleet.script = [SCRIPT[at : at + size] for at in range(0, len(SCRIPT), size)]
    asked: Any = {"model": "scripted", "messages": HELLO, "tools": [WEATHER]}
    reply = await place.client.chat.completions.create(**asked)
    message = reply.choices[0].message
    assert reply.choices[0].finish_reason == "tool_calls"
    assert (message.content, message.model_extra) == ("I look.", {"reasoning_content": "Where?"})
    calls: Any = message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [("weather", {"city": "Paris"})] * 2
    assert len({call.id for call in calls}) == 2
    submission = place.fleet.submissions[await place.submitted()]
    assert msgspec.to_builtins(submission.tools) == [WEATHER]


async def test_calls_stream_as_openais_own_accumulator_reads_them(place: Place) -> None:
    place.fleet.script = list(SCRIPT)
    async with place.client.chat.completions.stream(model="scripted", messages=HELLO, tools=[WEATHER]) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert kinds.count("tool_calls.function.arguments.delta") > 10
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.choices[0].message.content == "I look."
    assert [call.function.arguments for call in final.choices[0].message.tool_calls or []] == ['{"city": "Paris"}'] * 2


async def test_without_parallel_calls_only_the_first_is_told(place: Place) -> None:
    place.fleet.script = [SCRIPT]
    reply = await place.client.chat.completions.create(model="scripted", messages=HELLO, tools=[WEATHER], parallel_tool_calls=False)
    assert len(reply.choices[0].message.tool_calls or []) == 1


async def test_without_tools_a_text_that_looks_like_a_call_is_a_text(place: Place) -> None:
    place.fleet.script = [CALL]
    reply = await place.client.chat.completions.create(model="scripted", messages=HELLO)
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (CALL, "stop")


async def test_a_conversation_goes_on_with_the_calls_that_were_answered(place: Place) -> None:
    place.fleet.script = [SCRIPT]
    first = await place.client.chat.completions.create(model="scripted", messages=HELLO, tools=[WEATHER])
    answer: Any = first.choices[0].message.model_dump()
    calls: Any = first.choices[0].message.tool_calls
    results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "22"} for call in calls]
    await place.submitted()
    place.fleet.script = ["It is warm."]
    reply = await place.client.chat.completions.create(model="scripted", messages=[*HELLO, answer, *results], tools=[WEATHER])
    assert reply.choices[0].message.content == "It is warm."
    messages = place.fleet.submissions[await place.submitted()].messages or []
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool"]
    assert messages[1].reasoning_content == "Where?"
    assert [call["id"] for call in messages[1].tool_calls or []] == [call.id for call in calls]


async def test_a_demanded_call_is_read_from_its_json(place: Place) -> None:
    for choice, text in (("required", '[{"name": "weather", "parameters": {"city": "Paris"}}]'), ("named", '{"city": "Paris"}')):
        place.fleet.script = list(text)
        wanted: Any = {"type": "function", "function": {"name": "weather"}} if choice == "named" else choice
        reply = await place.client.chat.completions.create(model="scripted", messages=HELLO, tools=[WEATHER], tool_choice=wanted, n=2)
        for each in reply.choices:
            calls: Any = each.message.tool_calls
            assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", '{"city": "Paris"}')]
            assert each.finish_reason == "tool_calls"
        step, _ = await submitted(place, 2)
        assert json.loads(place.fleet.submissions[step].sampling.json_schema or "")


async def test_tools_that_nobody_could_find_calls_of_are_refused(place: Place) -> None:
    await register(place, "mute")
    with pytest.raises(openai.BadRequestError, match="do not say how it writes calls") as caught:
        await place.client.chat.completions.create(model="mute", messages=HELLO, tools=[WEATHER])
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "tools")
    with pytest.raises(openai.NotFoundError):
        await place.client.chat.completions.create(model="words", messages=HELLO, tools=[WEATHER])
    assert place.fleet.submitted.empty()


async def test_what_the_template_does_not_know_is_named_as_the_client_sent_it(place: Place) -> None:
    asked = asyncio.create_task(place.client.chat.completions.create(model="silent", messages=HELLO, reasoning_effort="high"))
    step = await place.submitted()
    assert place.fleet.submissions[step].chat_template_kwargs == {"reasoning_effort": "high"}
    message, param = "the template does not know reasoning_effort", "chat_template_kwargs.reasoning_effort"
    await place.fleet.end(step, Status.REFUSED, Problem(reason=Reason.UNSUPPORTED, message=message, param=param))
    with pytest.raises(openai.BadRequestError) as caught:
        await asked
    assert caught.value.param == "reasoning_effort"


async def test_outputs_of_a_choice_wait_for_no_other(place: Place) -> None:
    stream = await place.client.chat.completions.create(model="one-word", messages=HELLO, n=2, stream=True)
    steps = await submitted(place, 2)
    await place.fleet.end(steps[1], Status.SUCCEEDED, offset=1)
    chunks = aiter(stream)
    async for chunk in chunks:
        if chunk.choices[0].finish_reason:
            break
    assert chunk.choices[0].index == 1
    await place.fleet.say(steps[0], Output(attempt=1, offset=1, tokens=[1], text="more"))
    await place.fleet.end(steps[0], Status.SUCCEEDED, offset=2)
    rest = [chunk.choices[0] async for chunk in chunks]
    assert {choice.index for choice in rest} == {0}
    assert rest[-1].finish_reason == "stop"
