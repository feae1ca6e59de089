"""A SIMULATED engine: it serves a fixed text from no model at all, in the time that a real engine would take by the step law.

What is real: the protocol, the tokenizer, queueing, continuous batching, chunked prefill, the paged prefix cache with its events and
evictions, retraction, and the durations, as far as shared/core's models of them are right. What is made up: every token (prose.py) and
every log-probability. Temperature, penalties, logit_bias and the other sampling fields are accepted and change nothing, except `seed`
(chooses where the text starts), `stop_token_ids` with `min_tokens`, `max_tokens` and `logprobs`. It never says an end-of-sequence token.
Grammars it cannot follow: its card says so, and admission refuses them.

Where it may be used: tests, demonstrations without a model, fleets of many workers on one machine, fault drills, and benchmarks of the
control plane itself (`law = "instant"`). Never where somebody expects an answer. Workers that run it say so in `WorkerRegistered.engine`
and `Hardware.kind`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Hashable
from hashlib import sha256
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from services.worker.engines import byte_tokenizer, prose
from services.worker.engines.base import EngineChunk, EngineError, EngineLoad, EngineRequest, KvBatch
from services.worker.engines.simulated_streams import Stream, take
from shared.contracts.fleet import Capacity, ModelCard
from shared.contracts.ids import ModelName, StepId
from shared.contracts.kv import KvEvent
from shared.contracts.outcomes import FinishReason, Reason
from shared.contracts.steps import GRAMMARS
from shared.core.batching import Batching, BatchingConfig, Refusal, Step
from shared.core.errors import LegatoError
from shared.core.eviction import Eviction
from shared.core.shipped_laws import kv_token_bytes, law_called
from shared.core.step_law import decode_ns, prefill_ns
from shared.runtime.tasks import end

LAG_MAX_S = 0.05  # an iteration that starts later than due, by more than this, does not catch up

_log = logging.getLogger(__name__)


class SimulatedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is simulated. `law`: a preset ("8b-h100", "instant"), or `<model>@<gpu>[x<GPUs>][:<engine>]` (shared/core/shipped_laws.py)."""

    model: str = "sim-small"
    law: str = "8b-h100"
    time_scale: float = 1.0  # every duration is multiplied by this: 2.0 is an engine half as fast
    load_s: float = 0.0  # weights loading, before time_scale
    blocks: int = 8192
    block_tokens: int = 16
    slots: int = 64
    queue_max: int = 1024
    tokens_per_step: int = 2048
    context_tokens: int = 32768
    eviction: Eviction = "lru"  # or "priority": blocks of lower priority go first
    host_blocks: Annotated[int, Meta(ge=0)] = 0  # of a second cache tier in the host's memory
    host_gb_per_s: Annotated[float, Meta(gt=0, le=10_000)] = 50.0  # from there to a GPU: PCIe 5.0 x16 (63) at 80%
    adapters_max: Annotated[int, Meta(ge=0)] = 0  # LoRA adapters that are loaded at once
    adapter_mb: Annotated[float, Meta(ge=0, le=1e6)] = 100.0  # of each, on one GPU
    kv_batches_max: int = 4096  # not yet read by the worker; older ones are dropped, a gap in seq shows it
    tool_parser: Literal["", "hermes", "llama3_json", "mistral"] = ""  # what its card says; its prose has no calls
    reasoning_parser: Literal["", "deepseek_r1", "qwen3"] = ""  # likewise
    crash_after_s: float | None = None  # fault drill: the engine dies that long after each load

    def __post_init__(self) -> None:
        try:
            law_called(self.law)
        except LegatoError as error:
            raise ValueError(f"law: {error}") from error

    def batching(self) -> BatchingConfig:
        return BatchingConfig(
            blocks=self.blocks,
            block_tokens=self.block_tokens,
            slots=self.slots,
            queue_max=self.queue_max,
            tokens_per_step=self.tokens_per_step,
            eviction=self.eviction,
            host_blocks=self.host_blocks,
            host_block_ns=round(kv_token_bytes(self.law) * self.block_tokens / self.host_gb_per_s),
            adapters_max=self.adapters_max,
            adapter_load_ns=round(self.adapter_mb * 1e6 / self.host_gb_per_s),
        )


class SimulatedEngine:
    """See the module's first lines."""

    def __init__(self, config: SimulatedConfig) -> None:
        self.config = config
        self._law = law_called(config.law)
        self._context_tokens = min(config.context_tokens, config.blocks * config.block_tokens)
        self._batching = Batching(config.batching(), self._law)
        self._streams: dict[Hashable, Stream] = {}
        self._loop: asyncio.Task[None] | None = None
        self._work = asyncio.Event()  # something was submitted
        self._quiet = asyncio.Event()  # no attempt is here
        self._quiet.set()
        self._refusing = "the engine is not loaded"  # why no attempt is taken now
        self._dead = asyncio.Event()
        self._death = ""
        self._kv: deque[KvBatch] = deque(maxlen=config.kv_batches_max)
        self._kv_changed = asyncio.Event()
        self._kv_seq = 0
        self._closed = False

    async def load(self) -> tuple[ModelCard, Capacity, dict[str, bytes]]:
        """Let the weights' loading time pass, then run with an empty cache."""
        if self._loop is not None and not self._loop.done():
            raise AssertionError("the engine runs already")
        _log.info("simulated engine %s: no model is loaded, its answers are a fixed text", self.config.model)
        await asyncio.sleep(self.config.load_s * self.config.time_scale)
        self._batching = Batching(self.config.batching(), self._law)
        self._kv.clear()
        self._kv_seq = 0
        self._dead.clear()
        self._refusing = ""
        self._loop = asyncio.create_task(self._run(), name="simulated-engine")
        tokenizer = byte_tokenizer.build()
        name = sha256(tokenizer).hexdigest()
        return self._card(name), self._capacity(), {name: tokenizer}

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineChunk, None]:
        """Run one attempt. Raises EngineError. The last chunk has `finish`."""
        self._check(request)
        stop, ending = self._end_of(request)
        if stop <= len(request.resumed):
            yield EngineChunk(tokens=[], finish=ending)
            return
        stream = Stream(request, stop, ending, self.config.block_tokens)
        self._submit(stream)
        try:
            while True:
                await stream.changed()
                chunk = take(stream, request)
                yield chunk
                if chunk.finish is not None:
                    return
        finally:
            self._forget(stream)

    async def abort(self, step: StepId, attempt: int) -> None:
        """Stop an attempt; tokens that it has produced still come, with finish CANCELLED. Unknown attempts are ignored."""
        stream = self._streams.get((step, attempt))
        if stream is not None and stream.finish is None:
            self._batching.abort(stream.request)
            stream.finish = FinishReason.CANCELLED
            stream.wake()

    async def stats(self) -> EngineLoad:
        """The load now."""
        batching = self._batching
        return EngineLoad(blocks_used=batching.cache.used, slots_used=batching.running, waiting=batching.waiting)

    async def kv_events(self) -> AsyncGenerator[KvBatch, None]:
        """Cache changes, each told when the iteration begins that computes the blocks. Goes on through crash and reload; ends with
        drain."""
        while not self._closed:
            while self._kv:
                yield self._kv.popleft()
            self._kv_changed.clear()
            await self._kv_changed.wait()  # without a timeout: an idle engine changes nothing, and drain sets it

    async def kv_snapshot(self) -> tuple[int, list[int]]:
        """The last `seq` and every block hash held as of it."""
        return self._kv_seq, self._batching.cache.hashes()

    async def died(self) -> str:
        """Returns when `crash` was called or `crash_after_s` is over, with the reason."""
        await self._dead.wait()
        return self._death

    async def drain(self, timeout_s: float) -> None:
        """Take no more attempts, let those here finish for at most `timeout_s`, and stop for good."""
        self._refusing = "the engine is draining"
        try:
            async with asyncio.timeout(timeout_s):
                await self._quiet.wait()
        except TimeoutError:
            _log.warning("drain: %d attempts were still here after %s s", len(self._streams), timeout_s)
        await self._halt("the engine was stopped")
        self._closed = True
        self._kv_changed.set()

    async def crash(self, reason: str) -> None:
        """Fault drill: lose every attempt and the cache, as when an engine's process is killed. `load` starts it again."""
        await self._halt(reason)
        self._die(reason)

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self.config.crash_after_s):
                await self._iterate()
        except TimeoutError:
            self._die(f"crashed after {self.config.crash_after_s} s, as configured")
        except Exception as error:
            _log.exception("the simulated engine failed")
            self._die(f"{type(error).__name__}: {error}")

    async def _iterate(self) -> None:
        """Run iterations one after another, each due a duration after the one before, so that late wake-ups do not add up."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if self._batching.idle:
                self._work.clear()
                await self._work.wait()
                due = clock()
            step = self._batching.step()
            self._publish(step.kv_events)
            due = max(due + step.duration_ns * 1e-9 * self.config.time_scale, clock() - LAG_MAX_S)
            await asyncio.sleep(max(0.0, due - clock()))
            self._deliver(step)

    def _deliver(self, step: Step) -> None:
        for request in step.produced:
            stream = self._streams.get(request.key)
            if stream is None or stream.request is not request or stream.finish is not None:
                continue  # its consumer went away while the iteration ran
            stream.produced = stream.resumed + request.produced
            if request.produced == request.output_tokens:
                stream.finish = stream.ending
            stream.wake()

    def _publish(self, events: list[KvEvent]) -> None:
        if events:
            self._kv_seq += 1
            self._kv.append(KvBatch(seq=self._kv_seq, events=events))
            self._kv_changed.set()

    def _check(self, request: EngineRequest) -> None:
        if self._refusing:
            raise EngineError(self._refusing, reason=Reason.NO_CAPACITY, retryable=True)
        if not 1 <= len(request.tokens) < self._context_tokens:
            message = f"a prompt has 1 to {self._context_tokens - 1} tokens here, not {len(request.tokens)}"
            raise EngineError(message, reason=Reason.CONTEXT_TOO_LONG if request.tokens else Reason.ENGINE_REJECTED, retryable=False)
        for tokens in (request.tokens, request.resumed):
            if tokens and not (min(tokens) >= 0 and max(tokens) < byte_tokenizer.VOCAB_SIZE):
                raise EngineError(f"token ids lie below {byte_tokenizer.VOCAB_SIZE}", retryable=False)

    def _end_of(self, request: EngineRequest) -> tuple[int, FinishReason]:
        """How many output tokens there will be, and why no more."""
        sampling = request.sampling
        limit = min(request.max_tokens, self._context_tokens - len(request.tokens))
        start = max(len(request.resumed), sampling.min_tokens)
        place = prose.first_of(sampling.stop_token_ids, prose.offset_of(sampling.seed, request.tokens), start, limit)
        return (limit, FinishReason.LENGTH) if place is None else (place + 1, FinishReason.STOP)

    def _submit(self, stream: Stream) -> None:
        key = stream.request.key
        if key in self._streams:
            raise EngineError(f"attempt {key} runs here already", retryable=False)
        refusal = self._batching.submit(stream.request)
        if refusal is Refusal.QUEUE_FULL:
            raise EngineError("the engine's queue is full", reason=Reason.QUEUE_FULL, retryable=True)
        if refusal is Refusal.TOO_LONG:
            raise AssertionError("a context that was checked does not fit into the cache")
        if refusal is Refusal.NO_ADAPTERS:
            message = f"this engine loads no adapters, so not {stream.request.adapter!r} either: [simulated] adapters_max is 0"
            raise EngineError(message, retryable=True)
        self._streams[key] = stream
        self._quiet.clear()
        self._work.set()

    def _forget(self, stream: Stream) -> None:
        self._batching.abort(stream.request)
        if self._streams.get(stream.request.key) is stream:
            del self._streams[stream.request.key]
        if not self._streams:
            self._quiet.set()

    async def _halt(self, reason: str) -> None:
        """End the loop, and every stream with an error."""
        self._refusing = reason
        if self._loop is not None:
            await end([self._loop])
        self._fail_streams(reason)

    def _die(self, reason: str) -> None:
        self._refusing = self._death = reason
        self._fail_streams(reason)
        self._dead.set()

    def _fail_streams(self, reason: str) -> None:
        for stream in self._streams.values():
            stream.error = EngineError(reason, reason=Reason.INTERNAL, retryable=True)
            stream.wake()

    def _card(self, tokenizer: str) -> ModelCard:
        return ModelCard(
            name=ModelName(self.config.model),
            tokenizer=tokenizer,
            chat_template=byte_tokenizer.CHAT_TEMPLATE,
            vocab_size=byte_tokenizer.VOCAB_SIZE,
            context_tokens=self._context_tokens,
            block_tokens=self.config.block_tokens,
            eos_token_ids=byte_tokenizer.EOS_TOKEN_IDS,
            eos_token=byte_tokenizer.MESSAGE_END,
            tool_parser=self.config.tool_parser,
            reasoning_parser=self.config.reasoning_parser,
            unsupported=list(GRAMMARS),
        )

    def _capacity(self) -> Capacity:
        config = self.config
        prefill = prefill_ns(self._law, config.tokens_per_step) * config.time_scale
        decode = decode_ns(self._law, 1, config.block_tokens) * config.time_scale
        return Capacity(
            blocks=config.blocks,
            slots=config.slots,
            prefill_tokens_per_s=config.tokens_per_step * 1e9 / prefill if prefill else 0.0,
            decode_tokens_per_s=1e9 / decode if decode else 0.0,
        )
