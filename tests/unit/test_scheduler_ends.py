"""Cancellation, deadlines, the queue's bound, and what is reported."""

from shared.contracts.fleet import QueueReported
from shared.contracts.outcomes import FinishReason, Reason, Status
from shared.contracts.output import Output
from shared.contracts.steps import StepClosed, StepDispatched, StepRevoked
from tests.scheduler_world import MS, World, cancel, ended, matched, one, only, registered


def world_with_a(**config: int) -> World:
    world = World(**config)
    world.join("a", slots=1)
    return world


def test_a_waiting_step_is_cancelled_at_once() -> None:
    world = World()
    world.route("s")
    outputs = world.take(cancel("s"))
    output = one(Output, outputs)
    assert one(StepClosed, outputs).status is Status.CANCELLED
    assert output.end is not None
    assert (output.end.status, output.end.finish_reason, output.attempt) == (Status.CANCELLED, FinishReason.CANCELLED, 0)
    assert (world.state.steps, world.state.queues) == ({}, {})
    world.join("a")
    assert not world.route("s")


def test_a_running_step_is_revoked_and_ended_by_its_worker() -> None:
    world = world_with_a()
    dispatched = one(StepDispatched, world.route("s"))
    revoked = one(StepRevoked, world.take(cancel("s")))
    assert (revoked.worker, revoked.attempt, revoked.reason) == ("a", 1, Reason.CANCELLED)
    assert not world.take(cancel("s"))
    assert not only(StepClosed, world.end(dispatched, Status.CANCELLED))
    assert world.state.steps == {}


def test_a_cancelled_step_whose_worker_does_not_answer_is_ended_here() -> None:
    world = world_with_a(revoke_grace_ms=3000)
    world.route("s")
    world.take(cancel("s"))
    world.beat("a", ("s", 1))
    assert not only(StepClosed, world.live(2500))
    outputs = world.live(1000)
    assert (one(StepClosed, outputs).status, one(Output, outputs).attempt) == (Status.CANCELLED, 2)
    assert one(StepRevoked, outputs).reason is Reason.SUPERSEDED


def test_a_cancelled_step_that_turns_up_elsewhere_is_revoked_there() -> None:
    world = world_with_a()
    world.route("s", deadline_ns=world.now_ns + 60_000 * MS)
    world.take(cancel("s"))
    world.join("b")
    revoked = one(StepRevoked, world.beat("b", ("s", 1)))
    assert (revoked.worker, revoked.reason) == ("b", Reason.CANCELLED)


def test_a_cancelled_step_that_fails_is_not_tried_again() -> None:
    world = world_with_a()
    dispatched = one(StepDispatched, world.route("s"))
    world.take(cancel("s"))
    outputs = world.end(dispatched, Status.FAILED, retryable=True)
    assert one(StepClosed, outputs).status is Status.CANCELLED
    assert not only(StepDispatched, outputs)


def test_a_cancelled_step_whose_worker_restarts_is_ended_here() -> None:
    world = world_with_a()
    world.route("s")
    world.take(cancel("s"))
    assert one(StepClosed, world.take(registered("a", epoch=2))).status is Status.CANCELLED


def test_a_cancellation_that_comes_first_is_remembered() -> None:
    world = world_with_a()
    assert not world.take(cancel("s"))
    outputs = world.route("s")
    assert one(StepClosed, outputs).status is Status.CANCELLED
    assert not only(StepDispatched, outputs)


def test_a_cancellation_of_a_finished_step_does_nothing() -> None:
    world = world_with_a()
    world.end(one(StepDispatched, world.route("s")))
    assert not world.take(cancel("s"))
    assert world.state.early_cancels == {}


def test_a_step_waiting_past_its_deadline_expires() -> None:
    world = World()
    world.route("s", deadline_ns=world.now_ns + 1000 * MS)
    assert not only(StepClosed, world.wait(999))
    outputs = world.wait(1)
    assert (one(StepClosed, outputs).status, one(StepClosed, outputs).problem.reason) == (Status.EXPIRED, Reason.DEADLINE_PASSED)
    assert one(Output, outputs).end is not None


def test_several_deadlines_are_met_at_once_and_in_any_order() -> None:
    world = World()
    for number in range(20):
        world.route(f"s{number}", deadline_ns=world.now_ns + (number * 7 % 20 + 1) * 100 * MS)
    world.now_ns += 1000 * MS
    assert len(only(StepClosed, world.wait(0))) == 10
    assert len(only(StepClosed, world.wait(1000))) == 10
    assert world.state.deadlines == []


def test_a_step_running_past_its_deadline_is_revoked_and_expired_by_its_worker() -> None:
    world = world_with_a()
    dispatched = one(StepDispatched, world.route("s", deadline_ns=world.now_ns + 1000 * MS))
    world.beat("a", ("s", 1))
    assert one(StepRevoked, world.live(1500)).reason is Reason.DEADLINE_PASSED
    assert not only(StepClosed, world.end(dispatched, Status.EXPIRED))
    assert world.state.steps == {}


def test_an_expired_step_whose_worker_is_dead_is_ended_here() -> None:
    world = world_with_a(revoke_grace_ms=2000)
    world.route("s", deadline_ns=world.now_ns + 1000 * MS)
    outputs = world.wait(3000)
    assert [each.reason for each in only(StepRevoked, outputs)] == [Reason.DEADLINE_PASSED, Reason.SUPERSEDED]
    assert one(StepClosed, outputs).status is Status.EXPIRED


def test_a_step_that_arrives_past_its_deadline_is_not_started() -> None:
    world = world_with_a()
    outputs = world.route("s", deadline_ns=world.now_ns - 1)
    assert one(StepClosed, outputs).status is Status.EXPIRED
    assert not only(StepDispatched, outputs)


def test_a_full_queue_sheds_the_new_step_and_says_when_to_come_back() -> None:
    world = world_with_a(queue_max=2)
    world.route("running")
    world.route("w1")
    world.route("w2")
    outputs = world.route("w3")
    closed = one(StepClosed, outputs)
    assert (closed.step, closed.status, closed.problem.reason) == ("w3", Status.SHED, Reason.QUEUE_FULL)
    assert closed.problem.retry_after_ms > 0
    assert one(Output, outputs).end is not None
    assert len(world.state.queues["m"].keys) == 2


def test_a_full_queue_sheds_the_lowest_priority() -> None:
    world = world_with_a(queue_max=2)
    world.route("running")
    world.route("low", priority=-1)
    world.route("w1")
    assert one(StepClosed, world.route("high", priority=5)).step == "low"


def test_steps_that_have_run_are_not_shed() -> None:
    world = world_with_a(queue_max=1)
    world.route("ran", priority=-1)
    world.take(registered("a", epoch=2))
    assert one(StepClosed, world.route("new")).step == "new"


def test_where_only_steps_wait_that_have_run_a_new_one_that_starts_sheds_nobody() -> None:
    world = World(queue_max=1)
    world.join("a", slots=1)
    world.join("b")
    world.route("x")
    assert world.state.steps["x"].worker == "a"  # which is full now
    for name in ("p", "q"):
        world.end(one(StepDispatched, world.route(name)), Status.FAILED, retryable=True)
    outputs = world.route("new")
    assert one(StepDispatched, outputs).worker == "b"
    assert not only(StepClosed, outputs)


def test_a_step_that_starts_at_once_does_not_count_against_the_bound() -> None:
    world = world_with_a(queue_max=1)
    assert [len(only(StepClosed, world.route(step))) for step in ("runs", "waits", "shed")] == [0, 0, 1]


def test_each_model_is_reported_at_intervals() -> None:
    world = world_with_a(report_ms=500)
    world.route("s0")
    for number in range(3):
        world.route(f"w{number}", prompt=100)
    world.beat("a", ("s0", 1))
    reports = only(QueueReported, world.live(2000))
    assert len(reports) == 4
    last = reports[-1]
    assert (last.cell, last.model, last.depth, last.waiting_tokens) == ("local", "m", 3, 300)
    assert (last.running, last.slots, last.workers) == (1, 1, 1)
    assert last.drain_ms > 0


def test_the_predicted_wait_follows_measured_service_times() -> None:
    world = world_with_a()
    dispatched = one(StepDispatched, world.route("s0"))
    world.live(100)
    world.end(dispatched)
    assert one(QueueReported, world.live(500)).drain_ms == 0, "a slot is free"
    world.route("s1")
    world.route("w1")
    world.beat("a", ("s1", 1))
    assert only(QueueReported, world.live(500))[-1].drain_ms == 200, "two steps of 100 ms on one slot"


def test_a_model_without_workers_is_reported_while_steps_wait() -> None:
    world = World()
    world.route("s")
    report = one(QueueReported, world.wait(499) + world.wait(1))
    assert (report.depth, report.workers, report.slots) == (1, 0, 0)
    world.take(cancel("s"))
    assert not world.wait(5000)


def test_an_idle_scheduler_sleeps() -> None:
    world = World()
    assert not world.wait(3_600_000)


def test_what_is_remembered_is_bounded() -> None:
    world = World()
    for number in range(12_000):
        world.take(cancel(f"never{number}"))
        world.take(matched(f"never{number}", a=1))
        world.route(f"s{number}", deadline_ns=world.now_ns + 10**15)
        world.take(ended(f"s{number}", 1, "a"))
        world.now_ns += MS
    state = world.state
    assert len(state.recent) <= 10_000
    assert len(state.early_cancels) <= 4_096
    assert len(state.early_matches) <= 4_096
    assert len(state.deadlines) <= 100
    assert len(state.awaiting) <= 51
