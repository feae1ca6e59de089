"""Which worker a step goes to, and when."""

import msgspec

from shared.contracts.fleet import RunningStep, WorkerState
from shared.contracts.ids import StepId, WorkerId
from shared.contracts.outcomes import Reason, Status
from shared.contracts.output import Output
from shared.contracts.steps import StepClosed, StepDispatched
from tests.scheduler_world import MS, World, beat, ended, matched, one, only, registered


def test_a_step_is_dispatched_at_once_to_a_ready_worker_with_room() -> None:
    world = World()
    world.join("a")
    dispatched = one(StepDispatched, world.route("s"))
    assert (dispatched.step, dispatched.worker, dispatched.attempt, dispatched.cell) == ("s", "a", 1, "local")
    assert (dispatched.tenant, dispatched.workflow, dispatched.trace) == ("t", "w", "00-trace")
    assert dispatched.why.startswith("least finish of 1:")


def test_a_step_waits_until_a_worker_joins() -> None:
    world = World()
    assert only(StepDispatched, world.route("s")) == []
    assert one(StepDispatched, world.join("a")).step == "s"


def test_a_registration_alone_makes_no_worker_ready() -> None:
    world = World()
    world.take(registered("a"))
    assert only(StepDispatched, world.route("s")) == []
    assert one(StepDispatched, world.beat("a")).worker == "a"


def test_workers_of_other_models_cells_and_states_get_nothing() -> None:
    world = World()
    world.join("loading", state=WorkerState.LOADING)
    world.beat("loading", state=WorkerState.LOADING)
    world.join("draining")
    world.beat("draining", state=WorkerState.DRAINING)
    assert only(StepDispatched, world.route("s")) == []
    world.join("a")
    assert only(StepDispatched, world.route("other", model="another")) == []


def test_a_worker_gets_no_more_steps_than_it_has_slots() -> None:
    world = World()
    world.join("a", slots=2)
    sent = [only(StepDispatched, world.route(f"s{n}")) for n in range(3)]
    assert [len(each) for each in sent] == [1, 1, 0]
    assert one(StepDispatched, world.end(sent[0][0])).step == "s2"


def test_a_worker_gets_no_more_steps_than_its_blocks_hold() -> None:
    world = World()
    world.join("a", blocks=20)
    assert only(StepDispatched, world.route("big", prompt=200, output=30))  # 15 blocks of 16 tokens
    assert not only(StepDispatched, world.route("next", prompt=100, output=1))  # 7 blocks
    assert one(StepDispatched, world.take(ended("big", 1, "a"))).step == "next"


def test_what_a_worker_reports_beyond_our_placements_takes_room_too() -> None:
    world = World()
    world.join("a", slots=4, blocks=100)
    world.beat("a", slots_used=4)
    assert not only(StepDispatched, world.route("s"))
    world.beat("a", slots_used=0, blocks_used=95)
    assert one(StepDispatched, world.beat("a", slots_used=3, blocks_used=90)).step == "s"


def test_attempts_that_the_beat_lists_are_not_counted_twice() -> None:
    world = World()
    world.join("a", slots=2)
    world.route("s0")
    world.beat("a", ("s0", 1), slots_used=1)
    assert one(StepDispatched, world.route("s1"))


def test_a_step_that_fits_into_no_worker_is_ended_and_holds_nobody_back() -> None:
    world = World()
    world.join("a", blocks=10)
    outputs = world.route("big", prompt=1000)
    closed, end = one(StepClosed, outputs), one(Output, outputs).end
    assert (closed.status, closed.problem.reason) == (Status.FAILED, Reason.CONTEXT_TOO_LONG)
    assert end is not None
    assert end.problem == closed.problem
    assert one(StepDispatched, world.route("small"))


def test_the_head_of_the_queue_is_not_passed_by_smaller_steps() -> None:
    world = World()
    world.join("a", blocks=20)
    world.route("first", prompt=150)
    assert not only(StepDispatched, world.route("big", prompt=250))
    assert not only(StepDispatched, world.route("small", prompt=16))
    assert [each.step for each in only(StepDispatched, world.take(ended("first", 1, "a")))] == ["big", "small"]


def test_higher_priority_goes_first_then_arrival() -> None:
    world = World()
    world.join("a", slots=1)
    world.route("running")
    for step, priority in (("low", -1), ("first", 0), ("second", 0), ("high", 5)):
        world.route(step, priority=priority)
    order = []
    last = "running"
    for _ in range(4):
        last = one(StepDispatched, world.take(ended(last, 1, "a"))).step
        order.append(last)
    assert order == ["high", "first", "second", "low"]


def test_steps_spread_over_equal_workers() -> None:
    world = World()
    world.join("a")
    world.join("b")
    placed = [one(StepDispatched, world.route(f"s{n}")).worker for n in range(4)]
    assert placed == ["a", "b", "a", "b"]


def test_a_faster_worker_is_preferred_until_it_is_crowded() -> None:
    world = World()
    world.join("fast", slots=4, prefill_tokens_per_s=10_000.0, decode_tokens_per_s=60.0)
    world.join("slow", slots=4, prefill_tokens_per_s=10_000.0, decode_tokens_per_s=40.0)
    placed = [one(StepDispatched, world.route(f"s{n}", output=200)).worker for n in range(4)]
    assert placed == ["fast", "fast", "slow", "fast"]


def test_a_cached_prefix_draws_a_step_and_is_said_so() -> None:
    world = World()
    world.join("a")
    world.join("b")
    world.take(matched("s", b=50))
    dispatched = one(StepDispatched, world.route("s", prompt=1000))
    assert (dispatched.worker, dispatched.cached_tokens) == ("b", 800)
    assert "800 tokens cached" in dispatched.why


def test_a_long_queue_of_prefill_outweighs_a_warm_cache() -> None:
    world = World()
    world.join("a")
    world.join("b")
    world.take(matched("heavy", b=1))
    assert one(StepDispatched, world.route("heavy", prompt=4000)).worker == "b"
    world.take(matched("s", b=10))
    assert one(StepDispatched, world.route("s", prompt=1000)).worker == "a"


def test_prefill_that_a_beat_shows_done_is_no_backlog() -> None:
    world = World()
    world.join("a", slots=8)
    world.join("b", slots=8)
    world.take(matched("heavy", a=1))
    world.route("heavy", prompt=4000)
    world.beat("a", ("heavy", 1))
    world.take(matched("s", a=10))
    assert one(StepDispatched, world.route("s", prompt=1000)).worker == "a"


def two_of_which_one_computes() -> World:
    """Worker `a` has begun with a prompt that takes 0.4 s by its rate; `s`, which comes next, is found in its cache by 80 ms."""
    world = World()
    for worker in ("a", "b"):
        world.join(worker, slots=8, prefill_tokens_per_s=10_000.0)
    world.take(matched("heavy", a=1))
    assert one(StepDispatched, world.route("heavy", prompt=4000)).worker == "a"
    world.take(matched("s", a=50))
    return world


def test_prefill_that_time_has_done_is_no_backlog_before_a_beat_says_so() -> None:
    world = two_of_which_one_computes()
    world.wait(399)
    assert one(StepDispatched, world.route("s", prompt=1000)).worker == "a"
    world = two_of_which_one_computes()
    world.wait(100)
    assert one(StepDispatched, world.route("s", prompt=1000)).worker == "b"


def test_prefill_that_a_beat_shows_not_done_is_a_backlog_again_however_long_it_has_taken() -> None:
    world = two_of_which_one_computes()
    world.wait(399)
    world.take(msgspec.structs.replace(beat("a"), running=[RunningStep(StepId("heavy"), 1, 0)], slots_used=1))
    assert one(StepDispatched, world.route("s", prompt=1000)).worker == "b"


def test_a_prompt_that_is_taken_away_is_no_longer_waited_for() -> None:
    world = two_of_which_one_computes()
    world.take(ended("heavy", 1, "a", Status.CANCELLED))
    assert one(StepDispatched, world.route("s", prompt=1000)).worker == "a"


def test_a_worker_that_states_another_rate_is_counted_by_it() -> None:
    world = two_of_which_one_computes()
    world.join("a", slots=8, prefill_tokens_per_s=1e7)
    assert one(StepDispatched, world.route("s", prompt=1000)).worker == "a"


def test_a_worker_that_came_after_the_match_is_none_of_the_others_that_it_speaks_of() -> None:
    world = World()
    world.take(msgspec.structs.replace(matched("s", a=1), others=50))
    world.route("s", prompt=1000)
    assert world.state.steps["s"].cached_on(WorkerId("there before")) == 800
    assert one(StepDispatched, world.join("new")).cached_tokens == 0


def test_a_worker_without_slots_or_with_a_rate_of_next_to_nothing_stops_nobody() -> None:
    world = World(queueing="worker")
    world.join("none", slots=0, prefill_tokens_per_s=1e-300, decode_tokens_per_s=1e-300)
    world.join("a", slots=1)
    assert {one(StepDispatched, world.route(f"s{number}")).worker for number in range(4)} == {"a", "none"}


def test_cached_blocks_are_not_set_aside_again() -> None:
    world = World()
    world.join("a", blocks=100)
    for number in range(4):
        world.take(matched(f"s{number}", a=60))
        assert one(StepDispatched, world.route(f"s{number}", prompt=1000, output=100))


def test_a_step_waits_for_the_registry_only_where_there_is_a_choice() -> None:
    world = World()
    world.join("a")
    world.take(matched("earlier"))
    assert one(StepDispatched, world.route("s1"))
    world.join("b")
    assert not only(StepDispatched, world.route("s2"))
    assert one(StepDispatched, world.take(matched("s2", b=1))).worker == "b"


def test_a_step_waits_for_the_registry_no_longer_than_configured() -> None:
    world = World(match_wait_ms=3)
    world.join("a")
    world.join("b")
    world.take(matched("earlier"))
    world.route("s")
    assert not only(StepDispatched, world.wait(2.9))
    assert one(StepDispatched, world.wait(0.1)).step == "s"


def test_a_registry_that_has_been_silent_is_not_waited_for() -> None:
    world = World()
    world.join("a")
    world.join("b")
    world.take(matched("earlier"))
    world.live(11_000)
    assert one(StepDispatched, world.route("s"))


def test_a_step_that_waits_for_the_registry_does_not_hold_back_the_next() -> None:
    world = World()
    world.join("a")
    world.join("b")
    world.take(matched("known", a=1))
    assert not only(StepDispatched, world.route("unknown"))
    assert one(StepDispatched, world.route("known"))


def test_draining_workers_keep_what_they_have_and_get_nothing_new() -> None:
    world = World()
    world.join("a")
    first = one(StepDispatched, world.route("s0"))
    world.take(beat("a", ("s0", 1), state=WorkerState.DRAINING))
    assert not only(StepDispatched, world.route("s1"))
    assert not only(StepClosed, world.end(first))
    assert world.state.workers["a"].placed == {}


def test_a_worker_that_was_not_heard_within_its_lease_gets_nothing() -> None:
    world = World(lease_ms=3000)
    world.join("a")
    world.now_ns += 3000 * MS
    assert not only(StepDispatched, world.route("s"))


def test_the_same_step_routed_twice_is_dispatched_once() -> None:
    world = World()
    world.join("a")
    first = one(StepDispatched, world.route("s"))
    assert not only(StepDispatched, world.route("s"))
    world.end(first)
    assert not only(StepDispatched, world.route("s"))
