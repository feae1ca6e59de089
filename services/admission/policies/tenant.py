"""Rule: a key belongs to one tenant, and a tenant may not ask for a priority above its own.

Where no tenant is configured, everybody is ANYONE, whatever the key.
"""

from services.admission.config import AdmissionConfig, Terms
from services.admission.request import Request
from services.admission.state import State
from shared.contracts.ids import TenantId
from shared.contracts.outcomes import Problem, Reason

ANYONE = TenantId("default")


def tenant_of(key: str, config: AdmissionConfig) -> tuple[TenantId, Terms] | Problem:
    """Who asks and under which terms, or why they may not."""
    if not config.tenants:
        return ANYONE, config.anyone
    tenant = config.tenant_of_key.get(key)
    if tenant is None:
        message = (
            "this API key belongs to nobody"
            if key
            else "an API key is needed: `Authorization: Bearer KEY` by HTTP, `--key KEY` in the shell, its sha256:<hex> as `key` by NATS"
        )
        return Problem(reason=Reason.UNAUTHENTICATED, message=message, param="key")
    return tenant, config.tenants[tenant]


def refusal(_: State, request: Request, __: AdmissionConfig) -> Problem | None:
    """The priority that is asked for."""
    highest = request.terms.priority_max
    if request.read.priority <= highest:
        return None
    message = f"priority is {request.read.priority}; tenant {request.tenant} may ask for at most {highest}"
    return Problem(reason=Reason.INVALID, message=message, param="priority")
