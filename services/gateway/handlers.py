"""The HTTP side: requests to replies. One handler for both dialects."""

import asyncio
import logging
import time

import msgspec
from aiohttp import web

from services.gateway.answers import answer, conflict, refusal
from services.gateway.belonging import WORKFLOW
from services.gateway.bodies import Bodies
from services.gateway.config import GatewayConfig
from services.gateway.dialect import read_request
from services.gateway.errors import body_of, error_body
from services.gateway.exchange import Exchange, Farewells
from services.gateway.gate import Gate
from services.gateway.models import Models
from services.gateway.replies import Reply, reply_to
from services.gateway.workflows import Workflows
from shared.contracts.envelope import Message
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.output import Output
from shared.core.workflows import WorkflowError
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns
from shared.runtime.conversations import Sender
from shared.runtime.ids import new_trace, parse_traceparent
from shared.runtime.telemetry import Telemetry

log = logging.getLogger(__name__)

KEEP_ALIVE = b": keep-alive\n\n"
STEP_HEADER = "X-Legato-Step"  # in replies: the step's id
EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would collect events otherwise
}


class _EventStream(web.StreamResponse):
    """Its headers leave with the first event, in one write."""

    _send_headers_immediately = False


class Handlers:
    """What the gateway does with requests for text, and who is served and well."""

    def __init__(self, bus: Bus, config: GatewayConfig, models: Models, telemetry: Telemetry) -> None:
        self.gate = Gate(config.requests_max)
        self.bodies = Bodies(config)
        self.farewells = Farewells()
        self.workflows = Workflows(bus, config, self.farewells)
        self.bus = bus
        self._config = config
        self._models = models
        self._telemetry = telemetry
        self._sender = Sender(bus)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def list_models(self, _: web.Request) -> web.StreamResponse:
        return answer(msgspec.json.encode({"object": "list", "data": self._models.listing()}))

    async def show_model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        found = [model for model in self._models.listing() if model["id"] == name]
        if found:
            return answer(msgspec.json.encode(found[0]))
        return refusal(Problem(reason=Reason.MODEL_NOT_FOUND, message=f"no worker serves a model {name[:256]!r} now", param="model"))

    async def health(self, _: web.Request) -> web.StreamResponse:
        connected = self.bus.client.is_connected
        return web.Response(status=200 if connected else 503, text="ok\n" if connected else "not connected to NATS\n")

    async def ready(self, _: web.Request) -> web.StreamResponse:
        ready = self.bus.client.is_connected and not self.gate.draining
        return web.Response(status=200 if ready else 503, text="ready\n" if ready else "not ready\n")

    async def unknown(self, request: web.Request) -> web.StreamResponse:
        body = error_body(f"there is no {request.method} {request.path[:256]} here", "invalid_request_error", code="unknown_url")
        return answer(body, 404)

    # --- generation ----------------------------------------------------------------------------------------------------------

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        self._telemetry.count("http_requests")
        if (closed := self.gate.closed) is not None:
            return refusal(closed)
        started_ns = now_ns()
        exchange = Exchange(self.bus, self._config, self._trace(request), self.farewells, self._sender)
        with self.gate.inside():
            try:
                return await self._answer(request, exchange, chat=chat)
            except asyncio.CancelledError:
                self._telemetry.count("http_disconnects")
                raise
            finally:
                await exchange.close()
                name, about = "http.chat" if chat else "http.completion", Message(step=exchange.step, trace=exchange.trace)
                self._telemetry.span(name, about, started_ns)

    async def _answer(self, request: web.Request, exchange: Exchange, *, chat: bool) -> web.StreamResponse:
        try:
            accepted = await self._accept(request, exchange, chat=chat)
        except WorkflowError as error:
            return conflict(error)
        if isinstance(accepted, Problem):
            response = refusal(accepted)
            if request.content.exception() is not None:  # no other request can follow on this connection: say so
                response.force_close()
            return response
        reply, stream = accepted
        return await self._stream(request, exchange, reply) if stream else await self._collect(exchange, reply)

    async def _accept(self, request: web.Request, exchange: Exchange, *, chat: bool) -> tuple[Reply, bool] | Problem:
        """Body to submission. Nothing of either is kept: when this returns, their memory is free."""
        async with self.bodies.room(request) as refused:
            body = refused or await self.bodies.read(request)
            asked = body if isinstance(body, Problem) else read_request(body, request.headers, chat=chat)
            if isinstance(asked, Problem):
                return asked
            if asked.belonging is None:
                problem = await exchange.submit(asked)
            else:
                problem = await self.workflows.submit(exchange, asked, asked.belonging)
                exchange.workflow = asked.belonging.workflow
            return problem or (reply_to(asked, exchange.step, int(time.time())), asked.stream)

    async def _collect(self, exchange: Exchange, reply: Reply) -> web.StreamResponse:
        while exchange.end is None:
            reply.fold(await exchange.outputs(self._config.idle_timeout_ms / 1e3))
        if exchange.problem is not None:
            return refusal(exchange.problem, _about(exchange))
        return answer(reply.whole(exchange.end), headers=_about(exchange))

    async def _stream(self, request: web.Request, exchange: Exchange, reply: Reply) -> web.StreamResponse:
        """Events as outputs come, all that wait in one write. A refusal that is there before the first token has its own status."""
        quiet_s = self._config.keep_alive_comment_ms / 1e3
        outputs = await exchange.outputs(quiet_s)
        if len(outputs) == 1 and exchange.problem is not None:
            return refusal(exchange.problem, _about(exchange))
        response = _EventStream(headers={**EVENT_STREAM, **_about(exchange)})
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


def _about(exchange: Exchange) -> dict[str, str]:
    """Which step a reply is of, and of which workflow."""
    step = {STEP_HEADER: str(exchange.step)}
    return {**step, WORKFLOW: exchange.workflow} if exchange.workflow else step


def _last(reply: Reply, outputs: list[Output], problem: Problem | None) -> bytes:
    """What a stream ends with. A problem after the first token is an event of its own, and no [DONE] follows."""
    if problem is None:
        return reply.events(outputs)
    return reply.events(outputs[:-1]) + b"data: " + body_of(problem) + b"\n\n"
