"""What a program may say of its workflow, and the errors where it cannot go on. Pure."""

import msgspec

from shared.contracts.ids import StepId, is_subject_token
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status
from shared.contracts.output import End, Output
from shared.contracts.steps import StepRecord, StepState
from shared.core.errors import LegatoError
from shared.core.money import USD_MAX

DEADLINE_MAX_S = 10 * 365 * 86_400.0
KIND_CHARS_MAX = 128
NAME_CHARS_MAX = 256  # of a step or a value
STEPS_PLANNED_MAX = 2**31 - 1
OPEN = (StepState.QUEUED, StepState.RUNNING)


class Unfit(LegatoError):
    """What was said of a workflow cannot be. `problem` names what is wrong."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.problem = Problem(reason=Reason.INVALID, message=message, param=param)


class WorkflowError(LegatoError):
    """The workflow cannot go on like this: its id belongs to somebody else, it is over, or it was asked something different before."""


class InputChanged(WorkflowError):
    """A step of this name was asked something else before. `parts` names what differs, as far as that is still known."""

    def __init__(self, name: str, parts: list[str]) -> None:
        what = ", ".join(parts[:8]) or "what it was asked is no longer kept"
        super().__init__(f"step {name!r} was asked something else before ({what}); give a changed step another name")
        self.parts = parts


class AnotherKey(WorkflowError):
    """The workflow was opened with another API key."""


class WorkflowEnded(WorkflowError):
    """It has ended, and does nothing new."""


class DeadlinePassed(WorkflowError):
    """Its steps had to end before."""


class NoWorkflow(WorkflowError):
    """Nobody has opened a workflow of this id."""


class RecordAway(LegatoError, TimeoutError):
    """What is recorded cannot be read now: the workflow service, or its Postgres, is away. Asking again later is right."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a program says of its workflow besides kind and id."""

    deadline_s: float | None = None  # from the first opening on; its steps must end before
    steps_planned: int = 0
    budget_usd: float | None = None  # what all its steps may cost; a later run may give another one, which counts from then on


def checked_opening(workflow: str, terms: Terms) -> None:
    """Raises Unfit."""
    deadline_s, budget_usd = terms.deadline_s, terms.budget_usd
    if not is_subject_token(workflow):
        raise Unfit(f"a workflow's id is 1 to 128 letters, digits, - and _; {workflow[:150]!r} is not", "id")
    if deadline_s is not None and not 0 <= deadline_s <= DEADLINE_MAX_S:
        raise Unfit(f"a deadline lies within {DEADLINE_MAX_S:.0f} s, not in {deadline_s} s", "deadline_s")
    if budget_usd is not None and not _is_budget(budget_usd):
        raise Unfit(f"a budget is a number of dollars above 0 and up to {USD_MAX:,.0f}, not {budget_usd!r}", "budget_usd")


def _is_budget(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and 0 < given <= USD_MAX


def checked_name(name: str) -> str:
    """Of a step or a value. Raises Unfit."""
    if not 1 <= len(name) <= NAME_CHARS_MAX or "\0" in name:
        raise Unfit(f"a name has 1 to {NAME_CHARS_MAX} characters, and no NUL; {name[:50]!r} is not one", "name")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise Unfit(f"a name is Unicode text: {error.reason}", "name") from error
    return name


def output_of(record: StepRecord) -> Output | None:
    """What Postgres has of a step as its whole output, once it has the end; logprobs are not kept there."""
    try:
        status = Status(record.status)
    except ValueError:  # queued, running, or not known
        return None
    end = End(status=status, finish_reason=record.finish_reason or FinishReason.STOP, usage=record.usage, problem=record.problem)
    return Output(step=record.step, tokens=record.tokens, text=record.text, end=end)


class Place(msgspec.Struct, frozen=True):
    """Where a step of a workflow stands: which try of it is meant, and how that goes; `status` None: it is to be submitted."""

    step: StepId
    status: StepState | None
