"""Rule: a step that cannot end in time is refused at once, while its caller can still go elsewhere.

It cannot when the shortest predicted wait of the model's cells and the least time that its output takes on the fastest worker together
exceed its timeout. The prompt counts nothing, since it may be cached, nor does an output that may end early: refused is only what is sure.
A step whose output alone takes longer on the fastest worker is a wrong request: coming back would not help it.
Cells without a fresh report are not known to be slow, so when none is fresh nobody is refused.
"""

from services.admission.config import AdmissionConfig
from services.admission.request import MS, Request
from services.admission.state import State
from shared.contracts.outcomes import Problem, Reason
from shared.core.catalogue import KnownModel, fresh_load


def refusal(state: State, request: Request, config: AdmissionConfig) -> Problem | None:
    """Says how much too late it would be."""
    if request.timeout_ms > config.timeout_max_ms:
        message = f"timeout_ms is {request.timeout_ms}; at most {config.timeout_max_ms} is possible"
        return Problem(reason=Reason.INVALID, message=message, param="timeout_ms")
    model = state.fleet.models.get(request.model)
    wait_ms = _shortest_wait_ms(model, request.now_ns, config) if model else None
    if model is None or wait_ms is None:
        return None
    output_ms = least_output_ms(request, model)
    if output_ms > request.timeout_ms:
        message = f"the output takes {output_ms} ms on the fastest worker of {request.model}; the step's timeout is {request.timeout_ms} ms"
        return Problem(reason=Reason.INVALID, message=message, param="timeout_ms")
    late_ms = wait_ms + output_ms - request.timeout_ms
    if late_ms <= 0:
        return None
    message = f"{request.model} could end this step in {late_ms + request.timeout_ms} ms at best; its timeout is {request.timeout_ms} ms"
    retry_after_ms = max(config.retry_min_ms, min(late_ms, wait_ms))
    return Problem(reason=Reason.DEADLINE_UNREACHABLE, message=message, retry_after_ms=retry_after_ms)


def least_output_ms(request: Request, model: KnownModel) -> int:
    """How long the shortest output that is possible takes to decode."""
    if not model.decode_tokens_per_s:
        return 0
    sampling = request.read.sampling
    endless = sampling.ignore_eos and not sampling.stop and not sampling.stop_token_ids
    tokens = request.max_tokens if endless else max(1, sampling.min_tokens)
    return int(tokens * 1_000 / model.decode_tokens_per_s)


def _shortest_wait_ms(model: KnownModel, now_ns: int, config: AdmissionConfig) -> int | None:
    loads = (fresh_load(cell, now_ns, config.report_fresh_ms * MS) for cell in model.cells.values())
    return min((load.drain_ms for load in loads if load is not None), default=None)
