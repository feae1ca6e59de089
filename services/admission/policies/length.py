"""Rule: prompt and longest output fit into the model's context, and the output into what the tenant may ask for.

A step that names no `max_tokens` gets what the context leaves, at most the tenant's `max_output_tokens`.
"""

from services.admission.config import AdmissionConfig, Terms
from services.admission.request import Request
from services.admission.state import State
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import SubmissionRead


def max_tokens(read: SubmissionRead, terms: Terms) -> int:
    """The longest output in tokens; less than 1 when the prompt fills the context."""
    if read.sampling.max_tokens is not None:
        return read.sampling.max_tokens
    return min(read.context_tokens - read.prompt_tokens, terms.max_output_tokens)


def refusal(_: State, request: Request, __: AdmissionConfig) -> Problem | None:
    """The context first: it is what clients shorten their prompts by."""
    read, allowed = request.read, request.terms.max_output_tokens
    if request.max_tokens < 1 or request.tokens > read.context_tokens:
        output = f" and {request.max_tokens} of output (max_tokens)" if request.max_tokens >= 1 else ""
        asked = f"{read.prompt_tokens} of prompt{output}"
        message = f"{read.model} takes {read.context_tokens} tokens of prompt and output together; this asks for {asked}"
        return Problem(reason=Reason.CONTEXT_TOO_LONG, message=message, param="messages" if read.chat else "prompt")
    if request.max_tokens > allowed:
        message = f"max_tokens is {request.max_tokens}; tenant {request.tenant} may ask for at most {allowed}"
        return Problem(reason=Reason.INVALID, message=message, param="max_tokens")
    if read.sampling.min_tokens > request.max_tokens:
        message = f"min_tokens is {read.sampling.min_tokens}, more than the {request.max_tokens} that the output may have"
        return Problem(reason=Reason.INVALID, message=message, param="min_tokens")
    return None
