"""Reads the log of steps into Postgres, batch by batch, and announces what settled.

One batch is one transaction: rows, outcomes and the position behind it. Its outcomes are announced before the next batch is written, and
their names are part of the position: a process that takes over announces them again first (see announcer.py).
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence

import asyncpg
import msgspec

from services.workflow.announcer import Announcer
from services.workflow.config import WorkflowConfig
from services.workflow.decide import EVENTS, FACTS, decide
from services.workflow.judge import judged
from services.workflow.patience import Patience
from services.workflow.state import Changes
from services.workflow.store import Position, Store
from shared.contracts import subjects
from shared.contracts.catalogue import KIND
from shared.contracts.envelope import Message
from shared.contracts.ids import StepId, is_subject_token
from shared.contracts.journal import DeadLetter
from shared.contracts.steps import StepClosed
from shared.contracts.streams import STEPS
from shared.contracts.workflows import ValueRecorded
from shared.core.inputs import name_token
from shared.core.machine import ENCODER
from shared.core.reading import NoMessage, read
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns
from shared.runtime.cursor import Record, Source
from shared.runtime.telemetry import Telemetry

log = logging.getLogger(__name__)

PATTERNS = (subjects.ADMITTED, subjects.REFUSED, "legato.step.*.dispatched.*", "legato.step.*.ended.*", subjects.CLOSED, subjects.WORKFLOWS)
SOURCE = Source(stream=STEPS.name, subjects=PATTERNS)
DEAD_DATA_MAX = 64 * 1024
ERROR_CHARS_MAX = 1024  # Postgres quotes the values that it cannot take

# A value that Postgres will never take, such as a number beyond its type: only then is an event to blame, and not the database.
UNWRITABLE = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, RecursionError, UnicodeError)


class Recorder:
    """One per process. `lock` is held while rows are written, so that nothing else changes them between reading and writing."""

    def __init__(self, bus: Bus, store: Store, patiently: Patience, config: WorkflowConfig, telemetry: Telemetry) -> None:
        self.lock = asyncio.Lock()
        self._bus = bus
        self._store = store
        self._patiently = patiently
        self._config = config
        self._telemetry = telemetry
        self._announcer = Announcer(bus, store, patiently, telemetry)
        self._decoder = msgspec.json.Decoder(EVENTS)
        self._moved = asyncio.Condition()
        self._position = Position(epoch=0, batch=0, seq=0, unannounced=[])

    async def run(self) -> None:
        """Take over, and record for ever. Raises Overtaken when another process has taken over."""
        created = (await self._bus.js.stream_info(STEPS.name)).created
        self._position = await self._patiently(lambda: self._store.take_over(STEPS.name, str(created)))
        await self._announcer.announce(self._position.unannounced)
        cursor = await self._bus.read(SOURCE, self._position.seq)
        log.info("recording", extra={"after": self._position.seq, "epoch": self._position.epoch})
        try:
            while True:
                records = await cursor.take(self._config.batch_max)
                for portion in _portions(records, self._config.batch_bytes_max):
                    await self._take(portion)
                await asyncio.sleep(self._config.batch_pause_ms / 1000)
        finally:
            await cursor.close()

    async def reach(self, seq: int) -> None:
        """Wait until the log is recorded up to `seq`."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._position.seq >= seq)

    async def _take(self, records: Sequence[Record]) -> None:
        """Record a batch. One that cannot be written is halved until the event to blame is alone, which is parked."""
        try:
            events = await self._decode(records)
            await self._announcer.announce(await self._write(events, records[-1].seq))
        except UNWRITABLE as error:
            if len(records) > 1:
                middle = len(records) // 2
                await self._take(records[:middle])
                await self._take(records[middle:])
                return
            await self._park(records[0], f"{type(error).__name__}: {error}")
            await self._write([], records[0].seq)

    async def _decode(self, records: Sequence[Record]) -> list[Message]:
        events: list[Message] = []
        for record in records:
            try:
                events.append(_placed(read(self._decoder, record.data), record.subject))
            except NoMessage as error:
                await self._park(record, str(error))
        closings = {index: event for index, event in enumerate(events) if isinstance(event, StepClosed)}
        for index, event in zip(closings, await asyncio.gather(*(judged(self._bus, each) for each in closings.values())), strict=True):
            events[index] = event
        return events

    async def _write(self, events: list[Message], seq: int) -> list[StepId]:
        """Commit events and position; the steps that settled."""
        reached = msgspec.structs.replace(self._position, batch=self._position.batch + 1, seq=seq)
        changes = Changes()

        async def attempt() -> list[StepId]:
            nonlocal changes
            known = await self._store.known(event.step for event in events if event.step)
            now = now_ns()
            changes = decide(known, events, now, self._config)
            return await self._store.record(STEPS.name, reached, changes, now)

        async with self.lock:
            settled = await self._patiently(attempt)
        async with self._moved:
            self._position = reached
            self._moved.notify_all()
        self._count(changes)
        return settled

    def _count(self, changes: Changes) -> None:
        for settlement in changes.settled.values():
            self._telemetry.count(f"steps_{settlement.status}")
        counts = {
            "steps_accepted": len(changes.admitted),
            "steps_refused": changes.refused,
            "attempts_superseded": sum(ending.superseded for ending in changes.ended.values()),
            "events_of_unknown_steps": changes.unknown,
        }
        for name, amount in counts.items():
            if amount:
                self._telemetry.count(name, amount)

    async def _park(self, record: Record, error: str) -> None:
        log.warning("event parked", extra={"subject": record.subject, "seq": record.seq, "error": error})
        self._telemetry.count("dead_letters")
        letter = DeadLetter(
            service="workflow",
            subject=record.subject,
            source=f"{record.stream}:{record.seq}",
            error=error[:ERROR_CHARS_MAX],
            data=record.data[:DEAD_DATA_MAX].decode("utf-8", "replace"),
            time_ns=now_ns(),
        )
        await (await self._bus.store(subjects.dead("workflow"), ENCODER.encode(letter), msg_id=f"workflow.dead.{record.seq}"))


def _placed(event: Message, subject: str) -> Message:
    """A fact about a workflow, if it is one about the workflow, and of the name, that its subject says. Raises NoMessage."""
    if isinstance(event, FACTS):
        if isinstance(event, ValueRecorded) and event.token != name_token(event.name):
            raise NoMessage(f"{event.token!r} is not the token of {event.name!r}")
        if not is_subject_token(event.workflow) or KIND[type(event)].subject(event) != subject:
            raise NoMessage(f"it is about workflow {event.workflow[:100]!r}, its subject is {subject[:200]}")
    return event


def _portions(records: Sequence[Record], bytes_max: int) -> Iterator[Sequence[Record]]:
    """Runs of records of at most so many bytes; a record that is larger stands alone."""
    start = size = 0
    for index, record in enumerate(records):
        size += len(record.data)
        if size > bytes_max and index > start:
            yield records[start:index]
            start, size = index, len(record.data)
    yield records[start:]
