"""What a step's reader receives on `legato.out.<step>`."""

import msgspec

from shared.contracts.envelope import Message
from shared.contracts.outcomes import FinishReason, Problem, Status, Usage


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One candidate token at a position."""

    token: int
    text: str
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Log-probability of one generated token, with the likeliest alternatives."""

    token: int
    text: str
    logprob: float
    top: list[TopLogprob] = []


class End(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a step's output. Exactly one output message of a step carries it, the last."""

    status: Status
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage = Usage()
    problem: Problem | None = None


class Output(Message, frozen=True, kw_only=True, tag="output"):
    """New tokens of a step. `offset` counts the output tokens before this message; `text` is what may be shown now
    (it lags the tokens while a character or a stop string is incomplete). Published on `legato.outbox.<step>`; readers hear what was
    stored of that, in the order of the stream, whose first `end` is the step's."""

    attempt: int = 0
    offset: int = 0
    tokens: list[int] = []
    text: str = ""
    logprobs: list[TokenLogprob] = []
    end: End | None = None
