"""Several choices and calls of tools with the client on a real NATS; the test speaks for the fleet."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

import legato
from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.output import End, Output
from shared.contracts.steps import Submission
from shared.contracts.streams import STEPS
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.ids import new_id

LIMIT_S = 20.0
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "sun"}}


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusConfig(url=nats_url), "test-fleet")
    await bus.ensure_streams()
    yield bus
    await bus.close()


@pytest.fixture
async def client(bus: Bus, nats_url: str) -> AsyncIterator[legato.Client]:
    async with legato.Client(nats_url) as client:
        yield client


async def submissions(bus: Bus, steps: list[str]) -> list[Submission]:
    """As they are stored; waits for them."""
    found = []
    async with asyncio.timeout(LIMIT_S):
        for step in steps:
            while (record := await bus.last(STEPS.name, subjects.submit(StepId(step)))) is None:
                pass
            found.append(msgspec.json.decode(record.data, type=Submission))
    return found


async def end(bus: Bus, step: str, end: End, text: str = "") -> None:
    await (await bus.store(subjects.outbox(StepId(step)), ENCODER.encode(Output(attempt=1, tokens=[1], text=text))))
    await (await bus.store(subjects.outbox(StepId(step)), ENCODER.encode(Output(attempt=1, offset=1, end=end))))


async def test_choices_are_steps_with_ids_and_seeds_that_follow_from_the_first(bus: Bus, client: legato.Client) -> None:
    first = new_id()
    steps = [first, f"{first}-1", f"{first}-2"]
    asked = asyncio.create_task(client.choices(3, model="m", prompt="Hi", seed=9, step_id=first))
    seeds = [submission.sampling.seed for submission in await submissions(bus, steps)]
    assert seeds[0] == 9
    assert len(set(seeds)) == 3
    for step in steps:
        await end(bus, step, End(status=legato.Status.SUCCEEDED), text=step)
    assert [(result.id, result.text) for result in await asked] == [(step, step) for step in steps]


async def test_a_choice_that_fails_cancels_the_others(bus: Bus, client: legato.Client) -> None:
    first = new_id()
    asked = asyncio.create_task(client.choices(2, model="m", prompt="Hi", step_id=first))
    await submissions(bus, [first, f"{first}-1"])
    problem = legato.Problem(reason=legato.Reason.ATTEMPTS_EXHAUSTED, message="three workers died")
    await end(bus, first, End(status=legato.Status.FAILED, problem=problem))
    with pytest.raises(legato.Failed, match="three workers died"):
        await asked
    assert await bus.last(STEPS.name, subjects.cancel(StepId(f"{first}-1"))) is not None
    assert await bus.last(STEPS.name, subjects.cancel(StepId(first))) is None


async def test_a_choice_that_somebody_cancels_ends_the_others_at_once(bus: Bus, client: legato.Client) -> None:
    first = new_id()
    steps = [first, f"{first}-1", f"{first}-2"]
    asked = asyncio.create_task(client.choices(3, model="m", prompt="Hi", step_id=first))
    await submissions(bus, steps)
    await end(bus, steps[2], End(status=legato.Status.CANCELLED))
    with pytest.raises(legato.Failed, match="was cancelled"):
        await asyncio.wait_for(asked, LIMIT_S)
    assert [await bus.last(STEPS.name, subjects.cancel(StepId(step))) is not None for step in steps] == [True, True, False]


@pytest.mark.parametrize("n", [0, 129, True, 2.0, "2"])
async def test_a_number_of_choices_that_cannot_be_is_refused(client: legato.Client, n: Any) -> None:
    with pytest.raises(legato.Refused) as caught:
        await client.choices(n, model="m", prompt="Hi")
    assert caught.value.problem.param == "n"


async def test_tools_are_sent_as_they_were_given(bus: Bus, client: legato.Client) -> None:
    step = await client.submit(model="m", messages=[{"role": "user", "content": "Hi"}], tools=[TOOL], chat_template_kwargs={"a": 1})
    (sent,) = await submissions(bus, [step.id])
    assert (msgspec.to_builtins(sent.tools), sent.chat_template_kwargs) == ([TOOL], {"a": 1})
    await step.close()
    with pytest.raises(legato.Refused) as caught:
        await client.submit(model="m", messages=[{"role": "user", "content": "Hi"}], tools=[{"type": "function"}])
    assert caught.value.problem.param == "tools[0]"


def test_calls_are_read_from_a_text_by_the_name_of_its_models_parser() -> None:
    text = '<think>Hm.</think><tool_call>{"name": "sun", "arguments": {}}</tool_call>'
    call = legato.Call(name="sun", arguments="{}")
    assert legato.parse(text, tool_parser="hermes", reasoning_parser="qwen3") == legato.Parsed(reasoning="Hm.", calls=[call])
    assert legato.parse('[{"name": "sun", "parameters": {}}]', tool_parser=legato.DEMANDED).calls == [call]
    assert legato.parse(text) == legato.Parsed(content=text)
    for names in ({"tool_parser": "lama"}, {"reasoning_parser": "named:x"}):
        with pytest.raises(legato.Refused, match="there are: "):
            legato.parse(text, **names)


def test_the_form_of_demanded_calls_is_made_of_the_tools() -> None:
    assert '"sun"' in legato.call_form([TOOL])
    for tools in ([{"type": "function", "function": {"name": "a b"}}], [], None):
        with pytest.raises(legato.Refused):
            legato.call_form(tools)  # type: ignore[arg-type]
