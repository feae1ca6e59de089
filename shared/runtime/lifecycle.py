"""From `legato run SERVICE` to a working process and back: configuration, logs, event loop, connections, health, signals, drain."""

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
import uvloop

from shared.core.errors import LegatoError, leaves
from shared.runtime import config as configuration
from shared.runtime import log as logs
from shared.runtime.admin import AdminConfig, AdminServer
from shared.runtime.bus import Bus, BusConfig, BusError
from shared.runtime.tasks import end
from shared.runtime.telemetry import Telemetry, TelemetryConfig

log = logging.getLogger(__name__)

StructT = TypeVar("StructT", bound=msgspec.Struct)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a process was started. `overrides` are `section.field=value` strings; `instance` must be unique in the fleet."""

    service: str
    instance: str = ""
    config_path: Path | None = None
    overrides: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def section(self, kind: type[StructT], name: str) -> StructT:
        """One section of the configuration. Raises LegatoError naming what is wrong."""
        mine = [text.removeprefix(f"{name}.") for text in self.overrides if text.startswith(f"{name}.")]
        return configuration.load(kind, name, self.config_path, self.env, mine)


@dataclass(kw_only=True)
class Context:
    """What a service's `run` receives. Set `ready` when requests can be served; return soon after `stop` is set."""

    options: Options
    instance: str
    bus: Bus
    telemetry: Telemetry
    stop: asyncio.Event
    ready: asyncio.Event
    status: dict[str, object] = field(default_factory=dict)  # shown by `legato status`; keep it small

    def section(self, kind: type[StructT], name: str) -> StructT:
        return self.options.section(kind, name)


Run = Callable[[Context], Awaitable[None]]

GARBAGE_AFTER = 20_000  # objects made and not freed since the last look for cycles. With Python's 700, looking took 5% of a busy service


def main(options: Options, run: Run) -> int:
    """Run one service until SIGTERM or SIGINT. The exit status: 0 after a drain, 1 when it could not go on."""
    instance = options.instance or f"{options.service}-{socket.gethostname().split('.')[0]}"
    logs.setup(options.service, instance)
    failed = False
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(options, instance, run))
    except* LegatoError as group:
        for error in leaves(group):
            log.error("stopped: %s", error)
        failed = True
    return int(failed)


def start(service: str, run: Run) -> int:
    """The command line of `python -m services.<service>`; `legato run <service>` is the same."""
    parser = argparse.ArgumentParser(prog=f"python -m services.{service}", description=f"Run Legato's {service} service alone.")
    parser.add_argument("--config", type=Path, help="configuration file (TOML)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="override one setting; may be repeated")
    parser.add_argument("--instance", default="", help="name of this process, unique in the fleet (default: service and host name)")
    given = parser.parse_args()
    return main(Options(service=service, instance=given.instance, config_path=given.config, overrides=given.set), run)


async def _serve(options: Options, instance: str, run: Run) -> None:
    for setting in options.overrides:
        configuration.check_setting(setting)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    telemetry = Telemetry(options.service, instance, options.section(TelemetryConfig, "telemetry"))
    bus = await _connected(options.section(BusConfig, "bus"), instance, stop)
    if bus is None:
        telemetry.close()
        return
    try:
        context = Context(options=options, instance=instance, bus=bus, telemetry=telemetry, stop=stop, ready=asyncio.Event())
        admin = AdminServer(options.service, options.section(AdminConfig, "admin"), context)
        await bus.ensure_streams()
        await admin.start()
        try:
            gc.freeze()  # what start-up made lives for ever: no collection need look at it again
            gc.set_threshold(GARBAGE_AFTER, 20, 20)
            await while_connected(bus, run(context))
        finally:
            context.ready.clear()
            await admin.stop()
    finally:
        await bus.close()
        telemetry.close()


async def _connected(config: BusConfig, instance: str, stop: asyncio.Event) -> Bus | None:
    """The bus; None where the process was told to stop while it still looked for NATS. Raises BusError."""
    connecting, stopping = asyncio.ensure_future(Bus.connect(config, instance)), asyncio.ensure_future(stop.wait())
    await asyncio.wait((connecting, stopping), return_when=asyncio.FIRST_COMPLETED)
    try:
        return connecting.result() if connecting.done() else None
    finally:
        await end((connecting, stopping))


async def while_connected(bus: Bus, running: Awaitable[None]) -> None:
    """Run until done. Raises BusError when the connection is closed for good: a process that hears nothing must not look alive."""
    tasks = [asyncio.ensure_future(running), asyncio.ensure_future(bus.closed.wait())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0] not in done:
            raise BusError(f"NATS at {bus.config.url} has closed the connection for good; did the credentials expire?")
        tasks[0].result()
    finally:
        await end(tasks)
