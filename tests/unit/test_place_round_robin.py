"""One worker after the other."""

from services.scheduler.policies.place_round_robin import next_in_turn
from shared.contracts.ids import WorkerId
from shared.contracts.steps import StepDispatched
from tests.candidates import candidate
from tests.scheduler_world import World, matched, one, only


def test_the_next_by_id_is_chosen_and_behind_the_last_the_first() -> None:
    three = [candidate("b"), candidate("c"), candidate("a")]
    assert [next_in_turn(three, WorkerId(last)).load.id for last in ("", "a", "b", "c", "bb")] == ["a", "b", "c", "a", "c"]


def test_load_and_cache_do_not_matter() -> None:
    assert next_in_turn([candidate("a", busy=9), candidate("b", cached=64)], WorkerId("")).load.id == "a"


def test_steps_go_round_and_who_has_no_room_is_passed_over() -> None:
    world = World(placement="round_robin")
    for worker, slots in (("a", 9), ("b", 2), ("c", 9)):
        world.join(worker, slots=slots)
    sent = [one(StepDispatched, world.route(f"s{number}")) for number in range(8)]
    assert [each.worker for each in sent] == ["a", "b", "c", "a", "b", "c", "a", "c"]
    assert sent[1].why.startswith("next in turn of 3: behind a, ")


def test_steps_that_are_placed_together_go_round_too() -> None:
    world = World(placement="round_robin")
    for worker in "abc":
        world.join(worker)
    world.take(matched("earlier"))
    assert not [each for number in range(5) for each in only(StepDispatched, world.route(f"s{number}"))]  # they wait for the registry
    assert [each.worker for each in only(StepDispatched, world.wait(5))] == ["a", "b", "c", "a", "b"]


def test_a_restart_does_not_begin_anew() -> None:
    world = World(placement="round_robin")
    for worker in "abc":
        world.join(worker)
    world.route("s0")
    world.reload()
    assert one(StepDispatched, world.route("s1")).worker == "b"
