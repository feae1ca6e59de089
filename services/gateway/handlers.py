"""The HTTP side: requests to replies. One handler for both dialects."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from services.gateway.config import GatewayConfig
from services.gateway.dialect import read_request
from services.gateway.errors import body_of, error_body, headers_of, status_of
from services.gateway.exchange import Exchange, Farewells
from services.gateway.models import Models
from services.gateway.replies import Reply, reply_to
from shared.contracts.envelope import Message
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.output import Output
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns
from shared.runtime.ids import new_trace, parse_traceparent
from shared.runtime.telemetry import Telemetry

log = logging.getLogger(__name__)

KEEP_ALIVE = b": keep-alive\n\n"
STEP_HEADER = "X-Legato-Step"
EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would collect events otherwise
}
_JSON = "application/json"


class _EventStream(web.StreamResponse):
    """Its headers leave with the first event, in one write."""

    _send_headers_immediately = False


class Handlers:
    """What the gateway does with requests. `draining`: new ones are sent away."""

    def __init__(self, bus: Bus, config: GatewayConfig, models: Models, telemetry: Telemetry) -> None:
        self.draining = False
        self.in_flight = 0
        self.farewells = Farewells()
        self._bus = bus
        self._config = config
        self._models = models
        self._telemetry = telemetry
        self._bodies = 0  # bytes reserved

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def list_models(self, _: web.Request) -> web.StreamResponse:
        return _json(msgspec.json.encode({"object": "list", "data": self._models.listing()}))

    async def show_model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        found = [model for model in self._models.listing() if model["id"] == name]
        if found:
            return _json(msgspec.json.encode(found[0]))
        return refusal(Problem(reason=Reason.MODEL_NOT_FOUND, message=f"no worker serves a model {name[:256]!r} now", param="model"))

    async def health(self, _: web.Request) -> web.StreamResponse:
        connected = self._bus.client.is_connected
        return web.Response(status=200 if connected else 503, text="ok\n" if connected else "not connected to NATS\n")

    async def ready(self, _: web.Request) -> web.StreamResponse:
        ready = self._bus.client.is_connected and not self.draining
        return web.Response(status=200 if ready else 503, text="ready\n" if ready else "not ready\n")

    async def unknown(self, request: web.Request) -> web.StreamResponse:
        body = error_body(f"there is no {request.method} {request.path[:256]} here", "invalid_request_error", code="unknown_url")
        return _json(body, 404)

    # --- generation ----------------------------------------------------------------------------------------------------------

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        self._telemetry.count("http_requests")
        if self.draining or self.in_flight >= self._config.requests_max:
            why = "is shutting down" if self.draining else f"has {self.in_flight} requests in flight, its limit"
            return refusal(Problem(reason=Reason.NO_CAPACITY, message=f"this gateway {why}; try again"))
        started_ns = now_ns()
        self.in_flight += 1
        exchange = Exchange(self._bus, self._config, self._trace(request), self.farewells)
        try:
            return await self._answer(request, exchange, chat=chat)
        except asyncio.CancelledError:
            self._telemetry.count("http_disconnects")
            raise
        finally:
            self.in_flight -= 1
            await exchange.close()
            self._telemetry.span("http.chat" if chat else "http.completion", Message(step=exchange.step, trace=exchange.trace), started_ns)

    async def _answer(self, request: web.Request, exchange: Exchange, *, chat: bool) -> web.StreamResponse:
        accepted = await self._accept(request, exchange, chat=chat)
        if isinstance(accepted, Problem):
            response = refusal(accepted)
            if request.content.exception() is not None:  # no other request can follow on this connection: say so
                response.force_close()
            return response
        reply, stream = accepted
        return await self._stream(request, exchange, reply) if stream else await self._collect(exchange, reply)

    async def _accept(self, request: web.Request, exchange: Exchange, *, chat: bool) -> tuple[Reply, bool] | Problem:
        """Body to submission. Nothing of either is kept: when this returns, their memory is free."""
        async with self._room_for_body(request) as refused:
            body = refused or await self._read(request)
            asked = body if isinstance(body, Problem) else read_request(body, request.headers, chat=chat)
            if isinstance(asked, Problem):
                return asked
            problem = await exchange.submit(asked)
            return problem or (reply_to(asked, exchange.step, int(time.time())), asked.stream)

    async def _collect(self, exchange: Exchange, reply: Reply) -> web.StreamResponse:
        while exchange.end is None:
            reply.fold(await exchange.outputs(self._config.idle_timeout_ms / 1e3))
        if exchange.problem is not None:
            return refusal(exchange.problem, exchange.step)
        return _json(reply.whole(exchange.end), step=exchange.step)

    async def _stream(self, request: web.Request, exchange: Exchange, reply: Reply) -> web.StreamResponse:
        """Events as outputs come, all that wait in one write. A refusal that is there before the first token has its own status."""
        quiet_s = self._config.keep_alive_comment_ms / 1e3
        outputs = await exchange.outputs(quiet_s)
        if len(outputs) == 1 and exchange.problem is not None:
            return refusal(exchange.problem, exchange.step)
        response = _EventStream(headers={**EVENT_STREAM, STEP_HEADER: exchange.step})
        try:
            await response.prepare(request)
            while exchange.end is None:
                await self._write(response, reply.events(outputs) if outputs else KEEP_ALIVE)
                outputs = await exchange.outputs(quiet_s)
            async with asyncio.timeout(self._config.write_timeout_ms / 1e3):
                await response.write_eof(_last(reply, outputs, exchange.problem))
        except (ConnectionError, TimeoutError):
            self._telemetry.count("http_disconnects")
            response.force_close()
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        """Raises TimeoutError for a client that does not read."""
        if data:
            async with asyncio.timeout(self._config.write_timeout_ms / 1e3):
                await response.write(data)

    # --- the request ---------------------------------------------------------------------------------------------------------

    def _trace(self, request: web.Request) -> str:
        context = parse_traceparent(request.headers.get("traceparent", ""))
        if context is None and self._telemetry.tracing:
            context = new_trace()
        return str(context) if context is not None else ""

    @asynccontextmanager
    async def _room_for_body(self, request: web.Request) -> AsyncIterator[Problem | None]:
        """Reserves memory for the body; the problem if there is none, or if the body says that it is too long."""
        limit, length = self._config.body_bytes_max, request.content_length
        if length is not None and length > limit:
            yield _too_large(limit)
            return
        size = limit if length is None or "Content-Encoding" in request.headers else length
        if self._bodies + size > self._config.bodies_bytes_max:
            yield Problem(reason=Reason.NO_CAPACITY, message="too many bytes are being submitted at once; try again")
            return
        self._bodies += size
        try:
            yield None
        finally:
            self._bodies -= size

    async def _read(self, request: web.Request) -> bytes | Problem:
        limit, body = self._config.body_bytes_max, bytearray()
        try:
            async with asyncio.timeout(self._config.body_timeout_ms / 1e3):
                async for piece in request.content.iter_any():  # request.read() would keep the body as long as the request
                    body += piece
                    if len(body) > limit:
                        return _too_large(limit)
        except TimeoutError:
            return Problem(reason=Reason.INVALID, message=f"the body did not arrive within {self._config.body_timeout_ms} ms")
        except (web.RequestPayloadError, HttpProcessingError) as error:
            return Problem(reason=Reason.INVALID, message=f"the body cannot be read: {error}")
        return bytes(body)


def refusal(problem: Problem, step: str = "") -> web.Response:
    """A problem as the whole reply."""
    response = _json(body_of(problem), status_of(problem), step)
    response.headers.update(headers_of(problem))
    return response


def _last(reply: Reply, outputs: list[Output], problem: Problem | None) -> bytes:
    """What a stream ends with. A problem after the first token is an event of its own, and no [DONE] follows."""
    if problem is None:
        return reply.events(outputs)
    return reply.events(outputs[:-1]) + b"data: " + body_of(problem) + b"\n\n"


def _json(body: bytes, status: int = 200, step: str = "") -> web.Response:
    return web.Response(body=body, status=status, content_type=_JSON, headers={STEP_HEADER: step} if step else None)


def _too_large(limit: int) -> Problem:
    return Problem(reason=Reason.TOO_LARGE, message=f"the body is longer than {limit} bytes")
