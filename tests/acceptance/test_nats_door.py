"""The NATS door with nothing but nats-py and the words of docs/nats-api.md: no code of Legato's on the client's side."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client as Nats

from legato.fleet import Fleet

LIMIT_S = 30.0


@pytest.fixture
async def connection(fleet: Fleet) -> AsyncIterator[Nats]:
    connection = await nats.connect(fleet.running.nats)
    yield connection
    await connection.close()


async def ask(connection: Nats, body: bytes | dict[str, Any], step: str = "") -> list[dict[str, Any]]:
    """Subscribe, submit, and collect until the end."""
    step = step or uuid.uuid4().hex
    subscription = await connection.subscribe(f"legato.out.{step}")
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    await connection.jetstream().publish(f"legato.submit.{step}", data)
    outputs: list[dict[str, Any]] = []
    async with asyncio.timeout(LIMIT_S):
        while not outputs or "end" not in outputs[-1]:
            outputs.append(json.loads((await subscription.next_msg(LIMIT_S)).data))
    await subscription.unsubscribe()
    return outputs


async def test_a_submission_streams_its_text_and_ends_with_usage(connection: Nats) -> None:
    outputs = await ask(connection, {"model": "sim-small", "prompt": "Once upon a time", "sampling": {"max_tokens": 20}})
    end = outputs[-1]["end"]
    assert end["status"] == "succeeded"
    assert end["usage"]["output_tokens"] == 20 == sum(len(output.get("tokens", [])) for output in outputs)
    assert "".join(output.get("text", "") for output in outputs)


async def test_a_chat_is_answered(connection: Nats) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]
    outputs = await ask(connection, {"model": "sim-small", "messages": messages, "sampling": {"max_tokens": 8}})
    assert outputs[-1]["end"]["status"] == "succeeded"


@pytest.mark.parametrize(
    ("body", "reason", "named"),
    [
        (b"not json at all", "invalid_request", ""),
        (b"", "invalid_request", ""),
        ({"model": "sim-small"}, "invalid_request", "prompt"),
        ({"model": "sim-small", "prompt": "x", "messages": [{"role": "user", "content": "y"}]}, "invalid_request", "prompt"),
        ({"model": "sim-small", "prompt": "x", "sampling": {"temprature": 1}}, "", "temprature"),
        ({"model": "sim-small", "prompt": "x", "sampling": {"temperature": 9}}, "invalid_request", "temperature"),
        ({"model": "no-such-model", "prompt": "x"}, "model_not_found", "no-such-model"),
        ({"model": "sim-small", "prompt": [1, 2, 999_999]}, "invalid_request", "999999"),
        ({"model": "sim-small", "prompt": "x", "sampling": {"max_tokens": 10_000_000}}, "context_length_exceeded", "10000000"),
    ],
)
async def test_what_is_wrong_is_refused_and_named(connection: Nats, body: bytes | dict[str, Any], reason: str, named: str) -> None:
    outputs = await ask(connection, body)
    end = outputs[-1]["end"]
    assert end["status"] == "refused"
    assert reason in end["problem"]["reason"]
    assert named in (end["problem"]["message"] + end["problem"].get("param", "")).replace(",", "")


async def test_a_running_step_can_be_cancelled(connection: Nats) -> None:
    step = uuid.uuid4().hex
    subscription = await connection.subscribe(f"legato.out.{step}")
    body = {"model": "sim-small", "prompt": "Play for ever", "sampling": {"max_tokens": 10_000}}
    await connection.jetstream().publish(f"legato.submit.{step}", json.dumps(body).encode())
    await subscription.next_msg(LIMIT_S)
    await connection.jetstream().publish(f"legato.cancel.{step}", b"{}")
    async with asyncio.timeout(LIMIT_S):
        while "end" not in (output := json.loads((await subscription.next_msg(LIMIT_S)).data)):
            pass
    assert output["end"]["status"] == "cancelled"


async def test_submitting_a_known_step_again_changes_nothing(connection: Nats) -> None:
    step = uuid.uuid4().hex
    body = {"model": "sim-small", "prompt": "Once", "sampling": {"max_tokens": 5}}
    first = await ask(connection, body, step)
    await connection.jetstream().publish(f"legato.submit.{step}", json.dumps(body).encode())
    await ask(connection, body)  # another step goes all the way after it
    jetstream = connection.jetstream()
    messages = (await jetstream.stream_info("LEGATO_OUT", subjects_filter=f"legato.out.{step}")).state.subjects
    assert messages == {f"legato.out.{step}": len(first)}


async def test_the_output_can_be_read_back_from_the_stream(connection: Nats) -> None:
    step = uuid.uuid4().hex
    live = await ask(connection, {"model": "sim-small", "prompt": "Again", "sampling": {"max_tokens": 12}}, step)
    subscription = await connection.jetstream().subscribe(f"legato.out.{step}", stream="LEGATO_OUT", ordered_consumer=True)
    stored = [json.loads((await subscription.next_msg(LIMIT_S)).data) for _ in live]
    assert stored == live
