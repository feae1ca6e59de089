"""What becomes of attempts: leases, failures, retries, and what workers say of them."""

from shared.contracts.fleet import WorkerState, WorkerVanished
from shared.contracts.ids import StepId, WorkerId
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.output import Output
from shared.contracts.steps import StepClosed, StepDispatched, StepRevoked
from tests.scheduler_world import CELL, MS, World, beat, ended, gone, one, only, registered


def running(world: World, step: str = "s", **about: int) -> StepDispatched:
    return one(StepDispatched, world.route(step, **about))


def two_workers(**config: int) -> World:
    world = World(**config)
    world.join("a")
    world.join("b")
    return world


def closed_by_workflow(step: str) -> StepClosed:
    return StepClosed(step=StepId(step), status=Status.EXPIRED, problem=Problem(reason=Reason.DEADLINE_PASSED, message="stalled"))


def test_a_succeeded_attempt_leaves_nothing_behind() -> None:
    world = two_workers()
    assert not only(StepClosed, world.end(running(world)))
    worker = world.state.workers["a"]
    assert (worker.placed, worker.reserved_blocks, worker.prefill_tokens) == ({}, 0, 0)
    assert world.state.steps == {}


def test_a_silent_worker_loses_its_attempts_to_another() -> None:
    world = two_workers(lease_ms=3000)
    assert running(world).worker == "a"
    outputs = world.live(3500, "a")
    revoked, again = one(StepRevoked, outputs), one(StepDispatched, outputs)
    assert (revoked.worker, revoked.attempt, revoked.reason) == ("a", 1, Reason.SUPERSEDED)
    assert (again.worker, again.attempt, again.tenant, again.trace) == ("b", 2, "t", "00-trace")


def test_a_step_that_lost_its_attempt_goes_before_those_that_came_later() -> None:
    world = World()
    world.join("a", slots=1)
    world.join("b", slots=1)
    running(world, "first")
    running(world, "second")
    world.beat("b", ("second", 1))
    world.route("third")
    world.live(4000, "a")
    assert one(StepDispatched, world.take(ended("second", 1, "b"))).step == "first"


def test_a_lost_attempt_is_repeated_at_once() -> None:
    world = two_workers(lease_ms=3000)
    running(world)
    world.live(2500, "a")
    assert not only(StepRevoked, world.wait(499))
    outputs = world.wait(1)
    assert (len(only(StepRevoked, outputs)), len(only(StepDispatched, outputs))) == (1, 1)


def test_leases_go_on_while_beats_come() -> None:
    world = two_workers()
    running(world)
    world.beat("a", ("s", 1))
    assert not only(StepRevoked, world.live(60_000))


def test_an_attempt_that_its_worker_never_heard_of_is_repeated() -> None:
    world = two_workers(dispatch_grace_ms=1000)
    running(world)
    outputs = world.live(1500)
    assert (one(StepRevoked, outputs).worker, one(StepDispatched, outputs).worker) == ("a", "b")


def test_an_attempt_that_its_worker_no_longer_lists_is_repeated() -> None:
    world = two_workers(dispatch_grace_ms=1000)
    running(world)
    world.beat("a", ("s", 1))
    world.live(5000)
    world.beat("a")
    assert one(StepDispatched, world.live(1000)).attempt == 2


def test_a_worker_that_restarts_has_lost_its_attempts_at_once() -> None:
    world = two_workers()
    running(world)
    outputs = world.take(registered("a", epoch=2))
    assert (one(StepDispatched, outputs).worker, one(StepDispatched, outputs).attempt) == ("b", 2)


def test_a_beat_of_a_new_epoch_is_a_restart_as_well() -> None:
    world = two_workers()
    running(world)
    assert one(StepDispatched, world.take(beat("a", epoch=2))).attempt == 2
    assert not world.take(beat("a", ("s", 1), epoch=1)), "an old process has nothing to say"


def test_a_worker_that_says_good_bye_has_lost_its_attempts_at_once() -> None:
    world = two_workers()
    running(world)
    assert one(StepDispatched, world.take(gone("a"))).worker == "b"
    assert "a" not in world.state.workers
    assert not world.take(gone("b", epoch=0)), "an old good-bye means nothing"


def test_a_worker_without_a_connection_has_lost_its_attempts_and_gets_none_until_it_is_heard() -> None:
    world = two_workers()
    assert running(world).worker == "a"
    again = one(StepDispatched, world.take(WorkerVanished(worker=WorkerId("a"), cell=CELL)))
    assert (again.worker, again.attempt) == ("b", 2)
    assert running(world, "next").worker == "b"
    outputs = world.beat("a", ("s", 1))
    assert one(StepRevoked, outputs).attempt == 1, "it was there after all: its old attempt is void"
    assert running(world, "later").worker == "a"
    assert not world.take(WorkerVanished(worker=WorkerId("nobody"), cell=CELL))


def test_a_failure_that_may_be_repeated_is_repeated_elsewhere() -> None:
    world = two_workers()
    first = running(world)
    again = one(StepDispatched, world.end(first, Status.FAILED, retryable=True))
    assert (again.worker, again.attempt) == ("b", 2)


def test_a_full_other_worker_is_waited_for_after_a_failure() -> None:
    world = World()
    world.join("a", slots=2)
    world.join("b", slots=1)
    first, other = running(world, "s"), running(world, "other")
    assert (first.worker, other.worker) == ("a", "b")
    assert not only(StepDispatched, world.end(first, Status.FAILED, retryable=True))
    assert running(world, "next").worker == "a", "nobody is held back by it"
    assert one(StepDispatched, world.end(other)).step == "s"


def test_a_lone_worker_gets_its_failure_again_when_it_has_said_that_it_lives() -> None:
    world = World()
    world.join("a")
    first = running(world)
    world.wait(1)
    assert not only(StepDispatched, world.end(first, Status.FAILED, retryable=True))
    assert running(world, "other").worker == "a", "nobody is held back by it"
    assert one(StepDispatched, world.beat("a", ("other", 1))).attempt == 2


def test_an_engine_that_dies_uses_up_one_attempt_of_a_step() -> None:
    world = World(attempts_max=2)
    world.join("a")
    first = running(world)
    world.wait(1)
    world.end(first, Status.FAILED, retryable=True)
    assert not only(StepDispatched, world.beat("a", state=WorkerState.DOWN))
    assert not only(StepDispatched, world.beat("a", state=WorkerState.LOADING))
    assert one(StepDispatched, world.beat("a")).attempt == 2


def test_a_lone_worker_that_was_lost_gets_its_step_again_at_its_return() -> None:
    world = World()
    world.join("a")
    running(world)
    world.take(registered("a", epoch=2))
    assert one(StepDispatched, world.beat("a", epoch=2)).attempt == 2


def test_a_lone_worker_that_takes_nothing_now_is_left_alone_until_it_says_that_it_does() -> None:
    world = World()
    world.join("a")
    refusal = world.end(running(world), Status.FAILED, retryable=True, reason=Reason.NO_CAPACITY)
    assert not only(StepDispatched, refusal)
    assert not only(StepDispatched, world.beat("a", state=WorkerState.LOADING))
    again = one(StepDispatched, world.beat("a"))
    assert again.attempt == 2


def test_what_a_draining_worker_hands_back_is_repeated_elsewhere() -> None:
    world = two_workers()
    assert one(StepDispatched, world.end(running(world), Status.CANCELLED, retryable=True)).worker == "b"


def test_a_failure_that_nobody_can_help_ends_the_step_with_its_problem() -> None:
    world = two_workers()
    outputs = world.end(running(world), Status.FAILED)
    closed, output = one(StepClosed, outputs), one(Output, outputs)
    assert (closed.status, closed.problem.reason, closed.attempt) == (Status.FAILED, Reason.ENGINE_REJECTED, 1)
    assert (output.attempt, output.tenant, output.offset, output.tokens) == (1, "t", 0, [])
    assert output.end is not None
    assert output.end.problem == closed.problem
    assert world.state.steps == {}


def test_attempts_are_limited() -> None:
    world = two_workers(attempts_max=2)
    second = one(StepDispatched, world.end(running(world), Status.FAILED, retryable=True))
    outputs = world.end(second, Status.FAILED, retryable=True)
    assert (one(StepClosed, outputs).status, one(StepClosed, outputs).problem.reason) == (Status.FAILED, Reason.ATTEMPTS_EXHAUSTED)
    assert one(Output, outputs).attempt == 3, "above all that a lost worker may still send"
    assert not only(StepDispatched, outputs)


def test_a_lost_last_attempt_ends_the_step_and_is_revoked() -> None:
    world = two_workers(attempts_max=1)
    running(world)
    outputs = world.live(3500, "a")
    assert one(StepClosed, outputs).problem.reason is Reason.ATTEMPTS_EXHAUSTED
    assert one(StepRevoked, outputs).worker == "a"
    assert world.state.steps == {}


def test_the_failure_of_an_old_attempt_changes_nothing() -> None:
    world = two_workers()
    first = running(world)
    world.end(first, Status.FAILED, retryable=True)
    assert not world.end(first, Status.FAILED)
    assert not world.end(first, Status.FAILED, retryable=True)
    assert world.state.steps["s"].attempt == 2


def test_the_success_of_an_old_attempt_ends_the_step_and_stops_the_new_one() -> None:
    world = two_workers()
    first = running(world)
    world.live(3500, "a")
    revoked = one(StepRevoked, world.end(first))
    assert (revoked.worker, revoked.attempt, revoked.reason) == ("b", 2, Reason.SUPERSEDED)
    assert world.state.steps == {}
    assert world.state.workers["b"].placed == {}


def test_the_success_of_an_attempt_given_up_ends_the_waiting_step() -> None:
    world = World()
    world.join("a")
    first = running(world)
    world.take(registered("a", epoch=2))
    assert not world.end(first)
    assert world.state.steps == {}
    assert world.state.queues == {}


def test_a_beat_that_lists_an_old_attempt_is_told_to_stop_it() -> None:
    world = two_workers()
    running(world)
    world.live(3500, "a")
    revoked = one(StepRevoked, world.take(beat("a", ("s", 1))))
    assert (revoked.worker, revoked.attempt, revoked.reason, revoked.tenant) == ("a", 1, Reason.SUPERSEDED, "t")
    assert world.state.steps["s"].worker == "b"


def test_a_beat_that_lists_an_unknown_step_is_told_to_stop_it_after_a_grace() -> None:
    world = two_workers(dispatch_grace_ms=1000)
    assert not world.beat("a", ("ghost", 3))
    assert not only(StepRevoked, world.live(500))
    revoked = one(StepRevoked, world.live(500))
    assert (revoked.step, revoked.worker, revoked.attempt) == ("ghost", "a", 3)


def test_a_step_that_arrives_after_its_worker_listed_it_is_known_to_run_there() -> None:
    world = two_workers()
    world.beat("b", ("s", 1))
    assert running(world).worker == "a", "decided a second time, and differently; the stream keeps the first"
    world.beat("b", ("s", 1))
    assert (world.state.steps["s"].worker, world.state.workers["a"].placed) == ("b", {})
    assert not only(StepRevoked, world.live(5000))


def test_the_end_of_the_current_attempt_counts_from_whichever_worker_it_comes() -> None:
    world = two_workers()
    running(world)
    assert not only(StepDispatched, world.take(ended("s", 1, "b")))
    assert world.state.steps == {}
    assert world.state.workers["a"].placed == {}


def test_an_attempt_higher_than_known_is_believed() -> None:
    world = two_workers()
    running(world)
    world.beat("b", ("s", 2))
    step = world.state.steps["s"]
    assert (step.worker, step.attempt, world.state.workers["a"].placed) == ("b", 2, {})
    assert one(StepRevoked, world.take(beat("a", ("s", 1)))).attempt == 1


def test_nobody_is_blamed_for_the_schedulers_own_silence() -> None:
    world = two_workers(lease_ms=3000)
    running(world)
    world.beat("a", ("s", 1))
    world.now_ns += 60_000 * MS
    assert not only(StepRevoked, world.wait(0))
    assert not only(StepRevoked, world.take(world.beats["b"])), "a may still be about to beat"
    assert not only(StepRevoked, world.wait(1000) + world.take(world.beats["b"]) + world.take(world.beats["a"]))
    assert one(StepRevoked, world.live(3500, "a")).worker == "a"


def test_nobody_is_blamed_while_nothing_at_all_is_heard() -> None:
    world = two_workers(lease_ms=3000)
    running(world)
    assert not only(StepRevoked, world.wait(20_000))
    assert not only(StepRevoked, world.beat("a", ("s", 1)))


def test_slow_heartbeats_go_with_long_leases() -> None:
    world = World(lease_ms=20_000)
    world.join("a")
    world.join("b")
    running(world)
    outputs = []
    for _ in range(4):
        outputs += world.wait(5000) + world.take(world.beats["b"])
    assert one(StepRevoked, outputs).worker == "a"


def test_what_the_workflow_service_closes_is_revoked_and_forgotten() -> None:
    world = two_workers()
    running(world, "runs")
    assert one(StepRevoked, world.take(closed_by_workflow("runs"))).reason is Reason.SUPERSEDED
    idle = World()
    idle.route("waits")
    assert not idle.take(closed_by_workflow("waits"))
    assert (world.state.steps, idle.state.steps, idle.state.queues) == ({}, {}, {})


def test_a_step_closed_before_it_arrives_is_not_started() -> None:
    world = two_workers()
    world.take(closed_by_workflow("s"))
    assert not world.route("s")


def test_ends_of_unknown_steps_do_no_harm() -> None:
    world = two_workers()
    assert not world.take(ended("s", 1, "a", Status.FAILED, retryable=True))
    assert not world.take(ended("t", 1, "nobody"))
    assert running(world, "s").attempt == 1
    assert not world.route("t")


def test_beats_of_other_cells_are_not_ours() -> None:
    world = World()
    foreign = registered("far")
    world.take(type(foreign)(worker=WorkerId("far"), cell=type(CELL)("far"), pool="p", epoch=1, state=foreign.state, card=foreign.card,
                             capacity=foreign.capacity))  # fmt: skip
    assert not world.take(beat("far"))
    assert world.state.workers == {}


def test_a_worker_that_has_long_been_silent_and_has_nothing_is_forgotten() -> None:
    world = two_workers()
    world.live(601_000, "a")
    assert list(world.state.workers) == ["b"]
