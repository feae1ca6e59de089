"""The replay driver: the journal in, comparison out.

Starts from the newest snapshot before the entries asked for, folds what was recorded up to there, and then decides every input again
with the configuration in force at its time (or another one, to see what it would have changed). Reads as it goes: memory does not grow
with the journal.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Generic

import msgspec

from shared.contracts import subjects
from shared.contracts.journal import Entry, JournalBatch, JournalOpened
from shared.contracts.streams import JOURNAL, SNAPSHOTS_BUCKET
from shared.core.machine import ConfigT, Machine, StateT
from shared.drivers.journal import Reader, Snapshot, read_record
from shared.drivers.refold import Difference, Refold, ReplayError, differences, overridden
from shared.runtime.bus import Bus
from shared.runtime.cursor import Record

DIFFERENCES_MAX = 10  # shown; all are counted


class Report(msgspec.Struct, kw_only=True):
    """What a replay found. `first` and `last` are the first and last entry compared."""

    service: str
    partition: str
    first: int = 0
    last: int = 0
    inputs: int = 0
    outputs: int = 0
    differing: int = 0  # outputs
    differences: list[Difference] = []  # the first DIFFERENCES_MAX
    missing: int = 0  # entries asked for that the log no longer has
    snapshot: int = 0  # the entry whose state it began with; 0: from the very start
    seconds: float = 0.0
    notes: list[str] = []


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One decision: what came in, what was known, what was decided, and, with another configuration, what would have been."""

    service: str
    partition: str
    number: int
    epoch: int
    now_ns: int
    source: str
    input: msgspec.Raw
    config: msgspec.Raw
    state: msgspec.Raw  # before the input
    recorded: list[msgspec.Raw]
    replayed: list[msgspec.Raw]
    differences: list[Difference]
    notes: list[str] = []


Progress = Callable[[int, int], None]  # (entry reached, last entry there is)


def _silent(_: int, __: int) -> None:
    pass


class Replay(Generic[StateT, ConfigT]):
    """Replays one partition. `settings` (`field=value`) change the configuration in force."""

    def __init__(self, bus: Bus, machine: Machine[StateT, ConfigT], partition: str, settings: list[str] | None = None) -> None:
        self._bus = bus
        self._machine = machine
        self._partition = partition
        self._settings = settings or []
        self._subject = subjects.journal(machine.name, partition)
        self._config: ConfigT | None = None  # in force, with `settings`
        self._notes: list[str] = []

    async def verify(self, first: int = 1, last: int | None = None, progress: Progress = _silent) -> Report:
        """Decide entries `first` to `last` (None: to the end) again and compare. Raises ReplayError."""
        began = time.monotonic()
        report = Report(service=self._machine.name, partition=self._partition)
        refold, start = await self._start(first)
        report.snapshot = start.number
        report.missing = max(0, start.number + 1 - first)
        async with aclosing(self._entries(start, last, progress)) as entries:
            async for entry, epoch in entries:
                if entry.number < first:
                    refold.fold(entry)
                else:
                    self._compare(report, refold, entry, epoch)
        report.notes = self._notes
        report.seconds = time.monotonic() - began
        return report

    async def at(self, number: int) -> Moment:
        """Entry `number`, with the state before it. Raises ReplayError when the log does not have it."""
        refold, start = await self._start(number)
        if start.number >= number:
            raise ReplayError(f"entry {number} is no longer in the log of {self._name}; it begins at {start.number + 1}")
        async with aclosing(self._entries(start, number, _silent)) as entries:
            async for entry, epoch in entries:
                if entry.number == number:
                    return self._moment(refold, entry, epoch)
                refold.fold(entry)
        raise ReplayError(f"there is no entry {number} yet in the log of {self._name}")

    @property
    def _name(self) -> str:
        return f"{self._machine.name}.{self._partition}"

    def _in_force(self) -> ConfigT:
        if self._config is None:
            raise AssertionError("an entry came before any configuration")
        return self._config

    def _compare(self, report: Report, refold: Refold[StateT, ConfigT], entry: Entry, epoch: int) -> None:
        taken = refold.take(entry, epoch, self._in_force())
        report.first = report.first or entry.number
        report.last = entry.number
        report.inputs += 1
        report.outputs += len(entry.outputs)
        if not taken.same:
            found = differences(entry, taken)
            report.differing += len(found)
            report.differences += found[: DIFFERENCES_MAX - len(report.differences)]

    def _moment(self, refold: Refold[StateT, ConfigT], entry: Entry, epoch: int) -> Moment:
        state = msgspec.json.encode(refold.state)
        taken = refold.take(entry, epoch, self._in_force())
        return Moment(
            service=self._machine.name,
            partition=self._partition,
            number=entry.number,
            epoch=epoch,
            now_ns=entry.now_ns,
            source=entry.source,
            input=entry.input,
            config=msgspec.Raw(msgspec.json.encode(self._in_force())),
            state=msgspec.Raw(state),
            recorded=entry.outputs,
            replayed=[msgspec.Raw(data) for data in taken.outputs],
            differences=differences(entry, taken),
            notes=self._notes,
        )

    # --- reading the log -----------------------------------------------------------------------------------------------------

    async def _start(self, first: int) -> tuple[Refold[StateT, ConfigT], Snapshot]:
        """The state to begin with: as of an entry before `first`, or else the oldest from which the log can be followed."""
        oldest = await self._oldest()
        number = _choose(await self._snapshots(), oldest, first)
        if number is None:
            raise ReplayError(f"the log of {self._name} begins at entry {oldest}, and no snapshot leads there: nothing can be replayed")
        if number == 0:
            state = self._machine.start(self._take_config(await self._record_after(0)))
            start = Snapshot(number=0, journal_seq=0, positions={}, state=msgspec.Raw(b"null"))
            return Refold(self._machine, state, self._partition), start
        snapshot = await Reader(self._bus, self._machine, self._partition).snapshot(before=number)
        if snapshot is None:
            raise ReplayError(f"the snapshot of {self._name} at entry {number} has just been removed; try again")
        try:
            state = msgspec.json.decode(snapshot.state, type=self._machine.state)
        except msgspec.DecodeError as error:
            raise ReplayError(f"the snapshot of {self._name} at entry {number} does not fit this version of the code: {error}") from error
        return Refold(self._machine, state, self._partition), snapshot

    async def _oldest(self) -> int:
        """The first entry that the log still has."""
        record = _message(await self._record_after(0))
        return record.after + 1 if isinstance(record, JournalOpened) else record.entries[0].number

    async def _record_after(self, seq: int) -> Record:
        """The first behind `seq` that a service has written."""
        while True:
            record = await self._bus.next_after(JOURNAL.name, self._subject, seq)
            if record is None:
                raise ReplayError(f"there is no journal of {self._name}: has that service run with partition {self._partition!r}?")
            if read_record(record) is not None:
                return record
            seq = record.seq

    async def _snapshots(self) -> list[int]:
        prefix = f"{self._name}."
        names = await self._bus.list_objects(SNAPSHOTS_BUCKET)
        return sorted(int(name.removeprefix(prefix)) for name in names if name.startswith(prefix))

    async def _entries(self, start: Snapshot, last: int | None, progress: Progress) -> AsyncGenerator[tuple[Entry, int], None]:
        """(entry, epoch) behind `start` up to `last`; keeps the configuration in force."""
        end = await self.end()
        number = start.number
        async for seq, record in Reader(self._bus, self._machine, self._partition).records(start.journal_seq):
            await asyncio.sleep(0)  # folding is work without a pause; the connection needs its turn
            if isinstance(record, JournalOpened):
                self._decode_config(record)
                continue
            if self._config is None and record.entries:
                await self._find_config(seq, record.epoch)
            for entry in record.entries:
                if entry.number <= start.number:  # a snapshot may be ahead of the batch that was the last one when it was taken
                    continue
                if last is not None and entry.number > last:
                    return
                if entry.number != number + 1:
                    raise ReplayError(f"the log of {self._name} goes from entry {number} to {entry.number}: it has a gap")
                number = entry.number
                yield entry, record.epoch
            progress(number, end if last is None else min(end, last))

    async def end(self) -> int:
        """The last entry there is; 0 where there is none, or somebody else's message stands behind it."""
        record = await self._bus.last(JOURNAL.name, self._subject)
        if record is None:
            return 0
        last = read_record(record)
        if last is None:
            return 0
        return last.after if isinstance(last, JournalOpened) else last.entries[-1].number

    # --- the configuration in force ------------------------------------------------------------------------------------------

    async def _find_config(self, seq: int, epoch: int) -> None:
        """Take the configuration of the process that wrote the batch at `seq`: its JournalOpened is the first record of that epoch."""

        def reached(record: Record) -> bool:
            return _message(record).epoch >= epoch

        self._take_config(await first_where(self._record_after, seq, reached))

    def _take_config(self, record: Record) -> ConfigT:
        """The recorded configuration, which from here on is in force."""
        opened = _message(record)
        if isinstance(opened, JournalOpened):
            return self._decode_config(opened)
        self._notes.append(f"the configuration of epoch {opened.epoch} is no longer in the log: the default one is taken")
        return self._use(self._machine.config())

    def _decode_config(self, opened: JournalOpened) -> ConfigT:
        try:
            return self._use(msgspec.json.decode(opened.config, type=self._machine.config))
        except msgspec.DecodeError as error:
            raise ReplayError(f"the recorded configuration of {self._name} does not fit this version of the code: {error}") from error

    def _use(self, recorded: ConfigT) -> ConfigT:
        self._config = overridden(recorded, self._settings) if self._settings else recorded
        return recorded


def _message(record: Record) -> JournalOpened | JournalBatch:
    """Of one that `_record_after` gave."""
    message = read_record(record)
    if message is None:
        raise AssertionError(f"journal record {record.seq} was readable before")
    return message


async def first_where(record_after: Callable[[int], Awaitable[Record]], seq: int, holds: Callable[[Record], bool]) -> Record:
    """The first record for which `holds`, by bisection: from one record on it does, and `seq` is the sequence of one for which it does."""
    low, high = 0, seq - 1
    while low < high:
        middle = (low + high) // 2
        record = await record_after(middle)
        if holds(record):
            high = middle
        else:
            low = record.seq
    return await record_after(low)


def _choose(snapshots: list[int], oldest: int, first: int) -> int | None:
    """Where to begin: behind a snapshot (0: the very start) from which the log is complete; the newest before `first`, else the oldest."""
    usable = [number for number in [0, *snapshots] if number >= oldest - 1]
    before = [number for number in usable if number < first]
    return before[-1] if before else (usable[0] if usable else None)
