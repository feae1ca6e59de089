"""A clock that is set back stops nothing: leases end, loads are reported, and nobody is lost for it."""

import pytest

from shared.contracts.fleet import QueueReported
from shared.contracts.steps import StepDispatched, StepRevoked
from tests.scheduler_world import MS, World, one, only

BACK = pytest.mark.parametrize("back_s", [1, 60, 3_600])


def busy() -> World:
    """Three workers, each with a step that its beats list."""
    world = World()
    for worker in ("a", "b", "c"):
        world.join(worker, slots=1, prefill_tokens_per_s=10_000.0)
    for worker in ("a", "b", "c"):
        sent = one(StepDispatched, world.route(f"s{worker}"))
        world.beat(sent.worker, (sent.step, sent.attempt))
    return world


@BACK
def test_who_falls_silent_after_it_is_lost_within_the_lease(back_s: int) -> None:
    world = busy()
    world.now_ns -= back_s * 1_000 * MS
    world.take(world.beats["c"])
    outputs = world.live(world.config.lease_ms + 1_000, "a", "b")
    assert {each.worker for each in only(StepRevoked, outputs)} == {"a", "b"}


@BACK
def test_who_goes_on_beating_loses_nothing(back_s: int) -> None:
    world = busy()
    world.now_ns -= back_s * 1_000 * MS
    assert not only(StepRevoked, world.live(10_000))


@BACK
def test_loads_are_reported_all_the_same(back_s: int) -> None:
    world = busy()
    world.now_ns -= back_s * 1_000 * MS
    assert len(only(QueueReported, world.live(3_000))) >= 5


@BACK
def test_prompts_ahead_are_not_waited_for_until_the_clock_has_caught_up(back_s: int) -> None:
    world = World()
    world.join("a", prefill_tokens_per_s=10_000.0)
    world.route("long", prompt=5_000)
    world.now_ns -= back_s * 1_000 * MS
    assert "ms of prompts ahead" in (why := one(StepDispatched, world.route("next")).why)
    assert int(why.split(" ms of prompts ahead")[0].split(", ")[-1]) <= 500
