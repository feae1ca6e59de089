"""Whether a step that has no running attempt may have another one, and how it ends if not.

Rule: not when somebody cancelled it, not when its deadline has passed, not when it has used up its attempts; in this order, because
the first two are what the step's owner asked for. An attempt that was moved away from a worker that leaves did not fail.
Inputs: the step, the time, `attempts_max`. Constants: configuration.
"""

from services.scheduler.book import Step
from shared.contracts.outcomes import Problem, Reason, Status

Verdict = tuple[Status, Problem]


def cancelled() -> Verdict:
    """The end that its owner asked for."""
    return Status.CANCELLED, Problem(reason=Reason.CANCELLED, message="the step was cancelled")


def expired(step: Step) -> Verdict:
    """The end of a step that came too late."""
    where = "waiting for a worker" if step.attempt == 0 else f"in attempt {step.attempt}"
    return Status.EXPIRED, Problem(reason=Reason.DEADLINE_PASSED, message=f"the step's deadline passed while {where}")


def verdict(step: Step, now_ns: int, attempts_max: int) -> Verdict | None:
    """How the step must end, or None: it may be tried again."""
    if step.cancelled:
        return cancelled()
    if step.job.deadline_ns and now_ns >= step.job.deadline_ns:
        return expired(step)
    if step.failures >= attempts_max:
        message = (
            f"{step.failures} attempts failed or were lost with their workers; the last one on {step.failed_on or 'an unknown worker'}"
        )
        return Status.FAILED, Problem(reason=Reason.ATTEMPTS_EXHAUSTED, message=message)
    return None
