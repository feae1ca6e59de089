"""Workflows: programs of many steps that can be killed anywhere, and started again from the top, without paying for anything twice.

    async with client.workflow("report", id="q3-acme") as wf:
        plan = await wf.step("plan", model="smollm2-135m", prompt="Plan a report about rivers.", max_tokens=64)
        page = await wf.record("fetch", lambda key: fetch("https://example.org/rivers", idempotency_key=key))
        text = await wf.step("write", model="smollm2-135m", prompt=f"{plan.text}\n{page}", max_tokens=256)
        await wf.complete(success=True)

A step's id follows from the workflow's id and the step's name: whoever asks for it again finds it, running or ended, and joins it. What it
was asked is compared: the same name with another input is an error, not another answer. A step that did not succeed is tried anew when it
is asked for again. Values that `record` keeps lie in the log under their names, where the first one stays.
"""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

import msgspec

from legato.outcome import NotEnded, Result, StepError
from legato.request import StepRequest, refusal, to_submission
from shared.contracts import subjects
from shared.contracts.catalogue import KIND
from shared.contracts.envelope import Message
from shared.contracts.ids import MessageId, StepId, WorkflowId, is_subject_token
from shared.contracts.outcomes import Reason
from shared.contracts.output import Output
from shared.contracts.steps import StepState, Submission
from shared.contracts.streams import OUT, STEPS
from shared.contracts.workflows import (
    ValueFound,
    ValueRecorded,
    WorkflowClosed,
    WorkflowOpened,
    WorkflowRecord,
    WorkflowState,
    WorkflowStep,
)
from shared.core.errors import LegatoError
from shared.core.inputs import differences, fingerprint, name_token, step_id
from shared.core.machine import ENCODER
from shared.runtime.clock import now_ns
from shared.runtime.ids import new_id
from shared.runtime.publisher import WrongLastSequence

if TYPE_CHECKING:
    from legato.client import Client, Step

DEADLINE_MAX_S = 10 * 365 * 86_400.0
RECORD_PATIENCE_S = 60.0  # for the workflow service, or its Postgres, to come back
RECORD_AGAIN_S = 0.5
TIMEOUT_MAX_MS = 3_600_000  # what a fleet grants by default; with more time left, a step has the fleet's own limit
TRIES_MAX = 100  # of one step over all runs of the program

ValueT = TypeVar("ValueT")
FactT = TypeVar("FactT", bound=Message)


class WorkflowError(LegatoError):
    """The workflow cannot go on like this: its id belongs to somebody else, it is over, or it was asked something different before."""


class InputChanged(WorkflowError):
    """A step of this name was asked something else before. `parts` names what differs, as far as that is still known."""

    def __init__(self, name: str, parts: list[str]) -> None:
        what = ", ".join(parts[:8]) or "what it was asked is no longer kept"
        super().__init__(f"step {name!r} was asked something else before ({what}); give a changed step another name")
        self.parts = parts


class Workflow:
    """One run of a program. Use `client.workflow(...)`. Steps and values may be asked for side by side."""

    def __init__(self, client: "Client", opening: WorkflowOpened) -> None:
        self.id = opening.workflow
        self._client = client
        self._opening = opening
        self._deadline_ns = 0
        self._record = WorkflowRecord(workflow=self.id, state=WorkflowState.OPEN)
        self._steps: dict[StepId, WorkflowStep] = {}

    async def __aenter__(self) -> Self:
        """Begin, or go on with what is there. Raises WorkflowError, BusError, StoreError, NotEnded when the record cannot be read."""
        first = await self._first(self._opening)
        record = await self._recorded()
        known = record.state is not WorkflowState.UNKNOWN
        if (record.key if known else first.key) != self._client.key:
            raise WorkflowError(f"workflow {self.id} was opened with another API key")
        if known:
            self._record, self._steps = record, {each.step: each for each in record.steps}
        self._deadline_ns = record.deadline_ns if known else first.deadline_ns
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """It stays open, until `complete` says how it ended: who leaves with an error can come back."""

    @property
    def record_at_start(self) -> WorkflowRecord:
        """What was known of it when this run began."""
        return self._record

    async def step(self, name: str, **request: Unpack[StepRequest]) -> Result:
        """The step's result: recorded, joined or new. Raises Refused, Failed, InputChanged, WorkflowError."""
        step = await self._begun(name, request)
        if isinstance(step, Result):
            return step
        try:
            return await step.result()
        except StepError as error:
            self._remember(error.result)
            raise
        finally:
            await step.close()

    async def stream(self, name: str, **request: Unpack[StepRequest]) -> AsyncGenerator[str, None]:
        """The step's text as it comes, from its beginning. Leaving early cancels nothing: the next run joins it."""
        step = await self._begun(name, request)
        if isinstance(step, Result):
            yield step.text
            return
        try:
            async for text in step.text():
                yield text
        except StepError as error:
            self._remember(error.result)
            raise
        finally:
            await step.close()

    async def record(self, name: str, act: Callable[[str], Awaitable[ValueT]]) -> ValueT:
        """What `act` gave when it was first done, in this run or an earlier one, as JSON has it: a tuple is a list, and keys are strings.

        `act` gets an idempotency key, always the same for this name: it is done at least once, and a crash between doing and recording
        makes the next run do it again. Raises what `act` raises (then nothing is recorded), WorkflowError, StoreError.
        """
        token = name_token(_checked_name(name))
        known = await self._value(name, token)
        if known is not None:
            return msgspec.json.decode(known)  # type: ignore[no-any-return]
        await self._check_open()
        value = await act(f"{self.id}.{token}")
        fact = ValueRecorded(id=_new_id(), workflow=self.id, time_ns=now_ns(), name=name, token=token, value=_as_json(name, value))
        first = await self._first(fact)
        return msgspec.json.decode(first.value)  # type: ignore[no-any-return]

    async def complete(self, *, success: bool = True, score: float | None = None, why: str = "") -> None:
        """Say how it ended. Once: a second time it must be the same. Raises WorkflowError."""
        if score is not None and not math.isfinite(score):
            raise refusal("a score is a finite number", "score")
        fact = WorkflowClosed(id=_new_id(), workflow=self.id, time_ns=now_ns(), success=success, score=score, why=why)
        first = await self._first(fact)
        if (first.success, first.score, first.why) != (success, score, why):
            raise WorkflowError(f"workflow {self.id} has ended already ({'success' if first.success else 'failure'}: {first.why or '-'})")
        self._close(success)

    async def cancel(self, why: str = "") -> int:
        """Cancel the steps that run now; how many. The workflow itself stays open."""
        record = await self._recorded()
        running = [each.step for each in record.steps if each.status in (StepState.QUEUED, StepState.RUNNING)]
        for each in running:
            await self._client.cancel(each, why)
        return len(running)

    # --- steps ---------------------------------------------------------------------------------------------------------------

    async def _begun(self, name: str, request: StepRequest) -> "Step | Result":
        asked: StepRequest = {**request, "workflow": self.id, "step_key": _checked_name(name)}
        submission = to_submission(asked, self._client.key)
        step, status = await self._next_try(name, submission)
        if status is StepState.SUCCEEDED:
            return await self._client.result(step)
        if status is not None:
            return await self._client.step(step)
        await self._check_open()
        remaining_ms = self._remaining_ms()
        if remaining_ms is not None and remaining_ms <= TIMEOUT_MAX_MS:
            asked["timeout_ms"] = min(remaining_ms, request.get("timeout_ms") or remaining_ms)
        asked["step_id"] = step
        begun, new = await self._client.submit_once(asked)
        try:
            if not new:
                await self._compare(name, step, submission)
        except BaseException:
            await begun.close()
            raise
        return begun

    async def _next_try(self, name: str, submission: Submission) -> tuple[StepId, StepState | None]:
        """The step to go on with, and how it stood when this run began; None: it is to be submitted. A try that did not succeed is followed
        by another one."""
        for number in range(1, TRIES_MAX + 1):
            candidate = step_id(self._client.key, self.id, name, number)
            known = await self._known(candidate)
            if known is None:  # it may be under way all the same, in another run, without a token yet
                await self._compare(name, candidate, submission)
                return candidate, None
            if known.input and known.input != fingerprint(submission):
                raise InputChanged(name, await self._changed(candidate, submission))
            if not known.input and known.status is not StepState.REFUSED:
                await self._compare(name, candidate, submission)
            if known.status in (StepState.QUEUED, StepState.RUNNING, StepState.SUCCEEDED):
                return candidate, known.status
        raise WorkflowError(f"step {name!r} has failed {TRIES_MAX} times")

    def _remember(self, result: Result) -> None:
        """How a step of this run ended, so that it is tried anew when the program asks again."""
        self._steps[result.id] = WorkflowStep(step=result.id, status=StepState(result.status))

    async def _known(self, step: StepId) -> WorkflowStep | None:
        found = self._steps.get(step) or await self._said(step)
        if found is not None or self._record.step_count <= len(self._record.steps):
            return found
        record = await self._client.record(step)  # one of more steps than a WorkflowRecord holds
        if record.status is StepState.UNKNOWN:
            if record.problem is not None and record.problem.reason is not Reason.INVALID:
                raise NotEnded(f"what is recorded of step {step} cannot be read now: {record.problem.message}")
            return None
        return WorkflowStep(step=step, status=record.status)

    async def _said(self, step: StepId) -> WorkflowStep | None:
        """By its output, which may be ahead of Postgres, and tells of refusals too, which are not recorded there."""
        record = await self._client.bus.last(OUT.name, subjects.out(step))
        if record is None:
            return None
        end = msgspec.json.decode(record.data, type=Output).end
        return WorkflowStep(step=step, status=StepState.RUNNING if end is None else StepState(end.status))

    async def _changed(self, step: StepId, submission: Submission) -> list[str]:
        """What differs from what was asked first, while that is still in the log."""
        record = await self._client.bus.next_after(STEPS.name, subjects.submit(step), 0)
        return [] if record is None else differences(msgspec.json.decode(record.data, type=Submission), submission)

    async def _compare(self, name: str, step: StepId, submission: Submission) -> None:
        """Where the record does not say what was asked, the log does for a day. Raises InputChanged."""
        parts = await self._changed(step, submission)
        if parts:
            raise InputChanged(name, parts)

    def _remaining_ms(self) -> int | None:
        if not self._deadline_ns:
            return None
        remaining_ms = (self._deadline_ns - now_ns()) // 1_000_000
        if remaining_ms < 1:
            raise WorkflowError(f"the deadline of workflow {self.id} has passed")
        return remaining_ms

    async def _check_open(self) -> None:
        """Also whether another run has ended it meanwhile."""
        if self._record.state is WorkflowState.OPEN:
            closed = await self._stored(WorkflowClosed, "closed")
            if closed is not None:
                self._close(closed.success)
        if self._record.state is not WorkflowState.OPEN:
            raise WorkflowError(f"workflow {self.id} has ended ({self._record.state}): it does nothing new; what it did can still be read")

    def _close(self, success: bool) -> None:
        self._record = msgspec.structs.replace(self._record, state=WorkflowState.SUCCEEDED if success else WorkflowState.FAILED)

    # --- facts ---------------------------------------------------------------------------------------------------------------

    async def _first(self, fact: FactT) -> FactT:
        """Store a fact unless there is one of its kind and name; the one that is stored. Raises Refused for one that cannot be."""
        subject, kind = KIND[type(fact)].subject(fact), type(fact)
        try:
            data = ENCODER.encode(fact)
            msgspec.json.decode(data, type=kind)
        except (msgspec.ValidationError, TypeError, UnicodeError, RecursionError, OverflowError) as error:
            raise refusal(f"this cannot be said of a workflow: {error}") from error
        try:
            await (await self._client.bus.store(subject, data, msg_id=fact.id, expect_last=0))
        except WrongLastSequence:
            stored = await self._stored(kind, subject.split(".", 3)[3])
            if stored is None:
                raise
            return stored
        return fact

    async def _stored(self, kind: type[FactT], event: str) -> FactT | None:
        """What the log has of it. Raises WorkflowError where that is no such fact."""
        record = await self._client.bus.last(STEPS.name, subjects.workflow_event(self.id, event))
        if record is None:
            return None
        try:
            return msgspec.json.decode(record.data, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise WorkflowError(f"{record.subject} holds what no program of ours said: {error}") from error

    async def _value(self, name: str, token: str) -> msgspec.Raw | None:
        """From the log, where the newest are, else from Postgres, which keeps them for good."""
        stored = await self._stored(ValueRecorded, f"value.{token}")
        if stored is not None:
            return stored.value
        if name not in self._record.values and len(self._record.values) >= self._record.value_count:
            return None
        answer = await self._client.ask(subjects.query_value(self.id, token), ValueFound)
        if answer is None or answer.problem is not None:
            raise NotEnded(f"the value {name!r} of workflow {self.id} cannot be read now")
        return answer.value if answer.found else None

    async def _recorded(self) -> WorkflowRecord:
        """What Postgres has; waits while it is away. Raises NotEnded."""
        loop = asyncio.get_running_loop()
        end = loop.time() + RECORD_PATIENCE_S
        while True:
            answer = await self._client.ask(subjects.query_workflow(self.id), WorkflowRecord)
            if answer is not None and (answer.problem is None or answer.problem.reason is Reason.INVALID):
                return answer
            if loop.time() > end:
                raise NotEnded(f"what is recorded of workflow {self.id} cannot be read: is the workflow service running, and its Postgres?")
            await asyncio.sleep(RECORD_AGAIN_S)


def opening(workflow: str, kind: str, key: str, deadline_s: float | None, steps_planned: int) -> WorkflowOpened:
    """What a program says first. Raises Refused for what cannot be."""
    if not is_subject_token(workflow):
        raise refusal(f"a workflow's id is 1 to 128 letters, digits, - and _; {workflow!r} is not", "id")
    if deadline_s is not None and not 0 <= deadline_s <= DEADLINE_MAX_S:
        raise refusal(f"a deadline lies within {DEADLINE_MAX_S:.0f} s, not in {deadline_s} s", "deadline_s")
    now = now_ns()
    return WorkflowOpened(
        id=_new_id(),
        workflow=WorkflowId(workflow),
        time_ns=now,
        kind=kind[:128],
        key=key,
        deadline_ns=now + int(deadline_s * 1e9) if deadline_s is not None else 0,
        steps_planned=steps_planned,
    )


def _checked_name(name: str) -> str:
    """Of a step or a value."""
    if not 1 <= len(name) <= 256 or "\0" in name:
        raise refusal(f"a name has 1 to 256 characters, and no NUL; {name[:50]!r} is not one", "name")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise refusal(f"a name is Unicode text: {error.reason}", "name") from error
    return name


def _as_json(name: str, value: object) -> msgspec.Raw:
    """By the standard library, which says what is none: msgspec writes NaN as null, and bytes as text."""
    try:
        return msgspec.Raw(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise WorkflowError(f"what {name!r} gave cannot be recorded, it is no JSON: {error}") from error


def _new_id() -> MessageId:
    return MessageId(new_id())
