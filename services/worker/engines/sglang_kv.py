"""SGLang's KV cache events: received in order over ZeroMQ, holes filled from its replay buffer.

On the wire (SGLang 0.5.23): frames `[topic, sequence number as u64 big-endian, msgpack]`; the payload is `[time, events, rank]`. A replay
is asked for with `[b"", first sequence number]` and answered with `[b"", topic, sequence number, payload]` each, -1 at the end.
"""

from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from services.worker.engines.sglang_config import events_endpoint, replay_endpoint
from shared.contracts.kv import AllCleared, BlocksRemoved, BlocksStored, KvEvent

POLL_MS = 500  # how often a silent feed looks whether it was closed
REPLAY_TIMEOUT_MS = 5_000  # SGLang looks for replay requests every 0.1 s
BATCHES_QUEUED_MAX = 100_000  # ZeroMQ's high-water mark here; SGLang's own is the same, and its replay buffer holds 10,000
ON_DEVICE = ("GPU", None)  # a block that was moved to a lower tier is told as removed from this one


class _Stored(msgspec.Struct, frozen=True, tag_field="type", tag="BlockStored"):
    block_hashes: list[int]
    medium: str | None = None


class _Removed(msgspec.Struct, frozen=True, tag_field="type", tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None = None


class _Cleared(msgspec.Struct, frozen=True, tag_field="type", tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    time: float
    events: list[_Stored | _Removed | _Cleared]


_decoder = msgspec.msgpack.Decoder(_Batch)


def read_batch(payload: bytes) -> list[KvEvent]:
    """One payload as our events; SGLang sends one per block, neighbours of a kind are joined."""
    events: list[KvEvent] = []
    for event in _decoder.decode(payload).events:
        match event:
            case _Cleared():
                events.append(AllCleared())
            case _Stored(hashes, medium) | _Removed(hashes, medium) if medium in ON_DEVICE:
                kind = BlocksStored if isinstance(event, _Stored) else BlocksRemoved
                if events and isinstance(events[-1], kind):
                    events[-1] = kind(hashes=events[-1].hashes + hashes)
                else:
                    events.append(kind(hashes=hashes))
            case _:
                pass
    return events


class HeldBlocks:
    """The hashes that are in the cache, as the events tell."""

    def __init__(self) -> None:
        self._hashes: dict[int, None] = {}  # in the order in which they came

    def apply(self, events: Iterable[KvEvent]) -> None:
        """Fold changes in."""
        for event in events:
            match event:
                case BlocksStored(hashes=hashes):
                    self._hashes.update(dict.fromkeys(hashes))
                case BlocksRemoved(hashes=hashes):
                    for block in hashes:
                        self._hashes.pop(block, None)
                case AllCleared():
                    self._hashes.clear()

    def hashes(self) -> list[int]:
        """All of them."""
        return list(self._hashes)


class KvFeed:
    """The events of one run of SGLang, from its first to its last."""

    def __init__(self, sockets: Path) -> None:
        self._context = zmq.asyncio.Context()
        self._replay_endpoint = replay_endpoint(sockets)
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, BATCHES_QUEUED_MAX)
        self._socket.subscribe(b"")
        self._socket.connect(events_endpoint(sockets))  # before SGLang binds it, so that nothing is missed
        self._next = 0
        self._reading = False
        self._closed = False

    async def batches(self) -> AsyncGenerator[list[KvEvent]]:
        """Changes in order, until `close`. What cannot be recovered is told as an emptied cache: what follows is true again, only less."""
        self._reading = True
        try:
            while not self._closed:
                if await self._socket.poll(POLL_MS):
                    _, number, payload = await self._socket.recv_multipart()
                    for batch in await self._in_order(int.from_bytes(number, "big"), payload):
                        yield batch
        finally:
            self._reading = False
            self._free()

    async def _in_order(self, sequence: int, payload: bytes) -> list[list[KvEvent]]:
        """What was missed before this batch, and the batch; nothing when a replay has brought it already."""
        batches = await self._replay(sequence) if sequence > self._next else []
        if sequence >= self._next:
            self._next = sequence + 1
            batches.append(read_batch(payload))
        return batches

    async def _replay(self, before: int) -> list[list[KvEvent]]:
        """The batches from the next expected one up to `before`: at most as many as SGLang's replay buffer holds."""
        batches: list[list[KvEvent]] = []
        with self._context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(self._replay_endpoint)
            await socket.send_multipart([b"", self._next.to_bytes(8, "big")])
            while await socket.poll(REPLAY_TIMEOUT_MS):
                _, _, number, payload = await socket.recv_multipart()
                sequence = int.from_bytes(number, "big", signed=True)
                if sequence < 0 or sequence >= before:
                    break
                if sequence != self._next:
                    batches.append([AllCleared()])
                batches.append(read_batch(payload))
                self._next = sequence + 1
        return batches if self._next == before else [*batches, [AllCleared()]]

    def close(self) -> None:
        """End `batches`, within POLL_MS, and free the sockets."""
        self._closed = True
        self._free()

    def _free(self) -> None:
        if self._closed and not self._reading:  # a socket must not be closed under its reader
            self._context.destroy(linger=0)
