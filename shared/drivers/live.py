"""The live driver: NATS in, NATS out, one machine, one partition.

Inputs are taken one at a time, in the order of their arrival, which the journal records. What a machine decides is published at once;
the input counts as handled when its outputs are stored and its journal entry is too. After a crash the state is rebuilt from snapshot and
journal, and reading goes on behind the last journalled position: an input in between is taken again, and message ids keep second copies
of what may happen once out of the streams.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from shared.contracts import subjects
from shared.contracts.catalogue import KIND
from shared.contracts.envelope import Message, Tick
from shared.contracts.journal import DeadLetter, Entry
from shared.contracts.output import Output
from shared.contracts.steps import Prompt, StepAdmitted, StepClosed, StepDispatched, StepRefused, StepRouted
from shared.core.errors import LegatoError
from shared.core.machine import ENCODER, ConfigT, Machine, StateT, stamp, take
from shared.core.reading import NoMessage, read
from shared.drivers.journal import Due, Reader, Snapshot, Writer, advance, entry_bytes
from shared.runtime.bus import Bus, BusError
from shared.runtime.clock import now_ns
from shared.runtime.cursor import Cursor, Record, Source
from shared.runtime.lease import Lease
from shared.runtime.publisher import Ack, TooLarge
from shared.runtime.telemetry import Telemetry

log = logging.getLogger(__name__)

WAITING_MAX = 2048  # inputs taken from NATS and not yet decided
UNJOURNALLED_MAX = 4096  # inputs decided and not yet journalled: beyond it, no input is taken
DRAIN_TIMEOUT_S = 10.0
WAKE_MIN_S = 0.0005  # between two ticks, so that a machine whose wake time stays in the past cannot spin
DEAD_DATA_MAX = 64 * 1024
ERROR_CHARS_MAX = 1024


class Unreadable(LegatoError):
    """An input that no service could handle; it is parked in the dead-letter stream. `outputs` are told to its sender all the same."""

    def __init__(self, message: str, outputs: list[Message] | None = None) -> None:
        super().__init__(message)
        self.outputs = outputs or []


Prepare = Callable[[Record], Awaitable[Message]]
Attach = Callable[[Message], list[Message]]


@dataclass(kw_only=True)
class Wiring:
    """How a machine hangs on the bus. `prepare` turns a stored message into the machine's input where that takes I/O or heavy work (its
    result is what the journal keeps); it may run ahead for several messages, their order is kept. `attach` gives messages to publish just
    before a decided one (a prompt before its admission)."""

    sources: list[Source]
    live: list[str] = field(default_factory=list)  # subjects of unstored messages
    prepare: Prepare | None = None
    attach: Attach | None = None


@dataclass(slots=True)
class _Arrived:
    source: str
    event: Message
    raw: bytes


class LiveDriver(Generic[StateT, ConfigT]):
    """Runs one partition until cancelled or until `stop` is set; then drains and leaves a snapshot."""

    def __init__(self, machine: Machine[StateT, ConfigT], config: ConfigT, bus: Bus, wiring: Wiring, telemetry: Telemetry) -> None:
        self.machine = machine
        self.config = config
        self.ready = asyncio.Event()
        self._bus = bus
        self._wiring = wiring
        self._telemetry = telemetry
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(machine.inputs)
        self._queue: asyncio.Queue[_Arrived] = asyncio.Queue(WAITING_MAX)
        self._positions: dict[str, int] = {}
        self._number = 0
        self._prefix = self._partition = ""
        self._snapshots = Due(0)
        self._copies: asyncio.Queue[Snapshot] = asyncio.Queue(1)
        self.state: StateT

    async def run(self, partition: str, instance: str, stop: asyncio.Event) -> None:
        """Take the lease, recover, work. Raises LeaseLost or StoreError when this process must not go on."""
        lease = await Lease.acquire(self._bus, f"{self.machine.name}.{partition}", instance, stop)
        if lease is None:
            return
        keeping = asyncio.create_task(lease.keep(), name="lease")  # from now on: a recovery may take longer than a lease
        driving = asyncio.create_task(self._drive(partition, lease.epoch, stop), name="driver")
        try:
            done, _ = await asyncio.wait((keeping, driving), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises what ended it
        finally:
            await _end(keeping, driving)
        await lease.release()

    async def _drive(self, partition: str, epoch: int, stop: asyncio.Event) -> None:
        await self._recover(partition, epoch)
        writing = asyncio.create_task(self._writer.run(), name="journal")
        stopping = asyncio.create_task(stop.wait())
        subscriptions, cursors, feeders = await self._open_inputs()
        work = asyncio.create_task(self._work(), name="decisions")
        keeping = asyncio.create_task(self._keep_copies(), name="snapshots")
        self.ready.set()
        try:
            done, _ = await asyncio.wait((writing, *feeders, work, keeping, stopping), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await _end(*feeders, work, keeping)
            await self._leave()
        finally:
            self.ready.clear()
            await _end(*feeders, work, keeping, stopping, writing)
            await _close(subscriptions, cursors)

    async def _recover(self, partition: str, epoch: int) -> None:
        reader = Reader(self._bus, self.machine, partition)
        self.state, recovered = await reader.recover(self.config)
        self._positions, self._number = recovered.positions, recovered.number
        self._snapshots = Due(self._number)
        self._prefix, self._partition = f"{self.machine.name}.{partition}.{epoch}", partition
        self._writer = Writer(self._bus, self.machine.name, partition, epoch, recovered.journal_seq)
        await self._writer.open(self._number, self.config)
        log.info("recovered", extra={"inputs": self._number, "epoch": epoch})
        if not reader.whole:  # so that recovery and replay have a state to start from
            await self._keep(self._copy())

    async def _leave(self) -> None:
        try:
            await asyncio.wait_for(self._writer.empty.wait(), DRAIN_TIMEOUT_S)
            await asyncio.wait_for(self._keep(self._copy()), DRAIN_TIMEOUT_S)
        except (TimeoutError, LegatoError) as error:
            log.warning("left without a snapshot", extra={"error": repr(error)})

    # --- inputs --------------------------------------------------------------------------------------------------------------

    async def _open_inputs(self) -> tuple[list[Subscription], list[Cursor], list[asyncio.Task[None]]]:
        subscriptions = [await self._bus.subscribe(subject, self._on_live) for subject in self._wiring.live]
        cursors, feeders = [], []
        for source in self._wiring.sources:
            cursor = await self._bus.read(source, 0 if source.latest else self._positions.get(source.stream, 0))
            cursors.append(cursor)
            feeders.append(asyncio.create_task(self._feed(cursor, source.latest), name=f"feed-{source.stream}"))
        return subscriptions, cursors, feeders

    async def _on_live(self, msg: Msg) -> None:
        try:
            event = read(self._decoder, msg.data)
        except NoMessage as error:
            await self._park(msg.subject, "", msg.data, str(error))
            return
        await self._queue.put(_Arrived("", event, msg.data))

    async def _feed(self, cursor: Cursor, latest: bool) -> None:
        while True:
            records = await cursor.take(64)
            if self._wiring.prepare is None or latest:
                for record in records:
                    await self._arrive(record, latest)
            else:
                await self._prepare_all(records, self._wiring.prepare)

    async def _prepare_all(self, records: list[Record], prepare: Prepare) -> None:
        tasks = [asyncio.ensure_future(prepare(record)) for record in records]
        try:
            for record, task in zip(records, tasks, strict=True):
                source = f"{record.stream}:{record.seq}"
                try:
                    event = await task
                except Unreadable as error:
                    await self._unreadable(record, source, error)
                    continue
                except (LegatoError, nats.errors.Error, OSError, TimeoutError):
                    raise
                except Exception as error:
                    log.exception("an input could not be prepared")
                    await self._unreadable(record, source, Unreadable(f"{type(error).__name__}: {error}"))
                    continue
                await self._queue.put(_Arrived(source, event, ENCODER.encode(event)))
        finally:
            for task in tasks:
                task.cancel()

    async def _arrive(self, record: Record, latest: bool) -> None:
        source = "" if latest else f"{record.stream}:{record.seq}"
        try:
            event = read(self._decoder, record.data)
        except NoMessage as error:
            await self._unreadable(record, source, Unreadable(str(error)))
            return
        await self._queue.put(_Arrived(source, event, record.data))

    async def _unreadable(self, record: Record, source: str, error: Unreadable) -> None:
        await self._park(record.subject, f"{record.stream}:{record.seq}", record.data, str(error))
        for index, message in enumerate(error.outputs):
            encoded = stamp([message], message, f"{self.machine.name}.unreadable.{record.seq}.{index}", now_ns())
            await (await self._send(message, encoded[0]))[0]
        if source:  # counts as handled: a tick takes its place in the order
            tick = Tick()
            await self._queue.put(_Arrived(source, tick, ENCODER.encode(tick)))

    async def _park(self, subject: str, source: str, data: bytes, error: str) -> None:
        log.warning("input parked", extra={"subject": subject, "error": error})
        self._telemetry.count("dead_letters")
        text, error = data[:DEAD_DATA_MAX].decode("utf-8", "replace"), error[:ERROR_CHARS_MAX]
        letter = DeadLetter(service=self.machine.name, subject=subject, source=source, error=error, data=text, time_ns=now_ns())
        await (await self._bus.store(subjects.dead(self.machine.name), ENCODER.encode(letter)))

    # --- decisions -----------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            arrived = await self._next()
            await self._take(arrived)
            for _ in range(self._queue.qsize()):  # not until it is empty: under load it never is, and the bounds below must hold
                await self._take(self._queue.get_nowait())
            if len(self._writer) > UNJOURNALLED_MAX:
                await asyncio.wait_for(self._writer.empty.wait(), 120.0)
            if self._copies.empty() and self._snapshots.due(self._number, asyncio.get_running_loop().time()):
                self._copies.put_nowait(self._copy())

    async def _next(self) -> _Arrived:
        wake = self.machine.wake_ns(self.state, self.config)
        if not self._queue.empty() or wake is None:
            return await self._queue.get()
        wait_s = max(WAKE_MIN_S, (wake - now_ns()) / 1e9)
        try:
            async with asyncio.timeout(wait_s):
                return await self._queue.get()
        except TimeoutError:
            tick = Tick(time_ns=now_ns())
            return _Arrived("", tick, ENCODER.encode(tick))

    async def _take(self, arrived: _Arrived) -> None:
        started = now_ns()
        try:
            prefix = f"{self._prefix}.{self._number + 1}"
            outputs, encoded = take(self.machine, self.state, arrived.event, started, self.config, prefix)
            messages = self._with_attached(outputs, encoded)
            self._check_sizes(arrived, encoded, messages)
        except Exception as error:
            log.exception("a decision failed")
            await self._poisoned(arrived, error)
            return
        self._number += 1
        stored: list[asyncio.Future[Ack]] = []
        for message, data in messages:
            stored += await self._send(message, data)
        advance(self._positions, arrived.source)
        entry = Entry(
            number=self._number,
            now_ns=started,
            source=arrived.source,
            input=msgspec.Raw(arrived.raw),
            outputs=[msgspec.Raw(data) for data in encoded],
        )
        self._writer.add(entry, stored)
        self._telemetry.decision(arrived.event, outputs, started)

    def _with_attached(self, outputs: list[Message], encoded: list[bytes]) -> list[tuple[Message, bytes]]:
        """All that is to be sent, in order."""
        attach = self._wiring.attach
        messages: list[tuple[Message, bytes]] = []
        for message, data in zip(outputs, encoded, strict=True):
            messages += [(extra, ENCODER.encode(extra)) for extra in (attach(message) if attach is not None else ())]
            messages.append((message, data))
        return messages

    def _check_sizes(self, arrived: _Arrived, encoded: list[bytes], messages: list[tuple[Message, bytes]]) -> None:
        """Raises TooLarge before anything is sent: a decision that can never be stored would else end every process that takes it."""
        largest = max([entry_bytes(arrived.raw, encoded), *(len(data) for _, data in messages)])
        if largest > self._bus.publisher.message_bytes_max:
            raise TooLarge(f"what was decided takes {largest} bytes, which no message may have")

    async def _poisoned(self, arrived: _Arrived, error: Exception) -> None:
        """A bug met this input, and may have left the state half changed: park the input, rebuild the state, go on behind it."""
        if isinstance(arrived.event, Tick):
            raise error  # time cannot be parked: stop, and let the supervisor start afresh
        await self._park(str(arrived.event.__struct_config__.tag), arrived.source, arrived.raw, f"{type(error).__name__}: {error}")
        await asyncio.wait_for(self._writer.empty.wait(), 120.0)
        self.state, _ = await Reader(self._bus, self.machine, self._partition).recover(self.config)
        tick = Tick(time_ns=now_ns())
        await self._take(_Arrived(arrived.source, tick, ENCODER.encode(tick)))

    async def _send(self, message: Message, data: bytes) -> list[asyncio.Future[Ack]]:
        kind = KIND[type(message)]
        if not kind.stored:
            await self._bus.publish(kind.subject(message), data)
            return []
        return [await self._bus.store(kind.subject(message), data, msg_id=message_id(message), trace=message.trace)]

    # --- snapshots -----------------------------------------------------------------------------------------------------------

    def _copy(self) -> Snapshot:
        """The state as it is now. Encoding it is all that decisions wait for; keeping it goes on beside them."""
        now_s = asyncio.get_running_loop().time()
        self._snapshots.taken(self._number, now_s, now_s)
        return Snapshot(
            number=self._number,
            journal_seq=self._writer.seq,
            positions=dict(self._positions),
            state=msgspec.Raw(ENCODER.encode(self.state)),
        )

    async def _keep_copies(self) -> None:
        while True:
            await self._keep(await self._copies.get())

    async def _keep(self, copy: Snapshot) -> None:
        """Keep a copy, once the journal has all that it holds. What fails now is tried again after as many inputs more."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            await self._writer.reached(copy.number)
            await self._writer.save(copy)
        except BusError as error:
            log.warning("snapshot not kept", extra={"partition": self._partition, "error": str(error)})
        self._snapshots.taken(copy.number, started, loop.time())


async def _end(*tasks: asyncio.Task[None] | asyncio.Task[bool]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _close(subscriptions: list[Subscription], cursors: list[Cursor]) -> None:
    for subscription in subscriptions:
        try:
            await subscription.unsubscribe()
        except nats.errors.Error as error:  # the connection is closed already
            log.debug("subscription left to the server", extra={"error": repr(error)})
    for cursor in cursors:
        await cursor.close()


_NAMED_BY_STEP: dict[type[Message], Callable[[Any], str]] = {
    StepAdmitted: lambda m: f"{m.step}.admission",
    StepRefused: lambda m: f"{m.step}.admission",
    StepRouted: lambda m: f"{m.step}.routing",
    StepDispatched: lambda m: f"{m.step}.dispatch.{m.attempt}",
    StepClosed: lambda m: f"{m.step}.closed",
    Output: lambda m: f"{m.step}.end.{m.attempt}",  # all that machines say on a step's output is its end
    Prompt: lambda m: f"{m.step}.prompt",
}


def message_id(message: Message) -> str:
    """The `Nats-Msg-Id`. What may happen once to a step (or to an attempt) is named by it, so that the log keeps the first decision when a
    restarted process takes an unjournalled input again, even if it now decides otherwise. All else: the id that the driver gave."""
    named = _NAMED_BY_STEP.get(type(message))
    return named(message) if named is not None else message.id
