"""The gateway and its clients: those that leave, and what they may ask beside generation."""

import asyncio
import json
import socket
from collections.abc import Callable

import msgspec
import openai
import pytest
import uvloop
from gateway_place import HELLO, LIMIT_S, WORDS, Place, gateway
from openai import AsyncOpenAI

from services.gateway.config import GatewayConfig
from services.gateway.handlers import Handlers
from services.gateway.models import Models
from services.gateway.service import serve
from shared.contracts import subjects
from shared.contracts.fleet import Capacity, ModelCard, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, WorkerId, is_subject_token
from shared.contracts.outcomes import Status
from shared.contracts.output import Output
from shared.contracts.streams import STEPS
from shared.core.errors import LegatoError
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.clock import now_ns
from shared.runtime.cursor import Source
from shared.runtime.embedded import EmbeddedNats
from shared.runtime.ids import new_id
from shared.runtime.telemetry import Telemetry, TelemetryConfig

# --- clients that go ---------------------------------------------------------------------------------------------------------


async def test_a_client_that_leaves_a_stream_cancels_its_step(place: Place) -> None:
    stream = await place.client.chat.completions.create(model="one-word", messages=HELLO, stream=True)
    async for chunk in stream:
        assert chunk.choices[0].delta.content == WORDS[0]
        break
    await stream.close()
    assert (await place.cancelled()).step == await place.submitted()


async def test_a_client_that_leaves_before_the_first_token_cancels_its_step(place: Place) -> None:
    for stream in (False, True):
        waiting = asyncio.create_task(place.client.chat.completions.create(model="silent", messages=HELLO, stream=stream))
        step = await place.submitted()
        waiting.cancel()
        cancelled = await place.cancelled()
        assert cancelled.step == step
        stored = await place.fleet.bus.last("LEGATO_STEPS", subjects.cancel(step))
        assert stored is not None
        assert stored.headers["Nats-Msg-Id"] == f"{step}.cancel"


async def test_a_client_that_does_not_read_cancels_its_step(nats_url: str) -> None:
    async with gateway(nats_url, "write_timeout_ms=200") as place:
        host, port = place.url.removeprefix("http://").split(":")
        connection = socket.create_connection((host, int(port)))
        body = json.dumps({"model": "floods", "messages": HELLO, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connection.sendall(head + body)
        assert (await place.cancelled()).step == await place.submitted()
        connection.close()


async def test_a_client_that_leaves_in_mid_body_leaves_nothing_behind(place: Place) -> None:
    host, port = place.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await place.client.chat.completions.create(model="words", messages=HELLO)
    await place.submitted()
    assert place.fleet.submitted.empty()


async def test_a_client_that_has_its_answer_cancels_nothing(place: Place) -> None:
    async with AsyncOpenAI(base_url=f"{place.url}/v1", api_key="sk-secret", max_retries=0, timeout=LIMIT_S) as client:
        await client.chat.completions.create(model="words", messages=HELLO)
        async with await client.chat.completions.create(model="words", messages=HELLO, stream=True) as stream:
            [chunk async for chunk in stream]
    await place.client.models.list()
    await place.fleet.bus.client.flush()
    assert place.fleet.cancelled.empty()


async def test_stopping_lets_requests_finish_and_cancels_those_that_do_not(nats_url: str) -> None:
    async with gateway(nats_url, "drain_timeout_ms=300") as place:
        finishing = asyncio.create_task(place.client.chat.completions.create(model="one-word", messages=HELLO))
        first = await place.submitted()
        hanging = asyncio.create_task(place.client.chat.completions.create(model="silent", messages=HELLO))
        second = await place.submitted()
        place.context.stop.set()
        await place.fleet.end(first, Status.SUCCEEDED, offset=1)
        assert (await finishing).choices[0].message.content == WORDS[0]
        with pytest.raises(openai.APIConnectionError):
            await hanging
        assert (await place.cancelled()).step == second


# --- models and health -------------------------------------------------------------------------------------------------------


def worker(model: str, state: WorkerState, *, age_s: int = 0) -> WorkerRegistered:
    card = ModelCard(name=ModelName(model), tokenizer="t", vocab_size=9, context_tokens=9, block_tokens=4)
    return WorkerRegistered(
        time_ns=now_ns() - age_s * 10**9,
        worker=WorkerId(f"worker-{model}".replace("/", "-")),
        cell=CellId("local"),
        pool="default",
        epoch=1,
        state=state,
        card=card,
        capacity=Capacity(blocks=1, slots=1),
    )


async def test_models_are_those_of_ready_workers(place: Place) -> None:
    bus = place.fleet.bus
    names = [f"{name}/{new_id()}" for name in ("ready", "loading", "gone", "silent")]
    cards = [worker(names[0], WorkerState.READY), worker(names[1], WorkerState.LOADING), worker(names[2], WorkerState.READY)]
    cards.append(worker(names[3], WorkerState.READY, age_s=600))
    messages: list[WorkerRegistered | WorkerGone] = [*cards, WorkerGone(worker=cards[2].worker, cell=CellId("local"), epoch=1)]
    messages.append(worker("last", WorkerState.READY))
    for message in messages:
        subject = subjects.worker(message.worker)
        await (await bus.store(subject, msgspec.json.encode(message)))
    async with asyncio.timeout(LIMIT_S):
        listed: list[str] = []
        while "last" not in listed:
            listed = [model.id async for model in place.client.models.list()]
    assert [name for name in listed if name in names] == [names[0]]
    found = await place.client.models.retrieve(names[0])
    assert (found.id, found.owned_by, found.object) == (names[0], "legato", "model")
    with pytest.raises(openai.NotFoundError) as caught:
        await place.client.models.retrieve(names[1])
    assert caught.value.code == "model_not_found"


async def test_health_and_readiness_are_told(place: Place) -> None:
    for path in ("health", "ready"):
        async with place.http.get(f"{place.url}/{path}") as response:
            assert response.status == 200


# --- a fleet that goes -------------------------------------------------------------------------------------------------------


async def test_while_nats_is_away_requests_are_told_to_come_back(fresh_nats: EmbeddedNats) -> None:
    async with gateway(fresh_nats.url, "submit_timeout_ms=100") as place:
        await fresh_nats.stop(0)
        with pytest.raises(openai.InternalServerError) as caught:
            await place.client.chat.completions.create(model="words", messages=HELLO)
        assert caught.value.status_code == 503
        assert "Retry-After" in caught.value.response.headers
        await fresh_nats.start()
        cursor = await place.fleet.bus.read(Source(stream=STEPS.name, subjects=(subjects.CANCEL,)))
        (cancel,) = await asyncio.wait_for(cursor.take(1), LIMIT_S)  # it may have been stored after all, so it is cancelled
        assert is_subject_token(subjects.step_of(cancel.subject))
        await cursor.close()


async def test_a_stream_outlives_a_restart_of_nats(fresh_nats: EmbeddedNats) -> None:
    async with gateway(fresh_nats.url) as place:
        asking = asyncio.create_task(place.client.chat.completions.create(model="silent", messages=HELLO, stream=True))
        step = await place.submitted()
        await place.fleet.say(step, Output(attempt=1, tokens=[0], text=WORDS[0]))
        stream = await asking
        text = (await anext(stream)).choices[0].delta.content
        await fresh_nats.stop(0)
        await fresh_nats.start()
        await place.fleet.say(step, Output(attempt=1, offset=1, tokens=[1], text=WORDS[1]))
        await place.fleet.end(step, Status.SUCCEEDED, offset=2)
        text += "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == WORDS[0] + WORDS[1]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
async def test_events_leave_at_once(nats_url: str, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Without TCP_NODELAY a token can wait 40 ms for the acknowledgement of the one before."""

    async def nodelay() -> int:
        bus = await Bus.connect(BusConfig(url=nats_url), "test-nodelay")
        config = GatewayConfig(port=0, drain_timeout_ms=0)
        telemetry = Telemetry("gateway", "test", TelemetryConfig())
        runner = await serve(Handlers(bus, config, Models(bus, config.worker_silent_ms, {}), telemetry), config)
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"ok\n")
        assert runner.server is not None
        transport = runner.server.connections[0].transport
        assert transport is not None
        option: int = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
        await runner.cleanup()
        await bus.close()
        return option

    def run_apart() -> int:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(nodelay())

    assert await asyncio.to_thread(run_apart) == 1


async def test_an_address_that_is_taken_is_said_to_be(nats_url: str, place: Place) -> None:
    config = GatewayConfig(port=int(place.url.rpartition(":")[2]))
    bus = place.fleet.bus
    with pytest.raises(LegatoError, match=f"cannot serve on 127.0.0.1:{config.port}"):
        await serve(Handlers(bus, config, Models(bus, 1, {}), Telemetry("gateway", "test", TelemetryConfig())), config)
