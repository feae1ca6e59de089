"""Answers `legato.query.step.<step>` with what Postgres has of the step. Every process of the service answers, one of them each request."""

import asyncio
import logging

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from services.workflow.store import Store
from shared.contracts import subjects
from shared.contracts.ids import StepId, is_subject_token
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import StepRecord, StepState
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus
from shared.runtime.db import is_retryable

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
QUEUE_GROUP = "workflow"

ABSENT = Problem(reason=Reason.INVALID, message="no accepted step has this id; a step is recorded a moment after it was accepted")
AWAY = Problem(reason=Reason.INTERNAL, message="the record cannot be read now", retry_after_ms=1_000)


class Queries:
    """Use as: `subscription = await Queries(bus, store).open()`, and unsubscribe at the end."""

    def __init__(self, bus: Bus, store: Store) -> None:
        self._bus = bus
        self._store = store

    async def open(self) -> Subscription:
        return await self._bus.subscribe(subjects.QUERY_STEP, self._on_step, queue=QUEUE_GROUP)

    async def _on_step(self, msg: Msg) -> None:
        if msg.reply:
            record = await self._find(StepId(msg.subject.rpartition(".")[2]))
            await self._bus.publish(msg.reply, ENCODER.encode(record))

    async def _find(self, step: StepId) -> StepRecord:
        if not is_subject_token(step):  # what Postgres could not even compare
            return StepRecord(step=step, status=StepState.UNKNOWN, problem=ABSENT)
        try:
            record = await asyncio.wait_for(self._store.get_step(step), TIMEOUT_S)
        except Exception as error:
            if not is_retryable(error):
                raise
            log.warning("query not answered", extra={"step": step, "error": repr(error)})
            return StepRecord(step=step, status=StepState.UNKNOWN, problem=AWAY)
        return record or StepRecord(step=step, status=StepState.UNKNOWN, problem=ABSENT)
