"""One attempt of a step, from its dispatch to its report."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from tokenizers import Tokenizer

from services.worker import captured
from services.worker.captured import Captured, CapturedError
from services.worker.engines.base import Engine, EngineChunk, EngineError, EngineRequest
from services.worker.meter import Meter
from services.worker.output import OutputProcessor
from services.worker.prompts import Prompts
from services.worker.takeover import TakeOver
from services.worker.writer import Fenced, OutputWriter
from shared.contracts.fleet import Hardware, ModelCard
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status, Usage
from shared.contracts.output import End
from shared.contracts.steps import AttemptEnded, HandedOver, HandOverAsked, StepDispatched
from shared.core.errors import LegatoError
from shared.runtime.bus import Bus, BusError
from shared.runtime.clock import now_ns
from shared.runtime.tasks import end

log = logging.getLogger(__name__)

# A revocation for one of these ends the step for its reader as well; for any other reason the attempt is merely void.
REVOKED_ENDS = {Reason.CANCELLED: Status.CANCELLED, Reason.DEADLINE_PASSED: Status.EXPIRED}
LEAVING = {
    Reason.NO_CAPACITY: "the worker drains and hands the step back",
    Reason.PREEMPTED: "a step of higher priority took its room",
    Reason.HANDED_OVER: "the worker leaves, and another one has gone on with the step",
}

FETCH_PATIENCE_NS = 60_000_000_000  # while NATS does not answer
FETCH_AGAIN_S = 0.1
PIECE_TOKENS_MAX = 256  # with 20 alternatives each still below 1 MiB

Fetched = TypeVar("Fetched")


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a worker serves while its engine lives."""

    engine: Engine
    card: ModelCard
    tokenizer: Tokenizer
    output_gap_s: float
    meter: Meter
    hardware: Hardware


class Attempt:
    """Use `report = await attempt.run()`; `revoke`, `hand_back` and `hand_over` stop it early. No report: the attempt is void, nobody waits
    for it."""

    def __init__(self, bus: Bus, served: Served, prompts: Prompts, dispatch: StepDispatched) -> None:
        self.dispatch = dispatch
        self.output_tokens = 0
        self._cached_tokens = 0
        self._prompt_tokens = dispatch.job.prompt_tokens
        self._revoked: Reason | None = None
        self._leaving: Reason | None = None  # handed back, or over
        self._handed = HandedOver()
        self._asked: HandOverAsked | None = None
        self._over = asyncio.Event()
        self._bus = bus
        self._served = served
        self._prompts = prompts
        self._started_ns = now_ns()
        self._asked_ns = 0
        self._first_ns = 0
        self._resumed_tokens = 0
        self._computed_tokens = 0
        self._share_s = 0.0  # of the engine's time

    async def run(self) -> AttemptEnded | None:
        """Whatever engines, prompts and fences do is in the report; nothing is raised but bugs."""
        try:
            return await self._run()
        except EngineError as error:
            return self._failed(error.reason, str(error), retryable=error.retryable)
        except Fenced as error:  # whoever wrote instead goes on with the step, or has ended it
            log.info("attempt is void", extra={"step": self.dispatch.step, "attempt": self.dispatch.attempt, "error": str(error)})
            return None
        except CapturedError as error:
            return self._failed(Reason.INTERNAL, str(error), retryable=False)
        except LegatoError as error:  # the bus stayed away
            log.warning("attempt broken off", extra={"step": self.dispatch.step, "attempt": self.dispatch.attempt, "error": str(error)})
            void = self._revoked is not None and self._revoked not in REVOKED_ENDS
            return None if void else self._failed(Reason.INTERNAL, str(error), retryable=True)
        finally:
            self._over.set()

    async def revoke(self, reason: Reason) -> None:
        """Stop because the scheduler says so."""
        if reason in LEAVING:
            self._leaving = reason
        else:
            self._revoked = reason
        await self._abort()

    async def hand_back(self) -> None:
        """Stop because this worker goes away; another one goes on behind what is stored."""
        self._leaving = self._leaving or Reason.NO_CAPACITY
        await self._abort()

    async def hand_over(self, asked: HandOverAsked) -> HandedOver:
        """Stop because the asker goes on, once all is stored; what it lacks."""
        self._leaving, self._asked = Reason.HANDED_OVER, asked
        await self._abort()
        await self._over.wait()
        return self._handed

    async def _abort(self) -> None:
        await self._served.engine.abort(self.dispatch.step, self.dispatch.attempt)

    async def _run(self) -> AttemptEnded | None:
        dispatch = self.dispatch
        prompt = await self._patiently(lambda: self._prompts.tokens(dispatch, lambda: self._stopped))
        if prompt is None:
            return self._failed(Reason.PROMPT_LOST, "the prompt is no longer stored; submit the step again", retryable=False)
        before = await self._patiently(lambda: captured.read(self._bus, dispatch.step)) if dispatch.attempt > 1 else Captured()
        if before.attempt > dispatch.attempt:
            return None
        request = EngineRequest(
            step=dispatch.step,
            attempt=dispatch.attempt,
            tokens=prompt,
            sampling=dispatch.job.sampling,
            max_tokens=dispatch.job.max_tokens,
            priority=dispatch.job.priority,
            trace=dispatch.trace,
        )
        if dispatch.relieves and before.end is None and not self._stopped:
            before = await self._take_over(request, before)
        request = msgspec.structs.replace(request, resumed=before.tokens)
        processor = OutputProcessor(self._served.tokenizer, self._served.card.eos_token_ids, request)
        self._prompt_tokens, self.output_tokens = len(request.tokens), processor.offset
        self._resumed_tokens = len(before.tokens)
        if before.end is not None:
            return self._ended(before.end, before.tokens, before.text)
        writer = OutputWriter(self._bus, dispatch, before, self._served.output_gap_s)
        writing = asyncio.create_task(writer.run(), name=f"output-{dispatch.step}")
        try:
            await self._generate(request, processor, writer)
            await writing
        finally:
            await end([writing])
        if self._asked is not None and writer.end is None:
            self._handed = _lacking(self._asked, processor, writer.last_seq)
        return self._report(writer.end, processor)

    async def _take_over(self, request: EngineRequest, before: Captured) -> Captured:
        with self._in_engine():
            taking = TakeOver(self._bus, self._served.engine, request, lambda: self._stopped)
            try:
                return await taking.run(self.dispatch.relieves, before)
            finally:
                self._computed_tokens += taking.computed_tokens

    async def _patiently(self, fetch: Callable[[], Awaitable[Fetched]]) -> Fetched:
        """While NATS is away an attempt that needs it waits: failing would only use up the step's attempts. Raises BusError in the end."""
        end_ns = now_ns() + FETCH_PATIENCE_NS
        while True:
            try:
                return await fetch()
            except BusError as error:
                if self._stopped or now_ns() > end_ns:
                    raise
                log.info("not fetched yet", extra={"step": self.dispatch.step, "error": str(error)})
                await asyncio.sleep(FETCH_AGAIN_S)

    async def _generate(self, request: EngineRequest, processor: OutputProcessor, writer: OutputWriter) -> None:
        """Engine to writer, until the output ends or the attempt is stopped."""
        self._asked_ns = now_ns()
        try:
            if processor.finish is None and not self._stopped:
                with self._in_engine():
                    await self._consume(request, processor, writer)
        finally:
            writer.finish(self._end(processor))

    @contextmanager
    def _in_engine(self) -> Iterator[None]:
        """Time in the engine, which is paid for."""
        clock, meter = asyncio.get_running_loop().time, self._served.meter
        mark = meter.enter(clock())
        try:
            yield
        finally:
            self._share_s += meter.leave(mark, clock())

    async def _consume(self, request: EngineRequest, processor: OutputProcessor, writer: OutputWriter) -> None:
        async with aclosing(self._served.engine.generate(request)) as chunks:
            async for chunk in chunks:
                if not self._first_ns:
                    self._first_ns = now_ns()
                    self._found(request, chunk)
                for part in _parts(chunk):
                    piece = processor.push(part.tokens, part.logprobs, part.finish)
                    self.output_tokens = processor.offset
                    if piece.tokens or piece.text:
                        await writer.add(piece)
                    if piece.finish is not None:
                        return  # closing the iterator aborts what the engine may still do
                await writer.landing()

    def _found(self, request: EngineRequest, first: EngineChunk) -> None:
        """What the engine had in its cache, and so what it has computed before the first token."""
        self._cached_tokens = min(first.cached_tokens, len(request.tokens))
        if first.tokens:
            self._computed_tokens += len(request.tokens) + len(request.resumed) - first.cached_tokens

    @property
    def _stopped(self) -> bool:
        return self._revoked is not None or self._leaving is not None

    def _end(self, processor: OutputProcessor) -> End | None:
        """The end that the reader is to see, if it is ours to say."""
        usage = Usage(prompt_tokens=self._prompt_tokens, cached_tokens=self._cached_tokens, output_tokens=processor.offset)
        if processor.finish in (FinishReason.STOP, FinishReason.LENGTH):
            return End(status=Status.SUCCEEDED, finish_reason=processor.finish, usage=usage)
        status = REVOKED_ENDS.get(self._revoked) if self._revoked is not None else None
        if status is None or self._revoked is None:
            return None
        problem = Problem(reason=self._revoked, message=f"the step was {status} after {processor.offset} output tokens")
        return End(status=status, finish_reason=FinishReason.CANCELLED, usage=usage, problem=problem)

    def _report(self, end: End | None, processor: OutputProcessor) -> AttemptEnded | None:
        if end is not None:
            return self._ended(end, processor.tokens, processor.full_text)
        if self._leaving is not None:
            return self._failed(self._leaving, LEAVING[self._leaving], retryable=True)
        if self._revoked is not None:
            return None
        return self._failed(Reason.INTERNAL, f"the engine stopped early ({processor.finish})", retryable=True)

    def _ended(self, end: End, tokens: list[int], text: str) -> AttemptEnded:
        return msgspec.structs.replace(
            self._base(end.status), finish_reason=end.finish_reason, usage=end.usage, tokens=tokens, text=text, problem=end.problem
        )

    def _failed(self, reason: Reason, message: str, *, retryable: bool) -> AttemptEnded:
        usage = Usage(prompt_tokens=self._prompt_tokens, cached_tokens=self._cached_tokens, output_tokens=self.output_tokens)
        return msgspec.structs.replace(
            self._base(Status.FAILED),
            finish_reason=FinishReason.ERROR,
            usage=usage,
            problem=Problem(reason=reason, message=message),
            retryable=retryable,
        )

    def _base(self, status: Status) -> AttemptEnded:
        dispatch, now, hardware = self.dispatch, now_ns(), self._served.hardware
        asked = self._asked_ns or now
        return AttemptEnded(
            step=dispatch.step,
            workflow=dispatch.workflow,
            tenant=dispatch.tenant,
            trace=dispatch.trace,
            cell=dispatch.cell,
            worker=dispatch.worker,
            attempt=dispatch.attempt,
            status=status,
            queued_ms=(asked - self._started_ns) / 1e6,
            ttft_ms=(self._first_ns - asked) / 1e6 if self._first_ns else 0.0,
            total_ms=(now - self._started_ns) / 1e6,
            resumed_tokens=self._resumed_tokens,
            computed_tokens=self._computed_tokens,
            gpu_s=self._share_s * hardware.count,
            usd=self._share_s * hardware.usd_per_hour / 3600,
        )


def _lacking(asked: HandOverAsked, processor: OutputProcessor, last_seq: int) -> HandedOver:
    return HandedOver(last_seq=last_seq, tokens=processor.tokens[asked.tokens :], text=processor.full_text[asked.chars :])


def _parts(chunk: EngineChunk) -> Iterator[EngineChunk]:
    """A chunk in pieces that each fit a message."""
    tokens, logprobs = chunk.tokens, chunk.logprobs
    if len(tokens) <= PIECE_TOKENS_MAX:
        yield chunk
        return
    for start in range(0, len(tokens), PIECE_TOKENS_MAX):
        end = start + PIECE_TOKENS_MAX
        yield EngineChunk(tokens=tokens[start:end], logprobs=logprobs[start:end], finish=chunk.finish if end >= len(tokens) else None)
