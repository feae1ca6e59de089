"""How each fact changes what the scheduler knows."""

from collections.abc import Callable
from typing import Any

from services.scheduler import ordering
from services.scheduler.book import (
    EARLY_MAX,
    ENDING,
    EVERYBODY,
    MS,
    State,
    Step,
    Worker,
    close,
    computed_ns,
    enqueue,
    enter,
    finish,
    forget,
    give_turn,
    lose_all,
    place,
    promote,
    put_back,
    remember,
    reorder,
    take_out,
    tidy_deadlines,
    trim,
    watch_deadline,
)
from services.scheduler.clock import set_back
from services.scheduler.config import MATCH_WAIT_MAX_MS
from services.scheduler.policies.drain import smoothed
from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import QueueReported, RunningStep, WorkerBeat, WorkerGone, WorkerRegistered, WorkerVanished
from shared.contracts.ids import WorkerId
from shared.contracts.kv import PrefixMatched
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.steps import AttemptEnded, CancelRequested, StepClosed, StepDispatched, StepRevoked, StepRouted

__all__ = ["State", "apply"]

GAP_MIN_NS = 250 * MS
GAPS_MAX = 8
FORGET_NS = 600_000 * MS  # a worker that was silent so long, and has nothing, is no longer known


def apply(state: State, event: Message, now_ns: int) -> None:
    """Fold one input or one decision."""
    kind = type(event)
    if now_ns < state.now_ns:
        set_back(state, now_ns)
    state.now_ns = now_ns
    if kind in _HEARD:
        _hear(state, now_ns)
    elif kind is Tick:
        state.due = False  # a tick dispatches for all models
    fold = _FOLDS.get(kind)
    if fold is not None:
        fold(state, event, now_ns)
    tidy_deadlines(state)


def _hear(state: State, now_ns: int) -> None:
    gap = now_ns - state.heard_ns
    if gap >= GAP_MIN_NS:
        while state.gaps and state.gaps[-1][1] <= gap:
            state.gaps.pop()
        state.gaps.append((now_ns, gap))
        del state.gaps[:-GAPS_MAX]
    state.heard_ns = now_ns
    state.returned = []
    while state.awaiting:
        step, routed_ns = next(iter(state.awaiting.items()))
        if routed_ns + MATCH_WAIT_MAX_MS * MS > now_ns:
            break
        del state.awaiting[step]


# --- steps -----------------------------------------------------------------------------------------------------------------------


def _on_routed(state: State, event: StepRouted, now_ns: int) -> None:
    if event.step in state.steps or event.step in state.recent:
        return
    state.arrivals += 1
    step = Step(
        id=event.step,
        job=event.job,
        workflow=event.workflow,
        tenant=event.tenant,
        trace=event.trace,
        arrival=state.arrivals,
        routed_ns=now_ns,
        cached=state.early_matches.pop(event.step, None),
        cancelled=state.early_cancels.pop(event.step, None) is not None,
    )
    state.steps[step.id] = step
    enqueue(state, step)
    watch_deadline(state, step)
    if step.cached is None:
        state.awaiting[step.id] = now_ns


def _on_matched(state: State, event: PrefixMatched, now_ns: int) -> None:
    state.matched_ns = now_ns
    tokens = {blocks: blocks * event.block_tokens for blocks in dict.fromkeys(event.blocks.values())}  # numbers to be shared: they are kept
    cached = {worker: tokens[blocks] for worker, blocks in event.blocks.items()}
    if event.others:
        cached[EVERYBODY] = event.others * event.block_tokens
    step = state.steps.get(event.step)
    if step is not None:
        step.cached = cached
        state.awaiting.pop(step.id, None)
    elif event.step not in state.recent:
        state.early_matches[event.step] = cached
        trim(state.early_matches, EARLY_MAX)


def _on_cancel(state: State, event: CancelRequested, now_ns: int) -> None:
    step = state.steps.get(event.step)
    if step is not None:
        step.cancelled = True
    elif event.step not in state.recent:
        state.early_cancels[event.step] = now_ns
        trim(state.early_cancels, EARLY_MAX)


def _on_dispatched(state: State, event: StepDispatched, now_ns: int) -> None:
    step = state.steps[event.step]
    if event.relieves and event.relieves == step.worker:
        step.held, step.held_attempt = step.worker, step.attempt
        step.moves += 1
    take_out(state, step)
    place(state, step, state.workers[event.worker], event.attempt, event.cached_tokens)
    give_turn(state, step.job.model, event.worker)
    ordering.dispatched(state.ledger, step, event.attempt)


def _on_revoked(state: State, event: StepRevoked, now_ns: int) -> None:
    step = state.steps.get(event.step)
    if step is None or (step.worker, step.attempt) != (event.worker, event.attempt):
        return  # of an attempt that was void already
    if event.reason in ENDING:
        step.revoked = True
        state.revoked[step.id] = now_ns
    else:
        no_fault = event.reason in (Reason.PREEMPTED, Reason.HANDED_OVER)
        step.preemptions += event.reason is Reason.PREEMPTED
        step.moves += no_fault
        put_back(state, step, WorkerId("") if no_fault else event.worker)
        state.due = True


def _on_ended(state: State, event: AttemptEnded, now_ns: int) -> None:
    worker = state.workers.get(event.worker)
    if worker is not None and event.problem is not None and event.problem.reason is Reason.NO_CAPACITY:
        worker.beaten = False  # it loads, drains or is down, which we did not know
        state.fleet.changed[worker.id] = None
    step = state.steps.get(event.step)
    if step is not None and (event.worker, event.attempt) == (step.held, step.held_attempt):
        step.held = WorkerId("")
    over = event.status is not Status.FAILED and not event.retryable
    if step is None:
        if over:
            remember(state, event.step, now_ns)
    elif event.attempt < step.attempt or (event.attempt == step.attempt and not step.worker):
        if over:  # given up here, yet it brought the step to its end
            close(state, step, now_ns)
    elif over:
        if event.status is Status.SUCCEEDED and step.worker:
            known = state.service_ms.get(step.job.model, 0.0)
            state.service_ms[step.job.model] = smoothed(known, (now_ns - step.placed_ns) / MS)
        ordering.produced(state.ledger, step, event.usage.output_tokens)
        if step.worker:
            ordering.completed(state.ledger, step, now_ns - step.placed_ns)
        finish(state, step, now_ns)
    elif event.retryable or step.closed:
        step.attempt, step.failed_ns = event.attempt, now_ns
        put_back(state, step, event.worker)
    else:
        take_out(state, step)
        step.attempt = event.attempt
        step.problem = event.problem or Problem(reason=Reason.INTERNAL, message=f"attempt {event.attempt} failed on {event.worker}")


def _on_closed(state: State, event: StepClosed, now_ns: int) -> None:
    step = state.steps.get(event.step)
    if step is not None:
        close(state, step, now_ns)
    else:
        remember(state, event.step, now_ns)


# --- workers ---------------------------------------------------------------------------------------------------------------------


def _on_registered(state: State, event: WorkerRegistered, now_ns: int) -> None:
    worker = state.workers.get(event.worker)
    if event.cell != state.cell or (worker is not None and event.epoch < worker.epoch):
        return
    if worker is None:
        worker = Worker(
            id=event.worker, epoch=event.epoch, model=event.card.name, capacity=event.capacity, block_tokens=event.card.block_tokens
        )
        state.workers[worker.id] = worker
        state.heard[worker.id] = now_ns
        _came_after_matches(state, worker.id)
    _enter_epoch(state, worker, event.epoch)
    worker.model, worker.capacity, worker.block_tokens = event.card.name, event.capacity, event.card.block_tokens
    worker.leaves_ns = event.leaves_ns
    worker.computed_ns = min(worker.computed_ns, computed_ns(worker, now_ns))
    enter(state, worker, event.state)


def _came_after_matches(state: State, worker: WorkerId) -> None:
    """It came after these matches: it is none of the others that they speak of."""
    matches = [step.cached for step in state.steps.values() if step.cached]
    for cached in [*matches, *state.early_matches.values()]:
        if EVERYBODY in cached:
            cached.setdefault(worker, 0)


def _on_gone(state: State, event: WorkerGone, now_ns: int) -> None:
    worker = state.workers.get(event.worker)
    if worker is not None and event.epoch >= worker.epoch:
        lose_all(state, worker)
        forget(state, worker)


def _on_vanished(state: State, event: WorkerVanished, now_ns: int) -> None:
    """What it had is lost, as far as one can tell. If it is there after all, its next heartbeat says so."""
    worker = state.workers.get(event.worker)
    if worker is not None:
        lose_all(state, worker)
        worker.beaten = False
        state.fleet.changed[worker.id] = None


def _on_beat(state: State, event: WorkerBeat, now_ns: int) -> None:
    worker = state.workers.get(event.worker)
    if worker is None or event.epoch < worker.epoch:
        return
    _enter_epoch(state, worker, event.epoch)
    enter(state, worker, event.state)
    worker.beaten = True
    state.heard.pop(worker.id)
    state.heard[worker.id] = now_ns
    ours, our_blocks, strangers = 0, 0, {}
    for item in event.running:
        step = state.steps.get(item.step)
        if step is None:
            strangers[item.step] = worker.strangers.get(item.step, now_ns)
        elif _confirm(state, step, worker, item, now_ns):
            ours += 1
            our_blocks += step.blocks
    worker.strangers = strangers
    worker.foreign_slots = max(event.slots_used + event.waiting, len(event.running)) - ours
    worker.foreign_blocks = max(0, event.blocks_used - our_blocks)
    worker.computed_ns = computed_ns(worker, now_ns)
    silent = next(iter(state.heard))
    if now_ns - state.heard[silent] > FORGET_NS and not state.workers[silent].placed:
        forget(state, state.workers[silent])


def _confirm(state: State, step: Step, worker: Worker, item: RunningStep, now_ns: int) -> bool:
    """Whether the listed attempt is the step's current one. What the worker has counts more than what was recorded: after a crash a
    second decision may have named another worker, while the stream kept the first."""
    if step.worker != worker.id or step.attempt != item.attempt:
        moved = item.attempt == step.attempt and step.worker
        if not moved and (item.attempt <= step.attempt or step.problem is not None):
            return False
        take_out(state, step)
        place(state, step, worker, item.attempt, 0)
    step.seen_ns = now_ns
    if item.output_tokens > step.produced:
        ordering.produced(state.ledger, step, item.output_tokens)
        step.produced = item.output_tokens
    if item.output_tokens and step.held:  # it has gone on: whoever had the step before has nothing of it any more
        step.held = WorkerId("")
    if item.output_tokens and step.prefill_tokens:
        worker.prefill_tokens -= step.prefill_tokens
        step.prefill_tokens = 0
    return True


def _enter_epoch(state: State, worker: Worker, epoch: int) -> None:
    """A new life of the worker's process: what it had is lost."""
    if epoch > worker.epoch:
        lose_all(state, worker)
        worker.epoch, worker.beaten, worker.foreign_slots, worker.foreign_blocks, worker.strangers = epoch, False, 0, 0, {}


# --- bounds ----------------------------------------------------------------------------------------------------------------------


def _on_reported(state: State, event: QueueReported, now_ns: int) -> None:
    state.reported_ns = now_ns
    if event.order != state.ledger.order:
        reorder(state, event.order)
    promote(state, event.model)


_HEARD = frozenset({StepRouted, PrefixMatched, AttemptEnded, CancelRequested, WorkerRegistered, WorkerGone, WorkerVanished, WorkerBeat})
_FOLDS: dict[type[Message], Callable[[State, Any, int], None]] = {
    StepRouted: _on_routed,
    PrefixMatched: _on_matched,
    AttemptEnded: _on_ended,
    CancelRequested: _on_cancel,
    StepClosed: _on_closed,
    StepDispatched: _on_dispatched,
    StepRevoked: _on_revoked,
    QueueReported: _on_reported,
    WorkerRegistered: _on_registered,
    WorkerGone: _on_gone,
    WorkerVanished: _on_vanished,
    WorkerBeat: _on_beat,
}
