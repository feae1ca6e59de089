"""Taking a step over from a worker that still runs it, so that its reader hardly notices (docs/architecture.md, "Hand-over").

The engine's cache is warmed with the prompt and the output so far while the other worker goes on decoding; once more, where that leaves
much less to compute behind the seam. Then the other one is asked to stop. It stores what it has and answers with what is not known here,
so that nothing must be read on the way: the reader waits for that answer and for the few tokens since the last warming.

Where no answer comes (that worker has died, or never had the step), what is stored counts. If it lives after all, the fence on the output
lets one of the two go on.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec
import nats.errors

from services.worker import captured
from services.worker.captured import Captured
from services.worker.engines.base import Engine, EngineChunk, EngineRequest
from shared.contracts import subjects
from shared.contracts.ids import WorkerId
from shared.contracts.steps import HandedOver, HandOverAsked, Sampling
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus

log = logging.getLogger(__name__)

WARMINGS_MAX = 4
REST_TOKENS_MAX = 32  # to compute behind the seam: fewer than the tokens that an iteration of any engine takes beside its decoding

_HANDED = msgspec.json.Decoder(HandedOver)


class TakeOver:
    """One attempt's take-over. `request`: the attempt without any output so far. `computed_tokens`: by all warmings so far."""

    def __init__(self, bus: Bus, engine: Engine, request: EngineRequest, stopped: Callable[[], bool]) -> None:
        self._bus = bus
        self._engine = engine
        self._request = request
        self._stopped = stopped
        self.computed_tokens = 0

    async def run(self, relieved: WorkerId, known: Captured) -> Captured:
        """The output from which to go on. When the attempt was stopped meanwhile, or the step has ended, the other worker was not asked.
        Raises BusError, CapturedError, EngineError."""
        for _ in range(WARMINGS_MAX):
            warm = len(known.tokens)
            await self._warm(known)
            known = await captured.read(self._bus, self._request.step, known)
            if self._stopped() or known.end is not None:
                return known
            if len(known.tokens) - warm <= REST_TOKENS_MAX:
                break
        handed = await self._ask(relieved, known)
        if handed is None:
            return await captured.read(self._bus, self._request.step, known)
        known.tokens += handed.tokens
        known.text += handed.text
        known.last_seq = handed.last_seq
        return known

    async def _warm(self, known: Captured) -> None:
        """Have the engine compute what will be the context; the token that it gives is nobody's."""
        request = msgspec.structs.replace(
            self._request, tokens=[*self._request.tokens, *known.tokens], sampling=Sampling(temperature=0), max_tokens=1
        )
        generator: AsyncGenerator[EngineChunk] = self._engine.generate(request)
        async with aclosing(generator) as chunks:
            async for chunk in chunks:
                if chunk.tokens:  # else it was stopped, maybe before it looked into its cache
                    self.computed_tokens += len(request.tokens) - chunk.cached_tokens

    async def _ask(self, relieved: WorkerId, known: Captured) -> HandedOver | None:
        """What the other one had more, now that it has stopped; None: it has nothing to hand over, or does not answer."""
        step = self._request.step
        asked = HandOverAsked(step=step, attempt=self._request.attempt, tokens=len(known.tokens), chars=len(known.text))
        try:
            answer = await self._bus.requests.ask(subjects.handover(relieved), ENCODER.encode(asked))
            handed = _HANDED.decode(answer.data)
        except (nats.errors.Error, TimeoutError, msgspec.DecodeError) as error:
            log.info("nothing was handed over", extra={"step": step, "relieved": relieved, "error": repr(error)})
            return None
        return handed if handed.last_seq else None
