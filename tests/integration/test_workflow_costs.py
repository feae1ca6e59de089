"""The ledger in a real Postgres: what attempts cost, also those that nobody reports, and what workflows may cost."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from workflow_messages import admitted, dispatched, ended, new_step

from services.workflow.config import WorkflowConfig
from services.workflow.patience import Patience
from services.workflow.recorder import Recorder
from services.workflow.service import MIGRATIONS
from services.workflow.store import Store
from services.workflow.workflow_store import WorkflowReader
from shared.contracts import subjects
from shared.contracts.catalogue import KIND
from shared.contracts.costs import Cost
from shared.contracts.envelope import Message
from shared.contracts.fleet import Capacity, Hardware, ModelCard, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, StepId, WorkerId, WorkflowId
from shared.contracts.outcomes import Problem, Reason, Status, Usage
from shared.contracts.steps import AttemptEnded, AttemptRecord, Reservation, StepAdmitted, StepClosed, StepDispatched, StepSettled
from shared.contracts.streams import STEPS
from shared.contracts.workflows import BudgetSet, WorkflowOpened, WorkflowRecord
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.clock import now_ns
from shared.runtime.cursor import Source
from shared.runtime.db import DatabaseConfig, close_pool, open_pool
from shared.runtime.embedded import EmbeddedNats
from shared.runtime.migrations import migrate
from shared.runtime.telemetry import Telemetry, TelemetryConfig

LIMIT_S = 60.0
S = 1_000_000_000
CELL, LOST, OTHER = CellId("local"), WorkerId("lost"), WorkerId("other")
WF = WorkflowId("report")
CARD = ModelCard(name=ModelName("m"), tokenizer="t", vocab_size=10, context_tokens=100, block_tokens=16)


class Ledger:
    """The recorder at work, and the messages that it reads. Times are seconds from the ledger's beginning."""

    def __init__(self, bus: Bus, store: Store, workflows: WorkflowReader) -> None:
        self.bus = bus
        self.store = store
        self.workflows = workflows
        self.began_ns = now_ns() - 600 * S

    async def say(self, *messages: Message) -> None:
        for message in messages:
            await (await self.bus.store(KIND[type(message)].subject(message), ENCODER.encode(message)))

    async def register(self, worker: WorkerId, usd_per_hour: float, count: int = 1) -> None:
        about = {"worker": worker, "cell": CELL, "pool": "p", "epoch": 1, "state": WorkerState.READY, "card": CARD}
        hardware = Hardware(count=count, usd_per_hour=usd_per_hour)
        await self.say(WorkerRegistered(**about, capacity=Capacity(blocks=1, slots=1), hardware=hardware))  # type: ignore[arg-type]

    def dispatched(self, step: StepId, at_s: float, worker: WorkerId = LOST, attempt: int = 1) -> StepDispatched:
        return msgspec.structs.replace(dispatched(step, attempt), worker=worker, time_ns=self.began_ns + int(at_s * S))

    def ended(self, step: StepId, at_s: float, worker: WorkerId = OTHER, attempt: int = 1, **fields: object) -> AttemptEnded:
        return msgspec.structs.replace(ended(step, attempt), worker=worker, time_ns=self.began_ns + int(at_s * S), **fields)

    async def settled(self, step: StepId) -> StepSettled:
        cursor = await self.bus.read(Source(stream=STEPS.name, subjects=(subjects.step_event(step, "settled"),)))
        try:
            [record] = await asyncio.wait_for(cursor.take(1), LIMIT_S)
            return msgspec.json.decode(record.data, type=StepSettled)
        finally:
            await cursor.close()

    async def everything_recorded(self) -> None:
        """What was said before is in Postgres."""
        step = new_step()
        await self.say(admitted(step), StepClosed(step=step, status=Status.FAILED, problem=Problem(reason=Reason.INTERNAL, message="x")))
        await self.settled(step)

    async def attempts(self, step: StepId) -> list[AttemptRecord]:
        record = await self.store.get_step(step)
        assert record is not None
        return record.attempts

    async def cost(self) -> Cost:
        """Of all that was attempted."""
        [cost] = (await self.store.costs(0)).costs
        return cost

    async def workflow(self) -> WorkflowRecord:
        record = await self.workflows.get(WF)
        assert record is not None
        return record


@pytest.fixture
async def ledger(fresh_nats: EmbeddedNats, database: str) -> AsyncIterator[Ledger]:
    bus = await Bus.connect(BusConfig(url=fresh_nats.url), "test")
    await bus.ensure_streams()
    pool = await open_pool(DatabaseConfig(dsn=database))
    await migrate(pool, MIGRATIONS)
    store = Store(pool)
    telemetry = Telemetry("workflow", "test", TelemetryConfig())
    recording = asyncio.create_task(Recorder(bus, store, Patience(asyncio.Event()), WorkflowConfig(), telemetry).run())
    yield Ledger(bus, store, WorkflowReader(pool))
    recording.cancel()
    await asyncio.gather(recording, return_exceptions=True)
    await bus.close()
    await close_pool(pool)


async def test_an_attempt_that_was_lost_pays_its_share_until_it_was_given_up_by_its_workers_price(ledger: Ledger) -> None:
    step, beside = new_step(), new_step()
    await ledger.register(LOST, usd_per_hour=3_600.0, count=2)
    await ledger.say(admitted(beside), ledger.dispatched(beside, 2))
    await ledger.say(ledger.ended(beside, 20, LOST, gpu_s=16.0, usd=8.0))
    await ledger.say(admitted(step), ledger.dispatched(step, 0), ledger.dispatched(step, 4, OTHER, attempt=2))
    await ledger.say(ledger.ended(step, 10, attempt=2, gpu_s=1.0, usd=0.5))
    assert (await ledger.settled(step)).usd == 3.5
    lost, other = await ledger.attempts(step)
    assert (lost.status, lost.estimated, lost.gpu_s, lost.usd) == (None, True, 6.0, 3.0)
    assert (other.estimated, other.usd) == (False, 0.5)
    cost = await ledger.cost()
    assert (cost.attempts, cost.unbilled, cost.lost_usd, cost.lost_gpu_s, cost.usd) == (3, 0, 3.0, 6.0, 11.5)


async def test_all_that_were_lost_at_once_share_what_their_worker_cost(ledger: Ledger) -> None:
    steps = [new_step() for _ in range(4)]
    await ledger.register(LOST, usd_per_hour=3_600.0)
    await ledger.say(*map(admitted, steps), *(ledger.dispatched(step, 0) for step in steps))
    await ledger.say(*(ledger.dispatched(step, 8, OTHER, attempt=2) for step in steps))
    for step in steps:
        await ledger.say(ledger.ended(step, 9, attempt=2))
        assert (await ledger.settled(step)).usd == 2.0


async def test_a_report_that_comes_after_all_takes_the_place_of_the_estimate(ledger: Ledger) -> None:
    step = new_step()
    await ledger.register(LOST, usd_per_hour=3_600.0)
    await ledger.say(admitted(step), ledger.dispatched(step, 0), ledger.dispatched(step, 4, OTHER, attempt=2))
    await ledger.say(ledger.ended(step, 10, attempt=2))
    await ledger.settled(step)
    await ledger.say(ledger.ended(step, 11, LOST, status=Status.CANCELLED, usd=1.5, gpu_s=1.5))
    await ledger.everything_recorded()
    late = (await ledger.attempts(step))[0]
    assert (late.status, late.superseded, late.estimated, late.usd) == (Status.CANCELLED, True, False, 1.5)
    cost = await ledger.cost()
    assert (cost.lost_usd, cost.superseded_usd, cost.unbilled) == (0, 1.5, 0)


@pytest.mark.parametrize("good_bye", [False, True])
async def test_of_a_worker_that_nobody_remembers_nothing_is_guessed(ledger: Ledger, good_bye: bool) -> None:
    step = new_step()
    if good_bye:
        await ledger.say(WorkerGone(worker=LOST, cell=CELL, epoch=1))
    await ledger.say(admitted(step), ledger.dispatched(step, 0), ledger.dispatched(step, 4, OTHER, attempt=2))
    await ledger.say(ledger.ended(step, 10, attempt=2, usd=0.5))
    assert (await ledger.settled(step)).usd == 0.5
    assert not (await ledger.attempts(step))[0].estimated
    assert (await ledger.cost()).unbilled == 1


async def test_a_success_that_somebody_else_reported_is_estimated_and_a_workers_refusal_costs_nothing(ledger: Ledger) -> None:
    saved, refused = new_step(), new_step()
    await ledger.register(LOST, usd_per_hour=3_600.0)
    await ledger.say(admitted(saved), ledger.dispatched(saved, 0), ledger.ended(saved, 5, LOST, total_ms=0.0))
    await ledger.say(admitted(refused), ledger.dispatched(refused, 10))
    nothing = {"status": Status.FAILED, "usage": Usage(), "tokens": [], "text": "", "total_ms": 0.0}
    await ledger.say(ledger.ended(refused, 11, LOST, **nothing), ledger.dispatched(refused, 12, OTHER, attempt=2))
    await ledger.say(ledger.ended(refused, 13, attempt=2))
    assert ((await ledger.settled(saved)).usd, (await ledger.settled(refused)).usd) == (5.0, 0.0)
    cost = await ledger.cost()
    assert (cost.usd, cost.lost_usd, cost.unbilled) == (5.0, 0, 0), "a success is no waste"


@pytest.mark.parametrize(("reason", "wasted"), [(Reason.HANDED_OVER, 0), (Reason.PREEMPTED, 0), (Reason.NO_CAPACITY, 5.0)])
async def test_what_another_worker_went_on_from_is_no_waste(ledger: Ledger, reason: Reason, wasted: float) -> None:
    step = new_step()
    stopped = {"status": Status.FAILED, "retryable": True, "problem": Problem(reason=reason, message="it stopped"), "usd": 5.0}
    await ledger.say(admitted(step), ledger.dispatched(step, 0), ledger.dispatched(step, 4, OTHER, attempt=2))
    await ledger.say(ledger.ended(step, 5, LOST, **stopped), ledger.ended(step, 9, attempt=2, usd=7.0))
    await ledger.settled(step)
    cost = await ledger.cost()
    assert (cost.usd, cost.failed_usd + cost.superseded_usd + cost.cancelled_usd + cost.lost_usd) == (12.0, wasted)


async def test_a_workflow_shows_its_budget_what_it_has_spent_and_what_its_open_steps_have_reserved(ledger: Ledger) -> None:
    done, running, waiting = new_step(), new_step(), new_step()
    await ledger.register(LOST, usd_per_hour=3_600.0)
    await ledger.say(WorkflowOpened(workflow=WF, key="ours", budget_usd=10.0, time_ns=1))
    await ledger.say(WorkflowOpened(workflow=WF, key="ours", budget_usd=99.0, time_ns=2))
    await ledger.say(*(_reserving(step) for step in (done, running, waiting)))
    await ledger.say(ledger.dispatched(done, 0), ledger.dispatched(done, 1, OTHER, attempt=2), ledger.ended(done, 2, attempt=2, usd=0.5))
    failed = ledger.ended(running, 1, status=Status.FAILED, usd=0.25, retryable=True)
    await ledger.say(ledger.dispatched(running, 0, OTHER), failed, ledger.dispatched(running, 2, OTHER, attempt=2))
    await ledger.settled(done)
    await ledger.everything_recorded()
    record = await ledger.workflow()
    assert (record.budget_usd, record.spent_usd, record.estimated_usd) == (10.0, 1.75, 1.0)
    assert record.reserved_usd == 2.0 - 0.25 + 2.0
    await ledger.say(BudgetSet(workflow=WF, key="ours", budget_usd=20.0), BudgetSet(workflow=WF, key="theirs", budget_usd=1_000.0))
    await ledger.everything_recorded()
    assert (await ledger.workflow()).budget_usd == 20.0


async def test_a_workflow_without_a_budget_shows_what_it_has_spent(ledger: Ledger) -> None:
    step = new_step()
    await ledger.say(WorkflowOpened(workflow=WF, key="ours", time_ns=1), admitted(step), ledger.dispatched(step, 0, OTHER))
    await ledger.say(ledger.ended(step, 1, usd=0.5))
    await ledger.settled(step)
    record = await ledger.workflow()
    assert (record.budget_usd, record.spent_usd, record.reserved_usd) == (None, 0.5, 0)


def _reserving(step: StepId) -> StepAdmitted:
    """Two dollars."""
    return msgspec.structs.replace(admitted(step), reservation=Reservation(tokens=16, nano_usd=2_000_000_000))
