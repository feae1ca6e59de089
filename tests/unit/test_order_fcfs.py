"""First come, first served."""

from services.scheduler.policies.order_fcfs import place
from shared.contracts.steps import StepDispatched, StepRevoked
from tests.programs_of_calls import waits_s
from tests.scheduler_world import World, ended, one, only, registered


def test_arrival_alone_counts() -> None:
    assert sorted([place(3), place(1), place(2)]) == [place(1), place(2), place(3)]


def test_the_example_of_autellix_waits_18_units() -> None:
    """Figure 2b of the paper."""
    waits = waits_s("fcfs", {"A": [4, 3, 1, 1], "B": [3, 3, 4], "C": [1, 2], "D": [4]}, slots=2)
    assert waits == {"A": 3, "B": 4, "C": 7, "D": 4}
    assert sum(waits.values()) == 18


def test_priority_neither_passes_nor_preempts() -> None:
    world = World(order="fcfs")
    world.join("a", slots=1)
    world.route("running", output=100_000, priority=-90)
    assert not only(StepRevoked, world.route("late", priority=-5)) + only(StepRevoked, world.route("urgent", priority=90))
    last, order = "running", []
    for _ in range(2):
        last = one(StepDispatched, world.take(ended(last, 1, "a"))).step
        order.append(last)
    assert order == ["late", "urgent"]


def test_a_step_that_lost_its_attempt_keeps_its_place() -> None:
    world = World(order="fcfs")
    world.join("a", slots=1)
    world.route("first")
    world.route("second")
    world.take(registered("a", slots=1, epoch=2))
    again = one(StepDispatched, world.beat("a", epoch=2))
    assert (again.step, again.attempt) == ("first", 2)
