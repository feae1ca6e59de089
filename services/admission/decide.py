"""Admission: may this step enter?

Rules, in this order; the first that says no is the answer:
1. A step that is under way, or was settled or refused lately, is not taken again: its id is its identity, and its reader has the end. Who
   was refused tries again under a new id.
2. What could not be read, or names no tenant, is refused with the reason found on the way in.
3. The tenant's priority, the lengths, the tenant's rates, the deadline, and the room in the fleet: one file each in policies/.

Invariants: every submission is answered by exactly one StepAdmitted, or one StepRefused and one Output with the same problem, or by nothing
when it is a copy. A step counts among those that its tenant has at once until its end is reported or closed; the tokens that it reserved
and did not use are given back when it is settled. GRACE_NS after its deadline is the latest for both.
"""

from services.admission.config import AdmissionConfig
from services.admission.policies import crowding, deadline, length, rate, tenant
from services.admission.request import MS, Request, Rule
from services.admission.state import SWEEP_NS, State, apply
from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import QueueReported, WorkerGone, WorkerRegistered
from shared.contracts.ids import ModelName, TenantId
from shared.contracts.outcomes import FinishReason, Problem, Status
from shared.contracts.output import End, Output
from shared.contracts.steps import AttemptEnded, Job, StepAdmitted, StepClosed, StepRefused, StepSettled, SubmissionRead
from shared.core.machine import Machine

RULES: tuple[Rule, ...] = (tenant.refusal, length.refusal, rate.refusal, deadline.refusal, crowding.refusal)


def decide(state: State, event: Message, now_ns: int, config: AdmissionConfig) -> list[Message]:
    """Answer a submission; nothing else asks for an answer."""
    if not isinstance(event, SubmissionRead) or any(event.step in known for known in (state.in_flight, state.settled, state.refused)):
        return []
    owner = tenant.tenant_of(event.key, config)
    if event.problem is not None:
        return _refuse(event, TenantId("") if isinstance(owner, Problem) else owner[0], event.problem)
    if isinstance(owner, Problem):
        return _refuse(event, TenantId(""), owner)
    request = Request(
        read=event,
        tenant=owner[0],
        terms=owner[1],
        max_tokens=length.max_tokens(event, owner[1]),
        timeout_ms=event.timeout_ms or config.timeout_ms,
        now_ns=now_ns,
    )
    for rule in RULES:
        problem = rule(state, request, config)
        if problem is not None:
            return _refuse(event, request.tenant, problem)
    return [_admit(request)]


def wake_ns(state: State, _: AdmissionConfig) -> int | None:
    """While there is something that could be forgotten, look every SWEEP_NS."""
    return state.swept_ns + SWEEP_NS if state.in_flight or state.tenants or state.fleet.models else None


def _admit(request: Request) -> Message:
    read = request.read
    job = Job(
        model=ModelName(read.model),
        prompt_tokens=read.prompt_tokens,
        max_tokens=request.max_tokens,
        sampling=read.sampling,
        priority=read.priority,
        accepted_ns=request.now_ns,
        deadline_ns=request.now_ns + request.timeout_ms * MS,
        chat=read.chat,
    )
    return StepAdmitted(
        step=read.step,
        workflow=read.workflow,
        tenant=request.tenant,
        trace=read.trace,
        job=job,
        reservation=rate.reservation(request),
    )


def _refuse(read: SubmissionRead, tenant_id: TenantId, problem: Problem) -> list[Message]:
    end = End(status=Status.REFUSED, finish_reason=FinishReason.ERROR, problem=problem)
    return [
        StepRefused(step=read.step, workflow=read.workflow, tenant=tenant_id, trace=read.trace, problem=problem),
        Output(step=read.step, workflow=read.workflow, tenant=tenant_id, trace=read.trace, end=end),
    ]


MACHINE: Machine[State, AdmissionConfig] = Machine(
    name="admission",
    state=State,
    config=AdmissionConfig,
    inputs=SubmissionRead | WorkerRegistered | WorkerGone | QueueReported | AttemptEnded | StepClosed | StepSettled | Tick,
    start=lambda _: State(),
    apply=apply,
    decide=decide,
    wake_ns=wake_ns,
)
