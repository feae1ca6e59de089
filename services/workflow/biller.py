"""Bills attempts whose workers never did, once their step is settled and before that is announced (the rule: policies/estimate.py).

What is estimated stands in the record until the worker reports after all; its report then takes the place of the estimate.
"""

import asyncio
import logging
from collections.abc import Sequence
from itertools import groupby

import msgspec

from services.workflow.patience import Patience
from services.workflow.policies.estimate import Span, cost, share_s
from services.workflow.state import Estimate, Lost
from services.workflow.store import Store
from shared.contracts import subjects
from shared.contracts.fleet import Hardware, WorkerGone, WorkerRegistered
from shared.contracts.ids import StepId, WorkerId
from shared.contracts.streams import FLEET
from shared.core.reading import NoMessage, read
from shared.runtime.bus import Bus, BusError
from shared.runtime.telemetry import Telemetry

log = logging.getLogger(__name__)

AGAIN_S = 0.5  # until NATS is asked again when it did not answer

_DECODER: msgspec.json.Decoder[WorkerRegistered | WorkerGone] = msgspec.json.Decoder(WorkerRegistered | WorkerGone)


class Biller:
    def __init__(self, bus: Bus, store: Store, patiently: Patience, telemetry: Telemetry) -> None:
        self._bus = bus
        self._store = store
        self._patiently = patiently
        self._telemetry = telemetry

    async def bill(self, steps: Sequence[StepId]) -> None:
        """Estimate what is missing on the bills of settled steps. Of a worker that nobody remembers nothing can be said: those attempts
        stay without a bill."""
        lost = await self._patiently(lambda: self._store.lost(steps))
        for worker, group in groupby(lost, key=lambda each: each.worker):
            hardware = await self._hardware(worker)
            if hardware is not None:
                estimates = await self._estimates(worker, list(group), hardware)
                await self._patiently(lambda estimates=estimates: self._store.estimated(estimates))  # type: ignore[misc]
                self._telemetry.count("attempts_estimated", len(estimates))

    async def _estimates(self, worker: WorkerId, lost: list[Lost], hardware: Hardware) -> list[Estimate]:
        span = Span(min(each.span.start_ns for each in lost), max(each.span.end_ns for each in lost))
        there = await self._patiently(lambda: self._store.attempts_on(worker, span))
        costs = [cost(share_s(each.span, there), hardware) for each in lost]
        return [
            Estimate(step=each.step, attempt=each.attempt, gpu_s=gpu_s, usd=usd) for each, (gpu_s, usd) in zip(lost, costs, strict=True)
        ]

    async def _hardware(self, worker: WorkerId) -> Hardware | None:
        """As the worker registered last, which the stream FLEET keeps for an hour."""
        while True:
            try:
                record = await self._bus.last(FLEET.name, subjects.worker(worker))
            except BusError as error:
                log.warning("a lost attempt waits for its worker's price", extra={"worker": worker, "error": str(error)})
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                said = None if record is None else read(_DECODER, record.data)
            except NoMessage:
                return None
            return said.hardware if isinstance(said, WorkerRegistered) else None
