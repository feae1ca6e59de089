"""Serves HTTP until told to stop; then lets requests finish within `drain_timeout_ms`."""

import asyncio
import logging

from aiohttp import web
from aiohttp.typedefs import Handler

from services.gateway.config import GatewayConfig
from services.gateway.errors import error_body
from services.gateway.exchange import CANCEL_TIMEOUT_S
from services.gateway.handlers import Handlers
from services.gateway.models import Models
from services.gateway.workflow_api import WorkflowApi
from shared.core.catalogue import ModelsConfig
from shared.core.errors import LegatoError
from shared.runtime.lifecycle import Context
from shared.runtime.tasks import end

log = logging.getLogger(__name__)


async def run(context: Context) -> None:
    """One gateway; any number run side by side."""
    config = context.section(GatewayConfig, "gateway")
    models = Models(context.bus, config.worker_silent_ms, context.section(ModelsConfig, "models").aliases)
    handlers = Handlers(context.bus, config, models, context.telemetry)
    runner = await serve(handlers, config)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(models.follow())
        host, port = runner.addresses[0][:2]
        context.status["address"] = f"http://{host}:{port}"
        context.ready.set()
        log.info("serving", extra={"address": context.status["address"]})
        await context.stop.wait()
        context.ready.clear()
        handlers.gate.draining = True
        # aiohttp waits this long for requests and, once more, for the handlers that it has cancelled
        await runner.cleanup()
        await handlers.farewells.wait(CANCEL_TIMEOUT_S)
        await end([following])


def routes(handlers: Handlers) -> list[web.RouteDef]:
    """What is served where; docs/openapi.json says more."""
    api = WorkflowApi(handlers.bus, handlers.workflows, handlers.bodies, handlers.gate)
    return [
        *api.routes(),
        web.post("/v1/chat/completions", handlers.chat),
        web.post("/v1/completions", handlers.completion),
        web.get("/v1/models", handlers.list_models),
        web.get("/v1/models/{name:.+}", handlers.show_model),
        web.get("/health", handlers.health),
        web.get("/ready", handlers.ready),
        web.route("*", "/{path:.*}", handlers.unknown),
    ]


async def serve(handlers: Handlers, config: GatewayConfig) -> web.AppRunner:
    """Listen. Raises LegatoError when the address cannot be had."""
    app = web.Application(client_max_size=config.body_bytes_max, middlewares=[_bugs_as_json])
    app.add_routes(routes(handlers))
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,  # a client that goes away cancels its handler
        keepalive_timeout=config.connection_idle_ms / 1e3,
        shutdown_timeout=config.drain_timeout_ms / 1e3,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, config.host, config.port).start()
    except OSError as error:
        await runner.cleanup()
        raise LegatoError(f"cannot serve on {config.host}:{config.port}: {error.strerror}") from error
    return runner


@web.middleware
async def _bugs_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A bug is logged, and is OpenAI's error object for the client (in mid-stream, where it is too late for that, a broken connection)."""
    try:
        return await handler(request)
    except web.HTTPException:
        raise
    except Exception:
        log.exception("a request failed", extra={"path": request.path})
        if request.writer.output_size:
            raise
        body = error_body("the gateway failed; the error is in its log", "server_error", code="internal_error")
        return web.Response(body=body, status=500, content_type="application/json")
