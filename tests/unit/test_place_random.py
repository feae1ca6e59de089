"""Each worker as likely as another, and nothing that a replay would not find again."""

from collections import Counter

from services.scheduler.policies.place_random import draw, highest_draw
from shared.contracts.ids import StepId, WorkerId
from shared.contracts.steps import StepDispatched
from tests.candidates import candidate
from tests.scheduler_world import World, one

WORKERS = [candidate(name) for name in "abcd"]


def test_a_draw_is_the_same_everywhere() -> None:
    assert draw(StepId("s"), WorkerId("a")).hex() == "ceb1240f0d82ab24"
    assert draw(StepId("s"), WorkerId("a")) != draw(StepId("s"), WorkerId("b"))


def test_all_workers_are_drawn_about_as_often() -> None:
    drawn = Counter(highest_draw(StepId(f"s{number}"), WORKERS).load.id for number in range(4_000))
    assert sorted(drawn) == ["a", "b", "c", "d"]
    assert all(900 < count < 1_100 for count in drawn.values())


def test_the_order_in_which_workers_are_named_does_not_matter() -> None:
    for number in range(50):
        step = StepId(f"s{number}")
        assert highest_draw(step, WORKERS).load.id == highest_draw(step, WORKERS[::-1]).load.id


def test_a_worker_that_goes_moves_only_the_steps_that_drew_it() -> None:
    for number in range(200):
        step = StepId(f"s{number}")
        before = highest_draw(step, WORKERS).load.id
        assert before == "d" or highest_draw(step, WORKERS[:3]).load.id == before


def test_the_scheduler_draws() -> None:
    world = World(placement="random")
    world.join("a", slots=100)
    world.join("b", slots=100)
    sent = [one(StepDispatched, world.route(f"s{number}", prompt=10)) for number in range(40)]
    assert {each.worker for each in sent} == {"a", "b"}
    assert all(each.worker == highest_draw(each.step, [candidate("a"), candidate("b")]).load.id for each in sent)
    assert sent[0].why.startswith("highest draw of 2: ")
