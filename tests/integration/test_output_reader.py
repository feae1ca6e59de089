"""The output reader against a real nats-server: one stream for the reader, whatever happens on the way."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import nats
import nats.errors
import pytest
from nats.js import api

from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.output import End, Output
from shared.contracts.streams import OUT
from shared.runtime import output_reader
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.embedded import EmbeddedNats
from shared.runtime.ids import new_id
from shared.runtime.output_reader import OutputError, OutputReader
from shared.runtime.publisher import WrongLastSequence

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
        await (await bus.store(subjects.outbox(step), msgspec.json.encode(output)))


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


async def test_a_gap_shows_by_the_sequence_at_once(bus: Bus, step: StepId, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SILENCE_S", "SILENCE_MAX_S"):
        monkeypatch.setattr(output_reader, name, 10 * LIMIT_S)  # silence would be noticed too late
    reader = await opened(bus, step)
    await send(bus, step, chunk(0, "one "))
    assert await reader.take() == [chunk(0, "one ")]
    await send(bus, step, chunk(4, "two "), Output(attempt=1, offset=8, text="and "), chunk(8, "three"))
    await bus.client.flush()
    del reader._live[0], reader._live[0]  # as if they had been lost on the way
    assert await reader.take() == [chunk(4, "two "), Output(attempt=1, offset=8, text="and "), chunk(8, "three")]
    await send(bus, step, chunk(13, "", end=DONE))
    assert await text_of(reader) == ""
    await reader.close()


async def test_what_no_stream_sent_is_not_heard(bus: Bus, step: StepId) -> None:
    reader = await opened(bus, step)
    await bus.publish(subjects.out(step), msgspec.json.encode(chunk(0, "ghost")))
    await bus.client.publish(subjects.out(step), msgspec.json.encode(chunk(0, "ghost")), headers={"Nats-Sequence": "one"})
    await send(bus, step, chunk(0, "one ", end=DONE))
    assert await text_of(reader) == "one "
    await reader.close()


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


async def test_the_next_attempt_goes_on_where_the_last_one_stopped(bus: Bus, step: StepId) -> None:
    reader = await opened(bus, step)
    await send(bus, step, chunk(0, "one "), chunk(4, "two ", attempt=2), chunk(8, "three", attempt=2, end=DONE))
    assert await text_of(reader) == "one two three"
    await reader.close()


async def test_what_the_stream_refuses_reaches_no_reader(bus: Bus, nats_url: str) -> None:
    """The overtaken writer sends first, second, and again and again between the chunks of the one that overtook it."""
    zombie = await Bus.connect(BusConfig(url=nats_url), "test-zombie")
    bare = await nats.connect(nats_url)
    for _ in range(30):
        step = StepId(new_id())
        subscription = await bare.subscribe(subjects.out(step))
        await bare.jetstream().account_info()  # an answer, so the subscription is there: `flush` can go out before it
        reader = await opened(bus, step)
        first = await (await bus.store(subjects.outbox(step), msgspec.json.encode(chunk(0, "x")), expect_last=0))
        refusals, last = (
            [],
            await (await bus.store(subjects.outbox(step), msgspec.json.encode(chunk(1, "x", attempt=2)), expect_last=first.seq)),
        )
        for number in range(2, 12):
            ghost = msgspec.json.encode(chunk(number - 1, "ghost", end=DONE))
            refusals += [await zombie.store(subjects.outbox(step), ghost, expect_last=first.seq) for _ in range(3)]
            end = DONE if number == 11 else None
            output = msgspec.json.encode(chunk(number, "x", attempt=2, end=end))
            last = await (await bus.store(subjects.outbox(step), output, expect_last=last.seq))
        for refusal in refusals:
            with pytest.raises(WrongLastSequence):
                await refusal
        assert await text_of(reader) == "x" * 12
        heard = [msgspec.json.decode((await subscription.next_msg(LIMIT_S)).data, type=Output).text for _ in range(12)]
        await bare.flush()
        assert heard == ["x"] * 12
        assert subscription.pending_msgs == 0
        await subscription.unsubscribe()
        await reader.close()
    await bare.close()
    await zombie.close()


async def test_a_stream_from_before_is_changed_and_keeps_what_it_has(fresh_nats: EmbeddedNats, step: StepId) -> None:
    bus = await Bus.connect(BusConfig(url=fresh_nats.url), "test-migration")
    await bus.js.add_stream(api.StreamConfig(name=OUT.name, subjects=[subjects.OUT], allow_direct=True, duplicate_window=120))
    await bus.js.publish(subjects.out(step), msgspec.json.encode(chunk(0, "old ")))
    await bus.ensure_streams()
    await bus.ensure_streams()
    reader = await opened(bus, step, joining=True)
    assert await reader.take() == [chunk(0, "old ")]
    await (await bus.store(subjects.outbox(step), msgspec.json.encode(chunk(4, "new", end=DONE)), expect_last=1))
    assert await text_of(reader) == "new"
    with pytest.raises(nats.errors.Error):
        await bus.js.publish(subjects.out(step), b"nobody stores this", timeout=1)
    await reader.close()
    await bus.close()


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


async def test_other_tokens_at_an_offset_that_was_taken_are_an_error(bus: Bus, step: StepId) -> None:
    reader = await opened(bus, step)
    await send(bus, step, chunk(0, "one"), chunk(0, "one two three", attempt=2))
    with pytest.raises(OutputError, match="has other tokens from offset 0"):
        await text_of(reader)
    await reader.close()


async def test_the_first_end_is_the_end_whoever_wrote_it(bus: Bus, step: StepId) -> None:
    failed = End(status=Status.FAILED, problem=Problem(reason=Reason.NO_CAPACITY, message="nobody is there"))
    await send(bus, step, chunk(0, "one ", attempt=2), Output(attempt=0, end=failed), Output(attempt=3, offset=4, end=DONE))
    for joining in (True, False):
        reader = await opened(bus, step, joining=joining)
        outputs = []
        async with asyncio.timeout(LIMIT_S):
            async for output in reader:
                outputs.append(output)
        assert outputs == [chunk(0, "one ", attempt=2), Output(attempt=0, offset=4, end=failed)]
        await reader.close()


async def test_what_cannot_be_decoded_is_dropped(bus: Bus, step: StepId) -> None:
    reader = await opened(bus, step)
    await (await bus.store(subjects.outbox(step), b"not json"))
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
