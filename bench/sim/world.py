"""One world, from its plan to its end: what happened, in a hash, and what should not have."""

import asyncio
import gc
import hashlib
import logging
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import msgspec

import shared.drivers.journal as journal
import shared.drivers.service as driving
from bench.sim.faults import NOTICE_S, Faults
from bench.sim.fleet import Place, Unit, in_the_worlds_hands, units
from bench.sim.plan import Ask, Plan
from bench.sim.planting import patched
from bench.sim.programs import running
from bench.sim.record import SimulatedStore, StepRow, Tables
from bench.sim.replaying import replay_all
from services.worker.engines import prose
from shared.contracts.ids import StepId
from shared.contracts.output import Output
from shared.contracts.steps import StepAdmitted
from shared.drivers.live import LiveDriver
from shared.drivers.simulate import Process, Stuck, VirtualLoop, current
from shared.drivers.simulated_nats import Network
from shared.runtime import clock, ids
from shared.sim import checkers
from shared.sim.checkers import Checker, Violation, Watch
from shared.sim.nats_server import NatsServer
from shared.sim.streams import Stored

END_S = 240.0  # nothing that was asked for may be open so long
LOOK_S = 0.5  # how often the world looks at itself
QUIET_S = 3.0  # after the last program has ended, until the end is looked at
REDRIVES_MAX = 5
LEASE_NS = 3_000_000_000  # of a worker

EXPECTED = ("the engine died", "the engine did not start", "attempt not reported")  # what may be logged as an error


class Result(msgspec.Struct, kw_only=True):
    """How a world went. `broken`: what should not have happened; empty: nothing."""

    seed: int
    hash: str
    broken: str = ""
    seconds: float = 0.0  # of its clock
    turns: int = 0
    steps: int = 0
    stored: int = 0
    statuses: dict[str, int] = {}
    log: list[str] = []


class World(logging.Handler):
    """Use `World(plan).run()` once."""

    def __init__(self, plan: Plan, *, keep_log: bool = False) -> None:
        super().__init__(logging.ERROR)
        self.plan = plan
        self.loop = VirtualLoop()
        self.broken = ""
        self._log: list[str] | None = [] if keep_log else None
        self._hash = hashlib.sha256()
        self._latency = Random(f"{plan.seed}.latency")
        self._luck = Random(f"{plan.seed}.luck")
        self.tables = Tables()
        self.tables.observe = self._settled
        self.server = NatsServer(self.loop.now_ns, self._later, self._stored)
        self.network = Network(
            loop=self.loop, server=self.server, latency_s=self._latency_s, reconnect_s=lambda: self._luck.uniform(0.2, 0.5)
        )
        self.place = Place(
            loop=self.loop,
            network=self.network,
            plan=plan,
            restart_s=lambda: self._luck.uniform(0.2, 1.5),
            store=self._store,
            broken=self._break,
            said=self._note,
        )
        self.units = units(self.place)
        self.programs = {
            each.name: Unit(self.place, each.name, running(each, self, self.loop.elapsed_s, self._done)) for each in plan.programs
        }
        self.faults = Faults(self.place, self.units | self.programs, lambda up: setattr(self.tables, "up", up))
        self.network.dies = self.faults.dies
        self.server.lose = self._loses
        self.drivers: dict[str, LiveDriver[Any, Any]] = {}  # by service, the newest
        self.watch = Watch(self._checkers())
        self._steps: dict[StepId, None] = {}
        self._stored_count = 0

    def _checkers(self) -> list[Checker]:
        now_s = self.loop.elapsed_s
        budgets = {each.name: each.budget_usd for each in self.plan.programs if each.budget_usd}
        limits = {
            "scheduler": {"recent": 10_000, "early_matches": 4_096, "early_cancels": 4_096, "gaps": 8},
            "tenants": {"running": self.plan.concurrent_max},
            "scheduler_queue": {"new": self.plan.queue_max},
            "admission": {"held": 257, "in_flight": 200, "settled": 8_192, "refused": 8_192},
            "router": {"waiting": 10_001},
        }
        return [
            checkers.SettledOnce(now_s),
            checkers.PrefixOnly(now_s, _truth),
            checkers.OneWriter(now_s),
            checkers.WithinBudget(now_s, budgets),
            checkers.NothingWaits(now_s, lease_ns=LEASE_NS),
            checkers.FewRetries(now_s, attempts_max=self.plan.attempts_max, redrives_max=REDRIVES_MAX),
            checkers.NeverNegative(now_s),
            checkers.Bounded(now_s, limits),
        ]

    def run(self) -> Result:
        """Raises nothing: what went wrong is in the result."""
        with _virtual(self):
            try:
                self.loop.run_until_complete(self._live())
            except (Violation, Stuck) as error:
                self._break(str(error))
            finally:
                self.loop.close()
        statuses: dict[str, int] = {}
        for row in self.tables.steps.values():
            statuses[str(row.status)] = statuses.get(str(row.status), 0) + 1
        return Result(
            seed=self.plan.seed,
            hash=self._hash.hexdigest()[:16],
            broken=self.broken,
            seconds=self.loop.elapsed_s(),
            turns=self.loop.turns,
            steps=len(self._steps),
            stored=self._stored_count,
            statuses=statuses,
            log=self._log or [],
        )

    async def _live(self) -> None:
        for unit in self.units.values():
            unit.start()
        for unit in self.programs.values():
            unit.start()
        self.faults.plan(self.plan.faults)
        await self._until(self.plan.heal_s)
        self.faults.heal()
        for _ in range(int(END_S / LOOK_S)):
            if self._over() or self.broken:
                break
            await asyncio.sleep(LOOK_S)
        await self._until(self.loop.elapsed_s() + QUIET_S)
        if not self.broken:
            self._finish()

    async def _until(self, at_s: float) -> None:
        for _ in range(1 + int((at_s - self.loop.elapsed_s()) / LOOK_S)):
            if not self.broken:
                await asyncio.sleep(max(0.0, min(LOOK_S, at_s - self.loop.elapsed_s())))

    def _over(self) -> bool:
        """Whether all faults are over, and nobody waits for anything any more."""
        last_s = max((fault.at_s + fault.seconds + NOTICE_S for fault in self.plan.faults), default=0.0)
        if (
            self.loop.elapsed_s() < last_s
            or any(unit.stays for unit in self.programs.values())
            or any(unit.process is None for unit in self.units.values())
        ):
            return False
        rows = self.tables.steps
        recorded = all(step in rows and rows[step].settled_ns for step in self.watch.admitted)
        return self.tables.up and self.server.up and recorded

    def _finish(self) -> None:
        states = {service: driver.state for service, driver in self.drivers.items()}
        for checker in self.watch.checkers:
            checker.finish(self.tables.steps, states)
        replay_all(self.server, self.drivers)

    # --- what the world tells ------------------------------------------------------------------------------------------------

    def _note(self, text: str) -> None:
        line = f"{self.loop.elapsed_s():.9f} {text}"
        self._hash.update(line.encode())
        if self._log is not None:
            self._log.append(line)

    def _stored(self, stream: str, message: Stored) -> None:
        self._stored_count += 1
        self._note(f"stored {stream} {message.seq} {message.subject} {message.msg_id}")
        self._hash.update(message.data)
        if self._log is not None and not stream.endswith(("JOURNAL", "PROMPTS")):
            self._log.append("    " + message.data.decode()[:600])
        self._guarded(self.watch.stored, stream, message)

    def _settled(self, step: StepId, row: StepRow) -> None:
        self._note(f"settled {step} {row.status} {len(row.tokens)}")
        self._tell(lambda each: each.settled(step, row))

    def submitted(self, step: StepId, ask: Ask) -> None:
        self._steps[step] = None
        self._note(f"submit {step}")
        self._tell(lambda each: each.submitted(step, ask.timeout_ms))

    def heard(self, reader: str, step: StepId, output: Output) -> None:
        self._note(f"heard {reader} {step} {output.attempt} {output.offset} {len(output.tokens)} {output.end is not None}")
        name = f"{reader}/{self.programs[reader].lives}"
        self._tell(lambda each: each.heard(name, step, output))

    def gave_up(self, reader: str, step: StepId) -> None:
        self._note(f"gave up {reader} {step}")
        self._tell(lambda each: each.gave_up(reader, step))

    def misread(self, reader: str, step: StepId, why: str) -> None:
        self._break(f"invariant 2: {reader} cannot read {step} as one stream: {why}")

    def decided(self, driver: LiveDriver[Any, Any], process: Process) -> None:
        """A machine has taken an input."""
        service = driver.machine.name
        self.drivers[service] = driver
        self._tell(lambda each: each.decided(service, driver.state))

    def _tell(self, say: Callable[[Checker], None]) -> None:
        for checker in self.watch.checkers:
            self._guarded(say, checker)

    def _guarded(self, look: Callable[..., None], *about: Any) -> None:
        try:
            look(*about)
        except Violation as error:
            self._break(str(error))

    def _break(self, text: str) -> None:
        if not self.broken:
            self.broken = f"{text} [at {self.loop.elapsed_s():.3f} s]"
            self._note(f"broken {text}")

    def emit(self, record: logging.LogRecord) -> None:
        """An error that a service logs is one of the few that are expected, or it is a bug."""
        if not record.getMessage().startswith(EXPECTED):
            process = current()
            error = f": {record.exc_info[1]!r}" if record.exc_info and record.exc_info[1] is not None else ""
            self._break(f"{process.name if process else 'the world'} logged {record.getMessage()!r}{error}")

    # --- what the world is made of -------------------------------------------------------------------------------------------

    def _done(self, name: str) -> None:
        self._note(f"done {name}")
        self.programs[name].stays = False

    def _store(self, process: Process) -> SimulatedStore:
        return SimulatedStore(self.tables, process, lambda: self._latency_s() * 2, self.faults.dies)

    def _latency_s(self) -> float:
        mean_s = self.plan.latency_ms / 1e3
        spike = 20.0 if self._latency.random() < 0.005 else 1.0
        return mean_s * (0.3 + self._latency.expovariate(1.0)) * spike * self.faults.slowness

    def _loses(self, subject: str) -> bool:
        if not self.plan.loss or self.loop.elapsed_s() > self.plan.heal_s or subject.startswith(("_INBOX", "legato.alive")):
            return False
        return self._luck.random() < self.plan.loss

    def _later(self, after_s: float, work: Callable[[], None]) -> None:
        self.loop.call_later(after_s, work)


_worlds: list[World] = []  # the one that runs


class _Observed(LiveDriver[Any, Any]):
    """The live driver, with the checkers behind each input."""

    async def _take(self, arrived: Any) -> None:
        await super()._take(arrived)
        process = current()
        if _worlds and process is not None:
            _worlds[-1].decided(self, process)


def _truth(admitted: StepAdmitted, number: int) -> list[int]:
    """The engine's text. Its offset follows from the seed, which admission gives to every step."""
    return prose.tokens_at(prose.offset_of(admitted.job.sampling.seed, []), 0, number)


@contextmanager
def _virtual(world: World) -> Iterator[None]:
    """Everything that a process asks of its machine comes from the world."""
    entropy, root = Random(f"{world.plan.seed}.ids"), logging.getLogger()
    level = root.level
    root.addHandler(world)
    root.setLevel(logging.ERROR)
    clock.use(world.loop.now_ns, world.loop.time)
    ids.use(entropy.randbytes)
    random.seed(world.plan.seed)  # waits for Postgres are drawn
    world.loop.set_exception_handler(lambda _, about: world._break(f"the loop says {about}"))
    _worlds.append(world)
    try:
        with (
            in_the_worlds_hands(),
            patched(driving, "LiveDriver", _Observed),  # the one name through which services come to their driver
            patched(journal, "SNAPSHOT_EVERY", world.plan.snapshot_every),
        ):
            yield
    finally:
        _worlds.pop()
        world.loop.set_exception_handler(lambda _, __: None)
        root.removeHandler(world)
        root.setLevel(level)
        clock.use()
        ids.use()


def simulate(plan: Plan, *, keep_log: bool = False) -> Result:
    """Run one world, and leave nothing of it behind."""
    gc.collect()
    gc.freeze()
    gc.disable()  # else it would matter when killed tasks are found to be garbage
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)  # a killed process takes no further step
        try:
            return World(plan, keep_log=keep_log).run()
        finally:
            hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # such a task does not end well, and is not heard
            logging.disable(logging.CRITICAL)
            gc.enable()
            gc.collect()
            logging.disable(logging.NOTSET)
            sys.unraisablehook = hook
