"""Reading a stream in order from a position that the reader keeps itself.

A cursor is a throw-away pull consumer without acknowledgements: the position is stored with the effects of what was read
(docs/decisions/0004-positions-live-with-their-effects.md). It asks for a bounded number of messages ahead, which is the back-pressure.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import nats.errors
from nats.js import api
from nats.js.errors import NotFoundError
from nats.js.manager import JetStreamManager

from shared.core.errors import LegatoError
from shared.runtime.clock import unix_ns
from shared.runtime.nats_client import NatsClient, read_headers
from shared.runtime.tasks import end

log = logging.getLogger(__name__)

AHEAD = 512  # messages asked for and not yet taken, at most
AHEAD_BYTES = 32 * 2**20  # of one request, and of what waits to be taken when another is made: a reader holds a few times as much at most
EXPIRES_S = 30.0
IDLE_HEARTBEAT_S = 2.0
INACTIVE_S = 60.0  # the server forgets an abandoned cursor after this


class Record(NamedTuple):
    """One message of a stream."""

    stream: str
    seq: int
    subject: str
    data: bytes
    raw_headers: bytes

    @property
    def stored_ns(self) -> int:
        """When it was stored, Unix time; known of what was read by a direct request, and not by a cursor."""
        return unix_ns(self.headers["Nats-Time-Stamp"])

    @property
    def headers(self) -> dict[str, str]:
        """By name; read anew each time, for few look at them."""
        return read_headers(self.raw_headers) if self.raw_headers else {}


@dataclass(frozen=True, kw_only=True)
class Source:
    """What to read of a stream. `latest`: start with the last message of each subject, whatever the position (facts that are repeated)."""

    stream: str
    subjects: tuple[str, ...]
    latest: bool = False


class CursorError(LegatoError):
    """The stream cannot be read."""


def position_of(reply: str) -> tuple[str, int, int]:
    """Stream, stream sequence and number of the delivery from a message's reply subject, in both forms of nats-server (its ADR-15)."""
    tokens = reply.split(".")
    if len(tokens) >= 11:
        return tokens[4], int(tokens[7]), int(tokens[8])
    return tokens[2], int(tokens[5]), int(tokens[6])


class Cursor:
    """Use as: `cursor = await Cursor.open(...)`, then `await cursor.take(max)` for ever, and `await cursor.close()`."""

    def __init__(self, client: NatsClient, manager: JetStreamManager, source: Source, after: int, arrived: asyncio.Event) -> None:
        self._client = client
        self._manager = manager
        self._source = source
        self.after = after
        self._ready: deque[Record] = deque()
        self._ready_bytes = 0
        self._arrived = arrived
        self._asked = 0
        self._name = ""
        self._inbox = ""
        self._generation = 0
        self._deliveries = 0  # of this generation
        self._connection = 0  # the number of reconnections when this generation began
        self._last_heard = 0.0
        self._failure: Exception | None = None
        self._subscription: object | None = None
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, client: NatsClient, source: Source, after: int = 0, arrived: asyncio.Event | None = None) -> "Cursor":
        """`after`: the stream sequence already handled. `arrived` is set when there is something to take. Raises CursorError."""
        cursor = cls(client, client.jsm(), source, after, arrived or asyncio.Event())
        await cursor._create()
        cursor._watch = asyncio.create_task(cursor._watchdog(), name=f"cursor-{source.stream}")
        return cursor

    async def take(self, most: int) -> list[Record]:
        """The next messages, at least one; waits until there is one. Raises CursorError when there will never be one again."""
        while not (batch := await self.take_now(most)):
            self._arrived.clear()
            await self._arrived.wait()
        return batch

    async def take_now(self, most: int) -> list[Record]:
        """What is there of the next messages, perhaps nothing. Raises CursorError as `take` does."""
        if not self._ready and self._failure is not None:
            raise CursorError(f"reading {self._source.stream} failed: {self._failure!r}") from self._failure
        if not self._ready or most < 1:
            return []
        batch = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        self._ready_bytes -= sum(len(record.data) for record in batch)
        self.after = max(self.after, batch[-1].seq)
        if self._asked + len(self._ready) <= AHEAD // 2:
            await self._ask()
        return batch

    async def close(self) -> None:
        if self._watch is not None:
            await end([self._watch])
        await self._drop()

    async def _create(self) -> None:
        self._forget()
        self._connection = self._client.stats["reconnects"]
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
        self._name, self._inbox, generation = info.name, self._client.new_inbox(), self._generation

        def deliver(subject: str, reply: str, data: bytes, headers: bytes) -> None:
            if generation != self._generation:
                return
            self._heard()
            if subject != self._inbox:  # whatever headers a message has: the server's own words come on the inbox
                self._take_in(position_of(reply), subject, data, headers)
            else:
                self._obey(read_headers(headers))

        self._subscription = await self._client.listen(self._inbox, deliver)
        self._heard()
        self._asked = 0
        await self._ask()

    def _forget(self) -> None:
        """What has not been taken is read again, behind what has; what still arrives from before counts no more."""
        self._generation += 1
        self._deliveries = self._ready_bytes = 0
        self._ready.clear()

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
        number = AHEAD - self._asked - len(self._ready)
        if number <= 0 or self._ready_bytes >= AHEAD_BYTES:
            return
        self._asked += number
        times = {"expires": int(EXPIRES_S * 1e9), "idle_heartbeat": int(IDLE_HEARTBEAT_S * 1e9)}
        request = msgspec.json.encode({"batch": number, "max_bytes": AHEAD_BYTES, **times})
        await self._client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self._source.stream}.{self._name}", request, self._inbox)

    def _obey(self, headers: dict[str, str]) -> None:
        status = headers.get("Status", "")
        if status in ("408", "404") or "Nats-Pending-Messages" in headers:  # the request ran out: the unserved part is open again
            self._asked -= int(headers.get("Nats-Pending-Messages", self._asked))
            self._asked = max(0, self._asked)
        elif status != "100":  # 409: consumer deleted, leader changed, server shutting down
            log.info("cursor ended by the server", extra={"stream": self._source.stream, "status": status})
            self._last_heard = 0.0

    def _take_in(self, place: tuple[str, int, int], subject: str, data: bytes, headers: bytes) -> None:
        stream, seq, delivery = place
        self._deliveries += 1
        if delivery != self._deliveries:  # some were lost on the way: a broken connection, or a client that dropped them
            log.info("cursor has a gap, reading again", extra={"stream": self._source.stream, "after": self.after})
            self._generation += 1
            self._last_heard = 0.0
            return
        self._asked -= 1
        self._ready.append(Record(stream, seq, subject, data, headers))
        self._ready_bytes += len(data)
        self._arrived.set()

    def _heard(self) -> None:
        self._last_heard = asyncio.get_running_loop().time()

    async def _watchdog(self) -> None:
        """Keep the cursor alive. What it cannot see to is raised by `take`."""
        try:
            while True:
                await asyncio.sleep(0.1)
                try:
                    await self._look_after()
                except (nats.errors.Error, LegatoError, OSError, TimeoutError) as error:
                    log.warning("cursor not yet restored", extra={"stream": self._source.stream, "error": repr(error)})
                    await asyncio.sleep(0.5)
        except Exception as error:
            self._failure = error
            self._arrived.set()

    async def _look_after(self) -> None:
        """Ask again when a request ran out; build the cursor anew on a new connection, or after three heartbeats of silence."""
        if not self._client.is_connected or self._client.stats["reconnects"] != self._connection:
            self._last_heard = 0.0
        if not self._client.is_connected:
            return
        if self._asked == 0 and self._last_heard:  # nothing is asked for, so nothing is to be heard
            self._heard()
            await self._ask()
        elif asyncio.get_running_loop().time() - self._last_heard > 3 * IDLE_HEARTBEAT_S:
            await self._drop()
            await self._create()

    async def _drop(self) -> None:
        subscription, self._subscription = self._subscription, None
        try:
            if subscription is not None and not self._client.is_closed:
                await subscription.unsubscribe()  # type: ignore[attr-defined]
                async with asyncio.timeout(1.0):
                    await self._manager.delete_consumer(self._source.stream, self._name)
        except (nats.errors.Error, TimeoutError) as error:
            log.debug("abandoned cursor left to the server", extra={"stream": self._source.stream, "error": str(error)})
