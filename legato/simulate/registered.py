"""A scenario of a running fleet: its workers as they have registered, and the settings by which its services decide."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from legato.machines import machine_of, partitions
from legato.served import read_workers
from legato.simulate.loading import Document, flat
from shared.contracts import subjects
from shared.contracts.fleet import Capacity, WorkerRegistered, WorkerState
from shared.contracts.journal import JournalOpened
from shared.contracts.streams import JOURNAL
from shared.core.errors import LegatoError
from shared.core.shipped_laws import law_called
from shared.core.step_law import StepLaw, decode_ns, prefill_ns
from shared.drivers.journal import read_record
from shared.drivers.replay import first_where
from shared.runtime.bus import Bus
from shared.runtime.cursor import Record

NAME = "this-fleet"
SERVICES = ("router", "scheduler", "kv_registry")  # whose settings say how steps are placed; limits of tenants are left out
OWN = ("cell", "lease_ms")  # settings that a simulated fleet has of its own
CHUNKS = [2**power for power in range(4, 18)]  # tokens per step that an engine may have


async def registered(bus: Bus) -> Document:
    """Its ready workers, without a law where they do not name one. Raises LegatoError for a fleet that no scenario can say."""
    return scenario_of(await read_workers(bus), {service: await _settings(bus, service) for service in SERVICES})


def scenario_of(workers: Sequence[WorkerRegistered], settings: dict[str, dict[str, Any]]) -> Document:
    """A scenario without a load. Raises LegatoError as `registered`."""
    ready = [worker for worker in workers if worker.state is WorkerState.READY]
    if not ready:
        raise LegatoError("no worker of the fleet is ready: start one, or name a scenario whose fleet is to be simulated")
    _only("cell", [worker.cell for worker in ready], "a simulated fleet has one")
    width = _only("block_tokens", [worker.card.block_tokens for worker in ready], "a simulated fleet has one length of blocks")
    pools: dict[str, list[WorkerRegistered]] = {}
    for worker in ready:
        pools.setdefault(worker.pool, []).append(worker)
    values: dict[str, Any] = {
        "name": NAME,
        "block_tokens": width,
        "pools": {name: _pool(name, pools[name]) for name in sorted(pools)},
        "services": {f"{service}.{key}": value for service, own in settings.items() for key, value in own.items()},
    }
    return Document(origin="the running fleet", values=values)


def _pool(name: str, workers: list[WorkerRegistered]) -> dict[str, Any]:
    """One pool of a scenario. All of its workers must be equal."""
    where = f"in pool {name}, and a scenario's pools have equal workers; write a scenario with a pool for each kind"
    model = _only("model", [worker.card.name for worker in workers], where)
    capacity: Capacity = _only("capacity", [worker.capacity for worker in workers], where)
    hardware = _only("hardware", [worker.hardware for worker in workers], where)
    pool = {
        "count": len(workers),
        "model": model,
        "blocks": capacity.blocks,
        "slots": capacity.slots,
        "usd_per_hour": hardware.usd_per_hour,
    }
    return pool | _law(hardware.kind, capacity, workers[0].card.block_tokens)


def _law(kind: str, capacity: Capacity, block_tokens: int) -> dict[str, Any]:
    """The law that a worker names as its hardware, if it is as fast as that, and how many tokens it takes in a step."""
    try:
        law = law_called(kind)
    except LegatoError:
        return {}
    decode = decode_ns(law, 1, block_tokens)
    if not math.isclose(capacity.decode_tokens_per_s, 1e9 / decode if decode else 0.0, rel_tol=1e-6):
        return {}  # its time is scaled, or this is a real engine that has measured itself
    return {"law": kind} | _tokens_per_step(law, capacity.prefill_tokens_per_s)


def _tokens_per_step(law: StepLaw, tokens_per_s: float) -> dict[str, int]:
    """That with which the law prefills as fast as the worker says; none where no power of two does."""
    found = [tokens for tokens in CHUNKS if math.isclose(tokens * 1e9 / (prefill_ns(law, tokens) or math.inf), tokens_per_s, rel_tol=1e-6)]
    return {"tokens_per_step": found[0]} if found else {}


def _only(what: str, values: Sequence[Any], why: str) -> Any:
    """The one value that all have. Raises LegatoError."""
    different = list(dict.fromkeys(str(value) for value in values))
    if len(different) > 1:
        raise LegatoError(f"the fleet's workers have more than one {what} ({'; '.join(different[:3])}) {why}")
    return values[0]


async def _settings(bus: Bus, service: str) -> dict[str, Any]:
    """What its process was told, as far as it is no default; nothing where the journal does not have it any more."""
    told: dict[str, Any] = {}
    for partition in await partitions(bus, service):
        opened = await _opened(bus, subjects.journal(service, partition))
        told |= dict(flat(msgspec.json.decode(opened.config))) if opened else {}
    default = dict(flat(msgspec.to_builtins(machine_of(service).config())))
    return {key: value for key, value in told.items() if key in default and default[key] != value and key.split(".")[0] not in OWN}


async def _opened(bus: Bus, subject: str) -> JournalOpened | None:
    """Of the last process that wrote this journal: its first record; None where it is no longer kept."""

    async def after(seq: int) -> Record:
        while (record := await bus.next_after(JOURNAL.name, subject, seq)) is not None:
            if read_record(record) is not None:
                return record
            seq = record.seq
        raise LegatoError(f"the journal on {subject} has just gone; try again")

    last = await bus.last(JOURNAL.name, subject)
    newest = None if last is None else read_record(last)
    if last is None or newest is None:
        return None
    epoch = newest.epoch

    def reached(record: Record) -> bool:
        message = read_record(record)
        return message is not None and message.epoch >= epoch

    message = read_record(await first_where(after, last.seq, reached))
    return message if isinstance(message, JournalOpened) else None
