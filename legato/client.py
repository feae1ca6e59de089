"""The client: submit steps over NATS, read their output as it comes, join them again later."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Self, TypeVar, Unpack

import msgspec

from legato.outcome import Failed, Gathering, NotEnded, Result
from legato.request import StepRequest, check_number, checked_id, choice_request, encoded, to_submission
from legato.served import Served, read_served
from legato.workflow import Workflow, in_client_words
from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.output import Output
from shared.contracts.steps import StepRecord, StepState
from shared.contracts.streams import OUT, STEPS
from shared.core.errors import LegatoError
from shared.core.silence import Silence
from shared.core.workflows import Terms
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.conversations import Reference, Sender
from shared.runtime.ids import new_id, new_trace
from shared.runtime.output_reader import OutputReader
from shared.runtime.publisher import Ack
from shared.runtime.workflow_run import ask, cancel, opening

log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)
SILENCE_MAX_S = 3_600.0  # of a step whose own limit is not known here: the longest that admission grants by default
GRACE_S = 10.0  # of silence, behind a step's own time limit


class _Timed(msgspec.Struct):
    """What matters here of a submission, which anybody may have made."""

    timeout_ms: int | None = None


_TIMED = msgspec.json.Decoder(_Timed)


class Client:
    """A connection to a fleet. Many steps may run on one client at once.

    async with legato.Client("nats://127.0.0.1:4222") as client:
        async for text in client.stream(model="smollm2-135m", prompt="Once upon a time", max_tokens=32):
            print(text, end="", flush=True)
    """

    def __init__(
        self, url: str = "nats://127.0.0.1:4222", *, api_key: str = "", credentials: str = "", name: str = "legato-client"
    ) -> None:
        """`credentials`: path of a NATS .creds file. The API key itself is never sent, only its SHA-256."""
        self._config = BusConfig(url=url, credentials=credentials)
        self.key = f"sha256:{hashlib.sha256(api_key.encode(errors='surrogateescape')).hexdigest()}" if api_key else ""
        self._name = name
        self._bus: Bus | None = None
        self._sender: Sender | None = None

    async def __aenter__(self) -> Self:
        """Connect, waiting up to 30 s for NATS. Raises BusError."""
        self._bus = await Bus.connect(self._config, self._name)
        self._sender = Sender(self._bus)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bus is not None:
            await self._bus.close()
            self._bus = self._sender = None

    @property
    def bus(self) -> Bus:
        """The connection. Raises LegatoError outside of `async with`."""
        if self._bus is None:
            raise LegatoError("this client is not connected: use `async with legato.Client(...) as client`")
        return self._bus

    async def submit(self, **request: Unpack[StepRequest]) -> "Step":
        """Hand a step in; returns once it is stored, which is before it is admitted. Raises Refused, StoreError.

        A long conversation that goes on from an earlier one is stored from there on, and referred to; with a `step_id` of your own it goes
        whole, because a step that refers to what is lost must be submitted again under another id."""
        return (await self.submit_once(request, whole="step_id" in request))[0]

    async def submit_once(self, request: StepRequest, *, whole: bool) -> tuple["Step", bool]:
        """`submit`, and whether nobody had submitted this step within the last two minutes. `whole`: with all messages, rather than a
        reference to what is stored of them. Where the id was given, a refusal of that reference is for the caller to see to."""
        given = request.get("step_id")
        step_id = checked_id(given or new_id())
        submission = to_submission(request, self.key)
        data = encoded(submission)
        reference = None if whole or self._sender is None else await self._sender.refer(submission, data)
        timeout_ms = submission.timeout_ms
        step = Step(self.bus, step_id, reference, again=not given, timeout_s=None if timeout_ms is None else timeout_ms / 1e3)
        try:
            await step.open(joining="step_id" in request)
            ack = await step.submit(reference.data if reference else data, request.get("trace") or str(new_trace()))
        except BaseException:
            await step.close()
            raise
        return step, not ack.duplicate

    def workflow(
        self, kind: str, *, id: str, deadline_s: float | None = None, steps_planned: int = 0, budget_usd: float | None = None
    ) -> Workflow:
        """A program of many steps that can be killed and started again: `async with client.workflow("report", id="q3") as wf`.

        `deadline_s`: from the first opening on; its steps must end before. `budget_usd`: what all its steps may cost; one that would not
        fit is refused (`Refused`, with the reason BUDGET_SPENT). Raises Refused for an id or terms that cannot be."""
        with in_client_words():
            terms = Terms(deadline_s=deadline_s, steps_planned=steps_planned, budget_usd=budget_usd)
            return Workflow(self, opening(id, kind, self.key, terms))

    async def stream(self, **request: Unpack[StepRequest]) -> AsyncGenerator[str, None]:
        """Submit and yield the text as it comes. Leaving the loop early cancels the step. Raises Refused, Failed."""
        step = await self.submit(**request)
        try:
            async for text in step.text():
                yield text
        finally:
            if not step.ended:
                await step.cancel("the reader left")
            await step.close()

    async def choices(self, n: int, **request: Unpack[StepRequest]) -> list[Result]:
        """`n` answers to one request, from 1 to CHOICES_MAX. Each is a step of its own: the first is the request itself, the others have
        ids, names and seeds that follow from its own. The first that does not succeed, be it cancelled, cancels the others. Raises Refused,
        Failed."""
        check_number(n)
        steps: list[Step] = []
        try:
            for index in range(n):
                steps.append(await self.submit(**choice_request(request, index)))
            async with asyncio.TaskGroup() as group:
                reading = [group.create_task(_succeeded(step)) for step in steps]
            return [task.result() for task in reading]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            for step in steps:
                if not step.ended:
                    await step.cancel("another choice failed, or the reader left")
                await step.close()

    async def step(self, step_id: str) -> "Step":
        """A handle of a step that was submitted before, by anybody; its output is read from the beginning."""
        step = Step(self.bus, checked_id(step_id), timeout_s=await self._timeout_s(StepId(step_id)))
        await step.open(joining=True)
        return step

    async def _timeout_s(self, step: StepId) -> float | None:
        """The time limit that a step was submitted with, as far as the log has it: taken whole, however long ago that was."""
        try:
            record = await self.bus.last(STEPS.name, subjects.submit(step))
            timeout_ms = _TIMED.decode(record.data).timeout_ms if record is not None else None
        except (LegatoError, msgspec.DecodeError, RecursionError) as error:
            log.debug("time limit not known", extra={"step": step, "error": str(error)})
            return None
        return None if timeout_ms is None else timeout_ms / 1e3

    async def result(self, step_id: str, timeout_s: float | None = None) -> Result:
        """The result of a step, whether it still runs or has ended; of one whose output is no longer in the stream, what Postgres has
        (without logprobs). Raises Refused, Failed, NotEnded: after `timeout_s`, or as `Step` has it."""
        if await self.bus.last(OUT.name, subjects.out(checked_id(step_id))) is None:
            recorded = Gathering.of_record(await self.record(step_id))
            if recorded is not None:
                recorded.raise_for_status()
                return recorded.result
        step = await self.step(step_id)
        try:
            return await step.result(timeout_s)
        finally:
            await step.close()

    async def record(self, step_id: str) -> StepRecord:
        """What Postgres has of a step: its state, attempts, times and usage. The status is UNKNOWN where it has none or is away."""
        step = checked_id(step_id)
        problem = Problem(reason=Reason.INTERNAL, message="no workflow service answers")
        return await self.ask(subjects.query_step(step), StepRecord) or StepRecord(step=step, status=StepState.UNKNOWN, problem=problem)

    async def ask(self, subject: str, kind: type[AnswerT], payload: bytes = b"") -> AnswerT | None:
        """An answer of the workflow service; None when there is none in time."""
        return await ask(self.bus, subject, kind, payload)

    async def cancel(self, step_id: str, why: str = "") -> None:
        """Ask the fleet to stop a step; returns once the request is stored. A step that has ended stays as it is."""
        await cancel(self.bus, checked_id(step_id), why)

    async def models(self) -> list[Served]:
        """The models that workers have reported in the last minute, by name."""
        return await read_served(self.bus)


class Step:
    """A submitted step. Its output is read once: `async for`, `text()` and `result()` each go on where the last one stopped,
    and `result()` gives the whole."""

    def __init__(
        self, bus: Bus, step_id: StepId, reference: Reference | None = None, *, again: bool = False, timeout_s: float | None = None
    ) -> None:
        """`again`: it may be submitted a second time, under another id, when the conversation that it refers to is lost. `timeout_s`: its
        own time limit, where it is known."""
        self.id = step_id
        self._bus = bus
        self._reader = OutputReader(bus, step_id)
        self._gathering = Gathering(step_id)
        self._reference = reference
        self._again = again
        self._trace = ""
        self._timeout_s = timeout_s
        self._silence = self._limits()

    @property
    def ended(self) -> bool:
        """Whether the end has been read."""
        return self._gathering.end is not None

    async def open(self, *, joining: bool) -> None:
        """Listen. `joining`: there may be output already."""
        await self._reader.open(joining=joining)

    async def submit(self, data: bytes, trace: str) -> Ack:
        """Hand it in, once it is open. Raises StoreError."""
        self._trace = trace
        self._silence = self._limits()
        return await (await self._bus.store(subjects.submit(self.id), data, msg_id=f"{self.id}.submit", trace=trace))

    async def close(self) -> None:
        """Stop listening; the step itself goes on. Done by itself at the end."""
        if self._reference is not None:
            self._reference.done()
        await self._reader.close()

    async def __aiter__(self) -> AsyncIterator[Output]:
        """Outputs in order, without gap or repeat; the last one has `end`. Raises NotEnded when nothing is heard and the step's own time
        limit is over by GRACE_S; where that is not known, after SILENCE_MAX_S + GRACE_S without any."""
        clock = asyncio.get_running_loop().time
        while not self.ended:
            asked_s = clock()
            self._silence.heard(asked_s)  # whoever reads slowly has not listened meanwhile
            try:
                async with asyncio.timeout(self._silence.left_s(asked_s)):
                    output = await anext(self._reader)
            except TimeoutError as error:
                raise NotEnded(
                    f"nothing was heard of step {self.id} for {clock() - asked_s:.0f} s, and its time is over: `legato status` shows what "
                    f"is missing; ask later what became of it (`legato timeline {self.id}`)"
                ) from error
            if await self._lost(output):
                continue
            self._gathering.add(output)
            if output.end is not None:
                await self.close()
            yield output

    def _limits(self) -> Silence:
        return Silence(asyncio.get_running_loop().time(), self._timeout_s, grace_s=GRACE_S, unnamed_s=SILENCE_MAX_S + GRACE_S)

    async def _lost(self, output: Output) -> bool:
        """Whether the fleet does not know the conversation that this step refers to, and has been given all of it, as another step."""
        reference, self._reference = self._reference, None
        if reference is None:
            return False
        if output.end is None or output.end.problem is None or output.end.problem.reason is not Reason.HISTORY_UNKNOWN:
            reference.done()
            return False
        whole = reference.lost()
        if not self._again:
            return False
        await self._reader.close()
        self.id = StepId(new_id())
        self._reader, self._gathering = OutputReader(self._bus, self.id), Gathering(self.id)
        await self.open(joining=False)
        await self.submit(whole, self._trace)
        return True

    async def text(self) -> AsyncIterator[str]:
        """The text as it comes. Raises Refused or Failed where the step did not succeed; a cancelled one just ends."""
        async for output in self:
            if output.text:
                yield output.text
        self._gathering.raise_for_status()

    async def result(self, timeout_s: float | None = None) -> Result:
        """All of it, once it has ended: succeeded or cancelled. `timeout_s`: how long to wait; None: as iterating does. Raises Refused,
        Failed, NotEnded."""
        try:
            async with asyncio.timeout(timeout_s):
                async for _ in self:
                    pass
        except TimeoutError as error:
            if isinstance(error, NotEnded):
                raise
            raise NotEnded(f"step {self.id} has not ended within {timeout_s:g} s; it goes on") from error
        self._gathering.raise_for_status()
        return self._gathering.result

    @property
    def so_far(self) -> Result:
        """What has been read until now."""
        return self._gathering.result

    async def cancel(self, why: str = "") -> None:
        """Ask the fleet to stop it; returns once the request is stored. The output still ends, as cancelled."""
        await cancel(self._bus, self.id, why)


async def _succeeded(step: Step) -> Result:
    """All of a choice. Raises Refused, Failed, also where somebody cancelled it."""
    result = await step.result()
    if result.status is not Status.SUCCEEDED:
        raise Failed(Problem(reason=Reason.CANCELLED, message=f"choice {step.id} was cancelled"), result)
    return result
