"""Rule: no more steps enter than the fleet can hold: not beyond `in_flight_max` in all, and not for a model whose least crowded cell has
`queue_depth_max` waiting by its fresh report."""

from services.admission.config import AdmissionConfig
from services.admission.request import MS, Request
from services.admission.state import State
from shared.contracts.outcomes import Problem, Reason
from shared.core.catalogue import fresh_load


def refusal(state: State, request: Request, config: AdmissionConfig) -> Problem | None:
    """Says when the queue should be shorter."""
    if len(state.in_flight) >= config.in_flight_max:
        message = f"{len(state.in_flight)} steps are under way in the fleet; no more are taken now"
        return Problem(reason=Reason.QUEUE_FULL, message=message, retry_after_ms=config.retry_min_ms)
    model = state.fleet.models.get(request.model)
    cells = model.cells.values() if model else ()
    loads = [fresh_load(cell, request.now_ns, config.report_fresh_ms * MS) for cell in cells]
    known = [load for load in loads if load is not None]
    if not known or len(known) < len(loads):
        return None
    least = min(known, key=lambda load: load.depth)
    if least.depth < config.queue_depth_max:
        return None
    message = f"{least.depth} steps wait for {request.model} already"
    return Problem(reason=Reason.QUEUE_FULL, message=message, retry_after_ms=max(config.retry_min_ms, least.drain_ms))
