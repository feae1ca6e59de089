"""Cache events over real sockets, from a publisher that speaks SGLang's protocol and loses batches on purpose."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from services.worker.engines.sglang_config import events_endpoint, replay_endpoint
from services.worker.engines.sglang_kv import HeldBlocks, KvFeed, read_batch
from shared.contracts.kv import AllCleared, BlocksRemoved, BlocksStored, KvEvent

TIMEOUT_S = 30.0


def stored(*hashes: int, medium: str | None = "GPU") -> dict[str, object]:
    return {"type": "BlockStored", "block_hashes": list(hashes), "token_ids": [1], "block_size": 1, "lora_id": None, "medium": medium}


def removed(*hashes: int, medium: str | None = "GPU") -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": medium}


def payload(*events: dict[str, object]) -> bytes:
    return msgspec.msgpack.encode([0.0, list(events), 0])


class Publisher:
    """Sends numbered batches and replays those that it still has."""

    def __init__(self, folder: Path) -> None:
        self.context = zmq.asyncio.Context()
        self.events = self.context.socket(zmq.XPUB)
        self.events.bind(events_endpoint(folder))
        self.replay = self.context.socket(zmq.ROUTER)
        self.replay.bind(replay_endpoint(folder))
        self.kept: dict[int, bytes] = {}

    async def send(self, sequence: int) -> None:
        await self.events.send_multipart([b"kv", sequence.to_bytes(8, "big"), payload(stored(sequence))])

    async def serve_replays(self) -> None:
        while True:
            client, _, start = await self.replay.recv_multipart()
            for sequence, data in self.kept.items():
                if sequence >= int.from_bytes(start, "big"):
                    await self.replay.send_multipart([client, b"", b"kv", sequence.to_bytes(8, "big"), data])
            await self.replay.send_multipart([client, b"", b"", (-1).to_bytes(8, "big", signed=True), b""])


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="legato-kv-") as path:  # short: it becomes part of a socket's address
        yield Path(path)


@pytest.fixture
async def feed(folder: Path) -> AsyncIterator[KvFeed]:
    feed = KvFeed(folder)
    yield feed
    feed.close()


@pytest.fixture
async def publisher(feed: KvFeed, folder: Path) -> AsyncIterator[Publisher]:
    publisher = Publisher(folder)
    serving = asyncio.ensure_future(publisher.serve_replays())
    async with asyncio.timeout(TIMEOUT_S):
        await publisher.events.recv()  # the subscription
    yield publisher
    serving.cancel()
    await asyncio.wait([serving])
    publisher.context.destroy(linger=0)


async def take(feed: KvFeed, count: int) -> list[list[KvEvent]]:
    found: list[list[KvEvent]] = []
    async with asyncio.timeout(TIMEOUT_S), aclosing(feed.batches()) as batches:
        async for batch in batches:
            found.append(batch)
            if len(found) == count:
                break
    return found


def block(sequence: int) -> list[KvEvent]:
    return [BlocksStored(hashes=[sequence])]


async def test_batches_come_in_order(feed: KvFeed, publisher: Publisher) -> None:
    for sequence in range(3):
        await publisher.send(sequence)
    assert await take(feed, 3) == [block(0), block(1), block(2)]


async def test_lost_batches_are_fetched_again_and_none_comes_twice(feed: KvFeed, publisher: Publisher) -> None:
    publisher.kept = {sequence: payload(stored(sequence)) for sequence in range(6)}
    for sequence in (0, 3, 5):
        await publisher.send(sequence)
    assert await take(feed, 6) == [block(sequence) for sequence in range(6)]


async def test_what_is_lost_for_good_counts_as_an_emptied_cache(feed: KvFeed, publisher: Publisher) -> None:
    publisher.kept = {3: payload(stored(3))}
    for sequence in (0, 4):
        await publisher.send(sequence)
    assert await take(feed, 4) == [block(0), [AllCleared()], block(3), block(4)]


async def test_without_any_replay_the_cache_counts_as_emptied(feed: KvFeed, publisher: Publisher) -> None:
    await publisher.send(2)
    assert await take(feed, 2) == [[AllCleared()], block(2)]


async def test_a_reader_that_comes_back_goes_on_where_it_was(feed: KvFeed, publisher: Publisher) -> None:
    await publisher.send(0)
    assert await take(feed, 1) == [block(0)]
    await publisher.send(1)
    assert await take(feed, 1) == [block(1)]


async def test_closing_the_feed_ends_its_reader(feed: KvFeed, publisher: Publisher) -> None:
    reader = asyncio.ensure_future(take(feed, 1))
    await asyncio.sleep(0)
    feed.close()
    assert await reader == []


def test_neighbours_of_a_kind_are_joined_and_other_tiers_left_out() -> None:
    data = payload(
        stored(1),
        stored(2, 3),
        stored(9, medium="CPU_PINNED"),
        removed(1),
        removed(9, medium="DISK"),
        {"type": "AllBlocksCleared"},
        stored(4),
    )
    assert read_batch(data) == [BlocksStored(hashes=[1, 2, 3]), BlocksRemoved(hashes=[1]), AllCleared(), BlocksStored(hashes=[4])]


def test_held_blocks_follow_the_events() -> None:
    held = HeldBlocks()
    held.apply([BlocksStored(hashes=[1, 2, 3]), BlocksRemoved(hashes=[2, 7])])
    assert held.hashes() == [1, 3]
    held.apply([AllCleared(), BlocksStored(hashes=[5])])
    assert held.hashes() == [5]
