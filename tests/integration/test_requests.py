"""Answers find whoever asked, and nobody waits for ever; what is listened to is handed over in order, whatever happens in between."""

import asyncio
from collections.abc import AsyncIterator

import nats.errors
import pytest
from nats.aio.msg import Msg

from shared.runtime import requests
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.embedded import EmbeddedNats

LIMIT_S = 20.0


@pytest.fixture
async def bus(fresh_nats: EmbeddedNats) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusConfig(url=fresh_nats.url), "test")
    yield bus
    await bus.close()


async def test_each_answer_goes_to_its_question(bus: Bus) -> None:
    async def echo(msg: Msg) -> None:
        await msg.respond(b"re: " + msg.data)

    await bus.subscribe("echo", echo)
    answers = await asyncio.wait_for(asyncio.gather(*(bus.requests.ask("echo", b"%d" % number) for number in range(50))), LIMIT_S)
    assert [answer.data for answer in answers] == [b"re: %d" % number for number in range(50)]
    assert not bus.requests._open


async def test_where_nobody_listens_that_is_said_at_once(bus: Bus) -> None:
    with pytest.raises(nats.errors.NoRespondersError):
        await asyncio.wait_for(bus.requests.ask("nobody", b""), LIMIT_S)


async def test_whoever_is_not_answered_stops_waiting(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(_: Msg) -> None:
        return

    monkeypatch.setattr(requests, "TIMEOUT_S", 0.1)
    await bus.subscribe("silent", silent)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bus.requests.ask("silent", b""), LIMIT_S)
    assert not bus.requests._open


async def test_who_waits_when_the_connection_is_closed_is_told(bus: Bus) -> None:
    async def silent(_: Msg) -> None:
        return

    await bus.subscribe("silent", silent)
    asking = asyncio.create_task(bus.requests.ask("silent", b""))
    await bus.client.flush()
    await bus.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asking, LIMIT_S)


async def test_messages_are_handed_over_in_order_and_an_error_ends_nothing(
    bus: Bus, fresh_nats: EmbeddedNats, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[bytes] = []
    whole = asyncio.Event()

    def take(subject: str, reply: str, data: bytes, headers: bytes) -> None:
        assert (subject, reply, headers) == ("numbers.a", "", b"")
        taken.append(data)
        if data == b"99":
            whole.set()
        if data == b"50":
            raise ZeroDivisionError("planted")

    subscription = await bus.listen("numbers.*", take)
    await fresh_nats.stop(0)
    await fresh_nats.start()
    async with asyncio.timeout(LIMIT_S):
        while not bus.client.stats["reconnects"]:  # noqa: ASYNC110  nats-py has no event for it
            await asyncio.sleep(0.01)
    await bus.client.flush()
    for number in range(100):
        await bus.publish("numbers.a", b"%d" % number)
    await asyncio.wait_for(whole.wait(), LIMIT_S)
    assert taken == [b"%d" % number for number in range(100)]
    assert "the handling of a message failed" in caplog.messages
    await subscription.unsubscribe()
    await bus.publish("numbers.a", b"late")
    await bus.client.flush()
    assert taken[-1] == b"99"


async def test_who_asks_when_the_connection_is_closed_is_told(bus: Bus) -> None:
    await bus.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bus.requests.ask("anybody", b""), LIMIT_S)
