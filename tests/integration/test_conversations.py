"""Conversations by reference on a real NATS: stored by parts, put together again, and sent whole wherever that cannot be."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

import legato
from shared.contracts import subjects
from shared.contracts.ids import ConversationId, StepId
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.output import End, Output
from shared.contracts.steps import ChatMessage, Submission
from shared.contracts.streams import STEPS, TURNS
from shared.core.conversation import Walk, chain, pieces_of, turn
from shared.core.machine import ENCODER
from shared.runtime import conversations
from shared.runtime.bus import Bus
from shared.runtime.conversations import Conversations, Reference, Sender, changed_parts

LIMIT_S = 20.0
KEY = "sha256:" + "a" * 64


def talk(number: int, name: str = "") -> list[ChatMessage]:
    return [ChatMessage(role="user", content=f"{name}{index} ".ljust(3_000, "x")) for index in range(number)]


def submission(messages: list[ChatMessage], key: str = KEY) -> Submission:
    return Submission(model="m", messages=messages, key=key)


async def refer(sender: Sender, messages: list[ChatMessage], key: str = KEY) -> Reference | None:
    asked = submission(messages, key)
    return await sender.refer(asked, ENCODER.encode(asked))


async def referred(sender: Sender, messages: list[ChatMessage]) -> ConversationId:
    reference = await refer(sender, messages)
    assert reference is not None
    reference.done()
    return msgspec.json.decode(reference.data, type=Submission).history


async def read(bus: Bus, conversation: ConversationId, key: str = KEY, bytes_max: int = 10**6) -> list[ChatMessage] | Problem:
    return await Conversations(bus).read(Walk(conversation, bytes_max), key)


async def stored(bus: Bus) -> int:
    return (await bus.extent(TURNS.name)).messages


async def grown(sender: Sender, turns: int) -> ConversationId:
    """The conversation of `talk(turns)`, from two messages on with one reference for each."""
    assert await refer(sender, talk(2)) is None
    for number in range(3, turns):
        await referred(sender, talk(number))
    return await referred(sender, talk(turns))


async def test_what_grows_is_stored_by_its_parts_and_comes_back(bus: Bus) -> None:
    conversation = await grown(Sender(bus), 12)
    assert await read(bus, conversation) == talk(12)
    assert await stored(bus) == 11, "cut where it went whole, and then by each turn"
    assert (await bus.js.stream_info(TURNS.name)).state.bytes < 13 * 3_500


async def test_what_many_conversations_have_in_common_is_stored_once(bus: Bus) -> None:
    sender = Sender(bus)
    assert await refer(sender, talk(20)) is None
    for name in "abcdefgh":
        branch = [*talk(20), *talk(1, name)]
        assert await read(bus, await referred(sender, branch)) == branch
    assert (await bus.js.stream_info(TURNS.name)).state.bytes < 1.1 * 28 * 3_100


async def test_what_is_short_or_new_goes_whole_and_nothing_is_stored(bus: Bus) -> None:
    sender = Sender(bus)
    short = [ChatMessage(role="user", content="hi")]
    assert [await refer(sender, messages) for messages in (short, short, talk(3))] == [None] * 3
    assert await sender.refer(Submission(model="m", prompt="x" * 10_000), b"x" * 10_000) is None
    assert await stored(bus) == 0


async def test_a_conversation_is_only_for_the_key_that_it_was_stored_with(bus: Bus) -> None:
    conversation = await grown(Sender(bus), 4)
    kept = Conversations(bus)
    assert await kept.read(Walk(conversation, 10**6), KEY) == talk(4)
    for reader in (kept, Conversations(bus)):
        found = await reader.read(Walk(conversation, 10**6), "")
        assert isinstance(found, Problem)
        assert found.reason is Reason.HISTORY_UNKNOWN


async def test_a_lost_part_and_a_forged_one_are_unknown_until_it_is_there_again(bus: Bus) -> None:
    sender = Sender(bus)
    conversation = await grown(sender, 5)
    middle = chain(pieces_of(talk(4)), KEY)[-1]
    part = await bus.last(TURNS.name, subjects.turn(middle))
    assert part is not None
    for content in (turn(pieces_of(talk(1, "forged"))), turn(pieces_of(talk(4, "forged"))), b"{}", b""):
        await (await bus.store(subjects.turn(middle), content))
        found = await read(bus, conversation)
        assert isinstance(found, Problem)
        assert found.reason is Reason.HISTORY_UNKNOWN
    await bus.js.purge_stream(TURNS.name, subject=subjects.turn(middle))
    assert isinstance(await read(bus, conversation), Problem)
    await (await bus.store(subjects.turn(middle), part.data))
    assert await read(bus, conversation) == talk(5)


async def test_who_follows_needs_no_request_and_is_not_fooled_by_what_it_hears(bus: Bus) -> None:
    kept = Conversations(bus)
    await kept.follow()
    conversation = await grown(Sender(bus), 6)
    await bus.client.flush()
    assert kept.at_hand(Walk(conversation, 10**6), KEY) == talk(6)
    await bus.publish(subjects.turn(conversation), turn(pieces_of(talk(6, "forged"))))
    await bus.client.flush()
    assert kept.at_hand(Walk(conversation, 10**6), KEY) == talk(6)

    late = Conversations(bus)
    await late.follow()
    await bus.client.publish(subjects.turn(conversation), b"noise")
    await bus.client.flush()
    found = await late.read(Walk(conversation, 10**6), KEY)
    assert isinstance(found, Problem), "the noise took the place of the part in the stream"


async def test_what_is_kept_in_memory_is_bounded_and_a_long_conversation_is_read_all_the_same(bus: Bus) -> None:
    kept = Conversations(bus, kept_bytes_max=8_000)
    await kept.follow()
    conversation = await grown(Sender(bus), 10)
    assert kept.kept_bytes <= 8_000
    assert kept.at_hand(Walk(conversation, 10**6), KEY) is None
    assert await kept.read(Walk(conversation, 10**6), KEY) == talk(10)
    assert kept.kept_bytes <= 8_000


async def test_a_conversation_longer_than_a_request_may_be_is_not_read_to_its_end(bus: Bus) -> None:
    found = await read(bus, await grown(Sender(bus), 8), bytes_max=10_000)
    assert isinstance(found, Problem)
    assert found.reason is Reason.TOO_LARGE


async def test_what_is_lost_is_sent_whole_and_stored_anew(bus: Bus) -> None:
    sender = Sender(bus)
    await grown(sender, 5)
    reference = await refer(sender, talk(6))
    assert reference is not None
    await bus.js.purge_stream(TURNS.name)
    assert reference.lost() == ENCODER.encode(submission(talk(6)))
    assert sender.waiting_bytes == 0
    assert await refer(sender, talk(7)) is None
    assert await read(bus, await referred(sender, talk(8))) == talk(8)


async def test_without_the_stream_everything_goes_whole_after_a_moment(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is where the fleet is older, or NATS does not let us publish there."""
    monkeypatch.setattr(conversations, "STORE_TIMEOUT_S", 0.1)
    await bus.js.delete_stream(TURNS.name)
    sender = Sender(bus)
    async with asyncio.timeout(LIMIT_S):
        assert [await refer(sender, talk(number)) for number in range(2, 60)] == [None] * 58
    assert sender.waiting_bytes == 0


async def test_what_waits_for_its_first_answer_is_bounded(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "WAITING_BYTES_MAX", 25_000)
    sender = Sender(bus)
    await grown(sender, 3)
    first, second, third = [await refer(sender, [*talk(3), *talk(1, name)]) for name in "abc"]
    assert first is not None
    assert second is None or third is None
    first.done()
    first.done()
    if second is not None:
        second.done()
    assert sender.waiting_bytes == 0
    assert await refer(sender, talk(4)) is not None


async def test_what_differs_is_told_whichever_way_the_first_was_sent(bus: Bus) -> None:
    sender = Sender(bus)
    await grown(sender, 3)
    reference = await refer(sender, talk(4))
    assert reference is not None
    first = msgspec.json.decode(reference.data, type=Submission)
    other = submission([*talk(3), *talk(2, "other")])
    assert await changed_parts(bus, first, submission(talk(4))) == []
    assert await changed_parts(bus, first, other) == ["messages[3]", "messages[4]"]
    await bus.js.purge_stream(TURNS.name)
    assert await changed_parts(bus, first, submission(talk(4))) == []
    assert await changed_parts(bus, first, other) == ["messages"]
    assert await changed_parts(bus, first, Submission(model="m", prompt="hi", key=KEY)) == ["prompt", "messages"]


# --- the client --------------------------------------------------------------------------------------------------------------

UNKNOWN = End(status=legato.Status.REFUSED, problem=Problem(reason=Reason.HISTORY_UNKNOWN, message="gone"))


async def say(bus: Bus, step: str, *outputs: Output) -> None:
    for output in outputs:
        await (await bus.store(subjects.outbox(StepId(step)), ENCODER.encode(output)))


async def sent(bus: Bus, step: str) -> Submission:
    record = await bus.last(STEPS.name, subjects.submit(StepId(step)))
    assert record is not None
    return msgspec.json.decode(record.data, type=Submission)


@pytest.fixture
async def client(bus: Bus) -> AsyncIterator[legato.Client]:
    async with legato.Client(bus.config.url) as client:
        first = await client.submit(model="m", messages=talk(2))
        await first.close()
        yield client


async def test_a_step_whose_conversation_is_lost_goes_on_as_another_step(bus: Bus, client: legato.Client) -> None:
    step = await client.submit(model="m", messages=talk(3))
    lost = step.id
    assert (await sent(bus, lost)).history
    await say(bus, lost, Output(end=UNKNOWN))
    async with asyncio.timeout(LIMIT_S):
        reading = asyncio.create_task(step.result(LIMIT_S))
        while True:
            if step.id != lost and await bus.last(STEPS.name, subjects.submit(step.id)) is not None:
                break
            await asyncio.sleep(0.02)
        assert (await sent(bus, step.id)).messages == talk(3)
        await say(
            bus, step.id, Output(attempt=1, tokens=[1], text="hello"), Output(attempt=1, offset=1, end=End(status=legato.Status.SUCCEEDED))
        )
        result = await reading
    assert (result.id, result.text) == (step.id, "hello")


async def test_it_is_sent_again_only_once(bus: Bus, client: legato.Client) -> None:
    step = await client.submit(model="m", messages=talk(3))
    lost = step.id
    await say(bus, lost, Output(end=UNKNOWN))
    async with asyncio.timeout(LIMIT_S):
        reading = asyncio.create_task(step.result(LIMIT_S))
        while True:
            if step.id != lost:
                break
            await asyncio.sleep(0.02)
        await say(bus, step.id, Output(end=UNKNOWN))
        with pytest.raises(legato.Refused, match="gone"):
            await reading


async def test_a_step_with_an_id_of_the_users_own_goes_whole(bus: Bus, client: legato.Client) -> None:
    step = await client.submit(model="m", messages=talk(3), step_id="mine")
    assert (await sent(bus, "mine")).messages == talk(3)
    await step.close()
