"""How things end, and why: every refusal and failure is one of these, never a bare string."""

from enum import StrEnum

import msgspec


class Status(StrEnum):
    """How a step ended. Exactly one of them for every accepted step."""

    SUCCEEDED = "succeeded"
    REFUSED = "refused"  # never accepted: the caller's fault or over a limit
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # its deadline passed
    SHED = "shed"  # dropped to protect the fleet


class Reason(StrEnum):
    """Why a step was refused or did not succeed. The HTTP status of each is in services/gateway/errors.py."""

    INVALID = "invalid_request"
    UNSUPPORTED = "unsupported_parameter"
    UNAUTHENTICATED = "invalid_api_key"
    MODEL_NOT_FOUND = "model_not_found"
    CONTEXT_TOO_LONG = "context_length_exceeded"
    TOO_LARGE = "request_too_large"
    HISTORY_UNKNOWN = "history_unknown"  # the conversation that a submission refers to is not stored (any more)
    RATE_LIMITED = "rate_limit_exceeded"
    DEADLINE_UNREACHABLE = "deadline_unreachable"
    DEADLINE_PASSED = "deadline_passed"
    QUEUE_FULL = "queue_full"
    BUDGET_SPENT = "insufficient_quota"  # OpenAI's word; the workflow's budget has no money left for this step
    NO_CAPACITY = "no_capacity"  # no worker serves the model now
    CIRCUIT_OPEN = "circuit_open"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    ENGINE_REJECTED = "engine_rejected"
    PROMPT_LOST = "prompt_lost"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"  # of an attempt only, never of a step: another attempt, or the step's end, made it void
    PREEMPTED = "preempted"  # of an attempt only: a step of higher priority took its room; the step goes on later
    HANDED_OVER = "handed_over"  # of an attempt only: the next one has gone on with the step, before its worker left
    INTERNAL = "internal_error"


class FinishReason(StrEnum):
    """Why generation stopped (OpenAI's words where they have one)."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A refusal or failure as its reader needs it: what was wrong, what would be right, when to come back."""

    reason: Reason
    message: str
    param: str = ""
    retry_after_ms: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one step, counted once whatever number of attempts it took."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, found in the engine's KV cache
    output_tokens: int = 0
