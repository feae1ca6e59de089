"""Ends a step that nobody ended: its deadline has passed, and whoever had it is gone.

The stream OUT is the judge. Where a step's output has an end already, the first one is reported, as its worker should have done. Otherwise
the end is written there, as the successor of the last output that was seen; when something was written meanwhile, JetStream refuses it,
and the next look sees what it was. The report goes the ordinary way: through the log of steps to scheduler and record.
"""

import asyncio
import logging

import msgspec

from services.workflow.judge import until_end
from services.workflow.state import Due
from services.workflow.store import Store
from shared.contracts import subjects
from shared.contracts.catalogue import KIND
from shared.contracts.envelope import Message
from shared.contracts.ids import CellId, MessageId, WorkerId
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status, Usage
from shared.contracts.output import End, Output
from shared.contracts.steps import AttemptEnded, AttemptRecord, StepClosed
from shared.contracts.streams import OUT
from shared.core.machine import ENCODER
from shared.core.reading import NoMessage, read
from shared.runtime.bus import Bus
from shared.runtime.cursor import Record
from shared.runtime.output_reader import OutputError, OutputReader
from shared.runtime.publisher import WrongLastSequence

log = logging.getLogger(__name__)

READ_TIMEOUT_S = 30.0

EXPIRED = Problem(reason=Reason.DEADLINE_PASSED, message="the deadline passed, and no service had ended the step")
NOWHERE = AttemptRecord(attempt=0, cell=CellId("unknown"), worker=WorkerId("unknown"))

_OUTPUT = msgspec.json.Decoder(Output)


async def close(bus: Bus, store: Store, due: Due, now_ns: int) -> None:
    """Raises StoreError and BusError; then the step is not closed yet, and calling again is right."""
    record = await bus.last(OUT.name, subjects.out(due.step))
    outputs = await until_end(bus, due.step)
    last = outputs[-1] if outputs else _output(record, due)
    end = last.end
    if end is None:
        output = _expiry(due, last, now_ns)
        try:
            await _publish(bus, output, expect_last=0 if record is None else record.seq)
        except WrongLastSequence:
            log.info("the step's output goes on, left for the next look", extra={"step": due.step})
            return
        end = output.end
    assert end is not None
    report = await _report(bus, store, due, last, end) if end.status is Status.SUCCEEDED else _closing(due, last, end)
    at_ns = (last.time_ns if isinstance(report, AttemptEnded) else 0) or now_ns  # an attempt was over with its output
    await _publish(bus, msgspec.structs.replace(report, time_ns=at_ns))


def _output(record: Record | None, due: Due) -> Output:
    """The last output, or an empty one: anybody may publish there, also what is no output."""
    try:
        return Output(attempt=due.attempt) if record is None else read(_OUTPUT, record.data)
    except NoMessage as error:
        log.warning("unreadable output", extra={"step": due.step, "error": str(error)})
        return Output(attempt=due.attempt)


def _expiry(due: Due, last: Output, now_ns: int) -> Output:
    offset = last.offset + len(last.tokens)
    usage = Usage(prompt_tokens=due.admitted.job.prompt_tokens, output_tokens=offset)
    return Output(
        id=MessageId(f"{due.step}.expired.end"),
        step=due.step,
        workflow=due.admitted.workflow,
        tenant=due.admitted.tenant,
        trace=due.admitted.trace,
        time_ns=now_ns,
        attempt=max(due.attempt, last.attempt),
        offset=offset,
        end=End(status=Status.EXPIRED, finish_reason=FinishReason.ERROR, usage=usage, problem=EXPIRED),
    )


def _closing(due: Due, last: Output, end: End) -> StepClosed:
    return StepClosed(
        id=MessageId(f"{due.step}.expired"),
        step=due.step,
        workflow=due.admitted.workflow,
        tenant=due.admitted.tenant,
        trace=due.admitted.trace,
        status=end.status,
        problem=end.problem or Problem(reason=Reason.INTERNAL, message="the reason was lost"),
        attempt=max(due.attempt, last.attempt),
    )


async def _report(bus: Bus, store: Store, due: Due, last: Output, end: End) -> AttemptEnded:
    """What the worker of a finished output would have reported."""
    tokens, text = await _read(bus, due)
    step = await store.get_step(due.step)
    attempts = step.attempts if step is not None else []
    attempt = next((each for each in attempts if each.attempt == last.attempt), NOWHERE)
    return AttemptEnded(
        id=MessageId(f"{due.step}.ended.{last.attempt}"),  # the worker's own, so that JetStream takes one of the two
        step=due.step,
        workflow=due.admitted.workflow,
        tenant=due.admitted.tenant,
        trace=due.admitted.trace,
        cell=attempt.cell,
        worker=attempt.worker,
        attempt=last.attempt,
        status=end.status,
        finish_reason=end.finish_reason,
        usage=end.usage,
        tokens=tokens,
        text=text,
        problem=end.problem,
    )


async def _read(bus: Bus, due: Due) -> tuple[list[int], str]:
    """Tokens and text of a finished output; as far as they can be read."""
    tokens: list[int] = []
    texts: list[str] = []
    reader = OutputReader(bus, due.step)
    await reader.open(joining=True)
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            async for output in reader:
                tokens += output.tokens
                texts.append(output.text)
    except (OutputError, TimeoutError) as error:
        log.warning("a finished output is recorded without its missing part", extra={"step": due.step, "error": repr(error)})
    finally:
        await reader.close()
    return tokens, "".join(texts)


async def _publish(bus: Bus, message: Message, expect_last: int | None = None) -> None:
    subject = KIND[type(message)].subject(message)
    await (await bus.store(subject, ENCODER.encode(message), msg_id=message.id, trace=message.trace, expect_last=expect_last))
