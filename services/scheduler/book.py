"""The scheduler's book: steps and workers, and the moves of a step between queue, worker and the end.

Where a step is: `queued` in its model's queue, or placed on a worker; between an attempt's final failure and the closing that the same
input decides, in neither. All tables hold steps that are not over, live workers, or are bounded.
"""

import heapq
from collections import OrderedDict
from functools import cached_property
from itertools import islice
from typing import Any

import msgspec

from services.scheduler import ordering
from services.scheduler.load import Fleet, behind_ns, prefill_ns
from services.scheduler.ordering import Ledger
from services.scheduler.policies.reserve import blocks_needed, uncached_tokens
from services.scheduler.queue import Queue
from shared.contracts.fleet import Capacity, WorkerState
from shared.contracts.ids import CellId, ModelName, StepId, TenantId, WorkerId, WorkflowId
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import Job

MS = 1_000_000  # nanoseconds
EVERYBODY = WorkerId("")  # stands for all workers that a match does not name
RECENT_MAX = 10_000  # steps that are over and still known, so that copies of their messages do nothing
EARLY_MAX = 4_096  # matches, and cancellations, kept for steps that have not arrived
MODELS_MAX = 1_000  # for which it is known who was given a step last
DEADLINES_SLACK = 64
ENDING = (Reason.CANCELLED, Reason.DEADLINE_PASSED)  # revocations that the worker answers with the step's end; others are not answered


class Step(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A step that is not over. `attempt`: the last one dispatched, 0 if none."""

    id: StepId
    job: Job
    workflow: WorkflowId
    tenant: TenantId
    trace: str
    arrival: int
    routed_ns: int
    attempt: int = 0
    worker: WorkerId = WorkerId("")  # that has the attempt; empty: queued
    blocks: int = 0  # set aside on the worker
    prefill_tokens: int = 0  # not yet computed there, as far as known
    placed_ns: int = 0
    seen_ns: int = 0  # when the attempt was placed or last listed by the worker
    cached: dict[WorkerId, int] | None = None  # prompt tokens in workers' caches, also EVERYBODY's; None: the registry has not answered
    produced: int = 0  # output tokens, as far as heard
    held: WorkerId = WorkerId("")  # a worker that leaves still runs `held_attempt`, until the one that has the step now goes on
    held_attempt: int = 0
    moves: int = 0  # attempts that ended because another worker went on, or another step needed the room
    preemptions: int = 0
    place: tuple[int, int] | None = None  # in the queue; None: by priority and arrival
    attained_ns: int = 0  # by its workflow, when it came; only where the order asks
    waits_ns: int = 0  # since when, likewise
    failed_on: WorkerId = WorkerId("")
    failed_ns: int = 0  # when a worker last reported a failure
    cancelled: bool = False
    revoked: bool = False  # the worker was told to end it
    closed: bool = False  # the end is published; only the worker must still stop
    problem: Problem | None = None  # of the attempt that failed for good

    def cached_on(self, worker: WorkerId) -> int:
        """Prompt tokens in the worker's cache, as far as known. The answer is in whole blocks: it may be more than the prompt has."""
        return 0 if not self.cached else self.cached.get(worker, self.cached.get(EVERYBODY, 0))

    @property
    def failures(self) -> int:
        """Attempts dispatched that were not moved elsewhere."""
        return self.attempt - self.moves

    @property
    def queued(self) -> bool:
        return not self.worker and self.problem is None


class Worker(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One engine. What it is used for: `placed` by us, and `foreign`: what it reports beyond that."""

    id: WorkerId
    epoch: int
    model: ModelName
    capacity: Capacity
    block_tokens: int
    state: WorkerState = WorkerState.LOADING
    leaves_ns: int = 0  # of one that drains: when it hands back what it still has
    beaten: bool = False  # a heartbeat of this epoch was heard, since it last refused an attempt
    placed: dict[StepId, int] = {}  # attempt by step
    reserved_blocks: int = 0
    prefill_tokens: int = 0  # of prompts placed there, not yet computed as far as known
    computed_ns: int = 0  # when they are, by its rate; 0: nothing is left
    foreign_slots: int = 0
    foreign_blocks: int = 0
    strangers: dict[StepId, int] = {}  # steps in its hands that nobody here knows: since when


class State(msgspec.Struct, kw_only=True, omit_defaults=True, dict=True):
    """Everything that a decision sees, besides the input, the time and the configuration."""

    cell: CellId
    now_ns: int = 0  # of the last input
    heard_ns: int = 0  # of the last input that came over the bus
    gaps: list[tuple[int, int]] = []  # (end, length) of silences on the bus, each longer than all after it
    due: bool = False  # a step was put back after the last dispatch
    matched_ns: int = 0  # when the registry was last heard
    reported_ns: int = 0
    arrivals: int = 0
    steps: dict[StepId, Step] = {}
    queues: dict[ModelName, Queue] = {}  # none is empty
    workers: dict[WorkerId, Worker] = {}
    placed: dict[int, int] = {}  # steps on workers, by priority
    leaving: dict[WorkerId, None] = {}  # those that drain
    heard: dict[WorkerId, int] = {}  # when each worker was heard; the one that has been silent longest first
    awaiting: dict[StepId, int] = {}  # steps that have no match yet: routed when; oldest first
    revoked: dict[StepId, int] = {}  # steps that a worker was told to end: since when; oldest first
    returned: list[StepId] = []  # steps that the current input put back into the queue
    deadlines: list[tuple[int, StepId]] = []  # a heap; its first is always a step that must still be stopped
    early_matches: dict[StepId, dict[WorkerId, int]] = {}
    early_cancels: dict[StepId, int] = {}
    recent: dict[StepId, int] = {}  # over: since when; oldest first
    service_ms: dict[ModelName, float] = {}  # mean time of an attempt that succeeded
    ledger: Ledger = msgspec.field(default_factory=Ledger)  # what the order of the queues must know
    last: dict[ModelName, WorkerId] = {}  # who was given a step of each model last; the model that was least lately first

    def __post_init__(self) -> None:
        self.heard = OrderedDict(self.heard)  # which finds its first at once; a dict looks past all that are gone

    @cached_property
    def fleet(self) -> Fleet:
        """What follows from workers and steps, kept at hand: not in snapshots, made when it is first asked for."""
        fleet = Fleet(self.workers)
        for step in self.steps.values():
            if step.worker:
                fleet.started(step.id, step.job)
        return fleet

    def listening_since(self, silence_ns: int) -> int:
        """The end of the last silence on the bus that was longer than `silence_ns`: before it, nobody could be heard."""
        for end_ns, length_ns in reversed(self.gaps):
            if length_ns > silence_ns:
                return end_ns
        return 0


def close(state: State, step: Step, now_ns: int) -> None:
    """The step's end is known. A worker that still runs it must be told to stop; until then the step stays."""
    if step.worker:
        step.closed = True
    else:
        finish(state, step, now_ns)


def finish(state: State, step: Step, now_ns: int) -> None:
    take_out(state, step)
    del state.steps[step.id]
    remember(state, step.id, now_ns)


def remember(state: State, step: StepId, now_ns: int) -> None:
    state.early_matches.pop(step, None)
    state.early_cancels.pop(step, None)
    state.recent[step] = now_ns
    trim(state.recent, RECENT_MAX)


def enqueue(state: State, step: Step) -> None:
    queue = state.queues.get(step.job.model)
    if queue is None:
        queue = state.queues[step.job.model] = Queue()
    ordering.join(state.ledger, step, state.now_ns)
    queue.add(ordering.key_of(step), step.job.prompt_tokens)


def take_out(state: State, step: Step) -> None:
    """Of the queue or off the worker, wherever the step is."""
    if step.worker:
        worker = state.workers[step.worker]
        del worker.placed[step.id]
        state.fleet.changed[worker.id] = None
        state.fleet.stopped(step.id, step.job)
        _count(state, step.job.priority, -1)
        worker.reserved_blocks -= step.blocks
        worker.prefill_tokens -= step.prefill_tokens
        worker.computed_ns = min(worker.computed_ns, computed_ns(worker, state.now_ns))
        step.worker, step.blocks, step.prefill_tokens = WorkerId(""), 0, 0
        if step.revoked:
            step.revoked = False
            del state.revoked[step.id]
            watch_deadline(state, step)
    elif step.problem is None:
        queue = state.queues[step.job.model]
        queue.remove(ordering.key_of(step), step.job.prompt_tokens)
        ordering.leave(state.ledger, step, state.now_ns)
        if not queue.keys:
            del state.queues[step.job.model]
        state.awaiting.pop(step.id, None)


def put_back(state: State, step: Step, failed_on: WorkerId) -> None:
    """The attempt is gone: back to the step's place in the queue; or, if its end is published, out of sight."""
    if step.closed:
        finish(state, step, state.now_ns)
        return
    step.failed_on = failed_on
    if step.worker:
        take_out(state, step)
        enqueue(state, step)
    state.returned.append(step.id)


def place(state: State, step: Step, worker: Worker, attempt: int, cached_tokens: int) -> None:
    now_ns = state.now_ns
    state.fleet.changed[worker.id] = None
    state.fleet.started(step.id, step.job)
    _count(state, step.job.priority, 1)
    step.worker, step.attempt, step.placed_ns, step.seen_ns = worker.id, attempt, now_ns, now_ns
    step.blocks = blocks_needed(step.job, worker.block_tokens, cached_tokens)
    step.prefill_tokens = uncached_tokens(step.job, cached_tokens)
    worker.placed[step.id] = attempt
    worker.reserved_blocks += step.blocks
    worker.prefill_tokens += step.prefill_tokens
    worker.computed_ns = behind_ns(worker.computed_ns, now_ns, step.prefill_tokens, worker.capacity.prefill_tokens_per_s)


def computed_ns(worker: Worker, now_ns: int) -> int:
    """When the worker has computed what is left, if it begins now; 0: nothing is."""
    return now_ns + prefill_ns(worker.prefill_tokens, worker.capacity.prefill_tokens_per_s) if worker.prefill_tokens else 0


def give_turn(state: State, model: ModelName, worker: WorkerId) -> None:
    """The worker was given a step of the model."""
    state.last.pop(model, None)
    state.last[model] = worker
    if len(state.last) > MODELS_MAX:
        del state.last[next(iter(state.last))]


def _count(state: State, priority: int, change: int) -> None:
    count = state.placed.get(priority, 0) + change
    if count:
        state.placed[priority] = count
    else:
        del state.placed[priority]


def reorder(state: State, order: str) -> None:
    """Another order holds from now on: all that wait get new places. It begins without a past."""
    state.ledger = Ledger(order=order)
    for queue in state.queues.values():
        waiting = sorted((state.steps[step] for _, _, step in queue.keys), key=lambda step: step.arrival)
        for step in waiting:
            ordering.join(state.ledger, step, state.now_ns)
        queue.keys = sorted(ordering.key_of(step) for step in waiting)


def promote(state: State, model: ModelName) -> None:
    """Steps of programs that starve go behind all that are first in line."""
    queue = state.queues.get(model)
    if queue is None or state.ledger.order not in ordering.ATTAINED:
        return
    waiting = [state.steps[step] for level, _, step in queue.keys if level]
    starving = [step for step in waiting if ordering.starves(state.ledger, step, state.now_ns)]
    for step in starving:
        state.arrivals += 1
        step.place, step.waits_ns = (0, state.arrivals), state.now_ns
    if starving:
        queue.keys = sorted(ordering.key_of(state.steps[step]) for _, _, step in queue.keys)


def lose_all(state: State, worker: Worker) -> None:
    for step in list(worker.placed):
        put_back(state, state.steps[step], worker.id)


def forget(state: State, worker: Worker) -> None:
    del state.workers[worker.id], state.heard[worker.id]
    state.fleet.changed[worker.id] = None
    state.leaving.pop(worker.id, None)


def enter(state: State, worker: Worker, new: WorkerState) -> None:
    worker.state = new
    state.fleet.changed[worker.id] = None
    if new is WorkerState.DRAINING:
        state.leaving[worker.id] = None
    else:
        state.leaving.pop(worker.id, None)


def trim(table: dict[StepId, Any], most: int) -> None:
    """Drop the oldest, many at a time: a dict finds its first entry slowly when one by one was taken away."""
    if len(table) > most:
        for step in list(islice(table, most // 8 + 1)):
            del table[step]


def watch_deadline(state: State, step: Step) -> None:
    """From now on the step must be stopped at its deadline."""
    if step.job.deadline_ns:
        heapq.heappush(state.deadlines, (step.job.deadline_ns, step.id))


def tidy_deadlines(state: State) -> None:
    """Drop entries of steps that are over or are being stopped: those on top, and all when they are many."""
    heap = state.deadlines
    while heap and not _must_stop(state, heap[0][1]):
        heapq.heappop(heap)
    if len(heap) > 2 * len(state.steps) + DEADLINES_SLACK:
        state.deadlines = sorted(dict.fromkeys(entry for entry in heap if _must_stop(state, entry[1])))


def _must_stop(state: State, step_id: StepId) -> bool:
    step = state.steps.get(step_id)
    return step is not None and not step.revoked and not step.closed
