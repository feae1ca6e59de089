"""Who asks: readers with a time limit and little patience, some of them rude, and programs that begin from the top when they were killed.

They read with the real reader. The ids of their steps follow from their names, so a program that is started again finds what it had.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from bench.sim.fleet import MODEL
from bench.sim.plan import Ask, Program
from shared.contracts import subjects
from shared.contracts.ids import StepId, WorkflowId
from shared.contracts.output import End, Output
from shared.contracts.steps import CancelRequested, Sampling, Submission
from shared.contracts.workflows import WorkflowOpened
from shared.runtime.bus import Bus
from shared.runtime.output_reader import OutputError, OutputReader
from shared.runtime.publisher import StoreError, WrongLastSequence

TRIES_MAX = 4  # of one ask, after refusals
RUDE_TRIES_MAX = 8
GRACE_S = 60.0  # after a step's own time, until its reader gives up: nothing may take so long once all is healed

_encode = msgspec.json.encode


class Ear(Protocol):
    """Told what readers see."""

    def submitted(self, step: StepId, ask: Ask) -> None: ...

    def heard(self, reader: str, step: StepId, output: Output) -> None: ...

    def gave_up(self, reader: str, step: StepId) -> None: ...

    def misread(self, reader: str, step: StepId, why: str) -> None: ...


def running(program: Program, ear: Ear, elapsed_s: Callable[[], float], done: Callable[[str], None]) -> Callable[[Any], Any]:
    """The main task of a program's process."""

    async def run(context: Any) -> None:
        await asyncio.sleep(max(0.0, program.start_s - elapsed_s()))
        await _Run(program, context.bus, ear).run()
        done(program.name)

    return run


class _Run:
    """One life of a program."""

    def __init__(self, program: Program, bus: Bus, ear: Ear) -> None:
        self._program = program
        self._bus = bus
        self._ear = ear

    async def run(self) -> None:
        if self._program.budget_usd:
            await self._open()
        for number, ask in enumerate(self._program.asks):
            await asyncio.sleep(ask.wait_s)
            end = await self._ask(f"{self._program.name}-{number}", ask)
            if end is None or end.status not in ("succeeded", "cancelled"):
                return

    async def _open(self) -> None:
        opened = WorkflowOpened(workflow=WorkflowId(self._program.name), budget_usd=self._program.budget_usd)
        try:
            subject = subjects.workflow_event(opened.workflow, "opened")
            await (await self._bus.store(subject, _encode(opened), msg_id=f"{self._program.name}.opened", expect_last=0))
        except WrongLastSequence:  # an earlier life has opened it
            return

    async def _ask(self, name: str, ask: Ask) -> End | None:
        """The step's end; of several tries, the last one's. None: nobody said one in time."""
        end = None
        for number in range(RUDE_TRIES_MAX if self._program.rude else TRIES_MAX):
            end = await self._step(StepId(f"{name}-{number}"), ask)
            if end is None or end.status not in ("refused", "shed") or end.problem is None:
                return end
            await asyncio.sleep(0.001 if self._program.rude else max(0.2, end.problem.retry_after_ms / 1e3))
            if not end.problem.retry_after_ms:
                return end
        return end

    async def _step(self, step: StepId, ask: Ask) -> End | None:
        reader = OutputReader(self._bus, step)
        await reader.open(joining=True)
        leaving = asyncio.ensure_future(self._leave(step, ask.leave_after_s)) if ask.leave_after_s else None
        try:
            async with asyncio.timeout(ask.timeout_ms / 1e3 + GRACE_S):
                await self._submit(step, ask)
                async for output in reader:
                    self._ear.heard(self._program.name, step, output)
                    if output.end is not None:
                        return output.end
        except TimeoutError:
            self._ear.gave_up(self._program.name, step)
        except OutputError as error:
            self._ear.misread(self._program.name, step, str(error))
        finally:
            if leaving is not None:
                leaving.cancel()
            await reader.close()
        return None

    async def _submit(self, step: StepId, ask: Ask) -> None:
        self._ear.submitted(step, ask)
        submission = Submission(
            model=MODEL,
            prompt=ask.prompt,
            sampling=Sampling(max_tokens=ask.max_tokens),
            workflow=self._program.name if self._program.budget_usd else "",
            priority=ask.priority,
            timeout_ms=ask.timeout_ms,
        )
        data = _encode(submission)
        while True:
            try:
                await (await self._bus.store(subjects.submit(step), data, msg_id=f"{step}.submit"))
                break
            except StoreError:
                await asyncio.sleep(0.5)
        if ask.twice:  # under no message id: JetStream keeps both, and admission takes one
            await (await self._bus.store(subjects.submit(step), data))

    async def _leave(self, step: StepId, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await (await self._bus.store(subjects.cancel(step), _encode(CancelRequested())))
