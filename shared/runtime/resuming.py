"""Resuming a workflow from outside: each of its steps that did not succeed is tried anew, as its program would when it asks for it again.

What was asked is taken from the log, which keeps it for a day, as conversations are kept that it refers to. The new try has the id under
which the program looks for it, so the program joins it when it comes back, and both together submit it once.
"""

import msgspec

from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.steps import StepState, Submission
from shared.contracts.streams import STEPS, TURNS
from shared.contracts.workflows import StepResumed, WorkflowStep
from shared.core.inputs import step_id
from shared.core.machine import ENCODER
from shared.core.workflows import OPEN
from shared.runtime.bus import Bus
from shared.runtime.ids import new_trace
from shared.runtime.workflow_run import WorkflowRun

LOST = "what was asked is no longer stored, which it is for a day: its program must ask again"


async def resume(bus: Bus, run: WorkflowRun) -> list[StepResumed]:
    """What became of each named step that the run knows, in the order of the record. The run must have joined its workflow. Raises
    WorkflowEnded, DeadlinePassed, RecordAway, BusError, StoreError."""
    await run.check_open()
    newest: dict[str, WorkflowStep] = {}
    for each in run.record.steps:
        if each.name and (each.name not in newest or newest[each.name].status not in (*OPEN, StepState.SUCCEEDED)):
            newest[each.name] = each
    return [await _resumed(bus, run, name, known) for name, known in newest.items()]


async def _resumed(bus: Bus, run: WorkflowRun, name: str, known: WorkflowStep) -> StepResumed:
    number = 1
    if known.status is not StepState.SUCCEEDED:
        number, known = await run.last_try(name) or (number, known)
    if known.status in (*OPEN, StepState.SUCCEEDED):
        return StepResumed(name=name, step=known.step, was=known.status, resumed=False)
    submission = await _asked(bus, known.step)
    if submission is None:
        return StepResumed(name=name, step=known.step, was=known.status, resumed=False, why=LOST)
    if submission.history and await bus.last(TURNS.name, subjects.turn(submission.history)) is None:
        return StepResumed(name=name, step=known.step, was=known.status, resumed=False, why=LOST)
    submission = msgspec.structs.replace(submission, timeout_ms=await run.grant(submission.timeout_ms))
    step = step_id(run.key, run.id, name, number + 1)
    await (await bus.store(subjects.submit(step), ENCODER.encode(submission), msg_id=f"{step}.submit", trace=str(new_trace())))
    return StepResumed(name=name, step=step, was=known.status, resumed=True)


async def _asked(bus: Bus, step: StepId) -> Submission | None:
    record = await bus.last(STEPS.name, subjects.submit(step))
    if record is None:
        return None
    try:
        return msgspec.json.decode(record.data, type=Submission)
    except (msgspec.DecodeError, RecursionError):  # it was refused for that
        return None
