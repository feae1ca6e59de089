"""Reading a stream in order from a position that the reader keeps itself.

A cursor is a throw-away pull consumer without acknowledgements: the position is stored with the effects of what was read
(docs/decisions/0004-positions-live-with-their-effects.md). It asks for a bounded number of messages ahead, which is the back-pressure.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api
from nats.js.errors import NotFoundError
from nats.js.manager import JetStreamManager

from shared.core.errors import LegatoError

log = logging.getLogger(__name__)

AHEAD = 512  # messages asked for and not yet taken, at most
EXPIRES_S = 30.0
IDLE_HEARTBEAT_S = 2.0
INACTIVE_S = 60.0  # the server forgets an abandoned cursor after this


@dataclass(slots=True, frozen=True)
class Record:
    """One message of a stream."""

    stream: str
    seq: int
    subject: str
    data: bytes
    headers: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Source:
    """What to read of a stream. `latest`: start with the last message of each subject, whatever the position (facts that are repeated)."""

    stream: str
    subjects: tuple[str, ...]
    latest: bool = False


class CursorError(LegatoError):
    """The stream cannot be read."""


def position_of(reply: str) -> tuple[str, int]:
    """Stream and stream sequence from a message's reply subject, in both forms of nats-server (its ADR-15)."""
    tokens = reply.split(".")
    if len(tokens) >= 11:
        return tokens[4], int(tokens[7])
    return tokens[2], int(tokens[5])


class Cursor:
    """Use as: `cursor = await Cursor.open(...)`, then `await cursor.take(max)` for ever, and `await cursor.close()`."""

    def __init__(self, client: Client, manager: JetStreamManager, source: Source, after: int) -> None:
        self._client = client
        self._manager = manager
        self._source = source
        self.after = after
        self._ready: deque[Record] = deque()
        self._arrived = asyncio.Event()
        self._asked = 0
        self._name = ""
        self._generation = 0
        self._last_heard = 0.0
        self._subscription: object | None = None
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, client: Client, source: Source, after: int = 0) -> "Cursor":
        """`after`: the stream sequence already handled. Raises CursorError."""
        cursor = cls(client, client.jsm(), source, after)
        await cursor._create()
        cursor._watch = asyncio.create_task(cursor._watchdog(), name=f"cursor-{source.stream}")
        return cursor

    async def take(self, most: int) -> list[Record]:
        """The next messages, at least one; waits until there is one."""
        while not self._ready:
            self._arrived.clear()
            await self._arrived.wait()
        batch = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        self.after = max(self.after, batch[-1].seq)
        if self._asked < AHEAD // 2:
            await self._ask()
        return batch

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._drop()

    async def _create(self) -> None:
        start = await self._start_sequence()
        config = api.ConsumerConfig(
            ack_policy=api.AckPolicy.NONE,
            deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT if self._source.latest else api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=None if self._source.latest else start,
            filter_subjects=list(self._source.subjects),
            inactive_threshold=INACTIVE_S,
            mem_storage=True,
            num_replicas=1,
        )
        try:
            info = await self._manager.add_consumer(self._source.stream, config)
        except NotFoundError as error:
            raise CursorError(f"stream {self._source.stream} does not exist; `legato migrate` creates it") from error
        self._name = info.name
        self._generation += 1
        self._asked = 0
        self._ready.clear()
        inbox = self._client.new_inbox()
        generation = self._generation

        async def deliver(msg: Msg) -> None:
            self._deliver(msg, generation)

        self._inbox = inbox
        self._subscription = await self._client.subscribe(inbox, cb=deliver, pending_msgs_limit=4 * AHEAD, pending_bytes_limit=256 * 2**20)
        self._heard()
        await self._ask()

    async def _start_sequence(self) -> int:
        try:
            state = (await self._manager.stream_info(self._source.stream)).state
        except NotFoundError as error:
            raise CursorError(f"stream {self._source.stream} does not exist; `legato migrate` creates it") from error
        if self.after > state.last_seq:
            log.warning("stream is younger than the recorded position, reading it from its start", extra={"stream": self._source.stream})
            self.after = 0
        elif self.after and state.first_seq > self.after + 1:
            log.warning(
                "the stream's limits removed messages that were not read",
                extra={"stream": self._source.stream, "missing": state.first_seq - self.after - 1},
            )
        return max(1, self.after + 1)

    async def _ask(self) -> None:
        number = AHEAD - self._asked
        self._asked += number
        request = msgspec.json.encode({"batch": number, "expires": int(EXPIRES_S * 1e9), "idle_heartbeat": int(IDLE_HEARTBEAT_S * 1e9)})
        await self._client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self._source.stream}.{self._name}", request, self._inbox)

    def _deliver(self, msg: Msg, generation: int) -> None:
        if generation != self._generation:
            return
        self._heard()
        headers: dict[str, str] = msg.headers or {}
        status = headers.get("Status")
        if status is None:
            stream, seq = position_of(msg.reply)
            self._asked -= 1
            self._ready.append(Record(stream, seq, msg.subject, msg.data, headers))
            self._arrived.set()
        elif status in ("408", "404"):  # the request ran out: the unserved part is open again
            self._asked -= int(headers.get("Nats-Pending-Messages", self._asked))
            self._asked = max(0, self._asked)
        elif status != "100":  # 409: consumer deleted, leader changed, server shutting down
            log.info("cursor ended by the server", extra={"stream": self._source.stream, "status": status})
            self._last_heard = 0.0

    def _heard(self) -> None:
        self._last_heard = asyncio.get_running_loop().time()

    async def _watchdog(self) -> None:
        """Ask again when a request ran out; build the cursor anew when the server has been silent for three heartbeats."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.1)
            try:
                if not self._client.is_connected:
                    self._last_heard = 0.0
                elif self._asked == 0 and self._last_heard:  # nothing is asked for, so nothing is to be heard
                    self._heard()
                    if len(self._ready) < AHEAD:
                        await self._ask()
                elif loop.time() - self._last_heard > 3 * IDLE_HEARTBEAT_S:
                    await self._drop()
                    await self._create()
            except (nats.errors.Error, LegatoError, TimeoutError) as error:
                log.warning("cursor not yet restored", extra={"stream": self._source.stream, "error": str(error)})
                await asyncio.sleep(0.5)

    async def _drop(self) -> None:
        subscription, self._subscription = self._subscription, None
        try:
            if subscription is not None and not self._client.is_closed:
                await subscription.unsubscribe()  # type: ignore[attr-defined]
                await asyncio.wait_for(self._manager.delete_consumer(self._source.stream, self._name), 1.0)
        except (nats.errors.Error, TimeoutError) as error:
            log.debug("abandoned cursor left to the server", extra={"stream": self._source.stream, "error": str(error)})
