"""What the autoscaler knows: queues, workers, and the targets that it has set."""

import msgspec

from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import QueueReported, ScaleTargetSet, WorkerBeat, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import ModelName, WorkerId

WORKERS_MAX = 20_000
MODELS_MAX = 1_000
SAMPLES_MAX = 2_000  # per pool: 66 minutes at the default interval
SILENT_NS = 10_000_000_000  # a worker or queue that was not heard of for so long is left out


class Member(msgspec.Struct):
    """One worker of a pool."""

    pool: str
    model: ModelName
    state: WorkerState
    slots: int
    slots_used: int = 0
    heard_ns: int = 0


class Queue(msgspec.Struct):
    """The last report of one model's queue."""

    depth: int
    heard_ns: int


class Target(msgspec.Struct):
    """What a pool was last told."""

    workers: int
    changed_ns: int
    told_ns: int


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """A pool at one moment. `workers` are those that are ready; `coming` are those that load; `depth` are steps waiting for its models."""

    at_ns: int
    workers: int
    coming: int
    slots: int
    slots_used: int
    depth: int


class State(msgspec.Struct):
    """All of it, by name. `samples`: one per pool and tick, oldest first."""

    workers: dict[WorkerId, Member] = {}
    queues: dict[ModelName, Queue] = {}
    targets: dict[str, Target] = {}
    samples: dict[str, list[Sample]] = {}
    judged_ns: int = 0


def apply(state: State, event: Message, now_ns: int) -> None:
    """Fold one fact."""
    if isinstance(event, WorkerBeat):
        _beat(state, event, now_ns)
    elif isinstance(event, QueueReported):
        if event.model in state.queues or len(state.queues) < MODELS_MAX:
            state.queues[event.model] = Queue(event.depth, now_ns)
    elif isinstance(event, WorkerRegistered):
        if event.worker in state.workers or len(state.workers) < WORKERS_MAX:
            state.workers[event.worker] = Member(event.pool, event.card.name, event.state, event.capacity.slots, heard_ns=now_ns)
    elif isinstance(event, WorkerGone):
        state.workers.pop(event.worker, None)
    elif isinstance(event, ScaleTargetSet):
        known = state.targets.get(event.pool)
        changed = now_ns if known is None or known.workers != event.workers else known.changed_ns
        state.targets[event.pool] = Target(event.workers, changed, now_ns)
    elif isinstance(event, Tick):
        _sample(state, now_ns)


def _beat(state: State, beat: WorkerBeat, now_ns: int) -> None:
    member = state.workers.get(beat.worker)
    if member is not None:
        member.state, member.slots_used, member.heard_ns = beat.state, beat.slots_used + beat.waiting, now_ns


def _sample(state: State, now_ns: int) -> None:
    state.judged_ns = now_ns
    for pool in sorted({member.pool for member in state.workers.values()} | set(state.samples)):
        samples = state.samples.setdefault(pool, [])
        samples.append(_load(state, pool, now_ns))
        del samples[:-SAMPLES_MAX]


def _load(state: State, pool: str, now_ns: int) -> Sample:
    members = [member for member in state.workers.values() if member.pool == pool and now_ns - member.heard_ns <= SILENT_NS]
    ready = [member for member in members if member.state is WorkerState.READY]
    models = {member.model for member in members}
    fresh = [queue.depth for model, queue in state.queues.items() if model in models and now_ns - queue.heard_ns <= SILENT_NS]
    return Sample(
        at_ns=now_ns,
        workers=len(ready),
        coming=sum(member.state in (WorkerState.LOADING, WorkerState.DOWN) for member in members),
        slots=sum(member.slots for member in ready),
        slots_used=sum(member.slots_used for member in ready),
        depth=sum(fresh),
    )
