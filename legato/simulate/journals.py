"""Reads the journals of a running fleet: its load, to be asked again, and the settings by which its services decide."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import datetime
from typing import Any

import msgspec

from legato.machines import machine_of, partitions
from legato.simulate.recording import Prompts, Recording, Submissions, recording
from shared.contracts import subjects
from shared.contracts.journal import Entry, JournalOpened
from shared.contracts.streams import JOURNAL
from shared.core.errors import LegatoError
from shared.drivers.journal import Reader
from shared.runtime.bus import Bus

Told = Callable[[str, int], None]  # a service, and how many of its entries are read


async def read_recording(bus: Bus, since_ns: int, until_ns: int, told: Told) -> Recording:
    """What was asked for from one Unix time to another. Raises LegatoError where nothing was, or no journal is there."""
    submissions, notes = Submissions(since_ns, until_ns), _Notes()
    for partition in await partitions(bus, "admission"):
        reader = Reader(bus, machine_of("admission"), partition)
        after = await _before(bus, partition, since_ns)
        async with aclosing(_entries(reader, after, told, notes if not after else _Notes())) as entries:
            async for entry in entries:
                with _fitting(reader, entry):
                    submissions.take(reader.input(entry), reader.outputs(entry), entry.now_ns)
    if not submissions.steps:
        raise LegatoError("; ".join(["nothing was asked for in that time", *notes.lines]))
    prompts = Prompts(submissions.steps)
    for partition in await partitions(bus, "kv_registry"):
        reader = Reader(bus, machine_of("kv_registry"), partition)
        async with aclosing(_entries(reader, 0, told, notes)) as entries:
            async for entry in entries:
                with _fitting(reader, entry):
                    prompts.take(reader.input(entry))
    found = recording(submissions.steps, prompts)
    return Recording(found.rows, [*notes.lines, *found.notes])


@contextmanager
def _fitting(reader: Reader[Any, Any], entry: Entry) -> Iterator[None]:
    try:
        yield
    except msgspec.DecodeError as error:
        name = f"{reader.machine.name}.{reader.partition}"
        raise LegatoError(f"entry {entry.number} of the journal of {name} does not fit this version of the code: {error}") from error


class _Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []


async def _before(bus: Bus, partition: str, since_ns: int) -> int:
    """Behind which sequence of the stream to read admission's journal, so that all from that time on is read."""
    if not since_ns:
        return 0
    record = await bus.first_since(JOURNAL.name, subjects.journal("admission", partition), since_ns)
    return 0 if record is None else record.seq - 1


async def _entries(reader: Reader[Any, Any], after: int, told: Told, notes: _Notes) -> AsyncGenerator[Entry, None]:
    """All that there are, noting which are missing."""
    service, number, missing = reader.machine.name, 0, 0
    async for _, record in reader.records(after):
        await asyncio.sleep(0)  # decoding is work without a pause; the connection needs its turn
        for entry in () if isinstance(record, JournalOpened) else record.entries:
            if not number and entry.number > 1:
                begun = datetime.fromtimestamp(entry.now_ns / 1e9).isoformat(" ", "seconds")
                notes.lines.append(f"the journal of {service} begins at {begun}: what was before is no longer kept")
            elif number:
                missing += max(0, entry.number - number - 1)
            number = entry.number
            yield entry
        told(service, number)
    if missing:
        notes.lines.append(f"{missing} entries are missing in the journal of {service}")
