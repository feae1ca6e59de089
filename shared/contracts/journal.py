"""The event log of a decision partition, its snapshots, and what could not be handled."""

import msgspec

from shared.contracts.envelope import Message
from shared.contracts.ids import MessageId


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input as the machine saw it, and what it decided.

    `source` is the stream and sequence that the input came from (`LEGATO_STEPS:123`), empty for heartbeats, ticks and other unstored
    messages. `input` is the input itself, so that a journal can be replayed alone; prompts are never part of it. `outputs` are the
    decided messages, byte for byte as published.
    """

    number: int  # counts the inputs of the partition from 1, through all restarts
    now_ns: int
    source: str = ""
    input: msgspec.Raw
    outputs: list[msgspec.Raw] = []


class JournalOpened(Message, frozen=True, kw_only=True, tag="journal.opened"):
    """A process took the partition over: from here on `config` holds, and state was rebuilt up to `after`."""

    service: str
    partition: str
    epoch: int
    after: int
    config: msgspec.Raw


class JournalBatch(Message, frozen=True, kw_only=True, tag="journal.batch"):
    """Consecutive entries of one epoch."""

    service: str
    partition: str
    epoch: int
    entries: list[Entry]


class DeadLetter(Message, frozen=True, kw_only=True, tag="dead.letter"):
    """An input that could not be handled, parked with the reason. `source` as in Entry; `data` is the input, as text, cut at 64 KiB."""

    service: str
    subject: str
    source: str
    error: str
    data: str
    caused_by: MessageId = MessageId("")
