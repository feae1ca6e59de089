"""The real engine: SGLang as a child process, spoken to over HTTP with token ids (docs/decisions/0002-sglang-as-a-child-process.md)."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from services.worker.engines.base import EngineChunk, EngineError, EngineLoad, EngineRequest, KvBatch
from services.worker.engines.sglang_card import read_card
from services.worker.engines.sglang_config import SglangConfig, command, environment
from services.worker.engines.sglang_kv import HeldBlocks, KvFeed
from services.worker.engines.sglang_process import EngineProcess, free_port
from services.worker.engines.sglang_wire import EventSplitter, check, finished_before, read_event, refusal, request_body, request_id
from shared.contracts.fleet import Capacity, ModelCard
from shared.contracts.ids import StepId
from shared.contracts.kv import AllCleared, KvEvent
from shared.contracts.outcomes import Reason

__all__ = ["SglangConfig", "SglangEngine"]

CALL_TIMEOUT_S = 10.0  # of a control call: load, abort, server info
CONNECT_TIMEOUT_S = 5.0
ABORT_AGAIN_S = 0.1  # an abort that overtakes its own request on the way finds nothing: it is repeated
READY_POLL_S = 0.2
LOADS = "/v1/loads?include=core"
KEEPALIVE_S = 3.0  # below uvicorn's 5 s, so that no request is sent into a connection that is just being closed

log = logging.getLogger(__name__)


class _Flight:
    """One request in SGLang's hands."""

    def __init__(self) -> None:
        self.aborted = False
        self.known = asyncio.Event()  # SGLang has it, or had it


class _Run:
    """One life of SGLang: its process, its connection, its cache."""

    def __init__(self, config: SglangConfig) -> None:
        port = config.port or free_port()
        self.process = EngineProcess(Path(config.log_dir) / "engine.log")
        self.command = command(config, port, self.process.scratch)
        self.feed = KvFeed(self.process.scratch)
        self.card: ModelCard | None = None
        self.http = aiohttp.ClientSession(
            base_url=f"http://127.0.0.1:{port}",
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),  # the worker bounds what is in flight
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=config.token_timeout_s),
        )

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """One control call; the decoded answer, None when it is empty. Raises EngineError."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S), self.http.request(method, path, json=body) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"SGLang does not answer {path}: {error!r}", reason=Reason.INTERNAL, retryable=True) from error
        if response.status != 200:
            raise refusal(response.status, answer.decode(errors="replace"))
        return msgspec.json.decode(answer) if answer else None

    async def end(self, timeout_s: float) -> None:
        """Stop the process and free everything."""
        self.feed.close()
        await self.process.stop(timeout_s)
        await self.http.close()


class SglangEngine:
    """An `Engine` (base.py) that runs SGLang. One instance at a time per configuration's port and log folder."""

    def __init__(self, config: SglangConfig) -> None:
        self._config = config
        self._run: _Run | None = None
        self._loaded = asyncio.Event()
        self._draining = False
        self._flights: dict[str, _Flight] = {}
        self._landed = asyncio.Event()  # set whenever a flight ends
        self._held = HeldBlocks()
        self._kv_seq = 0
        self._kv_run: _Run | None = None  # whose events were given out last

    async def load(self) -> tuple[ModelCard, Capacity, dict[str, bytes]]:
        """See Engine. Raises EngineError with the end of SGLang's log when it does not come up within `start_timeout_s`."""
        await self._end_run(timeout_s=0)
        card, files = read_card(self._config)
        run = _Run(self._config)
        try:
            await self._start(run)
            info = await run.call("GET", "/server_info")
            await run.call("GET", LOADS)
            run.process.note_leftovers()
        except BaseException:
            await run.end(timeout_s=0)
            raise
        pool, page = info["max_total_num_tokens"], self._config.page_size
        # Prompt and output together. SGLang refuses prompts of max_req_input_len tokens; what leaves less than a page of the pool free
        # would wait in its queue for ever, and hold up all others.
        card = msgspec.structs.replace(card, context_tokens=min(info["max_req_input_len"], pool - 2 * page))
        run.card, self._run, self._draining = card, run, False
        self._loaded.set()
        return card, Capacity(blocks=pool // page, slots=info["max_running_requests"]), files

    async def _start(self, run: _Run) -> None:
        """Start the process and wait until it is ready to serve."""
        try:
            await run.process.start(run.command, environment(self._config, run.process.scratch))
        except OSError as error:
            message = f"SGLang cannot be started ({error}); `make setup-engine` installs it"
            raise EngineError(message, reason=Reason.INTERNAL, retryable=False) from error
        exited = asyncio.ensure_future(run.process.exited())
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                while not await _healthy(run):
                    if exited.done():
                        raise EngineError(f"SGLang did not start: {exited.result()}", reason=Reason.INTERNAL, retryable=False)
                    await asyncio.wait([exited], timeout=READY_POLL_S)
        except TimeoutError:
            message = f"SGLang was not ready within {self._config.start_timeout_s:g} s; the end of its log:\n{run.process.tail()}"
            raise EngineError(message, reason=Reason.INTERNAL, retryable=False) from None
        finally:
            exited.cancel()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineChunk]:
        """See Engine. The token that ended the output (end of text, stop_token_ids) is among the tokens."""
        run, card = self._serving()
        if self._draining:
            raise EngineError("the engine is draining", reason=Reason.NO_CAPACITY, retryable=True)
        check(request, card)
        if reason := finished_before(request, card):
            yield EngineChunk(tokens=[], finish=reason)
            return
        name = request_id(request.step, request.attempt)
        if name in self._flights:
            raise EngineError(f"attempt {request.attempt} of step {request.step} is running already", retryable=False)
        flight = self._flights[name] = _Flight()
        finished = False
        try:
            async with aclosing(_stream(run, request, flight)) as chunks:
                async for chunk in chunks:
                    finished = chunk.finish is not None
                    yield chunk
        finally:
            self._flights.pop(name)
            flight.known.set()
            self._landed.set()
            if not finished:
                with suppress(EngineError):  # then it is down, and the request with it
                    await run.call("POST", "/abort_request", {"rid": name})

    async def abort(self, step: StepId, attempt: int) -> None:
        """See Engine."""
        name = request_id(step, attempt)
        flight = self._flights.get(name)
        if flight is None or self._run is None:
            return
        flight.aborted = True
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while True:
                await self._run.call("POST", "/abort_request", {"rid": name})
                if flight.known.is_set():
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(flight.known.wait(), ABORT_AGAIN_S)

    async def stats(self) -> EngineLoad:
        """See Engine. Blocks are SGLang's count of tokens in use, which leaves out what only the prefix cache keeps."""
        run, card = self._serving()
        answer = await run.call("GET", LOADS)
        ranks = answer["loads"]
        waiting = min(sum(rank["num_waiting_reqs"] for rank in ranks), len(self._flights))
        used = sum(rank["num_used_tokens"] for rank in ranks)
        return EngineLoad(blocks_used=-(-used // card.block_tokens), slots_used=len(self._flights) - waiting, waiting=waiting)

    async def kv_events(self) -> AsyncGenerator[KvBatch]:
        """See Engine. Goes on over restarts, each of which begins with an emptied cache; `seq` has no gaps."""
        while True:
            await self._loaded.wait()
            run = self._run
            if run is None:
                raise AssertionError("a loaded engine has a run")
            if self._kv_run is not run:  # else a reader came back
                self._kv_run = run
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
        run = self._run
        if run is None:
            return "the engine is not loaded"
        reason = await run.process.exited()
        await run.process.kill()
        return reason

    async def drain(self, timeout_s: float) -> None:
        """See Engine. Requests that are not done in time end as cancelled."""
        self._draining = True
        run = self._run
        if run is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_landed()
        except TimeoutError:
            log.warning("%d requests did not finish within %g s: aborted", len(self._flights), timeout_s)
            await self._abort_all(run)
        await self._end_run(self._config.stop_timeout_s)

    async def _all_landed(self) -> None:
        while self._flights:
            self._landed.clear()
            await self._landed.wait()

    async def _abort_all(self, run: _Run) -> None:
        for flight in self._flights.values():
            flight.aborted = True
        with suppress(EngineError, TimeoutError):  # what does not end now ends with the process
            await run.call("POST", "/abort_request", {"abort_all": True})
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._all_landed()

    async def _end_run(self, timeout_s: float) -> None:
        run, self._run = self._run, None
        self._loaded.clear()
        if run is not None:
            await run.end(timeout_s)

    def _serving(self) -> tuple[_Run, ModelCard]:
        """The run and its card. Raises EngineError when there is none."""
        if self._run is None or self._run.card is None:
            raise EngineError("the engine is not loaded", reason=Reason.NO_CAPACITY, retryable=True)
        return self._run, self._run.card


async def _healthy(run: _Run) -> bool:
    try:
        await run.call("GET", "/health")
    except EngineError:
        return False
    return True


async def _stream(run: _Run, request: EngineRequest, flight: _Flight) -> AsyncGenerator[EngineChunk]:
    """The request's chunks up to the one with `finish`, for which the connection is read to its end, so that it can be used again."""
    splitter, last = EventSplitter(), None
    try:
        async with run.http.post("/generate", json=request_body(request)) as response:
            if response.status != 200:
                raise refusal(response.status, await response.text())
            async for piece in response.content.iter_any():
                for event in splitter.feed(piece):
                    flight.known.set()
                    if last is not None:  # "[DONE]"
                        continue
                    chunk = read_event(event, request, aborted=flight.aborted)
                    if chunk.finish is None:
                        yield chunk
                    else:
                        last = chunk
    except (aiohttp.ClientError, TimeoutError) as error:
        if last is None:
            raise EngineError(f"SGLang broke off: {error!r}", reason=Reason.INTERNAL, retryable=True) from error
    if last is None:
        raise EngineError("SGLang ended a stream without a finish reason", reason=Reason.INTERNAL, retryable=True)
    yield last
