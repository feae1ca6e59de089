"""A whole fleet as children of this process: servers, services, workers. What `legato up` runs."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import psutil

from legato import drain
from legato.addresses import FILE, Running, born, check_reachable, connecting, running_in, shown
from legato.plan import MACHINES, Launch, Wanted, launch, plan
from legato.processes import ask, is_up
from shared.core.errors import LegatoError
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.config import load
from shared.runtime.db import DatabaseConfig
from shared.runtime.embedded import EmbeddedError, EmbeddedNats, EmbeddedPostgres
from shared.runtime.process import ManagedProcess, ProcessSpec
from shared.runtime.server_directory import ServerDirectory
from shared.runtime.supervisor import ProcessEvent, ProcessEventKind, Supervisor

LOG_FOLLOWS = "; its log ends:"  # as ManagedProcess.end has it
READY_S = 120.0
READY_SGLANG_S = 600.0  # it loads a model
POLL_S = 0.1
UNREADY_S = 10.0  # until it is told who is not ready yet
STOP_S = 120.0


class _Bus(BusConfig, frozen=True, kw_only=True):
    url: str = ""  # not given: the embedded one


class _Postgres(DatabaseConfig, frozen=True, kw_only=True):
    dsn: str = ""


class FleetError(LegatoError):
    """The fleet cannot start. The message says which process, and what it said last."""


class Fleet:
    """Use as: `async with Fleet(...) as fleet: await fleet.start()`. Leaving drains and stops everything that it started.

    `tell` gets a line for people with each event worth one.
    """

    def __init__(self, data: Path, wanted: Wanted, tell: Callable[[str], None], nats: str = "", postgres: str = "") -> None:
        self.wanted = wanted
        self.running = Running(pid=os.getpid(), born=born(os.getpid()) or 0.0, nats="")
        self.data = data.absolute()
        self.tell = tell
        self.launches = plan(wanted)  # the processes that belong to it from the start
        self._directory = ServerDirectory(self.data)
        self._supervisor = Supervisor(self._on_event, stop_s=STOP_S)
        self._leaving: set[str] = set()
        self._started = False  # from the end of `start` to the beginning of the stop
        self._failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        path = Path(wanted.config) if wanted.config else None
        self._bus_config: BusConfig = load(_Bus, "bus", path, os.environ, _of("bus", wanted.settings))
        if nats:
            self._bus_config = msgspec.structs.replace(self._bus_config, url=nats)
        self._dsn = postgres or load(_Postgres, "postgres", path, os.environ, _of("postgres", wanted.settings)).dsn
        embedded = {
            "nats": not self._bus_config.url,
            "postgres": not self._dsn and any(each.service == "workflow" for each in self.launches),
        }
        self._servers = [name for name, wanted_here in embedded.items() if wanted_here]
        self._bus: Bus | None = None

    @property
    def size(self) -> int:
        """How many processes it starts: its own servers, services and workers."""
        return len(self._servers) + len(self.launches)

    async def __aenter__(self) -> Self:
        """Take the data directory. Raises FleetError when a fleet runs on it."""
        try:
            await self._directory.lock(wait_s=0)
        except EmbeddedError as error:
            found = running_in(self.data)
            who = f"process {found.pid}, NATS at {shown(found.nats)}" if found else "still starting or stopping"
            raise FleetError(f"a fleet runs on {self.data} already ({who}); use it, stop it, or choose another --data") from error
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self._stop()
        finally:
            (self.data / FILE).unlink(missing_ok=True)
            self._directory.unlock()

    @property
    def bus(self) -> Bus:
        if self._bus is None:
            raise AssertionError("the fleet has no bus before it started")
        return self._bus

    # --- starting ------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything and wait until all of it is ready. Raises FleetError and other LegatoErrors."""
        _check_ports([self.wanted.port + index for index, _ in enumerate(each for each in self.launches if each.service == "gateway")])
        if self._bus_config.url:  # somebody else's
            await check_reachable(self._bus_config.url)
        await self._start_servers()
        with connecting(self._bus_config.url):
            self._bus = await Bus.connect(self._bus_config, "legato-up")
        await self._bus.ensure_streams()
        for each in self.launches:
            await self._add(each)
        await self.until_ready([each.name for each in self.launches])
        self._started = True

    async def _start_servers(self) -> None:
        if "nats" in self._servers:
            nats = EmbeddedNats(self.data / "nats")
            await self._supervisor.add("nats", nats)
            self._bus_config = msgspec.structs.replace(self._bus_config, url=nats.url)
        if "postgres" in self._servers:
            postgres = EmbeddedPostgres(self.data / "postgres")
            await self._supervisor.add("postgres", postgres)
            self._dsn = postgres.dsn
        self.running.nats, self.running.postgres = self._bus_config.url, self._dsn
        self._save()

    async def _add(self, each: Launch) -> None:
        env = {**os.environ, "LEGATO_BUS_URL": self._bus_config.url, "PYTHONUNBUFFERED": "1"}
        if self._dsn:
            env["LEGATO_POSTGRES_DSN"] = self._dsn
        spec = ProcessSpec(name=each.name, argv=each.argv, env=env, log=self.log_of(each.name))
        await self._supervisor.add(each.name, ManagedProcess(spec), grace_s=each.grace_s)

    async def until_ready(self, names: list[str]) -> None:
        """Wait until these processes are. Raises FleetError when they are not in time, or when one ends before the fleet has started."""
        told = time.monotonic() + UNREADY_S
        deadline = time.monotonic() + (READY_SGLANG_S if self.wanted.engine == "sglang" else READY_S)
        while True:
            up = {status.instance: status for status in await ask(self.bus, names) if is_up(status)}
            missing = [name for name in names if name not in up]
            if self._failure.done():
                raise FleetError(self._failure.result())
            if not missing:
                self.running.http = next((str(each.details["address"]) for each in up.values() if each.service == "gateway"), "")
                self._save()
                return
            if time.monotonic() > told:
                told = deadline
                self.tell(f"not ready yet: {', '.join(missing)}; their logs are in {self.data / 'logs'}")
            if time.monotonic() > deadline:
                raise FleetError(f"not ready in time: {', '.join(missing)}; their logs are in {self.data / 'logs'}")
            await asyncio.sleep(POLL_S)

    # --- workers, as the actuator wants them ---------------------------------------------------------------------------------

    @property
    def workers(self) -> list[str]:
        """Those that are to stay, oldest first."""
        return [name for name in self._supervisor.names if name.startswith("worker-") and name not in self._leaving]

    async def hire(self) -> str:
        """Start one more worker; its name."""
        index = next(index for index in range(len(self._supervisor.names) + 1) if f"worker-{index}" not in self._supervisor.names)
        each = launch(self.wanted, "worker", index)
        await self._add(each)
        return each.name

    async def dismiss(self, name: str) -> None:
        """Drain one worker and stop it; returns when it is gone."""
        self._leaving.add(name)
        try:
            await self._supervisor.remove(name)
        finally:
            self._leaving.discard(name)

    # --- stopping ------------------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """First who takes and does the work, all at once; then who decides; then the servers."""
        async with self._supervisor:  # whatever fails below, nothing stays behind
            names = [name for name in self._supervisor.names if name not in ("nats", "postgres")]
            deciding = [name for name in names if name.rpartition("-")[0] in MACHINES]
            self._started = False
            for group in ([name for name in names if name not in deciding], deciding):
                await self._remove(group)
            if self._bus is not None:
                await self._bus.close()

    async def _remove(self, names: list[str]) -> None:
        async with AsyncExitStack() as stack:
            if self._bus is not None:
                await stack.enter_async_context(
                    drain.telling(self._bus, lambda: [n for n in self._supervisor.names if n in names], self.tell)
                )
            await asyncio.gather(*(self._supervisor.remove(name) for name in names))

    def kill(self) -> None:
        """Do not wait for drains: end services and workers now. Servers still stop in order."""
        for name, pid in self.running.processes.items():
            if name not in ("nats", "postgres"):
                try:
                    psutil.Process(pid).kill()
                except psutil.NoSuchProcess:
                    continue

    # --- events --------------------------------------------------------------------------------------------------------------

    def log_of(self, name: str) -> Path:
        """Where a process logs to."""
        return self.data / "logs" / f"{name}.log"

    def _on_event(self, event: ProcessEvent) -> None:
        if event.kind is ProcessEventKind.STARTED:
            self.running.processes[event.name] = event.pid
        elif event.kind in (ProcessEventKind.STOPPED, ProcessEventKind.ENDED):
            self.running.processes.pop(event.name, None)
        if self.running.nats:
            self._save()
        line = f"{event.name} {event.kind}{_detail(event)}"
        if event.kind is ProcessEventKind.ENDED and not self._started and not self._failure.done():
            self._failure.set_result(line)
        if self._started and event.name not in self._leaving:
            self.tell(line)

    def _save(self) -> None:
        """Tell other commands, if the disk takes it: without that the fleet runs all the same, and the next event tries again."""
        try:
            self.running.save(self.data)
        except OSError as error:
            self.tell(f"cannot write {self.data / FILE}, other commands read what it said before: {error.strerror or error}")


def _check_ports(ports: Sequence[int]) -> None:
    """Before anything is started: a port that is taken is the commonest reason why a fleet cannot."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the gateway does it: connections of a former one do not count
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise FleetError(f"port {port} cannot be had ({error.strerror}): --port 0 takes a free one") from error


def _of(section: str, settings: Sequence[str]) -> list[str]:
    """The settings of one section, without its name."""
    return [text.removeprefix(f"{section}.") for text in settings if text.startswith(f"{section}.")]


def _detail(event: ProcessEvent) -> str:
    if event.kind is ProcessEventKind.STARTED:
        return f" as process {event.pid}"
    return f": {readable(event.detail)}" if event.detail else ""


def readable(detail: str) -> str:
    """How a process ended and what it complained of: of its log lines only warnings and errors, and without the machine's half of them."""
    how, *log = detail.splitlines()
    told = [line for line in map(_complaint, log) if line]
    return "\n".join([how.removesuffix(LOG_FOLLOWS), *told])


def _complaint(line: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        return f"  {line}"
    if not isinstance(entry, dict):
        return f"  {line}"
    return "" if entry.get("level") in ("debug", "info") else f"  {entry.get('level', '')}: {entry.get('message', line)}"
