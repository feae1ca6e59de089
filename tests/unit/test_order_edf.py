"""Earliest deadline first."""

from services.scheduler.policies.order_edf import NEVER, place
from shared.contracts.steps import StepDispatched
from tests.scheduler_world import MS, World, ended, one


def test_the_earliest_deadline_then_arrival_and_none_at_all_last() -> None:
    keys = {"none": place(0, 1), "late": place(900, 2), "soon": place(300, 3), "soon too": place(300, 4)}
    assert sorted(keys, key=keys.__getitem__) == ["soon", "soon too", "late", "none"]
    assert place(0, 7) == (NEVER, 7)


def test_steps_go_by_deadline_whatever_their_priority() -> None:
    world = World(order="edf")
    world.join("a", slots=1)
    world.route("running")
    for step, deadline_ms, priority in (("urgent", 0, 90), ("late", 60_000, 50), ("soon", 30_000, -50)):
        world.route(step, priority=priority, deadline_ns=deadline_ms and world.now_ns + deadline_ms * MS)
    world.reload()
    last, order = "running", []
    for _ in range(3):
        last = one(StepDispatched, world.take(ended(last, 1, "a"))).step
        order.append(last)
    assert order == ["soon", "late", "urgent"]
