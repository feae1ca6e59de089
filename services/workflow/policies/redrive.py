"""When something should have been heard of a step, and what to do when it was not.

Rule: a step that was admitted, and of which the log has nothing more after `stall_ms`, is announced again, at most `redrives_max` times,
each after twice the time. A step that is still open `grace_ms` after its deadline is closed as expired.
Inputs: status, deadline, re-drives so far, whether the log is silent. Constants: config.py; the doubling keeps what an overloaded fleet
is asked again below one message per step and stall time (exponential back-off, as in TCP's retransmission timer, Karn and Partridge, 1987).
"""

from enum import StrEnum

from services.workflow.config import WorkflowConfig
from services.workflow.state import Due
from shared.contracts.steps import StepState

MS = 1_000_000


class Action(StrEnum):
    """What a due step needs."""

    WAIT = "wait"
    ANNOUNCE = "announce"  # publish its admission again
    CLOSE = "close"


def deadline_ns(stated_ns: int, now_ns: int, config: WorkflowConfig) -> int:
    """The step's own deadline, or the default one."""
    return stated_ns or now_ns + config.deadline_default_ms * MS


def overdue_ns(deadline_ns: int, config: WorkflowConfig) -> int:
    """From when on the step is closed here."""
    return deadline_ns + config.grace_ms * MS


def check_ns(now_ns: int, deadline_ns: int, redrives: int, config: WorkflowConfig) -> int:
    """When to look at a queued step that was announced `redrives` times again, the last time now."""
    last = overdue_ns(deadline_ns, config)
    if redrives >= config.redrives_max:
        return last
    return min(last, now_ns + (config.stall_ms * MS << redrives))


def look(due: Due, now_ns: int, config: WorkflowConfig) -> tuple[Action, int, int]:
    """What to do, the re-drives thereafter, and when to look again."""
    if now_ns >= overdue_ns(due.deadline_ns, config):
        return Action.CLOSE, due.redrives, now_ns + config.grace_ms * MS
    if due.status is not StepState.QUEUED or due.redrives >= config.redrives_max:
        return Action.WAIT, due.redrives, overdue_ns(due.deadline_ns, config)
    if not due.silent:
        return Action.WAIT, due.redrives, check_ns(now_ns, due.deadline_ns, due.redrives, config)
    redrives = due.redrives + 1
    return Action.ANNOUNCE, redrives, check_ns(now_ns, due.deadline_ns, redrives, config)
