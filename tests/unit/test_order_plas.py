"""Program-level attained service."""

from typing import Any

from services.scheduler.ordering import PROGRAMS_MAX
from services.scheduler.policies.order_plas import FIRST_NS, LEVELS, STARVED, Program, completed, level, starves
from shared.contracts.outcomes import Status
from shared.contracts.steps import StepDispatched
from tests.programs_of_calls import live, waits_s
from tests.scheduler_world import World, ended, one, routed

S = 1_000_000_000


def test_a_program_has_attained_the_sum_of_its_steps() -> None:
    program = Program()
    for seconds in (4, 3, 1):
        completed(program, seconds * S)
    assert program.service_ns == 8 * S


def test_each_queue_is_twice_as_wide_as_the_one_before() -> None:
    assert [level(FIRST_NS * twice // 2) for twice in (0, 1, 2, 3, 4, 7, 8, 15, 16)] == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert level(10**20) == LEVELS - 1


def test_who_waited_long_for_what_it_was_served_starves() -> None:
    program = Program(service_ns=10 * S, waited_ns=30 * S)
    assert not starves(program, STARVED * 10 * S - 30 * S - 1)
    assert starves(program, STARVED * 10 * S - 30 * S)


def test_the_example_of_autellix_waits_14_units() -> None:
    """Figure 2d of the paper has 12: there, A and B are stopped so that D runs at once. Here nobody is. First come first served: 18."""
    waits = waits_s("plas", {"A": [4, 3, 1, 1], "B": [3, 3, 4], "C": [1, 2], "D": [4]}, slots=2)
    assert waits == {"A": 4, "B": 3, "C": 3, "D": 4}
    assert sum(waits.values()) == 14


def served(world: World, workflow: str, seconds: int, *, step: str = "", **about: Any) -> None:
    """A step of the workflow runs for so long."""
    sent = one(StepDispatched, world.route(step or f"{workflow}-served", workflow=workflow, **about))
    live(world, seconds * 1_000)
    world.end(sent)


def order_of(world: World, steps: list[tuple[str, str]]) -> list[str]:
    """In which the steps (with their workflows) go where one runs at a time, and all wait for it."""
    last, order = one(StepDispatched, world.route("running", workflow="other")), []
    for step, workflow in steps:
        world.route(step, workflow=workflow, priority=len(order))
    for _ in steps:
        last = one(StepDispatched, world.end(last))
        order.append(str(last.step))
    return order


def test_programs_that_were_served_less_go_first() -> None:
    world = World(order="plas")
    world.join("a", slots=1)
    served(world, "long", 9)
    served(world, "short", 3)
    world.reload()
    assert order_of(world, [("l", "long"), ("s", "short"), ("n", "new"), ("alone", "")]) == ["n", "alone", "s", "l"]


def test_parallel_steps_of_a_program_add_up() -> None:
    world = World(order="plas")
    world.join("a", slots=9)
    two = [one(StepDispatched, world.route(f"p{number}", workflow="parallel")) for number in range(2)]
    live(world, 3_000)
    for each in two:
        world.end(each)
    assert world.state.ledger.programs["parallel"].service_ns == 6 * S  # type: ignore[index]


def test_a_step_keeps_the_queue_that_it_came_into() -> None:
    world = World(order="plas")
    world.join("a", slots=1)
    first = one(StepDispatched, world.route("first", workflow="w"))
    world.route("second", workflow="w")
    live(world, 5_000)
    assert one(StepDispatched, world.end(first)).step == "second"
    assert world.state.steps["second"].attained_ns == 0  # type: ignore[index]


def test_a_step_that_lost_its_attempt_is_back_in_the_queue_that_it_came_into() -> None:
    world = World(order="plas")
    world.join("a", slots=2)
    first, second = [one(StepDispatched, world.route(step, workflow="w")) for step in ("first", "second")]
    live(world, 5_000)
    world.end(first)
    world.wait(100)  # nothing is sent to the worker before it is heard again
    world.end(second, Status.FAILED, retryable=True)
    assert world.state.queues["m"].keys == [(0, 2, "second")]  # type: ignore[index]


def test_what_was_lost_does_not_count() -> None:
    world = World(order="plas")
    world.join("a", slots=1)
    sent = one(StepDispatched, world.route("s", workflow="w"))
    live(world, 5_000)
    world.end(sent, Status.FAILED, retryable=True)
    assert world.state.ledger.programs["w"].service_ns == 0  # type: ignore[index]


def test_who_starves_is_promoted_behind_those_who_are_first_in_line() -> None:
    world = World(order="plas")
    world.join("a", slots=1)
    served(world, "long", 5)
    running = one(StepDispatched, world.route("running", workflow="other"))
    world.route("l", workflow="long")
    world.route("n0", workflow="new0")
    live(world, STARVED * 5_000 - 1_000)
    assert [key[2] for key in world.state.queues["m"].keys] == ["n0", "l"]  # type: ignore[index]
    live(world, 2_000)
    world.route("n1", workflow="new1")
    world.reload()
    assert [key[2] for key in world.state.queues["m"].keys] == ["n0", "l", "n1"]  # type: ignore[index]
    assert one(StepDispatched, world.end(running)).step == "n0"


def test_programs_are_forgotten_when_they_are_many() -> None:
    world = World(order="plas", queue_max=100_000)
    for number in range(PROGRAMS_MAX + 5):
        world.state.now_ns = world.now_ns
        world.take(routed(f"s{number}", workflow=f"w{number}"))
        world.take(ended(f"s{number}", 1, "a"))
    assert len(world.state.ledger.programs) == PROGRAMS_MAX
