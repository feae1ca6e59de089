"""One run of a workflow: which step is meant by a name, what was asked of it, and what the program has said.

The record is read once, when the run begins; of what came later the log tells, which is kept for a day: a run must not last longer than
that without being begun again. Steps are submitted and read by whoever has the run: the client (legato/workflow.py), the gateway.
"""

import asyncio
import logging
import math
from collections import deque
from typing import TypeVar

import msgspec
import nats.errors

from shared.contracts import subjects
from shared.contracts.catalogue import KIND
from shared.contracts.envelope import Message
from shared.contracts.ids import MessageId, StepId, WorkflowId
from shared.contracts.outcomes import Reason
from shared.contracts.output import Output
from shared.contracts.steps import CancelRequested, StepRecord, StepState, Submission
from shared.contracts.streams import OUT, STEPS
from shared.contracts.workflows import (
    BudgetSet,
    ValueFound,
    ValueRecorded,
    WorkflowClosed,
    WorkflowOpened,
    WorkflowRecord,
    WorkflowState,
    WorkflowStep,
)
from shared.core.inputs import fingerprint, name_token, step_id
from shared.core.machine import ENCODER
from shared.core.reading import NoMessage, read
from shared.core.workflows import (
    KIND_CHARS_MAX,
    OPEN,
    AnotherKey,
    DeadlinePassed,
    InputChanged,
    NoWorkflow,
    Place,
    RecordAway,
    Terms,
    Unfit,
    WorkflowEnded,
    WorkflowError,
    checked_opening,
)
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns
from shared.runtime.conversations import changed_parts
from shared.runtime.ids import new_id
from shared.runtime.publisher import WrongLastSequence

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 10.0
RECORD_PATIENCE_S = 60.0  # for the workflow service, or its Postgres, to come back
RECORD_AGAIN_S = 0.5
TIMEOUT_MAX_MS = 3_600_000  # what a fleet grants by default; with more time left, a step has the fleet's own limit
PLACED_MAX = 1_000  # steps of the last moments: Postgres knows of them within tenths of a second
TRIES_MAX = 100  # of one step over all runs of the program

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)
FactT = TypeVar("FactT", bound=Message)

_OUTPUT = msgspec.json.Decoder(Output)


async def ask(bus: Bus, subject: str, kind: type[AnswerT], payload: bytes = b"") -> AnswerT | None:
    """An answer of the workflow service; None when there is none in time."""
    try:
        answer = await bus.client.request(subject, payload, timeout=ANSWER_TIMEOUT_S)
    except (nats.errors.Error, TimeoutError) as error:
        log.debug("not answered", extra={"subject": subject, "error": str(error)})
        return None
    return msgspec.json.decode(answer.data, type=kind)


async def cancel(bus: Bus, step: StepId, why: str) -> None:
    """Ask the fleet to stop a step; returns once the request is stored."""
    request = CancelRequested(step=step, why=why, time_ns=now_ns())
    await (await bus.store(subjects.cancel(step), ENCODER.encode(request)))


def opening(workflow: str, kind: str, key: str, terms: Terms) -> WorkflowOpened:
    """What a program says first. Raises Unfit for what cannot be."""
    checked_opening(workflow, terms)
    deadline_s, budget_usd, now = terms.deadline_s, terms.budget_usd, now_ns()
    return WorkflowOpened(
        id=_new_id(),
        workflow=WorkflowId(workflow),
        time_ns=now,
        kind=kind[:KIND_CHARS_MAX],
        key=key,
        deadline_ns=now + int(deadline_s * 1e9) if deadline_s is not None else 0,
        steps_planned=terms.steps_planned,
        budget_usd=None if budget_usd is None else float(budget_usd),
    )


class WorkflowRun:
    """Call `begin` or `join` first. Everything else may then be asked side by side. All methods raise BusError and StoreError."""

    def __init__(self, bus: Bus, opening: WorkflowOpened, patience_s: float = RECORD_PATIENCE_S) -> None:
        self.id = opening.workflow
        self.key = opening.key
        self.record = WorkflowRecord(workflow=self.id, state=WorkflowState.OPEN)  # what was known when the run began
        self._bus = bus
        self._opening = opening
        self._patience_s = patience_s
        self._deadline_ns = 0
        self._steps: dict[StepId, WorkflowStep] = {}
        self._placed: deque[StepId] = deque(maxlen=PLACED_MAX)  # that were not there yet

    @property
    def budget_usd(self) -> float | None:
        """As this run has named it."""
        return self._opening.budget_usd

    @property
    def weight(self) -> int:
        """How much memory it takes: the number of steps that it holds, and itself."""
        return len(self.record.steps) + 1

    async def begin(self) -> None:
        """Open the workflow, or go on with what is there. Raises Unfit, WorkflowError, RecordAway."""
        first, record = await self._first(self._opening), await self.recorded()
        self._take(record, first)
        known = record.state is not WorkflowState.UNKNOWN
        if known or first is not self._opening:
            await self._set_budget(record.budget_usd if known else first.budget_usd)

    async def renew_budget(self) -> None:
        """Tell the budget of a workflow that was joined: the one that this run names, or the former one."""
        await self._set_budget(self.record.budget_usd)

    async def join(self) -> None:
        """Go on with what is there. Raises NoWorkflow where there is nothing, and what `begin` raises."""
        first, record = await self._stored(WorkflowOpened, "opened"), await self.recorded()
        if first is None and record.state is WorkflowState.UNKNOWN:
            raise NoWorkflow(f"nobody has opened a workflow {self.id}")
        self._take(record, first or self._opening)

    def _take(self, record: WorkflowRecord, first: WorkflowOpened) -> None:
        known = record.state is not WorkflowState.UNKNOWN
        if (record.key if known else first.key) != self.key:
            raise AnotherKey(f"workflow {self.id} was opened with another API key")
        if known:
            self.record, self._steps = record, {each.step: each for each in record.steps}
        self._deadline_ns = record.deadline_ns if known else first.deadline_ns

    async def _set_budget(self, former_usd: float | None) -> None:
        """What it may cost from now on, told behind its opening and before its steps: this run's word, or the former one. It is told also
        when nothing has changed, for who decides on steps may have forgotten a workflow that lay idle."""
        budget_usd = self._opening.budget_usd or former_usd
        if budget_usd is None or self.record.state is not WorkflowState.OPEN:
            return
        said = BudgetSet(id=_new_id(), workflow=self.id, time_ns=now_ns(), key=self.key, budget_usd=budget_usd)
        said = msgspec.structs.replace(said, spent_usd=self.record.spent_usd)
        await (await self._bus.store(KIND[BudgetSet].subject(said), ENCODER.encode(said), msg_id=said.id))

    # --- steps ---------------------------------------------------------------------------------------------------------------

    async def place(self, name: str, submission: Submission, refused: StepId | None = None) -> Place:
        """The try of a step to go on with. One that did not succeed is followed by another one. `refused`: a try of which the caller knows
        that it was, a moment before it can be read everywhere. Raises InputChanged, WorkflowError, RecordAway."""
        for number in range(1, TRIES_MAX + 1):
            candidate = step_id(self.key, self.id, name, number)
            if candidate == refused:
                continue
            known = await self._known(candidate)
            if known is None:  # it may be under way all the same, in another run, without a token yet
                await self.compare(name, candidate, submission)
                self._placed.append(candidate)
                return Place(candidate, None)
            if known.input and known.input != fingerprint(submission):
                raise InputChanged(name, await self._changed(candidate, submission))
            if not known.input and known.status is not StepState.REFUSED:
                await self.compare(name, candidate, submission)
            if known.status in (*OPEN, StepState.SUCCEEDED):
                return Place(candidate, known.status)
        raise WorkflowError(f"step {name!r} has failed {TRIES_MAX} times")

    async def last_try(self, name: str) -> tuple[int, WorkflowStep] | None:
        """The number and state of a step's newest try, None where there is none. Raises RecordAway."""
        found: tuple[int, WorkflowStep] | None = None
        for number in range(1, TRIES_MAX + 1):
            known = await self._known(step_id(self.key, self.id, name, number))
            if known is None:
                break
            found = number, known
        return found

    async def compare(self, name: str, step: StepId, submission: Submission) -> None:
        """Where the record does not say what was asked, the log does for a day. Raises InputChanged."""
        parts = await self._changed(step, submission)
        if parts:
            raise InputChanged(name, parts)

    async def grant(self, timeout_ms: int | None) -> int | None:
        """The time limit of a new step that asked for this one. Raises WorkflowEnded, DeadlinePassed."""
        await self.check_open()
        if not self._deadline_ns:
            return timeout_ms
        remaining_ms = (self._deadline_ns - now_ns()) // 1_000_000
        if remaining_ms < 1:
            raise DeadlinePassed(f"the deadline of workflow {self.id} has passed")
        return min(remaining_ms, timeout_ms or remaining_ms) if remaining_ms <= TIMEOUT_MAX_MS else timeout_ms

    async def cancel(self, why: str) -> int:
        """Cancel the steps that wait or run now; how many. Of what this run has asked for a moment ago the record may not know yet, nor of
        what has just ended. Raises RecordAway."""
        recorded = {each.step: each.status for each in (await self.recorded()).steps}
        open_steps = [step for step, status in recorded.items() if status in OPEN]
        fresh = [step for step in dict.fromkeys(self._placed) if step not in recorded]
        running = [step for step in (*open_steps, *fresh) if (await self._said(step)) in (None, *OPEN)]
        for each in running:
            await cancel(self._bus, each, why)
        return len(running)

    async def _known(self, step: StepId) -> WorkflowStep | None:
        """By the record, and by its output, which may be ahead of Postgres and tells of refusals too, which are not recorded there."""
        found = self._steps.get(step)
        if found is not None and found.status not in OPEN:
            return found
        said = await self._said(step)
        if found is not None:
            return found if said is None else msgspec.structs.replace(found, status=said)
        if said is not None:
            return WorkflowStep(step=step, status=said)
        if self.record.step_count <= len(self.record.steps):
            return None
        record = await ask(self._bus, subjects.query_step(step), StepRecord)  # one of more steps than a WorkflowRecord holds
        unknown = record is not None and record.status is StepState.UNKNOWN
        if record is None or (unknown and record.problem is not None and record.problem.reason is not Reason.INVALID):
            raise RecordAway(f"what is recorded of step {step} cannot be read now")
        return None if unknown else WorkflowStep(step=step, status=record.status)

    async def _said(self, step: StepId) -> StepState | None:
        record = await self._bus.last(OUT.name, subjects.out(step))
        if record is None:
            return None
        try:
            end = read(_OUTPUT, record.data).end
        except NoMessage:  # anybody may publish there; its reader passes over it too
            return StepState.RUNNING
        return StepState.RUNNING if end is None else StepState(end.status)

    async def _changed(self, step: StepId, submission: Submission) -> list[str]:
        """What differs from what was asked first, while that is still in the log."""
        record = await self._bus.next_after(STEPS.name, subjects.submit(step), 0)
        if record is None:
            return []
        try:
            return await changed_parts(self._bus, msgspec.json.decode(record.data, type=Submission), submission)
        except (msgspec.DecodeError, RecursionError):  # no submission: it will be refused, or was
            return []

    # --- facts ---------------------------------------------------------------------------------------------------------------

    async def check_open(self) -> None:
        """Also whether another run has ended it meanwhile. Raises WorkflowEnded."""
        if self.record.state is WorkflowState.OPEN:
            closed = await self._stored(WorkflowClosed, "closed")
            if closed is not None:
                self._close(closed.success)
        if self.record.state is not WorkflowState.OPEN:
            raise WorkflowEnded(f"workflow {self.id} has ended ({self.record.state}): it does nothing new; what it did can still be read")

    async def complete(self, success: bool, score: float | None, why: str) -> None:
        """Say how it ended. Once: a second time it must be the same. Raises WorkflowEnded, Unfit."""
        if score is not None and not math.isfinite(score):
            raise Unfit("a score is a finite number", "score")
        fact = WorkflowClosed(id=_new_id(), workflow=self.id, time_ns=now_ns(), success=success, score=score, why=why)
        first = self._closing or await self._first(fact)
        if (first.success, first.score, first.why) != (success, score, why):
            raise WorkflowEnded(f"workflow {self.id} has ended already ({'success' if first.success else 'failure'}: {first.why or '-'})")
        self._close(success)

    async def keep(self, name: str, value: msgspec.Raw) -> msgspec.Raw:
        """Record a value under a name, unless there is one; the one that is there. Raises Unfit."""
        fact = ValueRecorded(id=_new_id(), workflow=self.id, time_ns=now_ns(), name=name, token=name_token(name), value=value)
        return (await self._first(fact)).value

    async def value(self, name: str) -> msgspec.Raw | None:
        """From the log, where the newest are, else from Postgres, which keeps them for good. Raises RecordAway."""
        token = name_token(name)
        stored = await self._stored(ValueRecorded, f"value.{token}")
        if stored is not None:
            return stored.value
        if name not in self.record.values and len(self.record.values) >= self.record.value_count:
            return None
        answer = await ask(self._bus, subjects.query_value(self.id, token), ValueFound)
        if answer is None or answer.problem is not None:
            raise RecordAway(f"the value {name!r} of workflow {self.id} cannot be read now")
        return answer.value if answer.found else None

    async def recorded(self) -> WorkflowRecord:
        """What Postgres has now; waits while it is away. Raises RecordAway."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience_s
        while True:
            answer = await ask(self._bus, subjects.query_workflow(self.id), WorkflowRecord)
            if answer is not None and (answer.problem is None or answer.problem.reason is Reason.INVALID):
                return answer
            if loop.time() > end:
                raise RecordAway(f"what is recorded of workflow {self.id} cannot be read; is the workflow service running, and Postgres?")
            await asyncio.sleep(RECORD_AGAIN_S)

    @property
    def _closing(self) -> WorkflowClosed | None:
        """As Postgres had it when the run began: the log may have forgotten it."""
        record = self.record
        if not record.closed_ns:
            return None
        return WorkflowClosed(workflow=self.id, success=record.state is WorkflowState.SUCCEEDED, score=record.score, why=record.why)

    def _close(self, success: bool) -> None:
        self.record = msgspec.structs.replace(self.record, state=WorkflowState.SUCCEEDED if success else WorkflowState.FAILED)

    async def _first(self, fact: FactT) -> FactT:
        """Store a fact unless there is one of its kind and name; the one that is stored. Raises Unfit for one that cannot be."""
        subject, kind = KIND[type(fact)].subject(fact), type(fact)
        try:
            data = ENCODER.encode(fact)
            msgspec.json.decode(data, type=kind)
        except (msgspec.ValidationError, TypeError, UnicodeError, RecursionError, OverflowError) as error:
            raise Unfit(f"this cannot be said of a workflow: {error}") from error
        try:
            await (await self._bus.store(subject, data, msg_id=fact.id, expect_last=0))
        except WrongLastSequence:
            stored = await self._stored(kind, subject.split(".", 3)[3])
            if stored is None:
                raise
            return stored
        return fact

    async def _stored(self, kind: type[FactT], event: str) -> FactT | None:
        """What the log has of it. Raises WorkflowError where that is no such fact."""
        record = await self._bus.last(STEPS.name, subjects.workflow_event(self.id, event))
        if record is None:
            return None
        try:
            return msgspec.json.decode(record.data, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise WorkflowError(f"{record.subject} holds what no program of ours said: {error}") from error


def _new_id() -> MessageId:
    return MessageId(new_id())
