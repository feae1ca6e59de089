"""What one machine takes in: stored messages by cursors, live ones by subscriptions, all in the order of their arrival here.

Nothing stands between the connection and a decision but what is needed: messages wait where they arrived (a cursor holds what it asked
for), and are decoded when they are taken. Those that take time to prepare are prepared side by side, and still taken in order.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import nats.errors
from nats.aio.subscription import Subscription

from shared.contracts import subjects
from shared.contracts.envelope import Message, Tick
from shared.contracts.journal import DeadLetter
from shared.core.errors import LegatoError
from shared.core.machine import ENCODER, stamp
from shared.core.reading import NoMessage, read
from shared.drivers.sending import send
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns
from shared.runtime.cursor import Cursor, Record, Source
from shared.runtime.publisher import Ack
from shared.runtime.telemetry import Telemetry

log = logging.getLogger(__name__)

BATCH_MAX = 32  # of each source, between two looks at the others
PREPARING_MAX = 64  # of each source at once
LIVE_MAX = 65_536  # unstored messages that wait; what comes beyond is dropped, as NATS itself may drop them
LIVE_BYTES_MAX = 256 * 2**20
LIVE_LETTERS_PER_S = 500  # of unreadable live messages; of more, only their number is kept
WAIT_MIN_S = 0.0005  # a machine whose wake time stays in the past cannot spin
DEAD_DATA_MAX = 64 * 1024
ERROR_CHARS_MAX = 1024

_TICK = Tick()
_TICK_RAW = ENCODER.encode(_TICK)


class Unreadable(LegatoError):
    """An input that no service could handle; it is parked in the dead-letter stream. `outputs` are told to its sender all the same."""

    def __init__(self, message: str, outputs: list[Message] | None = None) -> None:
        super().__init__(message)
        self.outputs = outputs or []


Prepare = Callable[[Record], Message | Awaitable[Message]]
Attach = Callable[[Message], list[Message]]
Handed = Callable[[Message], tuple[str, str, str] | None]


@dataclass(kw_only=True)
class Wiring:
    """How a machine hangs on the bus. `prepare` turns a stored message into the machine's input (its result is what the journal keeps);
    where that takes I/O or heavy work it returns an awaitable, and may run ahead for several messages. It raises Unreadable. `attach` gives
    messages to publish just before a decided one (a prompt before its admission). `handed` names a stored message that the server itself
    shall send to somebody just before a decided one: its stream, its subject, and where to."""

    sources: list[Source]
    live: list[str] = field(default_factory=list)  # subjects of unstored messages
    prepare: Prepare | None = None
    attach: Attach | None = None
    handed: Handed | None = None


@dataclass(slots=True)
class Arrived:
    """One input. `source`: "STREAM:sequence", empty for what has no position. `raw`: what the journal keeps."""

    source: str
    event: Message
    raw: bytes


@dataclass(slots=True)
class _Feed:
    cursor: Cursor
    prepare: Prepare | None
    latest: bool
    preparing: deque[tuple[Record, asyncio.Future[Message]]]


class Inputs:
    """Use as: `await inputs.open(positions)`, then `await inputs.take(wake_ns)` for ever, and `await inputs.close()`."""

    def __init__(self, service: str, accepted: Any, bus: Bus, wiring: Wiring, telemetry: Telemetry) -> None:
        """`accepted`: the union of the message types that the machine takes."""
        self._service = service
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(accepted)
        self._bus = bus
        self._wiring = wiring
        self._telemetry = telemetry
        self._arrived = asyncio.Event()
        self._live: deque[tuple[str, bytes]] = deque()
        self._live_bytes = 0
        self._dropping = False
        self._letters, self._letters_since = 0, 0.0
        self._feeds: list[_Feed] = []
        self._subscriptions: list[Subscription] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ns = 0

    async def open(self, positions: dict[str, int]) -> None:
        """Read on behind the position of each stream. Raises BusError, CursorError."""
        wiring = self._wiring
        for subject in wiring.live:
            self._subscriptions.append(await self._bus.listen(subject, self._on_live))
        for source in wiring.sources:
            after = 0 if source.latest else positions.get(source.stream, 0)
            cursor = await self._bus.read(source, after, self._arrived)
            self._feeds.append(_Feed(cursor, None if source.latest else wiring.prepare, source.latest, deque()))

    async def close(self) -> None:
        """Harmless when done twice."""
        subscriptions, self._subscriptions = self._subscriptions, []
        feeds, self._feeds = self._feeds, []
        if self._alarm is not None:
            self._alarm.cancel()
        for subscription in subscriptions:
            try:
                await subscription.unsubscribe()
            except nats.errors.Error as error:  # the connection is closed already
                log.debug("subscription left to the server", extra={"error": repr(error)})
        for feed in feeds:
            for _, preparing in feed.preparing:
                preparing.cancel()
            await feed.cursor.close()

    async def take(self, wake_ns: int | None) -> list[Arrived]:
        """What has arrived since the last time, oldest first per source; empty when `wake_ns` has come before anything else (or, now and
        then, earlier). Raises CursorError, and what `prepare` raises but Unreadable."""
        await asyncio.sleep(0)  # what was decided goes out, and what has come in is read
        self._arrived.clear()
        batch = await self._collect()
        if not batch:
            self._set_alarm(wake_ns)
            await self._arrived.wait()
            batch = await self._collect()
        return batch

    def _set_alarm(self, wake_ns: int | None) -> None:
        """One timer, set anew only for an earlier time: one that rings too early costs less than one for every wait."""
        if wake_ns is None or (self._alarm is not None and self._alarm_ns <= wake_ns):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        wait_s = max(WAIT_MIN_S, (wake_ns - now_ns()) / 1e9)
        self._alarm, self._alarm_ns = asyncio.get_running_loop().call_later(wait_s, self._ring), wake_ns

    def _ring(self) -> None:
        self._alarm = None
        self._arrived.set()

    async def _collect(self) -> list[Arrived]:
        batch: list[Arrived] = []
        for _ in range(min(BATCH_MAX, len(self._live))):
            subject, data = self._live.popleft()
            self._live_bytes -= len(data)
            try:
                batch.append(Arrived("", read(self._decoder, data), data))
            except NoMessage as error:
                await self._park_live(subject, data, str(error))
        if self._live:
            self._arrived.set()
        for feed in self._feeds:
            await self._collect_from(feed, batch)
        return batch

    def _on_live(self, subject: str, _: str, data: bytes, __: bytes) -> None:
        if len(self._live) >= LIVE_MAX or self._live_bytes + len(data) > LIVE_BYTES_MAX:
            self._telemetry.count("live_dropped")
            if not self._dropping:
                log.warning("messages dropped, they come faster than they are handled", extra={"subject": subject})
            self._dropping = True
            return
        self._dropping = False
        self._live.append((subject, data))
        self._live_bytes += len(data)
        self._arrived.set()

    async def _park_live(self, subject: str, data: bytes, error: str) -> None:
        """Nobody waits until it is stored, and of many at once only some are: they are not lost inputs, but noise that anybody can make."""
        self._telemetry.count("live_unreadable")
        now_s = asyncio.get_running_loop().time()
        if now_s - self._letters_since >= 1.0:
            self._letters_since, self._letters = now_s, 0
        self._letters += 1
        if self._letters <= LIVE_LETTERS_PER_S:
            await self._letter(subject, "", data, error)

    # --- stored messages -----------------------------------------------------------------------------------------------------

    async def _collect_from(self, feed: _Feed, batch: list[Arrived]) -> None:
        while feed.preparing and feed.preparing[0][1].done():
            record, future = feed.preparing.popleft()
            batch.append(await self._outcome(record, future))
        for record in await feed.cursor.take_now(min(BATCH_MAX, PREPARING_MAX - len(feed.preparing))):
            prepared = self._begin(feed, record)
            if isinstance(prepared, Arrived):
                batch.append(prepared)
            elif feed.preparing or not prepared.done():
                prepared.add_done_callback(lambda _: self._arrived.set())
                feed.preparing.append((record, prepared))
            else:
                batch.append(await self._outcome(record, prepared))

    def _begin(self, feed: _Feed, record: Record) -> "Arrived | asyncio.Future[Message]":
        """The input itself, where it is at hand and none before it is still in preparation; else what will give it, or raise."""
        try:
            if feed.prepare is None:
                return Arrived("" if feed.latest else _place(record), self._read(record), record.data)
            prepared = feed.prepare(record)
            if isinstance(prepared, Message) and not feed.preparing:
                return Arrived(_place(record), prepared, ENCODER.encode(prepared))
        except Exception as error:
            return _failed(error)
        return _done(prepared) if isinstance(prepared, Message) else asyncio.ensure_future(prepared)

    def _read(self, record: Record) -> Message:
        try:
            message: Message = read(self._decoder, record.data)
        except NoMessage as error:
            raise Unreadable(str(error)) from error
        return message

    async def _outcome(self, record: Record, prepared: "asyncio.Future[Message]") -> Arrived:
        try:
            event = prepared.result()
        except Unreadable as error:
            return await self._unreadable(record, error)
        except (LegatoError, nats.errors.Error, OSError, TimeoutError):
            raise
        except Exception as error:
            log.exception("an input could not be prepared")
            return await self._unreadable(record, Unreadable(f"{type(error).__name__}: {error}"))
        return Arrived(_place(record), event, ENCODER.encode(event))

    async def _unreadable(self, record: Record, error: Unreadable) -> Arrived:
        """It counts as handled: a tick takes its place in the order."""
        await self.park(record.subject, _place(record), record.data, str(error))
        for index, message in enumerate(error.outputs):
            encoded = stamp([message], message, f"{self._service}.unreadable.{record.seq}.{index}", now_ns())
            for future in await send(self._bus, message, encoded[0]):
                await future
        return Arrived(_place(record), _TICK, _TICK_RAW)

    async def park(self, subject: str, source: str, data: bytes, error: str) -> None:
        """Put an input aside, with the reason, where a person finds it. Raises StoreError."""
        await (await self._letter(subject, source, data, error))

    async def _letter(self, subject: str, source: str, data: bytes, error: str) -> asyncio.Future[Ack]:
        log.warning("input parked", extra={"subject": subject, "error": error})
        self._telemetry.count("dead_letters")
        text, error = data[:DEAD_DATA_MAX].decode("utf-8", "replace"), error[:ERROR_CHARS_MAX]
        letter = DeadLetter(service=self._service, subject=subject, source=source, error=error, data=text, time_ns=now_ns())
        return await self._bus.store(subjects.dead(self._service), ENCODER.encode(letter))


def _place(record: Record) -> str:
    return f"{record.stream}:{record.seq}"


def _done(message: Message) -> "asyncio.Future[Message]":
    future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    future.set_result(message)
    return future


def _failed(error: Exception) -> "asyncio.Future[Message]":
    future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future
