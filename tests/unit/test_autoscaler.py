"""The autoscaler's rules on plain data."""

import msgspec

from services.autoscaler.config import AutoscalerConfig, PoolConfig
from services.autoscaler.decide import MACHINE, wake_ns
from services.autoscaler.policies.ratio import wanted
from services.autoscaler.state import Sample, State
from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import (
    Capacity,
    ModelCard,
    QueueReported,
    ScaleTargetSet,
    WorkerBeat,
    WorkerGone,
    WorkerRegistered,
    WorkerState,
)
from shared.contracts.ids import CellId, ModelName, WorkerId
from shared.core.machine import step

CELL = CellId("local")
SECOND = 1_000_000_000
CONFIG = AutoscalerConfig(pools={"default": PoolConfig(min=1, max=5, scale_down_after_s=60, scale_up_after_s=5, step_up_max=2)})


def registered(name: str, *, cell: CellId = CELL, epoch: int = 1) -> WorkerRegistered:
    card = ModelCard(name=ModelName("m"), tokenizer="t", vocab_size=10, context_tokens=100, block_tokens=16)
    return WorkerRegistered(
        worker=WorkerId(name),
        cell=cell,
        pool="default",
        epoch=epoch,
        state=WorkerState.READY,
        card=card,
        capacity=Capacity(blocks=100, slots=10),
    )


def beat(name: str, used: int) -> WorkerBeat:
    return WorkerBeat(worker=WorkerId(name), cell=CELL, epoch=1, state=WorkerState.READY, slots_used=used)


def queue(depth: int) -> QueueReported:
    return QueueReported(cell=CELL, model=ModelName("m"), depth=depth, waiting_tokens=0, running=0, slots=0, workers=0)


class Pool:
    """Feeds the machine and keeps the time."""

    def __init__(self) -> None:
        self.state = MACHINE.start(CONFIG)
        self.now = 1_000 * SECOND

    def take(self, *events: Message) -> None:
        for event in events:
            step(MACHINE, self.state, event, self.now, CONFIG)

    def tick(self, seconds: float = 2) -> list[int]:
        self.now += int(seconds * SECOND)
        told = step(MACHINE, self.state, Tick(), self.now, CONFIG)
        return [message.workers for message in told if isinstance(message, ScaleTargetSet)]


def sample(workers: int, used: int, depth: int = 0) -> Sample:
    return Sample(0, workers, 0, 10 * workers, used, depth)


def test_the_ratio_rule_by_worked_examples() -> None:
    pool = PoolConfig(min=1, max=10, utilisation=0.7, queue_per_worker=8)
    assert wanted(sample(2, 14), pool) == 2, "at the goal nothing changes"
    assert wanted(sample(2, 15), pool) == 2, "nor within the tolerance"
    assert wanted(sample(2, 20), pool) == 3, "20 / 14 of 2"
    assert wanted(sample(2, 0), pool) == 1, "the minimum"
    assert wanted(sample(2, 20, depth=17), pool) == 6, "3 for the use and 3 for the queue"
    assert wanted(sample(10, 100, depth=500), pool) == 10, "the maximum"


def test_a_pool_is_first_told_its_present_size() -> None:
    pool = Pool()
    pool.take(registered("a"), registered("b"))
    assert pool.tick() == [2]
    assert pool.tick() == []


def test_load_adds_workers_in_steps_and_with_pauses() -> None:
    pool = Pool()
    pool.take(registered("a"))
    assert pool.tick() == [1]
    pool.tick(6)
    pool.take(beat("a", 10), queue(40))
    assert pool.tick() == [3]
    pool.take(beat("a", 10), queue(40))
    assert pool.tick() == []
    pool.take(beat("a", 10), queue(40))
    assert pool.tick(4) == [5]


def test_a_lull_removes_nobody_but_a_long_one_does() -> None:
    pool = Pool()
    pool.take(registered("a"), registered("b"), registered("c"))
    assert pool.tick() == [3]
    told = []
    for _ in range(40):
        pool.take(beat("a", 1), beat("b", 1), beat("c", 1), queue(0))
        told.append((pool.now, pool.tick()))
    changes = [(now, numbers) for now, numbers in told if numbers]
    assert changes[0][1] == [1]
    assert changes[0][0] - 1_000 * SECOND >= 58 * SECOND


def test_one_busy_moment_in_the_window_keeps_the_workers() -> None:
    pool = Pool()
    pool.take(registered("a"), registered("b"), registered("c"))
    pool.tick()
    for index in range(60):
        used = 9 if index % 20 == 0 else 0
        pool.take(beat("a", used), beat("b", used), beat("c", used), queue(0))
        assert [number for number in pool.tick() if number < 3] == []


def test_workers_that_went_or_fell_silent_do_not_count() -> None:
    pool = Pool()
    pool.take(registered("a"), registered("b"))
    pool.tick()
    pool.take(WorkerGone(worker=WorkerId("a"), cell=CELL, epoch=1))
    pool.tick(20)
    assert pool.state.samples["default"][-1].workers == 0


def test_a_pool_without_workers_is_told_its_minimum_once_they_are_not_just_starting() -> None:
    pool = Pool()
    assert pool.tick() == []
    assert pool.tick(59) == []
    assert pool.tick(1) == [1]
    assert pool.tick() == []


def test_workers_of_other_cells_are_not_ours() -> None:
    pool = Pool()
    pool.take(registered("a"), registered("far", cell=CellId("far")))
    assert pool.tick() == [1]
    assert list(pool.state.workers) == ["a"]


def test_what_is_left_of_an_earlier_life_of_a_worker_changes_nothing() -> None:
    pool = Pool()
    pool.take(registered("a", epoch=2), registered("a", epoch=1), beat("a", 9))
    pool.take(WorkerGone(worker=WorkerId("a"), cell=CELL, epoch=1))
    pool.tick()
    assert (pool.state.workers[WorkerId("a")].epoch, pool.state.samples["default"][-1].slots_used) == (2, 0)


def test_what_has_long_been_silent_is_forgotten() -> None:
    pool = Pool()
    pool.take(registered("a"), queue(5))
    pool.tick(601)
    assert (pool.state.workers, pool.state.queues) == ({}, {})


def test_a_target_is_told_again_for_late_actuators() -> None:
    pool = Pool()
    pool.take(registered("a"))
    assert pool.tick() == [1]
    pool.take(registered("a"))
    assert pool.tick(CONFIG.repeat_s) == [1]


def test_state_survives_a_snapshot_and_decides_the_same() -> None:
    pool = Pool()
    pool.take(registered("a"), registered("b"), beat("a", 10), beat("b", 10), queue(30))
    pool.tick()
    other = Pool()
    other.state, other.now = msgspec.json.decode(msgspec.json.encode(pool.state), type=State), pool.now
    assert other.state == pool.state
    for each in (pool, other):
        each.take(beat("a", 10), beat("b", 10), queue(30))
    assert pool.tick(6) == other.tick(6) != []
    assert wake_ns(pool.state, CONFIG) == pool.now + 2 * SECOND
