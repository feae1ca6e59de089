"""Passes the engine's cache changes on to the registry, numbered from 1 in each epoch; answers resync requests with snapshots."""

import logging

from nats.aio.msg import Msg

from services.worker.engines.base import Engine
from shared.contracts import subjects
from shared.contracts.ids import CellId, WorkerId
from shared.contracts.kv import KvChanged, KvSnapshot
from shared.core.errors import LegatoError
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus, BusError
from shared.runtime.clock import now_ns

log = logging.getLogger(__name__)

HASHES_PER_PART = 50_000  # about 1 MB of JSON


class KvRelay:
    """The engine's sequence numbers are kept, so that what the engine lost shows as a gap."""

    def __init__(self, bus: Bus, worker: WorkerId, cell: CellId, engine: Engine) -> None:
        self.seq = 0
        self.bus = bus
        self.worker = worker
        self._cell = cell
        self.engine = engine
        self._epoch = 0

    async def run(self, epoch: int) -> None:
        """Until cancelled."""
        self._epoch, self.seq = epoch, 0
        async for batch in self.engine.kv_events():
            self.seq = batch.seq
            changed = KvChanged(time_ns=now_ns(), worker=self.worker, cell=self._cell, epoch=epoch, seq=batch.seq, events=batch.events)
            try:
                await self.bus.publish(subjects.kv(self.worker), ENCODER.encode(changed))
            except BusError as error:  # the registry sees the gap in the numbers, and asks for a snapshot
                log.warning("cache change not told", extra={"seq": batch.seq, "error": str(error)})

    async def on_resync(self, _: Msg) -> None:
        """The registry has missed something."""
        try:
            seq, hashes = await self.engine.kv_snapshot()
        except LegatoError as error:
            log.warning("no snapshot of the cache", extra={"error": str(error)})
            return
        parts = max(1, -(-len(hashes) // HASHES_PER_PART))
        for part in range(parts):
            piece = hashes[part * HASHES_PER_PART : (part + 1) * HASHES_PER_PART]
            snapshot = KvSnapshot(
                time_ns=now_ns(),
                worker=self.worker,
                cell=self._cell,
                epoch=self._epoch,
                seq=seq,
                hashes=piece,
                part=part,
                parts=parts,
            )
            await self.bus.publish(subjects.kv(self.worker), ENCODER.encode(snapshot))
