"""What a batch of step events does to the record. Pure: rows and events in, changes out.

Rules:
- An admission makes a row, once; a second one of the same step (a re-drive, a repetition) changes nothing.
- A dispatch makes the step running and its attempt the newest one.
- The first finish wins. An attempt's end that is not FAILED has been seen by the step's reader, because its worker could store it only as
  the successor of all output before: it settles the step, whatever number the attempt has.
- A FAILED attempt settles nothing: the scheduler judges it, and gives the step to another worker or closes it.
- A closing settles the step with what it says. One that comes after the reader has seen a success is an attempt's end here: judge.py.
- What ends after the step is settled, or fails after a newer attempt was dispatched, is recorded as superseded.
- Refused steps were never accepted: they are counted, not recorded. Events of steps without a row are counted.
- Of what a program says of its workflow, the first opening, the first closing and the first value of each name stay; the rows see to it.
  Of budgets the last one counts.

Invariants: a settled step never changes; an open step always has a time at which somebody looks at it (`check_ns`); a step stands in
`settled` only when its row is open, and then not in `advanced`.
"""

from collections.abc import Iterable, Mapping

import msgspec

from services.workflow.config import WorkflowConfig
from services.workflow.policies import redrive
from services.workflow.state import Admission, Changes, Ending, Known, Settlement
from shared.contracts.envelope import Message
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Status
from shared.contracts.steps import AttemptEnded, StepAdmitted, StepClosed, StepDispatched, StepRefused, StepState
from shared.contracts.workflows import BudgetSet, ValueRecorded, WorkflowClosed, WorkflowOpened

FACTS = (WorkflowOpened, BudgetSet, ValueRecorded, WorkflowClosed)  # of workflows
EVENTS = (
    StepAdmitted | StepRefused | StepDispatched | AttemptEnded | StepClosed | WorkflowOpened | BudgetSet | ValueRecorded | WorkflowClosed
)

replace = msgspec.structs.replace


def decide(known: Mapping[StepId, Known], events: Iterable[Message], now_ns: int, config: WorkflowConfig) -> Changes:
    """Fold `events`, in the order of the log, over the rows of their steps."""
    batch = _Batch(known, now_ns, config)
    for event in events:
        batch.take(event)
    return batch.changes


class _Batch:
    def __init__(self, known: Mapping[StepId, Known], now_ns: int, config: WorkflowConfig) -> None:
        self.changes = Changes()
        self._rows = dict(known)
        self._now_ns = now_ns
        self._config = config

    def take(self, event: Message) -> None:
        if isinstance(event, WorkflowOpened):
            self.changes.opened.append(event)
        elif isinstance(event, ValueRecorded):
            self.changes.values.append(event)
        elif isinstance(event, WorkflowClosed):
            self.changes.closed.append(event)
        elif isinstance(event, BudgetSet):
            self.changes.budgets.append(event)
        else:
            self._take_step(event)

    def _take_step(self, event: Message) -> None:
        row = self._rows.get(event.step)
        if isinstance(event, StepAdmitted):
            if row is None:
                self._admit(event)
        elif isinstance(event, StepRefused):
            self.changes.refused += 1
        elif row is None:
            self.changes.unknown += 1
        elif isinstance(event, StepDispatched):
            self._dispatch(row, event)
        elif isinstance(event, AttemptEnded):
            self._end(row, event)
        elif isinstance(event, StepClosed):
            self._close(row, event)
        else:
            raise AssertionError(f"no rule for {type(event).__name__}")

    def _admit(self, event: StepAdmitted) -> None:
        deadline_ns = redrive.deadline_ns(event.job.deadline_ns, self._now_ns, self._config)
        check_ns = redrive.check_ns(self._now_ns, deadline_ns, 0, self._config)
        self._rows[event.step] = Known(step=event.step, status=StepState.QUEUED, deadline_ns=deadline_ns, check_ns=check_ns)
        self.changes.admitted.append(Admission(message=event, deadline_ns=deadline_ns, check_ns=check_ns))

    def _dispatch(self, row: Known, event: StepDispatched) -> None:
        self.changes.dispatched.append(event)
        if row.open and event.attempt > row.attempt:
            check_ns = redrive.overdue_ns(row.deadline_ns, self._config)
            self._advance(replace(row, status=StepState.RUNNING, attempt=event.attempt, check_ns=check_ns))

    def _end(self, row: Known, event: AttemptEnded) -> None:
        settles = row.open and event.status is not Status.FAILED
        superseded = not settles and (not row.open or event.attempt < row.attempt)
        self.changes.ended.setdefault((event.step, event.attempt), Ending(message=event, superseded=superseded))
        if settles:
            self._settle(
                Settlement(
                    step=event.step,
                    status=event.status,
                    attempt=event.attempt,
                    usage=event.usage,
                    finish_reason=event.finish_reason,
                    problem=event.problem,
                    tokens=event.tokens,
                    text=event.text,
                )
            )
        elif not superseded:
            self._advance(replace(row, usage=event.usage))

    def _close(self, row: Known, event: StepClosed) -> None:
        if row.open:
            self._settle(Settlement(step=event.step, status=event.status, attempt=row.attempt, usage=row.usage, problem=event.problem))

    def _advance(self, row: Known) -> None:
        self._rows[row.step] = self.changes.advanced[row.step] = row

    def _settle(self, settlement: Settlement) -> None:
        step = settlement.step
        self._rows[step] = replace(self._rows[step], status=StepState(settlement.status))
        self.changes.advanced.pop(step, None)
        self.changes.settled[step] = settlement
