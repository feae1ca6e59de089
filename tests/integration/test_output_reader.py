"""The output reader against a real nats-server: one stream for the reader, whatever happens on the way."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.output import End, Output
from shared.runtime import output_reader
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.embedded import EmbeddedNats
from shared.runtime.ids import new_id
from shared.runtime.output_reader import OutputError, OutputReader

DONE = End(status=Status.SUCCEEDED)
LIMIT_S = 20.0


@pytest.fixture(scope="module")
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusConfig(url=nats_url), "test-reader")
    await bus.ensure_streams()
    yield bus
    await bus.close()


@pytest.fixture
def step() -> StepId:
    return StepId(new_id())


def chunk(offset: int, text: str, *, attempt: int = 1, end: End | None = None) -> Output:
    """One token for each character, so that offsets and text agree."""
    return Output(attempt=attempt, offset=offset, tokens=[ord(letter) for letter in text], text=text, end=end)


async def send(bus: Bus, step: StepId, *outputs: Output) -> None:
    """Store outputs, as a worker does."""
    for output in outputs:
        await (await bus.store(subjects.out(step), msgspec.json.encode(output)))


async def text_of(reader: OutputReader) -> str:
    async with asyncio.timeout(LIMIT_S):
        return "".join([output.text async for output in reader])


async def opened(bus: Bus, step: StepId, *, joining: bool = False) -> OutputReader:
    reader = OutputReader(bus, step)
    await reader.open(joining=joining)
    return reader


async def test_reads_what_is_published_until_the_end(bus: Bus, step: StepId) -> None:
    reader = await opened(bus, step)
    await send(bus, step, chunk(0, "one "), chunk(4, "two "), chunk(8, "three", end=DONE))
    assert await text_of(reader) == "one two three"
    assert await reader.take() == []
    await reader.close()
    await reader.close()


async def test_a_second_copy_is_dropped(bus: Bus, step: StepId) -> None:
    reader = await opened(bus, step)
    await send(bus, step, chunk(0, "one "), chunk(0, "one "), chunk(4, "two"), chunk(0, "one "), chunk(7, "", end=DONE))
    assert await text_of(reader) == "one two"
    await reader.close()


async def test_a_message_that_never_arrived_is_read_from_the_stream(bus: Bus, step: StepId) -> None:
    await send(bus, step, chunk(0, "one "))
    reader = await opened(bus, step)
    await send(bus, step, chunk(4, "two "), chunk(8, "three", end=DONE))
    assert await text_of(reader) == "one two three"
    await reader.close()


async def test_an_old_copy_at_the_end_of_the_stream_hides_nothing(bus: Bus, step: StepId) -> None:
    await send(bus, step, chunk(0, "one "), chunk(4, "two "), chunk(0, "one "))
    reader = await opened(bus, step, joining=True)
    assert await reader.take() == [chunk(0, "one "), chunk(4, "two ")]
    await reader.close()
    late = await opened(bus, step)
    await bus.publish(subjects.out(step), msgspec.json.encode(chunk(0, "one ")))
    assert await late.take() == [chunk(0, "one ")]
    await send(bus, step, chunk(8, "three", end=DONE))
    assert await text_of(late) == "two three"
    await late.close()


async def test_an_end_that_never_arrived_is_found_after_silence(bus: Bus, step: StepId) -> None:
    await send(bus, step, chunk(0, "all", end=DONE))
    reader = await opened(bus, step)
    assert await text_of(reader) == "all"
    await reader.close()


async def test_who_joins_late_gets_everything(bus: Bus, step: StepId) -> None:
    await send(bus, step, *(chunk(number, "x") for number in range(600)))
    reader = await opened(bus, step, joining=True)
    first = await reader.take()
    assert len(first) == 600
    await send(bus, step, chunk(600, "y", end=DONE))
    assert await text_of(reader) == "y"
    await reader.close()


async def test_the_next_attempt_goes_on_and_the_old_one_is_not_heard_any_more(bus: Bus, step: StepId) -> None:
    reader = await opened(bus, step)
    await send(bus, step, chunk(0, "one "), chunk(4, "two ", attempt=2))
    await bus.publish(subjects.out(step), msgspec.json.encode(chunk(8, "ghost", attempt=1)))
    await send(bus, step, chunk(8, "three", attempt=2, end=DONE))
    assert await text_of(reader) == "one two three"
    await reader.close()


async def test_a_new_attempt_that_the_stream_refused_does_not_silence_the_old_one(bus: Bus, step: StepId) -> None:
    reader = await opened(bus, step)
    await send(bus, step, chunk(0, "one "))
    await bus.client.publish(subjects.out(step), msgspec.json.encode(chunk(4, "ghost", attempt=2)), headers=wrong_expectation())
    await send(bus, step, chunk(4, "two", end=DONE))
    assert await text_of(reader) == "one two"
    await reader.close()


def wrong_expectation() -> dict[str, str]:
    return {"Nats-Expected-Last-Subject-Sequence": "1"}


async def test_an_end_by_somebody_who_did_not_see_the_tokens_stands_where_they_stopped(bus: Bus, step: StepId) -> None:
    reader = await opened(bus, step)
    expired = End(status=Status.EXPIRED, problem=Problem(reason=Reason.DEADLINE_PASSED, message="too late"))
    await send(bus, step, chunk(0, "one "), Output(attempt=1, end=expired))
    outputs = []
    async with asyncio.timeout(LIMIT_S):
        async for output in reader:
            outputs.append(output)
    assert [(output.offset, output.text) for output in outputs] == [(0, "one "), (4, "")]
    assert outputs[-1].end == expired
    await reader.close()


async def test_a_hole_in_the_record_is_an_error(bus: Bus, step: StepId) -> None:
    reader = await opened(bus, step)
    await send(bus, step, chunk(0, "one "), chunk(9, "three"))
    with pytest.raises(OutputError, match="lacks tokens from offset 4"):
        await text_of(reader)
    await reader.close()


async def test_a_record_that_differs_from_what_was_received_is_an_error(bus: Bus, step: StepId) -> None:
    reader = await opened(bus, step)
    await bus.client.publish(subjects.out(step), msgspec.json.encode(chunk(0, "phantom")), headers=wrong_expectation())
    assert await reader.take() == [chunk(0, "phantom")]
    await send(bus, step, chunk(0, "one two three", attempt=2))
    with pytest.raises(OutputError, match="differs from what was received at offset 0"):
        await text_of(reader)
    await reader.close()


async def test_what_cannot_be_decoded_is_dropped(bus: Bus, step: StepId) -> None:
    reader = await opened(bus, step)
    await bus.publish(subjects.out(step), b"not json")
    await send(bus, step, chunk(0, "fine", end=DONE))
    assert await text_of(reader) == "fine"
    await reader.close()


async def test_a_reader_that_does_not_keep_up_holds_a_bounded_queue_and_misses_nothing(
    bus: Bus, step: StepId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_reader, "QUEUE_MAX", 16)
    reader = await opened(bus, step)
    await send(bus, step, *(chunk(number, "x") for number in range(100)), chunk(100, "y", end=DONE))
    await bus.client.flush()
    assert len(reader._live) <= 16
    assert await text_of(reader) == "x" * 100 + "y"
    await reader.close()


async def test_a_take_may_be_cancelled_and_taken_again(bus: Bus, step: StepId) -> None:
    reader = await opened(bus, step, joining=True)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await reader.take()
    await send(bus, step, chunk(0, "fine", end=DONE))
    assert await text_of(reader) == "fine"
    await reader.close()


async def test_a_restart_of_nats_in_the_middle_leaves_no_gap(fresh_nats: EmbeddedNats) -> None:
    step = StepId(new_id())
    bus = await Bus.connect(BusConfig(url=fresh_nats.url), "test-restart")
    await bus.ensure_streams()
    reader = await opened(bus, step)
    await send(bus, step, chunk(0, "one "))
    assert await reader.take() == [chunk(0, "one ")]
    await fresh_nats.stop(0)
    reading = asyncio.create_task(text_of(reader))
    await fresh_nats.start()
    await send(bus, step, chunk(4, "two "), chunk(8, "three", end=DONE))
    assert await reading == "two three"
    await reader.close()
    await bus.close()


async def test_a_closed_connection_ends_the_reading(fresh_nats: EmbeddedNats) -> None:
    bus = await Bus.connect(BusConfig(url=fresh_nats.url), "test-closed")
    await bus.ensure_streams()
    reader = await opened(bus, StepId(new_id()))
    await bus.close()
    with pytest.raises(Exception, match="closed"):
        await text_of(reader)
    await reader.close()
