"""When a step of which nothing was heard is announced again, and when it is closed."""

import pytest

from services.workflow.config import WorkflowConfig
from services.workflow.policies.redrive import Action, check_ns, look
from services.workflow.state import Due
from shared.contracts.ids import ModelName, StepId
from shared.contracts.steps import Job, StepAdmitted, StepState

S = 1_000_000_000
NOW = 1_700_000_000 * S
CONFIG = WorkflowConfig(stall_ms=10_000, grace_ms=5_000, redrives_max=3)
ADMITTED = StepAdmitted(step=StepId("s"), job=Job(model=ModelName("m"), prompt_tokens=1, max_tokens=1))


def due(**fields: object) -> Due:
    given = {"status": StepState.QUEUED, "attempt": 0, "deadline_ns": NOW + 600 * S, "redrives": 0, "silent": True, **fields}
    return Due(step=StepId("s"), admitted=ADMITTED, **given)  # type: ignore[arg-type]


def test_a_silent_step_is_announced_again_and_looked_at_after_twice_the_time() -> None:
    assert look(due(), NOW, CONFIG) == (Action.ANNOUNCE, 1, NOW + 20 * S)
    assert look(due(redrives=1), NOW, CONFIG) == (Action.ANNOUNCE, 2, NOW + 40 * S)


def test_a_step_is_announced_so_often_and_no_more() -> None:
    assert look(due(redrives=3), NOW, CONFIG) == (Action.WAIT, 3, NOW + 605 * S)


def test_a_step_that_was_routed_is_left_to_the_scheduler() -> None:
    assert look(due(silent=False), NOW, CONFIG) == (Action.WAIT, 0, NOW + 10 * S)


def test_a_running_step_is_left_alone_until_its_deadline_and_grace() -> None:
    assert look(due(status=StepState.RUNNING), NOW, CONFIG) == (Action.WAIT, 0, NOW + 605 * S)


@pytest.mark.parametrize("status", [StepState.QUEUED, StepState.RUNNING])
def test_a_step_past_its_deadline_and_grace_is_closed_and_closed_again_until_it_settles(status: StepState) -> None:
    assert look(due(status=status, deadline_ns=NOW - 5 * S, redrives=2), NOW, CONFIG) == (Action.CLOSE, 2, NOW + 5 * S)


def test_within_the_grace_nothing_is_closed() -> None:
    action, _, again = look(due(status=StepState.RUNNING, deadline_ns=NOW - 4 * S), NOW, CONFIG)
    assert (action, again) == (Action.WAIT, NOW + 1 * S)


def test_no_step_is_looked_at_later_than_its_deadline_and_grace() -> None:
    for redrives in range(6):
        assert check_ns(NOW, NOW + 3 * S, redrives, CONFIG) == NOW + 8 * S
