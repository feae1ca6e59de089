"""`[admission]`: who may ask for how much, and what is taken at all.

    [admission.tenants.acme]
    keys = ["sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]
    requests_per_minute = 600

Without any tenant everybody is `default`, under the limits of `[admission.anyone]`.
"""

from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.contracts.ids import TenantId, is_subject_token

Limit = Annotated[int, Meta(ge=0)]  # 0: none


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant may do. `keys`: `sha256:<hex of the API key>`; keys themselves are never written down."""

    keys: list[Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]] = []
    requests_per_minute: Limit = 0
    tokens_per_minute: Limit = 0  # prompt and output; reserved for the longest output, what was not used is given back
    concurrent_max: Limit = 0  # accepted and not yet ended
    max_output_tokens: Annotated[int, Meta(ge=1)] = 16_384
    priority_max: Annotated[int, Meta(ge=-100, le=100)] = 0


class AdmissionConfig(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Times in milliseconds."""

    tenants: dict[str, Terms] = {}
    anyone: Terms = Terms(priority_max=100)
    timeout_ms: Annotated[int, Meta(ge=1)] = 600_000  # of a step that names none
    timeout_max_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 3_600_000  # the bound is that of Submission, and of what streams keep
    concurrent_wait_ms: Annotated[int, Meta(ge=0, le=10_000)] = 100  # for a place below `concurrent_max`, until a submission is refused
    in_flight_max: Annotated[int, Meta(ge=1)] = 50_000  # accepted and not yet settled, of all tenants
    queue_depth_max: Annotated[int, Meta(ge=1)] = 10_000  # of a model's least crowded cell
    report_fresh_ms: Annotated[int, Meta(ge=1)] = 5_000  # older queue reports tell nothing
    retry_min_ms: Annotated[int, Meta(ge=0)] = 1_000  # where nothing better is known
    prompt_bytes_max: Annotated[int, Meta(ge=1)] = 2_000_000  # of a submission's body, with all of its conversation
    conversations_bytes_max: Annotated[int, Meta(ge=0)] = 64 * 2**20  # of stored conversations that are kept in memory
    prepared_tokens_max: Annotated[int, Meta(ge=1)] = 4_000_000  # of prompts that wait for their decision, about 40 bytes each
    tokenisers_max: Annotated[int, Meta(ge=1)] = 16  # kept in memory
    tokenising_threads: Annotated[int, Meta(ge=1, le=64)] = 2  # for long prompts

    def __post_init__(self) -> None:
        if self.timeout_ms > self.timeout_max_ms:
            raise ValueError(
                f"timeout_ms is {self.timeout_ms}, more than timeout_max_ms, {self.timeout_max_ms}: no step could leave it out"
            )
        names: dict[str, str] = {}
        for name, terms in self.tenants.items():
            if not is_subject_token(name):
                raise ValueError(f"tenant {name!r}: a name has letters, digits, _ and - only")
            for key in terms.keys:
                if names.setdefault(key, name) != name:
                    raise ValueError(f"tenants {names[key]} and {name} have the same key {key[:15]}…")

    @cached_property
    def tenant_of_key(self) -> dict[str, TenantId]:
        """Who owns which key."""
        return {key: TenantId(name) for name, terms in self.tenants.items() for key in terms.keys}
