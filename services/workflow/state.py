"""What the workflow service decides on, and what it decides: plain data."""

import msgspec

from services.workflow.policies.estimate import Span
from shared.contracts.ids import StepId, WorkerId
from shared.contracts.outcomes import FinishReason, Problem, Status, Usage
from shared.contracts.steps import AttemptEnded, StepAdmitted, StepDispatched, StepState
from shared.contracts.workflows import BudgetSet, ValueRecorded, WorkflowClosed, WorkflowOpened

OPEN = (StepState.QUEUED, StepState.RUNNING)


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision must know of a recorded step. `usage`: of its newest attempt that ended."""

    step: StepId
    status: StepState
    deadline_ns: int
    attempt: int = 0
    usage: Usage = Usage()
    check_ns: int = 0

    @property
    def open(self) -> bool:
        return self.status in OPEN


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """A step to record."""

    message: StepAdmitted
    deadline_ns: int
    check_ns: int


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an attempt to record. `superseded`: it came too late to count."""

    message: AttemptEnded
    superseded: bool


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """How an open step ended."""

    step: StepId
    status: Status
    attempt: int
    usage: Usage
    finish_reason: FinishReason | None = None
    problem: Problem | None = None
    tokens: list[int] = []
    text: str = ""


class Changes(msgspec.Struct, kw_only=True):
    """What a batch of events does to the record. Each step or attempt stands at most once in each collection."""

    admitted: list[Admission] = []
    dispatched: list[StepDispatched] = []
    ended: dict[tuple[StepId, int], Ending] = {}
    advanced: dict[StepId, Known] = {}  # still open afterwards
    settled: dict[StepId, Settlement] = {}
    opened: list[WorkflowOpened] = []
    values: list[ValueRecorded] = []
    closed: list[WorkflowClosed] = []
    budgets: list[BudgetSet] = []
    refused: int = 0  # steps that were never accepted: they have no row
    unknown: int = 0  # events of steps that have no row, because the log was cut off or the database is a new one


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """An open step of which something should have been heard by now. `silent`: the log has nothing beyond its admission."""

    step: StepId
    status: StepState
    attempt: int
    deadline_ns: int
    redrives: int
    admitted: StepAdmitted
    silent: bool = False


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt of a settled step that has no bill, and when it was on its worker."""

    step: StepId
    attempt: int
    worker: WorkerId
    span: Span


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What it cost instead."""

    step: StepId
    attempt: int
    gpu_s: float
    usd: float
