"""Where steps wait for room: in the scheduler, or in engines."""

from shared.contracts.outcomes import Reason
from shared.contracts.steps import StepClosed, StepDispatched
from tests.scheduler_world import World, ended, one, only


def sent(world: World, *steps: str, **about: int) -> list[int]:
    """How many steps each arrival sends out."""
    return [len(only(StepDispatched, world.route(step, **about))) for step in steps]


def test_by_default_no_step_waits_in_an_engine() -> None:
    world = World(worker_queue_max=3)
    world.join("a", slots=2)
    assert sent(world, "s0", "s1", "s2") == [1, 1, 0]


def test_a_worker_gets_as_many_as_run_and_may_wait_there_and_the_others_wait_here() -> None:
    world = World(queueing="worker", worker_queue_max=3)
    world.join("a", slots=2)
    assert sent(world, *(f"s{number}" for number in range(7))) == [1, 1, 1, 1, 1, 0, 0]
    assert one(StepDispatched, world.take(ended("s0", 1, "a"))).step == "s5"


def test_blocks_do_not_matter_as_long_as_the_step_fits_into_the_empty_cache() -> None:
    world = World(queueing="worker")
    world.join("a", slots=8, blocks=20)
    assert sent(world, "s0", "s1", "s2", prompt=200, output=30) == [1, 1, 1]  # 15 blocks of 16 tokens each
    closed = one(StepClosed, world.route("big", prompt=1_000))
    assert closed.problem.reason is Reason.CONTEXT_TOO_LONG


def test_what_a_worker_reports_to_wait_there_takes_places() -> None:
    world = World(queueing="worker", worker_queue_max=3)
    world.join("a", slots=2)
    world.beat("a", slots_used=2, waiting=2)
    assert sent(world, "s0", "s1") == [1, 0]


def test_the_queue_of_an_engine_is_what_llm_d_looks_at() -> None:
    world = World(queueing="worker", placement="llm_d")
    world.join("a", slots=2)
    world.join("b", slots=8)
    world.beat("a", slots_used=2, waiting=4)
    assert [one(StepDispatched, world.route(f"s{number}")).worker for number in range(5)] == ["b"] * 5


def test_steps_go_round_robin_however_busy_workers_are() -> None:
    world = World(queueing="worker", placement="round_robin")
    world.join("a", slots=1, blocks=10)
    world.join("b", slots=9)
    assert [one(StepDispatched, world.route(f"s{number}")).worker for number in range(6)] == ["a", "b", "a", "b", "a", "b"]


def test_back_in_the_scheduler_nothing_more_is_sent_until_there_is_room() -> None:
    world = World(queueing="worker", worker_queue_max=3)
    world.join("a", slots=1)
    assert sent(world, "s0", "s1", "s2") == [1, 1, 1]
    world.config = World(queueing="central").config
    world.reload()
    assert sent(world, "s3") == [0]
    assert not only(StepDispatched, world.take(ended("s0", 1, "a")) + world.take(ended("s1", 1, "a")))
    assert one(StepDispatched, world.take(ended("s2", 1, "a"))).step == "s3"
