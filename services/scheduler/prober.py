"""Finds out within a fraction of a second that a worker's connection is gone, which its lease alone tells after seconds.

nats-server answers a request to a subject that nobody listens on by itself (no responders, status 503). So a request on a subject that the
worker listens on, whoever is meant to answer it, tells whether its connection stands: a killed process has none. Two such answers in
a row count, of a worker that was found listening before, and none that come soon after this process's own reconnection, when others
may not be back yet. A false alarm costs work, not correctness: attempts are fenced. What holds its connection and does nothing is left
to the lease.
"""

import asyncio
import logging

import msgspec
import nats.errors

from shared.contracts import subjects
from shared.contracts.fleet import WorkerGone, WorkerRegistered, WorkerState, WorkerVanished
from shared.contracts.ids import CellId, WorkerId
from shared.contracts.streams import FLEET
from shared.core.machine import ENCODER
from shared.core.reading import NoMessage, read
from shared.runtime.bus import Bus, BusError
from shared.runtime.clock import now_ns
from shared.runtime.cursor import Cursor, Source
from shared.runtime.nats_client import read_headers

log = logging.getLogger(__name__)

ROUND_S = 0.15  # between two requests to a worker
PER_S_MAX = 500  # requests; more workers are asked less often
MISSES = 2
RECONNECTED_S = 5.0  # in which nothing is concluded

_DECODER: msgspec.json.Decoder[WorkerRegistered | WorkerGone] = msgspec.json.Decoder(WorkerRegistered | WorkerGone)


class Prober:
    """`run` beside the machine."""

    def __init__(self, bus: Bus, cell: CellId) -> None:
        self._bus = bus
        self._cell = cell
        self._inbox = bus.client.new_inbox()
        self._misses: dict[WorkerId, int | None] = {}  # of each worker that should be there, in a row; None: not yet found listening
        self._missed: set[WorkerId] = set()  # in this round
        self._reconnects = 0
        self._quiet_until = 0.0

    async def run(self) -> None:
        """Until cancelled. Raises BusError, CursorError."""
        await self._bus.listen(f"{self._inbox}.*", self._on_answer)
        cursor = await self._bus.read(Source(stream=FLEET.name, subjects=(subjects.WORKERS,), latest=True))
        try:
            while True:
                await self._follow(cursor)
                await self._ask()
                await asyncio.sleep(max(ROUND_S, len(self._misses) / PER_S_MAX))
                await self._conclude()
        finally:
            await cursor.close()

    async def _follow(self, cursor: Cursor) -> None:
        while records := await cursor.take_now(256):
            for record in records:
                try:
                    event = read(_DECODER, record.data)
                except NoMessage:  # the machine reads it too, and parks it
                    continue
                if event.cell == self._cell and isinstance(event, WorkerRegistered) and event.state is WorkerState.READY:
                    self._misses.setdefault(event.worker, None)
                else:
                    self._misses.pop(event.worker, None)

    async def _ask(self) -> None:
        self._missed.clear()
        for worker in self._misses:
            try:
                await self._bus.publish(subjects.alive(worker), b"", f"{self._inbox}.{worker}")
            except (BusError, nats.errors.Error):  # NATS is away: nothing can be concluded
                self._quiet_until = asyncio.get_running_loop().time() + RECONNECTED_S
                return

    def _on_answer(self, subject: str, _: str, __: bytes, headers: bytes) -> None:
        if headers and read_headers(headers).get("Status") == "503":
            self._missed.add(WorkerId(subject.rpartition(".")[2]))

    async def _conclude(self) -> None:
        now, client = asyncio.get_running_loop().time(), self._bus.client
        if client.stats["reconnects"] != self._reconnects or not client.is_connected:
            self._reconnects, self._quiet_until = client.stats["reconnects"], now + RECONNECTED_S
        if now < self._quiet_until:
            self._misses = dict.fromkeys(self._misses)
            return
        for worker, misses in list(self._misses.items()):
            if worker not in self._missed:
                self._misses[worker] = 0
            elif misses is not None and misses + 1 < MISSES:
                self._misses[worker] = misses + 1
            elif misses is not None:
                del self._misses[worker]  # until it registers again
                log.warning("worker's connection is gone", extra={"worker": worker})
                vanished = WorkerVanished(time_ns=now_ns(), worker=worker, cell=self._cell)
                await self._bus.publish(subjects.vanished(self._cell), ENCODER.encode(vanished))
