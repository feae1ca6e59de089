"""The protocol between a worker and its engine. Two implementations: sglang.py (real) and simulated.py (for scale and faults)."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

import msgspec

from shared.contracts.fleet import Capacity, ModelCard
from shared.contracts.ids import StepId
from shared.contracts.kv import KvEvent
from shared.contracts.outcomes import FinishReason, Reason
from shared.contracts.output import TokenLogprob
from shared.contracts.steps import Sampling
from shared.core.errors import LegatoError


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt. `tokens` is the prompt; `resumed` are output tokens that earlier attempts already delivered:
    the engine goes on after them and yields only new ones. Limits in `sampling` count the whole output, resumed part included."""

    step: StepId
    attempt: int
    tokens: Sequence[int]
    resumed: Sequence[int] = ()
    sampling: Sampling
    max_tokens: int  # of the whole output
    priority: int = 0
    trace: str = ""  # W3C traceparent of the step
    adapter: str = ""  # a LoRA adapter of the model; no service names one yet


class EngineChunk(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens, at least one unless `finish` is set. `cached_tokens`: of prompt and resumed output, found in the cache; known with the
    first token."""

    tokens: list[int]
    logprobs: list[TokenLogprob] = []  # one per token when asked for; token texts may be empty (the output processor fills them)
    cached_tokens: int = 0
    finish: FinishReason | None = None


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine holds now. Blocks that only the prefix cache keeps (evictable) are not counted as used."""

    blocks_used: int
    slots_used: int
    waiting: int


class KvBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Cache changes in order. `seq` grows by one with each batch since the engine started."""

    seq: int
    events: list[KvEvent]


class EngineError(LegatoError):
    """The engine refused or lost a request. `retryable`: another worker might do better."""

    def __init__(self, message: str, *, reason: Reason = Reason.ENGINE_REJECTED, retryable: bool) -> None:
        super().__init__(message)
        self.reason = reason
        self.retryable = retryable


class Engine(Protocol):
    """All coroutines; cancelling `generate`'s consumer (aclose of the iterator) aborts the request in the engine."""

    async def load(self) -> tuple[ModelCard, Capacity, dict[str, bytes]]:
        """Start and wait until ready. Returns the card, what fits, and the files the card names (object name -> content).
        May be called again after `died`: the engine starts afresh, with an empty cache."""

    def generate(self, request: EngineRequest) -> AsyncGenerator[EngineChunk, None]:
        """Run one attempt. Raises EngineError. The last chunk has `finish`."""

    async def abort(self, step: StepId, attempt: int) -> None:
        """Stop an attempt; its iterator ends with finish CANCELLED. Unknown attempts are ignored."""

    async def stats(self) -> EngineLoad:
        """The load now."""

    def kv_events(self) -> AsyncIterator[KvBatch]:
        """Cache changes, for ever; one consumer. A gap in `seq` means that changes were lost: call kv_snapshot."""

    async def kv_snapshot(self) -> tuple[int, list[int]]:
        """The last `seq` and every block hash held as of it."""

    async def died(self) -> str:
        """Returns, with the reason, when the engine is no longer there."""

    async def drain(self, timeout_s: float) -> None:
        """Let running requests finish, at most `timeout_s`, and stop the engine. Afterwards nothing of it is left running."""
