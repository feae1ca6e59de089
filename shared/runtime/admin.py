"""Health, readiness and metrics of a process: by HTTP for orchestrators, by NATS for `legato status`."""

import asyncio
import os
from typing import Protocol

import msgspec
import psutil
from aiohttp import web
from nats.aio.msg import Msg

from shared.contracts import subjects
from shared.runtime.bus import Bus
from shared.runtime.telemetry import Telemetry


class AdminConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[admin]`: where a process answers /health, /ready and /metrics. Port 0: a free one, shown by `legato status`; -1: no HTTP."""

    host: str = "127.0.0.1"
    port: int = 0


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process's answer on `legato.status`."""

    service: str
    instance: str
    pid: int
    ready: bool
    address: str = ""
    rss_bytes: int = 0
    cpu_s: float = 0.0
    details: dict[str, object] = {}


class _Process(Protocol):
    instance: str
    bus: Bus
    telemetry: Telemetry
    ready: asyncio.Event
    status: dict[str, object]


class AdminServer:
    """`/health`: the process lives and has NATS. `/ready`: it can do its work. Both answer 200 or 503 with a word why."""

    def __init__(self, service: str, config: AdminConfig, process: _Process) -> None:
        self._service = service
        self._config = config
        self._process = process
        self._runner: web.AppRunner | None = None
        self.address = ""

    async def start(self) -> None:
        await self._process.bus.subscribe(subjects.STATUS, self._on_status)
        if self._config.port < 0:
            return
        app = web.Application()
        app.add_routes([web.get("/health", self._health), web.get("/ready", self._ready), web.get("/metrics", self._metrics)])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._config.host, self._config.port).start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def snapshot(self) -> ProcessStatus:
        """The state of this process now."""
        process = psutil.Process()
        times = process.cpu_times()
        return ProcessStatus(
            service=self._service,
            instance=self._process.instance,
            pid=os.getpid(),
            ready=self._process.ready.is_set(),
            address=self.address,
            rss_bytes=process.memory_info().rss,
            cpu_s=times.user + times.system,
            details=self._process.status,
        )

    async def _on_status(self, msg: Msg) -> None:
        if msg.reply:
            await self._process.bus.publish(msg.reply, msgspec.json.encode(self.snapshot()))

    async def _health(self, _: web.Request) -> web.Response:
        connected = self._process.bus.client.is_connected
        return web.Response(status=200 if connected else 503, text="ok\n" if connected else "not connected to NATS\n")

    async def _ready(self, _: web.Request) -> web.Response:
        ready = self._process.ready.is_set() and self._process.bus.client.is_connected
        return web.Response(status=200 if ready else 503, text="ready\n" if ready else "not ready\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._process.telemetry.metrics(), content_type="text/plain", charset="utf-8")
