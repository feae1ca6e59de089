"""What the router knows: the fleet, how attempts went in each cell, and the steps that wait for a worker to appear."""

import msgspec

from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import QueueReported
from shared.contracts.ids import CellId, ModelName, StepId, WorkerId
from shared.contracts.outcomes import Reason, Status
from shared.contracts.steps import AttemptEnded, StepAdmitted, StepClosed, StepRouted
from shared.core import breaker, catalogue
from shared.core.breaker import Breaker
from shared.core.catalogue import Catalogue

SWEEP_NS = 5_000_000_000
INCIDENT_NS = 1_000_000_000  # what one worker fails within is one failure: an engine that dies takes all its attempts with it
# A worker that loads, drains or is full has not failed; others may take the step.
REFUSALS = (Reason.NO_CAPACITY, Reason.QUEUE_FULL, Reason.HANDED_OVER, Reason.PREEMPTED)


class Route(msgspec.Struct, kw_only=True):
    """A model in a cell, as the router has fared with it."""

    breaker: Breaker = msgspec.field(default_factory=Breaker)
    blamed: dict[WorkerId, int] = {}  # when a failure of each worker was last counted, since the last success
    routed: int = 0  # steps since the cell's last report, which does not count them yet


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """A step without a cell."""

    admitted: StepAdmitted
    since_ns: int


class State(msgspec.Struct, kw_only=True):
    """Invariant: there is a route at most for each cell of a model in `fleet`."""

    fleet: Catalogue = msgspec.field(default_factory=Catalogue)
    routes: dict[ModelName, dict[CellId, Route]] = {}
    waiting: dict[StepId, Waiting] = {}  # oldest first
    deadline_ns: int = 0  # the first of those that wait, or one that has passed; 0: none
    swept_ns: int = 0


def route(state: State, model: ModelName, cell: CellId) -> Route:
    """The route as far as anything is known of it; a new one is not kept."""
    return state.routes.get(model, {}).get(cell) or Route()


def apply(state: State, event: Message, now_ns: int) -> None:
    """Fold one fact in. A step waits from its admission until it is routed or closed, which for most is at once."""
    if now_ns - state.swept_ns >= SWEEP_NS:
        _sweep(state, now_ns)
    match event:
        case StepAdmitted():
            state.waiting.setdefault(event.step, Waiting(event, now_ns))
            if event.job.deadline_ns:
                state.deadline_ns = min(event.job.deadline_ns, state.deadline_ns or event.job.deadline_ns)
        case Tick():
            deadlines = (entry.admitted.job.deadline_ns for entry in state.waiting.values())
            state.deadline_ns = min((deadline_ns for deadline_ns in deadlines if deadline_ns), default=0)
        case StepRouted():
            state.waiting.pop(event.step, None)
            kept = _kept(state, event.job.model, event.cell)
            kept.routed += 1
            breaker.passed(kept.breaker, now_ns)
        case StepClosed():
            state.waiting.pop(event.step, None)
        case AttemptEnded():
            _ended(state, event, now_ns)
        case _:
            catalogue.fold(state.fleet, event, now_ns)
            if isinstance(event, QueueReported):
                route(state, event.model, event.cell).routed = 0


def _ended(state: State, event: AttemptEnded, now_ns: int) -> None:
    model = _served_by(state, event.worker, event.cell)
    if model is None:
        return
    if event.status is Status.SUCCEEDED:
        succeeding = route(state, model, event.cell)
        breaker.succeeded(succeeding.breaker)
        succeeding.blamed.clear()
    elif event.status is Status.FAILED and event.retryable and (event.problem is None or event.problem.reason not in REFUSALS):
        failing = _kept(state, model, event.cell)
        if now_ns - failing.blamed.get(event.worker, 0) >= INCIDENT_NS:
            failing.blamed[event.worker] = now_ns
            breaker.failed(failing.breaker, now_ns)


def _served_by(state: State, worker: WorkerId, cell: CellId) -> ModelName | None:
    place = state.fleet.places.get(worker)
    return place.model if place is not None and place.cell == cell else None


def _kept(state: State, model: ModelName, cell: CellId) -> Route:
    return state.routes.setdefault(model, {}).setdefault(cell, Route())


def _sweep(state: State, now_ns: int) -> None:
    """Drop what the fleet no longer has."""
    state.swept_ns = now_ns
    catalogue.expire(state.fleet, now_ns)
    for model, routes in list(state.routes.items()):
        known = state.fleet.models.get(model)
        for cell in [cell for cell in routes if known is None or cell not in known.cells]:
            del routes[cell]
        for kept in routes.values():
            kept.blamed = {worker: failed_ns for worker, failed_ns in kept.blamed.items() if now_ns - failed_ns < INCIDENT_NS}
        if not routes:
            del state.routes[model]
