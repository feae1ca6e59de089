"""Problems in OpenAI's words: HTTP status, headers and error object. Pure.

Shape as in OpenAI's reference (https://platform.openai.com/docs/guides/error-codes): {"error": {message, type, param, code}}; the code is
our reason. A caller that should come back reads when in Retry-After (seconds) and retry-after-ms, which OpenAI's clients prefer.
"""

import re
from collections.abc import Mapping

import msgspec

from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.output import End
from shared.core.workflows import AnotherKey, DeadlinePassed, InputChanged, NoWorkflow, WorkflowEnded, WorkflowError

STATUS: dict[Reason, int] = {
    Reason.INVALID: 400,
    Reason.UNSUPPORTED: 400,
    Reason.UNAUTHENTICATED: 401,
    Reason.MODEL_NOT_FOUND: 404,
    Reason.CONTEXT_TOO_LONG: 400,
    Reason.TOO_LARGE: 413,
    Reason.HISTORY_UNKNOWN: 503,  # no client refers to one: the gateway does, and sends all of it when that fails
    Reason.RATE_LIMITED: 429,
    Reason.DEADLINE_UNREACHABLE: 429,
    Reason.DEADLINE_PASSED: 504,
    Reason.QUEUE_FULL: 429,
    Reason.BUDGET_SPENT: 429,  # as OpenAI has it
    Reason.NO_CAPACITY: 503,
    Reason.CIRCUIT_OPEN: 503,
    Reason.ATTEMPTS_EXHAUSTED: 503,
    Reason.ENGINE_REJECTED: 500,
    Reason.PROMPT_LOST: 500,
    Reason.SUPERSEDED: 500,  # of an attempt, as the next one: no step ends with it
    Reason.HANDED_OVER: 500,
    Reason.PREEMPTED: 500,
    Reason.CANCELLED: 499,  # cancelled by somebody else than the one who waits; not a status that clients retry
    Reason.INTERNAL: 500,
}
# Status, code and parameter of what a workflow cannot do.
CONFLICTS: dict[type[WorkflowError], tuple[int, str, str | None]] = {
    InputChanged: (409, "input_changed", "X-Legato-Step-Key"),
    WorkflowEnded: (409, "workflow_ended", "X-Legato-Workflow"),
    DeadlinePassed: (409, "workflow_deadline_passed", "X-Legato-Workflow"),
    AnotherKey: (403, "workflow_of_another_key", "X-Legato-Workflow"),
    NoWorkflow: (404, "workflow_not_found", None),
    WorkflowError: (409, "workflow_error", "X-Legato-Workflow"),
}
RETRY_AFTER_MS_MIN = 1_000  # where a problem says "later" without saying when
_REASON_OF = {Status.CANCELLED: Reason.CANCELLED, Status.EXPIRED: Reason.DEADLINE_PASSED, Status.SHED: Reason.NO_CAPACITY}


def status_of(problem: Problem) -> int:
    """The HTTP status."""
    return STATUS[problem.reason]


def headers_of(problem: Problem) -> dict[str, str]:
    """When to come back, where coming back helps. Whole seconds, rounded up."""
    if status_of(problem) not in (429, 503):
        return {}
    if problem.reason is Reason.BUDGET_SPENT and not problem.retry_after_ms:  # OpenAI's clients would try a 429 again otherwise
        return {"x-should-retry": "false"}
    wait_ms = max(problem.retry_after_ms, RETRY_AFTER_MS_MIN)
    return {"Retry-After": str(-(-wait_ms // 1000)), "retry-after-ms": str(wait_ms)}


def body_of(problem: Problem) -> bytes:
    """The error object. The fleet names parameters as a submission has them, where sampling is an object of its own."""
    param = problem.param.removeprefix("sampling.") or None
    kind = problem.reason.value if problem.reason is Reason.BUDGET_SPENT else type_of(status_of(problem))  # OpenAI's word is both
    return error_body(problem.message, kind, param=param, code=problem.reason.value)


def as_sent(problem: Problem, names: Mapping[str, str]) -> Problem:
    """With the client's name of the parameter, where the fleet knows it under another. `names`: the fleet's -> the client's."""
    field = problem.param.removeprefix("sampling.")
    name = names.get(field, field)
    if name == field:
        return problem
    return msgspec.structs.replace(problem, param=name, message=re.sub(rf"\b{re.escape(field)}\b", name, problem.message))


def conflict_of(error: WorkflowError) -> tuple[int, str, str | None]:
    """Status, code and parameter."""
    return CONFLICTS[type(error)]


def error_body(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """The error object from its parts."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def problem_of(end: End | None) -> Problem | None:
    """What went wrong, None if nothing did (yet)."""
    if end is None or end.status is Status.SUCCEEDED:
        return None
    return end.problem or Problem(reason=_REASON_OF.get(end.status, Reason.INTERNAL), message=f"the step was {end.status}")


def type_of(status: int) -> str:
    """OpenAI's class of errors."""
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
