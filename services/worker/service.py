"""Wiring of a worker: registration, heartbeats, dispatches, revocations, KV events, drain. It decides nothing beyond its own engine."""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import msgspec
import nats.errors

from services.worker.attempt import Attempt
from services.worker.config import WorkerConfig
from services.worker.engines.choice import build, equipped
from services.worker.fleet import Presence
from services.worker.kv_relay import KvRelay
from services.worker.notices.watch import watch
from services.worker.prompts import Prompts
from shared.contracts import subjects
from shared.contracts.fleet import WorkerState
from shared.contracts.ids import MessageId, StepId, WorkerId, is_subject_token
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status
from shared.contracts.steps import AttemptEnded, HandedOver, HandOverAsked, StepDispatched, StepRevoked
from shared.core.errors import LegatoError
from shared.core.machine import ENCODER
from shared.core.reading import NoMessage, read
from shared.runtime.bus import Bus, BusError
from shared.runtime.clock import now_ns
from shared.runtime.lifecycle import Context
from shared.runtime.publisher import StoreError

log = logging.getLogger(__name__)

HAND_BACK_TIMEOUT_S = 5.0  # for attempts to store what they have and report

_DISPATCH = msgspec.json.Decoder(StepDispatched)
_REVOKE = msgspec.json.Decoder(StepRevoked)
_HAND_OVER = msgspec.json.Decoder(HandOverAsked)


async def run(context: Context) -> None:
    """Serve until told to stop, then drain."""
    if not is_subject_token(context.instance):
        raise LegatoError(f"a worker's instance name is part of NATS subjects: letters, digits, - and _ only, not {context.instance!r}")
    config = equipped(context.section(WorkerConfig, "worker"), context.options)
    await Worker(context, config).run()


class Worker:
    """One engine and the attempts in its hands."""

    def __init__(self, context: Context, config: WorkerConfig) -> None:
        self._context = context
        self._config = config
        self._bus: Bus = context.bus
        self._id = WorkerId(context.instance)
        self._engine = build(config.engine, context.options)
        self._attempts: dict[StepId, Attempt] = {}
        self._relay = KvRelay(self._bus, self._id, config.cell, self._engine)
        self._presence = Presence(self._relay, config, self._attempts)
        self._prompts = Prompts(self._bus, self._id)
        self._idle = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()  # attempts, and reports that are not stored yet
        self._tasks: asyncio.TaskGroup

    async def run(self) -> None:
        await self._presence.recall()
        async with asyncio.TaskGroup() as self._tasks:
            await self._prompts.open()
            heard = [
                await self._bus.listen(subjects.dispatched_to(self._id), self._on_dispatch),
                await self._bus.listen(subjects.revoked_from(self._id), self._on_revoke),
                await self._bus.listen(subjects.handover(self._id), self._on_hand_over),
            ]
            await self._bus.listen(subjects.alive(self._id), _heard)
            await self._bus.subscribe(subjects.kv_resync(self._id), self._relay.on_resync)
            serving = self._tasks.create_task(self._serve())
            beating = self._tasks.create_task(self._presence.run())
            noticing = self._tasks.create_task(self._leave_at_notice())
            await self._context.stop.wait()
            noticing.cancel()
            await self._drain()
            for each in heard:  # whoever asks from now on learns from nats-server that nobody is there
                with suppress(nats.errors.Error):
                    await each.unsubscribe()
            for task in (serving, beating, *self._running):
                task.cancel()
        await self._presence.good_bye()

    async def _serve(self) -> None:
        """Load the engine; when it dies, load it again, after a wait that grows while it keeps dying."""
        wait_s = 0.5
        while True:
            await self._presence.enter(WorkerState.LOADING)
            try:
                await self._presence.load()
            except LegatoError as error:
                log.error("the engine did not start: %s", error)
            else:
                wait_s = min(wait_s, 0.5) if await self._serve_until_death() else wait_s
            if self._presence.state is WorkerState.DRAINING:
                return
            await self._presence.enter(WorkerState.DOWN)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, self._config.restart_wait_max_s)

    async def _serve_until_death(self) -> bool:
        """Whether the engine lived long enough to count as healthy."""
        started = asyncio.get_running_loop().time()
        relaying = self._tasks.create_task(self._relay.run(self._presence.epoch))
        await self._presence.enter(WorkerState.READY)
        if self._presence.state is WorkerState.READY:  # it may have been told to leave while it loaded
            self._context.ready.set()
        try:
            reason = await self._engine.died()
            log.error("the engine died: %s", reason)
        finally:
            self._context.ready.clear()
            relaying.cancel()
        return asyncio.get_running_loop().time() - started > 60.0

    # --- attempts ------------------------------------------------------------------------------------------------------------

    def _on_dispatch(self, subject: str, _: str, data: bytes, __: bytes) -> None:
        try:
            dispatch = read(_DISPATCH, data)
        except NoMessage as error:
            log.error("unreadable dispatch", extra={"subject": subject, "error": str(error)})
            return
        known = self._attempts.get(dispatch.step)
        if known is not None:
            if known.dispatch.attempt >= dispatch.attempt:
                return
            self._start(known.revoke(Reason.SUPERSEDED))
        served = self._presence.served
        if served is None or self._presence.state is not WorkerState.READY or len(self._attempts) >= self._config.attempts_max:
            self._start(self._report(refused(dispatch, self._presence.state)))
            return
        attempt = self._attempts[dispatch.step] = Attempt(self._bus, served, self._prompts, dispatch)
        self._start(self._run(attempt))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Beside all else: a message must not wait until the one before is dealt with."""
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, attempt: Attempt) -> None:
        dispatch = attempt.dispatch
        started = now_ns()
        try:
            report = await attempt.run()
        except Exception as error:  # a bug: say so where the step is followed, and go on serving
            log.exception("an attempt failed")
            report = refused(dispatch, self._presence.state, f"{type(error).__name__}: {error}")
        finally:
            if self._attempts.get(dispatch.step) is attempt:
                del self._attempts[dispatch.step]
            if not self._attempts:
                self._idle.set()
        if report is not None:
            await self._report(report)
        self._context.telemetry.count(f"attempts_{report.status if report else 'void'}")
        self._context.telemetry.span("worker.attempt", dispatch, started, worker=self._id, attempt=dispatch.attempt)

    async def _report(self, report: AttemptEnded) -> None:
        """One that cannot be stored is missed by the scheduler, which does not see the attempt in the heartbeats and gives the step to
        another; that one finds in the output what this one said."""
        msg_id = MessageId(f"{report.step}.ended.{report.attempt}")
        data = ENCODER.encode(msgspec.structs.replace(report, id=msg_id, time_ns=now_ns()))
        subject = subjects.step_event(report.step, f"ended.{report.cell}")
        try:
            await (await self._bus.store(subject, data, msg_id=msg_id, trace=report.trace))
        except StoreError as error:
            log.error("attempt not reported: %s", error, extra={"step": report.step, "attempt": report.attempt})

    def _on_revoke(self, subject: str, _: str, data: bytes, __: bytes) -> None:
        try:
            revoked = read(_REVOKE, data)
        except NoMessage as error:
            log.error("unreadable revocation", extra={"subject": subject, "error": str(error)})
            return
        attempt = self._attempts.get(revoked.step)
        if attempt is not None and attempt.dispatch.attempt == revoked.attempt:
            self._start(attempt.revoke(revoked.reason))

    def _on_hand_over(self, subject: str, reply: str, data: bytes, _: bytes) -> None:
        try:
            asked = read(_HAND_OVER, data)
        except NoMessage as error:
            log.error("unreadable request to hand over", extra={"subject": subject, "error": str(error)})
            return
        if reply:  # else nobody would go on
            self._start(self._hand_over(asked, reply))

    async def _hand_over(self, asked: HandOverAsked, reply: str) -> None:
        attempt = self._attempts.get(asked.step)
        older = attempt is not None and attempt.dispatch.attempt < asked.attempt
        handed = await attempt.hand_over(asked) if attempt is not None and older else HandedOver()
        try:
            await self._bus.publish(reply, ENCODER.encode(handed))
        except BusError as error:  # then the asker looks what is stored
            log.warning("not told what was handed over", extra={"step": asked.step, "error": str(error)})

    async def _leave_at_notice(self) -> None:
        """Once this machine's end is told, have nothing on it when it comes. The process stays, so that nobody starts it again here."""
        notice = await watch(self._config.notices)
        self._context.ready.clear()
        left_s = max(0.0, (notice.gone_ns - now_ns()) / 1e9)
        await self._hand_on(left_s - min(HAND_BACK_TIMEOUT_S, left_s / 2))

    async def _drain(self) -> None:
        """Take nothing new, have nothing left, stop the engine."""
        await self._hand_on(self._config.drain_timeout_s)
        await self._engine.drain(self._config.drain_timeout_s)
        if self._running:
            await asyncio.wait(self._running, timeout=HAND_BACK_TIMEOUT_S)

    async def _hand_on(self, within_s: float) -> None:
        """Let running attempts finish or be taken over by others, and hand back what is left then."""
        await self._presence.leave(now_ns() + int(within_s * 1e9))
        if not await self._all_done(within_s):
            for attempt in list(self._attempts.values()):
                await attempt.hand_back()
            await self._all_done(HAND_BACK_TIMEOUT_S)

    async def _all_done(self, timeout_s: float) -> bool:
        """Whether no attempt was left within the time."""
        if self._attempts:
            self._idle.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()
            except TimeoutError:
                return False
        return True


def _heard(subject: str, reply: str, data: bytes, headers: bytes) -> None:
    """Nothing is to be done: that this connection listens is the answer."""


def refused(dispatch: StepDispatched, state: WorkerState, bug: str = "") -> AttemptEnded:
    """The report of an attempt that this worker cannot run; another may."""
    return AttemptEnded(
        step=dispatch.step,
        workflow=dispatch.workflow,
        tenant=dispatch.tenant,
        trace=dispatch.trace,
        cell=dispatch.cell,
        worker=dispatch.worker,
        attempt=dispatch.attempt,
        status=Status.FAILED,
        finish_reason=FinishReason.ERROR,
        problem=Problem(reason=Reason.INTERNAL, message=bug)
        if bug
        else Problem(reason=Reason.NO_CAPACITY, message=f"the worker is {state}"),
        retryable=True,
    )
