"""One request's step on the bus: submitted, read, and cancelled when its reader goes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from services.gateway.config import GatewayConfig
from services.gateway.dialect import Asked
from services.gateway.errors import as_sent, problem_of
from shared.contracts import subjects
from shared.contracts.ids import MessageId, StepId
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status
from shared.contracts.output import End, Output
from shared.contracts.steps import CancelRequested
from shared.contracts.streams import STEPS
from shared.core.errors import LegatoError
from shared.core.machine import ENCODER
from shared.core.silence import Silence
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns
from shared.runtime.conversations import Reference, Sender
from shared.runtime.ids import new_id
from shared.runtime.output_reader import OutputReader
from shared.runtime.publisher import Ack
from shared.runtime.tasks import end

log = logging.getLogger(__name__)

HEADERS_BYTES_MAX = 4096  # of a stored message, beside its body
CANCEL_TIMEOUT_S = 30.0  # for JetStream to take it; it may be restarting

# Of a shared step that was refused, and all of what was asked: the step to go on with, and whether it is still to be submitted.
NextTry = Callable[[StepId, bytes], Awaitable[tuple[StepId, bool]]]


class Exchange:
    """Use as: `await exchange.submit(asked)`, then `await exchange.outputs(...)` until `end` is there, and `close()` in any case.

    A named step of a workflow is shared (`share`): whoever asks for it again joins it, so it goes on when this reader leaves.
    """

    def __init__(self, bus: Bus, config: GatewayConfig, trace: str, farewells: "Farewells", sender: Sender) -> None:
        self.step = StepId(new_id())
        self.trace = trace
        self.workflow = ""  # that the step belongs to
        self.end: End | None = None
        self.copy = False  # the stream had this submission already
        self._bus = bus
        self._config = config
        self._farewells = farewells
        self._reader = OutputReader(bus, self.step)
        self._sender = sender
        self._reference: Reference | None = None  # until the fleet has answered
        self._settled = True  # nothing to cancel
        self._shared = False
        self._next_try: NextTry | None = None
        self._recorded: Output | None = None
        self._names: Mapping[str, str] = {}
        self._answered = False  # something was heard of it
        self._loop = asyncio.get_running_loop()
        self._silence = self._limits(None)

    def step_is(self, step: StepId) -> None:
        """Be about this step."""
        self.step = step
        self._reader = OutputReader(self._bus, step)

    def share(self, step: StepId, next_try: "NextTry") -> None:
        """Be about this step, which others may have submitted and may read."""
        self.step_is(step)
        self._shared = True
        self._next_try = next_try

    async def join(self, asked: Asked) -> Problem | None:
        """Listen to a shared step that was submitted before, from its beginning."""
        self._names = asked.names
        self._silence = self._limits(asked.submission.timeout_ms)
        self._settled = False
        try:
            async with asyncio.timeout(self._config.submit_timeout_ms / 1e3):
                await self._reader.open(joining=True)
        except (LegatoError, TimeoutError) as error:
            return self._unreachable(error)
        return None

    def have(self, recorded: Output) -> None:
        """The whole output, as it was recorded."""
        self._recorded = recorded

    async def submit(self, asked: Asked) -> Problem | None:
        """Listen, then submit. What could not be submitted, and why, or None."""
        limit = min(self._bus.client.max_payload, STEPS.max_msg_bytes) - HEADERS_BYTES_MAX
        if len(asked.data) > limit:
            return Problem(reason=Reason.TOO_LARGE, message=f"the request is {len(asked.data)} bytes long, the limit is {limit}")
        self._names = asked.names
        self._silence = self._limits(asked.submission.timeout_ms)
        self._settled = False  # from here on it may be stored, whatever happens
        try:
            async with asyncio.timeout(self._config.submit_timeout_ms / 1e3):
                self._reference = await self._sender.refer(asked.submission, asked.data)
                await self._reader.open(joining=self._shared)
                stored = await self._store(self._reference.data if self._reference is not None else asked.data)
                self.copy = (await stored).duplicate  # costs nothing: the fleet works on it already
        except (LegatoError, TimeoutError) as error:
            return self._unreachable(error)
        return None

    async def outputs(self, wait_s: float) -> list[Output]:
        """What came, at least one; none after `wait_s` of silence. After a silence that is too long, an end made here."""
        if self._recorded is not None:
            self.end = self._recorded.end
            return [self._recorded]
        try:
            async with asyncio.timeout(min(wait_s, self._left_s())):
                outputs = await self._reader.take()
        except TimeoutError:
            return [] if self._left_s() > 0 else [self._give_up(Status.EXPIRED, Reason.DEADLINE_PASSED, self._late())]
        except LegatoError as error:
            log.warning("output cannot be read", extra={"step": self.step, "error": str(error)})
            return [self._give_up(Status.FAILED, Reason.INTERNAL, "the step's output can no longer be read")]
        self._silence.heard(self._loop.time())
        self._answered = True
        if await self._sent_again(outputs[-1].end):
            return await self.outputs(wait_s)
        self.end = outputs[-1].end
        self._settled = self.end is not None
        return outputs

    @property
    def problem(self) -> Problem | None:
        """What went wrong, once there is an end."""
        problem = problem_of(self.end)
        return as_sent(problem, self._names) if problem is not None else None

    async def close(self) -> None:
        """Leave, in the background where the step has not ended: the caller's own task may be cancelled just now. The step is cancelled,
        unless it is shared."""
        if self._reference is not None:
            self._reference.done()
        if self._settled:
            await self._reader.close()
        elif self._shared:
            self._farewells.start(self._reader.close(), f"leave-{self.step}")
        else:
            self._farewells.start(self._leave(), f"cancel-{self.step}")

    async def _store(self, data: bytes) -> asyncio.Future[Ack]:
        return await self._bus.store(subjects.submit(self.step), data, msg_id=f"{self.step}.submit", trace=self.trace)

    async def _sent_again(self, end: End | None) -> bool:
        """Whether the fleet had lost the conversation that the submission refers to, and has been given all of it, as another step."""
        reference, self._reference = self._reference, None
        if reference is None:
            return False
        if end is None or end.problem is None or end.problem.reason is not Reason.HISTORY_UNKNOWN:
            reference.done()
            return False
        log.info("a conversation is no longer stored, it is sent whole", extra={"step": self.step})
        whole = reference.lost()
        await self._reader.close()
        try:
            async with asyncio.timeout(self._config.submit_timeout_ms / 1e3):
                step, is_new = await self._next_try(self.step, whole) if self._next_try is not None else (StepId(new_id()), True)
                self.step_is(step)
                await self._reader.open(joining=self._shared)
                if is_new:
                    await (await self._store(whole))
        except (LegatoError, TimeoutError) as error:
            self._unreachable(error)
            self._farewells.start(self._reader.close() if self._shared else self._leave(), f"leave-{self.step}")
            return False
        return True

    async def _leave(self) -> None:
        await self._reader.close()
        cancel = CancelRequested(
            id=MessageId(f"{self.step}.cancel"), step=self.step, time_ns=now_ns(), trace=self.trace, why="the HTTP client has gone"
        )
        async with asyncio.timeout(CANCEL_TIMEOUT_S):
            await (await self._bus.store(subjects.cancel(self.step), ENCODER.encode(cancel), msg_id=cancel.id, trace=self.trace))

    def _unreachable(self, error: Exception) -> Problem:
        log.warning("step not accepted", extra={"step": self.step, "error": str(error) or "no acknowledgement"})
        return Problem(reason=Reason.NO_CAPACITY, message="the fleet cannot be reached; try again")

    def _limits(self, timeout_ms: int | None) -> Silence:
        """From now on. The fleet ends a step at its deadline; these limits only stand behind it."""
        config = self._config
        return Silence(
            self._loop.time(),
            None if timeout_ms is None else timeout_ms / 1e3,
            grace_s=config.timeout_grace_ms / 1e3,
            unnamed_s=config.idle_timeout_ms / 1e3,
            overall_s=config.overall_timeout_ms / 1e3,
        )

    def _left_s(self) -> float:
        """Until this step is given up."""
        return self._silence.left_s(self._loop.time())

    def _late(self) -> str:
        """Why it is given up, and what helps."""
        if self._answered:
            return "the step took too long"
        then = "; the step goes on, ask for it again later" if self._shared else ""
        return f"nobody has answered in time, `legato status` shows what is missing{then}"

    def _give_up(self, status: Status, reason: Reason, message: str) -> Output:
        problem = Problem(reason=reason, message=message)
        self.end = End(status=status, finish_reason=FinishReason.ERROR, problem=problem)
        return Output(step=self.step, end=self.end)


class Farewells:
    """What is still to be said on the bus after requests are over."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, farewell: Coroutine[Any, Any, None], name: str) -> None:
        """Run it on its own; each has a time limit of its own."""
        task = asyncio.get_running_loop().create_task(farewell, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def wait(self, timeout_s: float) -> None:
        """Until all are said, or the time is over; what then remains is cancelled."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            await end(late)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s failed", task.get_name(), extra={"error": str(error) or type(error).__name__})
