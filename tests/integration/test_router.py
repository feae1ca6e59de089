"""The router as a process of its own on a real nats-server."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from services.router.decide import MACHINE
from shared.contracts import subjects
from shared.contracts.fleet import Capacity, ModelCard, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, StepId, WorkerId
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.output import Output
from shared.contracts.steps import AttemptEnded, Job, StepAdmitted, StepClosed, StepRouted
from shared.contracts.streams import OUT, STEPS
from shared.core.machine import ENCODER
from shared.drivers.replay import Replay
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.cursor import Source
from shared.runtime.embedded import EmbeddedNats
from shared.runtime.ids import new_id
from shared.runtime.process import ManagedProcess, ProcessSpec
from tests.journalled import journalled

LIMIT_S = 30.0
T = TypeVar("T")


class Rig:
    """One router process, and the bus on which the test plays everybody else."""

    def __init__(self, bus: Bus, directory: Path) -> None:
        argv = [sys.executable, "-m", "services.router", "--instance", "router-test"]
        for setting in (
            f"bus.url={bus.config.url}",
            "models.aliases.fast=small",
            "router.breaker.cooldown_ms=600000",
            "router.patience_ms=300",
        ):
            argv += ["--set", setting]
        self.bus = bus
        self.process = ManagedProcess(ProcessSpec(name="router", argv=argv, log=directory / "router.log"))

    async def register(self, worker: str = "w", cell: str = "east", model: str = "small") -> None:
        card = ModelCard(name=ModelName(model), tokenizer="t", vocab_size=10, context_tokens=1_000, block_tokens=16)
        registered = WorkerRegistered(
            worker=WorkerId(worker),
            cell=CellId(cell),
            pool="p",
            epoch=1,
            state=WorkerState.READY,
            card=card,
            capacity=Capacity(blocks=1, slots=1),
        )
        await (await self.bus.store(subjects.worker(registered.worker), ENCODER.encode(registered)))

    async def admit(self, model: str = "small") -> StepId:
        step = StepId(new_id())
        message = StepAdmitted(step=step, job=Job(model=ModelName(model), prompt_tokens=1, max_tokens=1))
        await (await self.bus.store(subjects.step_event(step, "admitted"), ENCODER.encode(message)))
        return step

    async def fail(self, worker: str = "w", cell: str = "east") -> None:
        ended = AttemptEnded(
            step=StepId(new_id()), cell=CellId(cell), worker=WorkerId(worker), attempt=1, status=Status.FAILED, retryable=True
        )
        await (await self.bus.store(subjects.step_event(ended.step, f"ended.{cell}"), ENCODER.encode(ended)))

    async def routed(self, step: StepId, cell: str = "east") -> StepRouted:
        return await self.first(STEPS.name, subjects.step_event(step, f"routed.{cell}"), StepRouted)

    async def closed(self, step: StepId) -> Problem:
        """The end, as the fleet and the step's reader see it."""
        message = await self.first(STEPS.name, subjects.step_event(step, "closed"), StepClosed)
        output = await self.first(OUT.name, subjects.out(step), Output)
        assert output.end is not None
        assert (output.end.status, output.end.problem) == (Status.FAILED, message.problem)
        return message.problem

    async def first(self, stream: str, subject: str, kind: type[T]) -> T:
        cursor = await self.bus.read(Source(stream=stream, subjects=(subject,)))
        try:
            [record] = await asyncio.wait_for(cursor.take(1), LIMIT_S)
            return msgspec.json.decode(record.data, type=kind)
        except TimeoutError as error:
            raise AssertionError(f"nothing on {subject}; {self.process.end()}") from error
        finally:
            await cursor.close()


@pytest.fixture
async def rig(fresh_nats: EmbeddedNats, server_directory: Path) -> AsyncIterator[Rig]:
    bus = await Bus.connect(BusConfig(url=fresh_nats.url), "test")
    await bus.ensure_streams()
    rig = Rig(bus, server_directory)
    await rig.process.start()
    yield rig
    await rig.process.stop()
    await bus.close()


async def test_an_admitted_step_goes_to_the_cell_that_serves_its_model(rig: Rig) -> None:
    await rig.register()
    assert (await rig.routed(await rig.admit())).job.model == "small"
    assert (await rig.routed(await rig.admit("fast"))).job.model == "small"


async def test_a_step_that_nobody_serves_is_closed_and_its_reader_told(rig: Rig) -> None:
    problem = await rig.closed(await rig.admit())
    assert problem.reason is Reason.NO_CAPACITY
    assert problem.retry_after_ms > 0


async def test_an_open_circuit_stays_open_through_sigkill_and_restart(rig: Rig) -> None:
    workers = [f"w{number}" for number in range(5)]
    for worker in workers:
        await rig.register(worker)
    await rig.register("last", model="other")
    await rig.routed(await rig.admit("other"))  # registrations are read in order: all are known now
    for worker in workers:
        await rig.fail(worker)
    step = await rig.admit()
    problem = await rig.closed(step)
    assert problem.reason is Reason.CIRCUIT_OPEN
    assert 0 < problem.retry_after_ms <= 600_000
    await journalled(rig.bus, "router", "main", step)
    await rig.process.stop(0)
    waiting = await rig.admit()  # while nobody is there
    await rig.process.start()
    assert (await rig.closed(waiting)).reason is Reason.CIRCUIT_OPEN


async def test_steps_admitted_while_the_router_was_away_are_routed_when_it_is_back(rig: Rig) -> None:
    await rig.register()
    step = await rig.admit()
    await rig.routed(step)
    await journalled(rig.bus, "router", "main", step)
    await rig.process.stop(0)
    steps = [await rig.admit() for _ in range(20)]
    await rig.process.start()
    for step in steps:
        await rig.routed(step)


async def test_a_replay_of_its_journal_decides_the_same(rig: Rig) -> None:
    for number in range(5):
        await rig.register(f"w{number}")
        await rig.routed(await rig.admit())
        await rig.fail(f"w{number}")
    await rig.closed(await rig.admit())
    await rig.closed(await rig.admit("large"))
    assert await rig.process.stop() == 0
    report = await Replay(rig.bus, MACHINE, "main").verify()
    assert report.inputs >= 13
    assert report.outputs == 5 + 4
    assert (report.differing, report.missing) == (0, 0)
