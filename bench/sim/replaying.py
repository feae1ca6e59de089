"""Invariant 8: what a journal has recorded comes out again, byte for byte, and leads to the state that its process had."""

from typing import Any

import msgspec

from shared.contracts import subjects
from shared.contracts.journal import JournalBatch, JournalOpened
from shared.contracts.streams import JOURNAL
from shared.drivers.live import LiveDriver
from shared.drivers.refold import Refold, differences
from shared.sim.checkers import Violation
from shared.sim.nats_server import NatsServer

_RECORD: msgspec.json.Decoder[JournalOpened | JournalBatch] = msgspec.json.Decoder(JournalOpened | JournalBatch)


def replay_all(server: NatsServer, drivers: dict[str, LiveDriver[Any, Any]]) -> None:
    """Raises Violation."""
    for service, driver in drivers.items():
        replay(server, service, driver)


def replay(server: NatsServer, service: str, driver: LiveDriver[Any, Any]) -> None:
    """One partition, from its first entry."""
    machine, partition = driver.machine, driver._partition
    refold, number = Refold(machine, machine.start(driver.config), partition), 0
    for seq in server.streams[JOURNAL.name].by_subject.get(subjects.journal(service, partition), []):
        record = _RECORD.decode(server.streams[JOURNAL.name].messages[seq].data)
        for entry in record.entries if isinstance(record, JournalBatch) else ():
            number += 1
            if entry.number != number:
                raise Violation(f"invariant 8: {service} has entry {entry.number} where {number} should be")
            taken = refold.take(entry, record.epoch, driver.config)
            if not taken.same:
                raise Violation(f"invariant 8: {service} decides its entry {number} otherwise: {differences(entry, taken)[:1]}")
    if number == driver._number and msgspec.json.encode(refold.state) != msgspec.json.encode(driver.state):
        raise Violation(f"invariant 8: the journal of {service} leads to another state than its process has")
