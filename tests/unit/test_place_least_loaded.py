"""The worker with the fewest steps."""

from services.scheduler.policies.place_least_loaded import least_loaded
from shared.contracts.steps import StepDispatched
from tests.candidates import candidate
from tests.scheduler_world import World, matched, one


def test_the_fewest_steps_win_and_then_the_id() -> None:
    assert least_loaded([candidate("a", busy=3), candidate("c", busy=1), candidate("b", busy=2)]).load.id == "c"
    assert least_loaded([candidate("b", busy=1), candidate("a", busy=1)]).load.id == "a"


def test_neither_speed_nor_a_warm_cache_draws_a_step() -> None:
    world = World(placement="least_loaded")
    world.join("a", slots=8, decode_tokens_per_s=10.0)
    world.join("b", slots=8, decode_tokens_per_s=90.0)
    sent = []
    for number in range(4):
        world.take(matched(f"s{number}", b=6))
        sent.append(one(StepDispatched, world.route(f"s{number}", prompt=100)))
    assert [each.worker for each in sent] == ["a", "b", "a", "b"]
    assert sent[0].why.startswith("least loaded of 2: ")


def test_what_a_worker_reports_beyond_our_placements_counts() -> None:
    world = World(placement="least_loaded")
    world.join("a", slots=8)
    world.join("b", slots=8)
    world.beat("a", slots_used=2)
    assert [one(StepDispatched, world.route(f"s{number}")).worker for number in range(3)] == ["b", "b", "a"]
