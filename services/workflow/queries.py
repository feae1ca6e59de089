"""Answers `legato.query.…` with what Postgres has. Every process of the service answers, one of them each request."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from services.workflow.store import Store
from services.workflow.workflow_store import LIST_MAX, WorkflowReader
from shared.contracts import subjects
from shared.contracts.costs import CostReport
from shared.contracts.ids import StepId, WorkflowId, is_subject_token
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import StepRecord, StepState
from shared.contracts.workflows import NOTHING, ValueFound, WorkflowList, WorkflowRecord, WorkflowsAsked, WorkflowState
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus
from shared.runtime.db import is_retryable

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
QUEUE_GROUP = "workflow"

ABSENT = Problem(
    reason=Reason.INVALID,
    message="no accepted step has this id; it is recorded a moment after it was accepted, and kept for a time ([workflow] kept_days)",
)
NO_WORKFLOW = Problem(
    reason=Reason.INVALID,
    message="no workflow has this id; it is recorded a moment after it was opened, and kept for a time ([workflow] kept_days)",
)
AWAY = Problem(reason=Reason.INTERNAL, message="the record cannot be read now", retry_after_ms=1_000)

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)


class Queries:
    """Use as: `subscriptions = await Queries(bus, store, workflows).open()`, and unsubscribe at the end."""

    def __init__(self, bus: Bus, store: Store, workflows: WorkflowReader) -> None:
        self._bus = bus
        self._store = store
        self._workflows = workflows

    async def open(self) -> list[Subscription]:
        answers: dict[str, Callable[[Msg], Awaitable[msgspec.Struct]]] = {
            subjects.QUERY_STEP: self._step,
            subjects.QUERY_WORKFLOW: self._workflow,
            subjects.QUERY_WORKFLOWS: self._list,
            subjects.QUERY_VALUE: self._value,
            subjects.QUERY_COSTS: self._costs,
        }
        return [await self._bus.subscribe(subject, self._answering(answer), queue=QUEUE_GROUP) for subject, answer in answers.items()]

    def _answering(self, answer: Callable[[Msg], Awaitable[msgspec.Struct]]) -> Callable[[Msg], Awaitable[None]]:
        async def on_question(msg: Msg) -> None:
            if msg.reply:
                await self._bus.publish(msg.reply, ENCODER.encode(await answer(msg)))

        return on_question

    async def _step(self, msg: Msg) -> StepRecord:
        step = StepId(msg.subject.rpartition(".")[2])
        absent = StepRecord(step=step, status=StepState.UNKNOWN, problem=ABSENT)
        if not is_subject_token(step):  # what Postgres could not even compare
            return absent
        return await _found(self._store.get_step(step), absent)

    async def _workflow(self, msg: Msg) -> WorkflowRecord:
        workflow = WorkflowId(msg.subject.rpartition(".")[2])
        absent = WorkflowRecord(workflow=workflow, state=WorkflowState.UNKNOWN, problem=NO_WORKFLOW)
        if not is_subject_token(workflow):
            return absent
        return self._fitting(await _found(self._workflows.get(workflow), absent))

    def _fitting(self, record: WorkflowRecord) -> WorkflowRecord:
        """With as many of its newest parts as one message holds; the counts say how many there are."""
        while len(ENCODER.encode(record)) > self._bus.publisher.message_bytes_max and (record.steps or record.values):
            steps, values = record.steps, record.values
            record = msgspec.structs.replace(record, steps=steps[-(len(steps) // 2) :], values=values[-(len(values) // 2) :])
            if len(steps) < 2 and len(values) < 2:
                record = msgspec.structs.replace(record, steps=[], values=[])
        return record

    async def _list(self, msg: Msg) -> WorkflowList:
        async def read() -> WorkflowList:
            return WorkflowList(workflows=await self._workflows.newest(_workflows_asked(msg.data)))

        return await _found(read(), WorkflowList(workflows=[]))

    async def _costs(self, msg: Msg) -> CostReport:
        return await _found(self._store.costs(_number(msg.data, 0)), CostReport(costs=[]))

    async def _value(self, msg: Msg) -> ValueFound:
        workflow, token = msg.subject.split(".")[3:5]
        if not (is_subject_token(workflow) and is_subject_token(token)):
            return ValueFound(found=False, value=NOTHING)
        return await _found(self._workflows.value(WorkflowId(workflow), token), ValueFound(found=False, value=NOTHING))


def _workflows_asked(data: bytes) -> WorkflowsAsked:
    """Whatever else is asked, it is for all that fit."""
    try:
        return msgspec.json.decode(data, type=WorkflowsAsked)
    except (msgspec.DecodeError, RecursionError):
        return WorkflowsAsked(most=_number(data, LIST_MAX))


def _number(data: bytes, otherwise: int) -> int:
    return int(data) if data.isdigit() and len(data) < 19 else otherwise


async def _found(reading: Awaitable[AnswerT | None], absent: AnswerT) -> AnswerT:
    """What Postgres has, `absent` where it has nothing, and `absent` with the problem AWAY where it cannot be asked now."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            answer = await reading
    except Exception as error:
        if not is_retryable(error):
            raise
        log.warning("query not answered", extra={"error": repr(error)})
        return msgspec.structs.replace(absent, problem=AWAY)
    return absent if answer is None else answer
