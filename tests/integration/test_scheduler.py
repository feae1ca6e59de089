"""The scheduler as a process of its own on a real nats-server; the test plays router, registry and workers."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.msg import Msg

from services.scheduler.decide import MACHINE
from shared.contracts import subjects
from shared.contracts.catalogue import KIND
from shared.contracts.envelope import Message
from shared.contracts.fleet import QueueReported
from shared.contracts.ids import StepId, WorkerId
from shared.contracts.journal import DeadLetter
from shared.contracts.outcomes import Reason, Status
from shared.contracts.output import Output
from shared.contracts.steps import StepClosed, StepDispatched, StepRevoked
from shared.contracts.streams import DEAD, OUT, STEPS
from shared.core.machine import ENCODER
from shared.drivers.replay import Replay
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.cursor import Source
from shared.runtime.embedded import EmbeddedNats
from shared.runtime.ids import new_id
from shared.runtime.process import ManagedProcess, ProcessSpec
from tests.scheduler_world import CELL, beat, ended, matched, registered, routed

LIMIT_S = 30.0


class Worker:
    """Beats, holds what the log gives it until it is told how that ends, and can fall silent."""

    def __init__(self, bus: Bus, name: str, slots: int) -> None:
        self.name = WorkerId(name)
        self.held: dict[StepId, StepDispatched] = {}
        self.taken: list[tuple[StepId, int]] = []
        self.revoked: list[StepRevoked] = []
        self.on_dispatch: Callable[[StepDispatched], None] = lambda dispatched: None
        self.silent = False
        self._bus = bus
        self._slots = slots

    async def run(self) -> None:
        """Until cancelled."""
        await publish(self._bus, registered(self.name, slots=self._slots))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())
            while True:
                if not self.silent:
                    message = beat(self.name, *((step, each.attempt) for step, each in self.held.items()))
                    await self._bus.publish(subjects.beat(self.name), ENCODER.encode(message))
                await asyncio.sleep(0.1)  # the beat's own rhythm

    async def end(self, step: StepId, status: Status = Status.SUCCEEDED) -> None:
        dispatched = self.held.pop(step)
        await publish(self._bus, ended(step, dispatched.attempt, self.name, status))

    async def _read(self) -> None:
        mine = (subjects.dispatched_to(self.name), subjects.revoked_from(self.name))
        cursor = await self._bus.read(Source(stream=STEPS.name, subjects=mine))
        while True:
            for record in await cursor.take(64):
                message = msgspec.json.decode(record.data, type=StepDispatched | StepRevoked)
                if isinstance(message, StepDispatched):
                    self.held[message.step] = message
                    self.taken.append((message.step, message.attempt))
                    self.on_dispatch(message)
                else:
                    self.revoked.append(message)


class Rig:
    """One scheduler process, and the bus on which the test plays everybody else."""

    def __init__(self, bus: Bus, directory: Path) -> None:
        argv = [sys.executable, "-m", "services.scheduler", "--instance", "scheduler-test"]
        for setting in (f"bus.url={bus.config.url}", "scheduler.lease_ms=2000", "scheduler.match_wait_ms=50", "scheduler.report_ms=100"):
            argv += ["--set", setting]
        self.bus = bus
        self.process = ManagedProcess(ProcessSpec(name="scheduler", argv=argv, log=directory / "scheduler.log"))
        self.workers: list[Worker] = []
        self._tasks: list[asyncio.Task[None]] = []

    def add_worker(self, name: str, slots: int = 4) -> Worker:
        worker = Worker(self.bus, name, slots)
        self.workers.append(worker)
        self._tasks.append(asyncio.create_task(worker.run()))
        return worker

    async def stop(self) -> None:
        await self.process.stop()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def route(self, step: StepId | None = None, *, priority: int = 0) -> StepId:
        step = step or StepId(new_id())
        await publish(self.bus, routed(step, priority=priority))
        return step

    async def dispatched(self, step: StepId, attempt: int = 1) -> StepDispatched:
        """The given attempt of the step."""
        async for message in self.read(STEPS.name, f"legato.step.{step}.dispatched.*", StepDispatched):
            if message.attempt == attempt:
                return message
        raise AssertionError("unreachable")

    async def first(self, stream: str, subject: str, kind: type[Message]) -> Any:
        async for message in self.read(stream, subject, kind):
            return message
        raise AssertionError("unreachable")

    async def read(self, stream: str, subject: str, kind: type[Message]) -> AsyncGenerator[Any, None]:
        cursor = await self.bus.read(Source(stream=stream, subjects=(subject,)))
        try:
            while True:
                for record in await asyncio.wait_for(cursor.take(64), LIMIT_S):
                    yield msgspec.json.decode(record.data, type=kind)
        except TimeoutError as error:
            raise AssertionError(f"nothing on {subject}; {self.process.end()}") from error
        finally:
            await cursor.close()


async def publish(bus: Bus, message: Message) -> None:
    """Stored, on the subject that the catalogue gives it."""
    await (await bus.store(KIND[type(message)].subject(message), ENCODER.encode(message)))


@pytest.fixture
async def rig(fresh_nats: EmbeddedNats, server_directory: Path) -> AsyncIterator[Rig]:
    bus = await Bus.connect(BusConfig(url=fresh_nats.url), "test")
    await bus.ensure_streams()
    rig = Rig(bus, server_directory)
    await rig.process.start()
    yield rig
    await rig.stop()
    await bus.close()


async def test_a_routed_step_is_dispatched_to_a_worker_and_reported(rig: Rig) -> None:
    rig.add_worker("a")
    dispatched = await rig.dispatched(await rig.route())
    assert (dispatched.worker, dispatched.attempt, dispatched.tenant, dispatched.trace) == ("a", 1, "t", "00-trace")
    assert dispatched.id.startswith("scheduler.local.")
    reports: asyncio.Queue[QueueReported] = asyncio.Queue()

    async def take(msg: Msg) -> None:
        reports.put_nowait(msgspec.json.decode(msg.data, type=QueueReported))

    await rig.bus.subscribe(subjects.queue(CELL), take)
    report = await asyncio.wait_for(reports.get(), LIMIT_S)
    assert (report.model, report.depth, report.workers, report.slots, report.running) == ("m", 0, 1, 4, 1)


async def test_the_registrys_word_decides_between_equal_workers(rig: Rig) -> None:
    for name in ("a", "b"):
        rig.add_worker(name)
    warm = await rig.route()
    await rig.dispatched(warm)
    step = StepId(new_id())
    for each in (warm, step):
        await rig.bus.publish(subjects.match(CELL), ENCODER.encode(matched(each, b=6)))
    await rig.route(step)
    dispatched = await rig.dispatched(step)
    assert (dispatched.worker, dispatched.cached_tokens) == ("b", 96)


async def test_a_bare_cancellation_ends_a_waiting_step_and_revokes_a_running_one(rig: Rig) -> None:
    worker = rig.add_worker("a", slots=1)
    running = await rig.route()
    await rig.dispatched(running)
    waiting = await rig.route()
    for step in (waiting, running):
        await (await rig.bus.store(subjects.cancel(step), b"{}"))
    closed = await rig.first(STEPS.name, subjects.step_event(waiting, "closed"), StepClosed)
    output = await rig.first(OUT.name, subjects.out(waiting), Output)
    assert (closed.status, output.end.status, output.end.problem.reason) == (Status.CANCELLED, Status.CANCELLED, Reason.CANCELLED)
    revoked = await rig.first(STEPS.name, f"legato.step.{running}.revoked.*", StepRevoked)
    assert (revoked.worker, revoked.attempt, revoked.reason) == ("a", 1, Reason.CANCELLED)
    await worker.end(running, Status.CANCELLED)
    assert (await rig.dispatched(await rig.route())).worker == "a", "the slot is free again"


async def test_a_worker_that_falls_silent_loses_its_step_to_another(rig: Rig) -> None:
    first = rig.add_worker("a")
    step = await rig.route()
    await rig.dispatched(step)
    rig.add_worker("b")
    first.silent = True
    again = await rig.dispatched(step, attempt=2)
    assert again.worker == "b"
    revoked = await rig.first(STEPS.name, f"legato.step.{step}.revoked.a", StepRevoked)
    assert (revoked.attempt, revoked.reason) == (1, Reason.SUPERSEDED)


async def test_a_killed_scheduler_goes_on_without_dispatching_an_attempt_twice(rig: Rig) -> None:
    over: Counter[StepId] = Counter()
    all_over = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    steps = [StepId(new_id()) for _ in range(60)]

    async def work(worker: Worker, dispatched: StepDispatched) -> None:
        await asyncio.sleep(0.05)  # the step's own length
        await worker.end(dispatched.step)
        over[dispatched.step] += 1
        if len(over) == len(steps):
            all_over.set()

    for name in ("a", "b"):
        worker = rig.add_worker(name, slots=3)
        worker.on_dispatch = lambda dispatched, worker=worker: tasks.append(asyncio.create_task(work(worker, dispatched)))
    for step in steps[:40]:
        await rig.route(step)
    await rig.dispatched(steps[12])
    await rig.process.stop(0)
    killed_at = len(over)
    for step in steps[40:]:
        await rig.route(step)
    await rig.process.start()
    await asyncio.wait_for(all_over.wait(), LIMIT_S)
    await asyncio.gather(*tasks)
    assert 0 < killed_at < 40
    assert over == Counter(steps)
    taken = rig.workers[0].taken + rig.workers[1].taken
    assert Counter(taken) == Counter((step, 1) for step in steps), "each attempt once, and none repeated"
    assert rig.workers[0].revoked + rig.workers[1].revoked == []
    assert await rig.process.stop() == 0
    report = await Replay(rig.bus, MACHINE, CELL).verify()
    assert (report.differing, report.missing) == (0, 0)
    assert report.inputs >= 120


async def test_what_cannot_be_read_is_parked_and_does_not_stop_it(rig: Rig) -> None:
    rig.add_worker("a")
    await rig.dispatched(await rig.route())
    await rig.bus.publish(subjects.beat(WorkerId("a")), b"nonsense")
    await (await rig.bus.store("legato.step.broken.routed.local", b"{not json"))
    await (await rig.bus.store("legato.cancel.broken", b"[]"))
    assert (await rig.dispatched(await rig.route())).worker == "a"
    letters = rig.read(DEAD.name, subjects.dead("scheduler"), DeadLetter)
    found = {(await anext(letters)).subject for _ in range(3)}
    await letters.aclose()
    assert found == {"legato.beat.a", "legato.step.broken.routed.local", "legato.cancel.broken"}
