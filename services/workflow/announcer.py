"""Publishes StepSettled for steps whose outcome is in Postgres.

JetStream takes a first message on the subject of a step's settlement, and no second one (`expect_last` 0): however often a step is
announced, by whatever process, readers of the log see it settle once.
"""

import asyncio
import logging

from services.workflow.biller import Biller
from services.workflow.patience import Patience
from services.workflow.store import Store
from shared.contracts.catalogue import KIND
from shared.contracts.ids import StepId
from shared.contracts.steps import StepSettled
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus
from shared.runtime.publisher import Ack, StoreError, WrongLastSequence
from shared.runtime.telemetry import Telemetry

log = logging.getLogger(__name__)

RETRY_S = 1.0  # after JetStream refused, or was away for longer than the publisher waits

_SUBJECT = KIND[StepSettled].subject


class Announcer:
    def __init__(self, bus: Bus, store: Store, patiently: Patience, telemetry: Telemetry) -> None:
        self._bus = bus
        self._store = store
        self._patiently = patiently
        self._telemetry = telemetry
        self._biller = Biller(bus, store, patiently, telemetry)

    async def announce(self, steps: list[StepId]) -> None:
        """Returns when all announcements are stored, which takes as long as NATS is away."""
        if not steps:
            return
        await self._biller.bill(steps)  # an announcement says what its step has cost
        waiting = await self._patiently(lambda: self._store.outcomes(steps))
        while waiting:
            sent = [(message, await self._send(message)) for message in waiting]
            waiting = []
            for message, future in sent:
                if await _stored(future):
                    self._telemetry.span("step.settled", message, message.time_ns)  # from the record to its announcement
                else:
                    waiting.append(message)
            if waiting:
                await asyncio.sleep(RETRY_S)

    async def _send(self, message: StepSettled) -> asyncio.Future[Ack]:
        return await self._bus.store(_SUBJECT(message), ENCODER.encode(message), msg_id=message.id, trace=message.trace, expect_last=0)


async def _stored(future: asyncio.Future[Ack]) -> bool:
    try:
        await future
    except WrongLastSequence:
        return True  # by an earlier try, or by the process that was here before
    except StoreError as error:
        log.warning("not announced yet", extra={"error": str(error)})
        return False
    return True
