"""A cursor reads every message once and in order, whatever the connection does, and holds no more than it asked for."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from leak import Leak

from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.streams import STEPS
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.cursor import AHEAD, AHEAD_BYTES, Cursor, CursorError, Source
from shared.runtime.embedded import EmbeddedNats

SOURCE = Source(stream=STEPS.name, subjects=(subjects.CANCEL,))
LIMIT_S = 20.0


@pytest.fixture
async def writer(fresh_nats: EmbeddedNats) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusConfig(url=fresh_nats.url), "writer")
    await bus.ensure_streams()
    yield bus
    await bus.close()


@pytest.fixture
async def reader(writer: Bus) -> AsyncIterator[Bus]:
    bus = await Bus.connect(writer.config, "reader")
    yield bus
    await bus.close()


async def fill(bus: Bus, count: int, size: int = 100) -> None:
    for future in [await bus.store(subjects.cancel(StepId(f"s{number}")), b"x" * size) for number in range(count)]:
        await future


async def settled(cursor: Cursor) -> None:
    """Nothing arrives any more that was asked for."""
    before = -1
    while before != len(cursor._ready):
        before = len(cursor._ready)
        await asyncio.sleep(0.05)


async def test_a_slow_reader_holds_no_more_messages_than_it_may_ask_for(writer: Bus, reader: Bus) -> None:
    await fill(writer, 4 * AHEAD)
    cursor = await reader.read(SOURCE)
    held = []
    for _ in range(8):
        await cursor.take(16)
        await settled(cursor)
        held.append(len(cursor._ready))
    await cursor.close()
    assert max(held) <= AHEAD


async def test_a_reader_of_large_messages_holds_a_bounded_number_of_bytes(writer: Bus, reader: Bus) -> None:
    count, size = 24, 6_000_000
    await fill(writer, count, size)
    cursor = await reader.read(SOURCE)
    sequences: list[int] = []
    held = []
    while len(sequences) < count:
        sequences += [record.seq for record in await asyncio.wait_for(cursor.take(1), LIMIT_S)]
        held.append(cursor._ready_bytes)
    await cursor.close()
    assert sequences == list(range(1, count + 1))
    assert max(held) <= 2 * AHEAD_BYTES + size


async def test_what_was_lost_with_a_connection_that_came_back_at_once_is_read_again(fresh_nats: EmbeddedNats, writer: Bus) -> None:
    wire = Leak(int(fresh_nats.url.rpartition(":")[2]))
    reader = await Bus.connect(BusConfig(url=await wire.open()), "reader")
    cursor = await reader.read(SOURCE)
    await fill(writer, 300)
    await settled(cursor)
    wire.swallowing = True
    await fill(writer, 100)
    before = reader.client.stats["reconnects"]
    async with asyncio.timeout(LIMIT_S):
        while wire.swallowed < 100 * 100:  # noqa: ASYNC110  it is counted elsewhere
            await asyncio.sleep(0)
        wire.cut()
        while reader.client.stats["reconnects"] == before:  # noqa: ASYNC110  nobody else must run before the reader asks again
            await asyncio.sleep(0)
        sequences = [record.seq for record in await cursor.take(64)]
        await fill(writer, 100)
        while len(sequences) < 500:
            sequences += [record.seq for record in await cursor.take(64)]
    await cursor.close()
    await reader.close()
    await wire.close()
    assert sequences == list(range(1, 501))


async def test_a_cursor_that_the_server_has_forgotten_is_made_anew(writer: Bus, reader: Bus) -> None:
    await fill(writer, 10)
    cursor = await reader.read(SOURCE)
    assert [record.seq for record in await cursor.take(10)] == list(range(1, 11))
    await writer.js.delete_consumer(STEPS.name, cursor._name)
    await fill(writer, 1)
    [record] = await asyncio.wait_for(cursor.take(1), LIMIT_S)
    await cursor.close()
    assert record.seq == 11


async def test_what_no_waiting_can_cure_is_raised_and_not_waited_for(reader: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = await reader.read(SOURCE)

    async def broken() -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(cursor, "_look_after", broken)
    with pytest.raises(CursorError, match="planted"):
        await asyncio.wait_for(cursor.take(1), LIMIT_S)
    await cursor.close()
