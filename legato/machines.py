"""The services that decide, by name: where their machine is defined, and which partitions have a journal."""

import importlib
from typing import Any

from shared.contracts import subjects
from shared.contracts.streams import JOURNAL
from shared.core.errors import LegatoError
from shared.core.machine import Machine
from shared.runtime.bus import Bus

DECIDERS = {
    name: f"services.{name}.decide" for name in ("admission", "router", "scheduler", "kv_registry", "autoscaler")
}  # where MACHINE is

WITHOUT = {
    "workflow": "its decisions are rows: it keeps no journal, Postgres is its record",
    "gateway": "it decides nothing",
    "worker": "it decides nothing beyond its own engine",
}


def machine_of(service: str) -> Machine[Any, Any]:
    """The machine of a service. Raises LegatoError for one without."""
    if service in WITHOUT:
        raise LegatoError(f"{service} cannot be replayed: {WITHOUT[service]}")
    if service not in DECIDERS:
        raise LegatoError(f"there is no service {service!r}; {', '.join(DECIDERS)} can be replayed")
    machine: Machine[Any, Any] = importlib.import_module(f"services.{service}.decide").MACHINE
    return machine


async def only_partition(bus: Bus, service: str) -> str:
    """The partition of a service that has just one. Raises LegatoError where there is a choice, or none."""
    found = await partitions(bus, service)
    if len(found) > 1:
        raise LegatoError(f"{service} has journals of several partitions: choose one with --partition: {', '.join(found)}")
    return found[0]


async def partitions(bus: Bus, service: str) -> list[str]:
    """Those of a service that have a journal, by name. Raises LegatoError where none has."""
    info = await bus.js.stream_info(JOURNAL.name, subjects_filter=subjects.journal(service, "*"))
    found = sorted(subject.rpartition(".")[2] for subject in info.state.subjects or {})
    if not found:
        raise LegatoError(f"{service} has no journal here: has it run on this fleet in the last three days?")
    return found
