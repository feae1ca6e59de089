"""The real engine: SGLang as a child process, spoken to over HTTP with token ids (docs/decisions/0002-sglang-as-a-child-process.md).

sglang_config.py is its command line, sglang_process.py its process, sglang_run.py one life of it, sglang_wire.py what is said over HTTP,
sglang_kv.py its cache events, sglang_card.py the model's files.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import msgspec

from services.worker.engines.base import EngineChunk, EngineError, EngineLoad, EngineRequest, KvBatch
from services.worker.engines.sglang_card import read_card
from services.worker.engines.sglang_config import SglangConfig, stop_grace_s
from services.worker.engines.sglang_kv import HeldBlocks
from services.worker.engines.sglang_run import CALL_TIMEOUT_S, LOADS, Flight, SglangRun
from services.worker.engines.sglang_wire import check, finished_before, request_id
from shared.contracts.fleet import Capacity, ModelCard
from shared.contracts.ids import StepId
from shared.contracts.kv import AllCleared, KvEvent
from shared.contracts.outcomes import Reason

__all__ = ["SglangConfig", "SglangEngine"]

ABORT_AGAIN_S = 0.1  # an abort that overtakes its own request on the way finds nothing: it is repeated

log = logging.getLogger(__name__)


class SglangEngine:
    """An `Engine` (base.py) that runs SGLang."""

    def __init__(self, config: SglangConfig) -> None:
        self._config = config
        self._run: SglangRun | None = None
        self._card: ModelCard | None = None
        self._loaded = asyncio.Event()
        self._draining = False
        self._flights: dict[tuple[StepId, int], Flight] = {}  # by step and attempt
        self._serials = itertools.count(1)  # of requests
        self._landed = asyncio.Event()  # set whenever a flight ends
        self._held = HeldBlocks()
        self._kv_seq = 0
        self._kv_run: SglangRun | None = None  # whose events were given out last

    async def load(self) -> tuple[ModelCard, Capacity, dict[str, bytes]]:
        """See Engine. Raises EngineError with the end of SGLang's log when it does not come up within `start_timeout_s`."""
        await self._end_run(grace_s=0)
        card, files = read_card(self._config)
        run = SglangRun(self._config)
        try:
            info = await run.start()
        except BaseException:
            await run.end(grace_s=0)
            raise
        pool, page = info["max_total_num_tokens"], self._config.page_size
        # Prompt and output together. SGLang refuses prompts of max_req_input_len tokens; a request that leaves less than a page of the
        # pool free would wait in its queue for ever, and hold up all others.
        self._card = card = msgspec.structs.replace(card, context_tokens=min(info["max_req_input_len"], pool - 2 * page))
        self._run, self._draining = run, False
        self._loaded.set()
        return card, Capacity(blocks=pool // page, slots=info["max_running_requests"]), files

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineChunk]:
        """See Engine. The token that ended the output (end of text, stop_token_ids) is among the tokens."""
        run, card = self._serving()
        if self._draining:
            raise EngineError("the engine is draining", reason=Reason.NO_CAPACITY, retryable=True)
        check(request, card)
        if reason := finished_before(request, card):
            yield EngineChunk(tokens=[], finish=reason)
            return
        key = request.step, request.attempt
        if key in self._flights:
            raise EngineError(f"attempt {request.attempt} of step {request.step} is running already", retryable=False)
        rid = request_id(request.step, request.attempt, next(self._serials))
        flight = self._flights[key] = Flight(rid)
        finished = False
        try:
            async with aclosing(run.stream(request, flight)) as chunks:
                async for chunk in chunks:
                    finished = chunk.finish is not None
                    yield chunk
        finally:
            self._flights.pop(key)
            flight.known.set()
            self._landed.set()
            if not finished:
                with suppress(EngineError):  # then it is down, and the request with it
                    await run.call("POST", "/abort_request", {"rid": rid})

    async def abort(self, step: StepId, attempt: int) -> None:
        """See Engine."""
        flight = self._flights.get((step, attempt))
        if flight is None or self._run is None:
            return
        flight.aborted = True
        with suppress(EngineError, TimeoutError):  # then it is down, and the request with it
            async with asyncio.timeout(CALL_TIMEOUT_S):
                while True:
                    await self._run.call("POST", "/abort_request", {"rid": flight.rid})
                    if flight.known.is_set():
                        return
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ABORT_AGAIN_S):
                            await flight.known.wait()

    async def stats(self) -> EngineLoad:
        """See Engine. Blocks are SGLang's count of tokens in use, which leaves out what only the prefix cache keeps."""
        run, card = self._serving()
        ranks = (await run.call("GET", LOADS))["loads"]
        waiting = min(sum(rank["num_waiting_reqs"] for rank in ranks), len(self._flights))
        used = sum(rank["num_used_tokens"] for rank in ranks)
        return EngineLoad(blocks_used=-(-used // card.block_tokens), slots_used=len(self._flights) - waiting, waiting=waiting)

    async def kv_events(self) -> AsyncGenerator[KvBatch]:
        """See Engine. Goes on over restarts, each of which numbers from 1 again with an emptied cache; otherwise `seq` has no gaps."""
        while True:
            await self._loaded.wait()
            run, _ = self._serving()
            if self._kv_run is not run:  # else a reader came back
                self._kv_run, self._kv_seq = run, 0
                yield self._record([AllCleared()])
            async with aclosing(run.feed.batches()) as batches:
                async for events in batches:
                    yield self._record(events)

    def _record(self, events: list[KvEvent]) -> KvBatch:
        self._held.apply(events)
        self._kv_seq += 1
        return KvBatch(seq=self._kv_seq, events=events)

    async def kv_snapshot(self) -> tuple[int, list[int]]:
        """See Engine. As of the last batch that `kv_events` gave out."""
        return self._kv_seq, self._held.hashes()

    async def died(self) -> str:
        """See Engine. What the dead engine leaves of its process group is killed."""
        if self._run is None:
            return "the engine is not loaded"
        return await self._run.process.ended()

    async def drain(self, timeout_s: float) -> None:
        """See Engine. Requests that are not done in time end as cancelled."""
        self._draining = True
        if self._run is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_landed()
        except TimeoutError:
            log.warning("%d requests did not finish within %g s: aborted", len(self._flights), timeout_s)
            await self._abort_all(self._run)
        await self._end_run(stop_grace_s(self._config))

    async def _all_landed(self) -> None:
        while self._flights:
            self._landed.clear()
            await self._landed.wait()

    async def _abort_all(self, run: SglangRun) -> None:
        for flight in self._flights.values():
            flight.aborted = True
        with suppress(EngineError, TimeoutError):  # what does not end now ends with the process
            await run.call("POST", "/abort_request", {"abort_all": True})
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._all_landed()

    async def _end_run(self, grace_s: float) -> None:
        run, self._run = self._run, None
        self._loaded.clear()
        if run is not None:
            await run.end(grace_s)

    def _serving(self) -> tuple[SglangRun, ModelCard]:
        """The run and its card. Raises EngineError when there is none."""
        if self._run is None or self._card is None:
            raise EngineError("the engine is not loaded", reason=Reason.NO_CAPACITY, retryable=True)
        return self._run, self._card
