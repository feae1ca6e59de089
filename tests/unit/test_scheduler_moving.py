"""Hand-over before a planned loss: what moves away from workers that leave, when, and how the scheduler counts it."""

import msgspec
import pytest

from services.scheduler.load import Load
from services.scheduler.policies.filter_warming import can_warm
from services.scheduler.policies.leave import stays
from shared.contracts.fleet import RunningStep, WorkerState
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Reason, Status
from shared.contracts.steps import StepClosed, StepDispatched, StepRevoked
from tests.scheduler_world import MS, World, beat, cancel, ended, gone, matched, one, only

LONG = 8_000  # output tokens: at 40 a second more than a drain lasts
ROOM = 100_000  # blocks


def on_leaving_worker(**config: int) -> tuple[World, StepDispatched]:
    """A long step that was moved from "a", which leaves, to "b"."""
    world = World(**config)
    world.join("a")
    world.route("s", output=LONG)
    world.join("b")
    world.beat("a", ("s", 1))
    return world, one(StepDispatched, world.leave("a"))


def test_a_long_step_moves_while_its_worker_goes_on() -> None:
    world, moved = on_leaving_worker()
    assert (moved.worker, moved.attempt, moved.relieves) == ("b", 2, "a")
    assert moved.why.startswith("takes over from a; ")
    assert not only(StepRevoked, world.beat("a", ("s", 1), state=WorkerState.DRAINING)), (
        "the old one must not stop before the new one is warm"
    )
    assert world.state.workers["b"].placed == {"s": 2}


def test_a_step_that_ends_soon_is_finished_where_it_is() -> None:
    world = World()
    world.join("a")
    world.route("s", output=100)
    world.join("b")
    assert not only(StepDispatched, world.leave("a"))
    assert not only(StepDispatched, world.beat("a", ("s", 1), state=WorkerState.DRAINING))


def test_a_step_that_would_end_soon_moves_all_the_same_when_its_worker_has_no_time() -> None:
    world = World()
    world.join("a")
    world.route("s", output=100)
    world.join("b")
    assert one(StepDispatched, world.leave("a", in_s=2)).worker == "b"


def test_a_step_moves_when_room_appears() -> None:
    world = World()
    world.join("a")
    world.route("s", output=LONG)
    world.join("b", slots=1)
    world.beat("b", slots_used=1)
    assert not only(StepDispatched, world.leave("a"))
    assert one(StepDispatched, world.beat("b", slots_used=0)).relieves == "a"


def test_what_moves_goes_before_what_waits() -> None:
    world = World()
    world.join("a")
    world.route("s", output=LONG)
    world.join("b", slots=1)
    world.beat("b", slots_used=1)
    world.leave("a")
    world.route("later")
    assert one(StepDispatched, world.beat("b", slots_used=0)).step == "s"


def test_a_move_is_no_failure() -> None:
    world, moved = on_leaving_worker(attempts_max=1)
    assert one(StepDispatched, world.beat("b", ("s", 2), state=WorkerState.DRAINING) + world.join("c") + world.leave("b")).attempt == 3
    assert not only(StepClosed, world.take(ended("s", moved.attempt, "b", Status.FAILED, retryable=True, reason=Reason.HANDED_OVER)))


def test_when_the_new_worker_fails_the_old_one_is_still_the_one_to_relieve() -> None:
    world, moved = on_leaving_worker()
    world.join("c")
    again = one(StepDispatched, world.end(moved, Status.FAILED, retryable=True))
    assert (again.worker, again.attempt, again.relieves) == ("c", 3, "a")
    assert not only(StepRevoked, world.beat("a", ("s", 1), state=WorkerState.DRAINING))


def test_when_the_new_worker_dies_the_old_one_is_still_the_one_to_relieve() -> None:
    world, _ = on_leaving_worker()
    world.join("c")
    again = one(StepDispatched, world.take(gone("b")))
    assert (again.worker, again.attempt, again.relieves) == ("c", 3, "a")


def test_when_the_new_worker_leaves_as_well_the_old_one_is_still_the_one_to_relieve() -> None:
    world, _ = on_leaving_worker(attempts_max=2)
    world.join("c")
    outputs = world.leave("b")
    revoked, again = one(StepRevoked, outputs), one(StepDispatched, outputs)
    assert (revoked.worker, revoked.attempt, revoked.reason) == ("b", 2, Reason.HANDED_OVER)
    assert (again.worker, again.attempt, again.relieves) == ("c", 3, "a")
    assert (world.state.workers["b"].placed, world.state.workers["c"].placed) == ({}, {"s": 3})
    assert not only(StepRevoked, world.beat("a", ("s", 1), state=WorkerState.DRAINING))
    world.beat("c", ("s", 3))
    assert not only(StepClosed, world.live(3_500, "c")), "c is lost, and it may be repeated: two moves are no two failures"


def test_a_step_that_has_gone_on_is_handed_over_by_whoever_has_it_now() -> None:
    world, _ = on_leaving_worker()
    world.take(ended("s", 1, "a", Status.FAILED, retryable=True, reason=Reason.HANDED_OVER))
    world.join("c")
    outputs = world.leave("b")
    assert not only(StepRevoked, outputs)
    assert one(StepDispatched, outputs).relieves == "b"


def test_once_the_new_attempt_has_output_nobody_else_is_relieved_also_where_the_old_one_died() -> None:
    world, _ = on_leaving_worker()
    world.take(gone("a"))
    world.beat("b", ("s", 2))  # with output
    world.join("c")
    outputs = world.leave("b")
    assert not only(StepRevoked, outputs)
    assert one(StepDispatched, outputs).relieves == "b"


def test_once_the_old_attempt_has_ended_nobody_is_relieved() -> None:
    world, moved = on_leaving_worker()
    world.take(ended("s", 1, "a", Status.FAILED, retryable=True, reason=Reason.HANDED_OVER))
    assert world.state.steps[StepId("s")].worker == "b", "the step is with the new one"
    world.join("c")
    assert one(StepDispatched, world.end(moved, Status.FAILED, retryable=True)).relieves == ""


def test_the_old_worker_may_still_finish_the_step() -> None:
    world, _ = on_leaving_worker()
    revoked = one(StepRevoked, world.take(ended("s", 1, "a")))
    assert (revoked.worker, revoked.attempt, revoked.reason) == ("b", 2, Reason.SUPERSEDED)
    assert world.state.steps == {}


def test_both_workers_are_told_of_a_cancellation() -> None:
    world, _ = on_leaving_worker()
    told = only(StepRevoked, world.take(cancel("s")))
    assert [(each.worker, each.attempt, each.reason) for each in told] == [("b", 2, Reason.CANCELLED), ("a", 1, Reason.CANCELLED)]
    world.take(ended("s", 1, "a", Status.CANCELLED))
    assert world.state.steps == {}


def test_a_step_that_is_cancelled_while_it_waits_for_a_new_worker_stops_on_the_old_one() -> None:
    world, _ = on_leaving_worker()
    world.take(gone("b"))
    outputs = world.take(cancel("s"))
    assert one(StepClosed, outputs).status is Status.CANCELLED
    assert [(each.worker, each.attempt) for each in only(StepRevoked, outputs)] == [("a", 1)]


def test_a_cancelled_step_does_not_move() -> None:
    world = World()
    world.join("a")
    world.route("s", output=LONG)
    world.take(cancel("s"))
    world.join("b")
    assert not only(StepDispatched, world.leave("a"))


def test_survivors_warm_a_few_at_a_time() -> None:
    world = World()
    world.join("a", slots=8, blocks=ROOM)
    for number in range(8):
        world.route(f"s{number}", output=LONG, prompt=1_500)  # 4,000 tokens a second where nothing is known: 2.7 in a second
    world.join("b", slots=16, blocks=ROOM)
    first = only(StepDispatched, world.leave("a", slots=8, blocks=ROOM))
    assert [moved.step for moved in first] == ["s0", "s1"]
    assert not only(StepDispatched, world.beat("a", *((f"s{number}", 1) for number in range(2, 8)), state=WorkerState.DRAINING))
    second = only(StepDispatched, world.beat("b", ("s0", 2), ("s1", 2)))  # with output: they are warm
    assert [moved.step for moved in second] == ["s2", "s3"]


def with_a_holder(held_blocks: int, holder_slots: int = 8) -> World:
    """A step of 100 blocks on "a"; "busy" runs four others, and holds so many of the step's blocks; "idle" holds none."""
    world = World()
    world.join("a", slots=8, blocks=ROOM)
    world.take(matched("s", busy=held_blocks))
    world.route("s", output=LONG, prompt=1_600)
    world.join("busy", slots=holder_slots, blocks=ROOM)
    world.join("idle", slots=8, blocks=ROOM)
    world.beat("busy", slots_used=4)
    return world


def test_a_step_moves_to_a_worker_that_holds_its_prompt_even_if_another_one_would_finish_it_sooner() -> None:
    assert one(StepDispatched, with_a_holder(95).leave("a", slots=8, blocks=ROOM)).worker == "busy"


def test_a_worker_that_holds_a_part_of_the_prompt_is_no_better_than_others() -> None:
    assert one(StepDispatched, with_a_holder(50).leave("a", slots=8, blocks=ROOM)).worker == "idle"


def test_a_step_moves_elsewhere_when_who_holds_its_prompt_has_no_room() -> None:
    assert one(StepDispatched, with_a_holder(95, holder_slots=4).leave("a", slots=8, blocks=ROOM)).worker == "idle"


def test_steps_of_all_leaving_workers_find_a_place_in_the_end() -> None:
    world = World()
    for worker in ("a", "b"):
        world.join(worker, slots=8, blocks=ROOM)
    moved: set[str] = set()
    for number in range(16):
        world.route(f"s{number}", output=LONG, prompt=1_500)
    world.join("c", slots=32, blocks=ROOM)
    for worker in ("a", "b"):
        moved |= {dispatched.step for dispatched in only(StepDispatched, world.leave(worker, slots=8, blocks=ROOM))}
    for _ in range(16):
        outputs = world.beat("c", *((step, 2) for step in sorted(moved)))
        moved |= {dispatched.step for dispatched in only(StepDispatched, outputs)}
    assert moved == {f"s{number}" for number in range(16)}


def test_a_move_survives_a_restart_of_the_scheduler() -> None:
    world, moved = on_leaving_worker()
    world.reload()
    world.join("c")
    assert one(StepDispatched, world.end(moved, Status.FAILED, retryable=True)).relieves == "a"


@pytest.mark.parametrize(
    ("produced", "left_s", "expected"), [(0, 30.0, False), (7_900, 30.0, True), (7_900, 4.0, False), (8_000, 0.0, True)]
)
def test_what_stays(produced: int, left_s: float, expected: bool) -> None:
    world = World()
    world.join("a")
    world.route("s", output=LONG)
    step = world.state.steps[StepId("s")]
    step.produced = produced
    assert stays(step, Load(world.state.workers["a"]), left_s) is expected


def test_an_idle_survivor_takes_even_a_prompt_that_takes_long() -> None:
    world = World()
    world.join("a")
    world.route("s", output=LONG, prompt=8_000)
    world.join("b")
    assert one(StepDispatched, world.leave("a")).worker == "b"
    assert can_warm(world.state.steps[StepId("s")], Load(world.state.workers["a"])) is True


def test_a_worker_that_is_no_longer_known_is_not_among_those_that_leave() -> None:
    world, _ = on_leaving_worker()
    world.take(gone("a"))
    assert world.state.leaving == {}
    assert not only(StepDispatched, world.take(beat("b", ("s", 2))))


def test_the_deadline_stops_both() -> None:
    world = World()
    world.join("a")
    world.route("s", output=LONG, deadline_ns=world.now_ns + 5_000 * MS)
    world.join("b")
    world.beat("a", ("s", 1))
    world.leave("a")
    world.beats["b"] = msgspec.structs.replace(beat("b", ("s", 2)), running=[RunningStep(StepId("s"), 2, 0)])  # it still warms up
    told = [each for each in only(StepRevoked, world.live(5_500)) if each.reason is Reason.DEADLINE_PASSED]
    assert [(each.worker, each.attempt) for each in told] == [("b", 2), ("a", 1)]
