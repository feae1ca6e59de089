"""Finds out within a fraction of a second that a worker's connection is gone, which its lease alone tells after seconds.

nats-server answers a request to a subject that nobody listens on by itself (no responders, status 503). So a request on a subject that the
worker listens on, whoever is meant to answer it, tells whether its connection stands: a killed process has none. After such an answer the
question is put once more at once. Two of them count, of a worker that was found listening before, and none that come soon after this
process's own reconnection, when others may not be back yet. A false alarm costs work, not correctness: attempts are fenced. What holds its
connection and does nothing is left to the lease.
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

ROUND_S = 0.05  # between two questions to a worker that is there
ANSWER_S = 0.03  # for nats-server to say that it is not; what it says later counts for the next question
PER_S_MAX = 500  # questions; more workers are asked less often
RECONNECTED_S = 5.0  # in which nothing is concluded

_DECODER: msgspec.json.Decoder[WorkerRegistered | WorkerGone] = msgspec.json.Decoder(WorkerRegistered | WorkerGone)


class Prober:
    """`run` beside the machine."""

    def __init__(self, bus: Bus, cell: CellId) -> None:
        self._bus = bus
        self._cell = cell
        self._inbox = bus.client.new_inbox()
        self._known: dict[WorkerId, bool] = {}  # who should be there; whether it was ever found listening
        self._missed: set[WorkerId] = set()  # since the last question
        self._reconnects = 0
        self._quiet_until = 0.0

    async def run(self) -> None:
        """Until cancelled. Raises BusError, CursorError."""
        await self._bus.listen(f"{self._inbox}.*", self._on_answer)
        cursor = await self._bus.read(Source(stream=FLEET.name, subjects=(subjects.WORKERS,), latest=True))
        try:
            while True:
                await self._follow(cursor)
                if suspects := await self._missing(list(self._known)):
                    await self._tell(await self._missing(suspects))
                await asyncio.sleep(max(ROUND_S, len(self._known) / PER_S_MAX))
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
                    self._known.setdefault(event.worker, False)
                else:
                    self._known.pop(event.worker, None)

    async def _missing(self, workers: list[WorkerId]) -> list[WorkerId]:
        """Those of them that have no connection, and had one; none where nothing may be concluded now."""
        self._missed.clear()
        for worker in workers:
            try:
                await self._bus.publish(subjects.alive(worker), b"", f"{self._inbox}.{worker}")
            except (BusError, nats.errors.Error):  # NATS is away: nothing can be concluded
                self._quiet_until = asyncio.get_running_loop().time() + RECONNECTED_S
                break
        await asyncio.sleep(ANSWER_S)
        if self._is_quiet():
            self._known = dict.fromkeys(self._known, False)
            return []
        self._known |= dict.fromkeys([worker for worker in workers if worker not in self._missed], True)
        return [worker for worker in workers if worker in self._missed and self._known[worker]]

    def _on_answer(self, subject: str, _: str, __: bytes, headers: bytes) -> None:
        if headers and read_headers(headers).get("Status") == "503":
            self._missed.add(WorkerId(subject.rpartition(".")[2]))

    def _is_quiet(self) -> bool:
        """Whether nothing may be concluded now."""
        now, client = asyncio.get_running_loop().time(), self._bus.client
        if client.stats["reconnects"] != self._reconnects or not client.is_connected:
            self._reconnects, self._quiet_until = client.stats["reconnects"], now + RECONNECTED_S
        return now < self._quiet_until

    async def _tell(self, gone: list[WorkerId]) -> None:
        for worker in gone:
            del self._known[worker]  # until it registers again
            log.warning("worker's connection is gone", extra={"worker": worker})
            vanished = WorkerVanished(time_ns=now_ns(), worker=worker, cell=self._cell)
            await self._bus.publish(subjects.vanished(self._cell), ENCODER.encode(vanished))
