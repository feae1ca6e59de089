"""Admission: may this step enter?

Rules, in this order; the first that says no is the answer:
1. A step that is under way, or was settled or refused lately, is not taken again: its id is its identity, and its reader has the end. Who
   was refused tries again under a new id.
2. What could not be read, or names no tenant, is refused with the reason found on the way in.
3. The tenant's priority, the lengths, the workflow's budget, the tenant's rates, the deadline, the room in the fleet, the tenant's steps at
   once: one file each in policies/. For the last one, and for what other steps have reserved of the budget, a submission may wait a moment.

Invariants: every submission is answered by exactly one StepAdmitted, or one StepRefused and one Output with the same problem, or by nothing
when it is a copy; at once, or within `concurrent_wait_ms`. A step counts among those that its tenant has at once until its end is reported
or closed; the tokens that it reserved and did not use are given back when it is settled; both GRACE_NS after its deadline at the latest.
Where the log has a refusal that is news here (a process died in between, and the log keeps the first), the step never runs, and its reader
is told once more: who refused it may have died before that.
A budget is never promised twice: at each admission, what is spent and reserved, this step included, is within it (accounts.py).
"""

import msgspec

from services.admission.config import AdmissionConfig
from services.admission.policies import budget, concurrency, crowding, deadline, length, rate, tenant
from services.admission.request import MS, Request, Rule
from services.admission.state import SWEEP_NS, State, apply
from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import QueueReported, WorkerGone, WorkerRegistered
from shared.contracts.ids import ModelName, TenantId
from shared.contracts.outcomes import FinishReason, Problem, Status
from shared.contracts.output import End, Output
from shared.contracts.steps import AttemptEnded, Job, StepAdmitted, StepClosed, StepRefused, StepSettled, SubmissionRead
from shared.contracts.workflows import BudgetSet, WorkflowOpened
from shared.core.machine import Machine

RULES: tuple[Rule, ...] = (tenant.refusal, length.refusal, budget.refusal, rate.refusal, deadline.refusal, crowding.refusal)
MAKE_ROOM = (AttemptEnded, BudgetSet, StepClosed, StepRefused, StepSettled)


def decide(state: State, event: Message, now_ns: int, config: AdmissionConfig) -> list[Message]:
    """Answer a submission, or hold it for a moment; when there may be room, or time is up, answer those that are held."""
    if isinstance(event, SubmissionRead):
        held = state.held.get(event.step)
        return _answer(state, event, now_ns, config) if held is not None and held.read is event else []  # else it is a copy
    if not isinstance(event, (*MAKE_ROOM, Tick)):
        return []
    told = [_told(event)] if isinstance(event, StepRefused) and state.unheard == event.step else []
    return [*told, *_answer_held(state, now_ns, config)]


def wake_ns(state: State, config: AdmissionConfig) -> int | None:
    """While there is something that could be forgotten, look every SWEEP_NS; when the longest held has waited long enough; and at once when
    one that was held has just been admitted."""
    if state.again:
        return state.swept_ns
    held = next(iter(state.held.values()), None)
    known = state.in_flight or state.tenants or state.fleet.models or state.accounts.budgets
    sweep = [state.swept_ns + SWEEP_NS] if known else []
    return min([*sweep, held.since_ns + config.concurrent_wait_ms * MS] if held is not None else sweep, default=None)


def _answer(state: State, read: SubmissionRead, now_ns: int, config: AdmissionConfig) -> list[Message]:
    """Nothing for one that is held."""
    request = _request(read, now_ns, config)
    if not isinstance(request, Request):
        return request
    refusal = _refusal(state, request, config)
    if refusal is not None:
        return refusal
    busy = _busy(state, request, config)
    if busy is None:
        return [_admit(state, request)]
    return [] if concurrency.may_wait(state, request, config) else _refuse(read, request.tenant, busy)


def _busy(state: State, request: Request, config: AdmissionConfig) -> Problem | None:
    """What other steps have taken now, and give back when they end."""
    return concurrency.refusal(request, config) if concurrency.full(state, request) else budget.taken(state, request, config)


def _answer_held(state: State, now_ns: int, config: AdmissionConfig) -> list[Message]:
    """Refuse those whose time is up, and admit the first that has a place; the next one sees the state behind that."""
    outputs: list[Message] = []
    for held in state.held.values():
        request = _request(held.read, now_ns, config)
        if not isinstance(request, Request):
            outputs += request
        elif concurrency.overdue(held, now_ns, config):
            outputs += _refuse(held.read, request.tenant, _busy(state, request, config) or concurrency.dropped(config))
        elif _busy(state, request, config) is None:
            refusal = _refusal(state, request, config)
            if refusal is None:
                return [*outputs, _admit(state, request)]
            outputs += refusal
    return outputs


def _request(read: SubmissionRead, now_ns: int, config: AdmissionConfig) -> Request | list[Message]:
    """The submission as the rules see it, or its refusal."""
    owner = tenant.tenant_of(read.key, config)
    if read.problem is not None:
        return _refuse(read, TenantId("") if isinstance(owner, Problem) else owner[0], read.problem)
    if isinstance(owner, Problem):
        return _refuse(read, TenantId(""), owner)
    return Request(
        read=read,
        tenant=owner[0],
        terms=owner[1],
        max_tokens=length.max_tokens(read, owner[1]),
        timeout_ms=read.timeout_ms or config.timeout_ms,
        now_ns=now_ns,
    )


def _refusal(state: State, request: Request, config: AdmissionConfig) -> list[Message] | None:
    for rule in RULES:
        problem = rule(state, request, config)
        if problem is not None:
            return _refuse(request.read, request.tenant, problem)
    return None


def _admit(state: State, request: Request) -> Message:
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
        reservation=msgspec.structs.replace(rate.reservation(request), nano_usd=budget.reservation(state, request)),
        step_key=read.step_key,
        input=read.input,
    )


def _refuse(read: SubmissionRead, tenant_id: TenantId, problem: Problem) -> list[Message]:
    refused = StepRefused(step=read.step, workflow=read.workflow, tenant=tenant_id, trace=read.trace, problem=problem)
    return [refused, _told(refused)]


def _told(refused: StepRefused) -> Message:
    """What the step's reader hears."""
    end = End(status=Status.REFUSED, finish_reason=FinishReason.ERROR, problem=refused.problem)
    return Output(step=refused.step, workflow=refused.workflow, tenant=refused.tenant, trace=refused.trace, end=end)


MACHINE: Machine[State, AdmissionConfig] = Machine(
    name="admission",
    state=State,
    config=AdmissionConfig,
    inputs=SubmissionRead
    | WorkerRegistered
    | WorkerGone
    | QueueReported
    | AttemptEnded
    | StepClosed
    | StepRefused
    | StepSettled
    | WorkflowOpened
    | BudgetSet
    | Tick,
    start=lambda _: State(),
    apply=apply,
    decide=decide,
    wake_ns=wake_ns,
)
