"""Who drives a decision partition: one process at a time, the others stand by.

A key in a NATS bucket whose entries expire after LEASE_TTL_S. The holder writes it anew every third of that; the key's revision makes
each write a compare-and-set, and the revision of the first write is the holder's epoch (it only grows). A process with the same instance
name takes the lease over at once: it is the restart of the one that held it.
"""

import asyncio
import logging

import msgspec
import nats.errors
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

from shared.contracts.streams import LEASES_BUCKET
from shared.core.errors import LegatoError
from shared.runtime.bus import LEASE_TTL_S, Bus
from shared.runtime.ids import new_id

log = logging.getLogger(__name__)

RENEW_S = LEASE_TTL_S / 3
ANSWER_S = LEASE_TTL_S / 4  # an answer that was lost with a connection must not cost the lease
RETRY_S = 0.2


class LeaseLost(LegatoError):
    """Another process drives the partition now; this one must stop at once."""


class _Holder(msgspec.Struct):
    instance: str
    life: str = ""  # told apart from an earlier or a second process of the same name


class Lease:
    """Use as: `lease = await Lease.acquire(bus, "scheduler.local", instance, stop)`; run `keep` from then on; `release` at the end."""

    def __init__(self, bus: Bus, key: str, instance: str) -> None:
        self._bus = bus
        self._key = key
        self._instance = instance
        self._life = new_id()
        self._value = msgspec.json.encode(_Holder(instance, self._life))
        self.epoch = 0
        self._revision = 0

    @classmethod
    async def acquire(cls, bus: Bus, key: str, instance: str, stop: asyncio.Event) -> "Lease | None":
        """Wait until the partition is free (or ours already), however long NATS is away; None when `stop` is set before."""
        lease = cls(bus, key, instance)
        waiting = False
        while not stop.is_set() and not await lease._try_patiently():
            if not waiting:
                log.info("standing by", extra={"partition": key})
                waiting = True
            await asyncio.sleep(RENEW_S / 2)
        if not lease.epoch:
            return None
        log.info("driving the partition", extra={"partition": key, "epoch": lease.epoch})
        return lease

    async def _try_patiently(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._try()
        except (nats.errors.Error, TimeoutError) as error:
            log.warning("lease not asked for yet", extra={"partition": self._key, "error": repr(error)})
            return False

    async def _try(self) -> bool:
        bucket = await self._bus.js.key_value(LEASES_BUCKET)
        try:
            entry = await bucket.get(self._key)
            holder = msgspec.json.decode(entry.value or b"{}", type=_Holder)
            if holder.instance != self._instance:
                return False
            last = entry.revision
        except KeyNotFoundError as error:  # absent, or released: then the marker's revision counts
            last = (error.entry.revision or 0) if error.entry is not None else 0
        try:
            self._revision = await bucket.update(self._key, self._value, last=last)
        except KeyWrongLastSequenceError:
            return False
        self.epoch = self.epoch or self._revision
        return True

    async def keep(self) -> None:
        """Renew for ever. Raises LeaseLost when another process took over.

        While NATS is away nobody else can take over either, so the holder stays: it finds out when NATS is back. What it decides meanwhile
        is fenced where it is stored: by the journal, by message ids, by the sequence of an output.
        """
        loop = asyncio.get_running_loop()
        renewed, wait_s = loop.time(), RENEW_S
        while True:
            await asyncio.sleep(wait_s)
            try:
                async with asyncio.timeout(ANSWER_S):
                    ours = await self._renew()
            except (nats.errors.Error, TimeoutError) as error:
                log.warning("lease not renewed yet", extra={"partition": self._key, "error": repr(error), "age_s": loop.time() - renewed})
                wait_s = RETRY_S
                continue
            if not ours:
                raise LeaseLost(f"{self._key} is driven by another process now")
            renewed, wait_s = loop.time(), RENEW_S

    async def _renew(self) -> bool:
        """Whether the lease is still ours. After an outage of the server the key may have expired: ours again if nobody else took it."""
        bucket = await self._bus.js.key_value(LEASES_BUCKET)
        try:
            self._revision = await bucket.update(self._key, self._value, last=self._revision)
        except KeyWrongLastSequenceError:
            try:
                entry = await bucket.get(self._key)
            except KeyNotFoundError:
                return await self._try()
            if msgspec.json.decode(entry.value or b"{}", type=_Holder).life != self._life:
                return False
            self._revision = entry.revision or 0  # our own renewal, whose answer was lost
        return True

    async def release(self) -> None:
        """Let a stand-by take over at once."""
        try:
            bucket = await self._bus.js.key_value(LEASES_BUCKET)
            await bucket.delete(self._key, last=self._revision)
        except (nats.errors.Error, KeyWrongLastSequenceError, TimeoutError) as error:
            log.info("lease left to expire", extra={"partition": self._key, "error": str(error)})
