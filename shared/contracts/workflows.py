"""What a program of many steps says of itself, and what is kept of it. Its steps are ordinary steps that name it.

Facts about a workflow are stored under subjects of their own, and the first one of each stays (JetStream takes no second message where the
sender expects none): whoever comes later, such as the same program after a crash, finds it there and goes by it.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.contracts.envelope import Message
from shared.contracts.ids import StepId, TenantId, WorkflowId
from shared.contracts.outcomes import Problem, Usage
from shared.contracts.steps import StepState

PARTS_MAX = 2_000  # steps, and names of values, in one WorkflowRecord: it must fit a message

Key = Annotated[str, Meta(min_length=1, max_length=256)]  # of a step or a value within its workflow, chosen by the program


Usd = Annotated[float, Meta(gt=0, le=1e9)]


NOTHING = msgspec.Raw(b"null")


class WorkflowOpened(Message, frozen=True, kw_only=True, tag="workflow.opened"):
    """A program has begun. `workflow` names it; `key` is that of its submissions (`sha256:…`): nobody with another one goes on with it."""

    kind: Annotated[str, Meta(max_length=128)] = ""  # what sort of work it is, for people and for statistics
    key: Annotated[str, Meta(max_length=128)] = ""
    deadline_ns: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0  # 0: none
    steps_planned: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0  # 0: not known
    budget_usd: Usd | None = None  # what its steps may cost in all; None: whatever they cost


class BudgetSet(Message, frozen=True, kw_only=True, tag="workflow.budget"):
    """A program goes on with its workflow, and says what that may cost in all from now on. Unlike other facts of a workflow the last one
    counts, so that a budget that was spent can be raised. `key` must be that of the opening."""

    key: Annotated[str, Meta(max_length=128)] = ""
    budget_usd: Usd
    spent_usd: Annotated[float, Meta(ge=0)] = 0.0  # what the record said when this was said, for who has forgotten the workflow meanwhile


class ValueRecorded(Message, frozen=True, kw_only=True, tag="workflow.value"):
    """What a side effect of the program gave: any JSON, for its next run to find."""

    name: Key
    token: Annotated[str, Meta(min_length=1, max_length=64)]  # the name as one token of a subject (shared/core/inputs.py)
    value: msgspec.Raw  # kept as it came: nobody here needs to look into it


class WorkflowClosed(Message, frozen=True, kw_only=True, tag="workflow.closed"):
    """The program has ended, and says how."""

    success: bool
    score: float | None = None
    why: Annotated[str, Meta(max_length=1024)] = ""


class WorkflowState(StrEnum):
    """How a workflow stands."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"  # there is no record; `problem` says why


class WorkflowStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a workflow, in brief; `legato.query.step.<step>` has the rest."""

    step: StepId
    name: str = ""  # its key within the workflow
    input: str = ""  # fingerprint of what was asked, see shared/core/inputs.py
    status: StepState
    model: str = ""
    attempts: int = 0
    usage: Usage = Usage()
    accepted_ns: int = 0
    settled_ns: int = 0
    problem: Problem | None = None


class WorkflowRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Postgres has of a workflow: the answer on `legato.query.workflow.<workflow>`. Steps and names of values are in the order of
    their times. Times: Unix, nanoseconds, 0: not yet."""

    workflow: WorkflowId
    state: WorkflowState
    kind: str = ""
    key: str = ""
    tenant: TenantId = TenantId("")  # of its first step
    opened_ns: int = 0
    deadline_ns: int = 0
    steps_planned: int = 0
    closed_ns: int = 0
    score: float | None = None
    why: str = ""
    step_count: int = 0
    steps: list[WorkflowStep] = []  # the newest PARTS_MAX, or fewer where they would not fit a message
    value_count: int = 0
    values: list[str] = []  # likewise
    usage: Usage = Usage()  # of all steps
    budget_usd: float | None = None  # None: it has none
    spent_usd: float = 0.0  # by all attempts of its steps
    estimated_usd: float = 0.0  # of that, by attempts that were lost with their workers
    reserved_usd: float = 0.0  # of the budget, by steps that have not ended, beyond what their attempts have cost
    problem: Problem | None = None


class StepResumed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What resuming its workflow did to a named step. `step`: the try that counts now; `was`: how the newest one stood before."""

    name: str
    step: StepId
    was: StepState
    resumed: bool  # it is tried anew
    why: str = ""  # why not, where it ought to be


class WorkflowsAsked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request on `legato.query.workflows`; a mere number is `most`, and nothing is all that fit."""

    most: int = 1_000
    key: str | None = None  # only those that were opened with it (`sha256:…`, or empty: with none)


class WorkflowList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer on `legato.query.workflows`: the newest first, without steps and values. `problem`: why there is none."""

    workflows: list[WorkflowRecord]
    problem: Problem | None = None


class ValueFound(msgspec.Struct, frozen=True, kw_only=True):
    """The answer on `legato.query.value.<workflow>.<token>`: whether there is such a value, and what it is."""

    found: bool
    value: msgspec.Raw
    problem: Problem | None = None
