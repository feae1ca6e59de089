"""A closing against what the step's reader has seen.

Who closes a step for want of its worker (lost at the deadline, or in its last attempt) may be mistaken: the worker had stored the end of
the output, and could not report it. So may who closes it as one that never had a worker: its admission was announced again, and another
process knows more. The stream OUT is the judge. Its first end is the one that every reader takes, and what is recorded: where that is a
success, as its worker would have reported it.
"""

import asyncio
import logging

import msgspec

from shared.contracts import subjects
from shared.contracts.ids import CellId, MessageId, StepId, WorkerId
from shared.contracts.outcomes import Status
from shared.contracts.output import Output
from shared.contracts.steps import AttemptEnded, StepClosed
from shared.contracts.streams import OUT
from shared.core.reading import NoMessage, read
from shared.runtime.bus import Bus, BusError
from shared.runtime.cursor import Record

log = logging.getLogger(__name__)

AGAIN_S = 0.5  # until OUT is asked again when it did not answer

_OUTPUT = msgspec.json.Decoder(Output)


async def judged(bus: Bus, closing: StepClosed) -> StepClosed | AttemptEnded:
    """What to record for a closing. Waits while OUT cannot be read, as the record waits for the log."""
    while True:
        try:
            outputs = await until_end(bus, closing.step)
        except BusError as error:
            log.warning("a closing waits for the step's output", extra={"step": closing.step, "error": str(error)})
            await asyncio.sleep(AGAIN_S)
        else:
            return _reported(closing, outputs)


async def until_end(bus: Bus, step: StepId) -> list[Output]:
    """The step's outputs up to the first end; none if there is no end. Raises BusError."""
    subject = subjects.out(step)
    first = await bus.next_after(OUT.name, subject, 0)
    if first is None:
        return []
    only = _output(first)
    if only is not None and only.end is not None:  # as it is with most that never had a worker: one request is enough
        return [only]
    outputs: list[Output] = []
    async for record in bus.history(OUT.name, subject):
        output = _output(record)
        if output is not None:
            outputs.append(output)
            if output.end is not None:
                return outputs
    return []


def _output(record: Record) -> Output | None:
    try:
        return read(_OUTPUT, record.data)
    except NoMessage:  # readers drop it, too
        return None


def _reported(closing: StepClosed, outputs: list[Output]) -> StepClosed | AttemptEnded:
    end = outputs[-1].end if outputs else None
    if end is None:
        return closing
    if end.status is not Status.SUCCEEDED:
        return msgspec.structs.replace(closing, status=end.status, problem=end.problem or closing.problem)
    log.warning("closed, though its reader has seen it succeed", extra={"step": closing.step, "closing": closing.status})
    return AttemptEnded(
        id=MessageId(f"{closing.step}.judged"),
        step=closing.step,
        workflow=closing.workflow,
        tenant=closing.tenant,
        trace=closing.trace,
        time_ns=outputs[-1].time_ns,
        cell=CellId("unknown"),  # the dispatch says it, where it was recorded
        worker=WorkerId("unknown"),
        attempt=outputs[-1].attempt,
        status=end.status,
        finish_reason=end.finish_reason,
        usage=end.usage,
        tokens=[token for output in outputs for token in output.tokens],
        text="".join(output.text for output in outputs),
    )
