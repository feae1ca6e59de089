"""Attained service of programs whose steps run in parallel: the longest chain counts."""

from services.scheduler.policies.order_atlas import completed
from services.scheduler.policies.order_plas import Program
from shared.contracts.steps import StepDispatched
from tests.programs_of_calls import live, waits_s
from tests.scheduler_world import World, one

S = 1_000_000_000


def test_the_longest_chain_counts_and_a_shorter_one_does_not() -> None:
    """The recursion of the paper: a root begins at 0, others at the most of their parents' beginnings and run times."""
    program = Program()
    completed(program, 0, 2 * S)  # the root
    begin = program.service_ns
    for seconds in (5, 1, 3):  # three children
        completed(program, begin, seconds * S)
    assert (begin, program.service_ns) == (2 * S, 7 * S)
    completed(program, 7 * S, 1 * S)  # what joins them
    assert program.service_ns == 8 * S


def test_with_one_step_after_the_other_it_is_the_same_as_plas() -> None:
    programs = {"A": [4, 3, 1, 1], "B": [3, 3, 4], "C": [1, 2], "D": [4]}
    assert waits_s("atlas", programs, slots=2) == waits_s("plas", programs, slots=2)


def test_parallel_steps_count_once() -> None:
    world = World(order="atlas")
    world.join("a", slots=9)
    for round_ in range(2):
        three = [one(StepDispatched, world.route(f"p{round_}{number}", workflow="parallel")) for number in range(3)]
        world.reload()
        for number, each in enumerate(three):
            live(world, 1_000)
            world.end(each)
            assert world.state.ledger.programs["parallel"].service_ns == (3 * round_ + number + 1) * S  # type: ignore[index]


def test_a_wide_program_goes_before_one_with_a_longer_chain() -> None:
    world = World(order="atlas")
    world.join("a", slots=9)
    wide = [one(StepDispatched, world.route(f"wide{number}", workflow="wide")) for number in range(8)]
    deep = one(StepDispatched, world.route("deep", workflow="deep"))
    live(world, 1_000)
    for each in wide:
        world.end(each)
    live(world, 4_000)
    world.end(deep)
    full = [one(StepDispatched, world.route(f"full{number}", workflow="other")) for number in range(9)]
    world.route("d", workflow="deep")
    world.route("w", workflow="wide")
    assert one(StepDispatched, world.end(full[0])).step == "w"
