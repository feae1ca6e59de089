"""Removes the prompts that no open step can need any more (the rule: policies/keep_prompts.py), so that what an agent's growing prompts
take does not grow with the square of its steps.

Off the path of any request: a question to the stream every few seconds, and three small ones and a purge when there is something to remove.
What it reads it reads in this order: the stream, the log, then Postgres. So a step that is admitted meanwhile is newer than all that goes.
A process that was overtaken does no harm: steps that were not open do not open again.
"""

import asyncio
import logging

import nats.errors

from services.workflow.config import WorkflowConfig
from services.workflow.patience import Patience
from services.workflow.policies.keep_prompts import kept_since_ns
from services.workflow.recorder import Recorder
from services.workflow.store import Store
from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.streams import PROMPTS, STEPS
from shared.core.errors import LegatoError
from shared.runtime.bus import Bus, Extent

log = logging.getLogger(__name__)

CATCH_UP_S = 30.0  # a look is given up when the log is not recorded by then; the next one follows


class PromptKeeper:
    """Runs beside a Recorder."""

    def __init__(self, bus: Bus, store: Store, recorder: Recorder, config: WorkflowConfig) -> None:
        self._bus = bus
        self._store = store
        self._recorder = recorder
        self._config = config

    async def run(self, patiently: Patience) -> None:
        """Look for ever, unless `prompts_kept_s` is 0. What NATS does not allow now is left for the next look."""
        while self._config.prompts_kept_s:
            await asyncio.sleep(self._config.prompts_sweep_ms / 1000)
            try:
                await self._sweep(patiently)
            except (LegatoError, nats.errors.Error, TimeoutError) as error:
                log.warning("prompts not looked at", extra={"error": repr(error)})

    async def _sweep(self, patiently: Patience) -> None:
        stored = await self._bus.extent(PROMPTS.name)
        if not stored.messages or stored.first_ns >= kept_since_ns(stored.at_ns, (), self._config):
            return
        last = await self._last_admission()
        async with asyncio.timeout(CATCH_UP_S):
            await self._recorder.reach(last)
        oldest = await patiently(self._store.oldest_open)
        times = () if oldest is None else await self._times(*oldest)
        before = await self._first_kept(stored, kept_since_ns(stored.at_ns, times, self._config))
        if before > stored.first_seq:
            await self._bus.purge(PROMPTS.name, before)
            log.debug("prompts removed", extra={"before": before})

    async def _last_admission(self) -> int:
        last = await self._bus.last(STEPS.name, subjects.ADMITTED)
        return 0 if last is None else last.seq

    async def _times(self, step: StepId, accepted_ns: int) -> tuple[int, ...]:
        """When a step was admitted, by the clocks of whoever did that and of nats-server."""
        admission = await self._bus.next_after(STEPS.name, subjects.step_event(step, "admitted"), 0)
        return (accepted_ns,) if admission is None else (accepted_ns, admission.stored_ns)

    async def _first_kept(self, stored: Extent, since_ns: int) -> int:
        """The sequence of the first prompt that stays."""
        if stored.first_ns >= since_ns:
            return stored.first_seq
        if stored.last_ns < since_ns:
            return stored.last_seq + 1
        first = await self._bus.first_since(PROMPTS.name, subjects.PROMPT, since_ns)
        return stored.first_seq if first is None else min(first.seq, stored.last_seq + 1)
