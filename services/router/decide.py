"""The router: which cell does a step go to?

Rules:
1. An alias stands for one served model.
2. Of the cells that may take the step (policies/open_cells.py), the one where it would start soonest (policies/shortest_wait.py).
3. Where no worker serves the model, the step waits `patience_ms` for one to appear (a worker that restarts, or one that this router has not
   heard of yet), but not beyond its deadline; then it is closed: NO_CAPACITY. At most `waiting_max` wait.
4. Where all circuits are open, it is closed at once: CIRCUIT_OPEN. Waiting steps would only strike all together when one closes.

Invariants: every admitted step is answered by one StepRouted, or by one StepClosed and one Output with the same problem. A step is routed
in the order of admission among those that wait for the same thing.
"""

import msgspec

from services.router.config import RouterConfig
from services.router.policies.open_cells import open_cells
from services.router.policies.shortest_wait import choose
from services.router.state import SWEEP_NS, State, Waiting, apply
from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import QueueReported, WorkerGone, WorkerRegistered
from shared.contracts.ids import CellId, ModelName, StepId
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status
from shared.contracts.output import End, Output
from shared.contracts.steps import AttemptEnded, StepAdmitted, StepClosed, StepRouted
from shared.core.catalogue import resolve
from shared.core.machine import Machine

MS = 1_000_000


def decide(state: State, event: Message, now_ns: int, config: RouterConfig) -> list[Message]:
    """Look at the steps that this event concerns, and at those whose patience is over."""
    looked: dict[StepId, Waiting] = {}
    if isinstance(event, StepAdmitted):
        looked[event.step] = state.waiting[event.step]
    elif isinstance(event, WorkerRegistered):
        looked = {step: entry for step, entry in state.waiting.items() if _model(entry, config) == event.card.name}
    late = 0 < state.deadline_ns <= now_ns
    for step, entry in state.waiting.items():
        if _is_over(entry, now_ns, config):
            looked[step] = entry
        elif not late:
            break
    return [message for entry in looked.values() for message in _place(state, entry, now_ns, config)]


def wake_ns(state: State, config: RouterConfig) -> int | None:
    """When the patience of the step that waits longest ends, and every SWEEP_NS while there is a fleet."""
    swept_ns = state.swept_ns + SWEEP_NS if state.fleet.models else None
    if not state.waiting:
        return swept_ns
    impatient_ns = next(iter(state.waiting.values())).since_ns + config.patience_ms * MS
    return min(time for time in (impatient_ns, swept_ns, state.deadline_ns) if time)


def _is_over(entry: Waiting, now_ns: int, config: RouterConfig) -> bool:
    """Whether the step waits no longer."""
    return now_ns - entry.since_ns >= config.patience_ms * MS or 0 < entry.admitted.job.deadline_ns <= now_ns


def _model(entry: Waiting, config: RouterConfig) -> ModelName:
    return resolve(config.aliases, entry.admitted.job.model)


def _place(state: State, entry: Waiting, now_ns: int, config: RouterConfig) -> list[Message]:
    """Route the step, close it, or let it wait on."""
    model = _model(entry, config)
    choice = open_cells(state, model, now_ns, config)
    if choice.problem is None:
        return [_route(entry.admitted, model, choose(state, model, choice.cells, now_ns, config))]
    patient = not _is_over(entry, now_ns, config) and len(state.waiting) <= config.waiting_max
    if choice.problem.reason is Reason.NO_CAPACITY and patient:
        return []
    return _close(entry.admitted, choice.problem)


def _route(admitted: StepAdmitted, model: ModelName, cell: CellId) -> Message:
    job = admitted.job if admitted.job.model == model else msgspec.structs.replace(admitted.job, model=model)
    return StepRouted(step=admitted.step, workflow=admitted.workflow, tenant=admitted.tenant, trace=admitted.trace, job=job, cell=cell)


def _close(admitted: StepAdmitted, problem: Problem) -> list[Message]:
    about, workflow, tenant, trace = admitted.step, admitted.workflow, admitted.tenant, admitted.trace
    end = End(status=Status.FAILED, finish_reason=FinishReason.ERROR, problem=problem)
    return [  # the reader's end first: whoever records the closing looks there for what the reader has seen
        Output(step=about, workflow=workflow, tenant=tenant, trace=trace, end=end),
        StepClosed(step=about, workflow=workflow, tenant=tenant, trace=trace, status=Status.FAILED, problem=problem),
    ]


MACHINE: Machine[State, RouterConfig] = Machine(
    name="router",
    state=State,
    config=RouterConfig,
    inputs=StepAdmitted | WorkerRegistered | WorkerGone | QueueReported | AttemptEnded | Tick,
    start=lambda _: State(),
    apply=apply,
    decide=decide,
    wake_ns=wake_ns,
)
