"""Attempts of the simulated engine (simulated.py) on their way from its loop to their readers, and what they say."""

import asyncio

from services.worker.engines import prose
from services.worker.engines.base import EngineChunk, EngineError, EngineRequest
from shared.contracts.outcomes import FinishReason
from shared.contracts.output import TokenLogprob, TopLogprob
from shared.core.batching import Request
from shared.core.blocks import BlockHasher


class Stream:
    """One attempt between the engine's loop and its consumer. No token waits in it: the text between two positions is known,
    so a slow consumer costs nothing and later takes all at once.

    It is also the attempt's chain of block hashes (kv_cache.Chain), prompt and output.
    """

    def __init__(self, request: EngineRequest, stop: int, ending: FinishReason, block_tokens: int) -> None:
        self.offset = prose.offset_of(request.sampling.seed, request.tokens)
        self.taken = self.produced = self.resumed = len(request.resumed)  # output tokens
        self.ending = ending  # how it ends once `stop` tokens are produced
        self.finish: FinishReason | None = None
        self.error: EngineError | None = None
        self.request = Request(
            key=(request.step, request.attempt),
            prompt_tokens=len(request.tokens) + len(request.resumed),
            output_tokens=stop - len(request.resumed),
            chain=self,
            priority=request.priority,
        )
        self.request.adapter = request.adapter
        self._hasher = BlockHasher(block_tokens, request.adapter)
        self._hasher.extend(request.tokens)
        self._hasher.extend(request.resumed)
        self._hashed = self.resumed  # output tokens
        self._block_tokens = block_tokens
        self._news = False
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Something changed: let the consumer look."""
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def changed(self) -> None:
        """Wait for `wake`, or return at once if it was called since the last time. An asyncio.Event at half the cost, for one waiter."""
        if not self._news:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter  # without a timeout: whatever ends the engine's loop wakes every stream
        self._news = False

    def __getitem__(self, index: int, /) -> int:
        while index >= len(self._hasher.hashes):
            end = self._hashed + self._block_tokens
            self._hasher.extend(prose.tokens_at(self.offset, self._hashed, end))
            self._hashed = end
        return self._hasher.hashes[index]


def take(stream: Stream, request: EngineRequest) -> EngineChunk:
    """What was produced since the last time. Raises the stream's error."""
    if stream.error is not None:
        raise stream.error
    start, stream.taken = stream.taken, stream.produced
    tokens = prose.tokens_at(stream.offset, start, stream.taken)
    top = request.sampling.logprobs
    return EngineChunk(
        tokens=tokens,
        logprobs=[] if top is None else [_made_up_logprob(token, start + index, top) for index, token in enumerate(tokens)],
        cached_tokens=max(stream.request.cached_tokens, 0) + stream.request.host_cached_tokens,
        finish=stream.finish,
    )


def _made_up_logprob(token: int, position: int, top: int) -> TokenLogprob:
    """Deterministic, plausible and without meaning: the chosen token is always the likeliest."""
    logprob = -((token * 31 + position * 17) % 64) / 64
    others = [(token + step) % 256 for step in range(top)]
    return TokenLogprob(
        token=token,
        text="",
        logprob=logprob,
        top=[TopLogprob(token=other, text="", logprob=logprob - rank) for rank, other in enumerate(others)],
    )
