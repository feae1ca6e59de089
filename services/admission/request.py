"""A readable submission of a known tenant, as the rules see it."""

from collections.abc import Callable

import msgspec

from services.admission.config import AdmissionConfig, Terms
from services.admission.state import State
from shared.contracts.ids import ModelName, TenantId
from shared.contracts.outcomes import Problem
from shared.contracts.steps import SubmissionRead

MS = 1_000_000  # nanoseconds


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, by whom, and when."""

    read: SubmissionRead
    tenant: TenantId
    terms: Terms
    max_tokens: int  # of the output; less than 1 when the prompt leaves no room
    timeout_ms: int
    now_ns: int

    @property
    def model(self) -> ModelName:
        return ModelName(self.read.model)

    @property
    def tokens(self) -> int:
        """The most that the step can use, prompt and output."""
        return self.read.prompt_tokens + self.max_tokens


Rule = Callable[[State, Request, AdmissionConfig], Problem | None]
