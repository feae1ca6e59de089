"""Steps that give way to more urgent ones."""

from shared.contracts.envelope import Message
from shared.contracts.fleet import WorkerState
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Reason, Status
from shared.contracts.steps import StepDispatched, StepRevoked
from tests.scheduler_world import World, cancel, ended, matched, one, only

LONG = 8_000


def full_world(**config: int) -> World:
    """A worker with one slot, which a long step of priority 0 has."""
    world = World(**config)
    world.join("a", slots=1)
    world.route("low", output=LONG)
    world.beat("a", ("low", 1))
    return world


def preempted(outputs: list[Message]) -> list[StepRevoked]:
    return [each for each in only(StepRevoked, outputs) if each.reason is Reason.PREEMPTED]


def one_preempted(outputs: list[Message]) -> StepRevoked:
    [revoked] = preempted(outputs)
    return revoked


def test_an_urgent_step_takes_the_room_of_one_that_is_not() -> None:
    world = full_world()
    outputs = world.route("high", priority=10) + world.wait(100)
    revoked = one_preempted(outputs)
    assert (revoked.step, revoked.attempt, revoked.reason) == ("low", 1, Reason.PREEMPTED)
    assert one(StepDispatched, outputs).step == "high"


def test_the_stopped_step_goes_on_afterwards() -> None:
    world = full_world()
    high = one(StepDispatched, world.route("high", priority=10) + world.wait(100))
    assert not only(StepDispatched, world.take(ended("low", 1, "a", Status.FAILED, retryable=True, reason=Reason.PREEMPTED)))
    again = one(StepDispatched, world.end(high))
    assert (again.step, again.attempt, again.relieves) == ("low", 2, "")


def test_it_may_go_on_where_it_was() -> None:
    world = full_world()
    world.join("b", slots=1)
    world.beat("b", slots_used=1)
    high = one(StepDispatched, world.route("high", priority=10) + world.wait(100))
    again = one(StepDispatched, world.end(high))
    assert (again.step, again.worker) == ("low", "a"), "it did not fail there, and its cache is there"


def test_giving_way_is_no_failure() -> None:
    world = full_world(attempts_max=1)
    high = one(StepDispatched, world.route("high", priority=10) + world.wait(100))
    again = one(StepDispatched, world.end(high))
    assert again.step == "low"


def test_nobody_gives_way_for_a_little_urgency() -> None:
    world = full_world()
    assert not world.route("high", priority=9)
    assert not preempted(world.live(1_000))


def test_nobody_gives_way_where_it_is_switched_off() -> None:
    world = full_world(preempt_gap=0)
    world.route("high", priority=100)
    assert not preempted(world.live(1_000))


def test_a_step_that_is_nearly_done_is_not_stopped() -> None:
    world = World()
    world.join("a", slots=1)
    world.route("low", output=20)
    world.route("high", priority=100)
    assert not preempted(world.live(1_000))


def test_nobody_gives_way_twice_too_often() -> None:
    world = full_world()
    stopped = 0
    for number in range(4):
        outputs = world.route(f"high{number}", priority=10) + world.live(1_000)
        stopped += len(preempted(outputs))
        high = only(StepDispatched, outputs)
        if high:
            world.end(high[0])
            world.beat("a", ("low", stopped + 1))
    assert stopped == 2


def test_the_least_urgent_gives_way_and_among_equals_the_shortest() -> None:
    world = World()
    world.join("a", slots=3)
    world.route("lower", output=LONG, priority=-5, prompt=1_000)
    world.route("lowest", output=LONG, priority=-50, prompt=1_000)
    world.route("lowest-shorter", output=LONG, priority=-50, prompt=500)
    revoked = one_preempted(world.route("high", priority=10) + world.wait(100))
    assert revoked.step == "lowest-shorter"


def test_room_is_looked_for_before_anybody_gives_way() -> None:
    world = full_world()
    world.join("b", slots=1)
    outputs = world.route("high", priority=10) + world.wait(100) + world.take(matched("high", a=1))
    assert not preempted(outputs)
    assert one(StepDispatched, outputs).worker == "b"


def test_one_gives_way_for_each_that_needs_room() -> None:
    world = World()
    world.join("a", slots=2)
    world.route("low1", output=LONG)
    world.route("low2", output=LONG)
    outputs = world.route("high", priority=10) + world.wait(100)
    assert len(preempted(outputs)) == 1
    assert len(only(StepDispatched, outputs)) == 1


def test_a_step_is_not_stopped_where_that_makes_no_room() -> None:
    world = World()
    world.join("a", slots=4, blocks=100)
    world.route("low1", output=LONG, prompt=100)  # 7 blocks, and 32 for its output
    world.route("low2", output=LONG, prompt=100)
    world.route("high", priority=10, prompt=1_000)  # 63 and 1
    assert not preempted(world.live(1_000))


def test_a_cancelled_or_leaving_step_does_not_give_way() -> None:
    world = full_world()
    world.take(cancel("low"))
    assert not preempted(world.route("high", priority=10))
    leaving = full_world()
    leaving.beat("a", ("low", 1), state=WorkerState.DRAINING)
    assert not preempted(leaving.route("high", priority=10))


def test_what_runs_is_counted_by_priority() -> None:
    world = full_world()
    assert world.state.placed == {0: 1}
    high = one(StepDispatched, world.route("high", priority=10) + world.wait(100))
    assert world.state.placed == {10: 1}
    world.end(high)
    assert world.state.placed == {0: 1}
    world.take(ended("low", 2, "a"))
    assert world.state.placed == {}
    assert StepId("low") not in world.state.steps
