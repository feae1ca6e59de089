"""Rule: no more steps of a tenant are under way at once than agreed.

A step's end is reported here a moment after its reader has seen it, and the reader may submit the next step within that moment. So what
comes while all places are taken is held for `concurrent_wait_ms`: an end that is reported meanwhile makes room for the longest held. No
more are held than could get a place, HELD_MAX of all tenants, and a quarter of what may be prepared; the others are refused at once.
The same holds for what would fit into its workflow's budget if other steps had reserved nothing of it (budget.py).
"""

from services.admission.config import AdmissionConfig
from services.admission.policies.tenant import tenant_of
from services.admission.request import MS, Request
from services.admission.state import Held, State
from shared.contracts.outcomes import Problem, Reason

HELD_MAX = 256


def full(state: State, request: Request) -> bool:
    """Whether all places of the tenant are taken."""
    use = state.tenants.get(request.tenant)
    return use is not None and 0 < request.terms.concurrent_max <= use.running


def may_wait(state: State, request: Request, config: AdmissionConfig) -> bool:
    """Whether the submission, which is among `state.held` already, may stay there."""
    if not config.concurrent_wait_ms or len(state.held) > HELD_MAX:
        return False
    held = [each.read for each in state.held.values()]
    if sum(read.prompt_tokens for read in held) > config.prepared_tokens_max // 4:
        return False
    most = request.terms.concurrent_max or HELD_MAX
    return sum(tenant_of(read.key, config) == (request.tenant, request.terms) for read in held) <= most


def overdue(held: Held, now_ns: int, config: AdmissionConfig) -> bool:
    """Whether it has waited long enough; also when the clock was set back. After a restart all are: their prompts are gone."""
    return not 0 <= now_ns - held.since_ns < config.concurrent_wait_ms * MS


def refusal(request: Request, config: AdmissionConfig) -> Problem:
    """When a place is free again, nobody knows."""
    message = f"over {request.terms.concurrent_max} steps of tenant {request.tenant} at once"
    return Problem(reason=Reason.RATE_LIMITED, message=message, retry_after_ms=config.retry_min_ms)


def dropped(config: AdmissionConfig) -> Problem:
    """There may be room, and yet it is too late."""
    message = "the step was held for a moment, and its prompt is no longer at hand; submit it again under a new id"
    return Problem(reason=Reason.RATE_LIMITED, message=message, retry_after_ms=config.retry_min_ms)
