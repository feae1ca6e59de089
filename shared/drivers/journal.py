"""The journal of a partition: written behind by the live driver, read by recovery and by replay."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Any, Generic

import msgspec

from shared.contracts import subjects
from shared.contracts.envelope import Message
from shared.contracts.journal import Entry, JournalBatch, JournalOpened
from shared.contracts.streams import JOURNAL, SNAPSHOTS_BUCKET, SNAPSHOTS_KEPT
from shared.core.errors import LegatoError
from shared.core.machine import ENCODER, ConfigT, Machine, StateT
from shared.runtime.bus import Bus
from shared.runtime.cursor import Record
from shared.runtime.publisher import Ack

log = logging.getLogger(__name__)

_RECORD: msgspec.json.Decoder[JournalOpened | JournalBatch] = msgspec.json.Decoder(JournalOpened | JournalBatch)

ENTRIES_PER_BATCH = 256
BATCH_BYTES_MAX = 4 * 2**20  # less where nats-server takes less in one message
ENTRY_BYTES = 512  # of an entry, besides its input and outputs
GAP_S = 0.01  # between two batches: at hundreds of inputs a second a batch for each would cost the bus more than all else that is decided
SNAPSHOT_EVERY = 20_000  # inputs: what a recovery reads at most
SNAPSHOT_AFTER_S = 60.0  # and no later, where there is anything new: the journal's stream is shared, and drops its oldest entries by size
SNAPSHOT_SHARE = 50  # of the time goes into snapshots at most one in so many


class Snapshot(msgspec.Struct, kw_only=True):
    """A machine's state after `number` inputs, with what is needed to go on from there."""

    number: int
    journal_seq: int  # of the last journal message folded in
    positions: dict[str, int]
    state: msgspec.Raw


class Due:
    """When a snapshot is due. `number`: the input that the last one holds."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._not_before_s = self._after_s = 0.0

    def due(self, number: int, now_s: float) -> bool:
        """Whether one should be taken now, after input `number`."""
        if not self._after_s:
            self._after_s = now_s + SNAPSHOT_AFTER_S
        late = now_s >= self._after_s and number > self._number
        return now_s >= self._not_before_s and (late or number - self._number >= SNAPSHOT_EVERY)

    def taken(self, number: int, started_s: float, now_s: float) -> None:
        """One was, or could not be."""
        self._number = number
        self._not_before_s = now_s + SNAPSHOT_SHARE * (now_s - started_s)
        self._after_s = max(self._not_before_s, now_s + SNAPSHOT_AFTER_S)


def entry_bytes(raw: bytes | msgspec.Raw, outputs: Iterable[bytes | msgspec.Raw]) -> int:
    """What an entry takes in the journal, at most."""
    return len(raw) + sum(map(len, outputs)) + ENTRY_BYTES


class JournalError(LegatoError):
    """The journal cannot be read or written."""


class Reader(Generic[StateT, ConfigT]):
    """Decodes a partition's journal for one machine."""

    def __init__(self, bus: Bus, machine: Machine[StateT, ConfigT], partition: str) -> None:
        self._bus = bus
        self.machine = machine
        self.partition = partition
        self._inputs: msgspec.json.Decoder[Any] = msgspec.json.Decoder(machine.inputs)
        self._outputs = output_decoder()
        self.whole = True
        self._named = {"service": machine.name, "partition": partition}

    def input(self, entry: Entry) -> Message:
        """The input as the machine saw it."""
        event: Message = self._inputs.decode(entry.input)
        return event

    def outputs(self, entry: Entry) -> list[Message]:
        """What was decided."""
        return [self._outputs.decode(raw) for raw in entry.outputs]

    async def records(self, after: int = 0) -> AsyncIterator[tuple[int, JournalOpened | JournalBatch]]:
        """(stream sequence, message), from behind stream sequence `after` to what is there now. What is none is passed over: no service
        wrote it, and it must not keep one from working."""
        async for record in self._bus.history(JOURNAL.name, subjects.journal(self.machine.name, self.partition), after):
            message = read_record(record)
            if message is None:
                log.error("passed over in the journal: it is no entry of it", extra={**self._named, "seq": record.seq})
                message = JournalBatch(service=self.machine.name, partition=self.partition, epoch=0, entries=[])
            yield record.seq, message

    async def snapshot(self, before: int | None = None) -> Snapshot | None:
        """The newest snapshot (taken at or before input `before`), or None."""
        prefix = f"{self.machine.name}.{self.partition}."
        names = [name for name in await self._bus.list_objects(SNAPSHOTS_BUCKET) if name.startswith(prefix)]
        numbers = sorted((int(name.removeprefix(prefix)) for name in names), reverse=True)
        for number in numbers:
            if before is None or number <= before:
                content = await self._bus.get_object(SNAPSHOTS_BUCKET, f"{prefix}{number}")
                if content is not None:
                    return msgspec.json.decode(content, type=Snapshot)
        return None

    async def recover(self, config: ConfigT) -> tuple[StateT, Snapshot]:
        """The state as of the last journalled input: newest snapshot, then every entry behind it folded in.

        Where entries between the two are gone (`whole` says so), the state is a fresh one, and only the position is recovered.
        """
        snapshot = await self.snapshot() or Snapshot(number=0, journal_seq=0, positions={}, state=msgspec.Raw(b"null"))
        state = msgspec.json.decode(snapshot.state, type=self.machine.state) if snapshot.number else self.machine.start(config)
        self.whole = True
        async for seq, record in self.records(await self._resume_at(snapshot)):
            snapshot.journal_seq = seq
            for entry in record.entries if isinstance(record, JournalBatch) else ():
                if entry.number <= snapshot.number:
                    continue
                self.whole = self.whole and entry.number == snapshot.number + 1
                if self.whole:
                    self._fold(state, entry)
                snapshot.number = entry.number
                advance(snapshot.positions, entry.source)
        if not self.whole:
            log.error("the stream's limits removed journal entries that no snapshot has: starting with an empty state", extra=self._named)
        return state if self.whole else self.machine.start(config), snapshot

    async def _resume_at(self, snapshot: Snapshot) -> int:
        """Behind which stream sequence to read on. The snapshot may be all that is left: by age, by size, or in a stream made anew."""
        last = await self._bus.last(JOURNAL.name, subjects.journal(self.machine.name, self.partition))
        if last is None or last.seq < snapshot.journal_seq:
            if snapshot.number:
                log.warning("the journal up to the newest snapshot is gone", extra=self._named)
            snapshot.journal_seq = 0 if last is None else last.seq
            return 0
        return snapshot.journal_seq

    def _fold(self, state: StateT, entry: Entry) -> None:
        self.machine.apply(state, self.input(entry), entry.now_ns)
        for output in self.outputs(entry):
            self.machine.apply(state, output, entry.now_ns)


def read_record(record: Record) -> JournalOpened | JournalBatch | None:
    """What a journal's message says; None: somebody else has published it there."""
    try:
        return _RECORD.decode(record.data)
    except (msgspec.DecodeError, RecursionError):
        return None


def output_decoder() -> "msgspec.json.Decoder[Any]":
    """Decodes any message that a machine may decide."""
    from shared.contracts.catalogue import CATALOGUE

    types = tuple(kind.type for kind in CATALOGUE)
    union = types[0]
    for kind in types[1:]:
        union = union | kind  # type: ignore[assignment]
    return msgspec.json.Decoder(union)


def advance(positions: dict[str, int], source: str) -> None:
    """Note that `source` ("STREAM:sequence") has been handled."""
    if source:
        stream, _, seq = source.rpartition(":")
        positions[stream] = max(int(seq), positions.get(stream, 0))


class Writer:
    """Writes entries in order, one batch in flight, each batch only after the outputs of its entries are stored."""

    def __init__(self, bus: Bus, service: str, partition: str, epoch: int, journal_seq: int) -> None:
        self._bus = bus
        self._service = service
        self._partition = partition
        self._epoch = epoch
        self._subject = subjects.journal(service, partition)
        self._last: int | None = journal_seq
        self._waiting: deque[tuple[Entry, list[asyncio.Future[Ack]]]] = deque()
        self._arrived = asyncio.Event()
        self.empty = asyncio.Event()
        self.empty.set()
        self._written = asyncio.Event()
        self.number = 0  # of the last entry in the stream
        self.seq = journal_seq

    def __len__(self) -> int:
        return len(self._waiting)

    async def open(self, after: int, config: msgspec.Struct) -> None:
        """Mark the take-over. Raises WrongLastSequence when somebody else writes this journal."""
        opened = JournalOpened(
            service=self._service, partition=self._partition, epoch=self._epoch, after=after, config=msgspec.Raw(ENCODER.encode(config))
        )
        self.number = after
        await self._store(ENCODER.encode(opened), f"{self._subject}.{self._epoch}.opened")

    def add(self, entry: Entry, stored: list[asyncio.Future[Ack]]) -> None:
        """Take an entry; `stored` are the acknowledgements of its outputs."""
        self._waiting.append((entry, stored))
        self.empty.clear()
        self._arrived.set()

    async def run(self) -> None:
        """Write for ever. Raises StoreError when outputs or journal could not be stored."""
        while True:
            while not self._waiting:
                self.empty.set()
                self._arrived.clear()
                await self._arrived.wait()
            if len(self._waiting) < ENTRIES_PER_BATCH:
                await asyncio.sleep(GAP_S)
            await self._write(self._take())

    def _take(self) -> list[tuple[Entry, list[asyncio.Future[Ack]]]]:
        batch: list[tuple[Entry, list[asyncio.Future[Ack]]]] = []
        room = min(BATCH_BYTES_MAX, self._bus.publisher.message_bytes_max)
        while self._waiting and len(batch) < ENTRIES_PER_BATCH:
            entry = self._waiting[0][0]
            room -= entry_bytes(entry.input, entry.outputs)
            if room < 0 and batch:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _write(self, batch: list[tuple[Entry, list[asyncio.Future[Ack]]]]) -> None:
        for _, stored in batch:
            for future in stored:
                await future
        entries = [entry for entry, _ in batch]
        message = JournalBatch(service=self._service, partition=self._partition, epoch=self._epoch, entries=entries)
        await self._store(ENCODER.encode(message), f"{self._subject}.{self._epoch}.{entries[0].number}")
        self.number = entries[-1].number
        self._written.set()

    async def reached(self, number: int) -> None:
        """Wait until entry `number` is in the stream. For one caller."""
        while self.number < number:
            self._written.clear()
            await self._written.wait()

    async def _store(self, data: bytes, msg_id: str) -> None:
        ack = await (await self._bus.store(self._subject, data, msg_id=msg_id, expect_last=self._last))
        self._last = self.seq = ack.seq

    async def save(self, snapshot: Snapshot) -> None:
        """Keep a snapshot; drop all but the newest few."""
        prefix = f"{self._service}.{self._partition}."
        await self._bus.put_object(SNAPSHOTS_BUCKET, f"{prefix}{snapshot.number}", ENCODER.encode(snapshot))
        names = [name for name in await self._bus.list_objects(SNAPSHOTS_BUCKET) if name.startswith(prefix)]
        for name in sorted(names, key=lambda n: int(n.removeprefix(prefix)))[:-SNAPSHOTS_KEPT]:
            await self._bus.delete_object(SNAPSHOTS_BUCKET, name)
