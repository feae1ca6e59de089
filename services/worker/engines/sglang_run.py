"""One life of SGLang: its process, its HTTP interface, its cache events. A restart is a new one."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from services.worker.engines.base import EngineChunk, EngineError, EngineRequest
from services.worker.engines.sglang_config import SglangConfig, command, environment
from services.worker.engines.sglang_kv import KvFeed
from services.worker.engines.sglang_process import EngineProcess
from services.worker.engines.sglang_wire import EventSplitter, read_event, refusal, request_body, request_headers
from shared.contracts.outcomes import Reason
from shared.runtime.process import ProcessError
from shared.runtime.server_directory import free_port

CALL_TIMEOUT_S = 10.0  # of a control call: load, abort, server info
CONNECT_TIMEOUT_S = 5.0
READY_POLL_S = 0.2
KEEPALIVE_S = 3.0  # below uvicorn's 5 s, so that no request is sent into a connection that is just being closed
LOADS = "/v1/loads?include=core"
PLUGIN_PROBE = {  # refused, or taken for a longer prompt, where they are not
    "input_ids": [0, 0],
    "sampling_params": {"max_new_tokens": 1, "min_new_tokens": 1, "custom_params": {"resume_len": 1}},
}


class Flight:
    """One request in SGLang's hands. `rid`: SGLang's name for it."""

    def __init__(self, rid: str) -> None:
        self.rid = rid
        self.aborted = False  # we asked for its end
        self.known = asyncio.Event()  # SGLang has it, or had it


class SglangRun:
    """`start` once, `end` once."""

    def __init__(self, config: SglangConfig) -> None:
        self._config = config
        self._port = config.port or free_port()
        self.process = EngineProcess(Path(config.log_dir))
        self.feed = KvFeed(self.process.scratch)
        self._http = aiohttp.ClientSession(
            base_url=f"http://127.0.0.1:{self._port}",
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),  # the worker bounds what is in flight
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=config.token_timeout_s),
        )

    async def start(self) -> dict[str, Any]:
        """Start the process and wait until it serves; what it says of itself (/server_info). Raises EngineError."""
        scratch = self.process.scratch
        try:
            await self.process.start(command(self._config, self._port, scratch), environment(self._config, scratch))
            async with asyncio.timeout(self._config.start_timeout_s):
                while not await self._healthy():  # noqa: ASYNC110  it can only be asked
                    await asyncio.sleep(READY_POLL_S)
        except ProcessError as error:
            raise _not_started(f"{error}; `make setup-engine` installs it") from error
        except TimeoutError:
            raise _not_started(f"not ready within {self._config.start_timeout_s:g} s; {self.process.described()}") from None
        info: dict[str, Any] = await self.call("GET", "/server_info")
        await self._check_plugins()
        await self.call("GET", LOADS)  # maps its shared memory
        self.process.note_leftovers()
        return info

    async def _check_plugins(self) -> None:
        """Without Legato's plug-ins a resumed run would differ, and nobody would be told. Raises EngineError where they are missing."""
        missing = "its environment lacks Legato's plug-ins, or has older ones: `make setup-engine` installs them"
        try:
            answer = await self.call("POST", "/generate", PLUGIN_PROBE)
        except EngineError as error:
            raise _not_started(f"{missing} ({error})") from error
        if answer["meta_info"]["completion_tokens"] != 2:  # the resumed one and a new one
            raise _not_started(missing)

    async def _healthy(self) -> bool:
        if not self.process.running:
            raise _not_started(self.process.described())
        try:
            await self.call("GET", "/health")
        except EngineError:
            return False
        return True

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """One control call; the decoded answer, None when it is empty. Raises EngineError."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S), self._http.request(method, path, json=body) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"SGLang does not answer {path}: {error!r}", reason=Reason.INTERNAL, retryable=True) from error
        if response.status != 200:
            raise refusal(response.status, answer.decode(errors="replace"))
        return msgspec.json.decode(answer) if answer[:1] in (b"{", b"[") else None

    async def stream(self, request: EngineRequest, flight: Flight) -> AsyncGenerator[EngineChunk]:
        """The request's chunks. The connection is read to its end before the last one is given out, so that it can be used again."""
        splitter, last = EventSplitter(), None
        try:
            async with self._http.post("/generate", json=request_body(request, flight.rid), headers=request_headers(request)) as response:
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

    async def end(self, grace_s: float) -> None:
        """Stop the process, SIGKILL after `grace_s`, and free everything."""
        self.feed.close()
        await self.process.stop(grace_s)
        await self._http.close()


def _not_started(why: str) -> EngineError:
    return EngineError(f"SGLang did not start: {why}", reason=Reason.INTERNAL, retryable=False)
