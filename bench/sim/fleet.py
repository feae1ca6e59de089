"""The processes of a world: the real services, each on a connection of its own, started again when they end."""

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import nats.errors

from bench.sim.plan import REPLICATED, SINGLE, Plan
from bench.sim.planting import patched
from bench.sim.record import SimulatedStore
from services.admission.config import AdmissionConfig, Terms
from services.autoscaler.config import AutoscalerConfig, PoolConfig
from services.kv_registry.config import KvRegistryConfig
from services.router.config import RouterConfig
from services.scheduler.config import SchedulerConfig
from services.worker import service as worker_service
from services.worker.config import WorkerConfig
from services.worker.engines.simulated import SimulatedConfig, SimulatedEngine
from services.worker.notices.config import NoticesConfig
from services.worker.notices.notice import Notice
from services.workflow import service as workflow_service
from services.workflow.config import WorkflowConfig
from shared.contracts.fleet import Hardware
from shared.core.catalogue import ModelsConfig
from shared.core.errors import LegatoError, leaves
from shared.core.step_law import PRESETS, StepLaw
from shared.drivers.simulate import Process, VirtualLoop, current
from shared.drivers.simulated_nats import Network, connect
from shared.runtime.bus import Bus

MODEL = "sim-small"
LAW = "simulated-world"

log = logging.getLogger(__name__)


def settings(plan: Plan) -> dict[str, msgspec.Struct]:
    """The configuration of a world, by section. Times are short, so that what takes minutes live is over within a simulated one."""
    return {
        "admission": AdmissionConfig(in_flight_max=200, anyone=Terms(priority_max=100, concurrent_max=plan.concurrent_max)),
        "models": ModelsConfig(),
        "router": RouterConfig(patience_ms=4_000),
        "scheduler": SchedulerConfig(queue_max=plan.queue_max, attempts_max=plan.attempts_max),
        "kv_registry": KvRegistryConfig(),
        "autoscaler": AutoscalerConfig(pools={"default": PoolConfig(min=1, max=8)}),
        "worker": WorkerConfig(hardware=Hardware(usd_per_hour=3.6), drain_timeout_s=4.0),
        "simulated": SimulatedConfig(model=MODEL, law=LAW, load_s=0.4, blocks=plan.blocks, slots=plan.slots, context_tokens=2048),
        "workflow": WorkflowConfig(sweep_ms=1_000, stall_ms=3_000, grace_ms=2_000, prompts_sweep_ms=3_000, prompts_kept_s=150.0),
    }


class Uncounted:
    """In place of telemetry: nobody reads it."""

    tracing = False

    def count(self, event: str, amount: int = 1) -> None: ...

    def decision(self, event: Any, outputs: Any, started_ns: int) -> None: ...

    def span(self, name: str, message: Any, start_ns: int, **attributes: Any) -> None: ...


@dataclass(frozen=True)
class Sections:
    """In place of a process's options."""

    settings: dict[str, msgspec.Struct]

    def section(self, kind: type[msgspec.Struct], name: str) -> msgspec.Struct:
        return self.settings[name]


@dataclass(kw_only=True)
class Context:
    """What a service's `run` receives; see shared/runtime/lifecycle.py."""

    options: Sections
    instance: str
    bus: Bus
    stop: asyncio.Event
    ready: asyncio.Event
    telemetry: Uncounted = field(default_factory=Uncounted)
    status: dict[str, object] = field(default_factory=dict)

    def section(self, kind: type[msgspec.Struct], name: str) -> msgspec.Struct:
        return self.options.section(kind, name)


@dataclass(kw_only=True)
class Place:
    """What the processes of a world share."""

    loop: VirtualLoop
    network: Network
    plan: Plan
    restart_s: Callable[[], float]
    store: Callable[[Process], SimulatedStore]
    broken: Callable[[str], None]  # something ended as nothing may
    said: Callable[[str], None]  # for the log of events


class Unit:
    """One process that is always started again, until it is told to leave."""

    def __init__(self, place: Place, name: str, run: Callable[[Any], Awaitable[None]]) -> None:
        self.name = name
        self.process: Process | None = None
        self.context: Context | None = None
        self.notice: asyncio.Future[Notice] | None = None
        self.engine: SimulatedEngine | None = None
        self.lives = 0
        self.stays = True  # is started again
        self._place = place
        self._run = run

    def start(self) -> None:
        if self.process is not None or not self.stays:
            return
        self.lives += 1
        self._place.said(f"start {self.name}")
        self.process = Process(self.name, self._place.loop)
        self.process.owner = self
        task = self.process.start(self._main(self.process))
        task.add_done_callback(lambda done: self._ended(done))

    def kill(self, away_s: float = 0.0) -> None:
        """SIGKILL. It is started again, and not before `away_s`."""
        process, self.process = self.process, None
        if process is None:
            return
        self._place.said(f"kill {self.name}")
        process.kill()
        self.gone(process, away_s)

    def gone(self, process: Process, away_s: float = 0.0) -> None:
        """It is dead: its connection goes with it, and somebody starts it again."""
        for client in self._place.network.clients:
            if client.process is process and not client.is_closed:
                client.die()
        self.process = self.context = self.notice = self.engine = None
        if self.stays:
            self._place.loop.call_later(away_s + self._place.restart_s(), self.start)

    def died_inside(self) -> bool:
        """It stopped at a point that the plan names: whether that was just found out."""
        process = self.process
        if process is None or not process.dead:
            return False
        self._place.said(f"died {self.name}")
        self.gone(process)
        return True

    def leave(self) -> None:
        """SIGTERM."""
        if self.context is not None:
            self.context.stop.set()

    async def _main(self, process: Process) -> None:
        bus = await connect(self._place.network, process)
        stop, ready = asyncio.Event(), asyncio.Event()
        self.notice = self._place.loop.create_future()
        self.context = Context(options=Sections(settings(self._place.plan)), instance=self.name, bus=bus, stop=stop, ready=ready)
        await self._run(self.context)
        await bus.close()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        process, error = self.process, None if task.cancelled() else task.exception()
        if process is None:
            return
        causes = leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
        if any(not isinstance(each, LegatoError | OSError | nats.errors.Error | None) for each in causes):
            self._place.broken(f"{self.name} ended with {causes!r}")
        self._place.said(f"end {self.name} {type(error).__name__}")
        process.kill()
        self.gone(process)


def _owner() -> Unit:
    process = current()
    assert process is not None
    assert isinstance(process.owner, Unit)
    return process.owner


async def _watch(config: NoticesConfig) -> Notice:
    """In place of asking a cloud: the world says it."""
    notice = _owner().notice
    assert notice is not None
    return await notice


def _build(engine: str, options: Any) -> SimulatedEngine:
    """The engine, within the world's reach."""
    owner = _owner()
    owner.engine = SimulatedEngine(options.section(SimulatedConfig, "simulated"))
    return owner.engine


@contextmanager
def in_the_worlds_hands() -> Iterator[None]:
    """For a while workers come to what the world plays: by the two names through which they do, and the law of its engines."""
    PRESETS[LAW] = StepLaw(overhead_s=0.03)  # 30 ms for each iteration, whatever is in it: fewer events for a second of work
    try:
        with patched(worker_service, "watch", _watch), patched(worker_service, "build", _build):
            yield
    finally:
        del PRESETS[LAW]


def units(place: Place) -> dict[str, Unit]:
    """All services and workers, not yet started."""

    async def workflow(context: Any) -> None:
        process = current()
        assert process is not None
        work = asyncio.ensure_future(workflow_service._stand_by(context, place.store(process)))
        stopped = asyncio.ensure_future(context.stop.wait())
        await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
        for task in (work, stopped):
            if task.done():
                task.result()
            task.cancel()

    runs = {name: importlib.import_module(f"services.{name}.service").run for name in (*SINGLE, "admission", "scheduler")}
    runs["workflow"] = workflow
    named = {name: runs[name] for name in SINGLE}
    named |= {f"{name}-{number}": runs[name] for name in REPLICATED for number in range(place.plan.replicas)}
    named |= {f"w{number}": worker_service.run for number in range(place.plan.workers)}
    return {name: Unit(place, name, run) for name, run in named.items()}
