"""Looks for steps of which nothing was heard, and gets them going again or closes them (the rule: policies/redrive.py).

It looks only at what is recorded up to the end that the log had when the look began, so a reader that lags behind closes nothing that
has ended. What it decides it publishes first and notes afterwards: a crash in between repeats messages, whose ids keep copies out.
"""

import asyncio
import logging

import msgspec
import nats.errors

from services.workflow.closer import close
from services.workflow.config import WorkflowConfig
from services.workflow.patience import Patience
from services.workflow.policies.redrive import Action, look
from services.workflow.recorder import PATTERNS, Recorder
from services.workflow.state import Due
from services.workflow.store import Store
from shared.contracts import subjects
from shared.contracts.catalogue import KIND
from shared.contracts.ids import MessageId, StepId
from shared.contracts.steps import StepAdmitted
from shared.contracts.streams import STEPS
from shared.core.errors import LegatoError
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns
from shared.runtime.telemetry import Telemetry

log = logging.getLogger(__name__)

CATCH_UP_S = 30.0  # a look is given up when the log is not recorded by then; the next one follows


class Redriver:
    """Runs beside a Recorder."""

    def __init__(self, bus: Bus, store: Store, recorder: Recorder, config: WorkflowConfig, telemetry: Telemetry) -> None:
        self._bus = bus
        self._store = store
        self._recorder = recorder
        self._config = config
        self._telemetry = telemetry

    async def run(self, patiently: Patience) -> None:
        """Look for ever. What NATS does not allow now is left for the next look."""
        while True:
            await asyncio.sleep(self._config.sweep_ms / 1000)
            try:
                await self._sweep(patiently)
            except (LegatoError, nats.errors.Error, TimeoutError) as error:
                log.warning("stalled steps not seen to", extra={"error": repr(error)})

    async def _sweep(self, patiently: Patience) -> None:
        now = now_ns()
        end = await self._end_of_log()
        async with asyncio.timeout(CATCH_UP_S):
            await self._recorder.reach(end)
        looks: list[tuple[StepId, int, int]] = []
        try:
            for due in await patiently(lambda: self._store.due(now, self._config.sweep_max)):
                looks.append(await self._look(due, now))
        finally:
            async with self._recorder.lock:
                await patiently(lambda: self._store.looked(looks))

    async def _end_of_log(self) -> int:
        """The sequence of the last event that a recorder reads."""
        last = [await self._bus.last(STEPS.name, pattern) for pattern in PATTERNS]
        return max((record.seq for record in last if record is not None), default=0)

    async def _look(self, due: Due, now: int) -> tuple[StepId, int, int]:
        last = await self._bus.last(STEPS.name, subjects.step_history(due.step))
        due = msgspec.structs.replace(due, silent=last is None or last.subject == KIND[StepAdmitted].subject(due.admitted))
        action, redrives, check_ns = look(due, now, self._config)
        if action is Action.ANNOUNCE:
            await self._announce(due, redrives, now)
        elif action is Action.CLOSE:
            log.warning("nobody ended this step", extra={"step": due.step, "attempt": due.attempt})
            self._telemetry.count("steps_overdue")
            await close(self._bus, self._store, due, now)
        return due.step, redrives, check_ns

    async def _announce(self, due: Due, redrives: int, now: int) -> None:
        log.info("announced again", extra={"step": due.step, "redrive": redrives})
        self._telemetry.count("steps_redriven")
        again = msgspec.structs.replace(
            due.admitted, id=MessageId(f"{due.step}.redrive.{redrives}"), cause=due.admitted.id, time_ns=now, reservation=None
        )
        await (await self._bus.store(KIND[StepAdmitted].subject(again), ENCODER.encode(again), msg_id=again.id, trace=again.trace))
