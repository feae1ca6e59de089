"""What events do to the record of steps."""

import msgspec
import pytest

from services.workflow.config import WorkflowConfig
from services.workflow.decide import decide
from services.workflow.state import Changes, Known
from shared.contracts.envelope import Message
from shared.contracts.ids import CellId, ModelName, StepId, WorkerId
from shared.contracts.outcomes import Problem, Reason, Status, Usage
from shared.contracts.steps import AttemptEnded, Job, StepAdmitted, StepClosed, StepDispatched, StepRefused, StepState

S = 1_000_000_000
NOW = 1_700_000_000 * S
CONFIG = WorkflowConfig(stall_ms=10_000, grace_ms=5_000)
STEP = StepId("s1")
CELL, WORKER = CellId("local"), WorkerId("w1")
JOB = Job(model=ModelName("m"), prompt_tokens=7, max_tokens=9, deadline_ns=NOW + 60 * S)
LOST = Problem(reason=Reason.ATTEMPTS_EXHAUSTED, message="three workers were tried")
USAGE = Usage(prompt_tokens=7, cached_tokens=4, output_tokens=2)


def admitted(step: str = STEP, job: Job = JOB) -> StepAdmitted:
    return StepAdmitted(step=StepId(step), job=job)


def dispatched(attempt: int = 1, step: str = STEP) -> StepDispatched:
    return StepDispatched(step=StepId(step), job=JOB, cell=CELL, worker=WORKER, attempt=attempt)


def ended(attempt: int = 1, status: Status = Status.SUCCEEDED, step: str = STEP) -> AttemptEnded:
    failed = status is Status.FAILED
    return AttemptEnded(
        step=StepId(step),
        cell=CELL,
        worker=WORKER,
        attempt=attempt,
        status=status,
        usage=USAGE,
        tokens=[] if failed else [attempt, 2],
        text="" if failed else "hi",
        problem=LOST if failed else None,
        retryable=failed,
    )


def closed(status: Status = Status.FAILED) -> StepClosed:
    return StepClosed(step=STEP, status=status, problem=LOST)


def after(*events: Message, known: Known | None = None) -> Changes:
    return decide({known.step: known} if known else {}, events, NOW, CONFIG)


def running(attempt: int = 1) -> Known:
    return Known(step=STEP, status=StepState.RUNNING, deadline_ns=NOW + 60 * S, attempt=attempt)


def test_an_admitted_step_gets_a_row_and_a_time_at_which_it_is_looked_at() -> None:
    changes = after(admitted())
    (admission,) = changes.admitted
    assert admission.deadline_ns == NOW + 60 * S
    assert admission.check_ns == NOW + 10 * S


def test_a_step_without_a_deadline_gets_the_default_one() -> None:
    (admission,) = after(admitted(job=msgspec.structs.replace(JOB, deadline_ns=0))).admitted
    assert admission.deadline_ns == NOW + CONFIG.deadline_default_ms * 1_000_000


def test_a_second_admission_changes_nothing() -> None:
    assert len(after(admitted(), admitted()).admitted) == 1
    assert after(admitted(), known=running()) == Changes()


def test_a_dispatch_makes_the_step_running_until_its_deadline_and_grace() -> None:
    changes = after(admitted(), dispatched())
    row = changes.advanced[STEP]
    assert (row.status, row.attempt, row.check_ns) == (StepState.RUNNING, 1, NOW + 65 * S)
    assert changes.dispatched == [dispatched()]


def test_a_whole_step_in_one_batch_settles_and_does_not_advance() -> None:
    changes = after(admitted(), dispatched(), ended())
    assert changes.advanced == {}
    settled = changes.settled[STEP]
    assert (settled.status, settled.attempt, settled.usage, settled.tokens, settled.text) == (Status.SUCCEEDED, 1, USAGE, [1, 2], "hi")


def test_the_first_finish_wins_and_the_others_are_superseded() -> None:
    changes = after(dispatched(2), ended(1), ended(2), closed(), known=running())
    assert changes.settled[STEP].attempt == 1
    assert {key: ending.superseded for key, ending in changes.ended.items()} == {(STEP, 1): False, (STEP, 2): True}


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.CANCELLED, Status.EXPIRED, Status.SHED])
def test_an_end_that_the_reader_saw_settles_the_step(status: Status) -> None:
    assert after(ended(1, status), known=running()).settled[STEP].status is status


def test_a_failed_attempt_leaves_the_step_open_for_the_scheduler_to_judge() -> None:
    changes = after(ended(1, Status.FAILED), known=running())
    assert changes.settled == {}
    assert changes.advanced[STEP].usage == USAGE


def test_a_closing_settles_with_its_problem_and_the_usage_of_the_last_attempt() -> None:
    settled = after(ended(1, Status.FAILED), closed(), known=running()).settled[STEP]
    assert (settled.status, settled.problem, settled.usage, settled.attempt) == (Status.FAILED, LOST, USAGE, 1)


def test_a_failure_of_an_attempt_that_was_replaced_is_superseded() -> None:
    changes = after(ended(1, Status.FAILED), known=running(attempt=2))
    assert changes.ended[STEP, 1].superseded
    assert changes.advanced == {}


def test_a_settled_step_never_changes() -> None:
    done = msgspec.structs.replace(running(), status=StepState.SUCCEEDED)
    changes = after(dispatched(2), ended(2), closed(), known=done)
    assert (changes.settled, changes.advanced) == ({}, {})
    assert changes.ended[STEP, 2].superseded


def test_the_first_end_of_an_attempt_is_the_one_that_is_kept() -> None:
    changes = after(ended(1), ended(1, Status.FAILED), known=running())
    assert changes.ended[STEP, 1].message.status is Status.SUCCEEDED


def test_a_late_dispatch_of_a_lower_attempt_does_not_bring_it_back() -> None:
    assert after(dispatched(1), known=running(attempt=2)).advanced == {}


def test_refused_steps_and_events_of_unknown_steps_are_counted() -> None:
    refused = StepRefused(step=STEP, problem=Problem(reason=Reason.INVALID, message="no"))
    changes = after(refused, dispatched(step="other"), ended(step="other"), known=running())
    assert changes == Changes(refused=1, unknown=2)


def test_steps_of_one_batch_do_not_touch_each_other() -> None:
    changes = after(admitted("a"), admitted("b"), dispatched(1, "b"), ended(1, step="a"))
    assert list(changes.settled) == ["a"]
    assert list(changes.advanced) == ["b"]
