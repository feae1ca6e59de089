"""The HTTP side: requests to replies. One handler for both dialects."""

import asyncio
import logging
import time

import msgspec
from aiohttp import web

from services.gateway.answers import answer, conflict, refusal
from services.gateway.belonging import WORKFLOW
from services.gateway.bodies import Bodies
from services.gateway.choices import Choices
from services.gateway.config import GatewayConfig
from services.gateway.dialect import Asked, read_request
from services.gateway.errors import body_of, error_body, problem_of
from services.gateway.exchange import Exchange, Farewells
from services.gateway.gate import Gate
from services.gateway.models import Models
from services.gateway.replies import Reply, reply_to
from services.gateway.tools import Reading, reading_of
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
STEP_HEADER = "X-Legato-Step"  # in replies: the step's id; of several choices all, in order
EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would collect events otherwise
}


Came = list[tuple[int, list[Output]]]  # outputs by choice


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
        trace = self._trace(request)
        choices = Choices(lambda: Exchange(self.bus, self._config, trace, self.farewells, self._sender))
        with self.gate.inside():
            try:
                return await self._answer(request, choices, chat=chat)
            except asyncio.CancelledError:
                self._telemetry.count("http_disconnects")
                raise
            finally:
                await choices.close()
                name, about = "http.chat" if chat else "http.completion", Message(step=choices.first.step, trace=trace)
                self._telemetry.span(name, about, started_ns)

    async def _answer(self, request: web.Request, choices: Choices, *, chat: bool) -> web.StreamResponse:
        try:
            accepted = await self._accept(request, choices, chat=chat)
        except WorkflowError as error:
            return conflict(error)
        if isinstance(accepted, Problem):
            response = refusal(accepted)
            if request.content.exception() is not None:  # no other request can follow on this connection: say so
                response.force_close()
            return response
        reply, stream = accepted
        return await self._stream(request, choices, reply) if stream else await self._collect(choices, reply)

    async def _accept(self, request: web.Request, choices: Choices, *, chat: bool) -> tuple[Reply, bool] | Problem:
        """Body to submissions. Nothing of either is kept: when this returns, their memory is free."""
        async with self.bodies.room(request) as refused:
            body = refused or await self.bodies.read(request)
            if isinstance(body, Problem):
                return body
            asked = read_request(body, request.headers, chat=chat, choices_max=self._config.choices_max)
            if isinstance(asked, Problem):
                return asked
            reading = await self._reading(asked)
            if isinstance(reading, Problem):
                return reading
            for index in range(asked.n):
                problem = await self._submit(choices.choice(index), asked.choice(index))
                if problem is not None:
                    return problem
            return reply_to(asked, choices.first.step, int(time.time()), reading), asked.stream

    async def _reading(self, asked: Asked) -> Reading | Problem:
        if not asked.chat:
            return Reading()
        model = asked.submission.model
        return reading_of(asked.tools, asked.submission.sampling, await self._models.card(model), model)

    async def _submit(self, exchange: Exchange, asked: Asked) -> Problem | None:
        if asked.belonging is None:
            return await exchange.submit(asked)
        problem = await self.workflows.submit(exchange, asked, asked.belonging)
        exchange.workflow = asked.belonging.workflow
        return problem

    async def _collect(self, choices: Choices, reply: Reply) -> web.StreamResponse:
        while not choices.ended:
            for index, outputs in await choices.outputs(self._config.idle_timeout_ms / 1e3):
                reply.fold(outputs, index)
        if choices.problem is not None:
            return refusal(choices.problem, _about(choices))
        return answer(reply.whole(), headers=_about(choices))

    async def _stream(self, request: web.Request, choices: Choices, reply: Reply) -> web.StreamResponse:
        """Events as outputs come, all that wait in one write. A refusal that is there before the first token has its own status."""
        quiet_s = self._config.keep_alive_comment_ms / 1e3
        came = await choices.outputs(quiet_s)
        if choices.problem is not None and all(len(outputs) == 1 and outputs[0].end is not None for _, outputs in came):
            return refusal(choices.problem, _about(choices))
        response = _EventStream(headers={**EVENT_STREAM, **_about(choices)})
        try:
            await response.prepare(request)
            while not choices.ended:
                await self._write(response, _events(reply, came) if came else KEEP_ALIVE)
                came = await choices.outputs(quiet_s)
            async with asyncio.timeout(self._config.write_timeout_ms / 1e3):
                await response.write_eof(_last(reply, came, choices.problem))
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


def _about(choices: Choices) -> dict[str, str]:
    """Which steps a reply is of, and of which workflow."""
    steps = {STEP_HEADER: ", ".join(choices.steps)}
    return {**steps, WORKFLOW: choices.first.workflow} if choices.first.workflow else steps


def _events(reply: Reply, came: Came) -> bytes:
    return b"".join([reply.events(outputs, index) for index, outputs in came])


def _last(reply: Reply, came: Came, problem: Problem | None) -> bytes:
    """What a stream ends with. A problem after the first token is an event of its own, and no [DONE] follows."""
    if problem is None:
        return _events(reply, came)
    told = [(index, [each for each in outputs if problem_of(each.end) is None]) for index, outputs in came]
    return _events(reply, told) + b"data: " + body_of(problem) + b"\n\n"
