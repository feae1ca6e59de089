"""Messages about a step, as the services send them, for the tests of the workflow service."""

from collections.abc import Awaitable, Callable

from shared.contracts.envelope import Message
from shared.contracts.ids import CellId, MessageId, ModelName, StepId, TenantId, WorkerId, WorkflowId
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status, Usage
from shared.contracts.steps import AttemptEnded, Job, Reservation, Sampling, StepAdmitted, StepDispatched
from shared.runtime.clock import now_ns
from shared.runtime.ids import new_id
from shared.runtime.process import ManagedProcess

Start = Callable[..., Awaitable[ManagedProcess]]  # of the workflow service, with settings

MINUTE_NS = 60 * 10**9
CELL, WORKER = CellId("local"), WorkerId("w1")
LOST = Problem(reason=Reason.ATTEMPTS_EXHAUSTED, message="three workers were tried\0")
TEXT = "Légato\0, bound together"  # U+0000 is a token like any other to a model


def admitted(step: StepId, deadline_ns: int = 0) -> StepAdmitted:
    job = Job(
        model=ModelName("m"),
        prompt_tokens=7,
        max_tokens=9,
        sampling=Sampling(stop=["\0"]),
        accepted_ns=now_ns(),
        deadline_ns=deadline_ns or now_ns() + 10 * MINUTE_NS,
    )
    return StepAdmitted(
        id=MessageId(f"{step}.admitted"),
        step=step,
        tenant=TenantId("acme"),
        workflow=WorkflowId("report"),
        trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        time_ns=now_ns(),
        job=job,
        reservation=Reservation(tokens=16),
    )


def dispatched(step: StepId, attempt: int = 1) -> StepDispatched:
    return StepDispatched(step=step, job=admitted(step).job, cell=CELL, worker=WORKER, attempt=attempt, why="free", time_ns=now_ns())


def ended(step: StepId, attempt: int = 1, status: Status = Status.SUCCEEDED) -> AttemptEnded:
    return AttemptEnded(
        step=step,
        cell=CELL,
        worker=WORKER,
        attempt=attempt,
        status=status,
        finish_reason=FinishReason.LENGTH,
        usage=Usage(prompt_tokens=7, cached_tokens=4, output_tokens=3),
        tokens=[attempt, 2, 3],
        text=TEXT,
        problem=LOST if status is Status.FAILED else None,
        ttft_ms=1.5,
        total_ms=3.0,
        computed_tokens=3,
    )


def whole(step: StepId) -> list[Message]:
    return [admitted(step), dispatched(step), ended(step)]


def new_step() -> StepId:
    return StepId(new_id())
