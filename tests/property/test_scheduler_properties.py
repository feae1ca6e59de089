"""What holds whatever the fleet does to the scheduler, in any order."""

from collections import Counter
from typing import Any, get_args

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.config import Order, Placement, Queueing
from services.scheduler.decide import MACHINE
from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import WorkerState
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.output import Output
from shared.contracts.steps import StepClosed, StepDispatched, StepRevoked, StepRouted
from shared.core.machine import step as decide_again
from tests.scheduler_world import MODEL, MS, World, beat, cancel, ended, gone, matched, registered, routed

STEPS = [f"s{number}" for number in range(12)]
WORKERS = ["a", "b", "c"]
QUEUE_MAX = 3

steps, workers, small = st.sampled_from(STEPS), st.sampled_from(WORKERS), st.integers(0, 3)
statuses = st.sampled_from([Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED])
commands = st.one_of(
    st.tuples(st.just("route"), steps, st.integers(-1, 1), st.integers(0, 20), st.integers(1, 400)),
    st.tuples(st.just("end"), st.integers(0, 100), statuses, st.booleans()),
    st.tuples(st.just("beat"), workers, st.booleans(), small, st.sampled_from([WorkerState.READY, WorkerState.DRAINING])),
    st.tuples(st.just("lie"), workers, steps, st.integers(1, 4)),
    st.tuples(st.just("match"), steps, workers, small),
    st.tuples(st.just("cancel"), steps),
    st.tuples(st.just("close"), steps),
    st.tuples(st.just("register"), workers, small, st.integers(1, 4), st.integers(5, 60)),
    st.tuples(st.just("gone"), workers, small),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 1, 10, 300, 700, 2000, 6000])),
    st.tuples(st.just("reload")),
)
placements, orders, queueings = (st.sampled_from(get_args(slot)) for slot in (Placement, Order, Queueing))


class Checked(World):
    """Watches every input and output of a scheduler."""

    def __init__(self, **config: Any) -> None:
        super().__init__(queue_max=QUEUE_MAX, attempts_max=3, **config)
        self.taken: list[tuple[Message, int, Any, list[Message]]] = []
        self.dispatched: list[StepDispatched] = []
        self.closings: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.over: set[str] = set()
        self.epochs = dict.fromkeys(WORKERS, 1)

    def take(self, event: Message) -> list[Message]:
        before = {model: len(queue.keys) for model, queue in self.state.queues.items()}
        outputs = super().take(event)
        self.taken.append((event, self.now_ns, self.config, outputs))
        for output in outputs:
            self._watch(output)
        check_state(self)
        depth = len(self.state.queues[MODEL].keys) if MODEL in self.state.queues else 0
        if isinstance(event, StepRouted):
            assert depth <= max(QUEUE_MAX, before.get(MODEL, 0))
        return outputs

    def _watch(self, output: Message) -> None:
        if isinstance(output, StepDispatched):
            assert output.step not in self.over, "dispatched after its end"
            assert (output.step, output.attempt) not in {(d.step, d.attempt) for d in self.dispatched}
            self.dispatched.append(output)
        elif isinstance(output, StepClosed):
            assert output.step not in self.over, "closed after its end"
            self.closings[output.step] += 1
            self.over.add(output.step)
        elif isinstance(output, Output):
            assert output.end is not None
            self.endings[output.step] += 1
        elif isinstance(output, StepRevoked):
            assert output.attempt >= 1
            assert output.worker

    def do(self, command: tuple[Any, ...]) -> None:
        getattr(self, f"do_{command[0]}")(*command[1:])

    def do_route(self, step: str, priority: int, deadline: int, prompt: int) -> None:
        number, deadline_ns = STEPS.index(step), self.now_ns + (1 + deadline) * 500 * MS
        about = {"tenant": f"t{number % 3}", "workflow": f"w{number % 4}" if number % 5 else ""}
        self.take(routed(step, priority=priority, prompt=prompt, deadline_ns=deadline_ns, **about))

    def do_end(self, index: int, status: Status, retryable: bool) -> None:
        if self.dispatched:
            attempt = self.dispatched[index % len(self.dispatched)]
            known = self.state.steps.get(attempt.step)
            self.take(ended(attempt.step, attempt.attempt, attempt.worker, status, retryable=retryable))
            if status is not Status.FAILED and not retryable and known is not None:
                self.over.add(attempt.step)

    def do_beat(self, worker: str, honest: bool, foreign: int, state: WorkerState) -> None:
        known = self.state.workers.get(worker)
        running = list(known.placed.items()) if known and honest else []
        self.take(beat(worker, *running, epoch=self.epochs[worker], state=state, slots_used=foreign, blocks_used=foreign * 9))

    def do_lie(self, worker: str, step: str, attempt: int) -> None:
        """A worker has what it was never given, as after a crash of the scheduler; but no attempt that is still to be dispatched."""
        given = max((d.attempt for d in self.dispatched if d.step == step), default=0)
        if attempt <= given:
            self.take(beat(worker, (step, attempt), epoch=self.epochs[worker]))

    def do_match(self, step: str, worker: str, blocks: int) -> None:
        self.take(matched(step, **{worker: blocks}))

    def do_cancel(self, step: str) -> None:
        self.take(cancel(step))

    def do_close(self, step: str) -> None:
        self.take(StepClosed(step=cancel(step).step, status=Status.EXPIRED, problem=Problem(reason=Reason.DEADLINE_PASSED, message="")))
        self.over.add(step)

    def do_register(self, worker: str, newer: int, slots: int, blocks: int) -> None:
        self.epochs[worker] += newer == 3
        self.take(registered(worker, epoch=self.epochs[worker], slots=slots, blocks=blocks))

    def do_gone(self, worker: str, older: int) -> None:
        self.take(gone(worker, epoch=self.epochs[worker] - (older == 3)))

    def do_wait(self, ms: float) -> None:
        self.wait(ms)

    def do_configure(self, placement: str, order: str, queueing: str) -> None:
        """A scheduler is started with other settings, and goes on from the state that it finds."""
        self.config = msgspec.structs.replace(self.config, placement=placement, order=order, queueing=queueing)
        self.do_reload()

    def do_reload(self) -> None:
        """A restarted scheduler decides as the one before would have."""
        copy = msgspec.json.decode(msgspec.json.encode(self.state), type=MACHINE.state)
        assert copy == self.state
        assert MACHINE.wake_ns(copy, self.config) == MACHINE.wake_ns(self.state, self.config)
        self.now_ns += 400 * MS
        outputs = self.take(Tick())
        assert decide_again(MACHINE, copy, Tick(), self.now_ns, self.config) == outputs
        assert copy == self.state
        self.state = copy


def check_state(world: Checked) -> None:
    """The books balance."""
    state = world.state
    for worker in state.workers.values():
        placed = [state.steps[step] for step in worker.placed]
        assert all(step.worker == worker.id and worker.placed[step.id] == step.attempt for step in placed)
        assert worker.reserved_blocks == sum(step.blocks for step in placed)
        assert worker.prefill_tokens == sum(step.prefill_tokens for step in placed)
        assert min(worker.reserved_blocks, worker.prefill_tokens, worker.foreign_slots, worker.foreign_blocks) >= 0
    for model, queue in state.queues.items():
        waiting = [step for step in state.steps.values() if step.queued and step.job.model == model]
        assert queue.keys == sorted(queue.keys)
        assert sorted(key[2] for key in queue.keys) == sorted(step.id for step in waiting) != []
        assert queue.tokens == sum(step.job.prompt_tokens for step in waiting)
    assert sum(len(worker.placed) for worker in state.workers.values()) + sum(len(q.keys) for q in state.queues.values()) == len(
        state.steps
    )
    assert not any(step.closed or step.problem for step in state.steps.values())
    assert all(state.steps[step].revoked for step in state.revoked)
    assert {deadline for _, deadline in state.deadlines} >= {step.id for step in state.steps.values() if not step.revoked}
    assert not any(step in state.recent for step in state.steps)
    if state.ledger.order == "vtc":
        waiting_of = Counter(step.tenant for step in state.steps.values() if step.queued)
        assert {name: known.waiting for name, known in state.ledger.tenants.items() if known.waiting} == waiting_of


def follow(world: Checked, script: list[tuple[Any, ...]]) -> None:
    for worker in WORKERS[:2]:
        world.do_register(worker, 0, 2, 40)
        world.do_beat(worker, True, 0, WorkerState.READY)
    for command in script:
        world.do(command)
    world.wait(60_000)  # all deadlines and graces pass; no worker is heard of again
    assert world.state.steps == {}
    assert world.state.queues == {}
    assert all(not worker.placed and not worker.reserved_blocks and not worker.prefill_tokens for worker in world.state.workers.values())
    assert world.closings == world.endings
    assert all(count == 1 for count in world.closings.values())
    routed_steps = {command[1] for command in script if command[0] == "route"}
    assert routed_steps <= world.over


@settings(max_examples=300, deadline=None)
@given(st.lists(commands, max_size=80))
def test_every_step_ends_once_and_the_books_balance(script: list[tuple[Any, ...]]) -> None:
    follow(Checked(), script)


@settings(max_examples=300, deadline=None)
@given(placements, orders, queueings, st.lists(commands | st.tuples(st.just("configure"), placements, orders, queueings), max_size=60))
def test_so_it_is_with_every_placement_and_order_and_a_replay_decides_the_same(
    placement: str, order: str, queueing: str, script: list[tuple[Any, ...]]
) -> None:
    world = Checked(placement=placement, order=order, queueing=queueing, worker_queue_max=2)
    state = MACHINE.start(world.config)
    follow(world, script)
    for event, now_ns, config, outputs in world.taken:
        assert decide_again(MACHINE, state, event, now_ns, config) == outputs
    assert state == world.state
