"""Rule: a tenant's requests and tokens per minute flow from a bucket each.

Tokens are reserved for the longest output when the step enters; what it did not use flows back when it is settled. A step that a full
bucket cannot hold is a wrong request: waiting would not help it.
"""

from services.admission.config import AdmissionConfig
from services.admission.request import MS, Request
from services.admission.state import State, Use
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import Reservation
from shared.core import limits

_UNUSED = Use()


def reservation(request: Request) -> Reservation:
    """What the step takes from its tenant's limits."""
    return Reservation(
        tokens=request.tokens,
        tokens_ns=limits.cost_ns(request.tokens, request.terms.tokens_per_minute),
        request_ns=limits.cost_ns(1, request.terms.requests_per_minute),
    )


def refusal(state: State, request: Request, _: AdmissionConfig) -> Problem | None:
    """Says when the buckets will have what is asked for, to the millisecond."""
    use, terms = state.tenants.get(request.tenant, _UNUSED), request.terms
    if terms.tokens_per_minute and request.tokens > terms.tokens_per_minute:
        return _never(request)
    taken = reservation(request)
    requests_ns = limits.wait_ns(use.requests_full_ns, taken.request_ns, request.now_ns) or 0  # neither is None: both buckets hold it
    tokens_ns = limits.wait_ns(use.tokens_full_ns, taken.tokens_ns, request.now_ns) or 0
    if tokens_ns >= requests_ns and tokens_ns > 0:
        return _limited(f"over {terms.tokens_per_minute} tokens per minute", _whole_ms(tokens_ns))
    if requests_ns:
        return _limited(f"over {terms.requests_per_minute} requests per minute", _whole_ms(requests_ns))
    return None


def _never(request: Request) -> Problem:
    prompt, limit = request.read.prompt_tokens, request.terms.tokens_per_minute
    needs = f"this step needs {request.tokens} tokens, {prompt} of prompt and {request.max_tokens} of output (max_tokens)"
    message = f"{needs}; tenant {request.tenant} has {limit} per minute: "
    if prompt < limit:
        return Problem(reason=Reason.INVALID, message=f"{message}max_tokens can be at most {limit - prompt}", param="max_tokens")
    param = "messages" if request.read.chat else "prompt"
    return Problem(reason=Reason.INVALID, message=f"{message}the prompt is too long", param=param)


def _limited(message: str, retry_after_ms: int) -> Problem:
    return Problem(reason=Reason.RATE_LIMITED, message=message, retry_after_ms=retry_after_ms)


def _whole_ms(wait_ns: int) -> int:
    return -(-wait_ns // MS)
