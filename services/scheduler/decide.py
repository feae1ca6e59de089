"""What the scheduler does about what it knows.

Rules:
- A step waits in its model's queue until a worker has room for it: placement.py says where it goes, ordering.py which goes first. Where
  `queueing` is "worker", engines have room for `worker_queue_max` more than run there, whatever their slots and blocks.
  A step at the head for which there is no room holds the others back, so that big ones are not starved. One that only waits for the
  registry's answer does not; it waits `match_wait_ms`, and only where there is a choice and the registry was heard lately. Nor does one
  that waits for another worker than the one on which it failed. Where the head is more urgent than what runs, one of those may have to give
  way (policies/preempt.py); not where another order than that of priority is configured.
- A new step beyond `queue_max` sheds the last in order.
- An attempt is lost when its worker is silent for `lease_ms`, does not list it in its beats for `dispatch_grace_ms`, starts anew, says
  good-bye or has lost its connection (prober.py); it is void then, and the step goes back to its place in the queue, up to
  `attempts_max`. Silence is counted only while anything is heard at all: the scheduler's own silence is not the worker's.
- A worker that refused an attempt because it takes none now gets no other until its next heartbeat says what it is. One that reported
  another failure does not get that step again before then.
- What a worker that leaves will not finish goes to others as they have room, before what waits (moving.py): the next attempt begins while
  the old one runs on, until the new worker asks the old one for it. Only their outputs say when; here the step is with the new worker.
- An attempt that failed is repeated elsewhere if that may help, else the step ends. One that ended otherwise ends the step, whatever its
  number: its reader has seen the end.
- A worker's word about the current attempt counts more than the record. What it lists beyond that is revoked: old attempts at once, unknown
  steps after `dispatch_grace_ms`, in which their routing may still arrive.
- A step that is cancelled or past its deadline ends at once while it waits; while it runs, its worker is asked to end it, and after
  `revoke_grace_ms` it is ended here.

Invariants: an attempt number is dispatched at most once; a step is closed at most once, and never dispatched after that; what workers have
set aside is the sum over what is placed there; after each input no step is closed or failed and still kept.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from services.scheduler.book import MS, State, Step, Worker
from services.scheduler.config import SchedulerConfig
from services.scheduler.enforce import enforce, wake_ns
from services.scheduler.load import PROMPT_TOKENS, Room
from services.scheduler.moving import move
from services.scheduler.ordering import DEFAULT, Ledger, first_first, last_first
from services.scheduler.plan import Plan
from services.scheduler.policies import retry
from services.scheduler.policies.filter_fits import could_ever_fit
from services.scheduler.policies.preempt import gives_way, rank
from services.scheduler.queue import Queue
from services.scheduler.report import queue_report, report
from services.scheduler.state import apply
from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import WorkerBeat, WorkerGone, WorkerRegistered, WorkerVanished
from shared.contracts.ids import ModelName, StepId
from shared.contracts.kv import PrefixMatched
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.steps import AttemptEnded, CancelRequested, StepClosed, StepRouted
from shared.core.machine import Machine

REGISTRY_HEARD_NS = 10_000 * MS  # a registry that has answered nobody for longer is not waited for


def decide(state: State, event: Message, now_ns: int, config: SchedulerConfig) -> list[Message]:
    """Everything that follows from one input, which `state` has in it already."""
    plan = Plan(state, now_ns, config)
    enforce(plan)
    rule = _RULES.get(type(event))
    if rule is not None:
        rule(plan, event)
    report(plan)
    return plan.outputs


def _on_routed(plan: Plan, event: StepRouted) -> None:
    step = plan.state.steps.get(event.step)
    if step is None or not step.queued:
        return
    if step.cancelled:
        plan.close(step, retry.cancelled())
        return
    dispatch(plan, step.job.model)
    if step.arrival == plan.state.arrivals:  # else it is a copy
        _shed_surplus(plan, step.job.model)


def _on_matched(plan: Plan, event: PrefixMatched) -> None:
    step = plan.state.steps.get(event.step)
    if step is not None and step.queued:
        dispatch(plan, step.job.model)


def _on_cancel(plan: Plan, event: CancelRequested) -> None:
    step = plan.state.steps.get(event.step)
    if step is None or step.revoked:
        return
    if step.queued:
        plan.close(step, retry.cancelled())
    else:
        plan.revoke(step, Reason.CANCELLED)


def _on_ended(plan: Plan, event: AttemptEnded) -> None:
    step = plan.state.steps.get(event.step)
    if step is not None and step.closed:
        plan.revoke(step, Reason.SUPERSEDED)
    elif step is not None and step.problem is not None:
        plan.close(step, (Status.FAILED, step.problem))
    _settle_returned(plan)
    worker = plan.state.workers.get(event.worker)
    for model in dict.fromkeys([worker.model] if worker else []) | dict.fromkeys([step.job.model] if step else []):
        dispatch(plan, model)


def _on_closed(plan: Plan, event: StepClosed) -> None:
    step = plan.state.steps.get(event.step)
    if step is not None and step.closed:
        plan.revoke(step, Reason.SUPERSEDED)


def _on_fleet(plan: Plan, event: WorkerRegistered | WorkerGone | WorkerVanished) -> None:
    _settle_returned(plan)
    leaving = (plan.state.workers[worker].model for worker in plan.state.leaving)
    for model in dict.fromkeys([*plan.state.queues, *leaving]):
        dispatch(plan, model)


def _on_beat(plan: Plan, event: WorkerBeat) -> None:
    worker = plan.state.workers.get(event.worker)
    if worker is None or event.epoch < worker.epoch:
        return
    _settle_returned(plan)
    steps, now_ns, grace_ns = plan.state.steps, plan.now_ns, plan.config.dispatch_grace_ms * MS
    for item in event.running:
        step = steps.get(item.step)
        if step is None:
            void = now_ns - worker.strangers.get(item.step, now_ns) >= grace_ns
        elif step.worker == worker.id and step.attempt == item.attempt:
            continue
        else:
            void = (step.held, step.held_attempt) != (worker.id, item.attempt)
        if void:
            plan.void(item.step, worker.id, item.attempt)
    for step_id in worker.placed:
        step = steps[step_id]
        if step.cancelled and not step.revoked:  # it was found here after somebody else had been told
            plan.revoke(step, Reason.CANCELLED)
        elif step.seen_ns < now_ns and now_ns - max(step.seen_ns, plan.listening_since_ns) >= grace_ns:
            plan.lose(step)
    dispatch(plan, worker.model)


def _on_tick(plan: Plan, event: Tick) -> None:
    for model in plan.state.queues:
        dispatch(plan, model)


def _settle_returned(plan: Plan) -> None:
    """End those that this input put back and that may not have another attempt."""
    for step_id in plan.state.returned:
        step = plan.state.steps[step_id]
        end = plan.verdict(step)
        if end is not None:
            plan.close(step, end)


# --- the queue -------------------------------------------------------------------------------------------------------------------


def dispatch(plan: Plan, model: ModelName) -> None:
    """Place what moves, then steps in the order of the queue, until the next one has no room; that one may take another's."""
    queue = plan.state.queues.get(model)
    if queue is None and not plan.state.leaving:
        return
    room = plan.room(model)
    if room.loads and plan.state.leaving:
        move(plan, model, room)
    if queue is not None:
        _place(plan, queue, room)
        _preempt(plan, queue, model)


def _place(plan: Plan, queue: Queue, room: Room) -> None:
    if not room.free:
        return
    for step_id in first_first(plan.state.ledger, queue.keys, plan.state.steps, plan.sent):
        step = plan.state.steps[step_id]
        if step_id in plan.touched or _match_expected(plan, step, room.ready):
            continue
        choice = plan.choose_in(step, room)
        if choice is not None:
            plan.dispatch(step, choice, room.ready)
        elif not _can_wait(plan, step):
            plan.close(step, _too_long(step))
        elif step.failed_on not in room.loads and step.failed_on not in room.filled:
            return
        if not room.free:
            return


def _preempt(plan: Plan, queue: Queue, model: ModelName) -> None:
    """For the first that still waits, stop one that is less urgent, if that makes room."""
    gap, placed = plan.config.preempt_gap, plan.state.placed
    if plan.state.ledger.order != DEFAULT:  # whoever gave way would be the first again
        return
    if not gap or not placed or min(placed) > -queue.keys[0][0] - gap:
        return
    steps, touched = plan.state.steps, plan.touched
    head = next((steps[key[2]] for key in queue.keys if key[2] not in touched), None)
    if head is None or _match_expected(plan, head, plan.room(model).ready):  # it may yet find room
        return
    for priority in sorted(plan.fleet.running):  # the least urgent give way first, whatever else is said for others
        if priority > head.job.priority - gap:
            return
        victim = _gives_way(plan, head, priority)
        if victim is not None:
            plan.revoke(victim, Reason.PREEMPTED)
            return


def _gives_way(plan: Plan, head: Step, priority: int) -> Step | None:
    """Of the steps that run with that priority: the shortest prompts first, until no longer one can be the shortest context."""
    found: Step | None = None
    for length, alike in sorted(plan.fleet.running[priority].items()):
        if found is not None and rank(found)[1] < length * PROMPT_TOKENS:
            break
        running = _stoppable(plan, alike, head.job.model)
        victim = gives_way(head.job, running, plan.config.preempt_gap)
        if victim is not None and (found is None or rank(victim) < rank(found)):
            found = victim
    return found


def _stoppable(plan: Plan, running: Iterable[StepId], model: ModelName) -> Iterator[tuple[Step, Worker]]:
    """Those of the steps that run on ready workers of the model, and are not being stopped."""
    steps, workers, counted = plan.state.steps, plan.state.workers, plan.fleet.counted
    for step_id in running:
        step = steps[step_id]
        if step_id in plan.touched or step.revoked or step.closed or step.cancelled:
            continue
        on = counted[step.worker]
        if on.ready and on.model == model:
            yield step, workers[step.worker]


def _match_expected(plan: Plan, step: Step, ready: int) -> bool:
    """Whether the step still waits for the registry's answer: where there is a choice, for a moment, if the registry was heard lately."""
    if step.cached is not None or step.attempt or ready <= 1:
        return False
    heard = plan.now_ns - plan.state.matched_ns <= REGISTRY_HEARD_NS
    return heard and plan.now_ns < step.routed_ns + int(plan.config.match_wait_ms * MS)


def _can_wait(plan: Plan, step: Step) -> bool:
    """Whether room for the step can ever appear on a worker that is known."""
    workers = plan.room(step.job.model).known.values()
    return any(could_ever_fit(step.job, worker.block_tokens, worker.capacity.blocks) for worker in workers)


def _too_long(step: Step) -> retry.Verdict:
    tokens = f"{step.job.prompt_tokens} prompt and up to {step.job.max_tokens} output tokens"
    return Status.FAILED, Problem(reason=Reason.CONTEXT_TOO_LONG, message=f"{tokens} fit into no worker of {step.job.model}")


def _shed_surplus(plan: Plan, model: ModelName) -> None:
    """Beyond `queue_max`, end the last in order: of the lowest priority, the newest. What has run already is not given up."""
    keys = plan.state.queues[model].keys
    if len(keys) <= plan.config.queue_max:
        return
    leaving = [step for step_id in plan.touched if (step := plan.state.steps[step_id]).queued and step.job.model == model]
    if len(keys) - len(leaving) > plan.config.queue_max:
        waiting = (plan.state.steps[step_id] for step_id in last_first(plan.state.ledger, keys, plan.state.steps))
        last = next((step for step in waiting if step.attempt == 0 and step.id not in plan.touched), None)
        if last is None:  # all that wait have run before
            return
        wait_ms = queue_report(plan, model).drain_ms
        message = f"{plan.config.queue_max} steps wait for {model} already; come back in {wait_ms} ms"
        plan.close(last, (Status.SHED, Problem(reason=Reason.QUEUE_FULL, message=message, retry_after_ms=wait_ms)))


_RULES: dict[type[Message], Callable[[Plan, Any], None]] = {
    StepRouted: _on_routed,
    PrefixMatched: _on_matched,
    CancelRequested: _on_cancel,
    AttemptEnded: _on_ended,
    StepClosed: _on_closed,
    WorkerRegistered: _on_fleet,
    WorkerGone: _on_fleet,
    WorkerVanished: _on_fleet,
    WorkerBeat: _on_beat,
    Tick: _on_tick,
}

MACHINE = Machine(
    name="scheduler",
    state=State,
    config=SchedulerConfig,
    inputs=StepRouted
    | PrefixMatched
    | AttemptEnded
    | CancelRequested
    | StepClosed
    | WorkerRegistered
    | WorkerGone
    | WorkerVanished
    | WorkerBeat
    | Tick,
    start=lambda config: State(cell=config.cell, ledger=Ledger(order=config.order)),
    apply=apply,
    decide=decide,
    wake_ns=wake_ns,
)
