"""Forgets what ended long ago, so that Postgres does not grow for ever: steps that belong to no workflow `kept_days` after their end, and
workflows, with all that belongs to them, `kept_days` after the last that was heard of them or their deadline. What they have cost stays,
in sums by the hour: `legato cost` says the same before and after.

Off the path of any request, a batch in a transaction, with a pause behind each. The log forgets what it has of them after a day, so nothing
of them comes again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from services.workflow.config import WorkflowConfig
from services.workflow.patience import Patience
from services.workflow.store import Store
from shared.runtime.clock import now_ns

log = logging.getLogger(__name__)

DAY_NS = 86_400_000_000_000
SWEEP_S = 600.0  # between two looks: nobody waits for it
PAUSE_S = 0.1  # between two batches
STEPS_MAX = 1_000  # of a batch
WORKFLOWS_MAX = 20  # of a batch, with all their steps


class Retention:
    """Runs beside a Recorder."""

    def __init__(self, store: Store, config: WorkflowConfig) -> None:
        self._store = store
        self._config = config

    async def run(self, patiently: Patience) -> None:
        """Look for ever, unless `kept_days` is 0."""
        while self._config.kept_days:
            await self.sweep(patiently)
            await asyncio.sleep(SWEEP_S)

    async def sweep(self, patiently: Patience) -> None:
        """Forget all that is old by now."""
        before_ns = now_ns() - int(self._config.kept_days * DAY_NS)
        steps = await self._batches(patiently, lambda: self._store.forget_steps(before_ns, STEPS_MAX), STEPS_MAX)
        workflows = await self._batches(patiently, lambda: self._store.forget_workflows(before_ns, WORKFLOWS_MAX), WORKFLOWS_MAX)
        if steps or workflows:
            log.info("old records removed", extra={"steps": steps, "workflows": workflows})

    async def _batches(self, patiently: Patience, forget: Callable[[], Awaitable[int]], most: int) -> int:
        total = 0
        while True:
            forgotten = await patiently(forget)
            total += forgotten
            if forgotten < most:
                return total
            await asyncio.sleep(PAUSE_S)
