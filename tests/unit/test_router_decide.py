"""What the router decides, on plain data."""

import msgspec

from services.router.config import RouterConfig
from services.router.decide import MACHINE, wake_ns
from services.router.state import SWEEP_NS, State
from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import Capacity, ModelCard, QueueReported, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, StepId, TenantId, WorkerId, WorkflowId
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.output import Output
from shared.contracts.steps import AttemptEnded, Job, StepAdmitted, StepClosed, StepRouted
from shared.core.breaker import BreakerConfig
from shared.core.catalogue import KEPT_NS
from shared.core.machine import step

MS = 1_000_000
SECOND = 1_000 * MS
NOW = 1_700_000_000 * SECOND


class Desk:
    """The machine with a clock in the test's hand."""

    def __init__(self, **settings: object) -> None:
        breaker = BreakerConfig(failures=3, cooldown_ms=5_000, probe_ms=1_000)
        self.config = RouterConfig(aliases={"fast": "small"}, breaker=breaker, **settings)  # type: ignore[arg-type]
        self.state = State()
        self.now = NOW
        self._count = 0

    def take(self, event: Message) -> list[Message]:
        return step(MACHINE, self.state, event, self.now, self.config)

    def worker(self, name: str, cell: str = "east", *, model: str = "small", state: WorkerState = WorkerState.READY) -> list[Message]:
        card = ModelCard(name=ModelName(model), tokenizer="t", vocab_size=10, context_tokens=1_000, block_tokens=16)
        return self.take(
            WorkerRegistered(
                worker=WorkerId(name),
                cell=CellId(cell),
                pool="p",
                epoch=1,
                state=state,
                card=card,
                capacity=Capacity(blocks=1, slots=1),
            )
        )

    def queue(self, cell: str, *, drain_ms: int = 0, running: int = 0, slots: int = 4, workers: int = 1) -> None:
        report = QueueReported(
            cell=CellId(cell),
            model=ModelName("small"),
            depth=0,
            waiting_tokens=0,
            running=running,
            slots=slots,
            workers=workers,
            drain_ms=drain_ms,
        )
        self.take(report)

    def admit(self, model: str = "small", deadline_ns: int = 0) -> list[Message]:
        self._count += 1
        job = Job(model=ModelName(model), prompt_tokens=1, max_tokens=1, deadline_ns=deadline_ns)
        return self.take(
            StepAdmitted(step=StepId(f"s{self._count}"), workflow=WorkflowId("w"), tenant=TenantId("t"), trace="00-a-b-01", job=job)
        )

    def routed(self, model: str = "small") -> str:
        [message] = self.admit(model)
        assert isinstance(message, StepRouted)
        return message.cell

    def end(self, worker: str, status: Status, *, cell: str = "east", retryable: bool = True, reason: Reason = Reason.INTERNAL) -> None:
        problem = Problem(reason=reason, message="")
        ended = AttemptEnded(step=StepId("s"), cell=CellId(cell), worker=WorkerId(worker), attempt=1, status=status, problem=problem)
        self.take(msgspec.structs.replace(ended, retryable=retryable))

    def fail(self, worker: str, times: int = 3, *, cell: str = "east") -> None:
        for _ in range(times):
            self.now += SECOND
            self.end(worker, Status.FAILED, cell=cell)


def closed(messages: list[Message]) -> Problem:
    output, close = messages
    assert isinstance(close, StepClosed)
    assert isinstance(output, Output)
    assert output.end is not None
    assert (close.status, output.end.status, output.end.problem) == (Status.FAILED, Status.FAILED, close.problem)
    assert (output.step, output.workflow, output.tenant, output.trace) == (close.step, close.workflow, close.tenant, close.trace)
    return close.problem


def test_a_step_goes_to_the_cell_that_serves_its_model_with_all_that_it_carries() -> None:
    desk = Desk()
    desk.worker("a")
    [message] = desk.admit()
    assert isinstance(message, StepRouted)
    assert (message.step, message.workflow, message.tenant, message.trace) == ("s1", "w", "t", "00-a-b-01")
    assert (message.cell, message.job.model) == ("east", "small")


def test_an_alias_is_resolved() -> None:
    desk = Desk()
    desk.worker("a")
    [message] = desk.admit("fast")
    assert isinstance(message, StepRouted)
    assert message.job.model == "small"


def test_the_cell_with_the_shortest_predicted_wait_is_chosen() -> None:
    desk = Desk()
    desk.worker("a", "east")
    desk.worker("b", "west")
    desk.queue("east", drain_ms=900)
    desk.queue("west", drain_ms=300)
    assert desk.routed() == "west"


def test_of_equal_cells_the_lower_id_is_chosen() -> None:
    desk = Desk()
    desk.worker("b", "west")
    desk.worker("a", "east")
    assert desk.routed() == "east"


def test_between_reports_steps_spread_over_cells_with_free_slots() -> None:
    desk = Desk()
    desk.worker("a", "east")
    desk.worker("b", "west")
    desk.queue("east", slots=2)
    desk.queue("west", slots=4)
    cells = [desk.routed() for _ in range(6)]
    assert (cells.count("east"), cells.count("west")) == (2, 4)
    desk.queue("east", running=2, slots=2)
    desk.queue("west", running=1, slots=4)
    assert desk.routed() == "west"


def test_a_cell_that_reports_and_has_live_workers_is_preferred() -> None:
    desk = Desk()
    desk.worker("a", "east")
    desk.worker("b", "north")
    desk.worker("c", "west")
    desk.queue("north", workers=0)
    desk.queue("west", drain_ms=60_000)
    assert desk.routed() == "west"
    desk.now += 6 * SECOND
    assert desk.routed() == "east"


def test_cells_whose_workers_are_down_drain_or_are_silent_are_passed_over() -> None:
    desk = Desk()
    desk.worker("a", "east", state=WorkerState.DOWN)
    desk.worker("b", "north", state=WorkerState.DRAINING)
    desk.worker("c", "west", state=WorkerState.LOADING)
    assert desk.routed() == "west"
    desk.now += 61 * SECOND
    assert desk.admit() == []


def test_a_step_without_a_worker_waits_and_is_routed_when_one_appears() -> None:
    desk = Desk()
    assert desk.admit() == []
    assert desk.admit() == []
    assert desk.worker("x", model="large") == []
    routed = desk.worker("a")
    assert [(type(message), message.step) for message in routed] == [(StepRouted, "s1"), (StepRouted, "s2")]
    assert desk.state.waiting == {}


def test_a_step_that_waited_too_long_is_closed_with_the_time_to_retry() -> None:
    desk = Desk(patience_ms=2_000, retry_after_ms=7_000)
    desk.worker("a", state=WorkerState.DOWN)
    assert desk.admit() == []
    assert wake_ns(desk.state, desk.config) == NOW + 2 * SECOND
    desk.now += 2 * SECOND
    problem = closed(desk.take(Tick()))
    assert (problem.reason, problem.retry_after_ms) == (Reason.NO_CAPACITY, 7_000)
    assert desk.state.waiting == {}


def test_no_step_waits_beyond_its_deadline() -> None:
    desk = Desk(patience_ms=30_000)
    desk.worker("a", state=WorkerState.DOWN)
    assert desk.admit(deadline_ns=NOW + 9 * SECOND) == []
    assert desk.admit(deadline_ns=NOW + 4 * SECOND) == []
    assert desk.admit() == []
    assert wake_ns(desk.state, desk.config) == NOW + 4 * SECOND
    desk.now += 4 * SECOND
    assert closed(desk.take(Tick())).reason is Reason.NO_CAPACITY
    assert list(desk.state.waiting) == ["s1", "s3"]
    desk.take(Tick())
    assert wake_ns(desk.state, desk.config) == NOW + 5 * SECOND == desk.state.swept_ns + SWEEP_NS
    desk.now += 5 * SECOND
    desk.take(Tick())
    assert list(desk.state.waiting) == ["s3"]


def test_patience_ends_also_when_no_tick_comes_between_other_inputs() -> None:
    desk = Desk(patience_ms=2_000)
    desk.admit()
    desk.now += 2 * SECOND
    desk.worker("x", model="large")
    assert desk.state.waiting == {}


def test_no_more_steps_wait_than_allowed() -> None:
    desk = Desk(waiting_max=2)
    assert desk.admit() == []
    assert desk.admit() == []
    assert closed(desk.admit()).reason is Reason.NO_CAPACITY
    assert len(desk.state.waiting) == 2


def test_a_step_admitted_a_second_time_is_routed_again_but_waits_only_once() -> None:
    desk = Desk()
    desk.admit()
    desk._count = 0
    desk.admit()
    assert len(desk.worker("a")) == 1
    desk._count = 0
    assert desk.routed() == "east"


def test_a_circuit_opens_after_failures_that_are_not_the_steps_fault() -> None:
    desk = Desk()
    desk.worker("a")
    desk.fail("a")
    problem = closed(desk.admit())
    assert (problem.reason, problem.retry_after_ms) == (Reason.CIRCUIT_OPEN, 5_000)


def test_failures_of_the_step_itself_and_cancellations_do_not_count() -> None:
    desk = Desk()
    desk.worker("a")
    for _ in range(10):
        desk.end("a", Status.FAILED, retryable=False)
        desk.end("a", Status.CANCELLED)
    assert desk.routed() == "east"


def test_an_engine_that_dies_with_many_attempts_is_one_failure() -> None:
    desk = Desk()
    desk.worker("a")
    desk.worker("b")
    for _ in range(50):
        desk.end("a", Status.FAILED)
        desk.end("b", Status.FAILED)
    assert desk.routed() == "east"
    desk.now += SECOND
    desk.end("a", Status.FAILED)
    assert closed(desk.admit()).reason is Reason.CIRCUIT_OPEN


def test_what_loading_draining_and_full_workers_do_not_take_is_no_failure() -> None:
    desk = Desk()
    desk.worker("a")
    for _ in range(10):
        desk.end("a", Status.FAILED, reason=Reason.NO_CAPACITY)
        desk.end("a", Status.FAILED, reason=Reason.QUEUE_FULL)
    assert desk.routed() == "east"


def test_another_cell_takes_over_while_a_circuit_is_open() -> None:
    desk = Desk()
    desk.worker("a", "east")
    desk.worker("b", "west")
    desk.queue("west", drain_ms=60_000)
    desk.queue("east")
    desk.fail("a")
    assert desk.routed() == "west"


def test_the_circuit_is_the_models_own() -> None:
    desk = Desk()
    desk.worker("a")
    desk.worker("x", model="large")
    desk.fail("x")
    assert desk.routed() == "east"
    assert closed(desk.admit("large")).reason is Reason.CIRCUIT_OPEN


def test_after_the_cool_down_single_steps_probe_and_a_success_closes_the_circuit() -> None:
    desk = Desk()
    desk.worker("a")
    desk.fail("a")
    desk.now += 5 * SECOND
    assert desk.routed() == "east"
    assert closed(desk.admit()).retry_after_ms == 1_000
    desk.end("a", Status.SUCCEEDED)
    assert [desk.routed() for _ in range(3)] == ["east"] * 3


def test_a_probe_that_fails_opens_the_circuit_again() -> None:
    desk = Desk()
    desk.worker("a")
    desk.fail("a")
    desk.now += 5 * SECOND
    desk.routed()
    desk.fail("a", times=1)
    assert closed(desk.admit()).retry_after_ms == 5_000


def test_attempts_of_workers_that_nobody_knows_are_ignored() -> None:
    desk = Desk()
    desk.worker("a")
    desk.fail("stranger")
    desk.fail("a", cell="west")
    assert desk.routed() == "east"
    assert list(desk.state.routes[ModelName("small")]) == ["east"]


def test_what_the_fleet_no_longer_has_leaves_no_state_behind() -> None:
    desk = Desk()
    desk.worker("a")
    desk.fail("a")
    desk.take(WorkerGone(worker=WorkerId("a"), cell=CellId("east"), epoch=1))
    desk.now += SWEEP_NS
    desk.take(Tick())
    assert desk.state.routes == {}
    desk.now += KEPT_NS + SECOND
    desk.take(Tick())
    assert desk.state.fleet.models == {}
    assert wake_ns(desk.state, desk.config) is None


def test_the_state_survives_a_snapshot() -> None:
    desk = Desk()
    desk.admit()
    desk.worker("x", model="large")
    desk.worker("a", "east", model="large")
    desk.queue("east")
    desk.fail("x")
    desk.admit("large")
    assert msgspec.json.decode(msgspec.json.encode(desk.state), type=State) == desk.state
