"""First come, first served, by programs."""

from services.scheduler.policies.order_program_fcfs import place
from shared.contracts.steps import StepDispatched
from tests.programs_of_calls import waits_s
from tests.scheduler_world import World, one


def test_the_program_that_came_first_then_its_steps_in_turn() -> None:
    assert sorted([place(2, 3), place(1, 9), place(1, 4)]) == [place(1, 4), place(1, 9), place(2, 3)]


def test_long_programs_that_came_first_end_first() -> None:
    """The programs of Autellix's figure 2: A and B never wait, and C and D for all of B."""
    waits = waits_s("program_fcfs", {"A": [4, 3, 1, 1], "B": [3, 3, 4], "C": [1, 2], "D": [4]}, slots=2)
    assert waits == {"A": 0, "B": 0, "C": 9, "D": 10}


def test_a_later_step_of_an_earlier_program_passes_and_a_restart_knows_it() -> None:
    world = World(order="program_fcfs")
    world.join("a", slots=1)
    running = one(StepDispatched, world.route("a0", workflow="early"))
    for step, workflow, priority in (("b0", "late", 50), ("alone", "", 0), ("a1", "early", -50), ("b1", "late", 0)):
        world.route(step, workflow=workflow, priority=priority)
    world.reload()
    order = []
    for _ in range(4):
        running = one(StepDispatched, world.end(running))
        order.append(running.step)
    assert order == ["a1", "b0", "b1", "alone"]
